#!/usr/bin/env bash
# Builds and packs the C interface: libfabricast.so (with a soname and symbol versions), libfabricast.a and the headers.
#
#   capi.sh build [--release]          into target/capi/debug or target/capi/release; prints that folder
#   capi.sh link [--release]           the same of a libfabricast_capi.a that cargo has built already
#   capi.sh install PREFIX [DESTDIR]   libraries, headers, pkg-config file and CMake package; below DESTDIR, for PREFIX
#   capi.sh deb [FOLDER]               libfabricast0.1 and libfabricast-dev, into target/capi/deb or FOLDER
#
# install and deb take the release build and make it first; with CAPI_PROFILE=debug, the debug build as it is.
# LIBDIR: where libraries go below PREFIX, "lib" by default.
#
# Rust's own shared libraries have neither symbol versions nor a soname, so ours is linked from the static one.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
source scripts/deb.sh
version=$(workspace_version)
# Before 1.0 every minor version may change the interface.
soversion=0.${version#*.}
soversion=${soversion%.*}
# What a program needs that links the static library.
needs=(-lgcc_s -lpthread -lm -ldl -lc)

fail() {
    echo "capi.sh: $*" >&2
    exit 1
}

link() {
    local profile=debug out archive
    [[ ${1:-} == --release ]] && profile=release
    archive=$target/$profile/libfabricast_capi.a out=$target/capi/$profile
    [[ -e $archive ]] || fail "$archive is not built: capi.sh build"
    mkdir -p "$out/lib" "$out/include"
    find "$out/include" -type f -delete
    install -m 644 capi/include/* "$out/include/"
    # Nothing to do for the same archive and version script.
    if [[ $out/lib/libfabricast.so.$version -nt $archive && $out/lib/libfabricast.so.$version -nt capi/fabricast.map ]]; then
        echo "$out"
        return
    fi
    cc -shared -o "$out/lib/libfabricast.so.$version.new" \
        -Wl,--whole-archive "$archive" -Wl,--no-whole-archive \
        -Wl,--version-script=capi/fabricast.map -Wl,-soname,"libfabricast.so.$soversion" -Wl,--build-id \
        -Wl,--gc-sections -Wl,-z,relro,-z,now -Wl,--no-undefined "${needs[@]}"
    rm -f "$out/lib/libfabricast.a"
    if [[ $profile == release ]]; then
        # Beside it for debuggers, which find it by its build id: neither installed nor packed.
        objcopy --only-keep-debug --compress-debug-sections "$out/lib/libfabricast.so.$version.new" "$out/libfabricast.so.$version.debug"
        strip --strip-unneeded "$out/lib/libfabricast.so.$version.new"
        strip --strip-debug --enable-deterministic-archives -o "$out/lib/libfabricast.a" "$archive"
    else
        ln "$archive" "$out/lib/libfabricast.a" 2>/dev/null || cp "$archive" "$out/lib/libfabricast.a"
    fi
    mv "$out/lib/libfabricast.so.$version.new" "$out/lib/libfabricast.so.$version"
    ln -sf "libfabricast.so.$version" "$out/lib/libfabricast.so.$soversion"
    ln -sf "libfabricast.so.$soversion" "$out/lib/libfabricast.so"
    echo "$out"
}

build() {
    local flag=()
    [[ ${1:-} == --release ]] && flag=(--release)
    # It is minutes of a core for a release: whoever waits sees what is compiled.
    echo "capi.sh: compiling libfabricast $version, which takes some minutes the first time" >&2
    cargo build --locked "${flag[@]}" -p fabricast-capi --lib >&2
    link "$@"
}

# The folder with what is installed.
built() {
    if [[ ${CAPI_PROFILE:-release} == debug ]]; then link; else build --release; fi
}

# template NAME TO PREFIX LIBDIR: fills in what is known now.
template() {
    local up
    # From LIBDIR/cmake/fabricast to the prefix, so that the whole can be moved.
    up=../..$(sed -E 's|[^/]+|/..|g; s|//|/|g' <<<"$4")
    sed -e "s|@VERSION@|$version|g; s|@SOVERSION@|$soversion|g; s|@PREFIX@|$3|g; s|@LIBDIR@|$4|g; s|@UP@|$up|g" \
        -e "s|@PRIVATE@|${needs[*]}|g; s|@PRIVATE_LIST@|$(IFS=';' && echo "${needs[*]}")|g" "capi/dist/$1.in" >"$2/$1"
    chmod 644 "$2/$1"
}

install_to() {
    local prefix=${1:-} root=${2:-} libdir=${LIBDIR:-lib} from to
    [[ $prefix == /* && $prefix != *['|&\']* ]] || fail "PREFIX must be an absolute path: '$prefix'"
    from=$(built)
    to=$root${prefix%/}
    install -d "$to/include" "$to/$libdir/pkgconfig" "$to/$libdir/cmake/fabricast"
    install -m 644 "$from"/include/* "$to/include/"
    install -m 644 "$from/lib/libfabricast.a" "$from/lib/libfabricast.so.$version" "$to/$libdir/"
    cp -P "$from/lib/libfabricast.so.$soversion" "$from/lib/libfabricast.so" "$to/$libdir/"
    template fabricast.pc "$to/$libdir/pkgconfig" "${prefix%/}" "$libdir"
    template fabricast-config.cmake "$to/$libdir/cmake/fabricast" "${prefix%/}" "$libdir"
    template fabricast-config-version.cmake "$to/$libdir/cmake/fabricast" "${prefix%/}" "$libdir"
    # Only the loader of this machine looks for it by itself, and only as root may its list be written.
    if [[ -z $root && $EUID == 0 ]] && command -v ldconfig >/dev/null; then ldconfig; fi
    echo "installed fabricast $version to $to"
}

case ${1:-} in
build) shift && build "$@" ;;
link) shift && link "$@" ;;
install) shift && install_to "$@" ;;
deb)
    built >/dev/null
    CAPI_SOVERSION=$soversion capi/dist/deb.sh "${2:-$target/capi/deb}"
    ;;
*)
    sed -n '2,/^$/s/^# \?//p' "$0" >&2
    exit 2
    ;;
esac
