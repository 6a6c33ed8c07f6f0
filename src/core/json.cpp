// The JSON readers of core/files.h.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <unordered_set>

#include "core/error.h"
#include "core/files.h"

namespace levin {
namespace {

constexpr int kMaxDepth = 200;

// Replaces Python's bare Infinity, -Infinity and NaN outside strings by __float__ objects.
std::string replace_bare_floats(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool in_string = false;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (in_string) {
      const bool escaped = c == '\\' && i + 1 < text.size();
      out.append(text.substr(i, escaped ? 2 : 1));
      if (c == '"') in_string = false;
      i += escaped ? 2 : 1;
      continue;
    }
    bool replaced = false;
    for (const std::string_view word : {"-Infinity", "Infinity", "NaN"}) {
      if (text.substr(i, word.size()) == word) {
        out += fmt::format(R"({{"__float__": "{}"}})", word);
        i += word.size();
        replaced = true;
        break;
      }
    }
    if (replaced) continue;
    if (c == '"') in_string = true;
    out += c;
    ++i;
  }
  return out;
}

// Builds the value through nlohmann's callback, refusing what its parser would let pass: duplicate
// keys and unbounded nesting.
class StrictCallback {
 public:
  explicit StrictCallback(const std::string& where) : where_(where) {}

  bool operator()(int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (depth > kMaxDepth) {
      throw Error({.what = "JSON is nested too deeply",
                   .where = where_,
                   .expected = fmt::format("at most {} levels", kMaxDepth),
                   .found = {},
                   .hint = {}});
    }
    if (event == Event::object_start) {
      keys_.emplace_back();
    } else if (event == Event::object_end) {
      if (!keys_.empty()) keys_.pop_back();
    } else if (event == Event::key && !keys_.empty()) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second) {
        throw Error({.what = "JSON object has the same key twice",
                     .where = where_,
                     .expected = {},
                     .found = fmt::format("\"{}\"", key.substr(0, 200)),
                     .hint = "two different values for one name cannot both be true"});
      }
    }
    return true;
  }

 private:
  std::string where_;
  std::vector<std::unordered_set<std::string>> keys_;
};

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& where) {
  if (text.find('\0') != text.npos) {  // which nlohmann's parser takes for the end
    throw Error({.what = "not valid JSON",
                 .where = where,
                 .expected = {},
                 .found = "a zero byte",
                 .hint = {}});
  }
  const auto occurs = [&](std::string_view word) { return text.find(word) != text.npos; };
  try {
    if (!occurs("NaN") && !occurs("Infinity")) {
      return nlohmann::json::parse(text, StrictCallback(where));
    }
    return nlohmann::json::parse(replace_bare_floats(text), StrictCallback(where));
  } catch (const nlohmann::json::exception& e) {
    throw Error(
        {.what = "not valid JSON", .where = where, .expected = {}, .found = e.what(), .hint = {}});
  }
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& where) {
  (void)parse_json(text, where);  // refuses duplicate keys and deep nesting
  try {
    return nlohmann::ordered_json::parse(text);
  } catch (const nlohmann::ordered_json::exception& e) {  // NaN and Infinity
    throw Error(
        {.what = "not valid JSON", .where = where, .expected = {}, .found = e.what(), .hint = {}});
  }
}

nlohmann::json read_json(const std::filesystem::path& path, std::size_t max_bytes) {
  return parse_json(read_text(path, max_bytes), path.string());
}

}  // namespace levin
