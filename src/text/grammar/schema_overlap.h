// Whether two JSON schemas can be satisfied by the same document, as far as that is plain to see.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>

namespace levin::text::grammar {

// True only when no document satisfies both: they are of different types, list different constants,
// or are objects that both require a property for which the same holds. `resolve` follows $ref.
bool cannot_overlap(
    const nlohmann::ordered_json& a, const nlohmann::ordered_json& b,
    const std::function<const nlohmann::ordered_json&(const nlohmann::ordered_json&)>& resolve);

}  // namespace levin::text::grammar
