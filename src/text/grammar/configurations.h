// The situations an automaton can be in, numbered as they come up. A situation is a set of stacks:
// each a state that consumes something, and the states that rules will come back to. Stacks share
// what they have in common, and equal situations have the same number, so that following a symbol a
// second time is one look-up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "text/grammar/automaton.h"

namespace levin::text::grammar {

class Configurations {
 public:
  static constexpr int32_t kDead = -1;
  // An ambiguous grammar can have ever more stacks. Those beyond are dropped, which loses some
  // valid documents and lets no invalid one through.
  static constexpr std::size_t kMaxStacks = 1024;

  // `automaton` must outlive this.
  explicit Configurations(const Automaton& automaton);

  int32_t start() const { return 0; }
  // The configuration behind a symbol of this class, or kDead.
  int32_t step(int32_t configuration, int symbol_class);
  bool is_complete(int32_t configuration) const { return at(configuration).complete; }

  std::size_t stack_count(int32_t configuration) const { return stacks_of(configuration).size(); }
  State state(int32_t configuration, std::size_t position) const {
    return stack(stacks_of(configuration)[position]).state;
  }
  // The configuration of one stack and those that follow from it without consuming anything.
  int32_t alone(int32_t configuration, std::size_t position);
  // The stacks of a configuration that none of `others` has; kDead when there are none.
  int32_t without(int32_t configuration, std::span<const int32_t> others);

  // Rough number of bytes in use.
  std::size_t bytes() const;
  // Forgets all but these configurations and gives them new numbers. kDead stays what it is.
  void keep(std::span<int32_t> configurations);

 private:
  static constexpr int32_t kBottom = -1;  // nothing to come back to: the end of the root
  static constexpr int32_t kUnknown = -2;
  struct Stack {
    State state;
    int32_t below;
  };
  struct Configuration {
    std::size_t begin;  // of its stacks in members_
    uint32_t count;
    bool complete;
    int32_t table;  // index into tables_, in rows; -1 before the first step
  };

  const Stack& stack(int32_t id) const { return stacks_[static_cast<std::size_t>(id)]; }
  const Configuration& at(int32_t id) const {
    return configurations_[static_cast<std::size_t>(id)];
  }
  std::span<const int32_t> stacks_of(int32_t configuration) const {
    return std::span(members_).subspan(at(configuration).begin, at(configuration).count);
  }
  int32_t push(State state, int32_t below);
  // Collects the stacks that consume something, reachable from `open_`, as a configuration.
  int32_t close();
  int32_t intern(bool complete);
  void clear();

  const Automaton* automaton_;
  std::vector<Stack> stacks_;
  std::unordered_map<uint64_t, int32_t> stack_ids_;
  std::vector<Configuration> configurations_;
  std::vector<int32_t> members_;
  std::unordered_multimap<uint64_t, int32_t> ids_;  // by hash
  std::vector<int32_t> tables_;                     // rows of classes() entries

  std::vector<int32_t> open_;      // work space of step()
  std::vector<int32_t> found_;     // stacks of the configuration in the making
  std::vector<uint32_t> seen_at_;  // by stack: the last closing that met it
  uint32_t closing_ = 0;
};

}  // namespace levin::text::grammar
