#include "engine/self_test.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/plural.h"
#include "engine/sampler.h"

namespace levin::engine {
namespace {

constexpr std::string_view kPrompt = "It was the best of times, it was the worst of times, it was";
constexpr int64_t kTokens = 48;

bool is_quantized(const model::Linear& linear) {
  using model::WeightFormat;
  return linear.format != WeightFormat::kF32 && linear.format != WeightFormat::kF16 &&
         linear.format != WeightFormat::kBf16;
}

// Of a folder without tokenizer: some ids that every vocabulary has.
std::vector<int32_t> prompt_of(const Engine& engine) {
  if (engine.tokenizer) return engine.tokenizer->encode(kPrompt);
  std::vector<int32_t> ids(16);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] =
        static_cast<int32_t>((7 * static_cast<int64_t>(i) + 3) % engine.model->config.vocab_size);
  }
  return ids;
}

// NaN compares as no token at all, so that noise would be drafted silently.
void check_numbers(Engine& engine, const Request& request) {
  runtime::Runtime& runtime = *engine.runtime;
  const int k = request.speculation.num_speculative_tokens;
  const std::span<const int32_t> prompt = request.prompt;
  runtime.reset(0);
  const auto step = static_cast<std::size_t>(runtime.options().max_extend_tokens);
  for (std::size_t done = 0; done < prompt.size(); done += step) {
    const runtime::Extend extend = {
        .slot = 0, .tokens = prompt.subspan(done, std::min(step, prompt.size() - done))};
    runtime.extend({&extend, 1});
  }
  const runtime::Draft draft = {
      .slot = 0, .next_token = greedy_token(runtime.logits(0, 0)), .k = k};
  runtime.draft({&draft, 1});
  for (int i = 0; i < k; ++i) {
    const auto logits = runtime.draft_logits(0, i);
    if (std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); })) {
      continue;
    }
    throw Error({.what = "the draft head's logits are not numbers",
                 .where = engine.folder.string(),
                 .expected = "finite logits",
                 .found = fmt::format("NaN or infinity in draft {}", i + 1),
                 .hint = "the checkpoint's mtp.* tensors are broken; run without speculation"});
  }
  runtime.reset(0);
}

}  // namespace

bool drafter_quantized(const model::Model& model) {
  const auto linears = model.linears();
  return std::any_of(linears.begin(), linears.end(), [](const model::Linear* linear) {
    return linear->name.starts_with("mtp.") && is_quantized(*linear);
  });
}

DrafterReport drafter_self_test(Engine& engine) {
  if (!engine.runtime->options().mtp) {
    throw Error({.what = "there is no draft head to test",
                 .where = engine.folder.string(),
                 .expected = "a checkpoint with mtp.* tensors",
                 .found = "none",
                 .hint = {}});
  }
  const runtime::Options& options = engine.runtime->options();
  Request request;
  request.prompt = prompt_of(engine);
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  request.sampling.max_tokens = kTokens;
  request.speculation.num_speculative_tokens = std::min(3, options.max_rewind - 1);
  if (request.prompt.size() + 1 > static_cast<std::size_t>(options.max_model_len)) {
    request.prompt.resize(
        static_cast<std::size_t>(std::max<int64_t>(1, options.max_model_len / 2)));
  }
  check_numbers(engine, request);
  const Result result = std::move(generate(engine, {&request, 1}).front());

  DrafterReport report;
  report.quantized = drafter_quantized(*engine.model);
  report.speculation = result.speculation;
  report.mean_acceptance_length = result.speculation.mean_acceptance_length();
  report.near_floor = report.mean_acceptance_length < kAcceptanceFloor;
  return report;
}

void check_drafter(Engine& engine) {
  const DrafterReport report = drafter_self_test(engine);
  if (report.near_floor) {
    spdlog::warn("{}", report.message());
  } else {
    spdlog::info("{}", report.message());
  }
}

std::string DrafterReport::message() const {
  const std::string measured =
      fmt::format("{:.2f} tokens per round over {} of the self-test", mean_acceptance_length,
                  counted(speculation.num_drafts, "round"));
  if (!near_floor) return fmt::format("draft head: {}", measured);
  return fmt::format(
      "THE DRAFT HEAD HARDLY EVER AGREES WITH THE MODEL: {} (below {}). Speculation stays lossless "
      "but costs time. {}",
      measured, kAcceptanceFloor,
      quantized ? "Its matrices are quantized: compare with an unquantized draft head."
                : "The checkpoint's mtp.* tensors may belong to another model.");
}

}  // namespace levin::engine
