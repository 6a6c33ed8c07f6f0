#include "cli/main.h"

int main(int argc, char** argv) {
  return levin::cli::run(argc, argv);
}
