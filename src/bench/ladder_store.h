// What a rung's timing is saved as between runs of a ladder.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "bench/ladder.h"

namespace levin::bench {

// Outputs are not kept, only whether they were the control's.
nlohmann::ordered_json save(const RungTiming& timing);
// Throws Error naming `where` when the JSON is not what save() writes.
RungTiming load_timing(const nlohmann::json& json, const std::string& where);

}  // namespace levin::bench
