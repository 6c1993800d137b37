#!/usr/bin/env bash
# Builds and runs what is written in C and C++ against the built library (`capi.sh link`), and says of each what came of it.
#
#   capi-test.sh               all of it
#   capi-test.sh NAME...       the programs whose names have one of these in them, and nothing else
#   CAPI_PLAIN=1               each program once, as its user builds it, over libfabric of the system; the headers, symbols and layouts
#
# Every capi/tests/c/*.c and capi/tests/cpp/*.cpp runs twice: with AddressSanitizer and UndefinedBehaviorSanitizer in it over libfabric of the
# system, and over the one in FABRICAST_LIBFABRIC_2 where that is set; there the ones in C without. Programs
# named *_threads run with ThreadSanitizer, too; those named *_cxx20 are in C++20, the others in C++17.
# Every examples/cpp/*.cpp is built, into target/capi/debug/examples. Then the calls in random order, the exported symbols and layouts, and
# projects of somebody else's against the installed files and against the packages.
set -euo pipefail
cd "$(dirname "$0")/.."

only=("$@")
plain=${CAPI_PLAIN:-}
out=$(scripts/capi.sh link)
home=$PWD
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
mkdir -p "$room/log" "$out/examples"
limit=60
# What a fuzzer does in `make check`; `make models` and `make fuzz-capi` do more.
fuzz_seconds=${CAPI_FUZZ_SECONDS:-4}

