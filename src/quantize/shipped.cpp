#include "quantize/shipped.h"

#include <algorithm>

namespace levin::quantize {

const ShippedFile* find_shipped(std::string_view path) {
  for (const std::string_view suffix : {".yaml", ".yml"}) {
    if (path.ends_with(suffix)) path.remove_suffix(suffix.size());
  }
  const auto files = shipped_files();
  const auto file = std::find_if(files.begin(), files.end(),
                                 [&](const ShippedFile& entry) { return entry.path == path; });
  return file == files.end() ? nullptr : &*file;
}

}  // namespace levin::quantize
