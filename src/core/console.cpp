#include "core/console.h"

#include <cstdio>

namespace levin {

void tell(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace levin
