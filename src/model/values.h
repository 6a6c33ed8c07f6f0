// Checks of stored values: what no healthy checkpoint holds is an Error that names tensor, element
// and value.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "core/thread_team.h"
#include "model/linear.h"

namespace levin::model {

// Index of the first NaN or infinity of an F32, F16, BF16 or F8_E4M3 tensor; -1 when there is none
// (and for integer types).
int64_t first_non_finite(const TensorView& tensor);

// Refuses NaN and infinity.
void check_finite(const TensorView& tensor, std::string_view name);

// Refuses scales that are not positive, or that only broken files have.
void check_scales(std::span<const float> scales, std::string_view name);

// Refuses block scales with NaN (0x7F, 0xFF) or the sign bit: unclamped casts of some exporters.
void check_block_scales(const TensorView& scales, std::string_view name);

// check_finite for the weights of `linears`, shared out over `team`. Throws the Error of the first
// linear in order that fails.
void check_weights(const std::vector<const Linear*>& linears, ThreadTeam& team);

}  // namespace levin::model
