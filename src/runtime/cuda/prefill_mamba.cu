// Convolution and recurrence of many tokens (prefill_mamba.h).
#include "runtime/cuda/decode.cuh"
#include "runtime/cuda/device.h"
#include "runtime/cuda/prefill_mamba.h"
#include "runtime/cuda/prefill_mma.cuh"
#include "runtime/cuda/state_rounding.cuh"

namespace levin::runtime::cuda {
namespace {

constexpr int kConvolutionThreads = 128;  // a channel each
constexpr int kConvolutionRows = 32;      // of a block

__device__ inline float silu(float x) {
  return __fdividef(x, 1.0F + __expf(-x));
}

// Grid: channels, rows, segments.
__global__ void __launch_bounds__(kConvolutionThreads)
    convolution(const __grid_constant__ PrefillMamba p) {
  const MambaScan& m = p.mixer;
  const Segment& segment = p.segments[blockIdx.z];
  const int first = static_cast<int>(blockIdx.y) * kConvolutionRows;
  const int channel = static_cast<int>(blockIdx.x * kConvolutionThreads + threadIdx.x);
  const int conv_dim = m.conv_dim();
  if (first >= segment.rows || channel >= conv_dim) return;
  const int64_t window_floats = static_cast<int64_t>(m.taps - 1) * conv_dim;
  const float* window = m.cache.window + (segment.slot * 2 + segment.parity) * window_floats;
  const float* x =
      m.projected + static_cast<int64_t>(segment.first_row) * m.width + m.inner() + channel;
  __half* out = p.convolved + static_cast<int64_t>(segment.first_row) * conv_dim + channel;
  const float4 weight = __ldg(reinterpret_cast<const float4*>(m.conv_weight) + channel);
  const float bias = __ldg(m.conv_bias + channel);
  float recent[kMaxTaps - 1];  // inputs before the current one, oldest first
#pragma unroll
  for (int k = 0; k < kMaxTaps - 1; ++k) {
    const int row = first + k - (kMaxTaps - 1);
    recent[k] = 0.0F;
    if (row >= 0) {
      recent[k] = __ldcg(x + static_cast<int64_t>(row) * m.width);
    } else if (segment.fresh == 0 && row + m.taps - 1 >= 0) {
      recent[k] = __ldcg(window + static_cast<int64_t>(row + m.taps - 1) * conv_dim + channel);
    }
  }
  const int end = min(first + kConvolutionRows, segment.rows);
#pragma unroll 4
  for (int row = first; row < end; ++row) {
    const float now = __ldcg(x + static_cast<int64_t>(row) * m.width);
    float sum = bias;
    sum += weight.x * recent[0];
    sum += weight.y * recent[1];
    sum += weight.z * recent[2];
    sum += weight.w * now;
    recent[0] = recent[1];
    recent[1] = recent[2];
    recent[2] = now;
    out[static_cast<int64_t>(row) * conv_dim] =
        __ushort_as_half(static_cast<uint16_t>(to_f16x2(silu(sum), 0.0F)));
  }
  if (end < segment.rows) return;
  float* next = m.cache.window + (segment.slot * 2 + (segment.parity ^ 1)) * window_floats;
#pragma unroll
  for (int k = 0; k < kMaxTaps - 1; ++k) {
    const int row = k - (kMaxTaps - m.taps);  // with fewer taps the oldest weights are zero
    if (row >= 0) next[static_cast<int64_t>(row) * conv_dim + channel] = recent[k];
  }
}

constexpr int kPieceThreads = 256;
constexpr float kLog2E = 1.4426950408889634F;

// Rows of float16 in shared memory, 16 bytes longer than needed: eight of them lie in different
// banks.
template <int kColumns>
struct HalfRows {
  static constexpr int kStride = 2 * kColumns + 16;  // bytes
  static constexpr int bytes(int rows) { return rows * kStride; }
  uint8_t* data;
  __device__ uint32_t address(int row, int column) const {
    return ptx::shared_address(data) + row * kStride + 2 * column;
  }
  __device__ void set(int row, int column, uint16_t bits) const {
    *reinterpret_cast<uint16_t*>(data + row * kStride + 2 * column) = bits;
  }
};

template <int kStates>
struct ScanMemory {
  using Wide = HalfRows<kStates>;
  using Narrow = HalfRows<kStateRows>;
  static constexpr int kB = 0;
  static constexpr int kC = kB + Wide::bytes(kScanPiece);
  static constexpr int kX = kC + Wide::bytes(kScanPiece);
  static constexpr int kPieceBytes = kX + Narrow::bytes(kScanPiece);
  static constexpr int kState = 2 * kPieceBytes;
  static constexpr int kFloats = kState + Wide::bytes(kStateRows);
  static constexpr int kBytes = kFloats + 4 * (3 * kScanPiece + 4);

