#!/usr/bin/env bash
# The main job on the bundled model: climb the ladder.
set -euo pipefail
levin=$1
out=$2
"$levin" ladder models/tiny -o "$out"
