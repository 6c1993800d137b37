#!/usr/bin/env bash
# Runs all tests, part by part, and says at the end what failed and what was skipped.
#
#   test.sh             what a user trusts his build by: the tests over libfabric of the system
#   test.sh check       the rest that is quick to run: the second library, both mixed, C and C++ with sanitizers, a user without rights, no
#                       features, every program, a short round beside other programs
#   test.sh PART...     these parts: build abi suite capi doc, those of `check`: second mixed sanitized plain bare programs peers, and the long
#                       ones: library loom asan capi_asan, and what a registry asks for: packages outside docs_rs msrv deny
#   test.sh conformance every behaviour on every provider of both libraries, as a table
#   test.sh single      the suites of endpoints and faults with nothing packed
#   test.sh soak        the chaos tests alone, with full counts (FABRICAST_SOAK=1), on both libraries
#
# VERBOSE=1 shows the whole output; the logs of each part are in target/test-logs/.
# FABRICAST_TEST_LIMIT: seconds for everything together.
set -euo pipefail
cd "$(dirname "$0")/.."

all_parts=(build abi suite capi doc)
# `make check`.
check_parts=(build second mixed sanitized plain bare programs peers)
# Long ones, by name only: `make models`.
long_parts=(library loom asan capi_asan conformance single soak packages outside docs_rs msrv deny)
# Those with tests that do more with FABRICAST_SOAK=1.
soak_targets=(--lib --test alloc --test endpoint --test faults --test one_sided --test storage --test streams)
# What tests start, and libfabricast for what is written in C and C++.
programs=(--lib --bin fabricast --example object_http)
# One set of packages and features for all parts, so that nothing is built twice.
everything=(--workspace --locked --features fabricast/tokio,fabricast/cudarc)
logs=target/test-logs
triple=$(rustc -vV | sed -n 's/^host: //p')
started=$SECONDS
job=

failed_parts=()   # with the reason
times=()          # "seconds part"
# Failures that no test harness counted: a crash, a timeout, code that does not compile.
uncounted=0

# ---------------------------------------------------------------- running one part

# What a reader wants to see while it runs; the rest is in the log.
interesting() {
    if [[ -n ${VERBOSE:-} ]]; then
        cat
    else
        grep --line-buffered -E \
            '^ +(Running|Doc-tests) |^test result|SKIPPED: |\.\.\. FAILED|panicked at|^(error|warning)|ERROR: AddressSanitizer|^==[0-9]+==ERROR' || true
    fi
}

# Ends what the part left running, and says whether there was anything. `timeout` leads a
# process group of its own, so the group's number is that of the job.
reap() {
    local left
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        kill -0 -- "-$1" 2>/dev/null || return 1
        sleep 0.2
    done
    left=$(ps -eo pgid=,pid=,args= 2>/dev/null | awk -v group="$1" '$1 == group' | head -n 5 || true)
    kill -KILL -- "-$1" 2>/dev/null || true
    echo "processes left behind by this part (group $1):" "$left"
}

fail() {
    failed_parts+=("$1: $2")
    echo "FAILED $1: $2"
}

# part NAME TITLE SECONDS [-n] COMMAND...   (-n: this part runs no test, so none need pass)
part() {
    local name=$1 title=$2 limit=$3 counts=yes status=0 begin=$SECONDS out viewer
    shift 3
    if [[ $1 == -n ]]; then
        counts=no
        shift
    fi
    local log=$logs/$name.log left=$((total_limit - (SECONDS - started)))
    ((limit <= left)) || limit=$left
    printf '\n==== %s: %s\n' "$name" "$title"
    if ((limit <= 0)); then
        uncounted=$((uncounted + 1))
        fail "$name" "not run, the $total_limit s for all parts are used up"
        return
    fi
    : >"$log"
    exec {out}> >(tee -a "$log" | interesting)
    viewer=$!
    timeout -k 10 "$limit" "$@" >&"$out" 2>&1 </dev/null {out}>&- &
    job=$!
    wait "$job" || status=$?
    local stray
    stray=$(reap "$job") || stray=
    job=
    exec {out}>&-
    wait "$viewer" || true
    judge "$name" "$log" "$limit" "$status" "$counts"
    if [[ -n $stray ]]; then
        uncounted=$((uncounted + 1))
        fail "$name" "$stray"
    fi
    times+=("$((SECONDS - begin)) $name")
    echo "---- $name: $((SECONDS - begin)) s"
}

