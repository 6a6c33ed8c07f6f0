#include "text/jinja/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja/overloaded.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace levin::text::jinja {
namespace {

// Collects text and charges for it as it grows: shared parts can make a small value print large.
class Printer {
 public:
  explicit Printer(Budget& budget) : budget_(budget) {}

  void put(std::string_view text) {
    budget_.produce(text.size());
    out_ += text;
  }
  std::string take() { return std::move(out_); }

 private:
  Budget& budget_;
  std::string out_;
};

// The string literal Python would print: single quotes unless only they occur inside.
void print_quoted(std::string_view text, Printer& out) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  out.put({&quote, 1});
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out.put("\\");
      out.put(bytes);
    } else if (c == '\n') {
      out.put("\\n");
    } else if (c == '\r') {
      out.put("\\r");
    } else if (c == '\t') {
      out.put("\\t");
    } else if (is_printable(c)) {
      out.put(bytes);
    } else {
      const auto code = static_cast<uint32_t>(c);
      out.put(code < 0x100     ? fmt::format("\\x{:02x}", code)
              : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                               : fmt::format("\\U{:08x}", code));
    }
  });
  out.put({&quote, 1});
}

void print_repr(const Value& value, Printer& out, Budget& budget);

void print_items(const std::vector<Value>& items, Printer& out, Budget& budget) {
  bool first = true;
  for (const Value& item : items) {
    if (!first) out.put(", ");
    first = false;
    print_repr(item, out, budget);
  }
}

void print_list(const List& list, Printer& out, Budget& budget) {
  using Kind = List::Kind;
  switch (list.kind) {
    case Kind::kTuple:
      out.put("(");
      print_items(list.items, out, budget);
      out.put(list.items.size() == 1 ? ",)" : ")");
      return;
    case Kind::kKeys:
    case Kind::kValues:
    case Kind::kItems:
      out.put(type_name(list.kind));
      out.put("([");
      print_items(list.items, out, budget);
      out.put("])");
      return;
    case Kind::kRange:
      throw Failure("a range cannot be printed; make it a list with |list");
    case Kind::kList:
      out.put("[");
      print_items(list.items, out, budget);
      out.put("]");
  }
}

void print_dict(const Dict& dict, Printer& out, Budget& budget) {
  out.put("{");
  bool first = true;
  for (const auto& [key, value] : dict.entries) {
    if (!first) out.put(", ");
    first = false;
    print_repr(key, out, budget);
    out.put(": ");
    print_repr(value, out, budget);
  }
  out.put("}");
}

// repr(value)
void print_repr(const Value& value, Printer& out, Budget& budget) {
  budget.step();
  std::visit(overloaded{[&](const Undefined&) { out.put("Undefined"); },
                        [&](const None&) { out.put("None"); },
                        [&](bool b) { out.put(b ? "True" : "False"); },
                        [&](int64_t i) { out.put(fmt::format("{}", i)); },
                        [&](double d) { out.put(python_float(d)); },
                        [&](const Text& text) { print_quoted(*text, out); },
                        [&](const ListPtr& list) { print_list(*list, out, budget); },
                        [&](const DictPtr& dict) { print_dict(*dict, out, budget); },
                        [&](const auto&) {
                          throw Failure(fmt::format("a {} cannot be printed", type_name(value)));
                        }},
             value.data());
}

// json.dumps of one value. Lines are only broken when the style has an indent.
class JsonPrinter {
 public:
  JsonPrinter(const JsonStyle& style, Budget& budget)
      : style_(style), budget_(budget), out_(budget) {}

  std::string run(const Value& value) {
    print(value, 0);
    return out_.take();
  }

 private:
  void print(const Value& value, int level) {
    budget_.step();
    std::visit(overloaded{[&](const None&) { out_.put("null"); },
                          [&](bool b) { out_.put(b ? "true" : "false"); },
                          [&](int64_t i) { out_.put(fmt::format("{}", i)); },
                          [&](double d) { out_.put(number(d)); },
                          [&](const Text& text) { print_string(*text); },
                          [&](const ListPtr& list) { print_list(*list, level); },
                          [&](const DictPtr& dict) { print_dict(*dict, level); },
                          [&](const auto&) { refuse(type_name(value)); }},
               value.data());
  }

