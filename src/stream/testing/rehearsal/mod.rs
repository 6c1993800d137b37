//! Both sides of a stream, rehearsed: the real network threads of a sender and its receivers,
//! turn by turn in the thread of a test, over a net in memory and by a held clock. What is sent, in
//! which order things happen, and what goes wrong meanwhile follows from a seed.
//!
//! ```text
//!   FABRICAST_REHEARSALS=100000    so many transfers; FABRICAST_SOAK=1: 100,000
//!   FABRICAST_SEED=7               the first seed; with FABRICAST_REHEARSALS=1, only that one
//! ```

mod contents;
mod held_workers;
mod machine;
mod script;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use self::world::Ended;
use super::outbox::Swallow;
use super::wire::Kind;
use super::{BufferSource, RefusalCode, SendOptions, StreamError, StreamEvent, Transport};
use crate::buffer::SharedBufferManager;
use crate::protocol::connection::Form;
use crate::soak::is_soak;

pub(super) use held_workers::HeldWorkers;
pub(super) use machine::TestMachine;
pub(super) use script::{End, Mishap, Script, Side, Wish};
pub(super) use world::World;

/// What rehearsals came to, together.
#[derive(Debug, Default)]
struct Tally {
    transfers: u64,
    complete: u64,
    errors: BTreeMap<String, u64>,
    turns: u64,
}

/// One rehearsal: everything that must be so, whatever went wrong.
fn rehearse(script: Script, tally: &mut Tally) -> Result<u64, String> {
    let mut world = World::new(script);
    let ended = world.run()?;
    world.settle()?;
    let events = world.events();
    for ended in &ended {
        judge(&world, ended, tally)?;
    }
    for (number, events) in events.iter().enumerate() {
        judge_events(&world, number, events)?;
    }
    tally.turns += world.turns;
    let trace = world.trace();
    world.close()?;
    Ok(trace)
}

/// What a transfer came to is what it may come to.
fn judge(world: &World, ended: &Ended, tally: &mut Tally) -> Result<(), String> {
    let script = &world.script;
    let errand = &script.errands[ended.errand];
    let number = script.seed << 3 | ended.errand as u64;
    if ended.outcomes.len() != errand.receivers.len() {
        return Err(format!("{} outcomes", ended.outcomes.len()));
    }
    for (outcome, receiver) in ended.outcomes.iter().zip(&errand.receivers) {
        tally.transfers += 1;
        let whole = world.sinks[*receiver].whole(number);
        match &outcome.result {
            Ok(()) if whole == 0 => return Err(format!("{number} is said to be whole")),
            Ok(()) => tally.complete += 1,
            Err(error) => {
                *tally.errors.entry(name_of(error)).or_default() += 1;
                may_fail(script, ended, error)?;
            }
        }
    }
    Ok(())
}

fn name_of(error: &StreamError) -> String {
    match error {
        StreamError::Refused { code, .. } => format!("Refused {code:?}"),
        StreamError::Failed { code, .. } => format!("Failed {code:?}"),
        StreamError::GivenUp { code, .. } => format!("GivenUp {code:?}"),
        other => {
            let name = format!("{other:?}");
            name.split(['(', ' ']).next().unwrap_or_default().to_owned()
        }
    }
}

/// Whether a transfer may end like this.
fn may_fail(script: &Script, ended: &Ended, error: &StreamError) -> Result<(), String> {
    let (mine, named) = (ended.was_cancelled, name_of(error));
    if script.is_mild && !mine && !took_larger_blocks(script, ended, error) {
        return Err(format!("nothing went wrong for long, and {error}"));
    }
    if says_stalled(error) && !script.may_stall() {
        return Err(format!("nothing was stuck, and {error}"));
    }
    let is_known = match error {
        StreamError::GivenUp { code, .. } => *code == RefusalCode::CANCELLED && mine,
        StreamError::Violation(_) | StreamError::Setting { .. } => false,
        StreamError::Failed { code, .. } | StreamError::Refused { code, .. } => {
            *code != RefusalCode::MALFORMED
        }
        _ => true,
    };
    match is_known {
        true => Ok(()),
        false => Err(format!("{named}: {error}")),
    }
}

/// How long blocks are was decided on without one of its peers, which had not spoken in time, and
/// takes no such blocks: that is its end.
fn took_larger_blocks(script: &Script, ended: &Ended, error: &StreamError) -> bool {
    let StreamError::Refused { code, details, .. } = error else {
        return false;
    };
    let peers = script.errands[ended.errand].receivers.iter();
    let mut rooms = peers.map(|to| u64::from(script.receivers[*to].block_bytes));
    let [asked, limit] = *details;
    let differ = rooms.clone().any(|room| room >= asked) && rooms.any(|room| room == limit);
    *code == RefusalCode::BLOCKS && differ
}

