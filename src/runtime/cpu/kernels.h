// The kernels of the fast CPU runtime as a table of functions, one table per instruction set.
//
// Everything here is plain data: the translation units of runtime/cpu/simd are compiled with flags
// of newer CPUs and must not instantiate any function that the linker could share with the rest of
// the program, so they see nothing but this header and their own.
//
// Vectors have 16 float lanes on every instruction set, and a reduction always visits its terms in
// the same order, whatever the number of tokens in a call: an output depends on its own inputs
// only. That is what makes any split of the same tokens give the same bits.
#pragma once

#include <cstdint>

namespace levin::runtime::cpu {

inline constexpr int64_t kLanes = 16;       // output rows of a weight panel
inline constexpr int64_t kBlock = 32;       // columns of a block of packed activations
inline constexpr int64_t kTile = 8;         // tokens of a tile of packed activations
inline constexpr int64_t kScaleBlock = 16;  // columns under one NVFP4 scale

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Layout of a repacked matrix. A panel holds 16 output rows, row = lane, and walks along the
// columns in one sequential pass; rows and columns are padded with zero weights. The first four
// formats meet BF16 activations, the others float32 ones.
enum class PanelFormat : uint8_t {
  kBf16,       // [columns / 2][16 rows][2] BF16
  kFp8,        // [columns / 4][64] E4M3; byte 16 i + 8 s + j is row 4 i + j / 2, column 2 s + j % 2
  kNvfp4,      // [columns / 8][16 rows] words, see below; then E4M3 scales [columns / 16][16 rows]
  kInt4,       // the same words; then BF16 scales [columns / group][16 rows]
  kBf16ByF32,  // as kBf16
  kF16ByF32,   // [columns][16 rows] F16
  kF32ByF32    // [columns][16 rows] F32
  // A 4-bit word holds 8 columns of a row: nibbles 0..3 are columns 0, 2, 4, 6, nibbles 4..7 are
  // columns 1, 3, 5, 7, so that a shift by 4 i leaves columns 2 i and 2 i + 1 where a table lookup
  // on 16-bit lanes wants them.
};

struct PanelMatrix {
  PanelFormat format = PanelFormat::kBf16;
  int64_t panels = 0;        // rows / 16, rounded up
  int64_t blocks = 0;        // columns / 32, rounded up
  int64_t panel_bytes = 0;   // from one panel to the next, a multiple of 64
  int64_t scale_offset = 0;  // of the block scales inside a panel
  int64_t group = 0;         // columns under one scale: a multiple of 16, 0 without block scales
  int digits = 0;            // of the activations that it meets, see PackedInput; 0: no integers
  const uint8_t* data = nullptr;
  const float* row_scale = nullptr;  // [panels * 16], global and channel scales
  const float* bias = nullptr;       // [panels * 16], or null
};

// Activations of `count` tokens as the kernels read them: tiles of 8 tokens (the last may have
// fewer), a tile being [columns / 32][tokens][packed_block_bytes], so that tile i starts at token
// 8 i. A block is 32 values, BF16 or float32 as the PanelFormat wants.
//
// Where 4-bit weights are multiplied as integers (Kernels::integer_products) a block is two
// IntegerHalf<digits>.
struct PackedInput {
  const void* x = nullptr;
  const float* scale = nullptr;  // [count], multiplies each token's products
  int64_t count = 0;
};

// 16 activations as integers q under a scale of their own, x = q * scale. A q has one signed digit
// of 8 bits, or two: q = 256 digits[0] + digits[1]. Digits are in the order of kIntegerColumns.
template <int count>
struct IntegerHalf {
  int8_t digits[count][kScaleBlock];
  float scale;
  int32_t offset;  // -kWeightOffset times the sum of all q
};

// Weights of 4 bits are multiplied as unsigned numbers: code's value, times two for E2M1, plus
// this.
inline constexpr int32_t kWeightOffset = 12;

// What the bytes of two 4-bit words hold, lower nibbles of the first, then its upper ones.
inline constexpr uint32_t kIntegerColumns[kScaleBlock] = {0, 4,  1, 5,  2,  6,  3,  7,
                                                          8, 12, 9, 13, 10, 14, 11, 15};

enum class Epilogue : uint8_t {
  kStore,
  kAdd,   // out += y
  kRelu2  // out = max(y, 0)^2
};

// Where y of token i goes: base + row(i) * stride, row(i) = rows[i] or i. Rows of `base` have
// room for panels * 16 values.
struct LinearOutput {
  float* base = nullptr;
  int64_t stride = 0;
  const int32_t* rows = nullptr;
  const float* weight = nullptr;  // [count], multiplies y; or null
  Epilogue epilogue = Epilogue::kStore;
};

enum class PackAs : uint8_t {
  kBf16,
  kF32,
  kFp8Static,    // E4M3(x / input_scale), BF16 holds it exactly
  kFp8PerToken,  // E4M3(x / (amax / 448))
  kNvfp4         // E2M1(x / (E4M3 scale * input_scale)) * E4M3 scale, BF16 holds it exactly
};

// Bytes of 32 packed activations of a token.
constexpr int64_t packed_block_bytes(PackAs as, int digits) {
  if (digits == 2) return 2 * sizeof(IntegerHalf<2>);
  if (digits == 1) return 2 * sizeof(IntegerHalf<1>);
  return kBlock * (as == PackAs::kF32 ? 4 : 2);
}

// One step of a Mamba head's recurrence: S = S * decay + (dt x) B, y = S C + D x.
struct SsmStep {
  float decay = 0;
  const float* dt_x = nullptr;  // [head_dim]
  const float* b = nullptr;     // [state]
  const float* c = nullptr;     // [state]; null: no output wanted
  const float* skip = nullptr;  // [head_dim], D x
  float* y = nullptr;           // [head_dim]
  uint64_t stream = 0;          // layer << 32 | position, for stochastic rounding
};

enum class SsmRounding : uint8_t { kNone, kNearest, kStochastic };

inline constexpr int kMaxSsmOutputs = 4;

// State is [state][head_dim rounded up to 16], float32 or (unless kNone) F16.
struct SsmCall {
  int64_t head_dim = 0;
  int64_t state = 0;
  SsmRounding rounding = SsmRounding::kNone;
  int philox_rounds = 10;
  uint64_t seed = 0;
  uint64_t first_element = 0;  // of this head in the layer's state [heads, head_dim, state]
  const void* in = nullptr;    // null: zeros
  void* replayed = nullptr;    // gets the state after `replay` steps; or null
  void* out = nullptr;         // gets the state after all steps; or null
  const SsmStep* steps = nullptr;
  int64_t replay = 0;   // steps without output that come first
  int64_t outputs = 0;  // steps with output after them, at most kMaxSsmOutputs
};

// Depthwise causal convolution and SiLU of one token.
struct ConvCall {
  int64_t channels = 0;
  int64_t taps = 0;
  const float* const* inputs = nullptr;  // [taps] rows, oldest first
  const float* weight = nullptr;         // [taps][weight_stride]
  int64_t weight_stride = 0;
  const float* bias = nullptr;
  float* out = nullptr;
};

enum class KvFormat : uint8_t { kBf16, kFp8, kF32 };  // float32 queries and weights for kF32

inline constexpr int64_t kKeyBlock = 64;  // positions of a cache block

// Attention of the query heads that share a key/value head, for one token. The cache of a head is a
// row of blocks of 64 positions. A block is two matrices in the layout of PanelFormat kBf16, kFp8
// or kF32ByF32: K [64 positions, head_dim], then V transposed [head_dim, 64 positions].
struct AttendCall {
  KvFormat format = KvFormat::kBf16;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t length = 0;  // positions 0 .. length - 1 are attended to
  const uint8_t* cache = nullptr;
  const float* q = nullptr;  // [heads][head_dim]
  float* out = nullptr;      // [heads][head_dim]
  float score_scale = 1;     // 1 / sqrt(head_dim), times k_scale
  float value_scale = 1;     // v_scale
  float* work = nullptr;     // attend_work_floats(heads, head_dim), aligned to 64 bytes
};

constexpr int64_t kv_block_bytes(int64_t head_dim, int64_t element_bytes) {
  return kKeyBlock * (round_up(head_dim, kBlock) + round_up(head_dim, kLanes)) * element_bytes;
}

constexpr int64_t attend_work_floats(int64_t heads, int64_t head_dim) {
  return heads *
         (round_up(head_dim, kLanes) + round_up(head_dim, kBlock) + 2 * kKeyBlock + 2 * kLanes);
}

// Where a panel holds the weight of row `lane` (0..15) and column `k`, in elements.
constexpr int64_t bf16_element(int64_t lane, int64_t k) {
  return k / 2 * 2 * kLanes + 2 * lane + k % 2;
}
constexpr int64_t fp8_element(int64_t lane, int64_t k) {
  return k / 4 * 64 + lane / 4 * 16 + k % 4 / 2 * 8 + lane % 4 * 2 + k % 2;
}
constexpr int64_t f32_element(int64_t lane, int64_t k) {
  return k * kLanes + lane;
}

struct Kernels {
  // Whether 4-bit weights meet activations of 8-bit digits. Two digits stand for a BF16 or E4M3
  // activation, off by at most 2^-15 of the largest of its 16 neighbours (BF16: 2^-9 of itself);
  // one holds E2M1 exactly.
  bool integer_products = false;
  // y of the panels [panel_begin, panel_end) for all tokens. `scratch`: scratch_bytes(blocks).
  void (*linear)(const PanelMatrix& matrix, const PackedInput& input, const LinearOutput& output,
                 int64_t panel_begin, int64_t panel_end, uint8_t* scratch);
  // Packs `tokens` (1..8) rows of `columns` floats into a tile and writes their scales. `digits`:
  // of the matrix.
  void (*pack)(const float* const* rows, int64_t tokens, int64_t columns, PackAs as, int digits,
               float input_scale, void* tile, float* scales);
  // out = x / rms(x) * weight; a row may be its own output.
  void (*rms_norm)(const float* x, const float* weight, int64_t count, float eps, float* out);
  // out = y silu(z), each group divided by its rms, times weight.
  void (*gated_norm)(const float* y, const float* z, const float* weight, int64_t count,
                     int64_t group, float eps, float* out);
  void (*sigmoid)(const float* x, int64_t count, float* out);
  // dt = clamp(softplus(raw + bias), low, high), decay = exp(dt a).
  void (*ssm_dt)(const float* raw, const float* bias, const float* a, int64_t count, float low,
                 float high, float* dt, float* decay);
  void (*conv)(const ConvCall& call);
  void (*ssm)(const SsmCall& call);
  // out = x * factor
  void (*scale)(const float* x, float factor, int64_t count, float* out);
  void (*attend)(const AttendCall& call);
  // Index of the first largest of `count` values.
  int64_t (*argmax)(const float* x, int64_t count);
};

// Bytes of `scratch` that Kernels::linear may use.
constexpr int64_t linear_scratch_bytes(int64_t blocks) {
  // Four panels decoded to pairs of at most 128 bytes, and their scales as floats; or to pairs of
  // 64 bytes, beside 24 KiB.
  return 4 * blocks * (kBlock / 2 * 128 + kBlock / kScaleBlock * kLanes * 4) + (int64_t{24} << 10);
}

}  // namespace levin::runtime::cpu
