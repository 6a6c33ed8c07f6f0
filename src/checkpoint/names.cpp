#include "checkpoint/names.h"

#include <fmt/format.h>

namespace levin::checkpoint {
namespace {

constexpr std::string_view kLanguageModel = "language_model.";
constexpr std::string_view kModel = "model.";
constexpr std::string_view kBackbone = "backbone.";
constexpr std::string_view kOldEmbedding = "backbone.embedding";
constexpr std::string_view kEmbeddings = "backbone.embeddings";

// True when `name` is `prefix` or lies below it.
bool is_or_below(std::string_view name, std::string_view prefix) {
  return name == prefix || (name.starts_with(prefix) && name[prefix.size()] == '.');
}

}  // namespace

std::string printable(std::string_view text, std::size_t max_length) {
  std::string out;
  for (const char c : text.substr(0, max_length)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  if (text.size() > max_length) out += fmt::format("... ({} bytes)", text.size());
  return out;
}

std::string canonical_name(std::string_view stored) {
  if (stored.starts_with(kLanguageModel)) stored.remove_prefix(kLanguageModel.size());
  std::string name(stored);
  if (name.starts_with(kModel)) name.replace(0, kModel.size(), kBackbone);
  if (is_or_below(name, kOldEmbedding)) name.replace(0, kOldEmbedding.size(), kEmbeddings);
  return name;
}

std::vector<std::string> spellings(std::string_view module) {
  std::vector<std::string> names = {std::string(module)};
  if (module.starts_with(kBackbone)) {
    names.push_back(std::string(kModel) + std::string(module.substr(kBackbone.size())));
  }
  if (is_or_below(module, kEmbeddings)) {
    names.push_back(std::string(kOldEmbedding) + std::string(module.substr(kEmbeddings.size())));
  }
  for (std::size_t i = 0, count = names.size(); i < count; ++i) {
    names.push_back(std::string(kLanguageModel) + names[i]);
  }
  return names;
}

}  // namespace levin::checkpoint