fn says_stalled(error: &StreamError) -> bool {
    match error {
        StreamError::Stalled { .. } => true,
        // A pause that was too long has the same code.
        StreamError::Failed { code, reason, .. } | StreamError::Refused { code, reason, .. } => {
            *code == RefusalCode::STALLED && !reason.contains("has paused it")
        }
        _ => false,
    }
}

/// Each stream that began has ended once.
fn judge_events(world: &World, number: usize, events: &[StreamEvent]) -> Result<(), String> {
    let (mut open, mut over) = (BTreeSet::new(), BTreeSet::new());
    for event in events {
        match event {
            StreamEvent::Began(arrival) => drop(open.insert(arrival.session)),
            StreamEvent::Complete(arrival, _) | StreamEvent::Cut(arrival, ..) => {
                // A sink that refuses is not told of as begun.
                open.remove(&arrival.session);
                if !over.insert(arrival.session) {
                    return Err(format!("session {} ends twice", arrival.session));
                }
            }
            StreamEvent::Refused { .. } => {}
        }
        if let StreamEvent::Cut(_, error, _) = event
            && says_stalled(error)
            && !world.script.may_stall()
        {
            return Err(format!(
                "nothing was stuck, and receiver {number} says {error}"
            ));
        }
    }
    match open.is_empty() {
        true => Ok(()),
        false => Err(format!("receiver {number} tells no end of {open:?}")),
    }
}

/// How many transfers, and from which seed on.
fn extent() -> (u64, u64) {
    let number = |name| {
        let value = std::env::var(name).ok();
        value.map(|value: String| value.parse::<u64>().expect("a number"))
    };
    let usual = if is_soak() { 100_000 } else { 300 };
    let transfers = number("FABRICAST_REHEARSALS").unwrap_or(usual);
    (transfers, number("FABRICAST_SEED").unwrap_or(1))
}

/// The share of one form, mild or not, of all transfers. Where things go wrong for long, a transfer
/// takes ten times as many turns.
fn rehearse_all(form: Form, is_mild: bool) {
    let (transfers, first) = extent();
    let (mut tally, mut seed) = (Tally::default(), first);
    let share = if is_mild { 9 } else { 1 };
    while tally.transfers < (transfers * share).div_ceil(20) {
        let script = Script::new(seed, form, is_mild);
        if let Err(what) = rehearse(script.clone(), &mut tally) {
            panic!("FABRICAST_SEED={seed}, {form:?}, mild: {is_mild}: {what}\n{script:#?}");
        }
        seed += 1;
    }
    println!(
        "{form:?}, mild: {is_mild}: FABRICAST_SEED={first} to {}: {tally:?}",
        seed - 1
    );
}

#[test]
fn what_goes_wrong_for_a_moment_keeps_no_transfer_from_its_end_over_connections() {
    rehearse_all(Form::Msg, true);
}

#[test]
fn what_goes_wrong_for_a_moment_keeps_no_transfer_from_its_end_over_datagrams() {
    rehearse_all(Form::Rdm, true);
}

#[test]
fn whatever_goes_wrong_every_transfer_has_one_end_in_time_over_connections() {
    rehearse_all(Form::Msg, false);
}

#[test]
fn whatever_goes_wrong_every_transfer_has_one_end_in_time_over_datagrams() {
    rehearse_all(Form::Rdm, false);
}

