#!/usr/bin/env bash
# Runs every test of a build folder; prints only failures and the closing line.
set -euo pipefail
build=$1
export ASAN_OPTIONS=detect_stack_use_after_return=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1
ctest --test-dir "$build" --no-tests=error --output-on-failure -j "$(nproc)" --progress
