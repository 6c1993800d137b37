#!/usr/bin/env bash
# Runs tests as a user without any rights, who may lock 8 MiB of memory: what most people's shells are.
# As root it becomes nobody; as anybody else it stays who it is. Prints SKIPPED with the reason where neither can be.
set -euo pipefail
cd "$(dirname "$0")/.."

# Of each program the part that runs here.
targets=(--lib --test endpoint --test faults --test alloc)
declare -A filters=([fabricast]='' [endpoint]=endpoints:: [faults]=shutdown:: [alloc]=endpoints::)
# What runs on no system at all runs the same for every user, and so does what is about time; these take the most of it.
pure=(--skip stall_tests --skip stream::hostile --skip stream::chaos --skip liars:: --skip explore --skip simulation --skip fake_ --skip hub::tests --skip buffered::tests --skip publish::tests --skip windows::tests::one_sided --skip model --skip hostile_inputs --skip rehearsal --skip protocol:: --skip in_flight --skip coalesce:: --skip the_same_over_rxm)
lockable_kib=8192
nobody=65534

skip() {
    echo "SKIPPED: $1"
    exit 0
}

# What cargo would run, as paths; all of it is built as a rule.
mapfile -t programs < <(cargo test --workspace --locked --features fabricast/tokio,fabricast/cudarc "${targets[@]}" --no-run 2>&1 | tee /dev/stderr | sed -n 's/^ *Executable .*(\(.*\))$/\1/p')
wanted=()
for program in "${programs[@]}"; do
    name=${program##*/}
    name=${name%-*}
    # The other packages have libraries, too.
    [[ ! -v filters[$name] ]] || wanted+=("$program")
done
((${#wanted[@]} == ${#filters[@]})) || {
    echo "not the ${#filters[@]} test programs that were asked for: ${programs[*]}"
    exit 1
}

ulimit -S -l "$lockable_kib" 2>/dev/null && ulimit -H -l "$lockable_kib" ||
    skip "this user may lock $(ulimit -l) KiB of memory, less than the $lockable_kib that the tests are to have"

room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
mkdir "$room/home" "$room/bin"
become=()
if ((EUID == 0)); then
    become=(setpriv --reuid="$nobody" --regid="$nobody" --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all)
    chmod 755 "$room"
    chown "$nobody:$nobody" "$room/home" "$room/bin" 2>/dev/null || skip "root may not give files to user $nobody here"
    "${become[@]}" test -w "$room/home" || skip "root can't become user $nobody here (setpriv), or it can't reach $room"
fi

echo "as $("${become[@]}" id), $(ulimit -l) KiB lockable"
# Beside them, the unit tests keep the fake libraries that they make.
cp "${wanted[@]}" "$room/bin/"
cd "$room/home"
status=0
for program in "${wanted[@]}"; do
    echo "     Running ${program##*/}"
    name=${program##*/}
    filter=${filters[${name%-*}]}
    "${become[@]}" env -i PATH="$PATH" HOME="$room/home" TMPDIR="$room/home" RUST_BACKTRACE=0 ${RUST_TEST_THREADS:+RUST_TEST_THREADS="$RUST_TEST_THREADS"} \
        ${FABRICAST_LIBFABRIC:+FABRICAST_LIBFABRIC="$FABRICAST_LIBFABRIC"} ${LD_LIBRARY_PATH:+LD_LIBRARY_PATH="$LD_LIBRARY_PATH"} \
        "$room/bin/${program##*/}" --show-output ${filter:+"$filter"} "${pure[@]}" || status=$?
done
exit "$status"
