#!/usr/bin/env bash
# Builds the C interface: libfabricast.so (with a soname and symbol versions), libfabricast.a and the headers.
#
#   capi.sh build [--release]     into target/capi/debug or target/capi/release; prints that folder
#
# Rust's own shared libraries have neither symbol versions nor a soname, so ours is linked from the static one.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
# Before 1.0 every minor version may change the interface.
soversion=0.${version#*.}
soversion=${soversion%.*}

build() {
    local profile=debug flag=()
    [[ ${1:-} == --release ]] && profile=release flag=(--release)
    cargo build --locked -q "${flag[@]}" -p fabricast-capi --lib >&2
    local target=${CARGO_TARGET_DIR:-target} out
    out=${target}/capi/$profile
    mkdir -p "$out/lib" "$out/include"
    install -m 644 capi/include/* "$out/include/"
    install -m 644 "$target/$profile/libfabricast_capi.a" "$out/lib/libfabricast.a"
    cc -shared -o "$out/lib/libfabricast.so.$version" \
        -Wl,--whole-archive "$out/lib/libfabricast.a" -Wl,--no-whole-archive \
        -Wl,--version-script=capi/fabricast.map -Wl,-soname,"libfabricast.so.$soversion" \
        -Wl,--gc-sections -Wl,-z,relro,-z,now -Wl,--no-undefined -lgcc_s -lpthread -lm -ldl -lc
    ln -sf "libfabricast.so.$version" "$out/lib/libfabricast.so.$soversion"
    ln -sf "libfabricast.so.$soversion" "$out/lib/libfabricast.so"
    echo "$out"
}

case ${1:-} in
build) shift; build "$@" ;;
*) sed -n '2,/^$/s/^# \?//p' "$0" >&2; exit 2 ;;
esac
