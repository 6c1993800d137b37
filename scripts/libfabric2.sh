#!/usr/bin/env bash
# Gets a libfabric 2.x beside the system's one and prints the path of its libfabric.so.1, and only that.
# Where it can't be had: `SKIPPED: why` on stderr, exit code 77.
#
# The library comes out of the MPICH wheel on PyPI, pinned by hash; nothing is installed.
set -euo pipefail

version=5.0.2
sha256=8fed465ebff269ea2ebac179a25de02671ddf8df476e0f115be089015015cfd4 # mpich-5.0.2-py3-none-manylinux_2_28_x86_64.whl

skip() {
    echo "SKIPPED: libfabric 2.x: $*" >&2
    exit 77
}

root=$(cd "$(dirname "$0")/.." && pwd)
cache=${FABRICAST_CACHE:-$root/.fabricast}
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
home=$cache/mpich-$version
library=$home/mpich-$version.data/data/lib/mpich/libfabric.so.1

[[ $(uname -sm) == "Linux x86_64" ]] || skip "the wheel is for Linux on x86_64, this is $(uname -sm)"
command -v python3 >/dev/null || skip "python3 is not there"

work=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT

# Prints nothing; leaves the wheel in $work. Debian's python3 may come without pip, but with venv.
download() {
    local python=python3
    if ! python3 -m pip --version >/dev/null 2>&1; then
        python3 -m venv "$cache/venv" || return 1
        python=$cache/venv/bin/python
    fi
    echo "mpich==$version --hash=sha256:$sha256" >"$work/requirements.txt"
    timeout 300 "$python" -m pip download --quiet --disable-pip-version-check --no-input \
        --no-deps --only-binary=:all: --require-hashes -r "$work/requirements.txt" -d "$work/wheel"
}

# An honest check: the library is loaded, and asked for its version.
loads() {
    local missing
    missing=$(ldd "$library" 2>&1 | grep "not found") && {
        echo "$missing" >"$work/log"
        return 1
    }
    python3 - "$library" >"$work/log" 2>&1 <<'PYTHON'
import ctypes, sys
version = ctypes.CDLL(sys.argv[1]).fi_version()
sys.exit(0 if version >> 16 == 2 else f"it says version {version >> 16}.{version & 0xffff}")
PYTHON
}

if [[ ! -e $library ]]; then
    download </dev/null >"$work/log" 2>&1 || skip "download failed: $(tail -n 1 "$work/log")"
    mkdir "$work/unpacked"
    python3 -m zipfile -e "$work"/wheel/*.whl "$work/unpacked" || skip "can't unpack the wheel"
    # Moved in one step, so that a half-unpacked wheel is never taken for a whole one; a
    # second run at the same time may have been first, which is as good.
    mv -T "$work/unpacked" "$home" 2>/dev/null || [[ -e $library ]] || skip "can't write to $home"
fi
loads || skip "it does not load: $(tail -n 1 "$work/log")"
echo "$library"
