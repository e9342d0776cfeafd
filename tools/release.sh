#!/usr/bin/env bash
# Builds what is released of the current commit into bin/release: an archive for every platform, a Debian package for
# every Linux architecture, and SHA256SUMS. Needs Go, git, GNU tar and dpkg-deb.
#
#   tools/release.sh [GOOS/GOARCH ...]        default: all platforms
#
# The same commit and the same version of Go give the same bytes, wherever and whenever they are
# built: the binary holds no paths and no dates, everything else has the commit's time, root
# as its owner and a fixed mode and order.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=$(realpath -m "${RELEASE_DIR:-bin/release}")
platforms=("$@")
((${#platforms[@]} > 0)) || platforms=(linux/amd64 linux/arm64)

# What the environment could change about the result.
umask 022
export LC_ALL=C TZ=UTC CGO_ENABLED=0 GOFLAGS= GOAMD64=v1 GOARM64=v8.0 GOWORK=off

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A clone, so that the commit is built and nothing else, and so that Go, which writes commit and
# version into the binary, finds a repository that it knows (a worktree is none to it).
git clone --quiet --shared . "$work/source"
cd "$work/source"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

# A tag is v1.2.3; the fourth commit after it is 1.2.3+4.gabc123, which sorts after it. Before
# the first tag there is 0.0.0.
version=$(git describe --tags --match 'v[0-9]*' --abbrev=12 2>/dev/null) ||
    version="v0.0.0-$(git rev-list --count HEAD)-g$(git rev-parse --short=12 HEAD)"
version=$(sed -E 's/^v//; s/-([0-9]+)-g/+\1.g/' <<<"$version")

rm -rf "$out"
mkdir -p "$out"

# stage DIRECTORY FILE ...: copies tracked files, with their paths.
stage() {
    local to=$1 file
    shift
    git ls-files -z -- "$@" | while IFS= read -r -d '' file; do
        install -D -m 0644 "$file" "$to/$file"
    done
}

# settle DIRECTORY: gives everything in it the commit's time.
settle() {
    find "$1" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
}

archive() {
    local name=$1 binary=$2
    stage "$work/$name" LICENSE README.md CHANGELOG.md docs deploy
    install -m 0755 "$binary" "$work/$name/tidemark"
    settle "$work/$name"
    tar --create --directory "$work" --sort=name --owner=0 --group=0 --numeric-owner --format=ustar "$name" |
        gzip -n >"$out/$name.tar.gz"
}

package() {
    local arch=$1 binary=$2 root="$work/deb-$1" doc="$work/deb-$1/usr/share/doc/tidemark" size
    install -D -m 0755 "$binary" "$root/usr/bin/tidemark"
    install -D -m 0644 deploy/systemd/tidemark.service "$root/usr/lib/systemd/system/tidemark.service"
    install -D -m 0644 deploy/systemd/tidemark.yaml "$root/etc/tidemark/tidemark.yaml"
    install -D -m 0644 deploy/systemd/tidemark.env "$root/etc/default/tidemark"
    install -D -m 0644 deploy/debian/copyright "$doc/copyright"
    install -D -m 0644 CHANGELOG.md "$doc/changelog"
    gzip -9n "$doc/changelog"
    stage "$work/doc-$arch" docs
    mv "$work/doc-$arch/docs" "$doc/docs"
    install -d -m 0755 "$root/DEBIAN"
    # Of the files alone: directories are as large as their file system makes them.
    size=$(find "$root" -type f -printf '%s\n' | awk '{ sum += int(($1 + 1023) / 1024) } END { print sum }')
    sed -e "s/@VERSION@/$version/" -e "s/@ARCH@/$arch/" -e "s/@SIZE@/$size/" \
        deploy/debian/control >"$root/DEBIAN/control"
    install -m 0644 deploy/debian/conffiles "$root/DEBIAN/conffiles"
    install -m 0755 deploy/debian/postinst deploy/debian/prerm deploy/debian/postrm "$root/DEBIAN/"
    (cd "$root" && find etc usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
    settle "$root"
    dpkg-deb --root-owner-group -Zgzip -z6 --build "$root" "$out/tidemark_${version}_$arch.deb" >&2
}

for platform in "${platforms[@]}"; do
    os=${platform%/*} arch=${platform#*/}
    binary=$work/$os-$arch/tidemark
    # The version in the binary is the one that Go reads from git.
    GOOS=$os GOARCH=$arch go build -buildvcs=true -trimpath -ldflags='-s -w' -o "$binary" ./cmd/tidemark
    archive "tidemark-$version-$os-$arch" "$binary"
    if [[ $os == linux ]]; then
        package "$arch" "$binary"
    fi
done
(cd "$out" && sha256sum -- * >SHA256SUMS)
cat "$out/SHA256SUMS"
