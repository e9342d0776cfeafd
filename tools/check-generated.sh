#!/usr/bin/env bash
# Fails if the committed generated code is not what the protos and the pinned plugins
# generate. docs/errors.md and the code table in docs/contract.md are checked by the test of
# internal/docgen.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
go tool -modfile=tools/go.mod buf generate -o "$fresh"

list() { (cd "$1" && find api -name '*.pb.go' | sort); }
if ! diff <(list .) <(list "$fresh") >&2; then
    echo "the generated files are other ones (< committed, > fresh): run make generate" >&2
    exit 1
fi
failed=0
while IFS= read -r file; do
    if ! diff -q "$file" "$fresh/$file" >/dev/null; then
        echo "$file: differs from what the protos generate: run make generate" >&2
        failed=1
    fi
done < <(list "$fresh")
exit $failed
