#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "core/thread_team.h"
#include "runtime/cuda/decode.cuh"
#include "runtime/cuda/repack.h"

namespace levin::runtime::cuda {
namespace {

constexpr std::size_t kStageBytes = Uploader::kStagingBytes / 2;
constexpr int kLaneColumns = 16;

// --- on the device ---

// Rows of a matrix as the checkpoint stores them.
struct Raw {
  const std::byte* weights = nullptr;  // null: make random ones
  const std::byte* scales = nullptr;
  int first_row = 0;
  int rows = 0;
  int group_size = 0;
  float deviation = 0.0F;  // of random weights
  uint32_t seed = 0;
};

__device__ inline uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  return x;
}

// Random bits that belong to one weight.
__device__ inline uint32_t random_bits(const Raw& raw, int row, int column) {
  return mix(mix(raw.seed ^ static_cast<uint32_t>(row) * 0x9E3779B9u) +
             static_cast<uint32_t>(column));
}
// Nearly normal with deviation 1: four uniform bytes have a variance of 4 * 65535 / 12.
__device__ inline float random_normal(uint32_t bits) {
  const auto sum =
      static_cast<float>((bits & 0xff) + (bits >> 8 & 0xff) + (bits >> 16 & 0xff) + (bits >> 24));
  return (sum - 510.0F) * 0.0067659F;
}

__device__ inline uint16_t sixteen_bits(const Raw& raw, const PackedMatrix& m, int row,
                                        int column) {
  if (raw.weights != nullptr) {
    return reinterpret_cast<const uint16_t*>(
        raw.weights)[static_cast<int64_t>(row - raw.first_row) * m.columns + column];
  }
  const float w = random_normal(random_bits(raw, row, column)) * raw.deviation;
  return m.format == UnitFormat::kBf16 ? __bfloat16_as_ushort(__float2bfloat16_rn(w))
                                       : __half_as_ushort(__float2half_rn(w));
}

__device__ inline uint8_t fp8_code(const Raw& raw, const PackedMatrix& m, int row, int column) {
  if (raw.weights != nullptr) {
    return static_cast<uint8_t>(
        raw.weights[static_cast<int64_t>(row - raw.first_row) * m.columns + column]);
  }
  return static_cast<uint8_t>(
      ptx::floats_to_e4m3x2(64.0F * random_normal(random_bits(raw, row, column)), 0.0F));
}

// Both formats of nibbles put the earlier column into the lower one.
__device__ inline uint8_t nibble(const Raw& raw, const PackedMatrix& m, int row, int column) {
  if (raw.weights == nullptr) return random_bits(raw, row, column) & 15u;
  const auto byte = static_cast<uint8_t>(
      raw.weights[static_cast<int64_t>(row - raw.first_row) * (m.columns / 2) + column / 2]);
  return column % 2 == 0 ? byte & 15u : byte >> 4;
}

__device__ inline uint8_t block_scale(const Raw& raw, const PackedMatrix& m, int row, int column) {
  if (raw.scales == nullptr) return 0x70 + random_bits(raw, ~row, column) % 15;
  return static_cast<uint8_t>(
      raw.scales[static_cast<int64_t>(row - raw.first_row) * (m.columns / 16) + column / 16]);
}

__device__ inline float group_scale(const Raw& raw, const PackedMatrix& m, int row, int column) {
  if (raw.scales == nullptr) return raw.deviation / 4.64F;
  const auto* scales = reinterpret_cast<const uint16_t*>(raw.scales);
  const int64_t at = static_cast<int64_t>(row - raw.first_row) * (m.columns / raw.group_size) +
                     column / raw.group_size;
  return __uint_as_float(static_cast<uint32_t>(scales[at]) << 16);
}

// The 16 weights of lane (g, t) of a unit.
struct LaneSlice {
  int row, column, lane;
  uint8_t* unit;
};

__device__ inline void pack_16bit(const Raw& raw, const PackedMatrix& m, const LaneSlice& at) {
  auto* to = reinterpret_cast<uint16_t*>(at.unit);
  constexpr int kOrder[8] = {0, 1, 8, 9, 2, 3, 10, 11};
  for (int step = 0; step < 2; ++step) {
    for (int i = 0; i < 8; ++i) {
      const int column = at.column + 4 * step + kOrder[i];
      to[step * 256 + at.lane * 8 + i] =
          column < m.columns ? sixteen_bits(raw, m, at.row, column) : 0;
    }
  }
}

__device__ inline void pack_fp8(const Raw& raw, const PackedMatrix& m, const LaneSlice& at) {
  for (int i = 0; i < kLaneColumns; ++i) {
    const int column = at.column + i;
    at.unit[at.lane * 16 + i] = column < m.columns ? fp8_code(raw, m, at.row, column) : 0;
  }
}

constexpr bool scales_keep_their_values() {
  for (int code = 0; code < 127; ++code) {
    // value = significand * 2^exponent, as e4m3 and as the float16 that decode.cuh makes of it.
    const int e = code >> 3;
    int significand = e == 0 ? code : 8 + (code & 7);
    int exponent = (e == 0 ? 1 : e) - 10 + 7;
    const int stored = nvfp4_scale(static_cast<uint8_t>(code));
    int stored_significand = stored == 0 ? 0 : 8 + (stored & 7);
    int stored_exponent = (stored >> 3) - 15 - 3;
    if (significand == 0 && stored_significand == 0) continue;
    if (stored >> 3 == 0 || stored >> 3 == 31) return false;  // no normal number
    for (; significand < 8; significand *= 2) --exponent;
    if (significand != stored_significand || exponent != stored_exponent) return false;
  }
  return true;
}
static_assert(scales_keep_their_values());

__device__ inline void pack_nvfp4(const Raw& raw, const PackedMatrix& m, const LaneSlice& at) {
  for (int word = 0; word < 2; ++word) {
    uint8_t codes[8];
    for (int i = 0; i < 8; ++i) {
      const int column = at.column + 8 * word + i;
      codes[i] = column < m.columns ? nibble(raw, m, at.row, column) : 0;
    }
    reinterpret_cast<uint32_t*>(at.unit)[at.lane * 2 + word] = nvfp4_word(codes);
  }
  at.unit[256 + at.lane] =
      at.column < m.columns ? nvfp4_scale(block_scale(raw, m, at.row, at.column)) : 0;
}

__device__ inline void pack_int4(const Raw& raw, const PackedMatrix& m, const LaneSlice& at) {
  for (int word = 0; word < 2; ++word) {
    uint8_t codes[8];
    for (int i = 0; i < 8; ++i) {
      const int column = at.column + 8 * word + i;
      codes[i] = column < m.columns ? nibble(raw, m, at.row, column) : 8;
    }
    reinterpret_cast<uint32_t*>(at.unit)[at.lane * 2 + word] = int4_word(codes);
  }
  const int t = at.lane % 4;
  const int per_scale = 4 / m.unit_scales;  // lanes that share a scale
  if (t % per_scale != 0) return;
  const float scale = at.column < m.columns ? group_scale(raw, m, at.row, at.column) : 0.0F;
  reinterpret_cast<__half*>(at.unit + 256)[at.lane / 4 * m.unit_scales + t / per_scale] =
      __float2half_rn(scale / m.row_scale[at.row]);
}

__global__ void pack_rows(Raw raw, PackedMatrix m) {
  const int64_t slices = static_cast<int64_t>(raw.rows) * m.units * 4;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < slices;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    LaneSlice at;
    const int t = static_cast<int>(i % 4);
    const int unit = static_cast<int>(i / 4 % m.units);
    at.row = raw.first_row + static_cast<int>(i / 4 / m.units);
    at.column = unit * kUnitColumns + t * kLaneColumns;
    at.lane = at.row % kTileRows * 4 + t;
    at.unit = const_cast<uint8_t*>(m.data) + m.offset(at.row / kTileRows, unit);
    switch (m.format) {
      case UnitFormat::kBf16:
      case UnitFormat::kF16:
        pack_16bit(raw, m, at);
        break;
      case UnitFormat::kFp8:
        pack_fp8(raw, m, at);
        break;
      case UnitFormat::kNvfp4:
        pack_nvfp4(raw, m, at);
        break;
      case UnitFormat::kInt4:
        pack_int4(raw, m, at);
        break;
    }
  }
}

