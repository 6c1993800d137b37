# shellcheck shell=bash
# Two guests joined by a wire that is cut, and one that is ended: what becomes of keys and streams. Sourced by verbs.sh.
#
# In each run, a stream and a sender of messages (tests/endpoint/far.rs) go from guest a to guest b when it happens:
#   pause    the wire is cut for 5 s                 everything arrives
#   cut      the wire is cut for good                verdicts in time, every key back; joined again, the stream goes on and is whole
#   vanish   guest b's plug is pulled                the same, when it has booted again
#
# shellcheck disable=SC2154  # verbs.sh sets what is not set here

two_cases=(pause cut vanish)
# Seconds without a sign of life after which `stream` gives up, and in which both its sides must have said so: it looks for its peer once more.
two_patience=10
two_verdict=120
two_port=7471
two_far_port=7480
two_size=$((48 << 20))
# Bytes a second: enough is left to send when something happens.
two_rate=2M

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
    guest_job b recv 86400 "stream recv --provider verbs --listen $at:$two_port --timeout $two_patience --dir $(guest_dir b)/received"
    guest_job b far 86400 "FABRICAST_TEST_FAR='listen $at:$two_far_port' endpoint far::a_far_peer_that_is_gone --nocapture"
    two_said b recv 'listening on' 60 && two_said b far 'listening' 60
}

# two_said GUEST JOB WORDS SECONDS: waits until the job has printed that.
two_said() {
    local log begin=$SECONDS
    log=$(guest_dir "$1")/job-$2
    until grep -q "$3" "$log.log" 2>/dev/null; do
        if [[ -e $log.rc ]] || ! guest_alive "$1" || ((SECONDS - begin > $4)); then
            two_fail "$2 in guest $1 did not say '$3': $(tail -n 3 "$log.log" 2>/dev/null | tr '\n' ' ')"
            return 1
        fi
        sleep 0.2
    done
}

two_send() {
    guest_job a send 240 "stream send $logs/payload --to $(guest_address b):$two_port --provider verbs --timeout $two_patience --retries $1 --rate $2"
}

# two_under_way TEST RETRIES: a stream whose first bytes have arrived, and messages of that test, which says when the wire is to be cut.
two_under_way() {
    two_send "$2" "$two_rate"
    two_said a send '^[1-9][0-9]* of' 60 || return
    guest_job a keys 240 "FABRICAST_TEST_FAR=$(guest_address b):$two_far_port endpoint far::$1 --exact --nocapture"
    two_said a keys '^cut$' 60 || return
    [[ ! -e $(guest_dir a)/job-send.rc ]] || two_fail "the stream was over too early: $(tail -n 1 "$(guest_dir a)/job-send.log")"
}

# two_ended JOB WANTED: guest a's job ends with that status, in time; prints after how many seconds.
two_ended() {
    local begin=$SECONDS status=0
    guest_wait a "$1" "$two_verdict" || status=$?
    echo "    $1: exit status $status after $((SECONDS - begin)) s: $(grep -aE '^stream: |lost after|all of|panicked|^(resumed|seconds)|: not within' "$(guest_dir a)/job-$1.log" | tr -s ' ' | tr '\n' ';')"
    [[ $status == "$2" ]] || two_fail "$1 ended with $status and not with $2: $(tail -n 5 "$(guest_dir a)/job-$1.log" | tr '\n' ' ')"
}

two_equal() {
    cmp "$logs/payload" "$(guest_dir b)/received/payload" || two_fail "what arrived is not what was sent"
}

# Once more, until it is whole: on from where it was.
two_resume() {
    two_send 3 100M
    two_ended send 0 && two_equal || return
    grep -q '^resumed ' "$(guest_dir a)/job-send.log" || two_fail "the stream began anew"
}

two_pause() {
    two_under_way a_far_peer_that_is_cut_off_for_a_while_is_sent_to_again 3 || return
    guest_monitor a 'set_link n off'
    sleep 5
    guest_monitor a 'set_link n on'
    two_ended keys 0 && two_ended send 0 && two_equal
}

# Gone for good, for those who send.
two_gone() {
    two_under_way a_far_peer_that_is_gone_gives_every_key_back_in_time 1 || return
    if [[ $1 == cut ]]; then guest_monitor a 'set_link n off'; else guest_kill b; fi
    local ok=0
    two_ended keys 0 || ok=1
    two_ended send 1 || ok=1
    return "$ok"
}

two_cut() {
    local status=0
    two_gone cut || status=1
    # The receiver has given its verdict, too.
    two_said b recv 'a stream ended after' "$two_verdict" || status=1
    grep -a 'a stream ended after' "$(guest_dir b)/job-recv.log" | tail -n 1 | sed 's/^/    recv: /'
    guest_monitor a 'set_link n on'
    ((status == 0)) && two_resume
}

two_vanish() {
    two_gone vanish || return
    two_boot b
    guest_up b && two_far_side && two_resume
}

# One run of one case, from two guests that are up.
two_run() {
    local status=0 guest
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
    head -c "$two_size" /dev/urandom >"$logs/payload"
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
}
