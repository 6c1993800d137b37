//! Transfers in which nothing moves though both sides are there: messages are swallowed, sources
//! and sinks hang. Each ends in an error that says who waited for what, or goes on in another
//! attempt; and whoever works, however long, is waited for. All of it by a held clock
//! (`rehearsal`).

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use super::outbox::Swallow;
use super::rehearsal::{Mishap, Script, Side, Wish, World};
use super::wire::Kind;
use super::{PeerOutcome, RefusalCode, SendOptions, StreamError, StreamEvent, Transport};
use crate::protocol::connection::Form;

/// For how long nothing may move, where that is what is tested, and elsewhere.
const SHORT: Duration = Duration::from_millis(400);
const LONG: Duration = Duration::from_secs(3600);

/// How often deadlines are looked at, and a little for what is said then.
const SOON: Duration = Duration::from_millis(150);

const BLOCK: u32 = 16 << 10;

fn swallow(kind: Kind, times: u32) -> Option<Swallow> {
    let left = Arc::new(AtomicU32::new(times));
    Some(Swallow { kind, left })
}

/// What one transfer came to.
struct Ended {
    outcome: PeerOutcome,
    events: Vec<StreamEvent>,
    /// Of it, what is whole at the receiver.
    whole: u32,
    /// When it was over, and when nothing was left of it.
    took: Duration,
}

/// One transfer of 40 blocks, over each kind of connections.
fn over_both(options: &SendOptions, tune: impl Fn(&mut Script), judge: impl Fn(Ended)) {
    for form in [Form::Msg, Form::Rdm] {
        println!("over {form:?}");
        let sizes = [40 * u64::from(BLOCK)];
        let mut script = Script::quiet(form).sending(&sizes, options.clone());
        script.times.stalled = LONG;
        tune(&mut script);
        let mut world = World::new(script);
        let ended = world.run().expect("over in time").remove(0);
        let took = world.clock.passed();
        world.settle().expect("nothing is left");
        let (mut events, whole) = (world.events(), world.sinks[0].whole(0));
        world.close().expect("everything is back");
        judge(Ended {
            outcome: ended.outcomes.into_iter().next().expect("of one peer"),
            events: events.remove(0),
            whole,
            took,
        });
    }
}

