#include "runtime/reference/mamba.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/reference/norm.h"
#include "runtime/reference/parallel.h"
#include "runtime/ssm_rounding.h"

namespace levin::runtime::reference {
namespace {

// Consecutive inputs of one sequence's recurrence: rows of x, B, C and dt as in_proj makes them.
struct Inputs {
  const float* first = nullptr;
  int64_t stride = 0;
  int64_t rows = 0;
  int64_t position = 0;  // of the first row's token

  const float* row(int64_t index) const { return first + index * stride; }
};

// Causal depthwise convolution with SiLU of the channels [begin, end), then moves the window on.
// Row -1 is the newest row of the window. `out` is [rows, conv_dim].
void convolve(const model::Config& config, const model::MambaBlock& block, const Inputs& inputs,
              Range channels, std::vector<float>& window, float* out) {
  const int64_t width = config.conv_dim();
  const int64_t kernel = config.conv_kernel;
  const int64_t past = kernel - 1;
  auto input_at = [&](int64_t row, int64_t channel) {
    return row < 0 ? window[static_cast<std::size_t>((past + row) * width + channel)]
                   : inputs.row(row)[channel];
  };
  for (int64_t row = 0; row < inputs.rows; ++row) {
    for (int64_t c = channels.begin; c < channels.end; ++c) {
      const float* weight = block.conv_weight.data() + c * kernel;
      float sum = block.conv_bias[static_cast<std::size_t>(c)];
      for (int64_t k = 0; k < kernel; ++k) sum += weight[k] * input_at(row - past + k, c);
      out[row * width + c] = silu(sum);
    }
  }
  for (int64_t k = 0; k < past; ++k) {
    for (int64_t c = channels.begin; c < channels.end; ++c) {
      window[static_cast<std::size_t>(k * width + c)] = input_at(inputs.rows - past + k, c);
    }
  }
}

// softplus(dt + bias), clamped only when the checkpoint's time_step_limit says so. (vLLM and the
// published remote code use (0, inf); transformers before #48989 clamps at time_step_min, which
// is meant for initialization.)
float time_step(const model::Config& config, float dt, float bias) {
  const float step = softplus(dt + bias);
  return std::clamp(step, static_cast<float>(config.time_step_limit_min),
                    static_cast<float>(config.time_step_limit_max));
}

// The recurrence of one head:
//   S_t = exp(d_t A) S_{t-1} + x_t (outer) (d_t B_t),   y_t = S_t C_t + D x_t
// with S [head_dim, state] in `ssm`. `convolved` is [rows, conv_dim], `y` [rows, d_inner] or null
// when only the state matters.
void scan_head(const Context& context, const model::MambaBlock& block, int layer, int64_t head,
               const Inputs& inputs, const float* convolved, std::vector<float>& ssm,
               std::span<float> scaled_b, float* y) {
  const model::Config& config = context.config;
  const int64_t head_dim = config.mamba_head_dim;
  const int64_t state = config.ssm_state_size;
  const int64_t group = head / (config.mamba_num_heads / config.n_groups);
  const int64_t first_element = head * head_dim * state;
  float* s = ssm.data() + first_element;
  const auto h = static_cast<std::size_t>(head);
  for (int64_t t = 0; t < inputs.rows; ++t) {
    const float* x = convolved + t * config.conv_dim() + head * head_dim;
    const float* b = convolved + t * config.conv_dim() + config.d_inner() + group * state;
    const float* c = b + config.n_groups * state;
    const float dt = time_step(config, inputs.row(t)[config.conv_dim() + head], block.dt_bias[h]);
    const float decay = std::exp(dt * block.a[h]);
    for (int64_t n = 0; n < state; ++n) scaled_b[static_cast<std::size_t>(n)] = dt * b[n];
    for (int64_t p = 0; p < head_dim; ++p) {
      float* row = s + p * state;
      for (int64_t n = 0; n < state; ++n) {
        row[n] = row[n] * decay + scaled_b[static_cast<std::size_t>(n)] * x[p];
      }
      if (y != nullptr) {
        y[t * config.d_inner() + head * head_dim + p] = dot(row, c, state) + block.d[h] * x[p];
      }
    }
    round_ssm_state({s, static_cast<std::size_t>(head_dim * state)}, context.options, layer,
                    inputs.position + t, first_element);
  }
}

// Convolution and recurrence of one sequence, all channels and heads.
void advance(Context& context, const model::MambaBlock& block, int layer, const Inputs& inputs,
             MambaState::Values& values, MambaWork& work, float* convolved, float* y) {
  const model::Config& config = context.config;
  in_parallel(context.team, inputs.rows * config.conv_dim() * config.conv_kernel,
              [&](int thread, int threads) {
                convolve(config, block, inputs, share(config.conv_dim(), thread, threads),
                         values.window, convolved);
              });
  in_parallel(context.team, inputs.rows * config.d_inner() * config.ssm_state_size,
              [&](int thread, int threads) {
                const Range heads = share(config.mamba_num_heads, thread, threads);
                for (int64_t head = heads.begin; head < heads.end; ++head) {
                  scan_head(context, block, layer, head, inputs, convolved, values.ssm,
                            work.scaled_b.row(thread, config.ssm_state_size), y);
                }
              });
}

}  // namespace

MambaState::MambaState(const model::Config& config, int max_rewind)
    : log_width(config.conv_dim() + config.mamba_num_heads), log(max_rewind * log_width) {
  now.window.resize(static_cast<std::size_t>((config.conv_kernel - 1) * config.conv_dim()));
  now.ssm.resize(static_cast<std::size_t>(config.d_inner() * config.ssm_state_size));
  before = now;
}

void MambaState::reset() {
  std::fill(now.window.begin(), now.window.end(), 0.0F);
  std::fill(now.ssm.begin(), now.ssm.end(), 0.0F);
}

void MambaState::poison() {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (Values* values : {&now, &before}) {
    std::fill(values->window.begin(), values->window.end(), kNan);
    std::fill(values->ssm.begin(), values->ssm.end(), kNan);
  }
  std::fill_n(log.data(), log.size(), kNan);
}

void MambaState::checkpoint(const float* inputs, int64_t stride, int64_t rows) {
  before = now;
  for (int64_t i = 0; i < rows; ++i) {
    std::copy_n(inputs + i * stride, log_width, log.row(i, log_width).data());
  }
}

int64_t MambaState::bytes() const {
  const std::size_t values = now.window.size() + now.ssm.size();
  return static_cast<int64_t>(2 * values * sizeof(float)) + log.bytes();
}

MambaWork::MambaWork(const Context& context)
    : projected(context.max_rows * context.config.in_proj_rows()),
      convolved(context.max_rows * context.config.conv_dim()),
      y(context.max_rows * context.config.d_inner()),
      scaled_b(context.team.size() * context.config.ssm_state_size) {}

void mamba(Context& context, const model::MambaBlock& block, int layer,
           std::span<const Segment> segments, std::span<MambaState> states, MambaWork& work,
           std::span<const float> input, int rows, std::span<float> output) {
  const model::Config& config = context.config;
  const int64_t width = config.in_proj_rows();
  context.linears.apply(block.in_proj, input, rows, work.projected.rows(rows, width));

  for (const Segment& segment : segments) {
    MambaState& state = states[static_cast<std::size_t>(segment.slot)];
    const Inputs inputs = {work.projected.row(segment.first_row, width).data() + config.d_inner(),
                           width, segment.rows, segment.position};
    if (segment.rows <= context.options.max_rewind) {
      state.checkpoint(inputs.first, inputs.stride, inputs.rows);
    }
    advance(context, block, layer, inputs, state.now, work,
            work.convolved.row(segment.first_row, config.conv_dim()).data(),
            work.y.row(segment.first_row, config.d_inner()).data());
  }

  parallel_for(context.team, rows, config.d_inner(), [&](int64_t row) {
    const auto z = work.projected.row(row, width).first(static_cast<std::size_t>(config.d_inner()));
    gated_group_norm(work.y.row(row, config.d_inner()), z, block.norm, config.n_groups,
                     config.norm_eps);
  });
  context.linears.apply(block.out_proj, work.y.rows(rows, config.d_inner()), rows, output);
}

void rewind_mamba(Context& context, const model::MambaBlock& block, int layer, MambaState& state,
                  MambaWork& work, int64_t position, int64_t rows) {
  state.now = state.before;
  const Inputs inputs = {state.log.data(), state.log_width, rows, position};
  advance(context, block, layer, inputs, state.now, work, work.convolved.data(), nullptr);
}

}  // namespace levin::runtime::reference
