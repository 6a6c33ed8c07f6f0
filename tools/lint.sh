#!/usr/bin/env bash
# clang-format and clang-tidy over the tracked sources; any finding fails.
set -euo pipefail
build=$1
git ls-files -z '*.h' '*.cpp' '*.cu' '*.cuh' | xargs -0 clang-format-14 --dry-run --Werror
git ls-files -z 'src/*.cpp' | xargs -0 -n 4 -P "$(nproc)" clang-tidy-14 --quiet -p "$build" \
  --extra-arg=-Wno-unknown-warning-option
echo "lint: clean"
