// Mamba-2 (Dao and Gu, arXiv 2405.21060) as a recurrence over tokens, prefill included: any split
// of the same tokens then gives the same bits. Threads share the heads; a thread convolves the B
// and C of a group once for its heads of that group.
#include <algorithm>

#include "runtime/cpu/blocks.h"

namespace levin::runtime::cpu {
namespace {

// The tokens that a call feeds to the heads of one slot: first those of the old log, whose outputs
// are known already, then the new rows. Row j of the inputs is the raw input (x, B, C, dt) of token
// j - history, the first `history` rows being what the convolution looks back to.
struct Inputs {
  const model::Config& config;
  Rows old_log;
  Rows rows;         // of this pass, from x on
  int64_t history;   // conv_kernel - 1
  int64_t replay;    // tokens of the old log
  int64_t count;     // new tokens
  int64_t position;  // of the first token, that is of the first one in the log

  int64_t tokens() const { return replay + count; }
  const float* raw(int64_t j) const {
    const int64_t logged = history + replay;
    return j < logged ? old_log[j] : rows[j - logged];
  }
  const float* dt(int64_t token) const { return raw(history + token) + config.conv_dim(); }
};

class HeadRunner {
 public:
  HeadRunner(Pass& pass, const MambaWeights& weights, int layer, const MambaState& state,
             const Slot& slot, const Inputs& inputs, int64_t first_row, bool keep)
      : pass_(pass),
        config_(pass.config()),
        block_(*weights.block),
        conv_weight_(weights.conv_weight.data()),
        layer_(layer),
        state_(state),
        empty_(slot.kept == 0),
        inputs_(inputs),
        first_row_(first_row),
        keep_(keep),
        group_heads_(config_.mamba_num_heads / config_.n_groups) {}

  // Heads [begin, end).
  void run(int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t group = begin / group_heads_;
      const int64_t group_end = std::min(end, (group + 1) * group_heads_);
      for (int64_t token = 0; token < inputs_.tokens(); token += kMambaChunk) {
        const int64_t count = std::min(kMambaChunk, inputs_.tokens() - token);
        convolve(group, begin, group_end, token, count);
        for (int64_t head = begin; head < group_end; ++head) {
          scan(head, head - begin, token, count);
        }
      }
      begin = group_end;
    }
  }

 private:
  MambaScratch& scratch() const { return pass_.own().mamba; }

  void convolve_channels(int64_t channel, int64_t channels, int64_t token, float* out) const {
    constexpr int64_t kMostTaps = 16;
    const float* taps[kMostTaps];
    ConvCall call;
    call.channels = channels;
    call.taps = config_.conv_kernel;
    for (int64_t k = 0; k < call.taps; ++k) taps[k] = inputs_.raw(token + k) + channel;
    call.inputs = taps;
    call.weight = conv_weight_ + channel;
    call.weight_stride = config_.conv_dim();
    call.bias = block_.conv_bias.data() + channel;
    call.out = out;
    pass_.kernels().conv(call);
  }

  // x of heads [begin, end), B and C of their group, and their step sizes.
  void convolve(int64_t group, int64_t begin, int64_t end, int64_t token, int64_t count) const {
    const int64_t state = config_.ssm_state_size;
    const int64_t b = config_.d_inner() + group * state;
    const int64_t c = b + config_.n_groups * state;
    for (int64_t i = 0; i < count; ++i) {
      convolve_channels(b, state, token + i, scratch().bc[i]);
      convolve_channels(c, state, token + i, scratch().bc[i] + state);
      convolve_channels(begin * config_.mamba_head_dim, (end - begin) * config_.mamba_head_dim,
                        token + i, scratch().x[i]);
      pass_.kernels().ssm_dt(
          inputs_.dt(token + i) + begin, block_.dt_bias.data() + begin, block_.a.data() + begin,
          end - begin, static_cast<float>(config_.time_step_limit_min),
          static_cast<float>(config_.time_step_limit_max), scratch().dt[i], scratch().decay[i]);
    }
  }

