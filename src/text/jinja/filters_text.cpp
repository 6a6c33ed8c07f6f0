// Filters that make text.
#include <algorithm>
#include <string>

#include "text/jinja/builtins.h"
#include "text/jinja/format.h"
#include "text/jinja/operators.h"
#include "text/jinja/text_algorithms.h"
#include "text/unicode.h"

namespace levin::text::jinja {
namespace {

Value filter_string(const Call& call) {
  return call.input.text() != nullptr ? call.input : call.result(call.input_text());
}

Value filter_trim(const Call& call) {
  const std::string text = call.input_text();
  if (call.optional(0) == nullptr) return call.result(std::string(strip(text, std::nullopt)));
  return call.result(std::string(strip(text, call.text(0, ""))));
}

Value filter_upper(const Call& call) {
  return call.result(to_upper(call.input_text()));
}

Value filter_lower(const Call& call) {
  return call.result(to_lower(call.input_text()));
}

Value filter_title(const Call& call) {
  return call.result(title_words(call.input_text()));
}

Value filter_capitalize(const Call& call) {
  return call.result(capitalize(call.input_text()));
}

Value filter_replace(const Call& call) {
  const std::string from = to_text(call.required(0), call.budget);
  const std::string to = to_text(call.required(1), call.budget);
  const int64_t count = call.optional(2) == nullptr ? -1 : call.integer(2, -1);
  return replace(call.input_text(), from, to, count, call.budget);
}

// As Jinja does it: a line end is added first, so that a trailing one is kept as an empty line.
Value filter_indent(const Call& call) {
  require_defined(call.input);
  if (call.input.text() == nullptr) throw Failure("indent needs a string");
  const Value* width = call.given(0);
  const bool width_is_text = width != nullptr && width->text() != nullptr;
  const std::string indent =
      width_is_text
          ? *width->text()
          : *arithmetic(ArithmeticOp::kMultiply, " ", call.integer(0, 4), call.budget).text();
  const bool first = call.flag(1, false);
  const bool blank = call.flag(2, false);
  const std::string text = *call.input.text() + "\n";
  std::string out = first ? indent : "";
  bool is_first = true;
  for (const std::string_view line : split_lines(text)) {
    if (!is_first) {
      out += '\n';
      if (blank || !line.empty()) out += indent;
    }
    call.budget.produce(indent.size() + line.size());
    out += line;
    is_first = false;
  }
  return out;
}

Value filter_join(const Call& call) {
  const std::string separator = call.given(0) ? to_text(*call.given(0), call.budget) : "";
  const Value* attribute_path = call.optional(1);
  std::string out;
  bool first = true;
  for (const Value& element : call.input_elements()) {
    call.budget.produce(separator.size());
    if (!first) out += separator;
    first = false;
    const Value value =
        attribute_path == nullptr ? element : by_path(element, *attribute_path, call.budget);
    out += to_text(value, call.budget);
  }
  return out;
}

constexpr int64_t kMaxJsonIndent = 100;

// Python's rules for the separators: a comma without space at the end of a line.
JsonStyle json_style(const Call& call) {
  JsonStyle style;
  style.ensure_ascii = call.flag(0, false);
  if (const Value* indent = call.optional(1)) {
    require_defined(*indent);
    if (indent->text() != nullptr) {
      style.indent = *indent->text();
    } else {
      const int64_t width = std::clamp<int64_t>(call.integer(1, 0), 0, kMaxJsonIndent + 1);
      if (width > kMaxJsonIndent) throw Failure("the indent of tojson is too wide");
      style.indent.emplace(static_cast<std::size_t>(width), ' ');
    }
    style.item_separator = ",";
  }
  if (const Value* separators = call.optional(2)) {
    const auto pair = elements(*separators, call.budget);
    if (pair.size() != 2 || pair[0].text() == nullptr || pair[1].text() == nullptr) {
      throw Failure("tojson: separators must be a pair of strings");
    }
    style.item_separator = *pair[0].text();
    style.key_separator = *pair[1].text();
  }
  style.sort_keys = call.flag(3, false);
  return style;
}

// transformers' tojson, which unlike Jinja's escapes nothing for HTML.
Value filter_tojson(const Call& call) {
  return to_json(call.input, json_style(call), call.budget);
}

}  // namespace

Table text_filters() {
  static const Builtin kTable[] = {
      {"capitalize", {}, filter_capitalize},
      {"indent", {"width", "first", "blank"}, filter_indent},
      {"join", {"d", "attribute"}, filter_join},
      {"lower", {}, filter_lower},
      {"replace", {"old", "new", "count"}, filter_replace},
      {"safe", {}, filter_string},  // nothing is escaped, so nothing needs to be safe
      {"string", {}, filter_string},
      {"title", {}, filter_title},
      {"tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, filter_tojson},
      {"trim", {"chars"}, filter_trim},
      {"upper", {}, filter_upper},
  };
  return kTable;
}

}  // namespace levin::text::jinja
