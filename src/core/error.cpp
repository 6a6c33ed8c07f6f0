#include "core/error.h"

#include <utility>

namespace levin {

Error::Error(ErrorParts parts) : parts_(std::move(parts)), message_(parts_.what) {
  auto add = [this](const char* label, const std::string& text) {
    if (!text.empty()) message_ += std::string("\n  ") + label + text;
  };
  add("where:    ", parts_.where);
  add("expected: ", parts_.expected);
  add("found:    ", parts_.found);
  add("hint:     ", parts_.hint);
}

}  // namespace levin
