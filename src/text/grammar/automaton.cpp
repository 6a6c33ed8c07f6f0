#include "text/grammar/automaton.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace levin::text::grammar {
namespace {

std::size_t index(State state) {
  return static_cast<std::size_t>(state);
}

// The states from which `holds` follows, growing from those where it holds at once: a state joins
// when one of its ways leads to states that are in. `by_consuming` says whether consuming is a way.
template <typename Nodes>
std::vector<bool> reaching_end(const Nodes& nodes, bool by_consuming) {
  std::vector<std::vector<State>> before(nodes.size());
  std::vector<bool> in(nodes.size(), false);
  std::vector<State> fresh;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto state = static_cast<State>(i);
    if (by_consuming) {
      for (const auto& consume : nodes[i].consumes) before[index(consume.to)].push_back(state);
    }
    for (const State to : nodes[i].jumps) before[index(to)].push_back(state);
    for (const auto& call : nodes[i].calls) {
      before[index(call.start)].push_back(state);
      before[index(call.back)].push_back(state);
    }
    if (!nodes[i].ends_rule) continue;
    in[i] = true;
    fresh.push_back(state);
  }
  const auto joins = [&](const auto& node) {
    const auto is_in = [&](State state) { return in[index(state)]; };
    return (by_consuming && std::ranges::any_of(node.consumes, is_in,
                                                [](const auto& consume) { return consume.to; })) ||
           std::ranges::any_of(node.jumps, is_in) ||
           std::ranges::any_of(
               node.calls, [&](const auto& call) { return is_in(call.start) && is_in(call.back); });
  };
  while (!fresh.empty()) {
    const State state = fresh.back();
    fresh.pop_back();
    for (const State previous : before[index(state)]) {
      if (in[index(previous)] || !joins(nodes[index(previous)])) continue;
      in[index(previous)] = true;
      fresh.push_back(previous);
    }
  }
  return in;
}

// The starts of rules that can be called from `start` before anything is consumed.
template <typename Nodes>
std::vector<State> left_calls(const Nodes& nodes, const std::vector<bool>& nullable, State start,
                              std::vector<State>& seen_from) {
  std::vector<State> called;
  std::vector<State> open = {start};
  seen_from[index(start)] = start;
  const auto visit = [&](State state) {
    if (std::exchange(seen_from[index(state)], start) != start) open.push_back(state);
  };
  while (!open.empty()) {
    const auto& node = nodes[index(open.back())];
    open.pop_back();
    for (const State to : node.jumps) visit(to);
    for (const auto& call : node.calls) {
      called.push_back(call.start);
      if (nullable[index(call.start)]) visit(call.back);
    }
  }
  return called;
}

// A rule that calls itself before anything is consumed, if there is one; its position in `rules`.
template <typename Nodes>
std::size_t find_left_recursion(const Nodes& nodes, const std::vector<Rule>& rules) {
  const std::vector<bool> nullable = reaching_end(nodes, false);
  std::vector<State> seen_from(nodes.size(), -1);
  std::vector<int32_t> rule_at(nodes.size(), -1);
  for (std::size_t i = 0; i < rules.size(); ++i) {
    rule_at[index(rules[i].start)] = static_cast<int32_t>(i);
  }
  std::vector<std::vector<std::size_t>> callers(rules.size());
  std::vector<std::size_t> open_calls(rules.size(), 0);
  for (std::size_t i = 0; i < rules.size(); ++i) {
    for (const State start : left_calls(nodes, nullable, rules[i].start, seen_from)) {
      callers[index(rule_at[index(start)])].push_back(i);
      ++open_calls[i];
    }
  }
  // Take away rules that call nothing any more; what stays leads into a circle.
  std::vector<std::size_t> done;
  std::size_t left = rules.size();
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (open_calls[i] == 0) done.push_back(i);
  }
  while (!done.empty()) {
    const std::size_t rule = done.back();
    done.pop_back();
    --left;
    for (const std::size_t caller : callers[rule]) {
      if (--open_calls[caller] == 0) done.push_back(caller);
    }
  }
  if (left == 0) return rules.size();
  return static_cast<std::size_t>(
      std::ranges::find_if(open_calls, [](std::size_t open) { return open > 0; }) -
      open_calls.begin());
}

}  // namespace

Rule AutomatonBuilder::add_rule(std::string name) {
  const Rule rule = {add_state(), add_state()};
  nodes_[index(rule.end)].ends_rule = true;
  rules_.push_back(rule);
  rule_names_.push_back(std::move(name));
  return rule;
}

State AutomatonBuilder::add_state() {
  if (nodes_.size() >= kMaxStates) {
    throw Error({.what = "grammar is too large",
                 .where = place_,
                 .expected = fmt::format("at most {} states", kMaxStates),
                 .found = {},
                 .hint = "use smaller enums, lengths and repetition counts"});
  }
  nodes_.emplace_back();
  return static_cast<State>(nodes_.size() - 1);
}

