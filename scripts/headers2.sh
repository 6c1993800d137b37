#!/usr/bin/env bash
# Gets the libfabric 2.x headers of Debian 13 and prints their directory (it holds rdma/fabric.h), and only that.
# Where they can't be had: `SKIPPED: why` on stderr, exit code 77.
#
# Works with a private apt: its own sources, lists and cache. The system's apt state is not touched, root is not needed.
set -euo pipefail

suite=trixie
package=libfabric-dev

skip() {
    echo "SKIPPED: libfabric 2.x headers: $*" >&2
    exit 77
}

root=$(cd "$(dirname "$0")/.." && pwd)
cache=${FABRICAST_CACHE:-$root/.fabricast}
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
home=$cache/headers-$suite
include=$home/usr/include

if [[ -e $include/rdma/fabric.h ]]; then
    echo "$include"
    exit 0
fi

# shellcheck source=scripts/private-apt.sh
. "$root/scripts/private-apt.sh"
lacks=$(private_apt_lacks)
[[ -z $lacks ]] || skip "$lacks"

work=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT

(
    private_apt "$work" "$suite" && private_apt_get "$work" "$package"
) </dev/null >"$work/log" 2>&1 || skip "download failed: $(grep -E '^[EW]:' "$work/log" | tail -n 1)"
mkdir "$work/unpacked"
dpkg-deb -x "$work/$package"_*.deb "$work/unpacked" || skip "can't unpack the package"
# Moved in one step: a half-unpacked tree is never taken for a whole one.
mv -T "$work/unpacked" "$home" 2>/dev/null || [[ -e $include/rdma/fabric.h ]] || skip "can't write to $home"
[[ -e $include/rdma/fabric.h ]] || skip "the package holds no rdma/fabric.h"
echo "$include"
