#!/usr/bin/env bash
# Gets the kernel of Debian 12 and busybox, and prints the directory that they lie in, and only that:
# vmlinuz, busybox, version, and lib/modules with the modules that the guest wants.
# Where they can't be had: `SKIPPED: why` on stderr, exit code 77. Nothing is installed; the packages are signed by Debian.
set -euo pipefail

suite=bookworm
# All that init asks for, and siw for a kernel that has it; what they depend on comes with them.
modules=(crc32_generic crc32-pclmul virtio_pci virtio_rng 9pnet_virtio 9p overlay virtio_net rdma_rxe siw ib_uverbs rdma_ucm)

skip() {
    echo "SKIPPED: a kernel for the guest: $*" >&2
    exit 77
}

root=$(cd "$(dirname "$0")/../.." && pwd)
cache=${FABRICAST_CACHE:-$root/.fabricast}
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
home=$cache/kernel-$suite
if [[ -e $home/vmlinuz ]]; then
    echo "$home"
    exit 0
fi

# shellcheck source=scripts/private-apt.sh
. "$root/scripts/private-apt.sh"
lacks=$(private_apt_lacks)
[[ -z $lacks ]] || skip "$lacks"
work=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
out=$work/out

# The unsigned package: the image is the same but for a signature that nobody checks here, and it has the modules.
download() {
    private_apt "$work" "$suite" || return 1
    timeout 300 apt-get update -q -o APT::Update::Error-Mode=any || return 1
    apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: linux-image-//p' | head -n 1 >"$work/version"
    [[ -s $work/version ]] || return 1
    private_apt_get "$work/packages" busybox-static "linux-image-$(cat "$work/version")-unsigned"
}

# Copies the modules and what they depend on; the lists for modprobe are made of what was copied.
copy_modules() {
    local version=$1 from=$work/unpacked/lib/modules/$1 name file
    "$out/busybox" depmod -b "$work/unpacked" "$version"
    for name in "${modules[@]}"; do
        sed -n "s|^\(.*/\)\?\(${name//[-_]/[-_]}\.ko\): *|\1\2 |p" "$from/modules.dep"
    done | tr ' ' '\n' | sort -u | while read -r file; do
        [[ -n $file ]] || continue
        mkdir -p "$out/lib/modules/$version/${file%/*}"
        cp "$from/$file" "$out/lib/modules/$version/$file"
    done
    "$out/busybox" depmod -b "$out" "$version"
}

begin=$SECONDS
(download) </dev/null >"$work/log" 2>&1 || skip "download failed: $(grep -E '^[EW]:' "$work/log" | tail -n 1)"
echo "kernel: downloaded $(du -sm "$work/packages" | cut -f 1) MB in $((SECONDS - begin)) s: $(cd "$work/packages" && echo *)" >&2
for package in "$work"/packages/*.deb; do
    dpkg-deb -x "$package" "$work/unpacked" || skip "can't unpack ${package##*/}"
done
version=$(cat "$work/version")
mkdir "$out"
mv "$work/unpacked/bin/busybox" "$out/busybox" || skip "the package has no busybox"
mv "$work/unpacked/boot/vmlinuz-$version" "$out/vmlinuz" || skip "the package has no kernel"
copy_modules "$version"
cp "$work/version" "$out/version"
# Moved in one step: a half-unpacked tree is never taken for a whole one.
mv -T "$out" "$home" 2>/dev/null || [[ -e $home/vmlinuz ]] || skip "can't write to $home"
echo "kernel: ready after $((SECONDS - begin)) s" >&2
echo "$home"
