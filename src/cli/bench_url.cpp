#include "cli/bench_url.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/output.h"
#include "cli/validators.h"
#include "core/console.h"
#include "core/files.h"
#include "core/space.h"

namespace levin::cli {
namespace {

constexpr const char* kGroup = "With --url";
constexpr double kSlowest = 0.001, kFastest = 100000;  // requests a second
constexpr int64_t kMostPrompts = 1'000'000;
constexpr const char* kFileNames[] = {"requests.jsonl", "summary.json", "report.html"};

// Also of a server.
const std::set<std::string> kShared = {"help", "seed", "json"};

// What users have at hand, the API's path included.
std::string base_url(std::string url) {
  while (url.ends_with('/')) url.pop_back();
  if (url.ends_with("/v1")) url.resize(url.size() - 3);
  return url;
}

// "ttft:500": milliseconds, with vLLM's names.
void add_limit(const std::string& text, bench::client::Goodput& goodput) {
  const std::size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  char* end = nullptr;
  const double ms = colon == text.npos ? 0 : std::strtod(text.c_str() + colon + 1, &end);
  const bool number = end != nullptr && *end == '\0' && ms > 0 && std::isfinite(ms);
  if (!number || (name != "ttft" && name != "tpot" && name != "e2el")) {
    throw Error({.what = "no limit for good requests",
                 .where = "--goodput",
                 .expected = "ttft:MS, tpot:MS or e2el:MS",
                 .found = text,
                 .hint = {}});
  }
  (name == "ttft" ? goodput.ttft : name == "tpot" ? goodput.tpot : goodput.e2e) = ms / 1000;
}

// Arrivals of a slower or faster load would end in no time that anybody waits.
std::string check_rate(const std::string& text) {
  char* end = nullptr;
  const double rate = std::strtod(text.c_str(), &end);
  const bool number = !text.empty() && *end == '\0';
  if (number && ((rate >= kSlowest && rate <= kFastest) || (std::isinf(rate) && rate > 0)))
    return {};
  return fmt::format("{} is not inf or a number from {} to {:.0f}", text, kSlowest, kFastest);
}

bench::client::ClientOptions options_of(const BenchUrlFlags& flags, std::optional<uint64_t> seed) {
  bench::client::ClientOptions options = flags.options;
  options.target.url = base_url(flags.url);
  options.target.api_key = flags.api_key;
  const char* where = "--api-key";
  if (const char* key = std::getenv("OPENAI_API_KEY"); flags.api_key.empty() && key != nullptr) {
    options.target.api_key = key;
    where = "OPENAI_API_KEY";
  }
  if (!options.target.api_key.empty()) check_api_key(options.target.api_key, where);
  options.dataset.seed = seed.value_or(0);
  options.number_seed = seed;
  if (flags.request_rate > 0 && std::isfinite(flags.request_rate)) {
    options.request_rate = flags.request_rate;
  }
  if (flags.warm_ups >= 0) options.warm_ups = flags.warm_ups;
  for (const std::string& limit : flags.goodput) add_limit(limit, options.goodput);
  return options;
}

void write_results(const std::filesystem::path& folder, const bench::client::ClientReport& report) {
  const std::string texts[] = {raw_records(report), to_json(report).dump(1) + "\n",
                               to_html(report)};
  for (std::size_t i = 0; i < std::size(texts); ++i) {
    write_text(folder / kFileNames[i], texts[i], Existing::kRefuse);
  }
}

}  // namespace

void add_bench_url_flags(CLI::App& command, BenchUrlFlags& flags) {
  bench::client::ClientOptions& options = flags.options;
  bench::client::DatasetOptions& dataset = options.dataset;
  const auto add = [&](const char* name, auto& value, const char* what) {
    return command.add_option(name, value, what)->group(kGroup);
  };
  add("--url", flags.url, "Server to measure, e.g. http://localhost:8000");
  add("--model", options.model, "Model to ask for (default: the server's, if it has one)");
  add("--api-key", flags.api_key, "Key of the server (default: OPENAI_API_KEY)");
  add("--endpoint", options.endpoint, "/v1/completions or /v1/chat/completions")
      ->check(CLI::IsMember({"/v1/completions", "/v1/chat/completions"}))
      ->capture_default_str();
  add("--max-concurrency", options.max_concurrency,
      "Requests at a time; several (1,2,4) are measured in turn (default: 8)")
      ->delimiter(',')
      ->check(CLI::Range(1, 65536));
  add("--request-rate", flags.request_rate,
      "Requests a second, whether answered or not; inf: as --max-concurrency says")
      ->check(CLI::Validator(check_rate, ""));
  add("--burstiness", options.burstiness,
      "1: Poisson arrivals; less: in bursts; more: evenly (gamma distribution)")
      ->check(CLI::Range(0.01, 1000.0))
      ->capture_default_str();
  add("--num-prompts", options.num_prompts,
      "Requests of a load in each round (default: 8 and four for each at a time, or 10 s of "
      "--request-rate, or the trace)")
      ->check(CLI::Range(int64_t{1}, kMostPrompts));
  add("--num-warmups", flags.warm_ups,
      "Requests before that do not count (default: as many as are sent at a time)")
      ->check(CLI::Range(0, 65536));
  add("--num-rounds", options.rounds, "Rounds through all loads")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  add("--dataset-name", dataset.name,
      "Prompts: text, random (words in no order), sonnet (a shared beginning) or trace")
      ->check(CLI::IsMember({"text", "random", "sonnet", "trace"}))
      ->capture_default_str();
  add("--dataset-path", dataset.files,
      "Files they are made of (default: prose and C++ of the bundled evaluation texts)");
  add("--input-len,--random-input-len,--sonnet-input-len", dataset.input_tokens,
      "Tokens of a prompt, about")
      ->check(CLI::Range(int64_t{1}, bench::client::kMostTokens))
      ->capture_default_str();
  add("--output-len,--random-output-len,--sonnet-output-len", dataset.output_tokens,
      "Tokens of an answer at most; with --ignore-eos exactly")
      ->check(CLI::Range(int64_t{1}, bench::client::kMostTokens))
      ->capture_default_str();
  add("--sonnet-prefix-len", dataset.prefix_tokens, "Of these, the same for all prompts")
      ->check(CLI::Range(int64_t{1}, bench::client::kMostTokens))
      ->capture_default_str();
  add("--temperature", options.temperature, "Of sampling")
      ->check(CLI::Range(0.0, 2.0))
      ->capture_default_str();
  command.add_flag("--ignore-eos", options.ignore_eos, "Answers of full length")->group(kGroup);
  command
      .add_flag("--allow-cached", options.allow_cached,
                "Prompts begin as they are, and may come from the server's cache")
      ->group(kGroup);
  add("--goodput", flags.goodput, "Limits of good requests in ms: ttft:MS tpot:MS e2el:MS")
      ->delimiter(',');
  add("--metric-percentiles", options.percentiles, "Percentiles of latencies (default: 50,90,99)")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 100.0));
  add("--timeout", options.target.timeout_seconds, "Seconds that an answer may take")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  add("-o,--output", flags.out,
      "New folder for requests.jsonl (all times of every request), summary.json, report.html");
}

