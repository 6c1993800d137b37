# shellcheck shell=bash
# Two guests joined by a wire that is cut, and one that is ended: what becomes of keys and streams. Sourced by verbs.sh.
#
# In each run, a sender of messages (tests/endpoint/far.rs) and a stream go from guest a to guest b when it happens:
#   pause    the wire is cut for 5 s                 everything arrives
#   cut      the wire is cut for good                verdicts in time, every key back; joined again, the stream goes on and is whole
#   vanish   guest b's plug is pulled                the same, when it has booted again
#
# The guests are booted once, and for all runs, but for the one whose plug is pulled; after a run that failed, both are.
#
# shellcheck disable=SC2154  # verbs.sh sets what is not set here

two_cases=(pause cut vanish)
# Seconds without a sign of life after which `fabricast send` gives an attempt up.
two_patience=10
# Seconds that a sender's verdict may take: silence, and one more attempt, whose connection and handshake may take 5 s each. A receiver's comes
# first. Times the patience that the guests' tests have.
two_verdict=$(((two_patience + 10) * ${FABRICAST_TEST_PATIENCE:-4}))
# And for a stream that goes on until it is whole. It says more of itself: `--timeout`.
two_whole=240
two_port=7471
two_far_port=7480
two_size=$((16 << 20))
# Bytes a second: most is left to send when something happens.
two_rate=1M
# The case that is run, when it happened (milliseconds), and how many lines the receiver had printed then.
two_case='' two_at=0 two_lines=0

two_now() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }

two_fail() {
    echo "two: $*" >&2
    return 1
}

# The wire: frames of a in b and of b in a, by a socket.
two_boot() {
    local role=server=off
    [[ $1 != a ]] || role=server=on
    guest_boot "$1" "$(layer_of "$two_library")" "stream,id=n,$role,addr.type=unix,addr.path=$two_wire"
}

two_up() {
    local begin=$SECONDS
    two_boot a
    # It listens before b comes.
    while [[ ! -S $two_wire ]] && guest_alive a && ((SECONDS - begin < 20)); do sleep 0.1; done
    two_boot b
    guest_up a && guest_up b && two_far_side &&
        say "two guests up after $((SECONDS - begin)) s, kernel $(cat "$kernel/version"), libfabric $(version_of "$two_library")"
}

# What listens in guest b, until it is ended: the receiver of streams, which keeps them where the host has them, and that of messages.
two_far_side() {
    local at
    at=$(guest_address b)
    mkdir -p "$(guest_dir b)/received"
    guest_job b recv 86400 "fabricast recv --provider verbs --listen $at:$two_port --timeout $two_patience --dir $(guest_dir b)/received"
    guest_job b far 86400 "FABRICAST_TEST_FAR='listen $at:$two_far_port' endpoint far::a_far_peer_that_is_gone --nocapture"
    two_said b recv 'listening on' 60 && two_said b far 'listening' 60
}

# two_said GUEST JOB WORDS SECONDS [LINES]: waits until the job has printed that, behind its first so many lines.
two_said() {
    local log begin=$SECONDS
    log=$(guest_dir "$1")/job-$2
    until tail -n "+$((${5:-0} + 1))" "$log.log" 2>/dev/null | grep "$3" >/dev/null; do
        if [[ -e $log.rc ]] || ! guest_alive "$1" || ((SECONDS - begin > $4)); then
            two_fail "$2 in guest $1 did not say '$3': $(tail -n 3 "$log.log" 2>/dev/null | tr '\n' ' ')"
            return 1
        fi
        sleep 0.2
    done
}

two_send() {
    guest_job a send "$two_whole" "fabricast send $(guest_dir a)/payload --to $(guest_address b):$two_port --provider verbs --block 256K \
        --timeout $two_patience --retry-for $1 --rate $2"
}

# two_under_way TEST SECONDS: (of trying a lost peer again) messages of that test, and a stream whose first bytes have arrived. The messages are first: they have no end.
two_under_way() {
    guest_job a keys "$two_whole" "FABRICAST_TEST_FAR=$(guest_address b):$two_far_port endpoint far::$1 --exact --nocapture"
    two_said a keys '^cut$' 60 || return
    two_send "$2" "$two_rate"
    two_said a send '^[1-9][0-9]* of' 60 || return
    [[ ! -e $(guest_dir a)/job-send.rc ]] || two_fail "the stream was over too early: $(tail -n 1 "$(guest_dir a)/job-send.log")"
}

# two_note WHAT MILLISECONDS WORDS: what took so long in this run, for the reader and for the table.
two_note() {
    printf '    %-8s %4d.%d s  %s\n' "$1" $(($2 / 1000)) $(($2 % 1000 / 100)) "$3"
    printf '%s\t%s\t%s\n' "$two_case" "$1" "$2" >>"$two_times"
}

# two_ended JOB STATUS SECONDS [NAME]: guest a's job ends like that, no later than so many seconds after it happened.
two_ended() {
    local status=0 log took
    log=$(guest_dir a)/job-$1
    guest_wait a "$1" "$3" || status=$?
    if [[ $status != "$2" ]]; then
        two_fail "$1 ended with $status and not with $2: $(tail -n 5 "$log.log" | tr '\n' ' ')"
        return 1
    fi
    # When it was written, not when it was looked for.
    took=$(stat -c %.3Y "$log.rc")
    took=$((${took/[.,]/} - two_at))
    two_note "${4:-$1}" "$took" "$(grep -aE '^fabricast: |lost after|all of|^(resumed|seconds)' "$log.log" | tr -s ' ' | tr '\n' ';')"
    ((took <= $3 * 1000)) || two_fail "$1 ended after $took ms, and not within $3 s"
}

