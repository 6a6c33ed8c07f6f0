#include "model/schedule.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/names.h"
#include "core/error.h"
#include "model/config_fields.h"

namespace levin::model {
namespace {

constexpr std::size_t kMaxLayers = 4096;

std::optional<BlockKind> block_of_character(char character) {
  switch (character) {
    case 'M':
      return BlockKind::kMamba;
    case 'E':
      return BlockKind::kMoe;
    case '*':
      return BlockKind::kAttention;
    case '-':
      return BlockKind::kMlp;
    default:
      return std::nullopt;
  }
}

std::optional<BlockKind> block_of_name(std::string_view name) {
  if (name == "mamba" || name == "linear_attention") return BlockKind::kMamba;
  if (name == "moe") return BlockKind::kMoe;
  if (name == "attention" || name == "full_attention") return BlockKind::kAttention;
  if (name == "mlp") return BlockKind::kMlp;
  return std::nullopt;
}

[[noreturn]] void refuse(const std::string& where, std::string_view block) {
  throw Error({.what = "unknown block type in the layer schedule",
               .where = where,
               .expected = "mamba (M), moe (E), attention (*), mlp (-)",
               .found = fmt::format("\"{}\"", checkpoint::printable(block)),
               .hint = {}});
}

void check_length(const std::vector<BlockKind>& layers, const std::string& where) {
  if (!layers.empty() && layers.size() <= kMaxLayers) return;
  throw Error({.what = "layer schedule has an impossible length",
               .where = where,
               .expected = fmt::format("1 to {} layers", kMaxLayers),
               .found = std::to_string(layers.size()),
               .hint = {}});
}

void append_pattern(std::string_view pattern, const std::string& where,
                    std::vector<BlockKind>& layers) {
  for (const char character : pattern) {
    if (character == '|') continue;
    const std::optional<BlockKind> block = block_of_character(character);
    if (!block) refuse(where, std::string_view(&character, 1));
    layers.push_back(*block);
  }
}

}  // namespace

std::vector<BlockKind> parse_pattern(std::string_view pattern, const std::string& where) {
  std::vector<BlockKind> layers;
  append_pattern(pattern.substr(0, pattern.find('/')), where, layers);
  check_length(layers, where);
  return layers;
}

std::vector<BlockKind> parse_schedule(const nlohmann::json& value, const std::string& where) {
  if (value.is_string()) return parse_pattern(value.get_ref<const std::string&>(), where);
  if (!value.is_array()) {
    throw Error({.what = "layer schedule has the wrong type",
                 .where = where,
                 .expected = "a string or an array of strings",
                 .found = shown(value),
                 .hint = {}});
  }
  std::vector<BlockKind> layers;
  for (const nlohmann::json& element : value) {
    if (!element.is_string()) refuse(where, shown(element));
    const auto& text = element.get_ref<const std::string&>();
    if (const std::optional<BlockKind> block = block_of_name(text)) {
      layers.push_back(*block);
      continue;
    }
    const std::size_t end = text.find('/');
    append_pattern(std::string_view(text).substr(0, end), where, layers);
    if (end != std::string::npos) break;
  }
  check_length(layers, where);
  return layers;
}

}  // namespace levin::model
