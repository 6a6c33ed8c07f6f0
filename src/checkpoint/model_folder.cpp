#include "checkpoint/model_folder.h"

#include "core/error.h"
#include "core/files.h"

namespace levin::checkpoint {

void require_model_folder(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder)) {
    throw Error({.what = "no such model folder",
                 .where = folder.string(),
                 .expected = "a Hugging Face folder with config.json",
                 .found = {},
                 .hint = {}});
  }
  if (!file_exists(folder / "config.json")) {
    const bool unfinished = std::filesystem::exists(folder / ".levin-partial");
    throw Error({.what = unfinished ? "the conversion into this folder is not finished"
                                    : "model folder has no config.json",
                 .where = folder.string(),
                 .expected = "a Hugging Face folder with config.json",
                 .found = {},
                 .hint = unfinished ? "give the same levin quantize command again" : ""});
  }
}

}  // namespace levin::checkpoint
