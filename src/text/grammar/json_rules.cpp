#include "text/grammar/json_rules.h"

#include <algorithm>
#include <map>

#include "text/grammar/decimal_range.h"
#include "text/utf8.h"

namespace levin::text::grammar {
namespace {

// Characters that need no escape.
const CodePointSet kUnescaped = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0xD7FF}, {0xE000, 0x10FFFF}};

void consume_each_of(AutomatonBuilder& builder, State from, std::string_view bytes, State to) {
  for (const char c : bytes) {
    builder.consume(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), to);
  }
}

}  // namespace

JsonRules::JsonRules(AutomatonBuilder& builder, Spelling spelling)
    : builder_(builder),
      spelling_(spelling),
      sets_(builder),
      white_space_(builder.add_rule("white space")),
      escape_(builder.add_rule("escape")),
      value_(builder.add_rule("any value")),
      object_(builder.add_rule("any object")),
      array_(builder.add_rule("any array")) {
  make_white_space();
  make_escape();
  make_value();
}

void JsonRules::make_white_space() {
  State state = white_space_.start;
  builder_.jump(state, white_space_.end);
  for (int i = 0; i < kMaxWhiteSpace; ++i) {
    const State next = builder_.add_state();
    consume_each_of(builder_, state, " \n\t\r", next);
    builder_.jump(next, white_space_.end);
    state = next;
  }
}

State JsonRules::hex(State from, std::string_view first_digits) {
  State state = builder_.add_state();
  consume_each_of(builder_, from, first_digits, state);
  return state;
}

// A backslash and what may follow; surrogates only in pairs.
void JsonRules::make_escape() {
  constexpr std::string_view kHex = "0123456789abcdefABCDEF";
  const State slash = builder_.literal(escape_.start, "\\");
  consume_each_of(builder_, slash, "\"\\/bfnrt", escape_.end);
  const State u = builder_.literal(slash, "u");
  const auto last_digits = [&](State from, int count) {
    for (int i = 1; i < count; ++i) from = hex(from, kHex);
    consume_each_of(builder_, from, kHex, escape_.end);
  };
  last_digits(hex(u, "0123456789abcefABCEF"), 3);
  const State d = hex(u, "dD");
  last_digits(hex(d, "01234567"), 2);
  const State high = hex(hex(hex(d, "89abAB"), kHex), kHex);
  last_digits(hex(hex(builder_.literal(high, "\\u"), "dD"), "cdefCDEF"), 2);
}

void JsonRules::make_value() {
  builder_.jump(string(value_.start), value_.end);
  builder_.jump(number(value_.start), value_.end);
  builder_.jump(one_of(value_.start, {"true", "false", "null"}), value_.end);
  builder_.call(value_.start, object_, value_.end);
  builder_.call(value_.start, array_, value_.end);

  const State open = white_space(builder_.literal(object_.start, "{"));
  const State key = builder_.add_state();
  builder_.jump(open, key);
  State pair = white_space(string(key));
  pair = white_space(builder_.literal(pair, ":"));
  pair = white_space(builder_.after_call(pair, value_));
  builder_.jump(white_space(builder_.literal(pair, ",")), key);
  consume_each_of(builder_, open, "}", object_.end);
  consume_each_of(builder_, pair, "}", object_.end);

  const State first = white_space(builder_.literal(array_.start, "["));
  const State item = builder_.add_state();
  builder_.jump(first, item);
  const State behind = white_space(builder_.after_call(item, value_));
  builder_.jump(white_space(builder_.literal(behind, ",")), item);
  consume_each_of(builder_, first, "]", array_.end);
  consume_each_of(builder_, behind, "]", array_.end);
}

State JsonRules::value(State from) {
  return builder_.after_call(from, value_);
}

State JsonRules::object(State from) {
  return builder_.after_call(from, object_);
}

State JsonRules::array(State from) {
  return builder_.after_call(from, array_);
}

State JsonRules::digits(State from, int at_most) {
  const State end = builder_.add_state();
  for (int i = 0; i < at_most; ++i) {
    const State next = builder_.add_state();
    builder_.consume(from, '0', '9', next);
    builder_.jump(next, end);
    from = next;
  }
  return end;
}