void AutomatonBuilder::count_transition() {
  if (++transitions_ <= kMaxTransitions) return;
  throw Error({.what = "grammar is too large",
               .where = place_,
               .expected = fmt::format("at most {} transitions", kMaxTransitions),
               .found = {},
               .hint = "use smaller enums, lengths and repetition counts"});
}

void AutomatonBuilder::consume(State from, Symbol first, Symbol last, State to) {
  count_transition();
  nodes_[index(from)].consumes.push_back({first, last, to});
}

void AutomatonBuilder::jump(State from, State to) {
  count_transition();
  nodes_[index(from)].jumps.push_back(to);
}

void AutomatonBuilder::call(State from, const Rule& rule, State back) {
  count_transition();
  nodes_[index(from)].calls.push_back({rule.start, back});
}

void AutomatonBuilder::set_filler(State state, FillerText filler) {
  nodes_[index(state)].filler = static_cast<int32_t>(fillers_.size());
  fillers_.push_back(std::move(filler));
}

State AutomatonBuilder::literal(State from, std::string_view bytes) {
  for (const char c : bytes) {
    const State to = add_state();
    consume(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), to);
    from = to;
  }
  return from;
}

State AutomatonBuilder::after_call(State from, const Rule& rule) {
  const State back = add_state();
  call(from, rule, back);
  return back;
}

void AutomatonBuilder::marker(State from, std::string_view text, State to) {
  auto found = std::ranges::find(markers_, text);
  if (found == markers_.end()) {
    if (markers_.size() == kMaxMarkers) {
      throw Error({.what = "grammar has too many markers",
                   .where = {},
                   .expected = fmt::format("at most {}", kMaxMarkers),
                   .found = {},
                   .hint = {}});
    }
    markers_.emplace_back(text);
    found = markers_.end() - 1;
  }
  const auto symbol = static_cast<Symbol>(kByteSymbols + (found - markers_.begin()));
  consume(from, symbol, symbol, to);
}

Automaton::Automaton(const AutomatonBuilder& builder, const Rule& root)
    : start_(root.start), markers_(builder.markers_), fillers_(builder.fillers_) {
  const auto& nodes = builder.nodes_;
  const std::size_t recursive = find_left_recursion(nodes, builder.rules_);
  if (recursive < builder.rules_.size()) {
    throw Error({.what = "schema refers to itself without anything in between",
                 .where = builder.rule_names_[recursive],
                 .expected = {},
                 .found = {},
                 .hint = {}});
  }
  const std::vector<bool> live = reaching_end(nodes, true);
  if (!live[index(root.start)]) {
    throw Error({.what = "no finite document satisfies the schema",
                 .where = {},
                 .expected = {},
                 .found = {},
                 .hint = "a required property may contain itself, or bounds may contradict"});
  }
  set_classes(builder);
  const auto position = [](const auto& all) { return static_cast<uint32_t>(all.size()); };
  for (const auto& node : nodes) {
    nodes_.push_back({.transitions = position(transitions_),
                      .jumps = position(jumps_),
                      .calls = position(calls_),
                      .filler = node.filler,
                      .ends_rule = node.ends_rule,
                      .only_ends_rule = false});
    for (const auto& consume : node.consumes) {
      if (!live[index(consume.to)]) continue;
      transitions_.push_back({static_cast<uint16_t>(class_of(consume.first)),
                              static_cast<uint16_t>(class_of(consume.last)), consume.to});
    }
    for (const State to : node.jumps) {
      if (live[index(to)]) jumps_.push_back(to);
    }
    for (const auto& call : node.calls) {
      if (live[index(call.start)] && live[index(call.back)]) {
        calls_.push_back({call.start, call.back});
      }
    }
    nodes_.back().only_ends_rule =
        node.ends_rule && nodes_.back().transitions == position(transitions_) &&
        nodes_.back().jumps == position(jumps_) && nodes_.back().calls == position(calls_);
  }
  nodes_.push_back({.transitions = position(transitions_),
                    .jumps = position(jumps_),
                    .calls = position(calls_),
                    .filler = -1,
                    .ends_rule = false,
                    .only_ends_rule = false});
}

void Automaton::set_classes(const AutomatonBuilder& builder) {
  const std::size_t symbols = kByteSymbols + markers_.size();
  std::vector<bool> begins(symbols + 1, false);
  for (std::size_t marker = kByteSymbols; marker < symbols; ++marker) begins[marker] = true;
  for (const auto& node : builder.nodes_) {
    for (const auto& consume : node.consumes) {
      begins[consume.first] = true;
      begins[consume.last + std::size_t{1}] = true;
    }
  }
  class_of_.resize(symbols);
  for (std::size_t symbol = 0; symbol < symbols; ++symbol) {
    if (symbol > 0 && begins[symbol]) ++classes_;
    class_of_[symbol] = static_cast<uint16_t>(classes_);
  }
  ++classes_;
}

}  // namespace levin::text::grammar
