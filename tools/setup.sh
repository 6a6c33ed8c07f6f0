#!/usr/bin/env bash
# Installs the Debian packages levin is built from, if any are missing. Says what it installs; does
# nothing when everything is there.
set -euo pipefail

packages=(g++ cmake ninja-build pkg-config ccache git
  nlohmann-json3-dev libyaml-cpp-dev libfmt-dev libspdlog-dev libcli11-dev libpcre2-dev libicu-dev
  libboost-dev prometheus-cpp-dev libcurl4-openssl-dev
  libgtest-dev libgmock-dev libbenchmark-dev
  clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev)

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
  [[ $status == "install ok installed" ]] || missing+=("$package")
done
[[ ${#missing[@]} -eq 0 ]] && exit 0

sudo=()
if [[ $(id -u) -ne 0 ]]; then
  command -v sudo >/dev/null || {
    echo "setup: these packages are missing and sudo is not there to install them: ${missing[*]}" >&2
    exit 3
  }
  sudo=(sudo)
fi
echo "setup: installing ${missing[*]}"
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
  "${missing[@]}" >/dev/null
echo "setup: done"
