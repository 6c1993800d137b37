#!/usr/bin/env bash
# Calls the C interface in random order (capi/tests/fuzz), the library and the program under AddressSanitizer.
#
#   fuzz-capi.sh SECONDS [SEED]
#
# The time goes in equal parts to one thread and two threads over tcp and two threads over shm. Prints the seed of each; fails with what was
# found. The log of each is in target/fuzz-capi.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-20} seed=${2:-}
triple=$(rustc -vV | sed -n 's/^host: //p')
room=target/fuzz-capi
mkdir -p "$room"

echo "building with AddressSanitizer; the first time takes minutes"
# The flags of scripts/test.sh asan, so that what both need is built once where features allow.
RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address cargo build --locked -q --config 'profile.dev.package."*".opt-level=0' \
    --target "$triple" --target-dir target/asan -p fabricast-capi --lib
cc -std=gnu11 -Wall -Wextra -Werror -g -O1 -fsanitize=address -fno-omit-frame-pointer -Icapi/include capi/tests/fuzz/*.c \
    "target/asan/$triple/debug/libfabricast_capi.a" -o "$room/fuzz_calls" -lgcc_s -lpthread -lm -ldl -lrt

export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:abort_on_error=1}
export LSAN_OPTIONS=suppressions=$PWD/capi/tests/lsan.supp:print_suppressions=0
passed=0 failed=0
echo "     Running capi/tests/fuzz ($room)"
for how in "--threads 1 --provider tcp" "--threads 2 --provider tcp" "--threads 2 --provider shm"; do
    log=$room/${how//[^a-z0-9]/}.log part=$((seconds / 3 > 0 ? seconds / 3 : 1)) status=0
    # shellcheck disable=SC2086  # two options, with their values
    timeout -k 10 "$((part + 300))" "$room/fuzz_calls" --seconds "$part" ${seed:+--seed "$seed"} $how >"$log" 2>&1 </dev/null || status=$?
    if ((status == 0)); then
        passed=$((passed + 1))
        echo "test $how: $(head -n 1 "$log"): $(tail -n 1 "$log") ... ok"
    else
        failed=$((failed + 1))
        echo "test $how: status $status ... FAILED"
        head -n 80 "$log"
        tail -n 5 "$log"
    fi
done
word=ok
((failed == 0)) || word=FAILED
echo "test result: $word. $passed passed; $failed failed; 0 ignored; 0 measured; 0 filtered out"
((failed == 0))
