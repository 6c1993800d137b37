#!/usr/bin/env bash
# Gives the functions that read bytes of peers random ones, steered by what they reach (libFuzzer), under AddressSanitizer.
#
#   fuzz.sh             every target of fuzz/fuzz_targets
#   fuzz.sh TARGET...   these
#
# FUZZ_SECONDS: how long each runs (30). What was found to reach something new is kept in target/fuzz/corpus for the next run, what
# broke a promise in target/fuzz/artifacts. Prints "N passed, N failed"; fails when a target did, or when nothing could be built. Then it gives random
# bytes that nothing steers to the functions of two targets, those with a model of memory, by the tests of the library that do so; says that it did
# no more; and fails.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${FUZZ_SECONDS:-30}
room=target/fuzz
triple=$(rustc -vV | sed -n 's/^host: //p')
mapfile -t targets < <(basename -s .rs fuzz/fuzz_targets/*.rs)
(($# == 0)) || targets=("$@")
passed=0 failed=0 job=

fail() {
    failed=$((failed + 1))
    echo "FAILED $1: $2"
}

# The flags are those of nightly compilers, which stable ones have, too; the run time comes with both.
build() {
    local flags=(-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
        -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Zsanitizer=address -Ccodegen-units=4)
    echo "fuzz: building; the first time takes minutes"
    (cd fuzz && RUSTC_BOOTSTRAP=1 RUSTFLAGS="${flags[*]}" \
        cargo build --release --target "$triple" --target-dir "../$room/build") >"$room/build.log" 2>&1 || {
        tail -n 40 "$room/build.log"
        echo "FAILED: the targets were not built (it takes a C++ compiler, libfuzzer-sys and, in the toolchain, AddressSanitizer)"
        without
        echo "0 passed, ${#targets[@]} failed"
        exit 1
    }
}

# What can be done without libFuzzer.
without() {
    echo "instead: two_connections and lying_receivers, 50000 executions each over random bytes, without coverage and AddressSanitizer"
    FABRICAST_EXECUTIONS=50000 cargo test --locked --workspace --features fabricast/tokio,fabricast/cudarc -p fabricast --lib \
        testing::liars -- --nocapture 2>&1 | grep -E '^seed|^again|Reached|panicked|^test ' || true
}

# What a target did in its time, by its own words.
judge() {
    local target=$1 status=$2 log=$3
    if ((status != 0)); then
        tail -n 30 "$log"
        fail "$target" "exit status $status; the bytes are in $room/artifacts, $log has the rest"
    elif ! grep -q 'inline 8-bit counters' "$log"; then
        fail "$target" "it does not see what it reaches: built without counters"
    elif ! grep -q '^Done [0-9]* runs' "$log"; then
        fail "$target" "it did not run to its end"
    else
        passed=$((passed + 1))
        echo "$target: $(grep '^Done [0-9]* runs' "$log"), $(grep -oE 'cov: [0-9]+ ft: [0-9]+' "$log" | tail -n 1)"
    fi
}

run() {
    local target=$1 status=0 log=$room/$1.log
    mkdir -p "$room/corpus/$target" "$room/artifacts"
    # 4 KiB are more than any of them reads at once; the connection takes them as a list of what happens.
    timeout -k 10 "$((seconds + 120))" "$room/build/$triple/release/$target" "$room/corpus/$target" \
        -max_total_time="$seconds" -max_len=4096 -timeout=20 -rss_limit_mb=2048 \
        -artifact_prefix="$room/artifacts/$target-" >"$log" 2>&1 </dev/null &
    job=$!
    wait "$job" || status=$?
    job=
    judge "$target" "$status" "$log"
}

stop() {
    [[ -z $job ]] || kill -TERM "$job" 2>/dev/null || true
    echo "stopped"
    exit 130
}

trap stop INT TERM HUP
mkdir -p "$room"
build
for target in "${targets[@]}"; do run "$target"; done
echo "$passed passed, $failed failed"
((failed == 0))
