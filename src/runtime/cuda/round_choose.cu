// The next token after each row (round_kernels.h), by the rules of engine/sampler.h and with its
// arithmetic: this file is compiled without contracting products and sums, weights come from
// core/fast_exp.h, and they are added up in the same order, so that without cuts every bit is the
// host's. With min-p, top-k or top-p the weights that are left are added up block by block instead
// of one by one, in float64: the choice can differ when the random number lies within about 1e-15
// of the border between two tokens.
//
// A team of blocks holds one row (choose_team.cuh). Cuts are found by searching: the number, or the
// weight, of all tokens from a threshold on, for eight thresholds at a time.
#include "core/fast_exp.h"
#include "runtime/cuda/choose_team.cuh"
#include "runtime/cuda/routing.cuh"

namespace levin::runtime::cuda {
namespace {

constexpr int kLanesOfSum = 4;  // the host adds up every fourth weight of a block, then those
constexpr int kThresholds = 8;  // of one step of a search
constexpr int kChooseWarps = kChooseThreads / 32;
constexpr int32_t kAllTokens = 0x7fffffff;

// Tokens above the cut take part; so do tokens at the cut up to an id.
struct Cut {
  float logit = -INFINITY;
  int32_t last_token = kAllTokens;
};

// Orders like the number, with both zeros alike; NaN is below all.
__device__ inline uint32_t key_of(float x) {
  return isnan(x) ? 0 : ordered(x + 0.0F);
}
__device__ inline float value_of(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// What a block shares with its team.
struct Shared {
  double warp_sums[kChooseWarps][kThresholds];
  double exchange[2][kChooseBlocks][kThresholds];  // of each block; steps alternate
  float maxima[kChooseBlocks];
  double total;
  int32_t block;  // of sums, where the choice is
  double before;  // sum of the blocks before that
  float logits[kSumBlock];
  float weights[kSumBlock];
};

class Row {
 public:
  __device__ Row(const ChooseTokens& params, int row)
      : p_(params), team_(params, row), rank_(team_.rank()) {
    uint8_t* memory = team_.memory();
    shared_ = reinterpret_cast<Shared*>(memory);
    logits_ = reinterpret_cast<float*>(memory + sizeof(Shared));
    weights_ = logits_ + p_.share;
    sums_ = reinterpret_cast<double*>(weights_ + p_.share);
    first_ = rank_ * p_.share;
    count_ = max(0, min(p_.share, p_.vocab - first_));
    const float* from = p_.logits + static_cast<int64_t>(row) * p_.vocab + first_;
    for (int i = thread(); i < p_.share; i += kChooseThreads) {
      logits_[i] = i < count_ ? __ldcg(from + i) : -INFINITY;
    }
    __syncthreads();
  }

  // The largest logit that is a number.
  __device__ float largest() {
    float best = -INFINITY;
    for (int i = thread(); i < count_; i += kChooseThreads) best = fmaxf(best, logits_[i]);
    for (int distance = 16; distance > 0; distance /= 2) {
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, distance));
    }
    auto* of_warps = reinterpret_cast<float*>(shared_->warp_sums);
    if (thread() % 32 == 0) of_warps[thread() / 32] = best;
    __syncthreads();
    if (thread() < kChooseBlocks) {
      for (int w = 0; w < kChooseWarps; ++w) best = fmaxf(best, of_warps[w]);
      team_.of(thread(), shared_)->maxima[rank_] = best;
    }
    team_.sync();
    for (int r = 0; r < kChooseBlocks; ++r) best = fmaxf(best, shared_->maxima[r]);
    return best;
  }

  __device__ void set_weights(float maximum, float inverse_temperature) {
    for (int i = thread(); i < p_.share; i += kChooseThreads) {
      weights_[i] = fast_exp((logits_[i] - maximum) * inverse_temperature);
    }
    __syncthreads();
  }