  void set_steps(int64_t head, int64_t index, int64_t token, int64_t count) const {
    const int64_t head_dim = config_.mamba_head_dim;
    for (int64_t i = 0; i < count; ++i) {
      const float* x = scratch().x[i] + index * head_dim;
      const bool output = token + i >= inputs_.replay;
      SsmStep& step = scratch().steps[i];
      step.decay = scratch().decay[i][index];
      step.dt_x = scratch().dt_x[i];
      step.b = scratch().bc[i];
      step.c = step.b + config_.ssm_state_size;
      step.skip = scratch().skip[i];
      const int64_t row = first_row_ + token + i - inputs_.replay;
      step.y = output ? pass_.work().y[row] + head * head_dim : nullptr;
      step.stream =
          static_cast<uint64_t>(layer_) << 32 | static_cast<uint32_t>(inputs_.position + token + i);
      pass_.kernels().scale(x, scratch().dt[i][index], head_dim, scratch().dt_x[i]);
      if (output) {
        pass_.kernels().scale(x, block_.d[static_cast<std::size_t>(head)], head_dim,
                              scratch().skip[i]);
      }
    }
  }

  // The recurrence of `head`, the index-th of those convolved, over the tokens of a chunk. The
  // slot's state receives the logged tokens always, the new ones only if they are kept.
  void scan(int64_t head, int64_t index, int64_t token, int64_t count) const {
    set_steps(head, index, token, count);
    const Options& options = pass_.options();
    SsmCall call;
    call.head_dim = config_.mamba_head_dim;
    call.state = config_.ssm_state_size;
    call.rounding = options.ssm_cache_dtype == SsmCacheDType::kF32 ? SsmRounding::kNone
                    : options.stochastic_rounding                  ? SsmRounding::kStochastic
                                                                   : SsmRounding::kNearest;
    call.philox_rounds = options.philox_rounds;
    call.seed = options.seed;
    call.first_element = static_cast<uint64_t>(head * call.head_dim * call.state);
    const int64_t cells = call.state * round_up(call.head_dim, kLanes);
    const int64_t cell_bytes = call.rounding == SsmRounding::kNone ? 4 : 2;
    void* const saved = static_cast<uint8_t*>(state_.ssm) + head * cells * cell_bytes;
    // Between chunks the other heads take their turn, so each needs a place of its own.
    const int64_t place = inputs_.tokens() > kMambaChunk ? index : 0;
    void* const running = keep_ ? saved : scratch().state + place * cells;

    call.replay = std::clamp<int64_t>(inputs_.replay - token, 0, count);
    const bool first = token == 0;
    const bool only_logged_so_far = token <= inputs_.replay;
    call.in = first && empty_ ? nullptr : only_logged_so_far ? saved : running;
    for (int64_t i = 0; i < count; i += call.replay + call.outputs, call.replay = 0) {
      if (i > 0) call.in = running;
      call.steps = scratch().steps + i;
      call.outputs = std::min<int64_t>(kMaxSsmOutputs, count - i - call.replay);
      call.replayed = call.replay > 0 ? saved : nullptr;
      const bool last = token + i + call.replay + call.outputs == inputs_.tokens();
      call.out = call.outputs > 0 && (keep_ || !last) ? running : nullptr;
      pass_.kernels().ssm(call);
    }
  }

