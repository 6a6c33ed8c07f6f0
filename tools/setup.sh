#!/usr/bin/env bash
# Installs the Debian packages levin is built from, if any are missing. Says what it installs; does
# nothing, and needs no network, when everything is there.
#   tools/setup.sh          all of them
#   tools/setup.sh build    without those for lint and fuzzing
set -euo pipefail

packages=(g++ cmake ninja-build pkg-config ccache git
  nlohmann-json3-dev libyaml-cpp-dev libfmt-dev libspdlog-dev libcli11-dev libpcre2-dev libicu-dev
  libboost-dev prometheus-cpp-dev libcurl4-openssl-dev
  libgtest-dev libgmock-dev libbenchmark-dev)
checkers=(clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev)
[[ ${1:-all} == build ]] || packages+=("${checkers[@]}")

fail() {
  echo "setup: $1" >&2
  echo "setup: as root: apt-get install ${missing[*]}" >&2
  exit 3
}

# One line for each architecture that the package is there for; held packages are there, too.
is_installed() {
  local states  # not a pipe into grep -q, which would break it when the first line matches
  states=$(dpkg-query -W -f='${db:Status-Status}\n' "$1" 2>/dev/null) || true
  grep -qx installed <<<"$states"
}

missing=("${packages[@]}")
command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
  fail "this is no Debian; these packages, or what they are called here, are needed: ${missing[*]}"
missing=()
for package in "${packages[@]}"; do
  is_installed "$package" || missing+=("$package")
done
[[ ${#missing[@]} -eq 0 ]] && exit 0

root=()
if [[ $(id -u) -ne 0 ]]; then
  command -v sudo >/dev/null || fail "packages are missing, and so is sudo to install them"
  root=(sudo)
fi
echo "setup: installing ${missing[*]}"
# A repository that cannot be reached need not be the one that has them.
"${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq ||
  echo "setup: the lists of packages could not be renewed; trying with the old ones" >&2
"${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
  "${missing[@]}" >/dev/null || fail "the packages could not be installed"
echo "setup: done"
