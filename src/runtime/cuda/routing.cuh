// Which experts the tokens of a pass go to, worked out by every block that needs it: cheaper than a
// phase of its own. The logits come from other blocks of a grid that is still running, as words
// with the number of the pass as their tag: whoever finds the right tag has the right value. Scores
// are sigmoids; the correction bias takes part in choosing but not in weighting (DeepSeek-V3, arXiv
// 2412.19437). Ties go to the lower index.
#pragma once

#include "runtime/cuda/operand.cuh"

namespace levin::runtime::cuda {

struct Router {
  uint64_t* words = nullptr;        // [kMaxRows, experts]: logits and tags
  const uint32_t* epoch = nullptr;  // the tag of this pass
  // [Routing::words()]: where the phase that chooses leaves the choice for the one after it, tagged
  // like the logits; null: each chooses for itself.
  uint64_t* choice = nullptr;
  int32_t* touched = nullptr;   // counts distinct experts
  const float* bias = nullptr;  // [experts]
  int experts = 0;
  int chosen = 0;  // per token
  int groups = 1;
  int chosen_groups = 1;
  float scale = 1.0F;
  bool normalize = true;
};

inline constexpr int kMaxExperts = 512;
inline constexpr int kMaxChosen = 32;  // per token: one for each lane of a warp
inline constexpr int kExpertWords = kMaxExperts / 32;

// The choice, in shared memory. Pair p = token * chosen + j is the j-th choice of a token.
struct Routing {
  uint8_t* at;
  int pairs;  // there is space for

  static __host__ __device__ int bytes(int rows, int chosen, int experts, int groups) {
    return 16 + 4 * kExpertWords + rows * chosen * (12 + kMaxRows) + 16 +
           (groups > 1 ? 4 * rows * experts : 0);
  }
  // Of four bytes, without selection().
  static __host__ __device__ int words(int pairs) {
    return (16 + 4 * kExpertWords + pairs * (12 + kMaxRows)) / 4;
  }
  // Distinct experts: how many, and which, ascending.
  __device__ int& count() const { return *reinterpret_cast<int*>(at); }
  __device__ int* distinct() const { return reinterpret_cast<int*>(used() + kExpertWords); }
  // Of each pair.
  __device__ int* expert() const { return distinct() + pairs; }
  __device__ float* weight() const { return reinterpret_cast<float*>(expert() + pairs); }
  // j of a token for a distinct expert, or -1.
  __device__ int8_t& choice(int rank, int token) const {
    return reinterpret_cast<int8_t*>(weight() + pairs)[rank * kMaxRows + token];
  }
  __device__ uint32_t* used() const { return reinterpret_cast<uint32_t*>(at + 16); }  // bit mask
  // [rows][experts], only with groups of experts.
  __device__ float* selection() const {
    return reinterpret_cast<float*>(reinterpret_cast<uint8_t*>(weight() + pairs) +
                                    (pairs * kMaxRows + 15) / 16 * 16);
  }
};

__device__ inline float sigmoid(float x) {
  return 1.0F / (1.0F + expf(-x));
}

// An unsigned that orders like the float; 0 is below all.
__device__ inline uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Takes the largest of a warp's keys out of the choice; its index. `keys[i]` of lane l is that of
// index l + 32 * i.
template <int kPerLane>
__device__ inline int take_largest(uint32_t (&keys)[kPerLane]) {
  uint32_t best = keys[0];
  int index = threadIdx.x % 32;
#pragma unroll
  for (int i = 1; i < kPerLane; ++i) {
    if (keys[i] > best) {
      best = keys[i];
      index = static_cast<int>(threadIdx.x % 32) + 32 * i;
    }
  }
  const uint32_t largest = __reduce_max_sync(0xffffffffu, best);
  const int winner = static_cast<int>(
      __reduce_min_sync(0xffffffffu, best == largest ? static_cast<uint32_t>(index) : ~0u));
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (winner == static_cast<int>(threadIdx.x % 32) + 32 * i) keys[i] = 0;
  }
  return winner;
}

