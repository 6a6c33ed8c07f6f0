// Whether a path is a model's folder at all: asked before any of its files is missed by name.
#pragma once

#include <filesystem>

namespace levin::checkpoint {

// Throws when there is no such folder, or none with a config.json; an unfinished conversion is said
// to be one.
void require_model_folder(const std::filesystem::path& folder);

}  // namespace levin::checkpoint
