// Added tokens ("<|im_end|>"): found in the text before anything else looks at it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace levin::text {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;
  bool normalized = false;  // looked for after the normalizer has run, otherwise before
  bool lstrip = false;      // takes the white space before it along
  bool rstrip = false;      // and behind it
};

// A set of strings, searched from left to right; of those that begin at the same place the longest
// wins.
class AddedTokenMatcher {
 public:
  // Keeps `index` as the name of `content`, which is not empty. The first of equal ones stays.
  void add(std::string_view content, std::size_t index);

  struct Match {
    std::size_t begin;
    std::size_t end;
    std::size_t index;
  };
  // The first match at or after `from`.
  std::optional<Match> find(std::string_view text, std::size_t from) const;

 private:
  static constexpr int32_t kNoToken = -1;

  // A trie: nodes are numbered, 0 is the root, edges are keyed by (node, byte).
  std::unordered_map<uint64_t, int32_t> edges_;
  std::vector<int32_t> token_of_node_ = {kNoToken};
  bool begins_[256] = {};  // bytes that a content begins with
};

}  // namespace levin::text
