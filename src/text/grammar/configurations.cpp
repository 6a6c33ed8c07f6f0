#include "text/grammar/configurations.h"

#include <algorithm>
#include <utility>

namespace levin::text::grammar {

Configurations::Configurations(const Automaton& automaton) : automaton_(&automaton) {
  open_.push_back(push(automaton.start(), kBottom));
  close();
}

int32_t Configurations::push(State state, int32_t below) {
  const uint64_t key =
      (static_cast<uint64_t>(static_cast<uint32_t>(state)) << 32) | static_cast<uint32_t>(below);
  const auto [found, added] = stack_ids_.try_emplace(key, static_cast<int32_t>(stacks_.size()));
  if (added) {
    stacks_.push_back({state, below});
    seen_at_.push_back(0);
  }
  return found->second;
}

int32_t Configurations::step(int32_t configuration, int symbol_class) {
  const auto index = static_cast<std::size_t>(configuration);
  const auto classes = static_cast<std::size_t>(automaton_->classes());
  if (configurations_[index].table < 0) {
    configurations_[index].table = static_cast<int32_t>(tables_.size() / classes);
    tables_.resize(tables_.size() + classes, kUnknown);
  }
  const std::size_t entry = static_cast<std::size_t>(configurations_[index].table) * classes +
                            static_cast<std::size_t>(symbol_class);
  if (tables_[entry] != kUnknown) return tables_[entry];
  open_.clear();
  for (std::size_t i = 0; i < stack_count(configuration); ++i) {
    const Stack top = stack(stacks_of(configuration)[i]);
    for (const auto& transition : automaton_->transitions(top.state)) {
      if (symbol_class < transition.first || symbol_class > transition.last) continue;
      open_.push_back(push(transition.to, top.below));
    }
  }
  const int32_t next = close();
  tables_[entry] = next;
  return next;
}

int32_t Configurations::close() {
  ++closing_;
  found_.clear();
  bool complete = false;
  // The first stacks first: what is dropped beyond kMaxStacks does not depend on chance.
  std::ranges::reverse(open_);
  const auto visit = [&](int32_t id) {
    auto& seen_at = seen_at_[static_cast<std::size_t>(id)];
    if (std::exchange(seen_at, closing_) != closing_) open_.push_back(id);
  };
  std::vector<int32_t> first = std::exchange(open_, {});
  for (const int32_t id : first) visit(id);
  while (!open_.empty() && found_.size() < kMaxStacks) {
    const int32_t id = open_.back();
    open_.pop_back();
    const Stack top = stack(id);
    if (!automaton_->transitions(top.state).empty()) found_.push_back(id);
    for (const State to : automaton_->jumps(top.state)) visit(push(to, top.below));
    for (const auto& call : automaton_->calls(top.state)) {
      // A call that is the last thing its rule does comes back to where the rule would.
      const bool last = automaton_->only_ends_rule(call.back);
      visit(push(call.start, last ? top.below : push(call.back, top.below)));
    }
    if (!automaton_->ends_rule(top.state)) continue;
    if (top.below == kBottom) {
      complete = true;
    } else {
      visit(top.below);
    }
  }
  open_.clear();
  if (found_.empty() && !complete) return kDead;
  std::ranges::sort(found_);
  return intern(complete);
}

int32_t Configurations::intern(bool complete) {
  uint64_t hash = complete ? 0x9E3779B97F4A7C15u : 0;
  for (const int32_t id : found_) {
    hash = (hash ^ static_cast<uint32_t>(id)) * 0xBF58476D1CE4E5B9u;
    hash ^= hash >> 29;
  }
  const auto [begin, end] = ids_.equal_range(hash);
  for (auto at_hash = begin; at_hash != end; ++at_hash) {
    const int32_t id = at_hash->second;
    if (at(id).complete == complete && std::ranges::equal(stacks_of(id), found_)) return id;
  }
  const auto id = static_cast<int32_t>(configurations_.size());
  configurations_.push_back({.begin = members_.size(),
                             .count = static_cast<uint32_t>(found_.size()),
                             .complete = complete,
                             .table = -1});
  members_.insert(members_.end(), found_.begin(), found_.end());
  ids_.emplace(hash, id);
  return id;
}

int32_t Configurations::alone(int32_t configuration, std::size_t position) {
  open_ = {stacks_of(configuration)[position]};
  return close();
}

int32_t Configurations::without(int32_t configuration, std::span<const int32_t> others) {
  found_.assign(stacks_of(configuration).begin(), stacks_of(configuration).end());
  for (const int32_t other : others) {
    std::erase_if(found_,
                  [&](int32_t id) { return std::ranges::binary_search(stacks_of(other), id); });
  }
  return found_.empty() ? kDead : intern(false);
}

std::size_t Configurations::bytes() const {
  constexpr std::size_t kMapEntry = 48;
  return stacks_.size() * (sizeof(Stack) + sizeof(uint32_t) + kMapEntry) +
         configurations_.size() * (sizeof(Configuration) + kMapEntry) +
         (members_.size() + tables_.size()) * sizeof(int32_t);
}

void Configurations::clear() {
  stacks_.clear();
  stack_ids_.clear();
  configurations_.clear();
  members_.clear();
  ids_.clear();
  tables_.clear();
  seen_at_.clear();
  closing_ = 0;
}

void Configurations::keep(std::span<int32_t> configurations) {
  Configurations old = std::move(*this);
  automaton_ = old.automaton_;
  clear();
  open_.push_back(push(automaton_->start(), kBottom));
  close();  // the start keeps its number
  std::vector<int32_t> new_stack(old.stacks_.size(), kBottom);
  std::vector<int32_t> chain;
  // Stacks stand behind those they rest on.
  const auto move_stack = [&](int32_t id) {
    chain.clear();
    for (; id != kBottom && new_stack[static_cast<std::size_t>(id)] == kBottom;
         id = old.stack(id).below) {
      chain.push_back(id);
    }
    int32_t below = id == kBottom ? kBottom : new_stack[static_cast<std::size_t>(id)];
    for (; !chain.empty(); chain.pop_back()) {
      below = push(old.stack(chain.back()).state, below);
      new_stack[static_cast<std::size_t>(chain.back())] = below;
    }
    return below;
  };
  std::unordered_map<int32_t, int32_t> moved;
  for (int32_t& configuration : configurations) {
    if (configuration == kDead) continue;
    const auto [found, added] = moved.try_emplace(configuration, kDead);
    if (added) {
      found_.clear();
      for (const int32_t id : old.stacks_of(configuration)) found_.push_back(move_stack(id));
      std::ranges::sort(found_);
      found->second = intern(old.is_complete(configuration));
    }
    configuration = found->second;
  }
}

}  // namespace levin::text::grammar
