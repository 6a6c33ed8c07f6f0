// Methods of strings, lists, dicts and loops.
#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/format.h"
#include "text/jinja/loop.h"
#include "text/jinja/operators.h"
#include "text/jinja/text_algorithms.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace levin::text::jinja {
namespace {

const std::string& self(const Call& call) {
  return *call.input.text();
}

// --- strings
// --------------------------------------------------------------------------------------

template <bool left, bool right>
Value text_strip(const Call& call) {
  std::optional<std::string> characters;
  if (call.optional(0) != nullptr) characters = call.text(0, "");
  return call.result(std::string(strip(self(call), characters, left, right)));
}

template <bool from_right>
Value text_split(const Call& call) {
  std::optional<std::string> separator;
  if (call.optional(0) != nullptr) separator = call.text(0, "");
  if (separator && separator->empty()) throw Failure("empty separator");
  call.budget.produce(self(call).size());
  std::vector<Value> parts;
  for (const std::string_view part :
       split(self(call), separator, call.integer(1, -1), from_right)) {
    call.budget.produce(sizeof(std::string));
    parts.emplace_back(std::string(part));
  }
  return make_list(std::move(parts), call.budget);
}

Value text_splitlines(const Call& call) {
  call.budget.produce(self(call).size());
  std::vector<Value> lines;
  for (const std::string_view line : split_lines(self(call), call.flag(0, false))) {
    call.budget.produce(sizeof(std::string));
    lines.emplace_back(std::string(line));
  }
  return make_list(std::move(lines), call.budget);
}

// The part of the string between the optional start and end of startswith, find and their like, and
// how many characters stand before it. Nothing when start lies behind the end.
struct Window {
  Value value;
  int64_t offset;
  const std::string& text() const { return *value.text(); }
};

std::optional<Window> window(const Call& call) {
  if (call.optional(1) == nullptr && call.optional(2) == nullptr) return Window{call.input, 0};
  const int64_t size = length(call.input, call.budget);
  auto place = [&](std::size_t parameter, int64_t missing) {
    const int64_t bound =
        call.optional(parameter) == nullptr ? missing : call.integer(parameter, 0);
    return std::max<int64_t>(bound < 0 ? bound + size : bound, 0);
  };
  const int64_t start = place(1, 0);
  const int64_t end = std::min(place(2, size), size);
  if (start > end) return std::nullopt;
  return Window{slice(call.input, start, end, None{}, call.budget), start};
}

// startswith and endswith take a string or a tuple of them.
template <bool at_start>
Value text_has_affix(const Call& call) {
  const auto where = window(call);
  auto has = [&](const Value& affix) {
    require_defined(affix);
    if (affix.text() == nullptr) throw Failure("startswith and endswith need a string");
    if (!where) return false;
    return at_start ? where->text().starts_with(*affix.text())
                    : where->text().ends_with(*affix.text());
  };
  const Value& affix = call.required(0);
  const List* list = affix.list();
  if (list == nullptr || list->kind != List::Kind::kTuple) return has(affix);
  return std::any_of(list->items.begin(), list->items.end(), has);
}

// Position in characters, or -1.
template <bool from_right>
int64_t find_position(const Call& call) {
  const std::string& part = call.required_text(0);
  const auto where = window(call);
  if (!where) return -1;
  call.budget.step(where->text().size() / 64);
  const std::size_t at = from_right ? where->text().rfind(part) : where->text().find(part);
  if (at == std::string::npos) return -1;
  const std::string_view before = std::string_view(where->text()).substr(0, at);
  return where->offset + static_cast<int64_t>(count_characters(before));
}

template <bool from_right>
Value text_find(const Call& call) {
  return find_position<from_right>(call);
}

template <bool from_right>
Value text_index(const Call& call) {
  const int64_t position = find_position<from_right>(call);
  if (position < 0) throw Failure("substring not found");
  return position;
}

Value text_count(const Call& call) {
  const std::string& part = call.required_text(0);
  const auto where = window(call);
  if (!where) return int64_t{0};
  call.budget.step(where->text().size() / 64);
  return static_cast<int64_t>(count_occurrences(where->text(), part));
}

Value text_replace(const Call& call) {
  return replace(self(call), call.required_text(0), call.required_text(1), call.integer(2, -1),
                 call.budget);
}

Value text_join(const Call& call) {
  std::string out;
  bool first = true;
  for (const Value& part : elements(call.required(0), call.budget)) {
    if (part.text() == nullptr) {
      throw Failure(fmt::format("join: expected str instance, {} found", type_name(part)));
    }
    call.budget.produce(self(call).size() + part.text()->size());
    if (!first) out += self(call);
    first = false;
    out += *part.text();
  }
  return out;
}

Value text_removeprefix(const Call& call) {
  const std::string& prefix = call.required_text(0);
  std::string_view text = self(call);
  if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
  return call.result(std::string(text));
}

Value text_removesuffix(const Call& call) {
  const std::string& suffix = call.required_text(0);
  std::string_view text = self(call);
  if (text.ends_with(suffix)) text.remove_suffix(suffix.size());
  return call.result(std::string(text));
}

Value text_upper(const Call& call) {
  return call.result(to_upper(self(call)));
}

Value text_lower(const Call& call) {
  return call.result(to_lower(self(call)));
}

Value text_title(const Call& call) {
  return call.result(title(self(call)));
}

Value text_capitalize(const Call& call) {
  return call.result(capitalize(self(call)));
}

// --- lists and tuples
// -----------------------------------------------------------------------------

Value list_count(const Call& call) {
  const auto& items = call.input.list()->items;
  return static_cast<int64_t>(std::count_if(items.begin(), items.end(), [&](const Value& item) {
    return equal(item, call.required(0), call.budget);
  }));
}

Value list_index(const Call& call) {
  const auto& items = call.input.list()->items;
  const auto it = std::find_if(items.begin(), items.end(), [&](const Value& item) {
    return equal(item, call.required(0), call.budget);
  });
  if (it == items.end()) throw Failure("the value is not in the list");
  return static_cast<int64_t>(it - items.begin());
}

// --- dicts
// ----------------------------------------------------------------------------------------

Value dict_get(const Call& call) {
  const Value& key = call.required(0);
  if (!hash_key(key)) throw Failure(fmt::format("unhashable type: '{}'", type_name(key)));
  if (const Value* found = call.input.dict()->find(key)) return *found;
  return call.given(1) != nullptr ? *call.given(1) : Value(None{});
}

template <List::Kind kind>
Value dict_view(const Call& call) {
  std::vector<Value> items;
  for (const auto& [key, value] : call.input.dict()->entries) {
    if (kind == List::Kind::kKeys) items.push_back(key);
    if (kind == List::Kind::kValues) items.push_back(value);
    if (kind == List::Kind::kItems) {
      items.push_back(make_list({key, value}, call.budget, List::Kind::kTuple));
    }
  }
  return make_list(std::move(items), call.budget, kind);
}

// --- loops
// ----------------------------------------------------------------------------------------

Value loop_cycle(const Call& call) {
  const auto& choices = call.arguments.positional;
  if (choices.empty()) throw Failure("no items for cycling given");
  const auto index = static_cast<std::size_t>((*call.input.get_if<LoopPtr>())->index0());
  return choices[index % choices.size()];
}

Value loop_changed(const Call& call) {
  Value arguments = make_list(call.arguments.positional, call.budget, List::Kind::kTuple);
  return (*call.input.get_if<LoopPtr>())->changed(std::move(arguments), call.budget);
}

}  // namespace