State JsonRules::integer(State from) {
  const State sign = builder_.add_state();
  builder_.jump(from, sign);
  builder_.consume(from, '-', '-', sign);
  const State first = builder_.add_state();
  builder_.consume(sign, '1', '9', first);
  const State end = builder_.add_state();
  builder_.consume(sign, '0', '0', end);
  builder_.jump(first, end);
  builder_.jump(digits(first, kMaxIntegerDigits - 1), end);
  return end;
}

State JsonRules::number(State from) {
  const State whole = integer(from);
  const State mantissa = builder_.add_state();
  builder_.jump(whole, mantissa);
  builder_.jump(digits(builder_.literal(whole, "."), 17), mantissa);
  const State e = builder_.add_state();
  consume_each_of(builder_, mantissa, "eE", e);
  const State sign = builder_.add_state();
  builder_.jump(e, sign);
  consume_each_of(builder_, e, "+-", sign);
  const State end = builder_.add_state();
  builder_.jump(mantissa, end);
  builder_.jump(digits(sign, 2), end);
  return end;
}

State JsonRules::string(State from, int32_t min_length, int32_t max_length) {
  const State end = builder_.add_state();
  State state = builder_.literal(from, "\"");
  const auto character = [&](State to) {
    sets_.consume(state, kUnescaped, spelling_, to);
    builder_.call(state, escape_, to);
  };
  const bool limited = max_length != kUnlimited;
  const int32_t steps = limited ? max_length : min_length;
  for (int32_t length = 0;; ++length) {
    builder_.set_filler(state, {.kind = filler_of(spelling_),
                                .characters = limited ? max_length - length : kUnlimited});
    if (length >= min_length) builder_.consume(state, '"', '"', end);
    if (length >= steps) break;
    const State next = builder_.add_state();
    character(next);
    state = next;
  }
  if (!limited) character(state);
  return end;
}

State JsonRules::other_key(State from, const std::vector<std::string>& names) {
  // A trie over the characters of the names: where a key leaves it, it is another one.
  const State end = builder_.add_state();
  const State rest = builder_.add_state();
  sets_.consume(rest, kUnescaped, spelling_, rest);
  builder_.consume(rest, '"', '"', end);
  struct Node {
    std::map<char32_t, std::size_t> children;
    bool is_name = false;
  };
  std::vector<Node> trie(1);
  for (const std::string& name : names) {
    std::size_t node = 0;
    for_each_character(name, [&](char32_t c, std::string_view) {
      const auto [child, added] = trie[node].children.try_emplace(c, trie.size());
      node = child->second;
      if (added) trie.emplace_back();
    });
    trie[node].is_name = true;
  }
  std::vector<State> states;
  for (std::size_t i = 0; i < trie.size(); ++i) states.push_back(builder_.add_state());
  for (std::size_t i = 0; i < trie.size(); ++i) {
    std::vector<CodePointRange> taken;
    for (const auto& [c, child] : trie[i].children) {
      taken.push_back({c, c});
      sets_.consume(states[i], intersect(kUnescaped, {{c, c}}), spelling_, states[child]);
    }
    sets_.consume(states[i], intersect(kUnescaped, complement(to_set(std::move(taken)))), spelling_,
                  rest);
    if (!trie[i].is_name) builder_.consume(states[i], '"', '"', end);
  }
  builder_.consume(from, '"', '"', states[0]);
  return end;
}

State JsonRules::one_of(State from, std::vector<std::string> texts) {
  std::ranges::sort(texts);
  const State end = builder_.add_state();
  // The states along the previous text; texts that begin alike share theirs.
  std::vector<State> path = {builder_.add_state()};
  builder_.jump(from, path[0]);
  std::string_view previous;
  for (const std::string& text : texts) {
    std::size_t shared = 0;
    while (shared < text.size() && shared < previous.size() && text[shared] == previous[shared]) {
      ++shared;
    }
    path.resize(shared + 1);
    for (std::size_t i = shared; i < text.size(); ++i) {
      path.push_back(builder_.literal(path.back(), std::string_view(text).substr(i, 1)));
    }
    builder_.jump(path.back(), end);
    previous = text;
  }
  return end;
}

}  // namespace levin::text::grammar