// Powers of two that bring each row's largest INT4 scale into [1024, 2048): (nibble - 8) * scale is
// then in range, and exact unless a scale is 2^-27 times smaller than the row's largest.
__global__ void int4_row_scales(Raw raw, PackedMatrix m, float* row_scale) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= raw.rows) return;
  float largest = 0.0F;
  for (int column = 0; column < m.columns; column += max(raw.group_size, 1)) {
    largest = fmaxf(largest, group_scale(raw, m, raw.first_row + row, column));
  }
  row_scale[raw.first_row + row] = largest == 0.0F ? 1.0F : ldexpf(1.0F, ilogbf(largest) - 10);
}

__global__ void random_table(uint32_t seed, int64_t count, float deviation, int type, void* to) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const uint32_t bits =
        mix(mix(seed ^ static_cast<uint32_t>(i >> 20)) + static_cast<uint32_t>(i));
    const float w = random_normal(bits) * deviation;
    if (type == 0) static_cast<float*>(to)[i] = w;
    if (type == 1) static_cast<__half*>(to)[i] = __float2half_rn(w);
    if (type == 2) static_cast<__nv_bfloat16*>(to)[i] = __float2bfloat16_rn(w);
  }
}

// --- on the host ---

int blocks_for(int64_t items) {
  return static_cast<int>(std::clamp<int64_t>((items + kThreads - 1) / kThreads, 1, 132 * 16));
}

