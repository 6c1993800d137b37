//! Long messages: their sender says that it writes no more, and writes on; or says nothing at all.

use std::time::Duration;

use fabricast::endpoint::CloseReason;

use crate::common::{SOON, Watchdog, alone, drive};
use crate::relay::Relay;
use crate::victim::{Guest, THEIRS, Victim, a_while, config, long, until};
use crate::wire::{self, Control, Target};

const LONG: usize = 4 << 20;

/// What is granted to those who never write.
const SHORT: usize = 64 << 10;

/// The last bytes of the first write, which pass together with what is behind it.
const LAST: u64 = 4 << 10;

/// What passes at one time: no more than the victim's socket takes without being read.
const PASSES: u64 = 64 << 10;

/// Offers a message of so many bytes, and waits for where to write it.
fn granted(victim: &mut Victim, guest: &mut Guest, len: usize) -> Target {
    let offer = Control::new(wire::LONG_OFFER).value(len as u64);
    guest.liar.say(offer);
    let mut grant = None;
    until("a grant", victim, &mut [guest], |_, guests| {
        grant = guests[0].liar.take(wire::LONG_GRANT);
        grant.is_some()
    });
    let grant = grant.expect("just heard");
    assert_eq!(grant.number, 0);
    Target {
        base: grant.value,
        len,
        key: grant.value2,
        mark: 0,
    }
}

/// `other`: the second write is another connection's.
fn writes_on(test: &'static str, other: bool) {
    let _alone = alone();
    let _dog = Watchdog::new(test);
    let (to, pool) = long(LONG);
    let Some(mut victim) = Victim::new(1, &config().incoming(|i| i.long_messages(to))) else {
        return;
    };
    let relay = Relay::before(victim.addr(0));
    let by = |through: bool| through.then(|| relay.addr());
    let mut guest = Guest::polite(&mut victim, 0, by(!other));
    let mut second = Guest::polite(&mut victim, 0, by(other));
    let target = granted(&mut victim, &mut guest, LONG);

    let honest: Vec<u8> = (0..LONG).map(|n| (n % 251) as u8).collect();
    if other {
        // The whole message, and all of the second write but for its end.
        relay.hold_up_after(PASSES);
        assert!(guest.liar.write(target, honest, None));
        assert!(second.liar.write(target, vec![THEIRS; LONG], None));
        let mut both = [&mut guest, &mut second];
        until(
            "the second write stands",
            &mut victim,
            &mut both,
            |_, guests| relay.up_is_held() && guests[0].liar.done > 0,
        );
        a_while(&mut victim, &mut both);
        guest.liar.say(Control::new(wire::LONG_DONE));
    } else {
        relay.hold_up_after(LONG as u64 - LAST);
        assert!(guest.liar.write(target, honest, None));
        guest.liar.say(Control::new(wire::LONG_DONE));
        assert!(guest.liar.write(target, vec![THEIRS; LONG], None));
        until(
            "the first write is nearly whole",
            &mut victim,
            &mut [&mut guest],
            |_, _| relay.up_is_held(),
        );
        a_while(&mut victim, &mut [&mut guest]);
        // The victim reads the end of the message, and the beginning of what follows, at one time.
        relay.hold_up_after(PASSES);
        drive("the second write begins", SOON, || {
            guest.liar.poll();
            relay.up_is_held()
        });
    }
    a_while(&mut victim, &mut [&mut guest, &mut second]);
    let early = victim.messages.len();
    relay.open();
    let mut both = [&mut guest, &mut second];
    until("the message", &mut victim, &mut both, |victim, guests| {
        let ended = guests.iter().any(|guest| guest.liar.over);
        ended || victim.messages.len() == 1
    });
    a_while(&mut victim, &mut both);
    guest.liar.hang_up();
    second.liar.hang_up();
    until(
        "their end",
        &mut victim,
        &mut [&mut guest, &mut second],
        |victim, guests| guests.iter().all(|guest| guest.ended(victim).is_some()),
    );
    a_while(&mut victim, &mut []);
    let changed = victim.changed();
    println!("handed out while a write stood: {early}, bytes that changed under it: {changed}");
    assert_eq!(
        changed, 0,
        "bytes of a message that changed under a shared reference"
    );
    victim.messages.clear();
    victim.poll();
    assert_eq!(pool.free_count(), 1, "the slot is free again");
}

#[test]
fn who_is_done_writes_on() {
    writes_on("done", false);
}

#[test]
fn another_connection_writes_into_the_message() {
    writes_on("another", true);
}

/// Without the feature of heartbeats nothing would ask it for a sign of life.
#[test]
fn who_offers_and_says_nothing_keeps_no_slot() {
    let _alone = alone();
    let _dog = Watchdog::new("silent");
    let (to, pool) = long(SHORT);
    let config = config().incoming(|i| i.long_messages(to));
    let config = config.connection(|c| c.lost_after(Some(Duration::from_millis(400))));
    let Some(mut victim) = Victim::new(1, &config) else {
        return;
    };
    let hello = wire::hello(wire::WINDOWS | wire::LONG, 4);
    let mut guest = Guest::come(&mut victim, 0, None, &hello);
    granted(&mut victim, &mut guest, SHORT);
    assert_eq!(pool.free_count(), 0);
    until(
        "it is closed",
        &mut victim,
        &mut [&mut guest],
        |victim, guests| guests[0].ended(victim).is_some(),
    );
    assert!(
        matches!(guest.ended(&victim), Some(CloseReason::PeerSilent { .. })),
        "{:?}",
        guest.ended(&victim)
    );
    until(
        "the slot is free",
        &mut victim,
        &mut [&mut guest],
        |_, _| pool.free_count() == 1,
    );
}

/// And one that lives, but never writes what it was granted the memory for.
#[test]
fn who_is_granted_and_lives_on_without_writing_keeps_no_slot() {
    let _alone = alone();
    let _dog = Watchdog::new("lives on");
    let (to, pool) = long(SHORT);
    let to = to.deadline(Some(Duration::from_millis(600)));
    let Some(mut victim) = Victim::new(1, &config().incoming(|i| i.long_messages(to))) else {
        return;
    };
    let mut guest = Guest::polite(&mut victim, 0, None);
    granted(&mut victim, &mut guest, SHORT);
    assert_eq!(pool.free_count(), 0);
    until(
        "the slot is free",
        &mut victim,
        &mut [&mut guest],
        |_, _| pool.free_count() == 1,
    );
    assert_eq!(guest.ended(&victim), Some(CloseReason::LongDeadline));
}