  uint8_t* base;
  __device__ Wide b(int buffer) const { return {base + buffer * kPieceBytes + kB}; }
  __device__ Wide c(int buffer) const { return {base + buffer * kPieceBytes + kC}; }
  __device__ Narrow x(int buffer) const { return {base + buffer * kPieceBytes + kX}; }
  __device__ Wide state() const { return {base + kState}; }
  // By token of the piece: log2 of the decay up to it, d relative to the largest, the same times
  // the decay from it to the end.
  __device__ float* decay() const { return reinterpret_cast<float*>(base + kFloats); }
  __device__ float* step() const { return decay() + kScanPiece; }
  __device__ float* remaining() const { return step() + kScanPiece; }
  __device__ float* largest() const { return remaining() + kScanPiece; }
};

// The block works on rows `piece_of_head * kStateRows` .. of one head's state of one sequence.
template <int kStates>
struct ScanBlock {
  static constexpr int kSteps = kStates / 16;
  static constexpr int kStateTiles = kStates / 32;  // of 8 states, of a warp
  static constexpr int kRowTiles = kStateRows / 8;

  const PrefillMamba& p;
  const MambaScan& m;
  const Segment& segment;
  ScanMemory<kStates> memory;
  int head, first_dim, group;
  int warp, lane, g, t;
  float state[kStateTiles][4] = {};  // rows 16 * (warp % 2) + g (+ 8), states first_state() + ...

  __device__ ScanBlock(const PrefillMamba& params, uint8_t* shared)
      : p(params), m(params.mixer), segment(params.segments[blockIdx.y]), memory{shared} {
    head = static_cast<int>(blockIdx.x) / m.pieces();
    first_dim = static_cast<int>(blockIdx.x) % m.pieces() * kStateRows;
    group = head / (m.heads / m.groups);
    warp = static_cast<int>(threadIdx.x / 32);
    lane = static_cast<int>(threadIdx.x % 32);
    g = lane / 4;
    t = lane % 4;
  }

  __device__ int state_row(int half) const { return warp % 2 * 16 + g + 8 * half; }
  __device__ int state_column(int tile) const {
    return (warp / 2 * kStateTiles + tile) * 8 + 2 * t;
  }

  // Tokens of the piece that begins at `row` of the segment.
  __device__ int tokens(int row) const {
    return min(kScanPiece - (segment.position + row) % kScanPiece, segment.rows - row);
  }

  // Elements [row, first .. first + columns) of the convolved inputs, zero from `real` on and for
  // rows that do not exist.
  template <typename Rows>
  __device__ void fetch(const Rows& to, int64_t row, int count, int first, int columns, int real,
                        bool aligned) const {
    const int conv_dim = m.conv_dim();
    if (aligned) {
      const int pieces = columns / 8;
      for (int i = static_cast<int>(threadIdx.x); i < kScanPiece * pieces; i += kPieceThreads) {
        const int token = i / pieces;
        const int column = i % pieces * 8;
        const bool exists = token < count && column < real;
        const __half* from =
            p.convolved + (row + (exists ? token : 0)) * conv_dim + first + (exists ? column : 0);
        ptx::copy_16_or_zero(to.address(token, column), from, exists);
      }
      return;
    }
    for (int i = static_cast<int>(threadIdx.x); i < kScanPiece * columns; i += kPieceThreads) {
      const int token = i / columns;
      const int column = i % columns;
      const bool exists = token < count && column < real;
      to.set(token, column,
             exists ? __half_as_ushort(p.convolved[(row + token) * conv_dim + first + column]) : 0);
    }
  }
  __device__ void fetch_piece(int row, int buffer) const {
    const bool aligned = m.head_dim % 8 == 0 && m.states % 8 == 0;
    const int count = tokens(row);
    const int64_t at = segment.first_row + row;
    const int bc = m.inner() + group * m.states;
    fetch(memory.b(buffer), at, count, bc, kStates, m.states, aligned);
    fetch(memory.c(buffer), at, count, bc + m.groups * m.states, kStates, m.states, aligned);
    fetch(memory.x(buffer), at, count, head * m.head_dim + first_dim, kStateRows,
          m.head_dim - first_dim, aligned);
  }

