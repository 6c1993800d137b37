#!/usr/bin/env bash
# Runs programs and tests over the provider verbs on a machine without an RDMA card: in a QEMU guest whose kernel has a soft one (rdma_rxe).
#
#   verbs.sh                    all parts, over libfabric of the system and over 2.x
#   verbs.sh PART... [-- FILTER...]   these parts: demo info, the test programs endpoint one_sided faults scale streams liars tools cli,
#                               the conformance rows msg rxm, capi (capi/tests/c against libfabricast.so), two (two guests), siw; what
#                               follows -- goes to the test programs
#   verbs.sh run COMMAND...     this command, in a guest: programs and test programs by their names, and whatever this machine has
#   verbs.sh ci                 the demo, the programs in C, one suite and the row msg: under 5 minutes on two idle cores
#   verbs.sh links PROGRAM...   only builds, and makes target/verbs-logs/bin (for verbs/pack.sh)
#
# The exit status is that of the command, or 1 if anything failed. Where there can be no guest, a line begins with SKIPPED: and the status is 0.
# Logs are in target/verbs-logs/. What is downloaded stays in .fabricast/. Nothing is installed but packages that are missing, and it says which.
#
# VERBS_LIBRARY=system|2|both   which libfabric (run: the system's; else both)
# VERBS_LIMIT=SECONDS           for a command of `run` (600)
# VERBS_TOTAL=SECONDS           for all parts together (14400)
# VERBS_TIMES=N                 how often `two` does each of its cases (1)
# VERBS_CASES="pause ..."       which cases of `two`: pause cut vanish
# VERBS_ACCEL=tcg|kvm           else KVM where a guest boots on it, and emulation where not
# VERBS_DEVICE=rxe|siw, VERBS_CPUS, VERBS_MEMORY, VERBS_ROOT: see verbs/guest.sh
set -euo pipefail
cd "$(dirname "$0")/.."
# ip and rdma live where an ordinary user's PATH does not look.
PATH=$PATH:/usr/sbin:/sbin

repository=$PWD
cache=${FABRICAST_CACHE:-$repository/.fabricast}
logs=$repository/target/verbs-logs
# The set of packages and features that test.sh has, so that nothing is built twice.
everything=(--workspace --locked --features "fabricast/tokio,fabricast/cudarc")
programs=(fabricast bench)
suites=(endpoint one_sided faults scale streams liars tools cli)
# Programs of capi/tests/c; in the guest their names begin with "c-".
c_programs=(send windows buffered publish shared_pool connectionless stream object)
all_parts=(demo info capi "${suites[@]}" msg rxm two siw)
started=$SECONDS
# Seconds for a part, boot not counted; verbs/two.sh has its own.
declare -A limits=([demo]=120 [info]=60 [capi]=300 [msg]=900 [rxm]=900 [streams]=1500 [scale]=600)
usual_limit=900
# And for all of them together, from when everything is built.
total_limit=${VERBS_TOTAL:-14400}

rows=()   # "part|library|passed|failed|skipped|seconds|remark"
failures=()

# shellcheck source=scripts/verbs/guest.sh
. scripts/verbs/guest.sh
# shellcheck source=scripts/verbs/two.sh
. scripts/verbs/two.sh

say() { echo "verbs: $*"; }

# Nothing of this can be had here: that is no failure.
skip_all() {
    echo "SKIPPED: verbs: $*"
    exit 0
}

# ---------------------------------------------------------------- what it takes

prepare() {
    local begin=$SECONDS
    if [[ -z ${VERBS_ROOT:-} ]]; then
        scripts/setup.sh verbs >"$logs/setup.log" 2>&1 ||
            { cat "$logs/setup.log"; skip_all "packages are missing: $(tail -n 1 "$logs/setup.log")"; }
        grep -v 'all there' "$logs/setup.log" || true
        ((SECONDS - begin < 3)) || say "packages: $((SECONDS - begin)) s"
    fi
    kernel=$(scripts/verbs/kernel.sh 2> >(tee "$logs/kernel.log" >&2)) || skip_all "$(tail -n 1 "$logs/kernel.log" | sed 's/^SKIPPED: //')"
    guest_has_module "$([[ $guest_device == rxe ]] && echo rdma_rxe || echo "$guest_device")" ||
        skip_all "Debian's kernel $(cat "$kernel/version") has no module for VERBS_DEVICE=$guest_device"
    guest_image
}

