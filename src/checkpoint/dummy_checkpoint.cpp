// Checkpoint::dummy: a configuration with random weights.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>
#include <utility>

#include "checkpoint/checkpoint.h"
#include "core/error.h"
#include "core/philox.h"
#include "core/small_floats.h"

namespace levin::checkpoint {
namespace {

using Fill = TensorSpec::Fill;

// FNV-1a: the stream of a tensor depends on its name and nothing else.
uint64_t hash(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// Standard normal samples to draw from: a draw is then one table look-up, which makes weights at
// memory speed instead of one logarithm and one cosine each.
constexpr std::size_t kTable = 65536;

std::vector<float> normal_table() {
  std::vector<float> table(kTable);
  for (std::size_t i = 0; i < kTable; i += 2) {
    const auto words = philox(0x6c6576696e, i);
    const double radius = std::sqrt(-2 * std::log(uniform_open_closed(words[0], words[1])));
    const double angle = 2 * std::numbers::pi * uniform_open_closed(words[2], words[3]);
    table[i] = static_cast<float>(radius * std::cos(angle));
    table[i + 1] = static_cast<float>(radius * std::sin(angle));
  }
  return table;
}

// Philox words of one tensor, 16 bits at a time.
class Stream {
 public:
  Stream(uint64_t seed, std::string_view name) : seed_(seed), stream_(hash(name)) {}

  uint16_t next() {
    if (left_ == 0) {
      words_ = philox(seed_, block_++, 10, stream_);
      left_ = 8;
    }
    --left_;
    const uint32_t word = words_[left_ / 2];
    return static_cast<uint16_t>(left_ % 2 == 0 ? word : word >> 16);
  }
  // Uniform in [0, 1).
  float uniform() { return static_cast<float>(next()) * 0x1p-16F; }

 private:
  uint64_t seed_;
  uint64_t stream_;
  uint64_t block_ = 0;
  std::array<uint32_t, 4> words_{};
  unsigned left_ = 0;
};

// Tensors of at least this size are windows of one pool for each kind of values: a full-size model
// is then made in seconds, and takes the memory of its largest tensors.
constexpr uint64_t kWindowed = uint64_t{1} << 20;
// The values of a pool begin anew after so many bytes: 64 times a prime, so that rows of a matrix
// and those of another one, at another place in the period, do not coincide.
constexpr uint64_t kPeriodLines = 262147;
constexpr uint64_t kLine = 64;
constexpr uint64_t kPeriod = kPeriodLines * kLine;

class DummyCheckpoint final : public Checkpoint {
 public:
  DummyCheckpoint(const std::filesystem::path& folder, std::vector<TensorSpec> specs,
                  uint64_t seed);

 private:
  // Bytes that are made when they are first asked for.
  struct Bytes {
    std::once_flag made;
    std::vector<std::byte> bytes;
  };
  struct Pool : Bytes {
    TensorSpec spec;  // of a tensor that uses it, under the pool's own name
    uint64_t size = 0;
  };

  TensorView view_at(std::size_t index) const override;
  Pool* pool_for(const TensorSpec& spec, uint64_t bytes);
  std::span<const std::byte> window(std::size_t index) const;
  void fill(const TensorSpec& spec, std::span<std::byte> bytes) const;
  float draw(const TensorSpec& spec, Stream& stream) const;
  static uint8_t random_code(const TensorSpec& spec, Stream& stream);

  std::vector<TensorSpec> specs_;
  uint64_t seed_;
  std::vector<float> normal_ = normal_table();
  mutable std::vector<Bytes> tensors_made_;
  mutable std::map<std::string, Pool> pools_;
  std::vector<Pool*> pool_of_;  // by tensor; null: a tensor of its own
};

// The pool that a tensor is a window of, or null when it is made by itself.
DummyCheckpoint::Pool* DummyCheckpoint::pool_for(const TensorSpec& spec, uint64_t bytes) {
  const bool random =
      spec.fill == Fill::kWeight || spec.fill == Fill::kCodes || spec.fill == Fill::kBlockScale;
  if (!random || bytes < kWindowed) return nullptr;
  std::string name = fmt::format("pool {} {} {}", static_cast<int>(spec.dtype),
                                 static_cast<int>(spec.fill), spec.fan_in);
  Pool& pool = pools_[name];
  pool.size = std::max(pool.size, bytes + kPeriod);
  pool.spec = spec;
  pool.spec.name = std::move(name);
  return &pool;
}

DummyCheckpoint::DummyCheckpoint(const std::filesystem::path& folder, std::vector<TensorSpec> specs,
                                 uint64_t seed)
    : Checkpoint(folder), specs_(std::move(specs)), seed_(seed), tensors_made_(specs_.size()) {
  for (const TensorSpec& spec : specs_) {
    const std::optional<int64_t> count = element_count(spec.shape);
    if (!count) {
      throw Error({.what = "dummy tensor has an impossible shape",
                   .where = spec.name,
                   .expected = {},
                   .found = to_string(spec.shape),
                   .hint = {}});
    }
    add_tensor({.name = spec.name,
                .stored_name = spec.name,
                .dtype = spec.dtype,
                .shape = spec.shape,
                .file = "dummy",
                .bytes = static_cast<uint64_t>(*count) * size_of(spec.dtype)});
    pool_of_.push_back(pool_for(spec, tensors_.back().bytes));
  }
  read_quantization();
}

// A float element of `spec`.
float DummyCheckpoint::draw(const TensorSpec& spec, Stream& stream) const {
  const float normal = normal_[stream.next() % kTable];
  switch (spec.fill) {
    case Fill::kWeight:
      return normal / std::sqrt(static_cast<float>(std::max<int64_t>(spec.fan_in, 1)));
    case Fill::kNorm:
      return 1.0F + 0.03F * normal;
    case Fill::kALog:
      return std::log(1.0F + 15.0F * stream.uniform());
    case Fill::kDtBias: {
      // dt log-uniform in [0.001, 0.1]; softplus^-1(dt) = dt + log(1 - exp(-dt)).
      const float dt = 0.001F * std::pow(100.0F, stream.uniform());
      return dt + std::log(-std::expm1(-dt));
    }
    case Fill::kOne:
      return 1.0F;
    case Fill::kScale:
      return spec.value;
    case Fill::kCodes:
      return 64.0F * normal;
    case Fill::kZero:
    case Fill::kBlockScale:
    case Fill::kIntegers:
      return 0.0F;
  }
  return 0.0F;
}

// One byte of U8 or I32 codes, or of E4M3 block scales from 128 (0x70) to 448 (0x7E).
uint8_t DummyCheckpoint::random_code(const TensorSpec& spec, Stream& stream) {
  const uint16_t word = stream.next();
  if (spec.fill == Fill::kBlockScale) return static_cast<uint8_t>(0x70 + word % 15);
  return static_cast<uint8_t>(word);
}

void DummyCheckpoint::fill(const TensorSpec& spec, std::span<std::byte> bytes) const {
  Stream stream(seed_, spec.name);
  const auto fill_with = [&](auto&& next) {
    auto value = next();
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(value)) {
      std::memcpy(bytes.data() + at, &value, sizeof(value));
      if (at + sizeof(value) < bytes.size()) value = next();
    }
  };
  const bool codes = spec.fill == Fill::kCodes || spec.fill == Fill::kBlockScale;
  switch (spec.dtype) {
    case DType::kF32:
      return fill_with([&] { return draw(spec, stream); });
    case DType::kBF16:
      return fill_with([&] { return float_to_bf16(draw(spec, stream)); });
    case DType::kF16:
      return fill_with([&] { return float_to_f16(draw(spec, stream)); });
    case DType::kF8E4M3:
      if (spec.fill == Fill::kBlockScale)
        return fill_with([&] { return random_code(spec, stream); });
      return fill_with([&] { return float_to_e4m3(draw(spec, stream)); });
    case DType::kI64: {
      const std::size_t size = std::min(bytes.size(), spec.integers.size() * sizeof(int64_t));
      if (size > 0) std::memcpy(bytes.data(), spec.integers.data(), size);
      return;
    }
    default:
      if (codes) return fill_with([&] { return random_code(spec, stream); });
  }
}

// A pool is made as a whole when the first of its tensors is viewed.
std::span<const std::byte> DummyCheckpoint::window(std::size_t index) const {
  Pool& pool = *pool_of_[index];
  std::call_once(pool.made, [&] {
    pool.bytes.resize(pool.size);
    fill(pool.spec, std::span(pool.bytes).first(kPeriod));
    for (uint64_t at = kPeriod; at < pool.size; at += kPeriod) {
      std::memcpy(pool.bytes.data() + at, pool.bytes.data(), std::min(kPeriod, pool.size - at));
    }
  });
  const uint64_t offset = hash(specs_[index].name) % kPeriodLines * kLine;
  return std::span(pool.bytes).subspan(offset, tensors_[index].bytes);
}

TensorView DummyCheckpoint::view_at(std::size_t index) const {
  const checkpoint::TensorInfo& info = tensors_[index];
  if (pool_of_[index] != nullptr) return {info.dtype, info.shape, window(index)};
  Bytes& tensor = tensors_made_[index];
  std::call_once(tensor.made, [&] {
    tensor.bytes.resize(info.bytes);
    fill(specs_[index], tensor.bytes);
  });
  return {info.dtype, info.shape, tensor.bytes};
}

}  // namespace

std::shared_ptr<const Checkpoint> Checkpoint::dummy(const std::filesystem::path& folder,
                                                    std::vector<TensorSpec> specs, uint64_t seed) {
  return std::make_shared<const DummyCheckpoint>(folder, std::move(specs), seed);
}

}  // namespace levin::checkpoint