  // decay(), step(), remaining() and largest() of a piece, by the first four warps; raw: this
  // thread's token.
  __device__ float load_step(int row) const {
    const int token = static_cast<int>(threadIdx.x);
    if (row >= segment.rows || token >= kScanPiece || token >= tokens(row)) return 0.0F;
    return __ldcg(m.projected + static_cast<int64_t>(segment.first_row + row + token) * m.width +
                  m.inner() + m.conv_dim() + head);
  }
  __device__ void make_steps(int row, float raw) const {
    const int token = static_cast<int>(threadIdx.x);
    const int count = tokens(row);
    if (token < kScanPiece) {
      const float x = raw + __ldg(m.dt_bias + head);
      const float soft = x > 20.0F ? x : log1pf(expf(x));
      memory.step()[token] = token < count ? fminf(fmaxf(soft, m.dt_min), m.dt_max) : 0.0F;
    }
    __syncthreads();
    if (warp == 0) {
      constexpr int kMine = kScanPiece / 32;
      const float a = __ldg(m.a + head) * kLog2E;
      float steps[kMine];
      float sums[kMine];
      float largest = 0.0F;
      float sum = 0.0F;
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        steps[i] = memory.step()[lane * kMine + i];
        largest = fmaxf(largest, steps[i]);
        sum += steps[i] * a;
        sums[i] = sum;
      }
      float before = sum;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const float other = __shfl_up_sync(0xffffffffu, before, distance);
        if (lane >= distance) before += other;
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
      }
      const float total = __shfl_sync(0xffffffffu, before, 31);
      before -= sum;
      const float inverse = largest > 0.0F ? 1.0F / largest : 0.0F;
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        const float decay = before + sums[i];
        memory.decay()[lane * kMine + i] = decay;
        memory.step()[lane * kMine + i] = steps[i] * inverse;
        memory.remaining()[lane * kMine + i] = steps[i] * inverse * ptx::exp2_approx(total - decay);
      }
      if (lane == 0) {
        memory.largest()[0] = largest;
        memory.largest()[1] = ptx::exp2_approx(total);
      }
    }
    __syncthreads();
  }

  __device__ int64_t stored_at(int half, int tile) const {
    const int64_t row = static_cast<int64_t>(segment.slot) * m.inner() + head * m.head_dim +
                        first_dim + state_row(half);
    return row * kStates + state_column(tile);
  }
  __device__ bool real_row(int half) const {
    return first_dim + state_row(half) < m.head_dim;
  }

  __device__ void load_state() {
    if (segment.fresh != 0) return;
#pragma unroll
    for (int tile = 0; tile < kStateTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (!real_row(i / 2) || state_column(tile) + i % 2 >= m.states) continue;
        const int64_t at = stored_at(i / 2, tile) + i % 2;
        state[tile][i] = m.half_state ? __half2float(static_cast<const __half*>(m.cache.state)[at])
                                      : static_cast<const float*>(m.cache.state)[at];
      }
    }
  }
  __device__ void save_state() const {
#pragma unroll
    for (int tile = 0; tile < kStateTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (!real_row(i / 2)) continue;
        const int64_t at = stored_at(i / 2, tile) + i % 2;
        if (!m.half_state) {
          static_cast<float*>(m.cache.state)[at] = state[tile][i];
          continue;
        }
        float value = state[tile][i];
        if (m.stochastic) {
          const int64_t row =
              static_cast<int64_t>(head) * m.head_dim + first_dim + state_row(i / 2);
          const auto element = static_cast<uint64_t>(row * m.states + state_column(tile) + i % 2);
          value = round_stochastically(value,
                                       rounding_bits(m.seed, m.philox_rounds, m.layer,
                                                     segment.position + segment.rows - 1, element));
        }
        static_cast<__half*>(m.cache.state)[at] = __float2half_rn(value);
      }
    }
  }
  // The state as an operand.
  __device__ void share_state() const {
    const auto to = memory.state();
#pragma unroll
    for (int tile = 0; tile < kStateTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<uint32_t*>(to.data + state_row(half) * to.kStride +
                                     2 * state_column(tile)) =
            to_f16x2(state[tile][2 * half], state[tile][2 * half + 1]);
      }
    }
  }

  // Address of a lane's row of four 8x8 matrices: two of rows, two of columns.
  template <typename Rows>
  __device__ uint32_t matrices(const Rows& rows, int row, int column, bool columns_first) const {
    const int first = lane / 8 % 2 * 8;
    const int second = lane / 16 * 8;
    return rows.address(row + lane % 8 + (columns_first ? second : first),
                        column + (columns_first ? first : second));
  }

  // y of the warp's 16 tokens.
  __device__ void outputs(int row, int buffer) const {
    const int first = warp * 16;
    const int count = tokens(row);
    if (first >= count) return;
    const auto b = memory.b(buffer);
    const auto x = memory.x(buffer);
    uint32_t c[kSteps][4];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ptx::load_matrices<false>(matrices(memory.c(buffer), first, 16 * step, false), c[step]);
    }
    float y[kRowTiles][4] = {};
