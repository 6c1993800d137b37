#!/usr/bin/env bash
# Packs what verbs.sh wants on a Linux machine that has nothing of it: no QEMU, no RDMA libraries, no packages to be had, no toolchain.
#
#   pack.sh ARCHIVE PROGRAM...   test programs and examples by their names; the archive's suffix says how it is packed (.tar.gz, .tar.xz)
#
# There: tar xf ARCHIVE && verbs/run PARTS...   (what verbs.sh takes; VERBS_CPUS, VERBS_MEMORY and the like as well)
# In the archive are QEMU with its libraries and firmware, the kernel, both libfabrics, a root for the guests with a shell and the RDMA tools, the
# programs without their debug information, and the scripts. `tools` and what else starts programs of target/ does not run there.
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH=$PATH:/usr/sbin:/sbin

(($# >= 2)) || { sed -n 's/^#   //p' "$0" >&2 && exit 2; }
archive=$(realpath "$1")
shift
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
out=$room/verbs
root=$out/root

# What the guest's root has beside the programs: the shell, what agent.sh and the parts call, and what one looks around with.
commands=(bash cat cut cp date dd echo env false grep head id ip kill ls mkdir mktemp mv nice printf rdma rm sed seq sleep sort stat strace
    tail test timeout touch tr true uname wc fi_info fi_pingpong ibv_devices ibv_devinfo)

# with_libraries DIRECTORY FILE...: copies files and what they are linked with.
with_libraries() {
    local into=$1 file
    shift
    ldd "$@" 2>/dev/null | grep -oE '/[^ ]+\.so[^ :]*' | sort -u | while read -r file; do
        cp -Ln "$file" "$into/"
    done
}

mkdir -p "$root"/{usr/{bin,lib/x86_64-linux-gnu/libibverbs,lib64,local/bin,sbin},etc,proc,sys,dev,run,tmp,root} "$out"/{qemu/lib,qemu/firmware,repository/target,cache}
for link in bin sbin lib lib64; do ln -s "usr/$link" "$root/$link"; done

files=()
for name in "${commands[@]}"; do
    path=$(type -P "$name") || continue
    cp -L "$path" "$root/usr/bin/"
    files+=("$path")
done
libraries=$root/usr/lib/x86_64-linux-gnu
for path in /usr/lib/x86_64-linux-gnu/{libfabric.so.1,libibverbs/librxe-rdmav*.so,libgcc_s.so.1,libm.so.6,libdl.so.2,libpthread.so.0}; do
    files+=("$path")
    cp -Ln "$path" "$libraries/$([[ $path != */libibverbs/* ]] || echo libibverbs)/"
done
cp -r /etc/libibverbs.d "$root/etc/"
echo 'root:x:0:0::/root:/bin/bash' >"$root/etc/passwd"
echo '127.0.0.1 localhost' >"$root/etc/hosts"

scripts/verbs.sh links "$@"
for name in "$@"; do
    strip -o "$root/usr/local/bin/$name" "target/verbs-logs/bin/$name"
    files+=("target/verbs-logs/bin/$name")
done
with_libraries "$libraries" "${files[@]}"
cp -L /lib64/ld-linux-x86-64.so.2 "$root/usr/lib64/"

qemu=$(type -P qemu-system-x86_64)
cp "$qemu" "$out/qemu/"
modules=/usr/lib/x86_64-linux-gnu/qemu
mkdir -p "$out/qemu/modules"
cp "$modules"/accel-tcg-x86_64.so "$out/qemu/modules/"
with_libraries "$out/qemu/lib" "$qemu" "$modules/accel-tcg-x86_64.so"
cp -L /lib64/ld-linux-x86-64.so.2 "$out/qemu/lib/"
cp /usr/share/seabios/bios-256k.bin /usr/share/qemu/{kvmvapic,linuxboot,linuxboot_dma,multiboot_dma,pvh}.bin "$out/qemu/firmware/"
cat >"$out/qemu/run" <<'RUN'
#!/bin/sh
at=$(dirname "$(readlink -f "$0")")
export QEMU_MODULE_DIR="$at/modules"
exec "$at/lib/ld-linux-x86-64.so.2" --library-path "$at/lib" "$at/qemu-system-x86_64" -L "$at/firmware" "$@"
RUN

cp -r scripts "$out/repository/"
cp -r "$(scripts/verbs/kernel.sh)" "$out/cache/"
# A layer lies in the guest's root, and is looked for among what was fetched.
if layer=$(scripts/libfabric-verbs.sh); then
    cp -r "$layer" "$root/"
    ln -s "../root/${layer##*/}" "$out/cache/"
fi
cat >"$out/run" <<'RUN'
#!/bin/sh
at=$(dirname "$(readlink -f "$0")")
export VERBS_ROOT="$at/root" VERBS_QEMU="$at/qemu/run" FABRICAST_CACHE="$at/cache"
exec "$at/repository/scripts/verbs.sh" "$@"
RUN
chmod +x "$out/run" "$out/qemu/run"
tar -C "$room" -caf "$archive" verbs
echo "$archive: $(du -m "$archive" | cut -f 1) MB"
