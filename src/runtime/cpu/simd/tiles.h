// The tile unit of AMX: eight registers of 16 rows of 64 bytes, and dot products of BF16 pairs
// between them. Written as instructions, because a register's number may then be a template
// argument.
//
// A product adds, to each float32 of its sums, the products of the even columns and those of the
// odd columns of a tile, each added up in order from zero (Intel, Instruction Set Extensions
// Reference, TDPBF16PS): a sum depends on nothing but its own row of activations and column of
// weights.
#pragma once

#include <cstdint>

namespace levin::runtime::cpu {
namespace {

constexpr int64_t kTileRowBytes = 64;
constexpr int64_t kTileBytes = 16 * kTileRowBytes;

// What each register is used for; the shape of a register belongs to the configuration.
constexpr int kSumTile = 0;     // 0 .. 3
constexpr int kInputTile = 4;   // 4, 5
constexpr int kWeightTile = 6;  // 6, 7

// Layout of LDTILECFG's operand.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Sums and activations of `rows` rows, weights of 16 column pairs by 16 output rows.
constexpr TileConfig tile_config(int rows) {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = kTileRowBytes;
    config.rows[i] = static_cast<uint8_t>(i < kWeightTile ? rows : 16);
  }
  return config;
}

inline void configure_tiles(const TileConfig& config) {
  asm volatile("ldtilecfg %0" : : "m"(config));
}
// Tiles in use would be saved at every context switch.
inline void release_tiles() {
  asm volatile("tilerelease");
}
template <int tile>
inline void clear_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(tile));
}
template <int tile>
inline void load_tile(const uint8_t* from) {
  using Bytes = const uint8_t[kTileBytes];
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
               :
               : "r"(from), "r"(kTileRowBytes), "i"(tile), "m"(*reinterpret_cast<Bytes*>(from)));
}
template <int tile>
inline void store_tile(float* to) {
  using Sums = float[kTileBytes / 4];
  asm volatile("tilestored %%tmm%c3, (%1,%2,1)"
               : "=m"(*reinterpret_cast<Sums*>(to))
               : "r"(to), "r"(kTileRowBytes), "i"(tile));
}
template <int sums, int inputs, int weights>
inline void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sums), "i"(inputs), "i"(weights));
}

}  // namespace
}  // namespace levin::runtime::cpu
