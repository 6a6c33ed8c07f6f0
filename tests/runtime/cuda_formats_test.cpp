// Every weight format of the CUDA runtime against the reference runtime, which decodes the same
// bytes to float32 and quantizes inputs as the format asks. The bundled model is requantized in
// memory.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <nlohmann/json.hpp>
#include <random>

#include "codec/fp8.h"
#include "codec/int4.h"
#include "codec/nvfp4.h"
#include "core/error.h"
#include "core/files.h"
#include "core/small_floats.h"
#include "cuda_device.h"
#include "test_files.h"

namespace levin::runtime {
namespace {

using model::ActivationFormat;
using model::Linear;
using model::WeightFormat;

const std::filesystem::path kSource = LEVIN_SOURCE_DIR;

struct Format {
  WeightFormat weights;
  ActivationFormat activations = ActivationFormat::kNone;
  int group = 0;
};

// A copy of the bundled model whose linears are stored in other formats; owns their bytes.
class Requantized {
 public:
  explicit Requantized(const std::function<Format(const Linear&)>& format_of) {
    static const auto original = model::load_model(kSource / "models/tiny");
    model_ = std::make_shared<model::Model>(*original);
    for (const Linear* linear : model_->linears()) {
      if (linear->name.ends_with("embeddings") || linear->name.ends_with(".gate")) continue;
      requantize(const_cast<Linear&>(*linear), format_of(*linear));  // of our own copy
    }
  }
  std::shared_ptr<const model::Model> model() const { return model_; }

 private:
  template <typename T>
  TensorView keep(const std::vector<T>& values, DType dtype, Shape shape) {
    std::vector<std::byte>& bytes = bytes_.emplace_back(values.size() * sizeof(T));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return {dtype, std::move(shape), bytes};
  }
  void requantize(Linear& linear, const Format& format) {
    const std::vector<float> weights = model::dequantize(linear);
    linear.format = format.weights;
    linear.activation = format.activations;
    linear.group_size = format.group;
    linear.input_scale = 1.0F / 16.0F;
    switch (format.weights) {
      case WeightFormat::kF16: {
        std::vector<uint16_t> halves;
        for (const float w : weights) halves.push_back(float_to_f16(w));
        linear.weight = keep(halves, DType::kF16, {linear.out, linear.in});
        return;
      }
      case WeightFormat::kFp8:
      case WeightFormat::kFp8Channel: {
        const bool channel = format.weights == WeightFormat::kFp8Channel;
        const auto encoded = codec::encode_fp8(
            weights, linear.out, linear.in,
            channel ? codec::Fp8Granularity::kChannel : codec::Fp8Granularity::kTensor);
        linear.weight = keep(encoded.codes, DType::kF8E4M3, {linear.out, linear.in});
        if (channel) {
          linear.scales = keep(encoded.scales, DType::kF32, {linear.out});
        } else {
          linear.global_scale = encoded.scales.front();
        }
        return;
      }
      case WeightFormat::kNvfp4: {
        const auto encoded =
            codec::encode_nvfp4(weights, linear.out, linear.in, codec::Nvfp4Policy::kMaxStatic);
        linear.weight = keep(encoded.packed, DType::kU8, {linear.out, linear.in / 2});
        linear.scales = keep(encoded.block_scales, DType::kF8E4M3, {linear.out, linear.in / 16});
        linear.global_scale = encoded.global_scale;
        return;
      }
      case WeightFormat::kInt4: {
        const auto encoded = codec::encode_int4(weights, linear.out, linear.in, format.group);
        linear.weight = keep(encoded.words, DType::kI32, {linear.out, linear.in / 8});
        linear.scales = keep(encoded.scales, DType::kBF16, {linear.out, linear.in / format.group});
        return;
      }
      default:
        return;
    }
  }

  std::shared_ptr<model::Model> model_;
  std::deque<std::vector<std::byte>> bytes_;
};

double relative_error(std::span<const float> a, std::span<const float> b) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - double{b[i]}) * (double{a[i]} - double{b[i]});
    norm += double{b[i]} * double{b[i]};
  }
  return std::sqrt(difference / norm);
}

struct Errors {
  double median = 0;
  double most = 0;  // nine in ten are below
  double largest = 0;
};

// Of the logits of every position of a text, and of the drafts after it. `piece`: tokens of an
// extend; 8 run in a pass, more in a chunk.
Errors compare(const std::shared_ptr<const model::Model>& model, KvCacheDType kv, int piece) {
  const testing::TensorFile goldens(kSource / "tests/data/goldens/model_goldens.safetensors");
  const std::vector<int32_t> ids = goldens.ids("tools.input_ids");
  const auto rows = std::min<int>(static_cast<int>(ids.size()), 48);
  const std::span<const int32_t> tokens = std::span(ids).first(static_cast<std::size_t>(rows));
  const Options options = {
      .max_model_len = 256, .max_extend_tokens = 64, .kv_cache_dtype = kv, .threads = 2};
  const auto reference = make_reference_runtime(model, options);
  const auto cuda = make_cuda_runtime(model, options);
  const std::vector<Extend> batch = {{.tokens = tokens, .logits_rows = rows}};
  const std::vector<Draft> draft = {{.next_token = 17, .k = 2}};
  std::vector<double> errors;
  reference->extend(batch);
  for (int row = 0; row < rows; row += piece) {
    const int count = std::min(piece, rows - row);
    cuda->extend(std::vector<Extend>{
        {.tokens = tokens.subspan(static_cast<std::size_t>(row), static_cast<std::size_t>(count)),
         .logits_rows = count}});
    for (int i = 0; i < count; ++i)
      errors.push_back(relative_error(cuda->logits(0, i), reference->logits(0, row + i)));
  }
  reference->draft(draft);
  cuda->draft(draft);
  for (int step = 0; step < 2; ++step) {
    errors.push_back(relative_error(cuda->draft_logits(0, step), reference->draft_logits(0, step)));
  }
  std::sort(errors.begin(), errors.end());
  return {errors[errors.size() / 2], errors[errors.size() * 9 / 10], errors.back()};
}

