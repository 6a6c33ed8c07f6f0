// AVX-512 with BF16 beside the tile unit of AMX (tiles.h), which takes the products of BF16 pairs.
#pragma once

#include "runtime/cpu/simd/tiles.h"
#include "runtime/cpu/simd/vec_avx512_bf16.h"

namespace levin::runtime::cpu {
namespace {

struct Amx : Avx512Bf16 {
  static Pair zero_pair() { return {_mm512_setzero_si512()}; }
  // 16 of the 32 values, zeros in the place of the others.
  static Pair first_half(Pair p) { return {_mm512_maskz_mov_epi64(0x0f, p.v)}; }
  static Pair second_half(Pair p) { return {_mm512_maskz_mov_epi64(0xf0, p.v)}; }
};

}  // namespace
}  // namespace levin::runtime::cpu