/// What rehearsals have found: a sender and a receiver that asked and answered for ever, a stream
/// whose slots went with a connection, a peer that spoke too late of the blocks that it takes, a
/// sink that is told of the end while another one hangs, receivers that never say that they have
/// all, an endpoint that was closed while what it had sent was reported late, a receiver that
/// stands still before it knows that a connection is lost, and a window that is told of on a
/// connection which is over.
#[test]
fn seeds_that_went_wrong_once_go_well() {
    for (seed, form, is_mild) in [
        (1_000_030, Form::Rdm, false),
        (1_000_474, Form::Msg, true),
        (2_000_084, Form::Rdm, true),
        (2_040_010, Form::Msg, false),
        (2_070_005, Form::Rdm, false),
        (2_090_045, Form::Msg, false),
        (3_000_082, Form::Msg, false),
        (5_100_362, Form::Msg, true),
        (5_200_029, Form::Rdm, false),
        (5_600_091, Form::Rdm, false),
    ] {
        let mut tally = Tally::default();
        if let Err(what) = rehearse(Script::new(seed, form, is_mild), &mut tally) {
            panic!("FABRICAST_SEED={seed}, {form:?}, mild: {is_mild}: {what}");
        }
        assert!(tally.transfers > 0, "{tally:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_rehearsal() {
    for seed in 1..9 {
        for form in [Form::Msg, Form::Rdm] {
            let trace = || {
                let script = Script::new(seed, form, seed % 2 == 0);
                rehearse(script, &mut Tally::default()).expect("it goes well")
            };
            assert_eq!(trace(), trace(), "seed {seed}, {form:?}");
        }
    }
}

/// Its session may have ended at the receiver while the handshake of another rail was under way:
/// that is told on a connection which was ready, and concerns that connection only. Before, it was
/// taken for nonsense, and ended the transfer for good.
#[test]
fn a_rail_that_is_refused_when_it_was_ready_is_one_rail_less() {
    let mut refused = 0;
    for at in (0..400).step_by(every(2)) {
        let options = SendOptions::default().rails(3);
        let mut script = Script::quiet(Form::Msg).sending(&[60_000], options);
        script.seed = at;
        let cut = (Duration::from_micros(10 * at), Mishap::Cut(0));
        script.mishaps.push(cut);
        let mut world = World::new(script);
        let ended = world.run().expect("it is over").remove(0);
        let outcome = &ended.outcomes[0];
        assert!(outcome.result.is_ok(), "cut at {cut:?}: {outcome:?}");
        world.settle().expect("nothing is left");
        let lost = |events: &StreamEvent| {
            matches!(events, StreamEvent::Refused { code, .. }
                if *code == RefusalCode::LOST)
        };
        refused += world.events()[0]
            .iter()
            .filter(|events| lost(events))
            .count();
        world.close().expect("everything is back");
    }
    assert!(refused > 0, "no rail came too late");
}

/// Moments are looked at so many at a time, and one by one with FABRICAST_SOAK=1.
fn every(few: usize) -> usize {
    if is_soak() { 1 } else { few }
}

/// Blocks enough for some milliseconds on three connections, and one mishap on the way.
fn on_three_rails(seed: u64, form: Form, at: Duration, mishap: Mishap) -> Script {
    let options = SendOptions::default().rails(3);
    let mut script = Script::quiet(form).sending(&[1_200_000], options);
    script.seed = seed;
    script.sender.block_bytes = 4096;
    script.mishaps.push((at, mishap));
    script
}

/// One of three connections breaks in the middle, and only the side hears of it which had something
/// to send just then: it tells the other one by another connection. Before, a sender that had not
/// heard of it waited until the connection had been silent for as long as may be.
#[test]
fn a_rail_that_is_cut_under_one_side_is_taken_over_at_once() {
    let mut lost = 0;
    for form in [Form::Msg, Form::Rdm] {
        for seed in (0..150).step_by(every(3)) {
            let at = Duration::from_micros(1500 + 10 * seed);
            let mut world = World::new(on_three_rails(seed, form, at, Mishap::Cut(seed)));
            let ended = world.run().expect("it is over").remove(0);
            let outcome = &ended.outcomes[0];
            let report = &outcome.report;
            assert!(outcome.result.is_ok(), "{form:?}, {seed}: {outcome:?}");
            let soon = Duration::from_secs(1);
            assert!(report.took < soon, "{form:?}, {seed}: {report:?}");
            lost += report.rails_lost;
            world.settle().expect("nothing is left");
            world.close().expect("everything is back");
        }
    }
    assert!(lost > 20, "{lost} rails were lost");
}

/// A provider's own connection breaks and is made anew, and messages are lost that both sides take
/// for sent: their connection ends when they have not come for as long as a peer may be silent, and
/// others take over. Before, both sides waited for each other until `stalled_after` was over.
#[test]
fn what_is_lost_on_the_way_ends_its_connection_and_no_more() {
    let (mut lost, mut anew) = (0, 0);
    for end in [End::Dialing, End::Accepting] {
        for seed in (0..150).step_by(every(3)) {
            let at = Duration::from_micros(25 * seed);
            let script = on_three_rails(seed, Form::Rdm, at, Mishap::Lose(seed, end));
            let silence = script.times.lost;
            let mut world = World::new(script);
            let ended = world.run();
            let ended = ended.unwrap_or_else(|what| panic!("{end:?}, {seed}: {what}"));
            let outcome = &ended[0].outcomes[0];
            let report = &outcome.report;
            assert!(outcome.result.is_ok(), "{end:?}, {seed}: {outcome:?}");
            // A question after a third of it, and then all of it; and what else there is to do.
            assert!(report.took < silence * 3 / 2, "{end:?}, {seed}: {report:?}");
            lost += report.rails_lost;
            anew += report.reconnects;
            world.settle().expect("nothing is left");
            world.close().expect("everything is back");
        }
    }
    assert!(
        lost > 50,
        "{lost} rails were lost, {anew} sessions begun anew"
    );
}

/// In the RDM form, what is on its way may go to an endpoint that is gone meanwhile. Before, it lay
/// there for ever, in every connection that was ever cut, and time hardly went on: while something
/// is on its way, a step is some microseconds.
#[test]
fn what_is_on_its_way_to_an_endpoint_that_is_gone_is_lost() {
    let mut lost = 0;
    for at in 0..100 {
        let mut script = Script::quiet(Form::Rdm).sending(&[60_000], SendOptions::default());
        script.seed = at;
        let cancel = (Duration::from_micros(20 * at), Wish::Cancel(0));
        script.wishes.push(cancel);
        let mut world = World::new(script);
        world.run().expect("it is over");
        world.settle().expect("nothing is left");
        let left = world.rest(Duration::from_secs(30)).expect("time goes on");
        assert_eq!(left, 0, "cancelled at {cancel:?}");
        lost += world.lost();
        world.close().expect("everything is back");
    }
    assert!(lost > 0, "all had arrived when the endpoint went");
}

/// A receiver that takes everything, and is gone before it says so, again and again. Before, each
/// block that was sent made up for the attempts before it, so that there was always another one.
#[test]
fn what_is_sent_in_vain_again_and_again_has_an_end() {
    for (form, transport) in [
        (Form::Msg, Transport::Message),
        (Form::Msg, Transport::Write),
        (Form::Rdm, Transport::Message),
        (Form::Rdm, Transport::Write),
    ] {
        let options = SendOptions::default().transport(transport).reconnects(3);
        let mut script = Script::quiet(form).sending(&[60_000], options);
        script.receivers[0].swallow = Some(Swallow {
            kind: Kind::COMPLETE,
            left: Arc::new(AtomicU32::new(u32::MAX)),
        });
        let mut world = World::new(script);
        let ended = world.run().expect("over in time").remove(0);
        let outcome = &ended.outcomes[0];
        let error = outcome.result.as_ref().expect_err("it never says so");
        assert!(matches!(error, StreamError::Lost(_)), "{error:?}");
        // At first it may say, each time, that it has a little more.
        assert!((3..10).contains(&outcome.report.reconnects), "{outcome:?}");
        assert_eq!(
            outcome.report.sent_bytes,
            60_000 * (1 + outcome.report.reconnects)
        );
        assert_eq!(
            u64::from(world.sinks[0].whole(0)),
            1 + outcome.report.reconnects
        );
        world.settle().expect("nothing is left");
        world.close().expect("everything is back");
    }
}

/// Memory that was lent and can't be sent from: before, nothing was said of it, and the transfer
/// stood still for as long as may be, again and again.
#[test]
fn what_is_lent_of_memory_that_is_not_registered_ends_in_an_error_that_says_so() {
    for form in [Form::Msg, Form::Rdm] {
        let mut world = World::new(Script::quiet(form));
        let pool = SharedBufferManager::allocate(1, 4096).expect("a pool");
        let buffer = pool.try_acquire().expect("a buffer").freeze(4096);
        let source = BufferSource::new("0/lent", buffer, [1; 16]).expect("a source");
        let transfer = world.send(source, SendOptions::default());
        let soon = Duration::from_secs(2);
        let outcome = world.outcome(&transfer, soon).expect("over in time");
        match outcome.result.expect_err("it can't be sent") {
            StreamError::GivenUp { code, reason } => {
                assert_eq!(code, RefusalCode::SOURCE);
                assert!(
                    reason.contains("a region that is not registered"),
                    "{reason}"
                );
            }
            other => panic!("{other:?}"),
        }
        world.settle().expect("nothing is left");
        drop(transfer);
        world.close().expect("everything is back");
    }
}

/// A source that hangs has all buffers, and a connection breaks: the next attempt has nothing to
/// read into. Before, that was nobody's time, and the transfer never ended; nor did others that
/// came behind it.
#[test]
fn a_source_that_hangs_is_named_by_the_next_attempt_too() {
    let stalled = Duration::from_millis(400);
    for form in [Form::Msg, Form::Rdm] {
        let options = SendOptions::default().stalled_after(stalled);
        let mut script = Script::quiet(form).sending(&[60_000], options.clone());
        script = script.sending(&[60_000], options);
        script.sender.buffers = 2;
        let day = Duration::from_secs(86_400);
        let at = Duration::from_millis;
        script.mishaps = vec![
            (at(0), Mishap::Slow(Side::Sender, day, at(30_000))),
            (at(700), Mishap::Cut(0)),
            (at(700), Mishap::Cut(1)),
        ];
        let mut world = World::new(script);
        for ended in world.run().expect("over in time") {
            match ended.outcomes[0].result.clone() {
                Err(StreamError::Stalled { after, waits }) => {
                    assert!(waits.starts_with("the sender waited for"), "{waits}");
                    assert!(
                        waits.contains("source") || waits.contains("buffer"),
                        "{waits}"
                    );
                    assert!(after > 10 * stalled && after < 15 * stalled, "{after:?}");
                }
                other => panic!("{other:?}"),
            }
        }
        world.settle().expect("nothing is left");
        world.close().expect("everything is back");
    }
}
