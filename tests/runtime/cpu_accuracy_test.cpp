// The fast CPU runtime against the reference on the bundled model, in every format.
//
// The two differ in that the fast one rounds to BF16 what its matrices multiply, queries and
// attention weights included (and sums in another order, which is nothing beside that). How much
// that may move the logits is a property of the model: here it is measured on the reference itself,
// by disturbing the weights of all its norms by up to one part in 2^8. That multiplies the inputs
// of every linear that follows a norm with 1 + d, |d| <= 2^-8: twice the most that rounding to BF16
// does, to make up for the linears that follow no norm (o_proj, down_proj) and for attention. The
// fast runtime must stay within the largest effect of a few such disturbances.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/cpu/cpu_runtime.h"
#include "runtime/cpu_model_variants.h"
#include "runtime/test_files.h"

namespace levin::runtime::cpu {
namespace {

constexpr int kDisturbances = 3;
constexpr float kDisturbance = 0x1p-8F;

const testing::TensorFile& goldens() {
  static const testing::TensorFile file(std::filesystem::path(LEVIN_SOURCE_DIR) /
                                        "tests/data/goldens/model_goldens.safetensors");
  return file;
}

using Logits = std::vector<std::vector<float>>;  // by position

// Logits of every position of some prompts, and of three drafts after each.
Logits all_logits(Runtime& runtime) {
  Logits logits;
  for (const char* prompt : {"prose", "chat_think", "hidden16"}) {
    const auto ids = goldens().ids(std::string(prompt) + ".input_ids");
    const auto rows = static_cast<int>(ids.size());
    runtime.reset(0);
    runtime.extend(std::vector<Extend>{{.tokens = ids, .logits_rows = rows}});
    for (int row = 0; row < rows; ++row) {
      const auto values = runtime.logits(0, row);
      logits.emplace_back(values.begin(), values.end());
    }
    const int32_t next = goldens().ids(std::string(prompt) + ".mtp.next_token").front();
    runtime.draft(std::vector<Draft>{{.next_token = next, .k = 1}});
    const auto values = runtime.draft_logits(0, 0);
    logits.emplace_back(values.begin(), values.end());
  }
  return logits;
}

double rms_difference(const Logits& a, const Logits& b) {
  double sum = 0;
  double count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < a[i].size(); ++j) {
      const double d = double{a[i][j]} - b[i][j];
      sum += d * d;
      count += 1;
    }
  }
  return std::sqrt(sum / count);
}

// Mean Kullback-Leibler divergence of b from a, in nats.
double mean_kl(const Logits& a, const Logits& b) {
  const auto log_sum = [](const std::vector<float>& x) {
    const double peak = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (const float v : x) sum += std::exp(v - peak);
    return peak + std::log(sum);
  };
  double total = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double p = log_sum(a[i]);
    const double q = log_sum(b[i]);
    for (std::size_t j = 0; j < a[i].size(); ++j) {
      total += std::exp(a[i][j] - p) * ((a[i][j] - p) - (b[i][j] - q));
    }
  }
  return total / static_cast<double>(a.size());
}

void disturb(std::vector<float>& weights, std::mt19937& random) {
  std::uniform_real_distribution<float> noise(-kDisturbance, kDisturbance);
  for (float& w : weights) w *= 1.0F + noise(random);
}

void disturb(std::vector<model::Layer>& layers, std::mt19937& random) {
  for (model::Layer& layer : layers) {
    disturb(layer.norm, random);
    if (auto* mamba = std::get_if<model::MambaBlock>(&layer.mixer)) disturb(mamba->norm, random);
  }
}

std::shared_ptr<const model::Model> disturbed(const model::Model& model, uint32_t seed) {
  auto copy = std::make_shared<model::Model>(model);
  std::mt19937 random(seed);
  disturb(copy->layers, random);
  disturb(copy->norm_f, random);
  disturb(copy->mtp->enorm, random);
  disturb(copy->mtp->hnorm, random);
  disturb(copy->mtp->layers, random);
  disturb(copy->mtp->final_layernorm, random);
  return copy;
}

const std::map<std::string, float>& maxima() {
  static const auto values = input_maxima(goldens().ids("chat_think.input_ids"));
  return values;
}

class CpuAccuracy : public ::testing::TestWithParam<Variant> {};

TEST_P(CpuAccuracy, IsThatOfBf16Inputs) {
  const Variant& variant = GetParam();
  const VariantModel model = make_variant(*tiny_model(), variant, maxima());
  Options options;
  options.max_model_len = 512;
  options.max_extend_tokens = 64;
  options.kv_cache_dtype = variant.kv;
  const Logits reference = all_logits(*make_reference_runtime(model.model, options));
  double most_rms = 0;
  double most_kl = 0;
  for (uint32_t seed = 0; seed < kDisturbances; ++seed) {
    const Logits other =
        all_logits(*make_reference_runtime(disturbed(*model.model, seed), options));
    most_rms = std::max(most_rms, rms_difference(reference, other));
    most_kl = std::max(most_kl, mean_kl(reference, other));
  }
  for (const Isa isa : supported_isas()) {
    const Logits fast = all_logits(*make_runtime(model.model, options, isa));
    const double rms = rms_difference(reference, fast);
    const double kl = mean_kl(reference, fast);
    fmt::print("  {:<16} {:<12} rms {:.4f} of {:.4f} allowed, KL {:.2e} of {:.2e}\n", variant.name,
               name_of(isa), rms, most_rms, kl, most_kl);
    EXPECT_LE(rms, most_rms) << name_of(isa);
    EXPECT_LE(kl, most_kl) << name_of(isa);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, CpuAccuracy, ::testing::ValuesIn(all_variants()),
                         [](const auto& variant) { return variant.param.name; });

}  // namespace
}  // namespace levin::runtime::cpu
