#!/usr/bin/env bash
# Packs what `capi.sh install` installs as libfabricast$CAPI_SOVERSION and libfabricast-dev. Called by scripts/capi.sh deb.
#
#   deb.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
source scripts/deb.sh

soversion=$CAPI_SOVERSION
deb_begin "$1"
triplet=$(cc -print-multiarch)
libdir=lib/${triplet:-$(uname -m)-linux-gnu}
runtime=libfabricast$soversion

# Every exported symbol with the version that it is there since; a tool that builds packages on top reads it.
symbols() {
    printf 'libfabricast.so.%s %s #MINVER#\n' "$soversion" "$runtime"
    printf ' FABRICAST_%s@FABRICAST_%s %s.0\n' "$soversion" "$soversion" "$soversion"
    nm -D --defined-only "$1" | awk -v of="FABRICAST_$soversion" '
        FILENAME != "-" { if ($1 == "function") since[$2] = $3; next }
        $2 == "T" { name = $3; sub("@.*", "", name); print " " name "@" of, (name in since) ? since[name] : "'"$version"'" }' \
        capi/abi.tsv - | LC_ALL=C sort
}

LIBDIR=$libdir scripts/capi.sh install /usr "$work/libfabricast-dev" >/dev/null
library=usr/$libdir/libfabricast.so.$version
mkdir -p "$work/$runtime/usr/$libdir"
mv "$work/libfabricast-dev/$library" "$work/libfabricast-dev/usr/$libdir/libfabricast.so.$soversion" "$work/$runtime/usr/$libdir/"
copyright "$runtime" fabricast-capi
copyright libfabricast-dev fabricast-capi

libc="libc6 (>= $(libc_version "$work/$runtime/$library"))"
control "$runtime" libs "Multi-Arch: same
Depends: $libc, libgcc-s1
Recommends: libfabric1 (>= 1.17)" \
    "moves bytes from storage and GPU memory to network peers" \
    "fabricast sends and receives over libfabric, without a copy of its own." \
    "This package has the shared library for C and C++ programs." \
    "libfabric is loaded at run time, from where FABRICAST_LIBFABRIC says or" \
    "the system's place."
control libfabricast-dev libdevel "Multi-Arch: same
Depends: $runtime (= $version), libc6-dev
Suggests: pkg-config, cmake" \
    "moves bytes over libfabric: files for development" \
    "Headers for C and C++, the static library, a pkg-config file and a CMake" \
    "package of fabricast."
printf 'libfabricast %s %s (>= %s.0)\n' "$soversion" "$runtime" "$soversion" >"$work/$runtime/DEBIAN/shlibs"
symbols "$work/$runtime/$library" >"$work/$runtime/DEBIAN/symbols"
echo "activate-noawait ldconfig" >"$work/$runtime/DEBIAN/triggers"
pack "$runtime"
pack libfabricast-dev
