#!/bin/bash
# All GPU tests over the driver of this machine, and a table of what came of them; SKIPPED, with the reason, where there is no GPU.
#
#   FABRICAST_TEST_BINARIES   a folder with the tests' programs (cuda, cufile, ...) that another machine has built; else cargo builds them
#   FABRICAST_TEST_FAKES      a folder with libfake_cuda.so, for a machine without a C compiler
#   FABRICAST_LIBFABRIC_CUDA  a libfabric that was built with CUDA, for the test of two processes; its libcudart.so may lie beside it
#   FABRICAST_TEST_DIR        where files are made; a disk that cuFile knows
#   SANITIZER=1               the suite once more under compute-sanitizer, where it is installed
set -uo pipefail
cd "$(dirname "$0")/.."

suites=(cuda)
[[ -d tests/gpu_endpoint || -f tests/gpu_endpoint.rs || -x ${FABRICAST_TEST_BINARIES:-/nowhere}/gpu_endpoint ]] && suites+=(gpu_endpoint)
suites+=(streams cufile)
failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# The program of a suite.
program() {
    if [[ -n ${FABRICAST_TEST_BINARIES:-} ]]; then
        echo "$FABRICAST_TEST_BINARIES/$1"
        return
    fi
    cargo test --locked --test "$1" --no-run --message-format=json 2>/dev/null |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1
}

# "suite test result note" of each test, from what a run with --nocapture and one thread prints.
rows() {
    awk -v suite="$1" '
        function flush() { if (name != "") printf "%-14s %-82s %-8s %s\n", suite, name, result, note; name = "" }
        match($0, /^test [^ ]+ \.\.\. /) && $2 != name { flush(); name = $2; result = "?"; note = "" }
        match($0, /SKIPPED: .*/) && name != "" && note == "" { note = substr($0, RSTART + 9); skipped = 1 }
        / \.\.\. ok$|^ok$/ && name != "" { result = note == "" ? "ok" : "SKIPPED"; }
        / \.\.\. FAILED$|^FAILED$/ && name != "" { result = "FAILED" }
        /^\| / && name != "" { details = details sprintf("%-14s   %s\n", suite, $0) }
        / \.\.\. ignored/ && name != "" { name = "" }
        END { flush(); printf "%s", details }
    ' "$2"
}

run() {
    local suite=$1
    shift
    FABRICAST_TEST_GPU=real "$@" --nocapture --test-threads=1 >"$log" 2>&1 || {
        failed=1
        sed -n '/panicked/,+4p' "$log" | head -n 60
    }
    rows "$suite" "$log"
}

printf '%-14s %-82s %-8s %s\n' suite test result note
for suite in "${suites[@]}"; do
    program=$(program "$suite")
    if [[ ! -x $program ]]; then
        printf '%-14s %-82s %-8s %s\n' "$suite" '(all)' FAILED 'it could not be built'
        failed=1
        continue
    fi
    only=()
    # The rest of that suite is over a fake libcufile, and no test of this machine.
    [[ $suite == cufile ]] && only=(the_suite_over_the_real_library)
    # The others have nothing to do with GPUs.
    [[ $suite == streams ]] && only=(gpu::)
    run "$suite" "$program" "${only[@]}"
    if [[ ${SANITIZER:-0} == 1 && $suite != cufile ]]; then
        if sanitizer=$(command -v compute-sanitizer); then
            # Refusals of the driver are what several tests provoke: only wrong accesses count.
            run "$suite+san" "$sanitizer" --report-api-errors no --target-processes all --error-exitcode 9 "$program" "${only[@]}"
        else
            printf '%-14s %-82s %-8s %s\n' "$suite+san" '(all)' SKIPPED 'compute-sanitizer is not installed'
        fi
    fi
done
exit $failed