#pragma unroll
    for (int tile = 0; tile < kRowTiles; tile += 2) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t s[4];
        ptx::load_matrices<false>(matrices(memory.state(), 8 * tile, 16 * step, true), s);
        ptx::mma_f16(y[tile], c[step], s[0], s[1]);
        ptx::mma_f16(y[tile + 1], c[step], s[2], s[3]);
      }
    }
    const float decay[2] = {memory.decay()[first + g], memory.decay()[first + g + 8]};
    float within[kRowTiles][4] = {};
#pragma unroll 1
    for (int other = 0; other <= first; other += 16) {
      float scores[2][4] = {};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t k[4];
        ptx::load_matrices<false>(matrices(b, other, 16 * step, true), k);
        ptx::mma_f16(scores[0], c[step], k[0], k[1]);
        ptx::mma_f16(scores[1], c[step], k[2], k[3]);
      }
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int s = other + 8 * tile + 2 * t + i % 2;
          const bool before = s <= first + g + i / 2 * 8;
          const float factor =
              ptx::exp2_approx(fminf(decay[i / 2] - memory.decay()[s], 0.0F)) * memory.step()[s];
          scores[tile][i] = before ? scores[tile][i] * factor : 0.0F;
        }
      }
      const uint32_t a[4] = {
          to_f16x2(scores[0][0], scores[0][1]), to_f16x2(scores[0][2], scores[0][3]),
          to_f16x2(scores[1][0], scores[1][1]), to_f16x2(scores[1][2], scores[1][3])};