# Sets `libraries` to those of 1 (the system's) and 2 that are asked for and there, and says what each is.
find_libraries() {
    local asked=${VERBS_LIBRARY:-$1}
    libraries=() layer2='' no_layer2=''
    [[ $asked == 2 ]] || libraries+=(1)
    if [[ $asked != system ]]; then
        if layer2=$(scripts/libfabric-verbs.sh 2> >(tee "$logs/libfabric.log" >&2)); then
            libraries+=(2)
        else
            no_layer2=$(tail -n 1 "$logs/libfabric.log")
        fi
    fi
}

layer_of() { [[ $1 == 1 ]] || echo "$layer2"; }

# Emulation works everywhere; KVM is some ten times faster, and there are machines whose /dev/kvm can't boot this kernel. So it is tried, once
# for each kernel of the host.
choose_accelerator() {
    local told=$cache/accelerator host begin=$SECONDS
    host=$(uname -r)
    guest_accel=${VERBS_ACCEL:-}
    if [[ -n $guest_accel ]]; then
        say "$guest_accel, as asked for"
        return
    fi
    guest_accel=tcg
    if [[ ! -w /dev/kvm ]]; then
        say "emulation (TCG): no /dev/kvm for this user"
    elif [[ $(cat "$told" 2>/dev/null) == "tcg $host" ]]; then
        say "emulation (TCG): no guest came up on /dev/kvm when that was tried ($told)"
    elif guest_accel=kvm && guest_boot try '' user,id=n,restrict=on && guest_up try 20 2>/dev/null; then
        guest_stop try
        rm -rf "$(guest_dir try)"
        say "KVM: a guest was up after $((SECONDS - begin)) s"
    else
        guest_kill try
        rm -rf "$(guest_dir try)"
        guest_accel=tcg
        echo "tcg $host" >"$told"
        say "emulation (TCG): on /dev/kvm, no guest was up after $((SECONDS - begin)) s"
    fi
}

