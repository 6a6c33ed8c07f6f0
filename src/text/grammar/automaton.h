// Grammars as pushdown automata over bytes. States belong to rules; a state leads on by consuming a
// symbol, by a jump, or by a call of a rule, which comes back to another state of the caller. The
// automaton is not deterministic; matcher.h follows all its ways at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace levin::text::grammar {

using State = int32_t;
// 0..255 are bytes; those above are markers: special tokens like </think>, which are consumed
// whole.
using Symbol = uint16_t;
inline constexpr int kByteSymbols = 256;
inline constexpr int kMaxMarkers = 16;

// Kinds of text that can be consumed at some states without leaving it, whatever it says. Most of
// a vocabulary is such text, so that whole classes of tokens are allowed at once.
enum class Filler : uint8_t {
  kNone,
  kJsonString,  // characters but control characters, '"' and '\'
  kJsonInTags,  // and '<'
  kPlainText,   // characters but '<' and control characters other than \t, \n and \r
  kAnyBytes     // any bytes but '<'
};
inline constexpr int kFillers = 5;
inline constexpr int32_t kUnlimited = -1;

// What may be consumed at a state: up to `characters` characters of the kind, unless the first byte
// is one of `except`.
struct FillerText {
  Filler kind = Filler::kNone;
  int32_t characters = kUnlimited;
  std::string except = {};
};

struct Rule {
  State start;
  State end;
};

// Bounds on what a schema can ask for. With them the largest automaton takes some 100 MB while it
// is built.
inline constexpr std::size_t kMaxStates = 1 << 18;
inline constexpr std::size_t kMaxTransitions = 1 << 20;

class AutomatonBuilder {
 public:
  // Where what is added from now on comes from, for errors.
  void set_place(std::string place) { place_ = std::move(place); }

  // `name` is for errors: where in the schema the rule comes from.
  Rule add_rule(std::string name);
  State add_state();

  void consume(State from, Symbol first, Symbol last, State to);
  void jump(State from, State to);
  void call(State from, const Rule& rule, State back);
  void set_filler(State state, FillerText filler);

  // Consumes `bytes` one by one; the state behind them.
  State literal(State from, std::string_view bytes);
  State after_call(State from, const Rule& rule);
  // The marker with this text, which can also be spelled out.
  void marker(State from, std::string_view text, State to);

 private:
  friend class Automaton;
  struct Consume {
    Symbol first;
    Symbol last;
    State to;
  };
  struct Call {
    State start;
    State back;
  };
  struct Node {
    std::vector<Consume> consumes;
    std::vector<State> jumps;
    std::vector<Call> calls;
    bool ends_rule = false;
    int32_t filler = -1;
  };
  void count_transition();

  std::vector<Node> nodes_;
  std::vector<Rule> rules_;
  std::vector<std::string> rule_names_;
  std::vector<std::string> markers_;
  std::vector<FillerText> fillers_;
  std::size_t transitions_ = 0;
  std::string place_;
};

// Frozen. Every state in it can reach the end of its rule, so that whatever has been consumed can
// be completed.
class Automaton {
 public:
  // Throws Error when a rule calls itself without consuming anything, or when no finite text
  // completes `root`.
  Automaton(const AutomatonBuilder& builder, const Rule& root);

  // Symbols that no state tells apart form a class; transitions are by class.
  struct Transition {
    uint16_t first;
    uint16_t last;
    State to;
  };
  struct Call {
    State start;
    State back;
  };

  State start() const { return start_; }
  int classes() const { return classes_; }
  int class_of(int symbol) const { return class_of_[static_cast<std::size_t>(symbol)]; }
  std::span<const std::string> markers() const { return markers_; }
  std::size_t states() const { return nodes_.size() - 1; }

  std::span<const Transition> transitions(State state) const {
    return between(transitions_, node(state).transitions, node(state + 1).transitions);
  }
  std::span<const State> jumps(State state) const {
    return between(jumps_, node(state).jumps, node(state + 1).jumps);
  }
  std::span<const Call> calls(State state) const {
    return between(calls_, node(state).calls, node(state + 1).calls);
  }
  bool ends_rule(State state) const { return node(state).ends_rule; }
  // Ends its rule and leads nowhere else: calls need not come back to it.
  bool only_ends_rule(State state) const { return node(state).only_ends_rule; }
  // Null when there is none.
  const FillerText* filler(State state) const {
    const int32_t index = node(state).filler;
    return index < 0 ? nullptr : &fillers_[static_cast<std::size_t>(index)];
  }

 private:
  struct Node {
    uint32_t transitions;
    uint32_t jumps;
    uint32_t calls;
    int32_t filler;
    bool ends_rule;
    bool only_ends_rule;
  };
  const Node& node(State state) const { return nodes_[static_cast<std::size_t>(state)]; }
  template <typename T>
  static std::span<const T> between(const std::vector<T>& all, uint32_t begin, uint32_t end) {
    return std::span(all).subspan(begin, end - begin);
  }
  void set_classes(const AutomatonBuilder& builder);

  State start_;
  int classes_ = 0;
  std::vector<uint16_t> class_of_;  // [kByteSymbols + markers]
  std::vector<std::string> markers_;
  std::vector<Node> nodes_;  // and one behind the last
  std::vector<Transition> transitions_;
  std::vector<State> jumps_;
  std::vector<Call> calls_;
  std::vector<FillerText> fillers_;
};

}  // namespace levin::text::grammar
