#!/usr/bin/env bash
# What `make build CUDA=...` asks of CMake, for a new build folder and for one that was made with
# something else. CMake and the set-up are only pretended.
set -euo pipefail
command -v make >/dev/null || exit 77
source=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

mkdir "$folder/bin" "$folder/tools"
cp "$source/Makefile" "$folder"
touch "$folder/CMakeLists.txt"
printf '#!/bin/bash\n' >"$folder/tools/setup.sh"
# Keeps LEVIN_CUDA in its cache as CMake does, and logs when it configures.
cat >"$folder/bin/cmake" <<'EOF'
#!/bin/bash
[[ $1 == --preset ]] || exit 0
echo "$*" >>log
mkdir -p build/release
cache=build/release/CMakeCache.txt
[[ -f $cache ]] || echo LEVIN_CUDA:STRING=AUTO >$cache
[[ $3 != -DLEVIN_CUDA=* ]] || echo "LEVIN_CUDA:STRING=${3#*=}" >$cache
touch build/release/build.ninja
EOF
chmod +x "$folder/bin/cmake" "$folder/tools/setup.sh"

failed() {
  echo "line ${BASH_LINENO[1]}: $1" >&2
  cat "$folder/out" "$folder/log" >&2
  exit 1
}

# build EXIT [ARGUMENT]: runs make build there, without what a make around this test says.
build() {
  local expected=$1 code=0
  shift
  : >"$folder/log"
  env -i PATH="$folder/bin:$PATH" make -C "$folder" build "$@" >"$folder/out" 2>&1 || code=$?
  [[ $code -eq $expected ]] || failed "exit code $code instead of $expected"
}

configured() { [[ $(wc -l <"$folder/log") -eq $1 ]] || failed "configured other than $1 times"; }
made_with() {
  grep -qx "LEVIN_CUDA:STRING=$1" "$folder/build/release/CMakeCache.txt" || failed "not $1"
}

build 0  # a new folder
configured 1
made_with AUTO
build 0 CUDA=OFF  # that one again, asked for something else
configured 1
made_with OFF
build 0 CUDA=OFF  # as it is
configured 0
build 0  # not asked: it stays what it is
configured 0
made_with OFF
build 0 CUDA=AUTO
configured 1
made_with AUTO

rm -r "$folder/build"
build 0 CUDA=OFF
configured 1
made_with OFF

build 2 CUDA=off  # which CMake would take for AUTO
grep -q 'CUDA=off: expected AUTO, ON or OFF' "$folder/out" || failed "no hint"
configured 0