// Takes all experts outside the best groups out of the choice. A group is as good as the sum of its
// two best scores. `selection`: the token's scores in shared memory.
template <int kPerLane>
__device__ __noinline__ void limit_to_groups(const Router& r, const float* selection,
                                             uint32_t (&keys)[kPerLane]) {
  const int size = r.experts / r.groups;
  const int lane = threadIdx.x % 32;
  uint32_t group_keys[kPerLane];
  // Nothing here is unrolled: few models have groups, and kernels should be small.
#pragma unroll 1
  for (int i = 0; i < kPerLane; ++i) {
    const int group = lane + 32 * i;
    group_keys[i] = 0;
    if (group >= r.groups) continue;
    float best = -INFINITY;
    float second = -INFINITY;
#pragma unroll 1
    for (int e = 0; e < size; ++e) {
      const float score = selection[group * size + e];
      if (score > best) {
        second = best;
        best = score;
      } else if (score > second) {
        second = score;
      }
    }
    group_keys[i] = ordered(size > 1 ? best + second : best);
  }
  uint32_t allowed[kExpertWords] = {};
#pragma unroll 1
  for (int k = 0; k < r.chosen_groups; ++k) {
    const int group = take_largest(group_keys);
    allowed[group / 32] |= 1u << group % 32;
  }
#pragma unroll 1
  for (int i = 0; i < kPerLane; ++i) {
    const int group = min((lane + 32 * i) / size, 32 * kExpertWords - 1);
    if ((allowed[group / 32] >> group % 32 & 1) == 0) keys[i] = 0;
  }
}

// A row's logits of experts lane, lane + 32, ..., once they are there.
template <int kPerLane>
__device__ inline void await_logits(const Router& r, uint32_t epoch, int row,
                                    float (&logits)[kPerLane]) {
  const uint64_t* words = r.words + static_cast<int64_t>(row) * r.experts;
  bool complete;
  do {
    complete = true;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int e = static_cast<int>(threadIdx.x % 32) + 32 * i;
      const uint64_t word =
          e < r.experts ? ptx::load_tagged(words + e) : static_cast<uint64_t>(epoch) << 32;
      complete &= static_cast<uint32_t>(word >> 32) == epoch;
      logits[i] = __uint_as_float(static_cast<uint32_t>(word));
    }
  } while (!complete);
  __syncwarp();
}

// The choice of one token, by one warp. `row`: of the logits.
template <int kPerLane>
__device__ __noinline__ void choose_experts(const Router& r, uint32_t epoch, int row, int token,
                                            Routing routing) {
  const int lane = threadIdx.x % 32;
  float scores[kPerLane];
  uint32_t keys[kPerLane];
  await_logits(r, epoch, row, scores);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + 32 * i;
    scores[i] = e < r.experts ? sigmoid(scores[i]) : 0.0F;
    keys[i] = e < r.experts ? ordered(scores[i] + __ldg(r.bias + e)) : 0;
  }
  if (r.groups > 1) {
    float* selection = routing.selection() + token * r.experts;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int e = lane + 32 * i;
      if (e < r.experts) selection[e] = scores[i] + __ldg(r.bias + e);
    }
    __syncwarp();
    limit_to_groups(r, selection, keys);
  }
  float sum = 0.0F;
  float mine = 0.0F;  // weight of choice number `lane`
  for (int j = 0; j < r.chosen; ++j) {
    const int e = take_largest(keys);
    float weight = 0.0F;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (e / 32 == i) weight = scores[i];
    }
    weight = __shfl_sync(0xffffffffu, weight, e % 32);
    sum += weight;
    if (lane == j) mine = weight;
    if (lane == 0) {
      routing.expert()[token * r.chosen + j] = e;
      atomicOr(&routing.used()[e / 32], 1u << e % 32);
    }
  }
  if (lane < r.chosen) {
    if (r.normalize) mine /= sum + 1e-20F;
    routing.weight()[token * r.chosen + lane] = mine * r.scale;
  }
}

