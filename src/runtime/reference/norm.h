// The two normalizations of NemotronH.
#pragma once

#include <span>

#include "core/thread_team.h"

namespace levin::runtime::reference {

// RMSNorm of one row: x / sqrt(mean(x^2) + eps) * weight. `out` may be `x`. (Zhang and Sennrich,
// 2019; order of operations as vLLM's layernorm kernels, everything in float32.)
void rms_norm(std::span<const float> x, std::span<const float> weight, double eps,
              std::span<float> out);

// The same for `rows` rows.
void rms_norm_rows(ThreadTeam& team, std::span<const float> x, int rows,
                   std::span<const float> weight, double eps, std::span<float> out);

// Mamba-2's gated norm of one row of d_inner channels, in place: y = y * silu(z) first, then
// RMSNorm over each of `groups` groups of channels on its own. (norm_before_gate=False of
// mamba_ssm's layernorm_gated; Mixer2RMSNormGated in vLLM.)
void gated_group_norm(std::span<float> y, std::span<const float> z, std::span<const float> weight,
                      int64_t groups, double eps);

}  // namespace levin::runtime::reference
