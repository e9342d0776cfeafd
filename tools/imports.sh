#!/usr/bin/env bash
# Checks who imports whom with depguard, by the rules in tools/imports.yml.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$(pwd -P)

missing=0
while read -r top; do
    if ! grep -q "^$top:\$" tools/imports.yml; then
        echo "$top/: found Go code without an import rule, expected one named \"$top\" in tools/imports.yml: add it" >&2
        missing=1
    fi
done < <(git ls-files --cached --others --exclude-standard '*.go' | sed -n 's|/.*||p' | sort -u)

# depguard reads its rules from the working directory, so they are written, with this
# repository's path filled in, into a directory of their own. Without rules it says so on
# stdout, where findings do not go, and passes everything: output there is a failure.
mkdir -p bin/imports
cd bin/imports
sed "s|@ROOT@|$root|g" ../../tools/imports.yml >.depguard.yml
if ! go tool -modfile=../../tools/go.mod depguard github.com/tidemark-db/tidemark/... >out 2>findings || [[ -s out ]]; then
    cat out findings | sed "s|$root/||g" >&2
    exit 1
fi
exit $missing