  __device__ Cut find_cut(const SamplingRule& rule, float maximum) {
    Cut cut;
    if (rule.min_p) cut.logit = min_p_cut(rule.min_p_offset, maximum);
    if (rule.top_k > 0 && rule.top_k < p_.vocab) {
      const auto key = [&](int i) { return key_of(logits_[i]); };
      const uint32_t kth =
          search(rule.top_k, key_of(-INFINITY), key_of(maximum), key, [](int) { return 1.0; });
      cut.logit = fmaxf(cut.logit, value_of(kth));
    }
    if (rule.top_p < 1) limit_share(rule.top_p, maximum, cut);
    return cut;
  }

  // The first token at which the cumulative weight of those that are left reaches u of the total.
  __device__ int32_t draw(const Cut& cut, double u) {
    add_up(cut);
    if (rank_ == 0 && thread() == 0) {
      const double target = u * shared_->total;
      const int blocks = kChooseBlocks * (p_.share / kSumBlock);
      int block = 0;
      while (block + 1 < blocks && sums_[block] < target) ++block;
      shared_->block = block;
      shared_->before = block == 0 ? 0.0 : sums_[block - 1];
    }
    __syncthreads();
    int32_t token = -1;
    if (rank_ == 0) {
      const int block = shared_->block;
      const int per_share = p_.share / kSumBlock;
      const int at = block % per_share * kSumBlock;
      if (thread() < kSumBlock) {
        const int owner = block / per_share;
        shared_->logits[thread()] = team_.of(owner, logits_)[at + thread()];
        shared_->weights[thread()] = team_.of(owner, weights_)[at + thread()];
      }
      __syncthreads();
      if (thread() == 0) token = walk(cut, block * kSumBlock, u * shared_->total);
    }
    team_.sync();  // nobody leaves while its memory is read
    return token;
  }

 private:
  __device__ static int thread() { return static_cast<int>(threadIdx.x); }

  __device__ static bool left(const Cut& cut, float logit, float weight, int32_t token) {
    return logit >= cut.logit && !(logit == cut.logit && token > cut.last_token) && weight != 0.0F;
  }

  // As the host walks through the block in which the cumulative weight reaches `target`.
  __device__ int32_t walk(const Cut& cut, int32_t first, double target) const {
    double sum = shared_->before;
    int32_t token = first;
    for (int i = 0; i < kSumBlock; ++i) {
      if (!left(cut, shared_->logits[i], shared_->weights[i], first + i)) continue;
      token = first + i;  // also the answer when rounding leaves the sum short of the target
      sum += static_cast<double>(shared_->weights[i]);
      if (sum >= target) break;
    }
    return token;
  }

  // Weights that are left, added up over blocks of kSumBlock tokens and those one after the other:
  // cumulative sums at rank 0, the total everywhere.
  __device__ void add_up(const Cut& cut) {
    const int blocks = p_.share / kSumBlock;
    double* all = team_.of(0, sums_);
    if (cut.logit == -INFINITY) {
      // Every fourth weight in float32, then the four.
      for (int i = thread(); i < blocks * kLanesOfSum; i += kChooseThreads) {
        const float* from = weights_ + i / kLanesOfSum * kSumBlock + i % kLanesOfSum;
        float sum = 0.0F;
        for (int j = 0; j < kSumBlock; j += kLanesOfSum) sum += from[j];
        double whole = static_cast<double>(sum);
        const unsigned lanes = __activemask();
        const double second = __shfl_down_sync(lanes, whole, 1);
        const double third = __shfl_down_sync(lanes, whole, 2);
        const double fourth = __shfl_down_sync(lanes, whole, 3);
        whole = whole + second + third + fourth;
        if (i % kLanesOfSum == 0) all[rank_ * blocks + i / kLanesOfSum] = whole;
      }
    } else {
      for (int block = thread(); block < blocks; block += kChooseThreads) {
        double sum = 0.0;
        for (int i = block * kSumBlock; i < (block + 1) * kSumBlock; ++i) {
          if (left(cut, logits_[i], weights_[i], first_ + i)) {
            sum += static_cast<double>(weights_[i]);
          }
        }
        all[rank_ * blocks + block] = sum;
      }
    }
    team_.sync();
    if (rank_ == 0) {
      if (thread() == 0) {
        double sum = 0.0;
#pragma unroll 8
        for (int block = 0; block < kChooseBlocks * blocks; ++block) {
          sum += sums_[block];
          sums_[block] = sum;
        }
        shared_->total = sum;
      }
      __syncthreads();
      if (thread() > 0 && thread() < kChooseBlocks) {
        team_.of(thread(), shared_)->total = shared_->total;
      }
    }
    team_.sync();
  }

