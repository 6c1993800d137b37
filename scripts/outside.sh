#!/usr/bin/env bash
# What a program that depends on fabricast gets into its lock file: nothing of our tests, models and benches.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir "$place/src"
echo 'fn main() {}' >"$place/src/main.rs"
cat >"$place/Cargo.toml" <<TOML
[package]
name = "outside"
version = "0.1.0"
edition = "2024"

[dependencies]
fabricast = { path = "$root", features = ["tokio", "cudarc"] }
fabricast-zarr = { path = "$root/crates/fabricast-zarr" }

[workspace]
TOML
cargo generate-lockfile --quiet --manifest-path "$place/Cargo.toml"
names=$(sed -n 's/^name = "\(.*\)"/\1/p' "$place/Cargo.lock")
# Else there was nothing to look at.
grep -qx fabricast <<<"$names" && grep -qx fabricast-libfabric-sys <<<"$names"
if ours=$(grep -xE 'loom|proptest|criterion|clap|indicatif|hyper|zarrs|cbindgen|opentelemetry|libfuzzer-sys' <<<"$names"); then
    echo "in the lock file of whoever depends on fabricast:" $ours
    exit 1
fi
echo "$(wc -l <<<"$names") packages, none of them of tests, models or benches"
