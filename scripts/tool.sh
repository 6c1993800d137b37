#!/usr/bin/env bash
# Builds and packs the command `fabricast`, with its manual pages and what shells complete its command lines with.
#
#   tool.sh install PREFIX [DESTDIR]   below DESTDIR, for PREFIX
#   tool.sh deb [FOLDER]               the package fabricast, into target/capi/deb or FOLDER
#
# Both take the release build and make it first; with CAPI_PROFILE=debug, the debug build, which is made only where it is not there.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/deb.sh

target=${CARGO_TARGET_DIR:-target}

fail() {
    echo "tool.sh: $*" >&2
    exit 1
}

# Prints the program.
built() {
    local program=$target/release/fabricast
    if [[ ${CAPI_PROFILE:-release} == debug ]]; then
        program=$target/debug/fabricast
        [[ -x $program ]] || cargo build --locked -p fabricast-cli >&2
    else
        echo "tool.sh: compiling fabricast, which takes some minutes the first time" >&2
        cargo build --locked --release -p fabricast-cli >&2
    fi
    echo "$program"
}

install_to() {
    local prefix=${1:-} root=${2:-} program to shell file
    [[ $prefix == /* ]] || fail "PREFIX must be an absolute path: '$prefix'"
    program=$(built)
    to=$root${prefix%/}
    install -d "$to/bin" "$to/share/man/man1"
    install -s -m 755 "$program" "$to/bin/fabricast"
    "$program" man "$to/share/man/man1"
    local -A completions=(
        [bash]=bash-completion/completions/fabricast
        [zsh]=zsh/${ZSH_FOLDER:-site-functions}/_fabricast
        [fish]=fish/vendor_completions.d/fabricast.fish
    )
    for shell in "${!completions[@]}"; do
        file=$to/share/${completions[$shell]}
        install -d "$(dirname "$file")"
        "$program" completions "$shell" >"$file"
        chmod 644 "$file"
    done
    chmod 644 "$to"/share/man/man1/fabricast*.1
    echo "installed $to/bin/fabricast"
    echo "installed manual pages to $to/share/man/man1: man fabricast, man fabricast-send and so on"
    echo "installed completions for bash, zsh and fish below $to/share"
}

deb() {
    deb_begin "${1:-$target/capi/deb}"
    local to=$work/fabricast
    ZSH_FOLDER=vendor-completions install_to /usr "$to" >/dev/null
    gzip -9n "$to"/usr/share/man/man1/*.1
    copyright fabricast fabricast-cli
    control fabricast net "Depends: libc6 (>= $(libc_version "$to/usr/bin/fabricast")), libgcc-s1
Recommends: libfabric1 (>= 1.17)
Suggests: openssh-client" \
        "moves files, objects and events between machines" \
        "fabricast sends files and directories to several machines in one reading," \
        "over libfabric: TCP, or RDMA where there is some. It serves and fetches" \
        "objects, and says what a machine lacks (fabricast doctor)." \
        "libfabric is loaded at run time, from where FABRICAST_LIBFABRIC says or" \
        "the system's place."
    pack fabricast
}

case ${1:-} in
install) shift && install_to "$@" ;;
deb) shift && deb "$@" ;;
*)
    sed -n '2,/^$/s/^# \?//p' "$0" >&2
    exit 2
    ;;
esac