struct Case {
  std::string name;
  std::function<Format(const Linear&)> format_of;
  double median;  // bound; nine in ten errors are below five times that
  KvCacheDType kv = KvCacheDType::kBf16;
};

Format coverage(const Linear& linear) {
  const auto has = [&](const char* part) { return linear.name.find(part) != std::string::npos; };
  if (has(".experts.") || linear.name == "lm_head")
    return {WeightFormat::kNvfp4, ActivationFormat::kNvfp4, 16};
  if (has("shared_experts") || has("in_proj") || has("out_proj"))
    return {WeightFormat::kFp8, ActivationFormat::kFp8Static};
  return {WeightFormat::kBf16};
}

// The same with inputs of NVFP4 linears left alone, as this runtime computes it.
Format coverage_w4a16(const Linear& linear) {
  Format format = coverage(linear);
  if (format.weights == WeightFormat::kNvfp4) format.activations = ActivationFormat::kNone;
  return format;
}

// Activations in float16 are 8 times finer than in BF16. An input near a rounding step of FP8 (2^-3
// of the value) can take the other side of it, and across 14 layers some always do.
//
// A token near a routing decision can take the other side of that: one of its experts is another
// one, in one layer. It is rare, and what it does to the logits has nothing to do with rounding, so
// the largest error has one bound for all.
constexpr double kLargest = 0.5;

std::vector<Case> cases() {
  const auto all = [](Format format) { return [format](const Linear&) { return format; }; };
  std::vector<Case> list;
  list.push_back({"bf16", all({WeightFormat::kBf16}), 0.01});
  list.push_back({"bf16_fp8_cache", all({WeightFormat::kBf16}), 0.02, KvCacheDType::kFp8});
  list.push_back({"f16", all({WeightFormat::kF16}), 0.003});
  list.push_back({"fp8_weight_only", all({WeightFormat::kFp8}), 0.003});
  list.push_back({"fp8_static", all({WeightFormat::kFp8, ActivationFormat::kFp8Static}), 0.1});
  list.push_back({"fp8_channel", all({WeightFormat::kFp8Channel}), 0.003});
  list.push_back({"coverage", coverage_w4a16, 0.1});
  list.push_back({"nvfp4", all({WeightFormat::kNvfp4, ActivationFormat::kNone, 16}), 0.003});
  list.push_back({"int4_g64", all({WeightFormat::kInt4, ActivationFormat::kNone, 64}), 0.003});
  list.push_back({"int4_g32", all({WeightFormat::kInt4, ActivationFormat::kNone, 32}), 0.003});
  return list;
}

class CudaFormats : public ::testing::TestWithParam<Case> {};

TEST_P(CudaFormats, AgreeWithTheReference) {
  LEVIN_NEEDS_CUDA();
  const Case& c = GetParam();
  const Requantized requantized(c.format_of);
  for (const int piece : {8, 48}) {
    const Errors errors = compare(requantized.model(), c.kv, piece);
    fmt::print(
        "  {:<16} in pieces of {:>2}: relative error of logits: median {:.2e}, most below {:.2e}, "
        "largest {:.2e}\n",
        c.name, piece, errors.median, errors.most, errors.largest);
    EXPECT_LT(errors.median, c.median);
    EXPECT_LT(errors.most, 5 * c.median);
    EXPECT_LT(errors.largest, kLargest);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaFormats, ::testing::ValuesIn(cases()),
                         [](const auto& c) { return c.param.name; });

// The plan says what is not computed as stored, and why.
TEST(CudaPlan, NamesEveryDeviation) {
  LEVIN_NEEDS_CUDA();
  const Requantized requantized(coverage);
  const auto runtime = make_cuda_runtime(requantized.model(), {.max_model_len = 128});
  int w4a4 = 0;
  for (const PlanEntry& entry : runtime->plan()) {
    if (entry.stored_as == "NVFP4 W4A4") {
      ++w4a4;
      EXPECT_NE(entry.why.find("W4A16"), std::string::npos) << entry.linear;
    }
  }
  EXPECT_GT(w4a4, 0);
}

// Each lane of a warp keeps one expert's weight.
TEST(CudaPlan, RefusesMoreExpertsPerTokenThanItChooses) {
  LEVIN_NEEDS_CUDA();
  auto json = read_json(kSource / "configs/nemotron-3.5-lightning-30b-a3b/config.json");
  json["num_experts_per_tok"] = 33;
  const auto model =
      make_shape_model(model::parse_config(json, "config.json"),
                       [](const model::TensorPlan&) { return checkpoint::ModuleQuant{}; });
  try {
    make_cuda_runtime(model, {.max_model_len = 128});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("at most 32"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("33"), std::string::npos) << error.what();
  }
}

// The full 30B shape in BF16 with far too many slots: said before anything is allocated.
TEST(CudaMemory, TooSmallIsSaidBeforehand) {
  LEVIN_NEEDS_CUDA();
  const auto model = make_shape_model(kSource / "configs/nemotron-3.5-lightning-30b-a3b");
  try {
    make_cuda_runtime(model,
                      {.max_model_len = 131072, .max_num_seqs = 1000, .max_extend_tokens = 64});
    FAIL() << "fits?";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kMachine) << error.what();
    EXPECT_NE(std::string(error.what()).find("does not fit"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace levin::runtime
