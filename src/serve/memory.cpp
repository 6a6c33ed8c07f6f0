#include "serve/memory.h"

#include <fstream>
#include <string>

namespace levin::serve {

int64_t available_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  int64_t kibibytes = 0;
  std::string rest;
  while (file >> name >> kibibytes && std::getline(file, rest)) {
    if (name == "MemAvailable:") return kibibytes << 10;
  }
  return 0;
}

}  // namespace levin::serve
