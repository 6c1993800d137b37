#!/usr/bin/env bash
# Installs what is missing through the system's package manager, and says which command it runs.
#
#   setup.sh run     what the demo and the benches need: libfabric, a linker
#   setup.sh test    also what the tests need: headers, valgrind, ip, python3, a C++ compiler, pkg-config, cmake
#   setup.sh peers  what the demo needs, and the programs that benches/peers is beside, each as far as the distribution has it
#   setup.sh verbs   what the demo needs, and what verbs.sh starts its guests with: QEMU, rdma, the RDMA libraries
set -euo pipefail

mode=${1:-run}
case $mode in
run | test | peers | verbs) ;;
*)
    echo "usage: setup.sh run|test|peers|verbs" >&2
    exit 2
    ;;
esac

# ldconfig and ip live where an ordinary user's PATH does not look.
PATH=$PATH:/usr/sbin:/sbin
oldest=1.17

say() { echo "setup: $*"; }

have_libfabric() {
    [[ -n ${FABRICAST_LIBFABRIC:-} ]] && return 0
    # No `grep -q`: it would end early, and pipefail would take the broken pipe of ldconfig for a miss.
    ldconfig -p 2>/dev/null | grep libfabric.so.1 >/dev/null
}

# A compiler without the C library's start files links nothing, so look for those as well.
have_linker() { command -v cc >/dev/null && [[ $(cc -print-file-name=crt1.o) == /* ]]; }

# The compiler without its library compiles nothing.
have_cxx() { command -v c++ >/dev/null && echo '#include <vector>' | c++ -x c++ -fsyntax-only - 2>/dev/null; }

have_venv() { python3 -c 'import ensurepip' 2>/dev/null || python3 -m pip --version >/dev/null 2>&1; }

installed() { [[ $(dpkg-query -W -f '${Status}' "$1" 2>/dev/null) == *" ok installed" ]]; }

have_rxe() { compgen -G '/usr/lib*/*/libibverbs/librxe-rdmav*.so' >/dev/null || compgen -G '/usr/lib*/libibverbs/librxe-rdmav*.so' >/dev/null; }

# Sets `needed` and `optional` (lists of Debian package names) to what this machine lacks.
find_missing() {
    needed=() optional=()
    have_libfabric || needed+=(libfabric1)
    have_linker || needed+=(gcc libc6-dev)
    command -v make >/dev/null || needed+=(make)
    command -v ip >/dev/null || optional+=(iproute2)
    command -v fi_pingpong >/dev/null || optional+=(libfabric-bin)
    if [[ $mode == verbs ]]; then
        command -v qemu-system-x86_64 >/dev/null || needed+=(qemu-system-x86)
        command -v rdma >/dev/null || needed+=(iproute2)
        have_rxe || needed+=(ibverbs-providers)
        # For looking around in a guest.
        command -v ibv_devinfo >/dev/null || optional+=(ibverbs-utils)
    fi
    if [[ $mode == peers ]]; then
        command -v python3 >/dev/null || needed+=(python3)
        have_venv || optional+=(python3-venv)
        command -v pkg-config >/dev/null || optional+=(pkg-config)
        pkg-config --exists libzmq 2>/dev/null || optional+=(libzmq3-dev)
        command -v ucx_perftest >/dev/null || optional+=(ucx-utils)
        command -v iperf3 >/dev/null || optional+=(iperf3)
        command -v rsync >/dev/null || optional+=(rsync)
        command -v nc >/dev/null || optional+=(netcat-openbsd)
        command -v xrdcp >/dev/null || optional+=(xrootd-client)
        command -v xrootd >/dev/null || optional+=(xrootd-server)
    fi
    [[ $mode == test ]] || return 0
    [[ -e /usr/include/rdma/fabric.h ]] || needed+=(libfabric-dev)
    command -v valgrind >/dev/null || needed+=(valgrind)
    command -v python3 >/dev/null || needed+=(python3)
    have_cxx || needed+=(g++)
    # One project of the tests of the C interface.
    command -v pkg-config >/dev/null || needed+=(pkg-config)
    command -v cmake >/dev/null || optional+=(cmake)
    have_venv || needed+=(python3-venv)
    [[ -e /etc/ssl/certs/ca-certificates.crt ]] || needed+=(ca-certificates)
    # Ubuntu packages the keys of Debian; headers2.sh verifies Debian's archive with them.
    [[ -e /usr/share/keyrings/debian-archive-keyring.gpg ]] || optional+=(debian-archive-keyring)
    # One test starts an sshd of its own. The package starts one, too, which nobody's own machine should get from a script for tests.
    [[ -z ${CI:-} ]] || command -v sshd >/dev/null || optional+=(openssh-server)
}

# Says the command, runs it as root, and shows its output only when it fails.
as_root() {
    local sudo=() log status=0
    if ((EUID != 0)); then
        command -v sudo >/dev/null || {
            say "neither root nor sudo; please run as root: $*"
            return 1
        }
        if [[ -t 0 ]]; then sudo=(sudo); else sudo=(sudo -n); fi
    fi
    echo "+ ${sudo[*]:+${sudo[*]} }$*"
    log=$(mktemp)
    "${sudo[@]}" "$@" >"$log" 2>&1 </dev/null || status=$?
    ((status == 0)) || cat "$log"
    rm -f "$log"
    return "$status"
}

apt_install() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        -o DPkg::Lock::Timeout=300 "$@"
}

install_on_debian() {
    # Lists that are old or empty name packages that the mirror no longer has. A foreign
    # source that can't be reached is no reason to stop: the install below decides.
    as_root apt-get update -q -o DPkg::Lock::Timeout=300 || say "apt-get update had errors; going on"
    if ((${#needed[@]})); then apt_install "${needed[@]}"; fi
    local package
    for package in "${optional[@]}"; do
        apt_install "$package" || say "$package is optional; going on without it"
    done
}

advise_elsewhere() {
    say "this is not Debian or Ubuntu; missing here (Debian's names): ${needed[*]} ${optional[*]}"
    say "  Fedora, RHEL: dnf install libfabric libfabric-devel gcc make valgrind iproute python3"
    say "  openSUSE:     zypper install libfabric1 libfabric-devel gcc make valgrind iproute2 python3"
    say "  Arch:         pacman -S libfabric gcc make valgrind iproute2 python"
    if ! have_libfabric; then
        say "no libfabric.so.1 found: install it, or set FABRICAST_LIBFABRIC=/path/to/libfabric.so.1"
        exit 1
    fi
    say "libfabric is there; going on"
}

# Ubuntu 22.04 ships a libfabric older than fabricast takes: better said here than found later.
warn_if_old() {
    [[ -z ${FABRICAST_LIBFABRIC:-} ]] && command -v dpkg >/dev/null && installed libfabric1 || return 0
    local version
    version=$(dpkg-query -W -f '${Version}' libfabric1)
    if dpkg --compare-versions "$version" lt "$oldest"; then
        say "libfabric1 $version is older than $oldest, which fabricast needs."
        say "  a newer one for this user alone: export FABRICAST_LIBFABRIC=\$(scripts/libfabric2.sh)"
        exit 1
    fi
}

if ! command -v cargo >/dev/null; then
    say "cargo is not in PATH: install Rust 1.88 or newer first, see https://rustup.rs"
    exit 1
fi
find_missing
# A machine where an optional package can't be had should not ask for it at every call.
declined=${FABRICAST_CACHE:-$(dirname "$0")/../.fabricast}/declined
if ((${#needed[@]} == 0)) && [[ "${optional[*]}" == "$(cat "$declined" 2>/dev/null || true)" ]]; then
    warn_if_old
    say "all there"
    exit 0
fi
if command -v apt-get >/dev/null; then
    install_on_debian
else
    advise_elsewhere
fi
missed=("${needed[@]}")
find_missing
mkdir -p "$(dirname "$declined")"
echo "${optional[*]}" >"$declined"
if ((${#needed[@]})) && command -v apt-get >/dev/null; then
    say "still missing: ${needed[*]}"
    exit 1
fi
warn_if_old
say "done (installed: ${missed[*]:-only optional packages})"
