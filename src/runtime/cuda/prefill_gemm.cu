// Which kernel a product of a prefill chunk takes (prefill_gemm.h).
#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/cuda/device.h"
#include "runtime/cuda/prefill_gemm.h"

namespace levin::runtime::cuda {
namespace {

constexpr std::array<GemmShape, 6> kShapes = {
    {{128, 16}, {128, 32}, {128, 64}, {256, 64}, {256, 96}, {256, 128}}};

GemmInstance instance(UnitFormat format, GemmShape shape) {
  switch (format) {
    case UnitFormat::kBf16:
      return gemm_bf16(shape);
    case UnitFormat::kF16:
      return gemm_f16(shape);
    case UnitFormat::kFp8:
      return gemm_fp8(shape);
    case UnitFormat::kNvfp4:
      return gemm_nvfp4(shape);
    case UnitFormat::kInt4:
      break;
  }
  return gemm_int4(shape);
}

int row_tiles(const PackedMatrix& m, GemmShape shape) {
  return (m.rows + shape.rows - 1) / shape.rows;
}

// Cycles of a unit of a tile with four-bit weights, which decoding takes whatever the tokens: as
// measured on an H200 with a few tokens for each expert.
double decoding(const PackedMatrix& m, GemmShape shape) {
  if (m.format != UnitFormat::kNvfp4 && m.format != UnitFormat::kInt4) return 0;
  if (shape.rows == 128) return shape.tokens <= 16 ? 440 : shape.tokens <= 32 ? 460 : 613;
  return shape.tokens <= 64 ? 1081 : shape.tokens <= 96 ? 1260 : 1600;
}

// Tiles of tokens of an expert that has `share` times as many tokens as a tile on the average: as
// times with random weights suggest, half a tile is wasted, or a second one is needed sometimes.
double tiles_of_expert(double share) {
  return share > 0.75 ? share + 0.5 : 1.0 + share * share / 2.0;
}

// Cycles, roughly: what decoding, tensor cores or L2 cache need for a tile, whichever is most.
// Dense FP8 products of all shapes stream 20.9 to 21.6 bytes a cycle and multiprocessor of an H200.
double cost(const Gemm& gemm, GemmShape shape, int tokens_each, int blocks) {
  constexpr double kProductsPerCycle = 2048.0;
  constexpr double kBytesPerCycle = 21.0;
  constexpr double kPerTile = 2500.0;
  const double share = static_cast<double>(tokens_each) / static_cast<double>(shape.tokens);
  const double token_tiles =
      gemm.experts > 0 ? gemm.experts * tiles_of_expert(share) : std::ceil(share);
  double tiles = 0;
  double work = 0;
  for (int i = 0; i < gemm.part_count; ++i) {
    const PackedMatrix& m = gemm.parts[i].matrix;
    const double rows = shape.rows;
    const double products = rows * shape.tokens * kUnitColumns / kProductsPerCycle;
    const double bytes = shape.tokens * 128.0 + rows / kTileRows * m.unit_bytes;
    const double of_unit = std::max({products, bytes / kBytesPerCycle, decoding(m, shape)});
    tiles += token_tiles * row_tiles(m, shape);
    work += token_tiles * row_tiles(m, shape) * (m.units * of_unit + kPerTile);
  }
  return work / tiles * std::max(std::ceil(tiles / blocks), tiles / blocks);
}

}  // namespace

GemmShape gemm_shape(const Gemm& gemm, int tokens_each, int blocks, int tokens) {
  GemmShape best;
  double least = INFINITY;
  for (const GemmShape shape : kShapes) {
    if (tokens != 0 && shape.tokens != tokens) continue;
    const double of_shape = cost(gemm, shape, tokens_each, blocks);
    if (of_shape >= least) continue;
    least = of_shape;
    best = shape;
  }
  return best;
}

void launch_gemm(cudaStream_t stream, const Gemm& gemm, GemmShape shape, int blocks) {
  const GemmInstance gemm_kernel = instance(gemm.parts[0].matrix.format, shape);
  check(cudaFuncSetAttribute(gemm_kernel.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             gemm_kernel.shared));
  int grid = blocks * gemm_kernel.blocks;
  if (gemm.experts == 0) {
    int tiles = 0;
    for (int i = 0; i < gemm.part_count; ++i) tiles += row_tiles(gemm.parts[i].matrix, shape);
    grid = std::min(grid, tiles * ((gemm.rows + shape.tokens - 1) / shape.tokens));
  }
  gemm_kernel
      .kernel<<<grid, gemm_kernel.threads, static_cast<std::size_t>(gemm_kernel.shared), stream>>>(
          gemm);
  check(cudaGetLastError());
}

}  // namespace levin::runtime::cuda
