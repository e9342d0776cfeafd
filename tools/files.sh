#!/usr/bin/env bash
# Checks what no linter does: the length of files, and words that hide unfinished work or
# a race in a test. Generated files are exempt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

longest=500
longest_test=600
failed=0
files=()
while IFS= read -r file; do
    if [[ -f $file ]] && ! grep -q '^// Code generated .* DO NOT EDIT\.$' "$file"; then
        files+=("$file")
    fi
done < <(git ls-files --cached --others --exclude-standard '*.go')

for file in "${files[@]}"; do
    lines=$(wc -l <"$file")
    limit=$longest
    [[ $file == *_test.go ]] && limit=$longest_test
    if ((lines > limit)); then
        echo "$file: $lines lines, expected at most $limit: split it by what its parts do" >&2
        failed=1
    fi
done

unformatted=$(gofmt -l "${files[@]}")
if [[ -n $unformatted ]]; then
    echo "not formatted, run gofmt -w on: $unformatted" >&2
    failed=1
fi

refuse() {
    local pattern=$1 why=$2 found
    if found=$(grep -nE "$pattern" "${files[@]}"); then
        echo "$found" >&2
        echo "^ $why" >&2
        failed=1
    fi
}
refuse '\btime\.Sleep\(' 'do not sleep to synchronise: wait for the event, or use a timer and the context'
refuse '\b[tb]\.(Skip|Skipf|SkipNow)\(' 'a skipped test is one that nobody runs: install what it needs, or take it out'
refuse '\b(TODO|FIXME|XXX)\b' 'do it, or file an issue'

exit $failed
