#!/usr/bin/env bash
# Releases the current commit for this machine twice, in surroundings that differ, and checks
# that the bytes do not; then that archive and package hold what they should.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
arch=$(go env GOARCH)

RELEASE_DIR=$work/a tools/release.sh "linux/$arch" >/dev/null
(umask 077 && GOFLAGS=-race GOAMD64=v3 TZ=Asia/Tokyo LC_ALL=C.UTF-8 TMPDIR=$work RELEASE_DIR=$work/b tools/release.sh "linux/$arch" >/dev/null)

fail() {
    echo "release: $*" >&2
    exit 1
}
diff "$work/a/SHA256SUMS" "$work/b/SHA256SUMS" || fail "two builds of one commit differ"
(cd "$work/a" && sha256sum --quiet --check SHA256SUMS)

mkdir "$work/archive" "$work/package"
tar -x -z -C "$work/archive" --strip-components=1 -f "$work"/a/*.tar.gz
dpkg-deb --raw-extract "$work"/a/*.deb "$work/package"
commit=$(git rev-parse HEAD)
for binary in "$work/archive/tidemark" "$work/package/usr/bin/tidemark"; do
    "$binary" version | grep -q "^commit *$commit\$" || fail "the binary says it is $("$binary" version | tr '\n' ' '), expected commit $commit"
done
for file in LICENSE README.md docs/contract.md deploy/helm/tidemark/Chart.yaml; do
    git show "HEAD:$file" | cmp - "$work/archive/$file" || fail "the archive does not hold $file as it is committed"
done

expected='/etc/default/tidemark
/etc/tidemark/tidemark.yaml
/usr/bin/tidemark
/usr/lib/systemd/system/tidemark.service
/usr/share/doc/tidemark/changelog.gz
/usr/share/doc/tidemark/copyright'
found=$(cd "$work/package" && find etc usr -type f ! -path '*/doc/tidemark/docs/*' | sed 's|^|/|' | LC_ALL=C sort)
[[ $found == "$expected" ]] || fail "the package holds
$found
expected
$expected"
# Every file of the configuration is one that dpkg asks about before it replaces a change.
diff <(LC_ALL=C sort "$work/package/DEBIAN/conffiles") <(grep '^/etc/' <<<"$expected") || fail "conffiles"
for script in postinst prerm postrm; do
    sh -n "$work/package/DEBIAN/$script"
done
"$work/package/usr/bin/tidemark" config print --config "$work/package/etc/tidemark/tidemark.yaml" >/dev/null
echo "release: $(basename "$work"/a/*.deb) is reproducible"
