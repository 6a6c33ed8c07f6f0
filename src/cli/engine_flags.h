// Flags shared by every subcommand that loads a model to run it. Names are vLLM's where vLLM has
// the same thing.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>

#include "engine/engine.h"
#include "engine/generate.h"

namespace levin::cli {

struct EngineFlags {
  std::string model;
  std::string device = "auto";
  std::string runtime = "fast";
  std::string load_format = "auto";
  std::string kv_cache_dtype = "auto";
  std::string ssm_cache_dtype = "auto";
  bool stochastic_rounding = false;
  int philox_rounds = 10;
  int64_t max_model_len = 0;
  int max_num_seqs = 1;
  int threads = 0;
  bool pin_threads = false;
  uint64_t seed = 0;
  std::optional<std::string> speculative_config;
  bool host_rounds = false;
  bool no_prefix_caching = false;
  // Of a profile, where the number of drafts is chosen round by round.
  int64_t draft_vocab_size = 0;
};

// Declares MODEL and the flags on `command`; `flags` must outlive the parse.
void add_engine_flags(CLI::App& command, EngineFlags& flags);

// Declares --host-rounds, for a command that generates.
void add_host_rounds_flag(CLI::App& command, EngineFlags& flags);

// Where num_speculative_tokens and draft_vocab_size come from, for errors.
inline constexpr const char* kDraftsPlace =
    "num_speculative_tokens of --speculative-config or --profile";
inline constexpr const char* kDraftVocabPlace =
    "draft_vocab_size of --speculative-config or --profile";

// Says where --threads asks for more than there are cores, and where it was not given (0) and a
// container's quota is less than them. For commands without load_options().
void check_threads(int threads);

// What the flags ask for. Throws Error for a device this build cannot run on.
engine::LoadOptions load_options(const EngineFlags& flags);

// For a command that generates: steps of at most `tokens` tokens, 0: as many as suit the device
// (512 on the CPU, 8192 on a CUDA device, which reads prompts in chunks); and no more rows of
// logits than generating asks for.
void size_steps(engine::LoadOptions& options, int tokens);

// Parses --speculative-config JSON ({"method": "mtp", "num_speculative_tokens": 3}); k = 0 when
// empty. Unknown keys and methods are Errors.
engine::SpeculativeConfig speculative_config(const EngineFlags& flags);

// The same for benchmarks, which may ask for synthetic acceptance as vLLM does, besides:
// {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.65, 0.6, 0.56]}.
engine::SpeculativeConfig benchmark_speculative_config(const EngineFlags& flags);

}  // namespace levin::cli
