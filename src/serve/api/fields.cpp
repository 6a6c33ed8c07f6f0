#include "serve/api/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files.h"
#include "serve/api/api_error.h"
#include "text/utf8.h"

namespace levin::serve::api {
namespace {

using Json = nlohmann::ordered_json;

std::string shortened(const Json& value) {
  const std::string text = dump(value);
  if (text.size() <= 80) return text;
  return text::to_valid_utf8(text.substr(0, 80)) + "...";
}

std::string refusal(const Field& field) {
  std::string message = fmt::format("{} is not supported", field.name);
  if (!field.hint.empty()) message += fmt::format(": {}", field.hint);
  return message;
}

}  // namespace

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json parse_body(std::string_view body) {
  if (const auto at = text::find_invalid_utf8(body)) {
    throw ApiError(400, fmt::format("the body is not UTF-8 at byte {}", *at));
  }
  Json json;
  try {
    json = parse_ordered_json(body, "body");
  } catch (const Error& error) {
    throw to_api_error(error);
  }
  if (!json.is_object()) throw ApiError(400, "the body is not a JSON object");
  return json;
}

std::vector<std::string> check_fields(const Json& object, std::span<const Field> known) {
  std::vector<std::string> unknown;
  for (const auto& [name, value] : object.items()) {
    const auto field = std::find_if(known.begin(), known.end(), [&name = name](const Field& each) {
      return each.name == name;
    });
    if (field == known.end()) {
      unknown.push_back(name);
      continue;
    }
    if (field->support != Support::kRefused || value.is_null()) continue;
    if (!field->neutral.empty() && value == Json::parse(field->neutral)) continue;
    throw ApiError(400, refusal(*field), name);
  }
  return unknown;
}

const Json* FieldReader::find(std::string_view name) const {
  const auto place = object_.find(std::string(name));
  return place == object_.end() || place->is_null() ? nullptr : &*place;
}

std::string FieldReader::path_of(std::string_view name) const {
  return path_ + std::string(name);
}

void FieldReader::fail(std::string_view name, std::string_view expected) const {
  const Json* value = find(name);
  const std::string found = value == nullptr ? "nothing" : shortened(*value);
  throw ApiError(400, fmt::format("{} must be {}; found {}", path_of(name), expected, found),
                 path_of(name));
}

std::optional<double> FieldReader::number(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) fail(name, "a number");
  return value->get<double>();
}

std::optional<int64_t> FieldReader::integer(std::string_view name, int64_t least,
                                            int64_t most) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const auto fail_range = [&] {
    fail(name, most == std::numeric_limits<int64_t>::max()
                   ? fmt::format("an integer of at least {}", least)
                   : fmt::format("an integer from {} to {}", least, most));
  };
  // Integers beyond 63 bits are unsigned or, beyond 64, floats.
  if (!value->is_number_integer()) fail_range();
  if (value->is_number_unsigned() &&
      value->get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
    fail_range();
  }
  const auto number = value->get<int64_t>();
  if (number < least || number > most) fail_range();
  return number;
}

std::optional<bool> FieldReader::boolean(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) fail(name, "true or false");
  return value->get<bool>();
}

std::optional<std::string> FieldReader::string(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) fail(name, "a string");
  return value->get<std::string>();
}

std::optional<std::string> FieldReader::one_of(
    std::string_view name, std::initializer_list<std::string_view> values) const {
  auto value = string(name);
  if (value && std::find(values.begin(), values.end(), *value) == values.end()) {
    fail(name, fmt::format("one of {}", fmt::join(values, ", ")));
  }
  return value;
}

const Json* FieldReader::object(std::string_view name) const {
  const Json* value = find(name);
  if (value != nullptr && !value->is_object()) fail(name, "an object");
  return value;
}

const Json* FieldReader::array(std::string_view name) const {
  const Json* value = find(name);
  if (value != nullptr && !value->is_array()) fail(name, "an array");
  return value;
}

std::vector<int32_t> FieldReader::token_ids(std::string_view name, int32_t vocab_size) const {
  std::vector<int32_t> ids;
  const Json* values = array(name);
  if (values == nullptr) return ids;
  for (const Json& value : *values) {
    if (!value.is_number_integer() || value < 0 || value >= vocab_size) {
      fail(name, fmt::format("an array of token ids from 0 to {}", vocab_size - 1));
    }
    ids.push_back(value.get<int32_t>());
  }
  return ids;
}

}  // namespace levin::serve::api
