// The fields of a JSON request: which there are, and reading them with errors that name them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace levin::serve::api {

enum class Support : uint8_t {
  kDone,
  kNoEffect,  // accepted; changes nothing, which is within its meaning
  kRefused    // an error, except for a value that asks for nothing
};

struct Field {
  std::string_view name;
  Support support = Support::kDone;
  // Of a refused field: the value that asks for nothing, as JSON; and what to do instead.
  std::string_view neutral = {};
  std::string_view hint = {};
};

// The body of a request as an object. Throws ApiError 400 for what is not JSON (duplicate keys,
// deep nesting, bytes that are not UTF-8, NaN) and for what is not an object.
nlohmann::ordered_json parse_body(std::string_view body);

// Refuses fields that are known and not supported, by name. Returns the names nobody knows.
std::vector<std::string> check_fields(const nlohmann::ordered_json& object,
                                      std::span<const Field> known);

// The value of a field; none when it is absent or null. Throws ApiError 400 when it is of another
// type. `path` goes in front of the name in errors: "stream_options.".
class FieldReader {
 public:
  explicit FieldReader(const nlohmann::ordered_json& object, std::string path = {})
      : object_(object), path_(std::move(path)) {}

  // It keeps a reference.
  explicit FieldReader(const nlohmann::ordered_json&& object, std::string path = {}) = delete;

  const nlohmann::ordered_json* find(std::string_view name) const;
  std::optional<double> number(std::string_view name) const;
  std::optional<int64_t> integer(std::string_view name, int64_t least, int64_t most) const;
  std::optional<bool> boolean(std::string_view name) const;
  std::optional<std::string> string(std::string_view name) const;
  std::optional<std::string> one_of(std::string_view name,
                                    std::initializer_list<std::string_view> values) const;
  const nlohmann::ordered_json* object(std::string_view name) const;
  const nlohmann::ordered_json* array(std::string_view name) const;
  // An array of integers of this range.
  std::vector<int32_t> token_ids(std::string_view name, int32_t vocab_size) const;

  [[noreturn]] void fail(std::string_view name, std::string_view expected) const;
  std::string path_of(std::string_view name) const;

 private:
  const nlohmann::ordered_json& object_;
  std::string path_;
};

// JSON text on one line; bytes that are not UTF-8 become U+FFFD.
std::string dump(const nlohmann::ordered_json& json);

}  // namespace levin::serve::api
