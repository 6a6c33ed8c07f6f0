// Convolution, recurrence and gate of the Mamba-2 mixer (mamba.h):
//   S_t = exp(d_t A) S_{t-1} + x_t (outer) (d_t B_t),   y_t = (S_t C_t + D x_t) silu(z_t)
// (Dao and Gu, arXiv 2405.21060). Prefill runs the same recurrence token by token, so any split of
// the tokens gives the same bits.
#include "runtime/cuda/mamba.h"
#include "runtime/cuda/state_rounding.cuh"

namespace levin::runtime::cuda {
namespace {

__device__ inline float silu(float x) {
  return __fdividef(x, 1.0F + __expf(-x));
}
__device__ inline float softplus(float x) {
  return x > 20.0F ? x : log1pf(expf(x));
}

// This block's place: rows `piece * kStateRows` .. of one head of one sequence.
struct Place {
  const MambaScan& p;
  Segment segment;
  int head, piece, group;

  __device__ bool owns_group() const { return piece == 0 && head % (p.heads / p.groups) == 0; }
  __device__ float* window(int parity) const {
    return p.cache.window +
           (segment.slot * 2 + parity) * static_cast<int64_t>(p.taps - 1) * p.conv_dim();
  }
  __device__ float* log(int parity) const {
    return p.cache.log + (segment.slot * 2 + parity) * static_cast<int64_t>(kMaxRows) * log_width();
  }
  __device__ int log_width() const { return p.conv_dim() + p.heads; }
  // Inputs x, B, C and dt of a token that is replayed, and of one of the pass.
  __device__ const float* logged(int t) const { return log(segment.parity) + t * log_width(); }
  __device__ const float* projected(int t) const {
    return p.projected + static_cast<int64_t>(segment.first_row + t) * p.width + p.inner();
  }
};

// One channel of the convolution. The block's channels are x of its rows, then B and C of its
// group.
struct Channel {
  int channel = -1;    // of the model's, -1: none
  bool owner = false;  // whether this block keeps the channel's window and log
  float4 weight = {};
  float bias = 0.0F;
  float recent[kMaxTaps - 1] = {};  // inputs before the current one, oldest first

  __device__ void load(const Place& at, int index) {
    const MambaScan& p = at.p;
    if (index < kStateRows) {
      const int dim = at.piece * kStateRows + index;
      if (dim >= p.head_dim) return;
      channel = at.head * p.head_dim + dim;
      owner = true;
    } else {
      index -= kStateRows;
      if (index >= 2 * p.states) return;
      channel = p.inner() + (index / p.states * p.groups + at.group) * p.states + index % p.states;
      owner = at.owns_group();
    }
    weight = __ldg(reinterpret_cast<const float4*>(p.conv_weight) + channel);
    bias = __ldg(p.conv_bias + channel);
    if (at.segment.fresh) return;
    const float* window = at.window(at.segment.parity);
#pragma unroll
    for (int k = 0; k < kMaxTaps - 1; ++k) {
      const int row = k - (kMaxTaps - p.taps);  // with fewer taps the oldest weights are zero
      if (row >= 0) recent[k] = __ldcg(window + row * p.conv_dim() + channel);
    }
  }
  // The next input; its convolution after SiLU.
  __device__ float push(float x) {
    float sum = bias;
    sum += weight.x * recent[0];
    sum += weight.y * recent[1];
    sum += weight.z * recent[2];
    sum += weight.w * x;
    recent[0] = recent[1];
    recent[1] = recent[2];
    recent[2] = x;
    return silu(sum);
  }
  __device__ void save_window(const Place& at) const {
    if (!owner) return;
    float* to = at.window(at.segment.parity ^ 1);
#pragma unroll
    for (int k = 0; k < kMaxTaps - 1; ++k) {
      const int row = k - (kMaxTaps - at.p.taps);
      if (row >= 0) to[row * at.p.conv_dim() + channel] = recent[k];
    }
  }
};

template <bool kHalf, int kPerThread>
__device__ inline void load_state(const MambaScan& p, int64_t at, float (&state)[kPerThread]) {
#pragma unroll
  for (int i = 0; i < kPerThread / 4; ++i) {
    const int64_t index = at + 4 * kLanesPerRow * i;
    if constexpr (kHalf) {
      const uint2 bits =
          __ldcs(reinterpret_cast<const uint2*>(static_cast<const __half*>(p.cache.state) + index));
      const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&bits.x));
      const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&bits.y));
      state[4 * i] = low.x, state[4 * i + 1] = low.y, state[4 * i + 2] = high.x,
                state[4 * i + 3] = high.y;
    } else {
      const float4 v =
          __ldcs(reinterpret_cast<const float4*>(static_cast<const float*>(p.cache.state) + index));
      state[4 * i] = v.x, state[4 * i + 1] = v.y, state[4 * i + 2] = v.z, state[4 * i + 3] = v.w;
    }
  }
}

