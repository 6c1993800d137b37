#!/usr/bin/env bash
# Packs what `capi.sh install` installs as libfabricast$CAPI_SOVERSION and libfabricast-dev. Called by scripts/capi.sh deb.
#
#   deb.sh FOLDER
#
# Needs dpkg-deb alone, no root. CAPI_COMPRESSION: none, gzip or xz (default). SOURCE_DATE_EPOCH: the time of the files, else that of the
# last commit, so that the same sources give the same package.
set -euo pipefail
cd "$(dirname "$0")/../.."

version=$CAPI_VERSION soversion=$CAPI_SOVERSION
command -v dpkg-deb >/dev/null || {
    echo "capi.sh deb: no dpkg-deb here" >&2
    exit 1
}
mkdir -p "$1"
out=$(cd "$1" && pwd)
work=$(mktemp -d "$out/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH
umask 022

architecture=$(dpkg --print-architecture)
triplet=$(cc -print-multiarch)
libdir=lib/${triplet:-$(uname -m)-linux-gnu}
runtime=libfabricast$soversion
maintainer="The fabricast developers <fabricast@localhost>"

# The newest version of the C library that a symbol is asked of.
libc_version() {
    objdump -T "$1" | grep -oE 'GLIBC_[0-9]+\.[0-9.]*[0-9]' | sed 's/GLIBC_//' | sort -Vu | tail -n 1
}

# control PACKAGE SECTION FIELDS DESCRIPTION...
control() {
    local package=$1 section=$2 fields=$3 size
    shift 3
    size=$(du -k --apparent-size -s "$work/$package" | cut -f1)
    mkdir -p "$work/$package/DEBIAN"
    {
        printf 'Package: %s\nSource: fabricast\nVersion: %s\nArchitecture: %s\nMulti-Arch: same\n' "$package" "$version" "$architecture"
        printf 'Maintainer: %s\nInstalled-Size: %s\nSection: %s\nPriority: optional\n' "$maintainer" "$size" "$section"
        printf '%s\n' "$fields"
        printf 'Description: %s\n' "$1"
        shift
        printf ' %s\n' "$@"
    } >"$work/$package/DEBIAN/control"
}

# What the packages are licensed under, and what is linked into them.
copyright() {
    local to=$work/$1/usr/share/doc/$1
    mkdir -p "$to"
    {
        echo "fabricast is licensed under the MIT licence or the Apache License 2.0, at your choice."
        echo
        cat LICENSE-MIT
        echo
        cat LICENSE-APACHE
        echo
        echo "The libraries hold code of these Rust packages, under the licences beside them:"
        echo
        cargo tree --locked -p fabricast-capi -e normal --prefix none --format '{p}: {l}' |
            sed -E 's/ \((\*|proc-macro|\/[^)]*)\)//g' | sort -u
        echo
        echo "and of the Rust standard library: MIT OR Apache-2.0"
    } >"$to/copyright"
}

# Every exported symbol since the first version of this soname; a tool that builds packages on top reads it.
symbols() {
    local library=$1
    printf 'libfabricast.so.%s %s #MINVER#\n' "$soversion" "$runtime"
    printf ' FABRICAST_%s@FABRICAST_%s %s.0\n' "$soversion" "$soversion" "$soversion"
    nm -D --defined-only "$library" | awk -v since="$soversion.0" \
        '$2 == "T" { sub("@@", "@", $3); if ($3 !~ /@/) exit 1; print " " $3 " " since }' | LC_ALL=C sort
}

pack() {
    local package=$1
    (cd "$work/$package" && find usr -type f -printf '%P\0' | LC_ALL=C sort -z | sed -z 's|^|usr/|' | xargs -0 md5sum >DEBIAN/md5sums)
    find "$work/$package" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Z"${CAPI_COMPRESSION:-xz}" -b "$work/$package" "$out/${package}_${version}_$architecture.deb" >/dev/null
    echo "$out/${package}_${version}_$architecture.deb"
}

LIBDIR=$libdir scripts/capi.sh install /usr "$work/libfabricast-dev" >/dev/null
library=usr/$libdir/libfabricast.so.$version
mkdir -p "$work/$runtime/usr/$libdir"
mv "$work/libfabricast-dev/$library" "$work/libfabricast-dev/usr/$libdir/libfabricast.so.$soversion" "$work/$runtime/usr/$libdir/"
copyright "$runtime"
copyright libfabricast-dev

libc="libc6 (>= $(libc_version "$work/$runtime/$library"))"
control "$runtime" libs "Depends: $libc, libgcc-s1
Recommends: libfabric1 (>= 1.17)" \
    "moves bytes from storage and GPU memory to network peers" \
    "fabricast sends and receives over libfabric, without a copy of its own." \
    "This package has the shared library for C and C++ programs." \
    "libfabric is loaded at run time, from where FABRICAST_LIBFABRIC says or" \
    "the system's place."
control libfabricast-dev libdevel "Depends: $runtime (= $version), libc6-dev
Suggests: pkg-config, cmake" \
    "moves bytes over libfabric: files for development" \
    "Headers for C and C++, the static library, a pkg-config file and a CMake" \
    "package of fabricast."
printf 'libfabricast %s %s (>= %s.0)\n' "$soversion" "$runtime" "$soversion" >"$work/$runtime/DEBIAN/shlibs"
symbols "$work/$runtime/$library" >"$work/$runtime/DEBIAN/symbols"
echo "activate-noawait ldconfig" >"$work/$runtime/DEBIAN/triggers"
pack "$runtime"
pack libfabricast-dev