  // Sums over the whole row of what `measure` gives for tokens whose key is at least each of
  // `thresholds`, in a fixed order.
  template <typename Key, typename Measure>
  __device__ void sums_from(const uint32_t (&thresholds)[kThresholds], Key&& key, Measure&& measure,
                            double (&sums)[kThresholds]) {
#pragma unroll
    for (int j = 0; j < kThresholds; ++j) sums[j] = 0.0;
    for (int i = thread(); i < count_; i += kChooseThreads) {
      const uint32_t k = key(i);
      if (k < thresholds[0]) continue;
      const double amount = measure(i);
#pragma unroll
      for (int j = 0; j < kThresholds; ++j) {
        if (k >= thresholds[j]) sums[j] += amount;
      }
    }
#pragma unroll
    for (int j = 0; j < kThresholds; ++j) {
      for (int distance = 16; distance > 0; distance /= 2) {
        sums[j] += __shfl_xor_sync(0xffffffffu, sums[j], distance);
      }
      if (thread() % 32 == 0) shared_->warp_sums[thread() / 32][j] = sums[j];
    }
    __syncthreads();
    auto& exchange = shared_->exchange[step_];
    step_ ^= 1;
    if (thread() < kThresholds) {
      double sum = 0.0;
      for (int w = 0; w < kChooseWarps; ++w) sum += shared_->warp_sums[w][thread()];
      for (int r = 0; r < kChooseBlocks; ++r) {
        team_.of(r, &exchange)[0][rank_][thread()] = sum;
      }
    }
    team_.sync();
#pragma unroll
    for (int j = 0; j < kThresholds; ++j) {
      sums[j] = 0.0;
      for (int r = 0; r < kChooseBlocks; ++r) sums[j] += exchange[r][j];
    }
  }

  // The largest threshold in [low, high] from which on there is at least `wanted`; low when there
  // is none.
  template <typename Key, typename Measure>
  __device__ uint32_t search(double wanted, uint32_t low, uint32_t high, Key&& key,
                             Measure&& measure) {
    while (low < high) {
      const uint32_t step = (high - low - 1) / kThresholds + 1;
      uint32_t thresholds[kThresholds];
      double sums[kThresholds];
#pragma unroll
      for (int j = 0; j < kThresholds; ++j) {
        thresholds[j] = min(low + (j + 1) * step, high);
      }
      sums_from(thresholds, key, measure, sums);
      uint32_t new_low = low;
      uint32_t new_high = thresholds[0] - 1;
#pragma unroll
      for (int j = 0; j < kThresholds; ++j) {
        if (sums[j] < wanted) continue;
        new_low = thresholds[j];
        new_high = thresholds[j] == high ? high : thresholds[min(j + 1, kThresholds - 1)] - 1;
      }
      low = new_low;
      high = max(new_low, new_high);
    }
    return low;
  }

