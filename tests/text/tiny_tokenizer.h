// The bundled tokenizer, as it is and as JSON that a test can bend.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/files.h"
#include "text/tokenizer.h"

namespace levin::text {

inline std::filesystem::path tiny_folder() {
  return std::filesystem::path(LEVIN_SOURCE_DIR) / "models/tiny";
}

inline std::filesystem::path test_data() {
  return std::filesystem::path(LEVIN_SOURCE_DIR) / "tests/data";
}

inline const Tokenizer& tiny_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(tiny_folder());
  return tokenizer;
}

inline const nlohmann::json& tiny_json() {
  static const nlohmann::json document = read_json(tiny_folder() / "tokenizer.json");
  return document;
}

}  // namespace levin::text