void check_bench_flags(const CLI::App& command, const BenchUrlFlags& flags) {
  const bool url = !flags.url.empty();
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0 || kShared.contains(option->get_single_name())) continue;
    const bool of_url = option->get_group() == kGroup;
    if (of_url == url) continue;
    throw Error({.what = url ? "this is for timing a model, not a server"
                             : "this is for measuring a server",
                 .where = option->get_name(),
                 .expected = url ? "flags that levin bench --help lists under --url" : "--url URL",
                 .found = {},
                 .hint = {}});
  }
}

ExitCode run_bench_url(const BenchUrlFlags& flags, std::optional<uint64_t> seed, bool json) {
  const std::filesystem::path folder = flags.out;
  if (!folder.empty()) {
    create_folder(folder);
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (std::find(std::begin(kFileNames), std::end(kFileNames), name) != std::end(kFileNames))
        continue;
      throw Error({.what = "output folder is somebody else's",
                   .where = folder.string(),
                   .expected = "a new folder, or an empty one",
                   .found = name,
                   .hint = "choose another name"});
    }
    for (const char* name : kFileNames) check_output_file(folder / name, Existing::kRefuse);
    require_space(folder, kResultBytes);
  }
  const bench::client::ClientReport report =
      bench::client::run_client_bench(options_of(flags, seed));
  const auto write = [&] {
    if (!folder.empty()) write_results(folder, report);
  };
  write_and_print(write, [&] {
    if (json) {
      print_json(to_json(report));
    } else {
      fmt::print("{}", to_text(report));
    }
  });
  if (report.valid()) return ExitCode::kDone;
  tell(fmt::format("levin: not valid: {}\n", complaint(report)));
  return ExitCode::kNo;
}

}  // namespace levin::cli