  [[noreturn]] static void refuse(std::string_view type) {
    throw Failure(fmt::format("Object of type {} is not JSON serializable", type));
  }

  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return python_float(value);
  }

  void print_string(std::string_view text) {
    out_.put("\"");
    for_each_character(text,
                       [&](char32_t c, std::string_view bytes) { print_character(c, bytes); });
    out_.put("\"");
  }

  void print_character(char32_t c, std::string_view bytes) {
    constexpr std::string_view kNamed = "\"\\\n\r\t\b\f";
    constexpr std::string_view kLetters = "\"\\nrtbf";
    const std::size_t named = c < 0x80 ? kNamed.find(static_cast<char>(c)) : std::string_view::npos;
    if (named != std::string_view::npos) {
      out_.put("\\");
      out_.put(kLetters.substr(named, 1));
    } else if (c >= 0x20 && (c < 0x7F || !style_.ensure_ascii)) {
      out_.put(bytes);
    } else if (c < 0x10000) {
      out_.put(fmt::format("\\u{:04x}", static_cast<uint32_t>(c)));
    } else {
      const auto offset = static_cast<uint32_t>(c) - 0x10000;
      out_.put(
          fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (offset >> 10), 0xDC00 + (offset & 0x3FF)));
    }
  }

  void print_list(const List& list, int level) {
    if (list.kind != List::Kind::kList && list.kind != List::Kind::kTuple) {
      refuse(type_name(list.kind));
    }
    print_between("[", "]", list.items, level, [&](const Value& item) { print(item, level + 1); });
  }

  void print_dict(const Dict& dict, int level) {
    auto print_entry = [&](const auto& entry) {
      print_key(entry.first);
      out_.put(style_.key_separator);
      print(entry.second, level + 1);
    };
    if (!style_.sort_keys) {
      print_between("{", "}", dict.entries, level, print_entry);
      return;
    }
    auto entries = dict.entries;
    sort_entries(entries);
    print_between("{", "}", entries, level, print_entry);
  }

  // Keys of a JSON object are strings, which order by code point as their bytes do.
  static void sort_entries(std::vector<std::pair<Value, Value>>& entries) {
    for (const auto& [key, value] : entries) {
      if (key.text() == nullptr) throw Failure("tojson sorts only string keys");
    }
    std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
      return *a.first.text() < *b.first.text();
    });
  }

  void print_key(const Value& key) {
    if (const std::string* text = key.text()) {
      print_string(*text);
    } else if (key.is_none() || key.number()) {
      out_.put("\"");
      print(key, 0);
      out_.put("\"");
    } else {
      throw Failure(
          fmt::format("keys must be str, int, float, bool or None, not {}", type_name(key)));
    }
  }

  template <typename Items, typename Print>
  void print_between(std::string_view open, std::string_view close, const Items& items, int level,
                     Print&& print_item) {
    out_.put(open);
    bool first = true;
    for (const auto& item : items) {
      if (!first) out_.put(style_.item_separator);
      first = false;
      new_line(level + 1);
      print_item(item);
    }
    if (!items.empty()) new_line(level);
    out_.put(close);
  }

  void new_line(int level) {
    if (!style_.indent) return;
    out_.put("\n");
    for (int i = 0; i < level; ++i) out_.put(*style_.indent);
  }

  const JsonStyle& style_;
  Budget& budget_;
  Printer out_;
};

}  // namespace

std::string python_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  // Shortest digits in the form d.ddde[+-]xx, then placed as repr() does.
  char buffer[32];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string_view shortest(buffer, static_cast<std::size_t>(end.ptr - buffer));
  const std::size_t e = shortest.find('e');
  int exponent = 0;
  const char* digits = shortest.data() + e + 1 + (shortest[e + 1] == '+' ? 1 : 0);
  std::from_chars(digits, end.ptr, exponent);
  if (exponent < -4 || exponent >= 16) return std::string(shortest);
  char fixed[512];
  const auto fixed_end =
      std::to_chars(fixed, fixed + sizeof fixed, value, std::chars_format::fixed);
  std::string text(fixed, fixed_end.ptr);
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

std::string to_text(const Value& value, Budget& budget) {
  if (const std::string* text = value.text()) {
    budget.produce(text->size());
    return *text;
  }
  if (value.is_undefined()) return {};
  Printer out(budget);
  print_repr(value, out, budget);
  return out.take();
}

std::string to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  return JsonPrinter(style, budget).run(value);
}

}  // namespace levin::text::jinja