# What is wrong with a part that ended with status 0, or nothing: a failure that its status does not show, a program that ended without a
# result, a filter that fits no test, an example that is to be started and was not built, or no test at all and no reason for it.
wrong_all_the_same() {
    local log=$1
    if (($(sum_of failed "$log") > 0)); then
        echo "tests failed, and the exit status was 0"
    elif (($(grep -cE '^ +(Running|Doc-tests) ' "$log") > $(grep -c '^test result: ' "$log"))); then
        echo "fewer results than programs"
    elif grep -qE '^test result: .* 0 passed; 0 failed; 0 ignored; .* [1-9][0-9]* filtered out' "$log"; then
        echo "a program of which no test was asked for"
    elif grep -qE '(^|\.\.\. )SKIPPED: .* is not built' "$log"; then
        echo "tests were left out because a program was not built: run the part build first"
    elif (($(sum_of passed "$log") == 0)) && ! grep -q '^SKIPPED: ' "$log"; then
        echo "ran no test"
    fi
}

# Says whether a part passed: its exit status, and what came of its programs.
judge() {
    local name=$1 log=$2 limit=$3 status=$4 counts=$5 wrong=
    if ((status == 0)); then
        [[ $counts == no ]] || wrong=$(wrong_all_the_same "$log")
        if [[ -n $wrong ]]; then
            uncounted=$((uncounted + 1))
            fail "$name" "$wrong"
        fi
        return
    fi
    (($(sum_of failed "$log") > 0)) || uncounted=$((uncounted + 1))
    if ((status == 124 || status == 137)); then
        fail "$name" "not done after $limit s"
    else
        fail "$name" "exit status $status"
    fi
    if [[ -z ${VERBOSE:-} ]]; then
        echo "the last lines of $log:"
        tail -n 60 "$log" | sed 's/^/    /'
    fi
}

# A part that can't run here leaves its reason where the summary finds it.
skipped() {
    printf '\n==== %s: %s\n%s\n' "$1" "$2" "$3"
    printf '%s\n' "$3" >"$logs/$1.log"
}

# sum_of passed|failed|ignored LOG...: summed over the results of all cargo test runs.
sum_of() {
    local what=$1
    shift
    awk -v what="$what" '/^test result: / { for (i = 2; i <= NF; i++) if ($i == what ";") sum += $(i - 1) }
        END { print sum + 0 }' "$@" /dev/null
}

# ---------------------------------------------------------------- the parts

# The examples that have unit tests; of the others there is only the program.
tested_examples() {
    grep -rl '^ *#\[test\]' examples | cut -d / -f 2 | sort -u | sed 's/^/--example=/'
}