  // Keeps the most likely tokens until their share of what `cut` leaves reaches top_p.
  __device__ void limit_share(double top_p, float maximum, Cut& cut) {
    add_up(cut);
    const double wanted = top_p * shared_->total;
    const auto key = [&](int i) { return key_of(logits_[i]); };
    const auto weight = [&](int i) { return static_cast<double>(weights_[i]); };
    const uint32_t high = key_of(maximum);
    const uint32_t last = search(wanted, key_of(cut.logit), high, key, weight);
    cut.logit = value_of(last);
    // Of the tokens with just this logit those of low id, as many as it takes.
    uint32_t thresholds[kThresholds];
#pragma unroll
    for (int j = 0; j < kThresholds; ++j) thresholds[j] = j == 0 ? last : last + 1;
    double weights[kThresholds];
    double counts[kThresholds];
    sums_from(thresholds, key, weight, weights);
    sums_from(
        thresholds, key, [](int) { return 1.0; }, counts);
    const auto ties = static_cast<int64_t>(counts[0] - counts[1]);
    if (ties <= 1) return;
    double before = weights[1];
    const double each = (weights[0] - weights[1]) / static_cast<double>(ties);
    int64_t taken = 0;
    while (taken < ties && (taken == 0 || before < wanted)) {
      before += each;
      ++taken;
    }
    if (taken == ties) return;
    const auto id = [&](int i) { return static_cast<uint32_t>(first_ + i); };
    cut.last_token = static_cast<int32_t>(
        search(static_cast<double>(ties - taken + 1), 0, static_cast<uint32_t>(p_.vocab - 1), id,
               [&](int i) { return key_of(logits_[i]) == last ? 1.0 : 0.0; }));
  }

  const ChooseTokens& p_;
  ChooseTeam team_;
  int rank_;
  int first_;  // token of the block's share
  int count_;
  int step_ = 0;
  Shared* shared_;
  float* logits_;   // [share]
  float* weights_;  // [share]
  double* sums_;    // [blocks of the team * share / kSumBlock], of rank 0
};

// The best token of lm_head's blocks; -1 when none is finite. By one warp.
__device__ inline int32_t best_token(const ChooseTokens& p, int row) {
  Candidate best = kNoCandidate;
  for (int block = static_cast<int>(threadIdx.x); block < p.candidate_blocks; block += 32) {
    const Candidate other = p.candidates[block * kMaxRows + row];
    if (better(other, best)) best = other;
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    const Candidate other = {__shfl_xor_sync(0xffffffffu, best.value, distance),
                             __shfl_xor_sync(0xffffffffu, best.index, distance)};
    if (better(other, best)) best = other;
  }
  return isfinite(best.value) && best.index < p.vocab ? best.index : -1;
}

}  // namespace

__global__ void LEVIN_CHOOSE_TEAM __launch_bounds__(kChooseThreads)
    choose_tokens(const __grid_constant__ ChooseTokens p) {
  p.trace.stamp(Trace::kStart);
  ptx::launch_dependents();
  ptx::wait_for_previous();
  p.trace.stamp(Trace::kReady);
  const int row = static_cast<int>(blockIdx.y);
  if (row >= p.pass->rows) return;
  const int entry = p.work->entry_of[row];
  const RoundSequence& sequence = p.sequences[p.work->slot[entry]];
  const SamplingRule& rule = sequence.sampling;
  if (rule.greedy) {
    if (blockIdx.x == 0 && threadIdx.x < 32) {
      const int32_t token = best_token(p, row);
      if (threadIdx.x == 0) p.work->chosen[row] = token;
    }
  } else {
    Row logits(p, row);
    const float maximum = logits.largest();
    int32_t token = -1;
    if (isfinite(maximum)) {
      logits.set_weights(maximum, rule.inverse_temperature);
      const Cut cut = logits.find_cut(rule, maximum);
      token = logits.draw(
          cut, uniform(rule.seed, position_after(sequence, row - p.work->first_row[entry]),
                       Purpose::kToken));
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) p.work->chosen[row] = token;
  }
  p.trace.stamp(Trace::kEnd);
}

int choose_memory_bytes(int share) {
  return static_cast<int>(sizeof(Shared)) + share * 2 * static_cast<int>(sizeof(float)) +
         kChooseBlocks * (share / kSumBlock) * static_cast<int>(sizeof(double));
}

Kernel<ChooseTokens> choose_tokens_kernel() {
  return choose_tokens;
}

}  // namespace levin::runtime::cuda
