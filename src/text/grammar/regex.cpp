#include "text/grammar/regex.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "text/utf8.h"

namespace levin::text::grammar {
namespace {

constexpr int kNoLimit = -1;

// A set of characters, a sequence, a choice, or a repetition of one part.
struct Expression {
  enum class Kind : uint8_t { kSet, kSequence, kChoice, kRepeat };
  Kind kind = Kind::kSequence;
  CodePointSet set = {};
  std::vector<Expression> parts = {};
  int least = 1;
  int most = 1;
};

// An alternative of the whole pattern.
struct Alternative {
  Expression expression;
  bool at_begin = false;
  bool at_end = false;
};

const CodePointSet kDigits = {{'0', '9'}};
const CodePointSet kWordCharacters = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodePointSet kSpaces = {
    {0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
    {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CodePointSet kLineEnds = {{0x0A, 0x0A}, {0x0D, 0x0D}, {0x2028, 0x2029}};

class Parser {
 public:
  Parser(std::string_view pattern, const std::string& where) : where_(where) {
    if (find_invalid_utf8(pattern)) fail("text that is not UTF-8");
    for_each_character(pattern, [&](char32_t c, std::string_view) { text_.push_back(c); });
  }

  std::vector<Alternative> parse() {
    std::vector<Alternative> alternatives;
    do {
      Alternative alternative;
      alternative.at_begin = take(U'^');
      alternative.expression = parse_sequence();
      alternative.at_end = take(U'$');
      alternatives.push_back(std::move(alternative));
    } while (take(U'|'));
    if (!at_end()) fail(peek() == ')' ? "a ) without its (" : "an anchor inside the pattern");
    return alternatives;
  }

 private:
  [[noreturn]] void fail(std::string_view found) const {
    throw Error({.what = "pattern uses what constrained decoding does not support",
                 .where = where_,
                 .expected = {},
                 .found = std::string(found),
                 .hint = {}});
  }

  bool at_end() const { return at_ == text_.size(); }
  char32_t peek() const { return at_end() ? 0 : text_[at_]; }
  bool take(char32_t c) {
    if (at_end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  char32_t next(std::string_view missing) {
    if (at_end()) fail(missing);
    return text_[at_++];
  }

  Expression parse_choice() {
    Expression choice{.kind = Expression::Kind::kChoice};
    do {
      choice.parts.push_back(parse_sequence());
    } while (take(U'|'));
    return choice;
  }

  Expression parse_sequence() {
    Expression sequence{.kind = Expression::Kind::kSequence};
    while (!at_end() && peek() != '|' && peek() != ')' && peek() != '^' && peek() != '$') {
      sequence.parts.push_back(parse_repeat());
    }
    return sequence;
  }

  Expression parse_repeat() {
    Expression atom = parse_atom();
    std::optional<std::pair<int, int>> counts;
    if (take(U'*')) {
      counts = {0, kNoLimit};
    } else if (take(U'+')) {
      counts = {1, kNoLimit};
    } else if (take(U'?')) {
      counts = {0, 1};
    } else if (peek() == '{') {
      counts = parse_counts();
    }
    if (!counts) return atom;
    take(U'?');  // lazy: the same texts match
    if (!at_end() && (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{')) {
      fail("a quantifier behind a quantifier");
    }
    Expression repeat{.kind = Expression::Kind::kRepeat};
    repeat.parts.push_back(std::move(atom));
    std::tie(repeat.least, repeat.most) = *counts;
    return repeat;
  }

  std::pair<int, int> parse_counts() {
    ++at_;
    const int least = parse_count();
    int most = least;
    if (take(U',')) most = peek() == '}' ? kNoLimit : parse_count();
    if (!take(U'}')) fail("a { that is no repetition count");
    if (most != kNoLimit && most < least) fail("repetition counts out of order");
    return {least, most};
  }

  int parse_count() {
    int count = 0;
    if (at_end() || peek() < '0' || peek() > '9') fail("a { that is no repetition count");
    while (!at_end() && peek() >= '0' && peek() <= '9') {
      count = count * 10 + static_cast<int>(text_[at_++] - '0');
      if (count > kMaxRepeats) fail(fmt::format("a repetition count above {}", kMaxRepeats));
    }
    return count;
  }

  Expression parse_atom() {
    const char32_t c = next("the end");
    switch (c) {
      case '(':
        return parse_group();
      case '[':
        return set_of(parse_class());
      case '.':
        return set_of(complement(kLineEnds));
      case '\\':
        return set_of(parse_escape(false));
      case '*':
      case '+':
      case '?':
        fail("a quantifier of nothing");
      default:
        return set_of({{c, c}});
    }
  }

  static Expression set_of(CodePointSet set) {
    return {.kind = Expression::Kind::kSet, .set = std::move(set)};
  }

  Expression parse_group() {
    if (take(U'?') && !take(U':')) fail("look-around or a named group: (?");
    if (++depth_ > kMaxGroups) fail(fmt::format("more than {} nested groups", kMaxGroups));
    Expression group = parse_choice();
    --depth_;
    if (peek() == '^' || peek() == '$') fail("an anchor inside the pattern");
    if (!take(U')')) fail("a ( without its )");
    return group;
  }

  CodePointSet parse_class() {
    const bool negated = take(U'^');
    std::vector<CodePointRange> ranges;
    while (!take(U']')) {
      const CodePointSet first = parse_class_item();
      const bool range =
          !at_end() && peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']';
      if (!range) {
        ranges.insert(ranges.end(), first.begin(), first.end());
        continue;
      }
      ++at_;
      const CodePointSet last = parse_class_item();
      const auto single = [](const CodePointSet& set) {
        return set.size() == 1 && set[0].first == set[0].last;
      };
      if (!single(first) || !single(last)) fail("a range between classes");
      if (first[0].first > last[0].first) fail("a range out of order");
      ranges.push_back({first[0].first, last[0].first});
    }
    const CodePointSet set = to_set(std::move(ranges));
    return negated ? complement(set) : set;
  }

  CodePointSet parse_class_item() {
    const char32_t c = next("a [ without its ]");
    if (c == '\\') return parse_escape(true);
    return {{c, c}};
  }

  CodePointSet parse_escape(bool in_class) {
    const char32_t c = next("a \\ at the end");
    const auto one = [](char32_t value) { return CodePointSet{{value, value}}; };
    switch (c) {
      case 'd':
        return kDigits;
      case 'D':
        return complement(kDigits);
      case 'w':
        return kWordCharacters;
      case 'W':
        return complement(kWordCharacters);
      case 's':
        return kSpaces;
      case 'S':
        return complement(kSpaces);
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case '0':
        return one(0);
      case 'x':
        return one(parse_hex(2));
      case 'u':
        return one(parse_hex(4));
      case 'b':
        if (in_class) return one('\b');
        fail("\\b");
      default:
        if ((c >= '1' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
          std::string name = "\\";
          append_utf8(name, c);
          fail(name);
        }
        return one(c);
    }
  }

  char32_t parse_hex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char32_t c = next("an unfinished escape");
      value *= 16;
      if (c >= '0' && c <= '9') {
        value += c - '0';
      } else if (c >= 'a' && c <= 'f') {
        value += c - 'a' + 10;
      } else if (c >= 'A' && c <= 'F') {
        value += c - 'A' + 10;
      } else {
        fail("an escape that is not hexadecimal");
      }
    }
    return value;
  }

  const std::string& where_;
  std::u32string text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

class Compiler {
 public:
  Compiler(AutomatonBuilder& builder, CharacterSets& sets, Spelling spelling)
      : builder_(builder), sets_(sets), spelling_(spelling) {}

  State consume(State from, const Expression& expression) {
    switch (expression.kind) {
      case Expression::Kind::kSet: {
        const State to = builder_.add_state();
        sets_.consume(from, expression.set, spelling_, to);
        return to;
      }
      case Expression::Kind::kSequence:
        for (const Expression& part : expression.parts) from = consume(from, part);
        return from;
      case Expression::Kind::kChoice: {
        const State end = builder_.add_state();
        for (const Expression& part : expression.parts) builder_.jump(consume(from, part), end);
        return end;
      }
      case Expression::Kind::kRepeat:
        return consume_repeat(from, expression);
    }
    return from;
  }

  // Any characters at all.
  State consume_anything(State from) {
    const State loop = builder_.add_state();
    builder_.jump(from, loop);
    sets_.consume(loop, complement({}), spelling_, loop);
    builder_.set_filler(loop, {.kind = filler_of(spelling_)});
    return loop;
  }

 private:
  State consume_repeat(State from, const Expression& repeat) {
    const Expression& part = repeat.parts.front();
    for (int i = 0; i < repeat.least; ++i) from = consume(from, part);
    const State end = builder_.add_state();
    if (repeat.most == kNoLimit) {
      const State loop = builder_.add_state();
      builder_.jump(from, loop);
      builder_.jump(consume(loop, part), loop);
      builder_.jump(loop, end);
      return end;
    }
    builder_.jump(from, end);
    for (int i = repeat.least; i < repeat.most; ++i) {
      from = consume(from, part);
      builder_.jump(from, end);
    }
    return end;
  }

  AutomatonBuilder& builder_;
  CharacterSets& sets_;
  Spelling spelling_;
};

}  // namespace

State consume_pattern(AutomatonBuilder& builder, CharacterSets& sets, State from,
                      std::string_view pattern, Spelling spelling, const std::string& where) {
  const std::vector<Alternative> alternatives = Parser(pattern, where).parse();
  Compiler compiler(builder, sets, spelling);
  const State end = builder.add_state();
  for (const Alternative& alternative : alternatives) {
    State state = builder.add_state();
    builder.jump(from, state);
    if (!alternative.at_begin) state = compiler.consume_anything(state);
    state = compiler.consume(state, alternative.expression);
    if (!alternative.at_end) state = compiler.consume_anything(state);
    builder.jump(state, end);
  }
  return end;
}

}  // namespace levin::text::grammar
