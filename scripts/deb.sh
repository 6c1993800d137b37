# shellcheck shell=bash
# What makes a Debian package, for scripts that fill one: capi/dist/deb.sh and tool.sh. It needs dpkg-deb alone, no root. Sourced in the root
# of the checkout.
#
# CAPI_COMPRESSION: none, gzip or xz (default). SOURCE_DATE_EPOCH: the time of the files, else that of the last commit, so that the same
# sources give the same package.

# deb_begin FOLDER: packages go there; sets out and work, where each package is filled below its name.
deb_begin() {
    command -v dpkg-deb >/dev/null || {
        echo "a Debian package can't be made: no dpkg-deb here" >&2
        exit 1
    }
    mkdir -p "$1"
    out=$(cd "$1" && pwd)
    work=$(mktemp -d "$out/work.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
    export SOURCE_DATE_EPOCH
    umask 022
    version=$(workspace_version)
    architecture=$(dpkg --print-architecture)
}

workspace_version() { sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml; }

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
        printf 'Package: %s\nSource: fabricast\nVersion: %s\nArchitecture: %s\n' "$package" "$version" "$architecture"
        printf 'Maintainer: The fabricast developers <fabricast@localhost>\n'
        printf 'Installed-Size: %s\nSection: %s\nPriority: optional\n' "$size" "$section"
        printf '%s\n' "$fields"
        printf 'Description: %s\n' "$1"
        shift
        printf ' %s\n' "$@"
    } >"$work/$package/DEBIAN/control"
}

# copyright PACKAGE CRATE: what the package is licensed under, and what is linked into it.
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
        echo "It holds code of these Rust packages, under the licences beside them:"
        echo
        cargo tree --locked -p "$2" -e normal --prefix none --format '{p}: {l}' |
            sed -E 's/ \((\*|proc-macro|\/[^)]*)\)//g' | sort -u
        echo
        echo "and of the Rust standard library: MIT OR Apache-2.0"
    } >"$to/copyright"
}

pack() {
    local package=$1
    (cd "$work/$package" && find usr -type f -printf '%P\0' | LC_ALL=C sort -z | sed -z 's|^|usr/|' | xargs -0 md5sum >DEBIAN/md5sums)
    find "$work/$package" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Z"${CAPI_COMPRESSION:-xz}" -b "$work/$package" "$out/${package}_${version}_$architecture.deb" >/dev/null
    echo "$out/${package}_${version}_$architecture.deb"
}