template <bool kHalf, int kPerThread>
__device__ inline void save_state(const MambaScan& p, int64_t at,
                                  const float (&state)[kPerThread]) {
#pragma unroll
  for (int i = 0; i < kPerThread / 4; ++i) {
    const int64_t index = at + 4 * kLanesPerRow * i;
    if constexpr (kHalf) {  // exact: the values have been rounded already
      const uint2 bits = {ptx::floats_to_f16x2(state[4 * i], state[4 * i + 1]),
                          ptx::floats_to_f16x2(state[4 * i + 2], state[4 * i + 3])};
      __stcs(reinterpret_cast<uint2*>(static_cast<__half*>(p.cache.state) + index), bits);
    } else {
      __stcs(reinterpret_cast<float4*>(static_cast<float*>(p.cache.state) + index),
             make_float4(state[4 * i], state[4 * i + 1], state[4 * i + 2], state[4 * i + 3]));
    }
  }
}

// What an F16 cache holds of the state after the token at `position`. `row`: first element of the
// row in the layer's state, [heads, head_dim, states].
template <int kPerThread>
__device__ inline void round_state(const MambaScan& p, int64_t row, int lane, int position,
                                   float (&state)[kPerThread]) {
#pragma unroll
  for (int i = 0; i < kPerThread / 4; ++i) {
    if (!p.stochastic) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        state[4 * i + j] = __half2float(__float2half_rn(state[4 * i + j]));
      continue;
    }
    const int n = 4 * (lane + kLanesPerRow * i);
    const uint64_t stream = static_cast<uint64_t>(p.layer) << 32 | static_cast<uint32_t>(position);
    uint32_t words[4];
    uint64_t block = ~uint64_t{0};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint64_t element = static_cast<uint64_t>(row + n + j);
      if (element / 8 != block) {  // once, unless rows are no multiple of 4 wide
        block = element / 8;
        device_philox(p.seed, block, p.philox_rounds, stream, words);
      }
      const int which = static_cast<int>(element % 8);
      uint32_t word = words[0];
#pragma unroll
      for (int k = 1; k < 4; ++k) {
        if (which / 2 == k) word = words[k];
      }
      state[4 * i + j] = round_stochastically(state[4 * i + j], which % 2 == 0 ? word : word >> 16);
    }
  }
}

// What the recurrence needs of the tokens, in shared memory.
struct Inputs {
  float* channels;  // [tokens][x, B, C], after convolution
  float* gates;     // [tokens][kStateRows]: z
  float* steps;     // [tokens]: d_t
  float* decays;    // [tokens]: exp(d_t A)
  int width;

  __device__ Inputs(float* at, const MambaScan& p) : width(kStateRows + 2 * p.states) {
    channels = at;
    gates = channels + kMaxRows * width;
    steps = gates + kMaxRows * kStateRows;
    decays = steps + kMaxRows;
  }
  __device__ void set_step(const MambaScan& p, int head, int t, float raw) const {
    const float step = fminf(fmaxf(softplus(raw + __ldg(p.dt_bias + head)), p.dt_min), p.dt_max);
    steps[t] = step;
    decays[t] = expf(step * __ldg(p.a + head));
  }
};

// A thread's part of the state.
template <bool kHalf, int kPerThread>
struct Rows {
  float state[kPerThread] = {};
  int row;   // of the block
  int lane;  // of the row
  int dim;   // of the head
  bool real;
  int64_t stored_at;
  int64_t first_element;  // of the row, in [heads, head_dim, states]