  Pass& pass_;
  const model::Config& config_;
  const model::MambaBlock& block_;
  const float* conv_weight_;
  int layer_;
  const MambaState& state_;
  bool empty_;
  const Inputs& inputs_;
  int64_t first_row_;
  bool keep_;
  int64_t group_heads_;
};

// The new log: what the convolution looks back to from the kept length on, then the rows of tokens
// that are logged and not kept. Threads share the columns.
void write_log(const Pass& pass, const Inputs& inputs, const Rows& log, bool keep) {
  const Range columns = share(pass.config().conv_dim() + pass.config().mamba_num_heads,
                              pass.thread(), pass.threads(), kLanes);
  const int64_t first = keep ? inputs.tokens() : inputs.replay;
  const int64_t rows = inputs.history + inputs.tokens() - first;
  for (int64_t i = 0; i < rows; ++i) {
    std::copy(inputs.raw(first + i) + columns.begin, inputs.raw(first + i) + columns.end,
              log[i] + columns.begin);
  }
}

int64_t state_bytes_of_head(const Pass& pass) {
  const int64_t element = pass.options().ssm_cache_dtype == SsmCacheDType::kF32 ? 4 : 2;
  return pass.config().ssm_state_size * pass.config().mamba_head_dim * element;
}

void run_heads(Pass& pass, const MambaWeights& weights, int layer, State& state,
               std::span<const Segment> segments) {
  const model::Config& config = pass.config();
  const int64_t heads = config.mamba_num_heads;
  const Range share_of_all =
      share(heads * static_cast<int64_t>(segments.size()), pass.thread(), pass.threads());
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const Segment& segment = segments[s];
    const Slot& slot = state[segment.slot];
    const MambaState& layer_state = slot.mamba[static_cast<std::size_t>(layer)];
    const Rows projected = pass.work().projected.from(segment.first_row);
    const Inputs inputs{config,
                        layer_state.log[slot.log],
                        {projected.data + config.d_inner(), projected.stride},
                        config.conv_kernel - 1,
                        slot.logged(),
                        segment.rows,
                        slot.kept};
    const bool keep = segment.rows > pass.options().max_rewind;
    const bool writes = keep || inputs.replay > 0;
    const int64_t base = heads * static_cast<int64_t>(s);
    const int64_t begin = std::clamp<int64_t>(share_of_all.begin - base, 0, heads);
    const int64_t end = std::clamp<int64_t>(share_of_all.end - base, 0, heads);
    HeadRunner(pass, weights, layer, layer_state, slot, inputs, segment.first_row, keep)
        .run(begin, end);
    pass.count_bytes((end - begin) * state_bytes_of_head(pass) *
                     ((slot.kept > 0 ? 1 : 0) + (writes ? 1 : 0)));
    write_log(pass, inputs, layer_state.log[1 - slot.log], keep);
  }
}

}  // namespace

void run_mamba(Pass& pass, const MambaWeights& weights, const float* norm, int layer, State& state,
               std::span<const Segment> segments, const Rows& hidden, int64_t count) {
  const model::Config& config = pass.config();
  Workspace& work = pass.work();
  const Rows normed = pass.normed();
  pass.phase(Phase::kMambaIn);
  pass.normalize(hidden, count, norm, normed);
  const PackedInput input = pass.stage(0, weights.in_proj, normed, count);
  pass.staged();
  pass.watch_input(weights.in_proj, normed, count);
  pass.multiply(weights.in_proj, input, store_to(work.projected));
  pass.barrier();

  pass.phase(Phase::kMambaScan);
  run_heads(pass, weights, layer, state, segments);
  pass.barrier();

  pass.phase(Phase::kMambaOut);
  const Rows gated = pass.small() ? pass.own().wide : work.y;
  const Range rows = pass.rows_to_stage(count);
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    pass.kernels().gated_norm(work.y[i], work.projected[i], weights.block->norm.data(),
                              config.d_inner(), config.d_inner() / config.n_groups,
                              static_cast<float>(config.norm_eps), gated[i]);
  }
  const PackedInput mixed = pass.stage(0, weights.out_proj, gated, count);
  pass.staged();
  pass.watch_input(weights.out_proj, gated, count);
  pass.multiply(weights.out_proj, mixed, store_to(hidden, Epilogue::kAdd));
  pass.barrier();
}

}  // namespace levin::runtime::cpu