# build TEST-PROGRAM...: them and programs, and links to all of them below one directory, so that they have their names in the guest.
build() {
    local begin=$SECONDS targets=() lib=() c=() name path
    rm -rf "${logs:?}/bin"
    mkdir -p "$logs/bin"
    # Nothing can be built for another root.
    [[ -z ${VERBS_ROOT:-} ]] || return 0
    for name in "$@"; do
        if [[ $name == c-* ]]; then
            c+=("${name#c-}")
        elif [[ " ${programs[*]} " != *" $name "* ]]; then
            targets+=(--test "$name")
        fi
    done
    ((${#c[@]} == 0)) || lib=(--lib)
    {
        { ((${#targets[@]} == 0)) || nice cargo test "${everything[@]}" --no-run "${targets[@]}"; } &&
        nice cargo build "${everything[@]}" "${lib[@]}" "${programs[@]/#/--bin=}" && build_c "${c[@]}"
    } >"$logs/build.log" 2>&1 || { tail -n 40 "$logs/build.log"; say "FAILED: it does not build"; exit 1; }
    sed -n 's/^ *Executable .*(\(.*\))$/\1/p' "$logs/build.log" | while read -r path; do
        name=${path##*/}
        ln -sf "$(realpath "$path")" "$logs/bin/${name%-*}"
    done
    for name in "${programs[@]}"; do
        ln -sf "$(realpath "${CARGO_TARGET_DIR:-target}/debug/$name")" "$logs/bin/$name"
    done
    say "built in $((SECONDS - begin)) s"
}

# The programs in C, against the shared library, which the guest finds where it lies here.
build_c() {
    (($#)) || return 0
    local name out
    out=$(realpath "$(scripts/capi.sh link)") || return
    for name in "$@"; do
        cc -std=c11 -D_GNU_SOURCE -g1 -Wall -Wextra -Werror -I"$out/include" "capi/tests/c/$name.c" -o "$logs/bin/c-$name" \
            -L"$out/lib" -lfabricast -lpthread "-Wl,-rpath,$out/lib" || return
    done
}

# ---------------------------------------------------------------- running parts in a guest

# up LIBRARY: a guest with that library, or the one that is there already.
up() {
    local begin=$SECONDS
    if guest_alive one; then return; fi
    rm -rf "$(guest_dir one)"
    guest_start one "$(layer_of "$1")" user,id=n,restrict=on || return 1
    say "guest up after $((SECONDS - begin)) s ($(cat "$(guest_dir one)/up") s of its own), kernel $(cat "$kernel/version"), libfabric $(version_of "$1")"
}

# The version that programs of the guest get.
version_of() {
    local version
    if [[ $1 == 2 ]]; then
        version=$(cat "$layer2/libfabric-version")
    else
        version=$(fi_info --version 2>/dev/null | sed -n 's/^libfabric: //p')
    fi
    echo "${version:-system}"
}

# What is run for a part: a line for bash in the guest.
command_of() {
    local part=$1
    case $part in
    demo) echo 'fabricast demo --provider verbs --size 4M && fabricast demo --provider "verbs;ofi_rxm" --rdm --size 4M' ;;
    info) echo 'fabricast info --provider verbs && fabricast info --provider "verbs;ofi_rxm"' ;;
    capi) c_command ;;
    msg) echo "FABRICAST_ROW='verbs(MSG)' conformance --show-output" ;;
    rxm) echo "FABRICAST_ROW='verbs;ofi_rxm' conformance --show-output" ;;
    *) echo "$part --show-output $(printf '%q ' ${filters[@]+"${filters[@]}"})" ;;
    esac
}

# The programs in C, two at once for as many cores, and lines as of Rust's tests.
c_command() {
    cat <<'COMMAND'
one() {
    local begin=$SECONDS said=ok
    timeout -k 5 120 "c-$1" >"$2" 2>&1 || said=FAILED
    echo "test c-$1 ... $said ($((SECONDS - begin)) s)" >>"$2"
}
room=$(mktemp -d)
COMMAND
    local name
    for name in "${c_programs[@]}"; do
        echo "while ((\$(jobs -rp | wc -l) > 1)); do wait -n; done; one $name \$room/$name &"
    done
    cat <<'COMMAND'
wait
cat "$room"/*
passed=$(cat "$room"/* | grep -c '^test .* ok (') failed=$(cat "$room"/* | grep -c '^test .* FAILED (')
echo "test result: $passed passed; $failed failed; 0 ignored;"
((failed == 0))
COMMAND
}

is_tests() { [[ $1 != demo && $1 != info ]]; }

# What a reader wants to see while tests run; the rest is in the log.
interesting() {
    if [[ -n ${VERBOSE:-} ]]; then
        cat
    else
        grep --line-buffered -E '^test result|SKIPPED: |\.\.\. FAILED|panicked at|^---- end of the table|checksums are equal' || true
    fi
}

# cells_of WORDS LOG: how many behaviours of a conformance table with one column are told of with one of these words.
cells_of() {
    sed -n '/^behaviour /,/^---- end of the table/p' "$2" | sed 1,2d | cut -c 20- | grep -cE "^($1)(\\(|\$| )" || true
}

# sum_of passed|failed|ignored LOG
sum_of() {
    awk -v what="$1" '/^test result: / { for (i = 2; i <= NF; i++) if ($i == what ";") sum += $(i - 1) } END { print sum + 0 }' "$2"
}

# part PART LIBRARY: runs it, and makes a row of the table of it.
part() {
    local part=$1 library=$2 limit=${limits[$1]:-$usual_limit} left=$((total_limit - (SECONDS - built))) begin log status=0
    printf '\n==== %s, libfabric %s\n' "$part" "$(version_of "$library")"
    ((limit <= left)) || limit=$left
    if ((limit <= 0)); then
        add_row "$part" "$library" 0 1 0 0 "not run, the $total_limit s for all parts are used up"
        return
    fi
    if ! up "$library"; then
        add_row "$part" "$library" 0 1 0 0 "no guest"
        return
    fi
    begin=$SECONDS
    guest_job one "$part" "$limit" "$(command_of "$part")"
    follow "$part" "$((limit + 30))" interesting || status=$?
    log=$logs/$part-$(version_of "$library").log
    cp "$(guest_dir one)/job-$part.log" "$log" 2>/dev/null || : >"$log"
    # Rows that ran, for docs/providers.tsv (tests/conformance/ran_on.rs).
    if [[ -e $(guest_dir one)/ran-on.tsv ]]; then
        cat "$(guest_dir one)/ran-on.tsv" >>"${CARGO_TARGET_DIR:-target}/ran-on.tsv"
        rm "$(guest_dir one)/ran-on.tsv"
    fi
    judge "$part" "$library" "$status" "$((SECONDS - begin))" "$log"
    # Whoever hangs in there is not to disturb the next one.
    ((status < 124)) || guest_kill one
}

# follow JOB SECONDS VIEWER: shows what a job prints as it comes, and has its status.
follow() {
    local log status=0 viewer
    log=$(guest_dir one)/job-$1.log
    : >>"$log"
    { tail -n +1 -s 0.3 -f "$log" 2>/dev/null {lock}>&- & echo $! >"$logs/tail.pid"; wait; } | "$3" {lock}>&- &
    viewer=$!
    guest_wait one "$1" "$2" || status=$?
    # What was printed last is to be seen, too.
    sleep 0.7
    kill "$(cat "$logs/tail.pid")" 2>/dev/null || true
    wait "$viewer" 2>/dev/null || true
    return "$status"
}

judge() {
    local part=$1 library=$2 status=$3 seconds=$4 log=$5 passed failed skipped remark=''
    passed=$(sum_of passed "$log") failed=$(sum_of failed "$log")
    skipped=$(($(sum_of ignored "$log") + $(grep -cE '(^|\.\.\. )SKIPPED: ' "$log" || true)))
    if [[ $part == msg || $part == rxm ]]; then
        # Its one test passes where there is no such row, too. What the provider can't do counts as skipped.
        passed=$(cells_of 'ok|2nd' "$log") failed=$(cells_of FAILED "$log") skipped=$((skipped + $(cells_of 'no|known' "$log")))
    fi
    is_tests "$part" || passed=$((status == 0))
    case $status in
    0) if ((passed == 0 && skipped == 0)); then remark="ran no test" failed=1; fi ;;
    124 | 137) remark="not done in time" ;;
    125) remark="the guest ended" ;;
    127) remark="no such program" ;;
    *) remark="exit status $status" ;;
    esac
    if ((status != 0 && failed == 0)); then failed=1; fi
    if ((failed)); then
        echo "the last lines of $log:"
        tail -n 30 "$log" | sed 's/^/    /'
    fi
    add_row "$part" "$library" "$passed" "$failed" "$skipped" "$seconds" "$remark"
}

add_row() {
    rows+=("$1|$(version_of "$2")|$3|$4|$5|$6|$7")
    (($4 == 0)) || failures+=("$1 over $(version_of "$2")${7:+: $7}")
}

skip_row() {
    printf '\n==== %s\nSKIPPED: %s: %s\n' "$1" "$1" "$2"
    rows+=("$1|-|0|0|1|0|SKIPPED: $2")
}

# ---------------------------------------------------------------- the table

table() {
    local row part library passed failed skipped seconds remark
    printf '\n==== over verbs: %s, Linux %s in QEMU (%s), %s\n' "$(date +%F)" "$(cat "$kernel/version")" "$guest_accel" "$guest_device"
    printf '%-12s %-14s %6s %6s %7s %7s\n' what libfabric passed failed skipped seconds
    for row in "${rows[@]}"; do
        IFS='|' read -r part library passed failed skipped seconds remark <<<"$row"
        printf '%-12s %-14s %6s %6s %7s %7s  %s\n' "$part" "$library" "$passed" "$failed" "$skipped" "$seconds" "$remark"
    done
    grep -HoE '(^|\.\.\. )SKIPPED: .*' "$logs"/*.log 2>/dev/null | sed -E 's|^.*/([^/]*)\.log:(\.\.\. )?|    \1: |' | sort -u || true
    printf '%s s together; logs in %s\n' "$((SECONDS - started))" "${logs#"$repository"/}"
    if ((${#failures[@]})); then
        printf 'failed:\n'
        printf '    %s\n' "${failures[@]}"
        return 1
    fi
}

# ---------------------------------------------------------------- what can be asked for

stop() {
    guest_stop_all
    [[ -z ${two_wire:-} ]] || rm -f "$two_wire"
    [[ ! -e $logs/tail.pid ]] || kill "$(cat "$logs/tail.pid")" 2>/dev/null || true
}

# One command, whose output is all that is shown of the guest, and whose status is the script's.
run() {
    local status=0 limit=${VERBS_LIMIT:-600} command=$1
    find_libraries system
    ((${#libraries[@]})) || skip_all "${no_layer2#SKIPPED: }"
    # A test program that it begins with is built, too.
    local wanted=()
    local program=${command%% *}
    if [[ -e tests/$program/main.rs || -e tests/$program.rs || -e crates/fabricast-cli/tests/$program/main.rs || ($program == c-* && -e capi/tests/c/${program#c-}.c) ]]; then
        wanted=("$program")
    fi
    build "${wanted[@]}"
    choose_accelerator
    local library
    for library in "${libraries[@]}"; do
        up "$library" || exit 1
        guest_job one run "$limit" "$command"
        local begin=$SECONDS
        follow run "$((limit + 30))" cat || status=$?
        say "exit status $status after $((SECONDS - begin)) s"
        guest_stop one
        ((status == 0)) || break
    done
    say "$((SECONDS - started)) s together; logs in ${logs#"$repository"/}"
    exit "$status"
}

# The programs that parts want.
programs_of() {
    local part
    for part in "$@"; do
        case $part in
        msg | rxm) echo conformance ;;
        two) echo endpoint ;;
        capi) printf 'c-%s\n' "${c_programs[@]}" ;;
        *) [[ " ${suites[*]} " != *" $part "* ]] || echo "$part" ;;
        esac
    done | sort -u
}

run_parts() {
    local parts=("$@") wanted library part
    mapfile -t wanted < <(programs_of "${parts[@]}")
    build "${wanted[@]}"
    built=$SECONDS
    choose_accelerator
    for library in "${libraries[@]}"; do
        for part in "${parts[@]}"; do
            [[ $part == two || $part == siw ]] || part "$part" "$library"
        done
        guest_stop one
    done
    [[ -z $no_layer2 ]] || skip_row "2.x" "${no_layer2#SKIPPED: }"
    if [[ " ${parts[*]} " == *" two "* ]]; then
        for library in "${libraries[@]}"; do two_guests "$library"; done
    fi
    if [[ " ${parts[*]} " == *" siw "* ]]; then siw "$guest_device"; fi
}

# Soft iWARP instead of soft RoCE: where the kernel has it, `VERBS_DEVICE=siw verbs.sh`; else this says why not.
siw() {
    if [[ $1 == siw ]]; then
        return
    elif guest_has_module siw; then
        skip_row siw "the kernel has it: VERBS_DEVICE=siw scripts/verbs.sh"
    else
        skip_row siw "Debian's kernel $(cat "$kernel/version") has no siw (CONFIG_RDMA_SIW is not set)"
    fi
}

main() {
    local parts=() part
    filters=()
    mkdir -p "$repository/target" "$cache"
    exec {lock}>"$repository/target/verbs.lock"
    flock -n "$lock" || { say "another run is on its way in this directory"; exit 1; }
    rm -rf "$logs"
    mkdir -p "$logs"
    trap stop EXIT
    trap 'exit 130' INT TERM HUP
    if [[ ${1:-} == links ]]; then
        build "${@:2}"
        return
    elif [[ ${1:-} == run ]]; then
        shift
        prepare
        run "$*"
    fi
    while (($#)) && [[ $1 != -- ]]; do
        parts+=("$1")
        shift
    done
    if (($#)); then filters=("${@:2}"); fi
    local default=both
    if [[ ${parts[*]} == ci ]]; then
        parts=(demo capi endpoint msg)
        c_programs=(send windows stream object)
        filters=(endpoints::)
        default=system total_limit=1000
        limits[endpoint]=420
    fi
    if ((${#parts[@]} == 0)); then parts=("${all_parts[@]}"); fi
    for part in "${parts[@]}"; do
        if [[ " ${all_parts[*]} " != *" $part "* ]]; then
            echo "verbs.sh: no part '$part'; there are: ${all_parts[*]}, and: run COMMAND, ci" >&2
            exit 2
        fi
    done
    prepare
    find_libraries "$default"
    ((${#libraries[@]})) || skip_all "${no_layer2#SKIPPED: }"
    run_parts "${parts[@]}"
    table
}

main "$@"
