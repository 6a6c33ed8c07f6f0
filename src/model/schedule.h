// The layer schedule in every spelling that public checkpoints use.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace levin::model {

// A pattern string such as "MEMEM*E" (hybrid_override_pattern). Megatron exports mark pipeline
// stages with '|' and append "/"-separated MTP segments; both are dropped.
std::vector<BlockKind> parse_pattern(std::string_view pattern, const std::string& where);

// A pattern as string or array of strings, or a list of block names ("mamba", "linear_attention",
// "attention", "full_attention", "moe", "mlp") or pattern characters.
std::vector<BlockKind> parse_schedule(const nlohmann::json& value, const std::string& where);

}  // namespace levin::model