uint32_t seed_of(const model::Linear& linear) {
  uint32_t hash = 0x811c9dc5u;
  for (const char c : linear.name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x01000193u;
  return hash;
}

float deviation_of(const model::Linear& linear) {
  return 1.0F / std::sqrt(static_cast<float>(std::max<int64_t>(linear.in, 1)));
}

UnitFormat unit_format(const model::Linear& linear) {
  using model::WeightFormat;
  switch (linear.format) {
    case WeightFormat::kF16:
      return UnitFormat::kF16;
    case WeightFormat::kBf16:
      return UnitFormat::kBf16;
    case WeightFormat::kFp8:
    case WeightFormat::kFp8Channel:
      return UnitFormat::kFp8;
    case WeightFormat::kNvfp4:
      return UnitFormat::kNvfp4;
    case WeightFormat::kInt4:
      return UnitFormat::kInt4;
    case WeightFormat::kF32:
      break;
  }
  throw Error({.what = "the CUDA runtime has no kernel for this linear",
               .where = linear.name,
               .expected = "BF16, F16, FP8, NVFP4 or INT4 weights",
               .found = std::string(model::name_of(linear.format)),
               .hint = "store it as BF16, or use --device cpu"});
}

[[noreturn]] void no_layout(const model::Linear& linear, std::string expected, std::string found) {
  throw Error({.what = "the CUDA runtime has no kernel for this shape",
               .where = linear.name,
               .expected = std::move(expected),
               .found = std::move(found),
               .hint = "use --device cpu"});
}

std::size_t raw_row_bytes(const model::Linear& linear) {
  return linear.weight.bytes.size() / static_cast<std::size_t>(linear.out);
}
std::size_t scale_row_bytes(const model::Linear& linear) {
  return linear.scales.bytes.size() / static_cast<std::size_t>(linear.out);
}

}  // namespace

int tiles_of(const model::Linear& linear) {
  return static_cast<int>((linear.out + kTileRows - 1) / kTileRows);
}

PackedMatrix packed_shape(const model::Linear& linear, int segments) {
  PackedMatrix m;
  m.format = unit_format(linear);
  if (linear.in % 4 != 0)
    no_layout(linear, "a multiple of 4 input columns", std::to_string(linear.in));
  if (m.format == UnitFormat::kInt4) {
    const int group = linear.group_size;
    const bool ok =
        group >= kLaneColumns && (kUnitColumns % group == 0 || group % kUnitColumns == 0);
    if (!ok) no_layout(linear, "INT4 groups of 16, 32 or a multiple of 64", std::to_string(group));
    m.unit_scales = static_cast<uint8_t>(std::max(1, kUnitColumns / group));
  }
  m.rows = static_cast<int>(linear.out);
  m.columns = static_cast<int>(linear.in);
  m.tiles = tiles_of(linear);
  m.units = static_cast<int>((linear.in + kUnitColumns - 1) / kUnitColumns);
  m.unit_bytes = unit_bytes(m.format, m.unit_scales);
  m.step_units = kCopyAlignment / std::gcd(kCopyAlignment, m.unit_bytes);
  const int steps = (m.units + m.step_units - 1) / m.step_units;
  m.segments = Divisor(std::clamp(segments, 1, steps));
  m.segment_steps = Share(steps, m.segments.value);
  return m;
}

