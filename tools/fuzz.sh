#!/usr/bin/env bash
# Runs every fuzz target of the module for the given time, one after the other.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
time=${1:?usage: tools/fuzz.sh DURATION}

ran=0
while read -r package; do
    while read -r target; do
        echo "== $package $target"
        go test -run='^$' -fuzz="^$target\$" -fuzztime="$time" "$package"
        ran=$((ran + 1))
    done < <(go test -list '^Fuzz' "$package" | grep '^Fuzz' || true)
done < <(go list ./...)
echo "$ran fuzz targets, $time each"
