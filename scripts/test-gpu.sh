#!/bin/bash
# All GPU tests over the driver of this machine, with a table of what came of them; SKIPPED, with the reason, where there is no GPU.
#
#   test-gpu.sh               driver, cufile and zarr, of crates/, cuda, gpu_endpoint, gpu_files and streams, of tests/, and the example gpu_hook
#   test-gpu.sh SUITE...      these
#
#   FABRICAST_TEST_BINARIES   a folder with the programs (driver, cufile, gpu, streams, zarr, gpu_hook, fabricast) that another machine has built, with the
#                             feature cudarc; else cargo builds them
#   FABRICAST_TEST_FAKES      a folder with libfake_cuda.so, for a machine without a C compiler
#   FABRICAST_LIBFABRIC_CUDA  a libfabric that was built with CUDA, for the test of two processes; its libcudart.so may lie beside it
#   FABRICAST_TEST_DIR        where files are made; a disk that cuFile knows
#   SANITIZER=1               all of it but cufile and gpu_files once more under compute-sanitizer's memcheck, where that is installed
set -uo pipefail
cd "$(dirname "$0")/.." || exit

binaries=${FABRICAST_TEST_BINARIES:-}
failed=0
# Seconds for one suite; it takes a tenth of that.
limit=900
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# program NAME: the path of a suite's or an example's program.
program() {
    local name=$1
    case $name in cuda | gpu_endpoint | gpu_files) name=gpu ;; esac
    if [[ -n $binaries ]]; then
        echo "$binaries/$name"
        return
    fi
    local kind=(test --no-run --test "$name")
    compgen -G "tests/$name" >/dev/null || compgen -G "crates/*/tests/$name" >/dev/null || kind=(build --example "$name")
    [[ $name != fabricast ]] || kind=(build --bin fabricast)
    # As all other scripts: nothing is built twice.
    cargo "${kind[@]}" --workspace --locked --features fabricast/tokio,fabricast/cudarc --message-format=json 2>/dev/null |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1
}

