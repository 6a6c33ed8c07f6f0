#include "engine/self_test.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

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
  const Result result = std::move(generate(engine, {&request, 1}).front());

  DrafterReport report;
  report.quantized = drafter_quantized(*engine.model);
  report.speculation = result.speculation;
  report.mean_acceptance_length = result.speculation.mean_acceptance_length();
  report.near_floor = report.mean_acceptance_length < kAcceptanceFloor;
  return report;
}

std::string DrafterReport::message() const {
  const std::string measured =
      fmt::format("{:.2f} tokens per round over {} rounds of the self-test", mean_acceptance_length,
                  speculation.num_drafts);
  if (!near_floor) return fmt::format("draft head: {}", measured);
  return fmt::format(
      "THE DRAFT HEAD HARDLY EVER AGREES WITH THE MODEL: {} (below {}). Speculation stays lossless "
      "but costs time. {}",
      measured, kAcceptanceFloor,
      quantized ? "Its matrices are quantized: compare with an unquantized draft head."
                : "The checkpoint's mtp.* tensors may belong to another model.");
}

}  // namespace levin::engine