#pragma unroll
      for (int tile = 0; tile < kRowTiles; tile += 2) {
        uint32_t v[4];
        ptx::load_matrices<true>(matrices(x, other, 8 * tile, false), v);
        ptx::mma_f16(within[tile], a, v[0], v[1]);
        ptx::mma_f16(within[tile + 1], a, v[2], v[3]);
      }
    }
    const float largest = memory.largest()[0];
    const float d = __ldg(m.d + head);
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = first + g + i / 2 * 8;
        const int dim = 8 * tile + 2 * t + i % 2;
        if (token >= count || first_dim + dim >= m.head_dim) continue;
        const int64_t at = segment.first_row + row + token;
        const int column = head * m.head_dim + first_dim + dim;
        const float own =
            __half2float(*reinterpret_cast<const __half*>(x.data + token * x.kStride + 2 * dim));
        const float sum =
            y[tile][i] * ptx::exp2_approx(decay[i / 2]) + within[tile][i] * largest + d * own;
        m.y[at * m.inner() + column] = sum * silu(__ldcg(m.projected + at * m.width + column));
      }
    }
  }

  // The state after the piece.
  __device__ void advance(int buffer) {
    const auto b = memory.b(buffer);
    const auto x = memory.x(buffer);
    float sums[kStateTiles][4] = {};
#pragma unroll
    for (int token = 0; token < kScanPiece; token += 16) {
      uint32_t a[4];
      ptx::load_matrices<true>(matrices(x, token, warp % 2 * 16, true), a);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 w =
            *reinterpret_cast<const float2*>(memory.remaining() + token + 8 * i + 2 * t);
        const uint32_t factor = to_f16x2(w.x, w.y);
        a[2 * i] = multiply_f16x2(a[2 * i], factor);
        a[2 * i + 1] = multiply_f16x2(a[2 * i + 1], factor);
      }
#pragma unroll
      for (int tile = 0; tile < kStateTiles; tile += 2) {
        uint32_t v[4];
        const int column = (warp / 2 * kStateTiles + tile) * 8;
        if constexpr (kStateTiles == 1) {
          ptx::load_matrices<true>(matrices(b, token, column / 16 * 16, false), v);
          const bool upper = column % 16 != 0;
          ptx::mma_f16(sums[0], a, upper ? v[2] : v[0], upper ? v[3] : v[1]);
        } else {
          ptx::load_matrices<true>(matrices(b, token, column, false), v);
          ptx::mma_f16(sums[tile], a, v[0], v[1]);
          ptx::mma_f16(sums[tile + 1], a, v[2], v[3]);
        }
      }
    }
    const float largest = memory.largest()[0];
    const float decay = memory.largest()[1];
#pragma unroll
    for (int tile = 0; tile < kStateTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) state[tile][i] = state[tile][i] * decay + sums[tile][i] * largest;
    }
  }
};

// Grid: heads * pieces of a head, segments.
template <int kStates>
__global__ void __launch_bounds__(kPieceThreads)
    prefill_scan(const __grid_constant__ PrefillMamba p) {
  if constexpr (!ptx::kChunks) return __trap();
  extern __shared__ __align__(16) uint8_t scan_memory[];
  ScanBlock<kStates> block(p, scan_memory);
  block.load_state();
  block.fetch_piece(0, 0);
  ptx::commit_copies();
  float raw = block.load_step(0);
  int buffer = 0;
#pragma unroll 1
  for (int row = 0; row < block.segment.rows;) {
    const int next = row + block.tokens(row);
    block.share_state();
    ptx::wait_for_copies<0>();
    block.make_steps(row, raw);  // begins and ends with a barrier
    if (next < block.segment.rows) {
      block.fetch_piece(next, buffer ^ 1);
      ptx::commit_copies();
      raw = block.load_step(next);
    }
    block.outputs(row, buffer);
    block.advance(buffer);
    __syncthreads();
    row = next;
    buffer ^= 1;
  }
  block.save_state();
}

template <int kStates>
void launch_scan(cudaStream_t stream, const PrefillMamba& p) {
  constexpr int kShared = ScanMemory<kStates>::kBytes;
  check(cudaFuncSetAttribute(prefill_scan<kStates>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             kShared));
  const dim3 grid(static_cast<unsigned>(p.mixer.heads * p.mixer.pieces()),
                  static_cast<unsigned>(p.segment_count));
  prefill_scan<kStates><<<grid, kPieceThreads, kShared, stream>>>(p);
  check(cudaGetLastError());
}

}  // namespace

void launch_convolution(cudaStream_t stream, const PrefillMamba& p) {
  const auto ceil = [](int value, int divisor) {
    return static_cast<unsigned>((value + divisor - 1) / divisor);
  };
  const dim3 grid(ceil(p.mixer.conv_dim(), kConvolutionThreads), ceil(p.longest, kConvolutionRows),
                  static_cast<unsigned>(p.segment_count));
  convolution<<<grid, kConvolutionThreads, 0, stream>>>(p);
  check(cudaGetLastError());
}

void launch_prefill_scan(cudaStream_t stream, const PrefillMamba& p) {
  if (p.mixer.states <= 32) return launch_scan<32>(stream, p);
  if (p.mixer.states <= 64) return launch_scan<64>(stream, p);
  launch_scan<128>(stream, p);
}

}  // namespace levin::runtime::cuda