  __device__ Rows(const Place& at) {
    const MambaScan& p = at.p;
    row = static_cast<int>(threadIdx.x) / kLanesPerRow;
    lane = static_cast<int>(threadIdx.x) % kLanesPerRow;
    dim = at.piece * kStateRows + row;
    real = dim < p.head_dim;
    const int64_t index = static_cast<int64_t>(at.head) * p.head_dim + dim;
    first_element = index * p.states;
    stored_at =
        (static_cast<int64_t>(at.segment.slot) * p.inner() + index) * (kPerThread * kLanesPerRow) +
        4 * lane;
  }

  // One token; this thread's share of S C of the row.
  __device__ float advance(const MambaScan& p, const Inputs& inputs, int t, int position) {
    const float* values = inputs.channels + t * inputs.width;
    const float x = real ? values[row] : 0.0F;
    const float step = inputs.steps[t];
    const float decay = inputs.decays[t];
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kPerThread / 4; ++i) {
      const int n = 4 * (lane + kLanesPerRow * i);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (n + j >= p.states) continue;
        float& s = state[4 * i + j];
        s = s * decay + step * values[kStateRows + n + j] * x;
        sum += s * values[kStateRows + p.states + n + j];
      }
    }
    if constexpr (kHalf) round_state(p, first_element, lane, position, state);
    return sum;
  }
};

// One token; of the pass's own tokens also what it leaves.
template <bool kHalf, int kPerThread>
__device__ inline void advance_token(const Place& at, const Inputs& inputs,
                                     Rows<kHalf, kPerThread>& rows, bool own, int t, int position,
                                     float d, float (*squares)[kScanThreads / 32]) {
  const MambaScan& p = at.p;
  float sum = rows.advance(p, inputs, t, position);
  if (!own) return;
#pragma unroll
  for (int distance = kLanesPerRow / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  }
  float gated = 0.0F;
  if (rows.real) {
    const float x = inputs.channels[t * inputs.width + rows.row];
    gated = (sum + d * x) * silu(inputs.gates[t * kStateRows + rows.row]);
    if (rows.lane == 0) {
      p.y[static_cast<int64_t>(at.segment.first_row + t) * p.inner() + at.head * p.head_dim +
          rows.dim] = gated;
    }
  }
  // Rows of a warp, then warps.
  float square = gated * gated;
#pragma unroll
  for (int distance = kLanesPerRow; distance < 32; distance *= 2) {
    square += __shfl_xor_sync(0xffffffffu, square, distance);
  }
  const int thread = static_cast<int>(threadIdx.x);
  if (thread % 32 == 0) squares[t][thread / 32] = square;
}

}  // namespace

