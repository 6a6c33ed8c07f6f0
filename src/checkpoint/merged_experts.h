// The second public layout of routed experts: one 3-D tensor for all experts of a layer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace levin::checkpoint {

// `...mixer.experts.up_proj[.suffix]` taken apart. A missing suffix means the weight.
struct MergedName {
  std::string experts;     // "backbone.layers.1.mixer.experts"
  std::string projection;  // "up_proj" or "down_proj"
  std::string suffix;      // "weight", "weight_scale", ...

  std::string group() const { return experts + "." + projection; }
  // Canonical name of the part that belongs to `expert`.
  std::string part(int64_t expert) const;
};

// Nothing when `canonical` is not the name of a merged tensor.
std::optional<MergedName> parse_merged_name(std::string_view canonical);

}  // namespace levin::checkpoint