// The same for up to 128 experts without groups, shorter. Lane l has experts 4l .. 4l + 3.
__device__ inline void choose_of_few(const Router& r, uint32_t epoch, int row, int token,
                                     const Routing& routing, bool only_token) {
  constexpr int kMine = 4;
  const int lane = threadIdx.x % 32;
  const uint64_t* words = r.words + static_cast<int64_t>(row) * r.experts + kMine * lane;
  float bias[kMine];  // here, so that nobody waits for it when the logits have come
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    bias[i] = kMine * lane + i < r.experts ? __ldg(r.bias + kMine * lane + i) : 0.0F;
  }
  uint64_t word[kMine];
  bool complete;
  do {
    complete = true;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const bool exists = kMine * lane + i < r.experts;
      word[i] = exists ? ptx::load_tagged(words + i) : static_cast<uint64_t>(epoch) << 32;
      complete &= static_cast<uint32_t>(word[i] >> 32) == epoch;
    }
  } while (!complete);
  __syncwarp();
  float scores[kMine];
  uint32_t keys[kMine];
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int e = kMine * lane + i;
    scores[i] = sigmoid(__uint_as_float(static_cast<uint32_t>(word[i])));
    keys[i] = e < r.experts ? ordered(scores[i] + bias[i]) : 0;
  }
  float sum = 0.0F;
  float weight = 0.0F;  // of choice number `lane`
  int expert = 0;
#pragma unroll 1
  for (int j = 0; j < r.chosen; ++j) {
    uint32_t best = keys[0];
    float score = scores[0];
    int which = 0;
#pragma unroll
    for (int i = 1; i < kMine; ++i) {
      const bool greater = keys[i] > best;
      best = greater ? keys[i] : best;
      score = greater ? scores[i] : score;
      which = greater ? i : which;
    }
    const uint32_t largest = __reduce_max_sync(0xffffffffu, best);
    const int owner = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, best == largest))) - 1;
    const float of_owner = __shfl_sync(0xffffffffu, score, owner);
    const int e = __shfl_sync(0xffffffffu, kMine * lane + which, owner);
#pragma unroll
    for (int i = 0; i < kMine; ++i) keys[i] = lane == owner && which == i ? 0 : keys[i];
    sum += of_owner;
    if (lane == j) {
      weight = of_owner;
      expert = e;
    }
  }
  if (r.normalize) weight /= sum + 1e-20F;
  if (lane < r.chosen) {
    routing.expert()[token * r.chosen + lane] = expert;
    routing.weight()[token * r.chosen + lane] = weight * r.scale;
    if (!only_token) atomicOr(&routing.used()[expert / 32], 1u << expert % 32);
  }
  if (!only_token) return;
  int rank = 0;
#pragma unroll 1
  for (int j = 0; j < r.chosen; ++j) rank += __shfl_sync(0xffffffffu, expert, j) < expert ? 1 : 0;
  if (lane < r.chosen) {
    routing.distinct()[rank] = expert;
    routing.choice(rank, 0) = static_cast<int8_t>(lane);
  }
  if (lane == 0) routing.count() = r.chosen;
  __syncwarp();
}

// The distinct experts' bit mask: how many of them are below an expert, and how many there are.
template <int kWords>
struct ExpertMask {
  uint32_t words[kWords];

  __device__ explicit ExpertMask(const Routing& routing) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = routing.used()[i];
  }
  __device__ int below(int expert) const {
    int rank = 0;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int bits = min(max(expert - 32 * i, 0), 32);
      rank += __popc(bits == 32 ? words[i] : words[i] & ((1u << bits) - 1));
    }
    return rank;
  }
  __device__ int count() const {
    return below(32 * kWords);
  }
};

