#!/usr/bin/env bash
# What benches/peers is beside and no distribution has: a program over zenoh, built as a crate of its own, and NIXL and Mooncake from Python's
# packages. All of it in target/peers; what can't be had, peers.py leaves out with the reason.
set -euo pipefail
cd "$(dirname "$0")/.."
place=target/peers

# Each function ends with the status of its first failure: what is called in front of `||` does not stop by itself.

# Is it newer than what it is made of?
is_current() { [[ -e $1 && ! $2 -nt $1 ]]; }

zenoh() {
    local crate=$place/zenoh
    local built=$crate/target/release/zenoh_messages
    ! is_current "$built" benches/peers/zenoh_messages.rs || return 0
    mkdir -p "$crate/src"
    cp benches/peers/zenoh_messages.rs "$crate/src/main.rs"
    # The features that two peers over tcp need.
    cat >"$crate/Cargo.toml" <<TOML
[package]
name = "zenoh_messages"
version = "0.0.0"
edition = "2024"

[dependencies]
zenoh = { version = "1", default-features = false, features = ["transport_tcp"] }

[profile.release]
debug = false

[workspace]
TOML
    echo "+ cargo build --release  # in $crate"
    cargo build --quiet --release --manifest-path "$crate/Cargo.toml" --target-dir "$crate/target" && touch "$built"
}

python_packages() {
    local python=$place/venv/bin/python
    [[ ! -e $place/venv/complete ]] || return 0
    echo "+ python3 -m venv $place/venv; pip install numpy mooncake-transfer-engine-non-cuda nixl-cu12"
    # What NIXL depends on is torch, which memory of the host does not need.
    python3 -m venv "$place/venv" &&
        "$python" -m pip install --quiet --disable-pip-version-check numpy mooncake-transfer-engine-non-cuda &&
        "$python" -m pip install --quiet --disable-pip-version-check --no-deps nixl-cu12 &&
        touch "$place/venv/complete"
}

mkdir -p "$place"
# One that fails is no reason to do without the other.
(zenoh) || echo "peers: zenoh could not be built; going on without it"
(python_packages) || echo "peers: NIXL and Mooncake could not be installed; going on without them"
