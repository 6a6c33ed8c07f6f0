#include "checkpoint/merged_experts.h"

namespace levin::checkpoint {

std::string MergedName::part(int64_t expert) const {
  return experts + "." + std::to_string(expert) + "." + projection + "." + suffix;
}

std::optional<MergedName> parse_merged_name(std::string_view canonical) {
  constexpr std::string_view kExperts = ".mixer.experts";
  for (const std::string_view projection : {"up_proj", "down_proj"}) {
    const std::string infix = std::string(kExperts) + "." + std::string(projection);
    const std::size_t at = canonical.find(infix);
    if (at == std::string_view::npos) continue;
    const std::string_view rest = canonical.substr(at + infix.size());
    if (!rest.empty() && (rest[0] != '.' || rest.size() == 1)) continue;
    return MergedName{.experts = std::string(canonical.substr(0, at + kExperts.size())),
                      .projection = std::string(projection),
                      .suffix = rest.empty() ? "weight" : std::string(rest.substr(1))};
  }
  return std::nullopt;
}

}  // namespace levin::checkpoint
