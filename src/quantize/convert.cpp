#include "quantize/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "checkpoint/writer.h"
#include "codec/calibration.h"
#include "codec/matrix.h"
#include "core/error.h"
#include "core/files.h"
#include "core/plural.h"
#include "core/progress.h"
#include "core/thread_team.h"
#include "quantize/companions.h"
#include "quantize/matrix_encoder.h"
#include "quantize/shard_jobs.h"

namespace levin::quantize {
namespace {

using checkpoint::Checkpoint;
using checkpoint::QuantAlgo;
using checkpoint::ShardWriter;

// No weight of a working model comes near; keeps every scale computation in range.
constexpr float kMaxMagnitude = 0x1p100F;
constexpr std::size_t kListedWarnings = 10;

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

// A matrix of the source whose rows are read in chunks and released behind the reader.
struct SourceMatrix {
  TensorView view;
  int64_t rows = 0;
  int64_t width = 0;

  std::size_t row_bytes() const { return static_cast<std::size_t>(width) * size_of(view.dtype); }
  std::span<const std::byte> bytes(Range range) const {
    return view.bytes.subspan(static_cast<std::size_t>(range.begin) * row_bytes(),
                              static_cast<std::size_t>(range.end - range.begin) * row_bytes());
  }
};

class Converter {
 public:
  Converter(const Checkpoint& source, const Plan& plan, const MeasuredScales& scales,
            const ConvertSettings& settings)
      : source_(source),
        plan_(plan),
        scales_(scales),
        chunk_bytes_(settings.chunk_bytes),
        team_(settings.threads) {
    share_attention_scales();
  }

  ProgressFile::Shard write_shard(const ShardJob& job, const std::filesystem::path& path,
                                  Progress& bar);

 private:
  void share_attention_scales();
  SourceMatrix matrix(const LinearPlan& linear) const;
  template <typename Function>
  void for_each_chunk(const SourceMatrix& matrix, int64_t bytes_per_row, Function&& function);
  float measure_amax(const LinearPlan& linear);
  float shared_amax(std::size_t linear);
  ErrorSum encode(const Item& item, std::size_t first_part, ShardWriter& writer);
  void write_codes(const SourceMatrix& matrix, const MatrixEncoder& encoder,
                   std::optional<std::size_t> codes_at, std::optional<std::size_t> scales_at,
                   ShardWriter& writer, ErrorSum& error);
  void copy(const Item& item, std::size_t part, ShardWriter& writer);
  float input_scale(const LinearPlan& linear) const;
  float kv_scale(const std::string& weight, Content content) const;