# The names of the test targets of a package's directory, but for those given, as --test arguments.
test_targets() {
    local directory=$1 file name
    shift
    for file in "$directory"/*.rs "$directory"/*/main.rs; do
        [[ -e $file ]] || continue
        name=${file#"$directory"/}
        name=${name%/main.rs}
        name=${name%.rs}
        [[ " $* " == *" $name "* ]] || printf -- '--test\n%s\n' "$name"
    done
}

# The same of all crates below crates/, and of the C interface.
crate_targets() {
    local directory
    for directory in crates/*/tests capi/tests; do test_targets "$directory" "$@"; done
}

# So that "the same binary" is a fact: the sums of all test programs.
fingerprint() { find "${CARGO_TARGET_DIR:-target}/debug/deps" -maxdepth 1 -type f -perm -u+x -name '*-*' ! -name '*.so' -exec sha256sum {} + | sort; }

# Looks for the second library and the second header set once; each is a path or the reason why not.
find_second() {
    local errors=target/test-logs/second-library.txt
    library2='' headers2='' no_library2='' no_headers2=''
    library2=$(scripts/libfabric2.sh 2>"$errors") || no_library2=$(tail -n 1 "$errors")
    headers2=$(scripts/headers2.sh 2>"$errors") || no_headers2=$(tail -n 1 "$errors")
    echo "libfabric of the system: $(fi_info --version 2>/dev/null | sed -n 's/^libfabric: //p' || true)"
    echo "second libfabric:        ${library2:-$no_library2}"
    echo "second header set:       ${headers2:-$no_headers2}"
}

run_abi() {
    local sets=()
    [[ -z $headers2 ]] || sets=("FABRICAST_ABI_HEADERS=$headers2${FABRICAST_ABI_HEADERS:+:$FABRICAST_ABI_HEADERS}")
    # A set that is missing is no reason not to check the other.
    part abi "declarations against the C headers: system${headers2:+, $headers2}" 420 \
        env "${sets[@]}" cargo test "${everything[@]}" --test abi -- --show-output
    [[ -n $headers2 ]] || echo "$no_headers2" | tee -a "$logs/abi.log"
}

# Nearly all of it: the library's own unit tests are the largest program, and their compiler leaves half of a machine idle. The part suite
# builds them beside tests that wait.
run_build() {
    local targets
    mapfile -t targets < <(tested_examples && test_targets tests conformance && crate_targets)
    part build "all tests but those within the library, with all features" 900 -n cargo test "${everything[@]}" --no-run --bin fabricast "${targets[@]}"
    part examples "what tests start or link" 600 -n cargo build "${everything[@]}" "${programs[@]}"
}

# For whoever wants nothing compiled in the part suite.
run_library() {
    part library "the tests within the library" 600 -n cargo test "${everything[@]}" --no-run --lib
}

# beside COMMAND...: each a line of the shell, and all at once. They begin one after another: cargo keeps the others out while it compiles, and
# only the last of them has something to compile.
beside() {
    local line job jobs=() status=0
    for line; do
        bash -c "$line" &
        jobs+=($!)
        sleep 2
    done
    for job in "${jobs[@]}"; do wait "$job" || status=$?; done
    return "$status"
}
export -f beside

run_suite() {
    local targets all=(cargo test "${everything[@]}" --no-fail-fast) how=(-- --show-output --skip mixed::)
    # These wait for most of their time, for peers that are lost and for processes of their own.
    local waiting=("${all[@]}" --test faults --test tools --test cli "${how[@]}")
    local unit=("${all[@]}" --lib --bin fabricast "${how[@]}")
    mapfile -t targets < <(tested_examples && test_targets tests conformance faults tools && crate_targets abi cli)
    local others=("${all[@]}" "${targets[@]}" "${how[@]}")
    # shellcheck disable=SC2016  # the inner shell's
    part suite "all tests, libfabric of the system" 900 bash -c 'beside "$@"' bash "${waiting[*]@Q}" "${others[*]@Q}" "${unit[*]@Q}"
}

# Behind the part build or suite.
run_second() {
    local title="the same binaries, second libfabric" targets before
    if [[ -z $library2 ]]; then
        skipped second "$title" "$no_library2"
        return
    fi
    # Left out: what has nothing to do with libfabric, and what starts both libraries by itself.
    mapfile -t targets < <(test_targets tests conformance compile_fail storage && test_targets crates/libfabric-sys/tests abi && test_targets crates/fabricast-cli/tests)
    before=$(fingerprint)
    part second "$title" 420 env FABRICAST_LIBFABRIC="$library2" \
        cargo test "${everything[@]}" --no-fail-fast "${targets[@]}" -- --show-output --skip mixed:: --skip cufile::
    if [[ -n $before && $before == "$(fingerprint)" ]]; then
        echo "the test programs are the same files as before"
    else
        uncounted=$((uncounted + 1))
        fail second "the test programs were built anew, or for the first time: run the part build or suite before this one"
    fi
}

run_mixed() {
    local title="sender on one libfabric, receiver on the other, both ways"
    if [[ -z $library2 ]]; then
        skipped mixed "$title" "$no_library2"
        return
    fi
    part mixed "$title" 180 env FABRICAST_LIBFABRIC_2="$library2" \
        cargo test "${everything[@]}" --test endpoint mixed:: -- --show-output
}

run_capi() {
    # Nothing is built here after the part build.
    part capi "C and C++ against libfabricast" 300 \
        env CAPI_PLAIN=1 bash -c 'cargo build "$@" && scripts/capi-test.sh' bash "${everything[@]}" "${programs[@]}"
}

run_sanitized() {
    local second=()
    [[ -z $library2 ]] || second=("FABRICAST_LIBFABRIC_2=$library2")
    part sanitized "C and C++ against libfabricast with sanitizers, over both libraries, and projects that find it" 600 \
        env "${second[@]}" bash -c 'cargo build "$@" && scripts/capi-test.sh' bash "${everything[@]}" "${programs[@]}"
}

# Each must build; what they measure or show is looked at by nobody here.
run_programs() {
    part programs "all examples and benches" 600 -n cargo build "${everything[@]}" --examples --bins
}

# Behind the parts build and programs. That each program starts and says what peers.py reads; no figure is looked at.
run_peers() {
    local built=${CARGO_TARGET_DIR:-target}/debug title="one short round of fabricast beside other programs"
    if [[ -x $built/bench && -x $built/slow_subscriber && -x $built/fabricast ]]; then
        part peers "$title" 400 -n python3 benches/peers/peers.py --rounds 1 --seconds 0.05 --file-bytes 1M --files 100 \
            --bench "$built/bench" --slow-subscriber "$built/slow_subscriber" --fabricast "$built/fabricast"
    else
        skipped peers "$title" "SKIPPED: bench, slow_subscriber or fabricast is not built here (the parts build and programs)"
    fi
}

# The library with AddressSanitizer in it, too: what C does to it, and what it does to C's memory.
run_capi_asan() {
    local title="calls of the C interface in random order, under AddressSanitizer"
    if has_sanitizer; then
        part capi_asan "$title" 600 scripts/fuzz-capi.sh "${FUZZ_CAPI_SECONDS:-20}"
    else
        skipped capi_asan "$title" "SKIPPED: no AddressSanitizer with this toolchain"
    fi
}

run_bare() {
    # All other parts have all features on.
    part bare "the library without its features" 300 -n cargo check -p fabricast --locked --lib
}

run_loom() {
    # The other dependencies of the tests are only along for the ride: no time for optimising them.
    local package fast_build=(--config 'profile.release.package."*".opt-level=0')
    for package in loom generator; do fast_build+=(--config "profile.release.package.$package.opt-level=3"); done
    part loom "every interleaving of the lock-free lists (loom)" 600 \
        env RUSTFLAGS="--cfg loom" CARGO_PROFILE_RELEASE_DEBUG=false \
        cargo test --locked -p fabricast --release "${fast_build[@]}" --lib --target-dir target/loom loom_
}

# The sanitizer is a nightly flag, but its run time comes with the stable toolchain too: try it.
has_sanitizer() {
    local probe
    probe=$(mktemp -d)
    local status=0
    echo 'fn main() {}' | RUSTC_BOOTSTRAP=1 rustc -Zsanitizer=address --crate-name probe -o "$probe/probe" - 2>/dev/null &&
        "$probe/probe" || status=1
    rm -rf "$probe"
    return "$status"
}

run_asan() {
    # Leaks are not looked for here: what libraries keep until the process ends is not ours, and
    # fabricast leaks on purpose where freeing would be unsound. The tests count regions and descriptors.
    local asan_targets=(-p fabricast -p fabricast-cufile --test faults --test one_sided --test storage --test gpu --test cufile)
    # Where memory is freed under a peer or a device is what is looked at; these are about other things, and take long.
    local asan_skips=(--skip chaos:: --skip churn:: --skip hostile:: --skip spike:: --skip file_api:: --skip cuda::)
    if has_sanitizer; then
        part asan "the shutdown and one-sided suites under AddressSanitizer" 600 \
            env RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=0}" \
            cargo test --locked --config 'profile.dev.package."*".opt-level=0' --target "$triple" --target-dir target/asan "${asan_targets[@]}" -- --show-output "${asan_skips[@]}"
    elif command -v valgrind >/dev/null; then
        local runner
        runner=CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<<"$triple")_RUNNER
        part asan "the shutdown and one-sided suites under valgrind (no AddressSanitizer with this toolchain)" 900 \
            env "$runner=valgrind -q --error-exitcode=99 --fair-sched=yes" \
            cargo test --locked "${asan_targets[@]}" -- --show-output --test-threads=1 "${asan_skips[@]}"
    else
        skipped asan "the shutdown and one-sided suites under a memory checker" "SKIPPED: neither AddressSanitizer nor valgrind here"
    fi
}

run_plain() {
    part plain "a plain user with 8 MiB of lockable memory" 180 scripts/plain.sh
}

run_doc() {
    part doc "examples in the documentation" 420 cargo test "${everything[@]}" --doc
}

# What is printed is the table; how each line of it came about is in the log.
run_conformance() {
    local second=()
    [[ -z $library2 ]] || second=("FABRICAST_LIBFABRIC_2=$library2")
    part conformance "every behaviour on every provider" 1500 \
        env "${second[@]}" cargo test "${everything[@]}" --test conformance -- --show-output
    [[ -n $library2 ]] || echo "$no_library2" | tee -a "$logs/conformance.log"
    sed -n '/^behaviour /,/^---- end of the table/p' "$logs/conformance.log"
}

# The suites of endpoints and of faults once more, with small messages that go out by themselves.
run_single() {
    part single "endpoints and faults, nothing packed" 600 env FABRICAST_TEST_SINGLE=1 \
        cargo test "${everything[@]}" --no-fail-fast --test endpoint --test faults -- --show-output
}

# Each package is built from its archive alone, in the order in which they would be published.
run_packages() {
    local title="cargo publish --dry-run of each package"
    local command=(cargo publish --workspace --dry-run --allow-dirty --locked)
    local version
    version=$(cargo --version | cut -d ' ' -f 2)
    if sort -VC <<<"1.90.0"$'\n'"$version"; then
        part packages "$title" 1200 -n "${command[@]}"
    else
        skipped packages "$title" "SKIPPED: cargo $version publishes one package at a time (needed: 1.90)"
    fi
}

run_outside() {
    part outside "the lock file of a crate that depends on fabricast" 120 -n scripts/outside.sh
}

# As docs.rs builds them: with its features, with what only a nightly compiler takes, and on a machine without libfabric.
run_docs_rs() {
    local flags="--cfg docsrs -Zunstable-options --generate-link-to-definition -D warnings"
    part docs_rs "the documentation, without libfabric" 600 -n scripts/without-libfabric.sh \
        env RUSTC_BOOTSTRAP=1 RUSTDOCFLAGS="$flags" cargo doc --no-deps --lib --workspace --exclude fabricast-benches --features fabricast/tokio,fabricast/cudarc --locked
}

# The version that Cargo.toml promises. Tests may take a newer one.
run_msrv() {
    local version title
    version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    title="the libraries and commands with Rust $version"
    if ! command -v rustup >/dev/null; then
        skipped msrv "$title" "SKIPPED: no rustup here, which would install Rust $version"
    elif ! timeout 180 rustup toolchain install "$version" --profile minimal --no-self-update >"$logs/msrv-install.txt" 2>&1; then
        skipped msrv "$title" "SKIPPED: rustup can't install Rust $version: $(tail -n 1 "$logs/msrv-install.txt")"
    else
        part msrv "$title" 900 -n cargo "+$version" check --workspace --locked --features fabricast/tokio,fabricast/cudarc --lib --bins --target-dir target/msrv
    fi
}

run_deny() {
    local title="licenses, sources and duplicates of what users get (deny.toml)"
    if ! command -v cargo-deny >/dev/null; then
        skipped deny "$title" "SKIPPED: no cargo-deny here (cargo install cargo-deny --locked, minutes)"
        return
    fi
    part deny "$title" 120 -n cargo deny --workspace --locked check bans licenses sources
    title="known faults of what users get"
    if timeout 60 cargo deny fetch db >"$logs/advisories-fetch.txt" 2>&1; then
        part advisories "$title" 120 -n cargo deny --workspace --locked check --disable-fetch advisories
    else
        skipped advisories "$title" "SKIPPED: the list of known faults can't be fetched: $(tail -n 1 "$logs/advisories-fetch.txt")"
    fi
}

run_soak() {
    local options=(--nocapture --test-threads=1)
    export FABRICAST_SOAK=1 VERBOSE=1
    run_build
    part soak "full counts, libfabric of the system" 14400 \
        cargo test "${everything[@]}" --no-fail-fast "${soak_targets[@]}" -- "${options[@]}"
    if [[ -z $library2 ]]; then
        skipped soak-second "full counts, second libfabric" "$no_library2"
        return
    fi
    part soak-second "full counts, second libfabric" 14400 env FABRICAST_LIBFABRIC="$library2" \
        cargo test "${everything[@]}" --no-fail-fast "${soak_targets[@]}" -- "${options[@]}"
}

# ---------------------------------------------------------------- the summary

summary() {
    local entry passed failed skips
    printf '\n==== summary\n'
    for entry in "${times[@]}"; do printf '%5s s  %s\n' "${entry%% *}" "${entry#* }"; done
    printf '%5s s  together\n' "$((SECONDS - started))"
    # One line for each reason and part, so that no skip looks green.
    skips=$(grep -HoE '(^|\.\.\. )SKIPPED: .*' "$logs"/*.log | sed -E 's|^.*/([^/]*)\.log:(\.\.\. )?|\1: |' || true)
    if [[ -n $skips ]]; then
        echo "skipped:"
        printf '%s\n' "$skips" | awk '{ print "    " $0 }'
    fi
    if ((${#failed_parts[@]})); then
        echo "failed:"
        printf '    %s\n' "${failed_parts[@]}"
    fi
    passed=$(sum_of passed "$logs"/*.log)
    failed=$(($(sum_of failed "$logs"/*.log) + uncounted))
    skips=$(($(sum_of ignored "$logs"/*.log) + $(grep -c . <<<"$skips" || true)))
    echo "$passed passed, $failed failed, $skips skipped"
    ((failed == 0 && ${#failed_parts[@]} == 0))
}

stop() {
    [[ -z $job ]] || kill -TERM "$job" 2>/dev/null || true
    echo "stopped"
    exit 130
}

# libfabric's provider verbs reads all of /proc/kallsyms when a process begins, 1.17 twice, which takes 100 ms of a core, and tests begin hundreds
# of processes. It looks for what only GPUs beside cards need. Who may (root) finds it empty here, where there is no card.
without_kernel_symbols() {
    [[ -z ${FABRICAST_TEST_NAMESPACE:-} && ! -e /sys/class/infiniband_verbs ]] || return 0
    export FABRICAST_TEST_NAMESPACE=1
    # shellcheck disable=SC2016  # the inner shell's
    local within='mount --bind /dev/null /proc/kallsyms && exec "$@"'
    unshare --mount bash -c "$within" - true 2>/dev/null || return 0
    exec unshare --mount bash -c "$within" - scripts/test.sh "$@"
}

main() {
    local parts=("$@") name
    # Many tests wait for something to come about: on two cores, two at a time leave the cores idle.
    export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(nproc) > 4 ? $(nproc) : 4))}
    total_limit=${FABRICAST_TEST_LIMIT:-2400}
    if ((${#parts[@]} == 0)); then parts=("${all_parts[@]}"); fi
    if [[ ${parts[*]} == check ]]; then parts=("${check_parts[@]}"); fi
    if [[ ${parts[0]} == soak ]]; then total_limit=${FABRICAST_TEST_LIMIT:-30000}; fi
    for name in "${parts[@]}"; do
        if [[ " ${all_parts[*]} ${check_parts[*]} ${long_parts[*]} " != *" $name "* ]]; then
            echo "test.sh: no part '$name'; there are: check ${all_parts[*]} ${check_parts[*]} ${long_parts[*]}" >&2
            exit 2
        fi
    done
    without_kernel_symbols "$@"
    trap stop INT TERM HUP
    rm -rf "$logs"
    mkdir -p "$logs"
    find_second
    for name in "${parts[@]}"; do "run_$name"; done
    summary
}

main "$@"
