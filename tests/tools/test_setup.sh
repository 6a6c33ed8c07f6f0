#!/usr/bin/env bash
# tools/setup.sh on machines that are only pretended: as root and not, with and without sudo, offline,
# complete and bare. Every case has its own dpkg-query, apt-get, id and sudo.
set -euo pipefail
setup=$(cd "$(dirname "$0")/../.." && pwd)/tools/setup.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# A command of the pretended machine, with this body.
command_of_machine() {
  printf '#!/bin/bash\n%s\n' "$2" >"$folder/bin/$1"
  chmod +x "$folder/bin/$1"
}

# machine STATUS UID: what dpkg-query says of every package, and who runs it.
machine() {
  rm -rf "$folder/bin" && mkdir "$folder/bin"
  for tool in bash env grep cat; do ln -s "$(command -v $tool)" "$folder/bin/$tool"; done
  command_of_machine dpkg-query "[ -n '$1' ] && printf '$1\\n'"
  command_of_machine id "echo $2"
  command_of_machine apt-get "echo apt-get \"\$@\" >>$folder/log; [ \"\${FAILS:-}\" != \"\$1\" ]"
  : >"$folder/log"
}

# run EXIT [ARGUMENT]: runs setup.sh there; its output is in $folder/out.
run() {
  local expected=$1 code=0
  shift
  env -i PATH="$folder/bin" FAILS="${FAILS:-}" bash "$setup" "$@" >"$folder/out" 2>&1 || code=$?
  [[ $code -eq $expected ]] || failed "exit code $code instead of $expected"
}

has() { grep -q -- "$2" "$folder/$1" || failed "no \"$2\" in $1"; }
is_empty() { [[ ! -s $folder/$1 ]] || failed "$1 is not empty"; }
failed() {
  echo "line ${BASH_LINENO[1]}: $1" >&2
  cat "$folder/out" "$folder/log" >&2
  exit 1
}

machine installed 1000  # complete, offline, without sudo
run 0
is_empty out
is_empty log

machine 'installed\ninstalled' 1000  # for two architectures
run 0
is_empty log

machine '' 0  # bare, as root
run 0
has out "installing g++"
has log "apt-get update"
has log "apt-get install .*prometheus-cpp-dev.*clang-tidy-14"

machine '' 0  # for building alone
run 0 build
has log "apt-get install .*prometheus-cpp-dev"
! grep -q clang "$folder/log" || failed "clang is not needed to build"

machine config-files 0  # removed once
run 0
has log "apt-get install .*g++"

machine '' 1000  # not root, with sudo
command_of_machine sudo "echo sudo >>$folder/log; exec \"\$@\""
run 0
has log sudo
has log "apt-get install .*g++"

machine '' 1000  # not root, without
run 3
has out "sudo"
has out "apt-get install g++"
is_empty log

machine '' 0  # offline
FAILS=update run 0
has out "could not be renewed"
has log "apt-get install"
FAILS=install run 3
has out "could not be installed"
has out "apt-get install g++"

machine '' 0  # no Debian
rm "$folder/bin/apt-get" "$folder/bin/dpkg-query"
run 3
has out "no Debian"
