#!/usr/bin/env bash
# Coverage-guided fuzzing of every parser of outside bytes, SECONDS each. New inputs are kept in
# build/fuzz/corpus; a crash leaves its input beside it and fails the run.
set -euo pipefail
seconds=$1
cmake --preset fuzz
mapfile -t targets < <(cd tests/fuzz && ls fuzz_*.cpp | sed 's/\.cpp$//')
cmake --build build/fuzz -j"$(nproc)" --target "${targets[@]}"
for target in "${targets[@]}"; do
  what=${target#fuzz_}
  found=build/fuzz/corpus/$what
  mkdir -p "$found"
  echo "== $target for $seconds s"
  "build/fuzz/tests/fuzz/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 \
    -artifact_prefix="$found/crash-" -print_final_stats=0 -verbosity=0 \
    "$found" "tests/fuzz/corpus/$what"
done
echo "fuzz: ${#targets[@]} targets, no failure"
