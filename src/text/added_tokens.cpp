#include "text/added_tokens.h"

namespace levin::text {
namespace {

uint64_t edge_of(int32_t node, char byte) {
  return uint64_t{static_cast<uint32_t>(node)} << 8 | static_cast<uint8_t>(byte);
}

}  // namespace

void AddedTokenMatcher::add(std::string_view content, std::size_t index) {
  begins_[static_cast<uint8_t>(content.front())] = true;
  int32_t node = 0;
  for (const char byte : content) {
    const auto fresh = static_cast<int32_t>(token_of_node_.size());
    const auto [edge, inserted] = edges_.try_emplace(edge_of(node, byte), fresh);
    if (inserted) token_of_node_.push_back(kNoToken);
    node = edge->second;
  }
  int32_t& token = token_of_node_[static_cast<std::size_t>(node)];
  if (token == kNoToken) token = static_cast<int32_t>(index);
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::find(std::string_view text,
                                                                std::size_t from) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!begins_[static_cast<uint8_t>(text[begin])]) continue;
    std::optional<Match> longest;
    int32_t node = 0;
    for (std::size_t at = begin; at < text.size(); ++at) {
      const auto edge = edges_.find(edge_of(node, text[at]));
      if (edge == edges_.end()) break;
      node = edge->second;
      const int32_t token = token_of_node_[static_cast<std::size_t>(node)];
      if (token != kNoToken) longest = Match{begin, at + 1, static_cast<std::size_t>(token)};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

}  // namespace levin::text
