// The variable `loop` of a for loop, and the walk over its items behind it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/jinja/value.h"

namespace levin::text::jinja {

class Loop {
 public:
  using Condition = std::function<bool(const Value&)>;

  // `condition` is the loop's `if`, asked only when the loop comes to an item, because the body may
  // change what it depends on; null to take every item. `iterator` may be shared with the template,
  // which then sees what the loop has left.
  Loop(IteratorPtr iterator, Condition condition)
      : iterator_(std::move(iterator)), condition_(std::move(condition)) {}

  // Moves to the next item; false at the end.
  bool advance();
  const Value& current() const { return current_; }
  int64_t index0() const { return index0_; }

  // loop.index, loop.last, ... and the methods loop.cycle and loop.changed.
  Value attribute(const std::string& name);
  // Whether the arguments differ from those of the last call.
  bool changed(Value arguments, Budget& budget);

 private:
  std::optional<Value> pull();
  const std::optional<Value>& peek();
  int64_t length();

  IteratorPtr iterator_;
  Condition condition_;
  std::vector<Value> ahead_;  // pulled already, next one last
  std::optional<Value> peeked_;
  std::optional<int64_t> length_;
  Value previous_;
  Value current_;
  int64_t index0_ = -1;
  std::optional<Value> last_arguments_;
};

}  // namespace levin::text::jinja
