#include "cli/command_line.h"

namespace levin::cli {
namespace {

std::vector<std::string>& words() {
  static std::vector<std::string> remembered;
  return remembered;
}

}  // namespace

void remember_command_line(int argc, char** argv) {
  words().assign(argv, argv + argc);
}

const std::vector<std::string>& command_line() {
  return words();
}

}  // namespace levin::cli