Table text_methods() {
  static const Builtin kTable[] = {
      {"capitalize", {}, text_capitalize},
      {"count", {"sub", "start", "end"}, text_count},
      {"endswith", {"suffix", "start", "end"}, text_has_affix<false>},
      {"find", {"sub", "start", "end"}, text_find<false>},
      {"index", {"sub", "start", "end"}, text_index<false>},
      {"join", {"iterable"}, text_join},
      {"lower", {}, text_lower},
      {"lstrip", {"chars"}, text_strip<true, false>},
      {"removeprefix", {"prefix"}, text_removeprefix},
      {"removesuffix", {"suffix"}, text_removesuffix},
      {"replace", {"old", "new", "count"}, text_replace},
      {"rfind", {"sub", "start", "end"}, text_find<true>},
      {"rindex", {"sub", "start", "end"}, text_index<true>},
      {"rsplit", {"sep", "maxsplit"}, text_split<true>},
      {"rstrip", {"chars"}, text_strip<false, true>},
      {"split", {"sep", "maxsplit"}, text_split<false>},
      {"splitlines", {"keepends"}, text_splitlines},
      {"startswith", {"prefix", "start", "end"}, text_has_affix<true>},
      {"strip", {"chars"}, text_strip<true, true>},
      {"title", {}, text_title},
      {"upper", {}, text_upper},
  };
  return kTable;
}

Table list_methods() {
  static const Builtin kTable[] = {
      {"count", {"value"}, list_count},
      {"index", {"value"}, list_index},
  };
  return kTable;
}

Table dict_methods() {
  static const Builtin kTable[] = {
      {"get", {"key", "default"}, dict_get},
      {"items", {}, dict_view<List::Kind::kItems>},
      {"keys", {}, dict_view<List::Kind::kKeys>},
      {"values", {}, dict_view<List::Kind::kValues>},
  };
  return kTable;
}

Table loop_methods() {
  static const Builtin kTable[] = {
      {"changed", {"*"}, loop_changed},
      {"cycle", {"*"}, loop_cycle},
  };
  return kTable;
}

}  // namespace levin::text::jinja