Uploader::Uploader(cudaStream_t stream, int64_t total_bytes)
    : stream_(stream), progress_("uploading weights", std::max<int64_t>(total_bytes, 1), "B") {
  for (Stage& stage : stages_) {
    stage.pinned = Memory(Memory::Place::kPinned, kStageBytes);
    stage.device = Memory(Memory::Place::kDevice, kStageBytes);
  }
}

Uploader::~Uploader() {
  cudaStreamSynchronize(stream_);
}

Uploader::Stage& Uploader::room(std::size_t bytes) {
  Stage& stage = stages_[current_];
  if (stage.used + bytes <= kStageBytes) return stage;
  flush();
  return stages_[current_];
}

void Uploader::flush() {
  check(cudaEventRecord(stages_[current_].free.get(), stream_));
  current_ ^= 1;
  check(cudaEventSynchronize(stages_[current_].free.get()));
  stages_[current_].used = 0;
}

const std::byte* Uploader::stage(const std::byte* from, std::size_t bytes) {
  Stage& stage = stages_[current_];
  std::byte* pinned = stage.pinned.data() + stage.used;
  std::byte* device = stage.device.data() + stage.used;
  std::memcpy(pinned, from, bytes);
  check(cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, stream_));
  stage.used += (bytes + 255) / 256 * 256;
  progress_.advance(static_cast<int64_t>(bytes));
  return device;
}

void Uploader::copy(const void* from, void* to, std::size_t bytes) {
  const auto* source = static_cast<const std::byte*>(from);
  auto* target = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const std::size_t piece = std::min(bytes, kStageBytes);
    room(piece);
    check(cudaMemcpyAsync(target, stage(source, piece), piece, cudaMemcpyDeviceToDevice, stream_));
    source += piece;
    target += piece;
    bytes -= piece;
  }
}

void Uploader::repack(const model::Linear& linear, const PackedMatrix& matrix, float* row_scale) {
  const bool random = linear.weight.bytes.empty();
  const bool int4 = matrix.format == UnitFormat::kInt4;
  Raw raw;
  raw.group_size = linear.group_size;
  raw.deviation = deviation_of(linear);
  raw.seed = seed_of(linear);
  const std::size_t weights = random ? 0 : raw_row_bytes(linear);
  const bool channel = linear.format == model::WeightFormat::kFp8Channel;
  const std::size_t scales = random || channel ? 0 : scale_row_bytes(linear);
  const std::size_t row_bytes = weights + scales + 1;
  const auto most = static_cast<int64_t>((kStageBytes - 1024) / row_bytes);
  for (int64_t row = 0; row < linear.out; row += raw.rows) {
    raw.first_row = static_cast<int>(row);
    raw.rows = static_cast<int>(std::min(linear.out - row, random ? linear.out : most));
    if (!random) {
      const auto first = static_cast<std::size_t>(row);
      const auto count = static_cast<std::size_t>(raw.rows);
      room(count * (weights + scales) + 1024);
      raw.weights = stage(linear.weight.bytes.data() + first * weights, count * weights);
      if (scales > 0)
        raw.scales = stage(linear.scales.bytes.data() + first * scales, count * scales);
    }
    if (int4) {
      int4_row_scales<<<(raw.rows + 127) / 128, 128, 0, stream_>>>(raw, matrix, row_scale);
      check(cudaGetLastError());
    }
    pack_rows<<<blocks_for(int64_t{raw.rows} * matrix.units * 4), kThreads, 0, stream_>>>(raw,
                                                                                          matrix);
    check(cudaGetLastError());
  }
  if (!channel) return;
  if (random) {
    const std::vector<float> ones(static_cast<std::size_t>(linear.out),
                                  deviation_of(linear) / 64.0F);
    copy(ones.data(), row_scale, ones.size() * sizeof(float));
  } else {
    copy(linear.scales.bytes.data(), row_scale, linear.scales.bytes.size());
  }
}

void Uploader::table(const model::Linear& linear, void* to) {
  if (!linear.weight.bytes.empty()) {
    return copy(linear.weight.bytes.data(), to, linear.weight.bytes.size());
  }
  const int type = linear.format == model::WeightFormat::kF32   ? 0
                   : linear.format == model::WeightFormat::kF16 ? 1
                                                                : 2;
  const int64_t count = linear.out * linear.in;
  random_table<<<blocks_for(count), kThreads, 0, stream_>>>(seed_of(linear), count,
                                                            deviation_of(linear), type, to);
  check(cudaGetLastError());
}

void Uploader::finish() {
  check(cudaStreamSynchronize(stream_));
}

}  // namespace levin::runtime::cuda
