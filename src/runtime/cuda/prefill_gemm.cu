// Which kernel a product of a prefill chunk takes (prefill_gemm.h).
#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/cuda/device.h"
#include "runtime/cuda/prefill_gemm.h"

namespace levin::runtime::cuda {
namespace {

constexpr std::array<GemmShape, 6> kShapes = {
    {{1, 16}, {1, 32}, {1, 64}, {2, 64}, {2, 96}, {2, 128}}};

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
  const int rows = 128 * shape.row_blocks;
  return (m.rows + rows - 1) / rows;
}

// Cycles, roughly: the larger of what the tensor cores and what the L2 cache need for a tile.
double cost(const Gemm& gemm, GemmShape shape, int tokens_each, int blocks) {
  constexpr double kProductsPerCycle = 2048.0;
  constexpr double kBytesPerCycle = 28.0;
  constexpr double kPerUnit = 60.0;
  constexpr double kPerTile = 2500.0;
  const double each = static_cast<double>(tokens_each);
  const double tokens = static_cast<double>(shape.tokens);
  double token_tiles = std::ceil(each / tokens);
  // Experts have more or fewer: half a tile of waste on the average.
  if (gemm.experts > 0) token_tiles = gemm.experts * std::max(1.0, each / tokens + 0.5);
  double tiles = 0;
  double work = 0;
  for (int i = 0; i < gemm.part_count; ++i) {
    const PackedMatrix& m = gemm.parts[i].matrix;
    const double rows = 128.0 * shape.row_blocks;
    const double products = rows * tokens * kUnitColumns / kProductsPerCycle;
    const double bytes = tokens * 128.0 + rows / kTileRows * m.unit_bytes;
    const double of_tile =
        m.units * (std::max(products, bytes / kBytesPerCycle) + kPerUnit) + kPerTile;
    tiles += token_tiles * row_tiles(m, shape);
    work += token_tiles * row_tiles(m, shape) * of_tile;
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
  constexpr int kThreads = 384;
  const GemmInstance gemm_kernel = instance(gemm.parts[0].matrix.format, shape);
  check(cudaFuncSetAttribute(gemm_kernel.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             gemm_kernel.shared));
  int grid = blocks;
  if (gemm.experts == 0) {
    int tiles = 0;
    for (int i = 0; i < gemm.part_count; ++i) tiles += row_tiles(gemm.parts[i].matrix, shape);
    grid = std::min(grid, tiles * ((gemm.rows + shape.tokens - 1) / shape.tokens));
  }
  gemm_kernel.kernel<<<grid, kThreads, static_cast<std::size_t>(gemm_kernel.shared), stream>>>(
      gemm);
  check(cudaGetLastError());
}

}  // namespace levin::runtime::cuda
