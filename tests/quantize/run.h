// Quantizing small checkpoints in tests.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "quantize/quantize.h"
#include "support/dummy_tensors.h"

namespace levin::test {

// small_config() with random weights.
inline void write_small_model(const std::filesystem::path& folder, std::size_t shards = 3) {
  std::filesystem::create_directories(folder);
  write_checkpoint(folder, small_config(), dummy_tensors(small_config()), shards);
  write_file(folder / "generation_config.json", "{\"eos_token_id\": [2, 11]}");
}

inline quantize::Options quantize_options(const std::filesystem::path& model,
                                          const std::string& recipe,
                                          const std::filesystem::path& output) {
  quantize::Options options;
  options.model = model;
  options.recipe = recipe;
  options.output = output;
  options.threads = 2;
  options.version = "test";
  return options;
}

// Every file below `folder` with its contents.
inline std::map<std::string, std::string> files_of(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    files[std::filesystem::relative(entry.path(), folder)] =
        std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return files;
}

}  // namespace levin::test
