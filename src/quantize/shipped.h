// The YAML files of recipes/, compiled into the binary so that an installed levin has them.
#pragma once

#include <span>
#include <string_view>

namespace levin::quantize {

struct ShippedFile {
  std::string_view path;  // relative to recipes/, without ".yaml": "w4a4", "configs/numerics/fp8"
  std::string_view text;
};

// Sorted by path. Generated at build time from recipes/ (src/quantize/embed_recipes.cmake).
std::span<const ShippedFile> shipped_files();

// Nothing (nullptr) when there is no such file. `path` may end in ".yaml" or ".yml".
const ShippedFile* find_shipped(std::string_view path);

}  // namespace levin::quantize
