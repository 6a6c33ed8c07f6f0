// How matrices lie in device memory, so that every kernel reads them front to back.
//
// A matrix [rows, columns] is cut into tiles of 8 rows, a tile into units of 64 columns. A unit is
// what one warp multiplies at a time: lane (g, t) = (lane / 4, lane % 4) holds the 16 weights of
// row g, columns 16t .. 16t + 15. They are the A fragments of two mma.m16n8k16 (decode.cuh; the
// order of columns inside a product is free as long as the activations use the same one). A block
// of NVFP4 is those 16 weights, so a lane needs one scale.
//
//   unit format   bytes   contents; w[i] is the lane's weight i
//   BF16, F16     1024    for step 0, 1 with i = 4 * step: lane * 16 bytes of
//                         w[i] w[i+1] w[i+8] w[i+9] w[i+2] w[i+3] w[i+10] w[i+11]
//   FP8            512    lane * 16 bytes
//   NVFP4          288    lane * 8 bytes of codes, bits permuted; lane * 1 byte of scale (both
//                         decode.cuh)
//   INT4           256+   lane * 8 bytes of codes; float16 scales [8 rows][scales per unit]
//
// The columns are divided into segments of whole units (PackedMatrix::segments, fixed when a model
// is loaded). A segment's products are summed by one warp, and the segments' sums are added in
// their order. That order is part of the result: it depends on the matrix and on the number of
// multiprocessors alone, never on the number of tokens, on the batch or on which block does the
// work, which is why every path gives the same bits.
//
// Memory order is tile, unit. Tiles and segments begin at multiples of kCopyAlignment bytes: bulk
// copies from anywhere else take up to a fifth longer (docs/benchmarks/h200.md).
#pragma once

#include <cstdint>

namespace levin::runtime::cuda {

inline constexpr int kTileRows = 8;
inline constexpr int kUnitColumns = 64;
inline constexpr int kMaxRows = 8;  // tokens of one pass
inline constexpr int kCopyAlignment = 128;

// Kernels are made for 1, up to 4 and up to 8 tokens.
__host__ __device__ constexpr int groups_of(int rows) {
  return rows <= 4 ? 1 : 2;
}

// A streaming block. Two fit on a multiprocessor, so that the next phase can fetch its weights
// while this one computes.
inline constexpr int kWarps = 16;
inline constexpr int kThreads = 32 * kWarps;

enum class UnitFormat : uint8_t { kBf16, kF16, kFp8, kNvfp4, kInt4 };

// Formats that the matrices of one kernel may have. A kernel for few formats is small, which is
// what counts: the first 64 KB of its code come with the launch, and what lies behind them is
// fetched when a warp gets there, from a memory that is busy with weights (docs/cuda_runtime.md).
using FormatSet = uint8_t;
__host__ __device__ constexpr FormatSet set_of(UnitFormat format) {
  return static_cast<FormatSet>(1u << static_cast<unsigned>(format));
}
inline constexpr FormatSet kAnyFormat = (1u << 5) - 1;

__host__ __device__ inline int unit_bytes(UnitFormat format, int unit_scales) {
  switch (format) {
    case UnitFormat::kBf16:
    case UnitFormat::kF16:
      return 1024;
    case UnitFormat::kFp8:
      return 512;
    case UnitFormat::kNvfp4:
      return 288;
    case UnitFormat::kInt4:
      return 256 + 16 * unit_scales;
  }
  return 0;
}

// `count` things shared out evenly over blocks: block b has [begin(b), begin(b + 1)).
struct Share {
  int each = 0;
  int more = 0;  // the first so many blocks have one more

  Share() = default;
  __host__ __device__ Share(int count, int blocks) : each(count / blocks), more(count % blocks) {}
  __host__ __device__ int begin(int block) const {
    return block * each + (block < more ? block : more);
  }
  __host__ int most() const { return each + (more > 0 ? 1 : 0); }
};

// Division by a number that the host knows, of values below 2^32 / divisor.
struct Divisor {
  int value = 1;
  uint32_t magic = 0;

  Divisor() = default;
  __host__ explicit Divisor(int divisor)
      : value(divisor),
        magic(divisor == 1 ? 0
                           : static_cast<uint32_t>(
                                 (uint64_t{1} << 32) / static_cast<uint32_t>(divisor) + 1)) {}
  __device__ int divide(int x) const {
    return magic == 0 ? x : static_cast<int>(__umulhi(static_cast<uint32_t>(x), magic));
  }
};

struct PackedMatrix {
  const uint8_t* data = nullptr;
  const float* row_scale = nullptr;  // [rows], null: 1
  const float* bias = nullptr;       // [rows], null: none
  int rows = 0;
  int columns = 0;
  int tiles = 0;
  int units = 0;        // of a tile
  Divisor segments;     // of a tile
  Share segment_steps;  // of a tile over its segments, in steps of as many units as keep it aligned
  int step_units = 1;
  int unit_bytes = 0;
  UnitFormat format = UnitFormat::kBf16;
  uint8_t unit_scales = 0;  // INT4: scales per row and unit

  __host__ __device__ int tile_bytes() const {
    return (units * unit_bytes + kCopyAlignment - 1) / kCopyAlignment * kCopyAlignment;
  }
  // The first unit of a segment.
  __host__ __device__ int segment_begin(int segment) const {
    const int unit = segment_steps.begin(segment) * step_units;
    return unit < units ? unit : units;
  }
  __host__ __device__ int64_t bytes() const { return static_cast<int64_t>(tiles) * tile_bytes(); }
  // Byte offset of a unit from `data`.
  __host__ __device__ int64_t offset(int tile, int unit) const {
    return static_cast<int64_t>(tile) * tile_bytes() + unit * unit_bytes;
  }
};

}  // namespace levin::runtime::cuda