fn last_cut(events: &[StreamEvent]) -> &StreamError {
    match events.last() {
        Some(StreamEvent::Cut(_, error, _)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_message_that_is_never_said_ends_in_an_error_that_names_it_on_both_sides() {
    let accept = "the peer to accept the stream";
    let credit = "blocks to be granted (credit)";
    let slot = "a slot to write into (window, freed)";
    for (kind, transport, named) in [
        (Kind::ACCEPT, Transport::Message, accept),
        (Kind::CREDIT, Transport::Message, credit),
        (Kind::FREED, Transport::Write, slot),
        (Kind::WINDOW, Transport::Write, slot),
    ] {
        println!("{kind:?}");
        let options = SendOptions::default().transport(transport);
        let options = options.reconnects(0).stalled_after(SHORT);
        let tune = |script: &mut Script| script.receivers[0].swallow = swallow(kind, u32::MAX);
        over_both(&options, tune, |ended| {
            let error = ended.outcome.result.unwrap_err();
            let StreamError::Stalled { after, waits } = &error else {
                panic!("{error:?}")
            };
            assert!(*after > SHORT && *after < SHORT + SOON, "{error}");
            let named = format!("the sender waited for {named}");
            assert!(waits.starts_with(&named), "{error}");
            // The receiver was told, and says what it waited for itself.
            match last_cut(&ended.events) {
                StreamError::Failed { code, reason, .. } => {
                    assert_eq!(*code, RefusalCode::STALLED);
                    assert!(reason.starts_with(&named), "{reason}");
                    let theirs = "; the receiver waited for blocks";
                    assert!(reason.contains(theirs), "{reason}");
                }
                other => panic!("{other:?}"),
            }
        });
    }
}

#[test]
fn a_receiver_that_waits_for_nothing_says_so_to_the_sender() {
    let options = SendOptions::default().reconnects(0).stalled_after(LONG);
    let tune = |script: &mut Script| {
        script.times.stalled = SHORT;
        script.sender.swallow = swallow(Kind::FINISH, u32::MAX);
    };
    over_both(&options, tune, |ended| {
        let named = "the receiver waited for blocks, or the sender to say that it has sent all";
        match last_cut(&ended.events) {
            StreamError::Stalled { after, waits } => {
                assert!(waits.starts_with(named), "{waits}");
                assert!(*after > SHORT && *after < SHORT + SOON, "{after:?}");
            }
            other => panic!("{other:?}"),
        }
        match ended.outcome.result.unwrap_err() {
            StreamError::Failed { code, reason, .. } => {
                assert_eq!(code, RefusalCode::STALLED);
                assert!(reason.starts_with(named), "{reason}");
                let ours = "; the sender waited for the peer";
                assert!(reason.contains(ours), "{reason}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(ended.whole, 0, "nothing is said to have arrived");
    });
}

#[test]
fn what_was_swallowed_once_another_attempt_makes_up_for() {
    for (kind, transport) in [
        (Kind::ACCEPT, Transport::Write),
        (Kind::CREDIT, Transport::Message),
        (Kind::FREED, Transport::Write),
    ] {
        let options = SendOptions::default().transport(transport);
        let options = options.reconnects(8).stalled_after(SHORT);
        // All eight slots of the first attempt.
        let times = if kind == Kind::FREED { 8 } else { 1 };
        let tune = |script: &mut Script| script.receivers[0].swallow = swallow(kind, times);
        over_both(&options, tune, |ended| {
            ended.outcome.result.unwrap();
            assert_eq!(ended.whole, 1);
            // An attempt that stands still, and the pause before the next one; but the next word of
            // credit says what the first said, too.
            let stood = kind != Kind::CREDIT;
            assert_eq!(ended.took > SHORT, stood, "{:?}", ended.took);
            assert!(ended.took < 2 * SHORT, "{:?}", ended.took);
        });
    }
}

/// A grant that is lost is said again when the sender asks what was lost; and a peer that answers
/// such questions, and says nothing new, is one that stands still. Before, the answers went on for
/// ever: what they said was no grant, and each of them counted as something that moved.
#[test]
fn a_grant_that_is_lost_comes_back_or_the_stream_ends() {
    const LIMIT: Duration = Duration::from_secs(5);
    const ASKED: Duration = Duration::from_secs(1);
    let options = SendOptions::default().reconnects(0).stalled_after(LIMIT);
    for transport in [Transport::Message, Transport::Write] {
        // The first grant, and what the first questions bring.
        for times in [1, 3, u32::MAX] {
            println!("{transport:?}, {times}");
            let tune = |script: &mut Script| {
                script.receivers[0].window = 1;
                script.receivers[0].swallow = swallow(Kind::CREDIT, times);
            };
            over_both(&options.clone().transport(transport), tune, |ended| {
                if times < u32::MAX {
                    ended.outcome.result.unwrap();
                    assert_eq!(ended.whole, 1);
                    let least = ASKED * times;
                    assert!(ended.took > least, "{:?}", ended.took);
                    assert!(ended.took < least + times * SOON, "{:?}", ended.took);
                    return;
                }
                match ended.outcome.result.unwrap_err() {
                    StreamError::Stalled { after, waits } => {
                        let named = "the sender waited for blocks to be granted (credit)";
                        assert!(waits.starts_with(named), "{waits}");
                        assert!(after > LIMIT && after < LIMIT + SOON, "{after:?}");
                    }
                    other => panic!("{other:?}"),
                }
            });
        }
    }
}

/// Slots are a connection's: where those that are left have none, nothing more can come by them.
/// Before, the sender had credit, and waited in vain.
#[test]
fn a_stream_whose_slots_went_with_a_connection_begins_anew() {
    const LIMIT: Duration = Duration::from_secs(20);
    let options = SendOptions::default().transport(Transport::Write).rails(3);
    for (window, at) in (0..12_u32).map(|n| (1 + n % 2, u64::from(n) * 300)) {
        for first in 0..2 {
            let tune = |script: &mut Script| {
                script.receivers[0].window = window;
                let at = Duration::from_micros(at);
                script.mishaps = vec![(at, Mishap::Cut(first)), (at, Mishap::Cut(first))];
            };
            over_both(&options.clone().stalled_after(LIMIT), tune, |ended| {
                ended.outcome.result.unwrap();
                // Twice, where the connection took the last word with it.
                assert!(ended.whole > 0, "{}", ended.whole);
                assert!(ended.took < LIMIT, "{:?} at {at}", ended.took);
            });
        }
    }
}

/// Whoever works is waited for, many times as long as nothing may move, since the other side hears
/// that it works.
#[test]
fn who_works_for_long_is_waited_for() {
    const LIMIT: Duration = Duration::from_secs(2);
    // Less than ten times the limit.
    const WORK: Duration = Duration::from_secs(19);
    for side in [Side::Sender, Side::Receiver(0)] {
        let options = SendOptions::default().reconnects(0).stalled_after(LIMIT);
        let tune = |script: &mut Script| {
            script.times.stalled = LIMIT;
            script.sender.readers = 1;
            script.receivers[0].writers = 1;
            script.slow(side, WORK);
        };
        over_both(&options, tune, |ended| {
            ended.outcome.result.unwrap();
            assert!(matches!(
                ended.events.last(),
                Some(StreamEvent::Complete(..))
            ));
            assert!(ended.took >= 40 * WORK, "{:?}", ended.took);
        });
    }
}

#[test]
fn a_source_or_a_sink_that_hangs_is_named() {
    let limit = 10 * SHORT;
    let options = SendOptions::default().stalled_after(SHORT);
    let tune = |script: &mut Script| script.slow(Side::Sender, LONG);
    over_both(&options, tune, |ended| {
        match ended.outcome.result.unwrap_err() {
            StreamError::Stalled { after, waits } => {
                let named = "the sender waited for its source";
                assert!(waits.starts_with(named), "{waits}");
                assert!(after > limit && after < limit + SOON, "{after:?}");
            }
            other => panic!("{other:?}"),
        }
        match last_cut(&ended.events) {
            StreamError::Failed { reason, .. } => {
                assert!(reason.contains("its source"), "{reason}")
            }
            other => panic!("{other:?}"),
        }
    });
    let options = SendOptions::default().stalled_after(LONG);
    let tune = |script: &mut Script| {
        script.times.stalled = SHORT;
        script.slow(Side::Receiver(0), LONG);
    };
    over_both(&options, tune, |ended| {
        assert!(
            ended.took > limit && ended.took < limit + 2 * SOON,
            "{:?}",
            ended.took
        );
        match ended.outcome.result.unwrap_err() {
            StreamError::Refused { code, reason, .. }
            | StreamError::Failed { code, reason, .. } => {
                assert_eq!(code, RefusalCode::SINK);
                let named = "the receiver waited for its sink";
                assert!(reason.contains(named), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    });
}

/// A peer that says again and again that its sink works, as one that lies may, holds nobody for
/// ever.
#[test]
fn the_word_of_a_peer_that_its_sink_works_counts_for_a_time() {
    let limit = 20 * SHORT;
    let options = SendOptions::default().reconnects(0).stalled_after(SHORT);
    let tune = |script: &mut Script| {
        script.times.stalled = LONG;
        script.slow(Side::Receiver(0), LONG);
    };
    over_both(&options, tune, |ended| {
        match ended.outcome.result.unwrap_err() {
            StreamError::Stalled { after, waits } => {
                let named = "the sender waited for the peer to accept the stream";
                assert!(waits.starts_with(named), "{waits}");
                assert!(after > limit && after < limit + SOON, "{after:?}");
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_rate_and_a_pause_take_as_long_as_they_do() {
    const LIMIT: Duration = Duration::from_millis(1200);
    let (pause, until) = (Duration::from_secs(10), Duration::from_secs(600));
    // A block in 1.5 s.
    let rate = Some(u64::from(BLOCK) * 2 / 3);
    let options = SendOptions::default().reconnects(0).stalled_after(LIMIT);
    let tune = |script: &mut Script| {
        script.times.stalled = LIMIT;
        script.wishes.push((pause, Wish::Pause(0)));
        script.wishes.push((until, Wish::Resume(0)));
    };
    over_both(&options.rate(rate), tune, |ended| {
        ended.outcome.result.unwrap();
        // 39 blocks wait for the rate, most of them behind the pause.
        let rest = Duration::from_secs(40);
        assert!(ended.took > until + rest, "{:?}", ended.took);
    });
}