two_equal() {
    cmp "$(guest_dir a)/payload" "$(guest_dir b)/received/payload" || two_fail "what arrived is not what was sent"
}

# Once more, until it is whole: on from where it was.
two_resume() {
    two_at=$(two_now)
    two_send 30 100M
    two_ended send 0 "$two_whole" resumed && two_equal || return
    grep -q '^resumed ' "$(guest_dir a)/job-send.log" || two_fail "the stream began anew"
}

two_pause() {
    two_under_way a_far_peer_that_is_cut_off_for_a_while_is_sent_to_again 30 || return
    two_at=$(two_now)
    guest_monitor a 'set_link n off'
    sleep 5
    guest_monitor a 'set_link n on'
    two_ended keys 0 "$two_whole" && two_ended send 0 "$two_whole" && two_equal
}

# The receiver has noticed, too.
two_receiver_ended() {
    local log
    log=$(guest_dir b)/job-recv.log
    two_said b recv 'a stream ended after' "$two_verdict" "$two_lines" || return
    two_note recv $(($(two_now) - two_at)) "$(grep -a 'a stream ended after' "$log" | tail -n 1)"
}

two_cut() {
    two_under_way a_far_peer_that_is_gone_gives_every_key_back_in_time 1 || return
    two_lines=$(wc -l <"$(guest_dir b)/job-recv.log")
    two_at=$(two_now)
    guest_monitor a 'set_link n off'
    two_ended keys 0 "$two_verdict" && two_receiver_ended && two_ended send 1 "$two_verdict" || return
    guest_monitor a 'set_link n on'
    two_resume
}

two_vanish() {
    two_under_way a_far_peer_that_is_gone_gives_every_key_back_in_time 1 || return
    two_at=$(two_now)
    guest_kill b
    two_ended keys 0 "$two_verdict" && two_ended send 1 "$two_verdict" || return
    two_boot b
    guest_up b && two_far_side && two_resume
}

# One run of one case, from two guests that are up.
two_run() {
    local status=0 guest
    two_case=$1
    rm -rf "$(guest_dir b)/received"/payload "$(guest_dir b)/received"/.??*
    "two_$1" || status=1
    if ((status)); then
        for guest in a b; do
            mkdir -p "$logs/two-failed-$1-$2"
            cp -r "$(guest_dir "$guest")" "$logs/two-failed-$1-$2/" 2>/dev/null || true
        done
    fi
    return "$status"
}

# How long each thing took, in seconds, of all runs in which it was seen.
two_table() {
    [[ -s $two_times ]] || return 0
    printf '  %-8s %-8s %5s %8s %8s %8s\n' case what runs least median most
    sort -t $'\t' -k 1,1 -k 2,2 -k 3,3n "$two_times" | awk -F '\t' '
        function row() { printf "  %-8s %-8s %5d %8.1f %8.1f %8.1f\n", of[1], of[2], n, at[1], at[int((n + 1) / 2)], at[n] }
        $1 FS $2 != key { if (n) row(); key = $1 FS $2; split(key, of, FS); n = 0 }
        { at[++n] = $3 / 1000 }
        END { row() }'
}

# two_guests LIBRARY: every case VERBS_TIMES times, and a row of the table for each.
two_guests() {
    # There are two of them.
    # shellcheck disable=SC2034  # guest.sh reads it
    local guest_memory=${VERBS_MEMORY:-2G}
    local times=${VERBS_TIMES:-1} which run passed failed begin
    two_library=$1
    printf '\n==== two guests, libfabric %s, %s times each\n' "$(version_of "$1")" "$times"
    if ! "$guest_qemu" -netdev help 2>/dev/null | grep -qx stream; then
        skip_row two "this QEMU has no netdev 'stream' (since 7.2)"
        return
    fi
    two_times=$logs/two-$(version_of "$1").tsv
    : >"$two_times"
    mkdir -p "$(guest_dir a)"
    # A guest has nothing else of this machine where its root is another.
    head -c "$two_size" /dev/urandom >"$(guest_dir a)/payload"
    two_wire=$(mktemp -u /tmp/verbs-wire.XXXXXX)
    for which in ${VERBS_CASES:-"${two_cases[@]}"}; do
        passed=0 failed=0 begin=$SECONDS
        for ((run = 1; run <= times; run++)); do
            if ! guest_alive a || ! guest_alive b; then
                guest_stop_all
                rm -f "$two_wire"
                two_up || { failed=$((failed + 1)) && continue; }
            fi
            echo "  $which, run $run of $times"
            if two_run "$which" "$run"; then
                passed=$((passed + 1))
            else
                failed=$((failed + 1))
                # Nothing of a run that failed is there in the next.
                guest_stop_all
            fi
        done
        add_row "two: $which" "$1" "$passed" "$failed" 0 "$((SECONDS - begin))" "$( ((failed == 0)) || echo "see two-failed-$which-*")"
    done
    guest_stop a
    guest_stop b
    rm -f "$two_wire"
    two_table
}