// Of `pairs` choices the list of distinct experts and who goes there. By the scouts, when the mask
// is complete.
template <int kWords>
__device__ inline void list_distinct(const Router& r, const Routing& routing, int pairs, int thread,
                                     int threads) {
  const ExpertMask<kWords> mask(routing);
  for (int p = thread; p < pairs; p += threads) {
    const int e = routing.expert()[p];
    const int rank = mask.below(e);
    routing.distinct()[rank] = e;
    routing.choice(rank, p / r.chosen) = static_cast<int8_t>(p % r.chosen);
  }
  if (thread == 0) routing.count() = mask.count();
}

// The warps of a block that find out the routing while the others multiply: its last ones.
struct Scouts {
  int warps;
  static constexpr int kMost = 4;
  static constexpr int kBarrier = 2;

  __device__ explicit Scouts(int tokens) : warps(tokens == 1 ? 1 : kMost) {}
  __device__ int others() const { return kWarps - warps; }
  __device__ int thread() const { return static_cast<int>(threadIdx.x) - 32 * others(); }
  __device__ int threads() const { return 32 * warps; }
  __device__ bool include_me() const { return thread() >= 0; }
  __device__ void sync() const { ptx::sync_threads(kBarrier, threads()); }
};

// The number of the pass, which whoever wrote the logits tagged them with.
__device__ inline uint32_t epoch_of(const Router& r) {
  return *static_cast<const volatile uint32_t*>(r.epoch);
}

// route() of several tokens, or of one among many experts or groups of them.
__device__ __noinline__ inline void route_many(const Router& r, uint32_t epoch, int first, int rows,
                                               Routing routing, Scouts scouts) {
  const bool few = r.experts <= 128 && r.groups == 1;
  const int thread = scouts.thread();
  const int pairs = rows * r.chosen;
  if (thread < kExpertWords) routing.used()[thread] = 0;
  for (int i = thread; i < pairs * kMaxRows; i += scouts.threads()) (&routing.choice(0, 0))[i] = -1;
  scouts.sync();
  for (int token = thread / 32; token < rows; token += scouts.warps) {
    if (few) {
      choose_of_few(r, epoch, first + token, token, routing, false);
    } else {
      choose_experts<kExpertWords>(r, epoch, first + token, token, routing);
    }
  }
  scouts.sync();
  if (few) {
    list_distinct<4>(r, routing, pairs, thread, scouts.threads());
  } else {
    list_distinct<kExpertWords>(r, routing, pairs, thread, scouts.threads());
  }
  scouts.sync();
}

// Leaves the choice in Router::choice. By the scouts of one block, after route().
__device__ inline void publish_choice(const Router& r, uint32_t epoch, const Routing& routing,
                                      const Scouts& scouts) {
  const auto* from = reinterpret_cast<const uint32_t*>(routing.at);
#pragma unroll 1
  for (int i = scouts.thread(); i < Routing::words(routing.pairs); i += scouts.threads()) {
    ptx::store_tagged(r.choice + i, from[i], epoch);
  }
}

// Takes the choice that another phase has published, once it is there; ends with the scouts'
// barrier.
__device__ inline void take_choice(const Router& r, uint32_t epoch, const Routing& routing,
                                   const Scouts& scouts) {
  auto* to = reinterpret_cast<uint32_t*>(routing.at);
#pragma unroll 1
  for (int i = scouts.thread(); i < Routing::words(routing.pairs); i += scouts.threads()) {
    uint64_t word;
    do {
      word = ptx::load_tagged(r.choice + i);
    } while (static_cast<uint32_t>(word >> 32) != epoch);
    to[i] = static_cast<uint32_t>(word);
  }
  scouts.sync();
}

// The choice of `rows` tokens from `first` on, by the scouts; ends with their barrier.
__device__ inline void route(const Router& r, uint32_t epoch, int first, int rows,
                             const Routing& routing, const Scouts& scouts) {
  if (rows == 1 && r.experts <= 128 && r.groups == 1) {
    choose_of_few(r, epoch, first, 0, routing, true);
  } else {
    route_many(r, epoch, first, rows, routing, scouts);
  }
}

}  // namespace levin::runtime::cuda
