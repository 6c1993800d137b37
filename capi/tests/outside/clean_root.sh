#!/usr/bin/env bash
# Installs the two packages into a root of their own and builds and runs the outside projects there.
#
#   clean_root.sh FOLDER_OF_DEBS
#
# The root has what this machine's packages libfabric1, gcc, g++, make, cmake and pkg-config and all that these depend on brought, and
# nothing else: nothing is downloaded. dpkg installs ours into it, and refuses if they depend on something that is not there. Where there can
# be no such root they are unpacked beside this machine's own files, and a line SKIPPED says why.
set -euo pipefail

outside=$(cd "$(dirname "$0")" && pwd)
debs=$(cd "$1" && pwd)
# On the same file system as what is linked into it, where that can be.
room=$(mktemp -d "${TMPDIR:-/var/tmp}/clean-root.XXXXXX")
trap 'rm -rf "$room"' EXIT
root=$room/root
mkdir -p "$root"

# Installed packages, with all that they depend on.
closure() {
    local names=("$@") name fields seen=' '
    while ((${#names[@]})); do
        name=${names[0]}
        names=("${names[@]:1}")
        [[ $seen != *" $name "* ]] || continue
        # What another package provides, or is not installed, is left out: dpkg says so if it mattered.
        fields=$(dpkg-query -W -f '${Status}, ${Pre-Depends}, ${Depends}' "$name" 2>/dev/null) || continue
        [[ $fields == *" ok installed,"* ]] || continue
        fields=${fields#*,}
        seen+="$name "
        mapfile -t -O "${#names[@]}" names < <(tr ",|" "\n\n" <<<"$fields" | sed -E "s,^ +,,; s,[ :(].*,,; /^$/d")
    done
    tr ' ' '\n' <<<"$seen" | sed '/^$/d'
}

# The files of packages by their names in /usr, whether or not this machine's /bin is a link to there.
files_of() {
    dpkg -L "$@" | sed -E '/^\/usr\/share\/(doc|man|locale|info|lintian)\//d; s|^/(bin\|sbin\|lib\|lib32\|lib64\|libx32)/|/usr/\1/|' | sort -u |
        while read -r path; do [[ -d $path && ! -L $path ]] || printf '%s\0' "${path#/}"; done
}

fill_root() {
    local packages=("$@") top link=(--link)
    mkdir -p "$root"/{dev,proc,tmp,etc,usr} "$root"/var/lib/dpkg/{info,updates,triggers} "$room/list"
    for top in bin sbin lib lib32 lib64 libx32; do
        [[ ! -L /$top ]] || { ln -s "usr/$top" "$root/$top" && mkdir -p "$root/usr/$top"; }
    done
    files_of "${packages[@]}" >"$room/list/all"
    ln /usr/bin/env "$room/list/env" 2>/dev/null || link=()
    (cd / && grep -z '^usr/' "$room/list/all" | { xargs -0 cp -a "${link[@]}" --parents -t "$root" 2>/dev/null || true; })
    # Such as cc, and a library that libfabric takes: links of no package.
    cp -a /etc/alternatives "$root/etc/"
    (cd / && find usr/bin usr/lib -maxdepth 2 -lname '/etc/alternatives/*' -exec cp -a --parents -t "$root" {} +)
    cp -a /dev/null /dev/zero /dev/urandom "$root/dev/"
    echo 127.0.0.1 localhost >"$root/etc/hosts"
    local name
    for name in "${packages[@]}"; do dpkg-query -s "$name" && echo; done >"$root/var/lib/dpkg/status"
    cp -a /var/lib/dpkg/info/libc-bin.* "$root/var/lib/dpkg/info/"
    cp -aL /etc/ld.so.conf /etc/ld.so.conf.d "$root/etc/"
}

# Why there can be no root here, or nothing.
lacking() {
    if ((EUID != 0)); then echo "it takes root"
    elif ! command -v dpkg-query >/dev/null || ! dpkg-query -W libfabric1 >/dev/null 2>&1; then echo "libfabric1 is not a package of this machine"
    elif ! unshare -m true 2>/dev/null; then echo "this machine lets nobody make a mount namespace"
    elif ! command -v cmake >/dev/null || [[ $(command -v cmake) != /usr/bin/cmake ]]; then echo "cmake is not a package of this machine"
    fi
}

# As the text of a shell: it runs in the chroot and outside of it.
projects='
show() { cat "$1"; exit 1; }
cd "$1/outside/pkgconfig" && make >"$1/make.log" 2>&1 || show "$1/make.log"
[ "$(grep -c ": hello$" "$1/make.log")" = 3 ] || show "$1/make.log"
cmake -S "$1/outside/cmake" -B "$1/build" >"$1/cmake.log" 2>&1 || show "$1/cmake.log"
cmake --build "$1/build" >"$1/cmake.log" 2>&1 || show "$1/cmake.log"
cd "$1/build"
for program in shared static cxx; do
    [ "$(timeout 60 ./$program)" = hello ] || { echo "$program, built by cmake, does not say hello"; exit 1; }
done
'

in_root() {
    mkdir -p "$root/work"
    cp -r "$outside" "$root/work/outside"
    # proc, which compilers want, goes with the namespace.
    unshare -m bash -c 'mount -t proc proc "$1/proc" 2>/dev/null; exec chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp sh -c "$2" sh /work' \
        bash "$root" "$projects"
}

beside() {
    local libdir
    mkdir -p "$room/work"
    for deb in "$debs"/libfabricast*.deb; do dpkg-deb -x "$deb" "$root"; done
    libdir=$(dirname "$(find "$root/usr/lib" -name libfabricast.a)")
    cp -r "$outside" "$room/work/outside"
    env PKG_CONFIG_PATH="$libdir/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$root" CMAKE_PREFIX_PATH="$root/usr" \
        LD_LIBRARY_PATH="$libdir" sh -c "$projects" sh "$room/work"
}

why=$(lacking)
if [[ -n $why ]]; then
    echo "SKIPPED: the packages in a clean root: $why (unpacked beside this machine's files instead)"
    beside
    exit
fi
mapfile -t packages < <(closure libfabric1 gcc g++ make cmake pkg-config libc6-dev libc-bin dash coreutils sed grep)
fill_root "${packages[@]}"
dpkg --root="$root" --force-not-root -i "$debs"/libfabricast*.deb >"$room/dpkg.log" 2>&1 || {
    cat "$room/dpkg.log"
    exit 1
}
in_root
echo "both packages, installed by dpkg into a root of ${#packages[@]} packages: built and run there"