// kAtOnce: tokens whose inputs are loaded together.
template <bool kHalf, int kPerThread, int kAtOnce>
__global__ void __launch_bounds__(kScanThreads) mamba_scan(const __grid_constant__ MambaScan p) {
  p.trace.stamp(Trace::kStart);
  extern __shared__ __align__(16) float shared_floats[];
  __shared__ float squares[kMaxRows][kScanThreads / 32];
  ptx::launch_dependents();
  ptx::step_back();
  if (static_cast<int>(blockIdx.y) >= p.pass->segments) {
    ptx::wait_for_previous();
    return;
  }
  const int thread = static_cast<int>(threadIdx.x);
  const int head = static_cast<int>(blockIdx.x) / p.pieces();
  const Place at = {p, p.pass->segment[blockIdx.y], head, static_cast<int>(blockIdx.x) % p.pieces(),
                    head / (p.heads / p.groups)};
  const Segment& segment = at.segment;
  const Inputs inputs(shared_floats, p);

  // What earlier passes left does not depend on the previous kernel: the state is loaded and
  // brought up to date while that one still runs.
  Rows<kHalf, kPerThread> rows(at);
  if (rows.real && !segment.fresh) load_state<kHalf>(p, rows.stored_at, rows.state);
  constexpr int kMost = kStateRows + 2 * kPerThread * kLanesPerRow;
  constexpr int kChannels = (kMost + kScanThreads - 1) / kScanThreads;
  Channel channels[kChannels];
#pragma unroll
  for (int i = 0; i < kChannels; ++i) channels[i].load(at, thread + i * kScanThreads);
  const float d = __ldg(p.d + head);

  // Twice the same: the tokens that are replayed, then those of the pass.
#pragma unroll 1
  for (int own = 0; own < 2; ++own) {
    const int tokens = own ? segment.rows : segment.replay;
    const int width = own ? p.width : at.log_width();
    const float* from = own ? at.projected(0) : at.logged(0);
    if (own) {
      ptx::wait_for_previous();
      p.trace.stamp(Trace::kReady);
    }
    // What the first tokens need is loaded all at once.
    float input[kChannels][kAtOnce];
    const auto load = [&](int i, int first) {
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const bool wanted = first + j < tokens && channels[i].channel >= 0;
        input[i][j] = wanted ? __ldcg(from + (first + j) * width + channels[i].channel) : 0.0F;
      }
    };
#pragma unroll
    for (int i = 0; i < kChannels; ++i) load(i, 0);
    const float raw_step =
        thread < tokens ? __ldcg(from + thread * width + p.conv_dim() + head) : 0.0F;
    if (own) {
      for (int i = thread; i < tokens * kStateRows; i += kScanThreads) {
        const int dim = at.piece * kStateRows + i % kStateRows;
        if (dim >= p.head_dim) continue;
        inputs.gates[i] =
            __ldcg(from - p.inner() + i / kStateRows * width + head * p.head_dim + dim);
      }
    }
    const bool logs = own && !segment.commit;
    float* log = at.log(segment.parity ^ 1);
#pragma unroll
    for (int i = 0; i < kChannels; ++i) {
      Channel& c = channels[i];
      if (c.channel < 0) continue;
#pragma unroll 1
      for (int first = 0; first < tokens; first += kAtOnce) {
        if (first > 0) load(i, first);
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const int t = first + j;
          if (t >= tokens) break;
          inputs.channels[t * inputs.width + thread + i * kScanThreads] = c.push(input[i][j]);
          if (logs && c.owner) log[t * at.log_width() + c.channel] = input[i][j];
        }
      }
      // The window belongs to the state that is stored.
      if (own == segment.commit) c.save_window(at);
    }
    if (thread < tokens) {
      inputs.set_step(p, head, thread, raw_step);
      if (logs && at.piece == 0) log[thread * at.log_width() + p.conv_dim() + head] = raw_step;
    }
    __syncthreads();

    const int position = segment.position - (own ? 0 : tokens);
#pragma unroll 1
    for (int t = 0; t < tokens; ++t) {
      advance_token(at, inputs, rows, own, t, position + t, d, squares);
    }
    const bool stored = own == segment.commit && (segment.commit || segment.replay > 0);
    if (stored && rows.real) save_state<kHalf>(p, rows.stored_at, rows.state);
    __syncthreads();
  }
  if (thread < segment.rows) {
    float sum = 0.0F;
    for (int w = 0; w < kScanThreads / 32; ++w) sum += squares[thread][w];
    p.squares[(segment.first_row + thread) * p.heads * p.pieces() + blockIdx.x] = sum;
  }
  p.trace.stamp(Trace::kEnd);
}

namespace {

template <bool kHalf, int kAtOnce>
Kernel<MambaScan> mamba_scan_for(int states) {
  const int per_thread = (states + kLanesPerRow - 1) / kLanesPerRow;
  return per_thread <= 4    ? mamba_scan<kHalf, 4, kAtOnce>
         : per_thread <= 8  ? mamba_scan<kHalf, 8, kAtOnce>
         : per_thread <= 16 ? mamba_scan<kHalf, 16, kAtOnce>
                            : mamba_scan<kHalf, 32, kAtOnce>;
}
template <int kAtOnce>
Kernel<MambaScan> mamba_scan_for(int states, bool half_state) {
  return half_state ? mamba_scan_for<true, kAtOnce>(states)
                    : mamba_scan_for<false, kAtOnce>(states);
}

}  // namespace

Kernel<MambaScan> mamba_scan_kernel(int rows, int states, bool half_state) {
  return rows == 1 ? mamba_scan_for<1>(states, half_state) : mamba_scan_for<4>(states, half_state);
}

}  // namespace levin::runtime::cuda
