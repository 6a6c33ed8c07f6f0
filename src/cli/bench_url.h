// The half of `levin bench` that measures a server: levin bench --url URL.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/client/client_bench.h"
#include "core/error.h"

namespace levin::cli {

struct BenchUrlFlags {
  std::string url;
  std::string api_key;
  bench::client::ClientOptions options;
  double request_rate = 0;  // 0: closed loop
  int warm_ups = -1;        // -1: by the load
  std::vector<std::string> goodput;
  std::string out;
};

inline constexpr const char* kBenchUrlDescription =
    "With --url, a server of OpenAI's API is measured instead, whoever made it: closed loop\n"
    "(--max-concurrency 1,2,4), open loop (--request-rate) or a trace, always beside one request "
    "at\n"
    "a time. Token counts are the server's; prompts begin differently, so that no prefix cache\n"
    "helps, and a server that had more than 1 % of them cached all the same makes the run "
    "invalid.\n"
    "With --seed they are the same in every run, and a server that has met them should have "
    "started\n"
    "anew.\n"
    "Exit code 1: a request failed, prompts were cached, or answers are shorter than --ignore-eos\n"
    "asks for; 3: no server.\n\n"
    "  levin bench --url http://localhost:8000 --max-concurrency 1,2,4,8,16 --ignore-eos -o "
    "results\n"
    "  levin bench --url http://localhost:8000 --request-rate 4 --goodput ttft:500 tpot:50\n"
    "  levin bench --url http://localhost:8000 --dataset-name sonnet --allow-cached\n"
    "  levin bench --url http://localhost:8000 --dataset-name trace --dataset-path trace.jsonl\n\n"
    "A trace has a request on each line: {\"timestamp\": MS, \"prompt\": TEXT, \"output_length\": "
    "N},\n"
    "or \"input_length\" and \"hash_ids\" (one for each 512 tokens, as in Mooncake's traces) "
    "instead of\n"
    "\"prompt\"; without timestamps, requests are sent as --max-concurrency or --request-rate "
    "say.\n";

// Declares the flags on `command`; `flags` must outlive the parse.
void add_bench_url_flags(CLI::App& command, BenchUrlFlags& flags);

// Throws Error when flags were given that mean nothing with a server, or nothing without one.
void check_bench_flags(const CLI::App& command, const BenchUrlFlags& flags);

// `seed`: --seed when it was given.
ExitCode run_bench_url(const BenchUrlFlags& flags, std::optional<uint64_t> seed, bool json);

}  // namespace levin::cli
