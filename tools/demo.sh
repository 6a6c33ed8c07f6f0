#!/usr/bin/env bash
# The main job on the bundled model: climb the ladder, then show one lossless speculative answer.
set -euo pipefail
levin=$1
out=$2
"$levin" ladder models/tiny -o "$out"