  const Checkpoint& source_;
  const Plan& plan_;
  const MeasuredScales& scales_;
  int64_t chunk_bytes_;
  ThreadTeam team_;
  // NVFP4 q, k and v of a block share one global scale, because engines fuse them into one matrix.
  std::map<std::size_t, std::vector<std::size_t>> fused_;
  std::map<std::size_t, float> amax_;
};

void Converter::share_attention_scales() {
  std::map<std::string, std::vector<std::size_t>> blocks;
  for (std::size_t i = 0; i < plan_.linears.size(); ++i) {
    const LinearPlan& linear = plan_.linears[i];
    const std::string module(plan_.tensor(linear).module());
    const bool nvfp4 =
        linear.quant.algo == QuantAlgo::kNvfp4 || linear.quant.algo == QuantAlgo::kW4A16Nvfp4;
    if (!nvfp4 || plan_.tensor(linear).role != model::Role::kAttention) continue;
    if (module.ends_with(".o_proj")) continue;
    blocks[module.substr(0, module.rfind('.'))].push_back(i);
  }
  for (const auto& [block, members] : blocks) {
    for (const std::size_t member : members) fused_[member] = members;
  }
}

SourceMatrix Converter::matrix(const LinearPlan& linear) const {
  const model::TensorPlan& tensor = plan_.tensor(linear);
  const TensorView view = source_.view(tensor.name);
  const bool is_float =
      view.dtype == DType::kBF16 || view.dtype == DType::kF16 || view.dtype == DType::kF32;
  if (!is_float || view.shape != tensor.shape) {
    throw Error(
        {.what = "weight cannot be quantized",
         .where = tensor.name,
         .expected = fmt::format("BF16, F16 or F32 {}", levin::to_string(tensor.shape)),
         .found = fmt::format("{} {}", levin::name_of(view.dtype), levin::to_string(view.shape)),
         .hint = {}});
  }
  return {view, view.shape[0], view.shape[1]};
}

// Calls function(range) for consecutive ranges of rows, whose share of `bytes_per_row` stays within
// a chunk.
template <typename Function>
void Converter::for_each_chunk(const SourceMatrix& matrix, int64_t bytes_per_row,
                               Function&& function) {
  const int64_t rows = std::max<int64_t>(1, chunk_bytes_ / std::max<int64_t>(bytes_per_row, 1));
  for (int64_t row = 0; row < matrix.rows; row += rows) {
    const Range range{row, std::min(row + rows, matrix.rows)};
    function(range);
    source_.release(matrix.bytes(range));
  }
}

// Largest magnitude of a weight. Throws Error when it holds anything but plausible numbers.
float Converter::measure_amax(const LinearPlan& linear) {
  const SourceMatrix weights = matrix(linear);
  std::vector<std::vector<float>> rows(static_cast<std::size_t>(team_.size()));
  for (std::vector<float>& row : rows) row.resize(static_cast<std::size_t>(weights.width));
  std::vector<float> maxima(static_cast<std::size_t>(team_.size()), 0.0F);
  for_each_chunk(weights, static_cast<int64_t>(weights.row_bytes()), [&](Range range) {
    team_.run([&](int thread) {
      const Range mine = share(range.end - range.begin, thread, team_.size());
      std::vector<float>& row = rows[static_cast<std::size_t>(thread)];
      float& amax = maxima[static_cast<std::size_t>(thread)];
      for (int64_t i = mine.begin; i < mine.end; ++i) {
        widen_row(weights.view, range.begin + i, row);
        const float row_amax = codec::absolute_max(row);
        if (std::isnan(amax) || row_amax <= amax) continue;
        amax = row_amax;  // also when it is NaN
      }
    });
  });
  float amax = 0.0F;
  for (const float value : maxima) amax = std::isnan(value) || value > amax ? value : amax;
  if (std::isnan(amax) || amax > kMaxMagnitude) {
    throw Error({.what = "weight holds values that cannot be quantized",
                 .where = plan_.tensor(linear).name,
                 .expected = fmt::format("finite numbers, magnitudes up to {}", kMaxMagnitude),
                 .found = std::isnan(amax) ? "NaN" : fmt::format("{}", amax),
                 .hint = "the checkpoint is damaged"});
  }
  return amax;
}

// The magnitude that the linear's scales come from: its own, or that of all it is fused with.
float Converter::shared_amax(std::size_t linear) {
  const auto group = fused_.find(linear);
  const std::vector<std::size_t> members =
      group == fused_.end() ? std::vector<std::size_t>{linear} : group->second;
  float amax = 0.0F;
  for (const std::size_t member : members) {
    const auto known = amax_.find(member);
    const float own = known != amax_.end() ? known->second : measure_amax(plan_.linears[member]);
    amax_[member] = own;
    amax = std::max(amax, own);
  }
  return amax;
}

float Converter::input_scale(const LinearPlan& linear) const {
  double amax = linear.constant_amax;
  if (linear.calibrated()) {
    amax = scales_.input_amax.at(std::string(plan_.tensor(linear).module()));
  }
  return linear.quant.algo == QuantAlgo::kFp8 ? codec::fp8_input_scale(amax)
                                              : codec::nvfp4_input_scale(amax);
}

float Converter::kv_scale(const std::string& weight, Content content) const {
  const std::string projection = weight.substr(0, weight.rfind('.'));
  const std::string attention = projection.substr(0, projection.rfind('.'));
  const auto& measured = content == Content::kKeyScale ? scales_.key_amax : scales_.value_amax;
  return codec::fp8_input_scale(measured.at(attention));
}

// Encodes all rows; a place that is absent (no scales per row) is not written.
void Converter::write_codes(const SourceMatrix& weights, const MatrixEncoder& encoder,
                            std::optional<std::size_t> codes_at,
                            std::optional<std::size_t> scales_at, ShardWriter& writer,
                            ErrorSum& error) {
  const auto width = static_cast<std::size_t>(weights.width);
  const auto threads = static_cast<std::size_t>(team_.size());
  std::vector<std::vector<float>> original(threads, std::vector<float>(width));
  std::vector<std::vector<float>> decoded(threads, std::vector<float>(width));
  std::vector<std::byte> codes;
  std::vector<std::byte> scales;
  std::vector<std::array<double, 2>> sums;
  const auto code_bytes = static_cast<std::size_t>(encoder.code_bytes());
  const auto scale_bytes = static_cast<std::size_t>(encoder.scale_bytes());
  for_each_chunk(weights, static_cast<int64_t>(weights.row_bytes()), [&](Range range) {
    const auto count = static_cast<std::size_t>(range.end - range.begin);
    codes.resize(count * code_bytes);
    scales.resize(count * scale_bytes);
    sums.assign(count, {0.0, 0.0});
    team_.run([&](int thread) {
      std::vector<float>& row = original[static_cast<std::size_t>(thread)];
      std::vector<float>& back = decoded[static_cast<std::size_t>(thread)];
      const Range mine = share(range.end - range.begin, thread, team_.size());
      for (int64_t i = mine.begin; i < mine.end; ++i) {
        const auto at = static_cast<std::size_t>(i);
        widen_row(weights.view, range.begin + i, row);
        encoder.encode(row, codes.data() + at * code_bytes, scales.data() + at * scale_bytes);
        encoder.decode(codes.data() + at * code_bytes, scales.data() + at * scale_bytes, back);
        for (std::size_t j = 0; j < width; ++j) {
          const double difference = double{row[j]} - double{back[j]};
          sums[at][0] += difference * difference;
          sums[at][1] += double{row[j]} * double{row[j]};
        }
      }
    });
    const auto begin = static_cast<uint64_t>(range.begin);
    writer.write(*codes_at, begin * code_bytes, codes);
    if (scales_at) writer.write(*scales_at, begin * scale_bytes, scales);
    for (const auto& [squared_error, squared] : sums) {
      error.squared_error += squared_error;
      error.squared += squared;
    }
  });
}

ErrorSum Converter::encode(const Item& item, std::size_t first_part, ShardWriter& writer) {
  const LinearPlan& linear = plan_.linears[*item.linear];
  const float amax = shared_amax(*item.linear);  // reads the matrix, too, and releases it
  const SourceMatrix weights = matrix(linear);
  const MatrixEncoder encoder(linear, weights.width, amax);
  ErrorSum error;
  error.matrices = 1;
  error.weights = weights.rows * weights.width;
  std::optional<std::size_t> codes_at;
  std::optional<std::size_t> scales_at;
  for (std::size_t i = 0; i < item.parts.size(); ++i) {
    const std::size_t at = first_part + i;
    const OutputPart& part = item.parts[i];
    error.bytes += static_cast<int64_t>(part.tensor.bytes());
    switch (part.content) {
      case Content::kCodes:
        codes_at = at;
        break;
      case Content::kScales:
        scales_at = at;
        break;
      case Content::kGlobalScale:
        writer.write(at, 0, bytes_of(encoder.global_scale()));
        break;
      case Content::kInputScale:
        writer.write(at, 0, bytes_of(input_scale(linear)));
        break;
      case Content::kShape:
        writer.write(at, 0, bytes_of(std::array<int64_t, 2>{weights.rows, weights.width}));
        break;
      case Content::kKeyScale:
      case Content::kValueScale:
        writer.write(at, 0, bytes_of(kv_scale(item.source, part.content)));
        break;
      case Content::kCopy:
        break;
    }
  }
  write_codes(weights, encoder, codes_at, scales_at, writer, error);
  return error;
}

// Throws Error for NaN and infinity in floating-point elements.
void check_finite(const TensorView& view, std::span<const std::byte> bytes,
                  const std::string& name) {
  // All exponent bits set, on the upper half of BF16 and F32, or on F16.
  const uint16_t exponent = view.dtype == DType::kF16 ? 0x7c00 : 0x7f80;
  const std::size_t step = view.dtype == DType::kF32 ? 2 : 1;
  const bool is_float =
      view.dtype == DType::kF32 || view.dtype == DType::kBF16 || view.dtype == DType::kF16;
  if (!is_float) return;
  const std::span halves(reinterpret_cast<const uint16_t*>(bytes.data()), bytes.size() / 2);
  bool bad = false;
  for (std::size_t i = step - 1; i < halves.size(); i += step) {
    bad = bad || (halves[i] & exponent) == exponent;
  }
  if (!bad) return;
  throw Error({.what = "tensor holds values that are not finite",
               .where = name,
               .expected = {},
               .found = {},
               .hint = "the checkpoint is damaged"});
}

void Converter::copy(const Item& item, std::size_t part, ShardWriter& writer) {
  const TensorView view = source_.view(item.source);
  const auto chunk = static_cast<std::size_t>(chunk_bytes_) / 8 * 8;
  for (std::size_t begin = 0; begin < view.bytes.size(); begin += chunk) {
    const auto piece = view.bytes.subspan(begin, std::min(chunk, view.bytes.size() - begin));
    check_finite(view, piece, item.source);
    writer.write(part, begin, piece);
    source_.release(piece);
  }
}

ProgressFile::Shard Converter::write_shard(const ShardJob& job, const std::filesystem::path& path,
                                           Progress& bar) {
  ShardWriter writer(path, job.outputs());
  ProgressFile::Shard shard;
  shard.bytes = writer.file_bytes();
  std::size_t part = 0;
  for (const Item& item : job.items) {
    if (item.linear) {
      const LinearPlan& linear = plan_.linears[*item.linear];
      const std::string name =
          fmt::format("{}, {}", class_name(plan_.tensor(linear)), model::format_name(linear.quant));
      const ErrorSum error = encode(item, part, writer);
      if (error.squared == 0) shard.zero_matrices.push_back(item.source);
      shard.errors[name].add(error);
    } else {
      copy(item, part, writer);
      for (std::size_t i = 1; i < item.parts.size(); ++i) {
        writer.write(part + i, 0, bytes_of(kv_scale(item.source, item.parts[i].content)));
      }
    }
    part += item.parts.size();
    bar.advance(static_cast<int64_t>(source_.find(item.source)->bytes));
  }
  writer.commit();
  return shard;
}

}  // namespace

uint64_t output_bytes(const Checkpoint& source, const Plan& plan) {
  uint64_t bytes = 0;
  for (const ShardJob& job : shard_jobs(source, plan)) {
    for (const checkpoint::OutputTensor& tensor : job.outputs()) bytes += tensor.bytes();
  }
  return bytes;
}

void convert(const Checkpoint& source, const Plan& plan, const MeasuredScales& scales,
             const ConvertSettings& settings, ProgressFile& progress) {
  const std::vector<ShardJob> jobs = shard_jobs(source, plan);
  Converter converter(source, plan, scales, settings);
  Progress bar("quantizing", static_cast<int64_t>(source.total_bytes()), "B");
  for (const ShardJob& job : jobs) {
    if (progress.shards().contains(job.file)) {
      for (const Item& item : job.items) {
        bar.advance(static_cast<int64_t>(source.find(item.source)->bytes));
      }
      continue;
    }
    progress.add_shard(job.file, converter.write_shard(job, progress.files() / job.file, bar));
  }
  write_companions(source, plan, jobs, settings, progress.files());
}

Conversion conversion_of(const Checkpoint& source, const Plan& plan, const ProgressFile& progress) {
  Conversion result;
  for (const auto& [name, shard] : progress.shards()) add(result.errors, shard.errors);
  for (const ShardJob& job : shard_jobs(source, plan)) {
    for (const Item& item : job.items) {
      ++result.tensors_read;
      result.tensor_bytes_read += source.find(item.source)->bytes;
      result.tensors_written += static_cast<int64_t>(item.parts.size());
      for (const OutputPart& part : item.parts) result.tensor_bytes_written += part.tensor.bytes();
    }
  }
  std::vector<std::string> zeros;
  for (const auto& [name, shard] : progress.shards()) {
    zeros.insert(zeros.end(), shard.zero_matrices.begin(), shard.zero_matrices.end());
  }
  if (!zeros.empty()) {
    const std::size_t shown = std::min(zeros.size(), kListedWarnings);
    result.warnings.push_back(fmt::format(
        "{} with nothing but zeros: {}{}", counted(zeros.size(), "matrix", "matrices"),
        fmt::join(zeros.begin(), zeros.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
        shown < zeros.size() ? ", ..." : ""));
  }
  return result;
}

}  // namespace levin::quantize
