#!/usr/bin/env bash
# Runs the readout of examples/cpp against `fabricast readout`: each as source of three builders
# of the other, whole, and with one of the builders killed. Nothing may be lost, every check is made.
#
#   readout_both_ways.sh FABRICAST CPP      the two programs
set -euo pipefail
rust=("$1" readout) cpp=("$2")
dir=$(mktemp -d)
pids=()
end() {
    # Only what this script started, and what has not ended.
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    rm -rf "$dir"
}
trap end EXIT

fail() {
    echo "readout_both_ways: $1" >&2
    tail -n 20 "$dir"/*.err >&2
    exit 1
}

# wait_for FILE TEXT: until the file has a line with the text, for a minute.
wait_for() {
    for _ in $(seq 600); do
        grep -q "$2" "$1" 2>/dev/null && return
        sleep 0.1
    done
    fail "no '$2' in $(basename "$1")"
}

# run NAME SOURCE BUILDER EVENTS SIZE KILL [FLAGS..]: SOURCE and BUILDER are names of commands.
run() {
    local -n source=$2 builder=$3
    local name=$1 events=$4 size=$5 kill=$6 to=() status=0
    shift 6
    rm -f "$dir"/*
    pids=()
    for i in 0 1 2; do
        "${builder[@]}" builder --listen 127.0.0.1:0 --max-fragment "$size" --timeout 30 \
            >"$dir/$i.out" 2>"$dir/$i.err" &
        pids+=($!)
    done
    for i in 0 1 2; do
        wait_for "$dir/$i.out" 'listening on'
        to+=(--to "$(sed -n '1s/listening on //p' "$dir/$i.out")")
    done
    timeout 120 "${source[@]}" source "${to[@]}" --events "$events" --size "$size" --timeout 30 "$@" \
        >"$dir/source.out" 2>"$dir/source.err" &
    local running=$!
    if [[ $kill == kill ]]; then
        # The program in C++ says when it begins, the one in Rust how it goes on.
        wait_for "$dir/source.err" 'running\|kHz'
        kill -KILL "${pids[2]}"
    fi
    wait "$running" || fail "$name: the source failed"
    grep -q '"agree":true' "$dir/source.out" || fail "$name: the counts do not agree"
    grep -q "\"events_built\":$events[,}]" "$dir/source.out" || fail "$name: events were lost"
    for i in 0 1 2; do
        status=0
        wait "${pids[$i]}" 2>/dev/null || status=$?
        [[ $status == 0 || ($kill == kill && $i == 2) ]] || fail "$name: builder $i failed"
    done
    pids=()
    if [[ $kill == kill ]]; then
        grep -q 'is lost' "$dir/source.err" || fail "$name: nobody noticed the killed builder"
    fi
    echo "readout_both_ways: $name: $events events, none lost"
}

run 'C++ to Rust' cpp rust 10000 8192 no
run 'Rust to C++' rust cpp 10000 8192 no --json
run 'C++ to Rust, short fragments' cpp rust 30000 300 no
run 'Rust to C++, short fragments' rust cpp 30000 300 no --json
run 'C++ to Rust, one of three killed' cpp rust 20000 8192 kill --rate 5
run 'Rust to C++, one of three killed' rust cpp 20000 8192 kill --rate 5 --json
