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

command -v apt-get >/dev/null || skip "no apt-get here"
command -v dpkg-deb >/dev/null || skip "no dpkg-deb here"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[[ -e $keyring ]] || skip "$keyring is missing (package debian-archive-keyring)"

work=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT

# The mirror that this machine uses for its own Debian, else Debian's public name.
mirror() {
    local id='' codename='' found=''
    # shellcheck source=/dev/null
    id=$(. /etc/os-release && echo "${ID:-}") codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    if [[ $id == debian && -n $codename ]]; then
        # shellcheck disable=SC2016  # apt expands these, not the shell
        found=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
            awk -v release="$codename" '($1 == release || $1 == "stable") && $2 == "main" { print $3; exit }')
    fi
    echo "${found:-http://deb.debian.org/debian}"
}

# Proxies and the like are taken over from the system's settings; hooks that run after an update are not.
write_config() {
    mkdir -p "$work"/{lists/partial,cache/archives/partial,state}
    : >"$work/state/status"
    echo "deb [signed-by=$keyring] $(mirror) $suite main" >"$work/sources.list"
    apt-config dump | grep '^Acquire::' >"$work/apt.conf"
    cat >>"$work/apt.conf" <<CONFIG
Dir::Etc::Main "/dev/null";
Dir::Etc::Parts "/dev/null";
Dir::Etc::SourceList "$work/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State "$work/state";
Dir::State::Lists "$work/lists";
Dir::State::Status "$work/state/status";
Dir::Cache "$work/cache";
Acquire::Languages "none";
Acquire::Retries "2";
APT::Sandbox::User "";
CONFIG
}

download() {
    export APT_CONFIG=$work/apt.conf
    timeout 300 apt-get update -q -o APT::Update::Error-Mode=any || return 1
    cd "$work" && timeout 300 apt-get download -q "$package" || return 1
}

write_config
(download) </dev/null >"$work/log" 2>&1 || skip "download failed: $(grep -E '^[EW]:' "$work/log" | tail -n 1)"
mkdir "$work/unpacked"
dpkg-deb -x "$work/$package"_*.deb "$work/unpacked" || skip "can't unpack the package"
# Moved in one step: a half-unpacked tree is never taken for a whole one.
mv -T "$work/unpacked" "$home" 2>/dev/null || [[ -e $include/rdma/fabric.h ]] || skip "can't write to $home"
[[ -e $include/rdma/fabric.h ]] || skip "the package holds no rdma/fabric.h"
echo "$include"
