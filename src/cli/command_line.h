// The command line of this process, for telling the user which one to give next.
#pragma once

#include <string>
#include <vector>

namespace levin::cli {

// Called once, before anything else reads it.
void remember_command_line(int argc, char** argv);

// Word by word, the program's name first.
const std::vector<std::string>& command_line();

}  // namespace levin::cli
