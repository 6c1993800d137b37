#!/usr/bin/env bash
# Gets the libfabric 2.x of Debian 13, which has the provider verbs, and prints the directory that it lies in, and only that.
# Where it can't be had: `SKIPPED: why` on stderr, exit code 77.
#
# It wants a C library that is newer than that of Debian 12, so the directory holds that, too, and all else that the library is linked with: it is
# no library to load into a program of this machine, but a layer that verbs.sh lays over the root of its guest. The packages are signed by Debian.
set -euo pipefail

suite=trixie
# With the RDMA libraries that go with it: what they need is asked of the programs below, not of the packages' dependencies.
packages=(libfabric1 ibverbs-providers libibverbs1 librdmacm1t64 libnl-3-200 libnl-route-3-200 libpsm2-2 libnuma1 libuuid1 libc6)

skip() {
    echo "SKIPPED: libfabric 2.x with verbs: $*" >&2
    exit 77
}

root=$(cd "$(dirname "$0")/.." && pwd)
cache=${FABRICAST_CACHE:-$root/.fabricast}
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
home=$cache/verbs-$suite
libraries=usr/lib/x86_64-linux-gnu

[[ $(uname -sm) == "Linux x86_64" ]] || skip "the guest is for Linux on x86_64, this is $(uname -sm)"
work=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT

# An honest check: the library is loaded with its own C library, and all its symbols are bound.
loads() {
    local directory=$1
    LD_BIND_NOW=1 "$directory/usr/lib64/ld-linux-x86-64.so.2" --inhibit-cache --library-path "$directory/$libraries" --list \
        "$directory/$libraries/libfabric.so.1" >"$work/log" 2>&1 || return 1
    # Nothing of this machine may have filled a gap.
    ! grep -E 'not found|=> /' "$work/log" | grep -vF "=> $directory/" >"$work/foreign" || {
        mv "$work/foreign" "$work/log"
        return 1
    }
    [[ $(readlink "$directory/$libraries/libfabric.so.1") == libfabric.so.1.2[0-9].* ]]
}

if [[ ! -e $home ]]; then
    # shellcheck source=scripts/private-apt.sh
    . "$root/scripts/private-apt.sh"
    lacks=$(private_apt_lacks)
    [[ -z $lacks ]] || skip "$lacks"
    (
        private_apt "$work" "$suite" && private_apt_get "$work/packages" "${packages[@]}"
    ) </dev/null >"$work/log" 2>&1 || skip "download failed: $(grep -E '^[EW]:' "$work/log" | tail -n 1)"
    mkdir "$work/unpacked"
    for package in "$work"/packages/*.deb; do
        dpkg-deb -x "$package" "$work/unpacked" || skip "can't unpack ${package##*/}"
    done
    echo "libfabric-verbs: downloaded $(du -sm "$work/packages" | cut -f 1) MB: $(cd "$work/packages" && echo *)" >&2
    rm -rf "$work/unpacked/usr/share"
    dpkg-deb -f "$work"/packages/libfabric1_*.deb Version | sed 's/-[^-]*$//' >"$work/unpacked/libfabric-version"
    loads "$work/unpacked" || skip "it does not load: $(head -n 3 "$work/log" | tr '\n' ' ')"
    # Moved in one step: a half-unpacked tree is never taken for a whole one.
    mv -T "$work/unpacked" "$home" 2>/dev/null || [[ -e $home ]] || skip "can't write to $home"
fi
loads "$home" || skip "it does not load: $(head -n 3 "$work/log" | tr '\n' ' ')"
echo "$home"
