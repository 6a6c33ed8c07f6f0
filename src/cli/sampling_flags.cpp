#include "cli/sampling_flags.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "cli/validators.h"
#include "text/utf8.h"

namespace levin::cli {

void add_sampling_flags(CLI::App& command, SamplingFlags& flags) {
  command.add_option("--temperature", flags.temperature,
                     "0 is greedy (default: generation_config.json)");
  command.add_option("--top-k", flags.top_k, "Keep the k most likely tokens");
  command.add_option("--top-p", flags.top_p, "Keep the most likely tokens that share p");
  command.add_option("--min-p", flags.min_p, "Keep tokens of at least this share of the best");
  command.add_option("--presence-penalty", flags.presence_penalty,
                     "Lowers logits of tokens in the output");
  command.add_option("--frequency-penalty", flags.frequency_penalty,
                     "Lowers logits by how often a token is in the output");
  command.add_option("--repetition-penalty", flags.repetition_penalty,
                     "Divides logits of tokens in prompt or output");
  command.add_option("--max-tokens", flags.max_tokens, "Most tokens to generate")
      ->check(at_least(1))
      ->capture_default_str();
  command.add_option("--min-tokens", flags.min_tokens, "No stop before this many tokens");
  command.add_flag("--ignore-eos", flags.ignore_eos, "Go on after the model's stop tokens");
  command.add_option("--stop-token-ids", flags.stop_token_ids, "More token ids to stop at");
  command.add_option("--stop", flags.stop, "Text to stop before; may be repeated")
      ->allow_extra_args(false);
  command.add_flag("--include-stop-str-in-output", flags.include_stop_str_in_output,
                   "Keep the stop text");
}

engine::SamplingParams sampling_params(const SamplingFlags& flags, engine::SamplingParams params,
                                       std::optional<uint64_t> seed) {
  params.temperature = flags.temperature.value_or(params.temperature);
  params.top_k = flags.top_k.value_or(params.top_k);
  params.top_p = flags.top_p.value_or(params.top_p);
  params.min_p = flags.min_p.value_or(params.min_p);
  params.presence_penalty = flags.presence_penalty.value_or(params.presence_penalty);
  params.frequency_penalty = flags.frequency_penalty.value_or(params.frequency_penalty);
  params.repetition_penalty = flags.repetition_penalty.value_or(params.repetition_penalty);
  params.max_tokens = flags.max_tokens;
  params.min_tokens = flags.min_tokens;
  params.ignore_eos = flags.ignore_eos;
  params.stop_token_ids = flags.stop_token_ids;
  params.stop = flags.stop;
  params.include_stop_str_in_output = flags.include_stop_str_in_output;
  params.seed = seed;
  engine::validate(params);
  return params;
}

void check_sampling_flags(const SamplingFlags& flags) {
  sampling_params(flags, {}, {});
  for (const std::string& stop : flags.stop) text::require_utf8(stop, "--stop");
}

void tell_sampling(const SamplingFlags& flags, const engine::Engine& engine) {
  if (engine.undeclared_sampling.empty() || flags.temperature) return;
  const engine::SamplingParams params = sampling_params(flags, engine.default_sampling, {});
  if (params.greedy()) return;
  spdlog::info(
      "{}: tokens are drawn at temperature {}, top_p {}, {}; temperature 0 would be greedy",
      engine.undeclared_sampling, params.temperature, params.top_p,
      params.top_k > 0 ? fmt::format("top_k {}", params.top_k) : "no top_k");
}

}  // namespace levin::cli
