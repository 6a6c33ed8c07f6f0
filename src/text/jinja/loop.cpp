#include "text/jinja/loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "text/jinja/operators.h"

namespace levin::text::jinja {

// The next item that passes the condition, from the iterator itself.
std::optional<Value> Loop::pull() {
  if (!ahead_.empty()) {
    Value value = std::move(ahead_.back());
    ahead_.pop_back();
    return value;
  }
  while (iterator_->next < iterator_->items.size()) {
    Value value = iterator_->items[iterator_->next++];
    if (!condition_ || condition_(value)) return value;
  }
  return std::nullopt;
}

const std::optional<Value>& Loop::peek() {
  if (!peeked_) peeked_ = pull();
  return peeked_;
}

bool Loop::advance() {
  std::optional<Value> next = peeked_ ? std::exchange(peeked_, std::nullopt) : pull();
  if (!next) return false;
  previous_ = std::exchange(current_, std::move(*next));
  ++index0_;
  return true;
}

int64_t Loop::length() {
  if (length_) return *length_;
  std::vector<Value> rest;
  while (auto value = pull()) rest.push_back(std::move(*value));
  std::reverse(rest.begin(), rest.end());
  ahead_ = std::move(rest);
  length_ = index0_ + 1 + (peeked_ ? 1 : 0) + static_cast<int64_t>(ahead_.size());
  return *length_;
}

bool Loop::changed(Value arguments, Budget& budget) {
  if (last_arguments_ && equal(*last_arguments_, arguments, budget)) return false;
  last_arguments_ = std::move(arguments);
  return true;
}

Value Loop::attribute(const std::string& name) {
  if (name == "index") return index0_ + 1;
  if (name == "index0") return index0_;
  if (name == "first") return index0_ == 0;
  if (name == "last") return !peek().has_value();
  if (name == "length") return length();
  if (name == "revindex") return length() - index0_;
  if (name == "revindex0") return length() - index0_ - 1;
  if (name == "depth") return int64_t{1};
  if (name == "depth0") return int64_t{0};
  if (name == "previtem") return index0_ == 0 ? undefined("there is no previous item") : previous_;
  if (name == "nextitem") return peek() ? *peek() : undefined("there is no next item");
  throw Failure(fmt::format("loop.{} is not known", name));
}

}  // namespace levin::text::jinja
