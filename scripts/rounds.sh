#!/usr/bin/env bash
# Runs parts of the tests again and again beside processes that do nothing but compute, and says how often all was green: what a test takes
# for granted of a machine that has time for it shows here.
#
#   rounds.sh [PART...]   these parts of test.sh, each round; else: suite second mixed
#
# N=10: rounds. BUSY=4: busy processes. Everything is built first, with none of them. Exits with 1 unless each round was green; the logs of one
# that was not are in target/rounds/NUMBER/.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=${N:-10}
busy_count=${BUSY:-4}
parts=("$@")
((${#parts[@]})) || parts=(suite second mixed)
logs=target/rounds
busy=()   # process ids
round=    # the process id of the round that runs

number() {
    [[ $2 =~ ^[0-9]+$ ]] || { echo "rounds.sh: $1 is a number, not '$2'" >&2; exit 2; }
}

rest() {
    ((${#busy[@]} == 0)) || kill "${busy[@]}" 2>/dev/null || true
    busy=()
}

stop() {
    # test.sh ends what it started.
    [[ -z $round ]] || kill -TERM "$round" 2>/dev/null || true
    exit 130
}

# Ends by itself when this script is gone, however that came about.
compute() {
    while kill -0 "$1" 2>/dev/null; do
        for ((i = 0; i < 200000; i++)); do :; done
    done
}

main() {
    local green=0 at status begin
    number N "$rounds"
    number BUSY "$busy_count"
    trap rest EXIT
    trap stop INT TERM HUP
    rm -rf "$logs"
    mkdir -p "$logs"
    scripts/test.sh build library >"$logs/build.log" 2>&1 || { tail -n 40 "$logs/build.log"; exit 1; }
    for ((at = 0; at < busy_count; at++)); do
        compute $$ &
        busy+=($!)
    done
    for ((at = 1; at <= rounds; at++)); do
        begin=$SECONDS status=0
        # Behind the shell's own waiting, so that a signal is heard at once.
        scripts/test.sh "${parts[@]}" >"$logs/$at.log" 2>&1 &
        round=$!
        wait "$round" || status=$?
        round=
        if ((status == 0)); then
            green=$((green + 1))
        else
            cp -r target/test-logs "$logs/$at"
            sed -n '/^==== summary/,$p' "$logs/$at.log"
        fi
        echo "round $at: $( ((status == 0)) && echo green || echo "status $status"), $((SECONDS - begin)) s, $(tail -n 1 "$logs/$at.log")"
    done
    echo "$green of $rounds rounds green, ${parts[*]}, beside $busy_count busy processes on $(nproc) cores"
    ((green == rounds))
}

main