# row SUITE TEST RESULT [NOTE]: printed, with the beginning of the note, and kept for the sums.
row() {
    local note=${4:-}
    printf '%s\t%s\t%s\n' "$1" "$3" "$note" >>"$work/rows"
    ((${#note} <= 70)) || note=${note:0:67}...
    printf '%-21s %-78s %-8s %s\n' "$1" "$2" "$3" "$note"
}

# A row for each test, from what a run with --nocapture and one thread prints.
rows() {
    local name result note
    while IFS=$'\t' read -r name result note; do
        if [[ $name == '|' ]]; then
            printf '%-21s   | %s\n' "$1" "$note"
        else
            row "$1" "$name" "$result" "$note"
        fi
    done < <(awk '
        function flush() { if (name != "") printf "%s\t%s\t%s\n", name, result, note; name = "" }
        function partly() { return note ~ /^without / }
        match($0, /^test [^ ]+ \.\.\. /) && $2 != name { flush(); name = $2; result = "FAILED"; note = "" }
        match($0, /PARTLY SKIPPED: .*/) && name != "" && note == "" { note = "without " substr($0, RSTART + 16); next }
        match($0, /SKIPPED: .*/) && name != "" && note == "" { note = substr($0, RSTART + 9) }
        / \.\.\. ok$|^ok$/ && name != "" { result = note == "" || partly() ? "ok" : "SKIPPED" }
        / \.\.\. FAILED$|^FAILED$/ && name != "" { result = "FAILED" }
        match($0, /^(test [^ ]+ \.\.\. )?\| /) && name != "" { printf "|\t-\t%s\n", substr($0, RLENGTH + 1) }
        / \.\.\. ignored/ && name != "" { name = "" }
        END { flush() }
    ' "$2")
}

# Shows why, where a program failed.
explain() {
    (($1 == 0)) && return
    failed=1
    (($1 == 124 || $1 == 137)) && echo "not done after $limit s"
    grep -A4 'panicked' "$2" | head -n 60
}

# suite NAME PROGRAM [FILTER]: under "$checker", if there is one.
suite() {
    local name=$1 log=$work/log begin=$SECONDS
    shift
    FABRICAST_TEST_GPU=real timeout -k 10 "$limit" "${checker[@]}" "$@" --nocapture --test-threads=1 >"$log" 2>&1
    explain $? "$log"
    rows "$name" "$log"
    took[$name]=$((SECONDS - begin))
}

# example NAME TEST PROGRAM ARGUMENT...
example() {
    local name=$1 test=$2 log=$work/log begin=$SECONDS why
    shift 2
    if ! timeout -k 10 "$limit" "${checker[@]}" "$@" >"$log" 2>&1; then
        failed=1
        row "$name" "$test" FAILED "$(grep -vE '^(note|stack|  )|^$' "$log" | tail -n 1)"
    elif why=$(sed -n 's/^SKIPPED: //p' "$log") && [[ -n $why ]]; then
        row "$name" "$test" SKIPPED "$why"
    else
        row "$name" "$test" ok
        grep -E '^(way|read|staged|written|sums|content|rate) ' "$log" | sed "s/^/$(printf '%-21s   | ' "$name")/"
    fi
    took[$name]=$((${took[$name]:-0} + SECONDS - begin))
}

# What the checker found in all processes that it was in; findings of the fakes' processes, which have no GPU, are none.
findings() {
    local name=$1 logs=("$work"/memcheck.*) errors
    errors=$(cat "${logs[@]}" 2>/dev/null | sed -n 's/.*ERROR SUMMARY: \([0-9]*\) error.*/\1/p' | awk '{ sum += $1 } END { print sum + 0 }')
    if grep -qs 'Device not supported' "${logs[@]}"; then
        row "$name" memcheck SKIPPED 'compute-sanitizer does not support this device or its driver here'
    elif ! grep -qs 'ERROR SUMMARY' "${logs[@]}"; then
        row "$name" memcheck SKIPPED 'no process used a GPU'
    elif ((errors > 0)); then
        failed=1
        row "$name" memcheck FAILED "$errors errors"
        cat "${logs[@]}" | grep -v 'ERROR SUMMARY: 0' | head -n 60
    else
        row "$name" memcheck ok "0 errors"
    fi
    rm -f "${logs[@]}"
}

# The example, as a test.
hook() {
    local program=$2 options=(--or-skip)
    [[ -z ${FABRICAST_TEST_DIR:-} ]] || options+=(--dir "$FABRICAST_TEST_DIR")
    example "$1" 'file, GPU, kernel, wire, GPU, kernel, file' "$program" "${options[@]}"
    example "$1" 'blocks of odd lengths' "$program" "${options[@]}" --size 10000003 --block 64K
    example "$1" 'from one GPU to another' "$program" "${options[@]}" --to-device 1
}

# All that were asked for; what each is called ends with "$1".
all() {
    local name program
    for name in "${suites[@]}"; do
        program=${programs[$name]}
        if [[ ! -x $program ]]; then
            failed=1
            row "$name$1" '(all)' FAILED 'it could not be built'
            continue
        fi
        case $name in
        gpu_hook) hook "$name$1" "$program" ;;
        # The rest of that suite is over a fake libcufile, and no test of this machine.
        cufile) suite "$name$1" "$program" the_suite_over_the_real_library ;;
        gpu_files) suite "$name$1" "$program" files_over_the_real_library ;;
        # All of it is for this machine.
        driver) suite "$name$1" "$program" ;;
        # The others have nothing to do with GPUs.
        streams | zarr) suite "$name$1" "$program" gpu:: ;;
        *) suite "$name$1" "$program" "$name::" ;;
        esac
        ((${#checker[@]} == 0)) || findings "$name$1"
    done
}

# What the machine has.
machine() {
    if command -v nvidia-smi >/dev/null; then
        nvidia-smi --query-gpu=index,name,driver_version,pci.bus_id --format=csv,noheader 2>&1 | sed 's/^/GPU         /'
    fi
    [[ ! -x ${programs[fabricast]} ]] || "${programs[fabricast]}" info --provider tcp 2>&1 | sed 's/^/            /'
}

# Of each suite, and each reason for which something was left out.
sums() {
    printf '\n%-21s %6s %6s %7s %7s\n' suite passed failed skipped seconds
    local name
    cut -f 1 "$work/rows" | awk '!seen[$0]++' | while read -r name; do
        awk -F '\t' -v name="$name" -v took="${took[$name]:-0}" '
            $1 == name { count[$2]++ }
            END { printf "%-21s %6d %6d %7d %7d\n", name, count["ok"], count["FAILED"], count["SKIPPED"], took }' "$work/rows"
    done
    awk -F '\t' '$2 == "SKIPPED" || $3 ~ /^without / { print "skipped: " $1 ": " $3 }' "$work/rows" | sort | uniq -c
}

suites=("$@")
((${#suites[@]} > 0)) || suites=(driver cuda gpu_endpoint streams zarr cufile gpu_files gpu_hook)
declare -A programs took
for name in "${suites[@]}" fabricast; do programs[$name]=$(program "$name"); done
checker=()
machine
printf '%-21s %-78s %-8s %s\n' suite test result note
all ''
if [[ ${SANITIZER:-0} == 1 ]]; then
    if sanitizer=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer); then
        # Refusals of the driver are what several tests provoke: only wrong accesses count.
        checker=("$sanitizer" --tool memcheck --report-api-errors no --target-processes all --log-file "$work/memcheck.%p")
        mapfile -t suites < <(printf '%s\n' "${suites[@]}" | grep -vE '^(cufile|gpu_files)$')
        all +memcheck
    else
        row memcheck '(all)' SKIPPED 'compute-sanitizer is not installed'
    fi
fi
sums
exit $failed