# Most of the time here is the C++ compiler's: what makes it slow and finds nothing is left out.
common=(-g1 -O0 -Wall -Wextra -Werror -I"$out/include")
link=(-L"$out/lib" -lfabricast -lpthread "-Wl,-rpath,$home/$out/lib")
address=(-fsanitize=address,undefined -fno-sanitize=null,vptr,object-size -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
thread=(-fsanitize=thread)
export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0 UBSAN_OPTIONS=print_stacktrace=1
export LSAN_OPTIONS=suppressions=$home/capi/tests/lsan.supp:print_suppressions=0
export TSAN_OPTIONS=suppressions=$home/capi/tests/tsan.supp:second_deadlock_stack=1
export TMPDIR=$room

# One line of the list of what is done: NAME, COMMAND. Many at once, each with a log.
declare -a jobs=()
job() { jobs+=("$1"$'\t'"$2"); }

wanted() {
    ((${#only[@]})) || return 0
    local name
    for name in "${only[@]}"; do [[ $1 != *"$name"* ]] || return 0; done
    return 1
}

# Runs one job and says what came of it. A line SKIPPED of the program's is shown.
run_job() {
    local name=$1 command=$2 log=$room/log/${1//[^A-Za-z0-9_.-]/_} status=0 begin=$EPOCHREALTIME
    bash -c "set -e; $command" >"$log" 2>&1 </dev/null || status=$?
    local took=$(((${EPOCHREALTIME/./} - ${begin/./}) / 100000))
    took=$((took / 10)).$((took % 10))
    grep -h '^SKIPPED: ' "$log" || true
    if ((status == 0)); then
        echo "test $name ... ok ($took s)"
        grep -h '^note: ' "$log" || true
    else
        ((status != 124)) || echo "not done after $limit s" >>"$log"
        printf 'test %s ... FAILED (status %s, %s s)\n%s\n' "$name" "$status" "$took" "$(tail -n 60 "$log" | sed 's/^/    /')"
    fi
}

# program NAME SOURCE COMPILER... : the jobs of one program.
program() {
    local name=$1 source=$2 base=$room/${1//\//-}
    shift 2
    wanted "$name" || return 0
    if [[ -n $plain ]]; then
        job "$name" "$* ${common[*]} $source -o $base ${link[*]}; timeout -k 5 $limit $base"
        return
    fi
    local sanitized="$* ${common[*]} ${address[*]} $source -o $base-a ${link[*]}; timeout -k 5 $limit $base-a"
    local second="FABRICAST_LIBFABRIC=${FABRICAST_LIBFABRIC_2:-}"
    if [[ -z ${FABRICAST_LIBFABRIC_2:-} ]]; then
        job "$name (address, undefined)" "$sanitized"
    elif [[ $name == cpp/* ]]; then
        # What takes long of these is the compiler: the same program runs twice. Leaks of that library are not ours to find.
        job "$name (address, undefined; both libraries)" "$sanitized
            $second ASAN_OPTIONS=detect_leaks=0 timeout -k 5 $limit $base-a"
    else
        job "$name (address, undefined)" "$sanitized"
        job "$name (second libfabric)" "$* ${common[*]} $source -o $base ${link[*]}; $second timeout -k 5 $limit $base"
    fi
    [[ $name != *_threads ]] || job "$name (thread)" "$* ${common[*]} ${thread[*]} $source -o $base-t ${link[*]}; timeout -k 5 $limit $fixed $base-t"
}

# ThreadSanitizer of older compilers needs addresses that are not random.
fixed=$(setarch -R true 2>/dev/null && echo "setarch -R" || true)
# What is there twice in memory when a compiler is here only as C++'s.
have_cxx=yes
command -v c++ >/dev/null || have_cxx=
sources=(capi/tests/fuzz/*.c)

for source in capi/tests/c/*.c; do
    name=${source##*/}
    # The language is C11; the tests themselves make threads, folders and pipes.
    program "c/${name%.c}" "$source" cc -std=c11 -D_GNU_SOURCE
done
for source in capi/tests/cpp/*.cpp examples/cpp/*.cpp; do
    [[ -e $source && -n $have_cxx ]] || continue
    name=${source##*/}
    name=${name%.cpp}
    if [[ $source == examples/* ]]; then
        wanted "examples/$name" || continue
        job "examples/$name (builds)" "c++ -std=c++17 ${common[*]} $source -o $out/examples/$name ${link[*]}"
    else
        # What C++20 alone has: std::span, <=>.
        standard=c++17
        [[ $name != *_cxx20 ]] || standard=c++20
        program "cpp/$name" "$source" c++ -std=$standard
    fi
done

if wanted c/send && [[ -z $plain ]]; then
    # What C developers look for errors with; it shows a program less than the kernel does.
    job "c/send (valgrind)" "if ! command -v valgrind >/dev/null; then echo 'SKIPPED: a program in valgrind: there is none here'; exit 0; fi
        cc -std=c11 -D_GNU_SOURCE ${common[*]} capi/tests/c/send.c -o $room/send-v ${link[*]}
        timeout -k 5 $limit valgrind -q --error-exitcode=9 --leak-check=full $room/send-v"
fi
if [[ -n $have_cxx ]] && wanted cpp/cuobj; then
    # Leaks are AddressSanitizer's to find: libfabric's own are known by its suppressions.
    job "cpp/cuobj (valgrind)" "if ! command -v valgrind >/dev/null; then echo 'SKIPPED: cpp/cuobj in valgrind: there is none here'; exit 0; fi
        c++ -std=c++17 ${common[*]} capi/tests/cpp/cuobj.cpp -o $room/cuobj-v ${link[*]}
        timeout -k 5 $limit valgrind -q --error-exitcode=9 $room/cuobj-v"
    job "the examples of cuObjClient's page" "capi/tests/cuobj_page.sh $out"
fi

if wanted "the guide's program in C"; then
    # Where nobody listens it fails, and says why.
    job "the guide's program in C" "sed -n '/^\`\`\`c\$/,/^\`\`\`\$/p' docs/guide/c.md | sed '1d;/^\`\`\`\$/,\$d' >$room/guide.c
        sed -i s/192.0.2.1:7000/127.0.0.1:1/ $room/guide.c
        cc -std=c11 ${common[*]} $room/guide.c -o $room/guide ${link[*]}
        status=0; timeout -k 5 $limit $room/guide 2>$room/guide.said || status=\$?
        cat $room/guide.said; test \$status = 1; test -s $room/guide.said"
fi

if ((${#only[@]} == 0)); then
    # Each header on its own, as the first thing that a file includes.
    for header in capi/include/*.h; do
        job "include/${header##*/}" "echo '#include <${header##*/}>' | cc -std=c11 -x c ${common[*]} -Wstrict-prototypes -pedantic -fsyntax-only -"
    done
    for header in capi/include/*; do
        [[ -n $have_cxx ]] || continue
        job "include/${header##*/} (C++)" "echo '#include <${header##*/}>' | c++ -std=c++17 -x c++ ${common[*]} -pedantic -fsyntax-only -"
    done
    job "the symbols and layouts of capi/abi.tsv" "scripts/capi-abi.py $out"
    job "the functions that C++ has no class for" "scripts/capi-abi.py --classes"
fi

if ((${#only[@]} == 0)) && [[ -z $plain ]]; then
    job "calls in random order" "cc -std=gnu11 ${common[*]} ${address[*]} ${sources[*]} -o $room/fuzz ${link[*]}
        scripts/capi-abi.py --fuzzed $room/fuzz $out/lib/libfabricast.so
        timeout -k 5 $((fuzz_seconds + limit)) $room/fuzz --seconds $fuzz_seconds --threads 2"
    if [[ -n $have_cxx ]]; then
        job "a program for netio3, before and after" "capi/tests/netio3_diff.sh $out"
        # The one in Rust is built by whoever tests the workspace; a test of this alone may lack it.
        job "readout in C++ and in Rust" "rust=\${CARGO_TARGET_DIR:-target}/debug/fabricast
            if [[ ! -x \$rust ]]; then echo \"SKIPPED: no \$rust (cargo build -p fabricast-cli)\"; exit 0; fi
            c++ -std=c++17 ${common[*]} -O1 examples/cpp/readout.cpp -o $room/readout ${link[*]}
            timeout -k 5 400 capi/tests/readout_both_ways.sh \$rust $room/readout"
    fi
    prefix=$room/prefix
    job "projects against the installed files" "CAPI_PROFILE=debug scripts/capi.sh install $prefix
        cp -r capi/tests/outside $room/outside
        PKG_CONFIG_PATH=$prefix/lib/pkgconfig make -C $room/outside/pkgconfig | tee $room/said
        test \"\$(grep -c ': hello\$' $room/said)\" = 3
        if ! command -v cmake >/dev/null; then echo 'SKIPPED: a CMake project: no cmake here'; exit 0; fi
        cmake -S $room/outside/cmake -B $room/built -DCMAKE_PREFIX_PATH=$prefix && cmake --build $room/built
        for program in shared static cxx; do test \"\$(timeout 60 $room/built/\$program)\" = hello; done"
    job "projects against the packages" "if ! command -v dpkg-deb >/dev/null; then echo 'SKIPPED: no dpkg-deb here'; exit 0; fi
        CAPI_COMPRESSION=none CAPI_PROFILE=debug scripts/capi.sh deb $room/deb; TMPDIR= timeout -k 5 300 capi/tests/outside/clean_root.sh $room/deb"
    # As in "readout in C++ and in Rust", the program is there already where the workspace is tested.
    job "the command, installed and as a package" "program=\${CARGO_TARGET_DIR:-target}/debug/fabricast
        if [[ ! -x \$program ]]; then echo \"SKIPPED: no \$program (cargo build -p fabricast-cli)\"; exit 0; fi
        CAPI_PROFILE=debug timeout -k 5 100 capi/tests/tool.sh $room/tool"
fi

[[ -n ${FABRICAST_LIBFABRIC_2:-}$plain ]] || echo "SKIPPED: C and C++ over a second libfabric: there is none (FABRICAST_LIBFABRIC_2)"
[[ -n $have_cxx ]] || echo "SKIPPED: the programs in C++: no c++ here"
((${#jobs[@]})) || { echo "capi-test.sh: no program has one of these in its name: ${only[*]}" >&2; exit 2; }
echo "     Running C and C++ against $out"
export -f run_job
export room limit
# As many at once as there are cores, and one more: they wait for the network, too.
for ((i = 0; i < ${#jobs[@]}; i++)); do
    while (($(jobs -rp | wc -l) > $(nproc))); do wait -n || true; done
    run_job "${jobs[i]%%$'\t'*}" "${jobs[i]#*$'\t'}" >"$room/log/said.$i" &
done
wait
cat "$room"/log/said.*
failed=$(cat "$room"/log/said.* | grep -c '^test .* \.\.\. FAILED' || true)
passed=$(cat "$room"/log/said.* | grep -c '^test .* \.\.\. ok' || true)
word=ok
((failed == 0)) || word=FAILED
echo "test result: $word. $passed passed; $failed failed; 0 ignored; 0 measured; 0 filtered out"
((failed == 0))
