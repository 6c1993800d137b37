//! Long messages over FI_EP_RDM: nothing keeps their sender, or whoever else knows the key, from
//! writing for as long as the endpoint is open. What the application was given does not change,
//! whatever they write and whenever; and who counts wrongly is closed.

use std::sync::Arc;

use fabricast::Domain;
use fabricast::buffer::SharedBufferManager;
use fabricast::endpoint::{CloseReason, LongMessages};

use crate::common::{Watchdog, alone};
use crate::connectionless::{PROVIDERS, open};
use crate::victim::{Guest, THEIRS, Victim, a_while, config, until};
use crate::wire::{self, Control, Target};

/// Messages that are longer than a socket's buffers, so that their bytes come in many pieces.
const LONG: usize = 4 << 20;
const SHORT: usize = 64 << 10;

/// Writes that are posted behind a message.
const BEHIND: usize = 4;

/// A victim with so many slots for messages, and what liars open their endpoints in.
struct Scene {
    victim: Victim,
    pool: SharedBufferManager,
    domains: Vec<Arc<Domain>>,
    provider: &'static str,
}

impl Scene {
    fn guest(&mut self) -> Guest {
        let domain = open(self.provider).expect("there is one already");
        let guest = Guest::by_number(&mut self.victim, &domain, self.provider);
        self.domains.push(domain);
        guest
    }

    /// Lets go of all messages: their slots are free again, although liars may still write to where
    /// they landed.
    fn all_slots_come_back(mut self, guests: &mut [&mut Guest]) {
        self.victim.messages.clear();
        until("all slots are free", &mut self.victim, guests, |_, _| {
            self.pool.free_count() == self.pool.slots()
        });
    }
}

/// The test over each provider that is there.
fn over_each(test: &'static str, (slots, bytes): (u32, usize), mut run: impl FnMut(Scene)) {
    let _alone = alone();
    let _dog = Watchdog::new(test);
    let mut tried = 0;
    for provider in PROVIDERS {
        let Some(domain) = open(provider) else {
            continue;
        };
        println!("{provider}");
        let pool = SharedBufferManager::allocate(slots, bytes).expect("memory");
        let config = config().incoming(|i| i.long_messages(LongMessages::new(pool.clone())));
        run(Scene {
            victim: Victim::over(&domain, 1, &config),
            pool,
            domains: Vec::new(),
            provider,
        });
        tried += 1;
    }
    if tried == 0 {
        println!("SKIPPED: none of {PROVIDERS:?} over FI_EP_RDM");
    }
}

/// Offers message `number` of so many bytes, and waits for where to write it.
fn granted(victim: &mut Victim, guest: &mut Guest, number: u64, len: usize) -> Target {
    let offer = Control::new(wire::LONG_OFFER).number(number);
    guest.liar.say(offer.value(len as u64));
    let mut grant = None;
    until("a grant", victim, &mut [guest], |_, guests| {
        grant = guests[0].liar.take(wire::LONG_GRANT);
        grant.is_some()
    });
    let grant = grant.expect("just heard");
    assert_eq!(grant.number, number);
    Target {
        base: grant.value,
        len,
        key: grant.value2,
        mark: 0,
    }
}

fn done(number: u64) -> Control {
    Control::new(wire::LONG_DONE).number(number)
}

fn honest(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n % 251) as u8).collect()
}

/// Writes, and waits until the provider says that it is there.
fn written(victim: &mut Victim, guest: &mut Guest, target: Target, bytes: Vec<u8>) {
    let before = guest.liar.done;
    assert!(guest.liar.write(target, bytes, None));
    until("it is written", victim, &mut [guest], |_, guests| {
        guests[0].liar.done > before
    });
}

/// Says *done*, and waits for the message.
fn handed_out(victim: &mut Victim, guests: &mut [&mut Guest], number: u64) {
    let before = victim.messages.len();
    guests[0].liar.say(done(number));
    until("the message", victim, guests, |victim, _| {
        victim.messages.len() > before
    });
}

/// Writes the landing full, again and again, until it is full while the application has the
/// message. What it has must not change.
fn writes_on(scene: &mut Scene, guests: &mut [&mut Guest], by: usize, target: Target) {
    let until_now = guests[by].liar.done;
    for _ in 0..BEHIND {
        assert!(
            guests[by]
                .liar
                .write(target, vec![THEIRS; target.len], None)
        );
        a_while(&mut scene.victim, guests);
    }
    until(
        "they are written",
        &mut scene.victim,
        guests,
        |_, guests| guests[by].liar.done >= until_now + BEHIND,
    );
    let changed = scene.victim.changed();
    assert_eq!(
        changed, 0,
        "bytes of a message that changed under a shared reference"
    );
}

#[test]
fn who_is_done_writes_on_into_the_landing() {
    over_each("done", (1, LONG), |mut scene| {
        let mut guest = scene.guest();
        let target = granted(&mut scene.victim, &mut guest, 0, LONG);
        written(&mut scene.victim, &mut guest, target, honest(LONG));
        // The second write begins before the victim has looked.
        let before = guest.liar.done;
        guest.liar.say(done(0));
        assert!(guest.liar.write(target, vec![THEIRS; LONG], None));
        until(
            "the message, and the write behind it",
            &mut scene.victim,
            &mut [&mut guest],
            // The word that it is done counts, too.
            |victim, guests| victim.messages.len() == 1 && guests[0].liar.done == before + 2,
        );
        assert_eq!(scene.victim.changed(), 0, "by the write that had begun");
        writes_on(&mut scene, &mut [&mut guest], 0, target);
        assert_eq!(guest.ended(&scene.victim), None);
        scene.all_slots_come_back(&mut [&mut guest]);
    });
}

#[test]
fn another_connection_writes_into_the_landing() {
    over_each("another", (2, LONG), |mut scene| {
        let mut guest = scene.guest();
        let mut second = scene.guest();
        let target = granted(&mut scene.victim, &mut guest, 0, LONG);
        written(&mut scene.victim, &mut guest, target, honest(LONG));
        let mut both = [&mut guest, &mut second];
        handed_out(&mut scene.victim, &mut both, 0);
        assert_eq!(scene.victim.messages[0].1, honest(LONG), "nobody had yet");
        writes_on(&mut scene, &mut both, 1, target);
        // Where the second one's own message lands, the first one's key does not reach.
        let own = granted(&mut scene.victim, &mut second, 0, LONG);
        assert_ne!(own.key, target.key, "a landing of its own");
        written(&mut scene.victim, &mut second, own, honest(LONG));
        written(&mut scene.victim, &mut guest, target, vec![THEIRS; LONG]);
        let mut both = [&mut second, &mut guest];
        handed_out(&mut scene.victim, &mut both, 0);
        assert_eq!(scene.victim.messages[1].1, honest(LONG));
        writes_on(&mut scene, &mut both, 1, own);
        scene.all_slots_come_back(&mut both);
    });
}

/// A guest more writes there. Whether the provider refuses that, and ends what carried it, it does
/// not always say.
fn attack(scene: &mut Scene, guests: &mut [&mut Guest], target: Target) {
    let mut attacker = scene.guest();
    assert!(attacker.liar.write(target, vec![THEIRS; target.len], None));
    let mut all: Vec<_> = guests.iter_mut().map(|guest| &mut **guest).collect();
    all.push(&mut attacker);
    let last = all.len() - 1;
    until(
        "the attempt is over",
        &mut scene.victim,
        &mut all,
        |_, guests| guests[last].liar.done + guests[last].liar.failed > 0,
    );
    a_while(&mut scene.victim, &mut all);
}

#[test]
fn who_goes_leaves_a_landing_that_nobody_else_gets() {
    over_each("goes", (2, SHORT), |mut scene| {
        let mut guest = scene.guest();
        let mut second = scene.guest();
        let target = granted(&mut scene.victim, &mut guest, 0, SHORT);
        guest.liar.say(Control::new(wire::BYE).value(0));
        until(
            "its end",
            &mut scene.victim,
            &mut [&mut guest, &mut second],
            |victim, guests| guests[0].ended(victim).is_some(),
        );
        // Its key is known to another one, too, as long as the endpoint is open.
        let own = granted(&mut scene.victim, &mut second, 0, SHORT);
        assert_ne!(own.key, target.key, "a landing of its own");
        written(&mut scene.victim, &mut second, own, honest(SHORT));
        attack(&mut scene, &mut [&mut second, &mut guest], target);
        handed_out(&mut scene.victim, &mut [&mut second, &mut guest], 0);
        assert_eq!(scene.victim.messages[0].1, honest(SHORT));
        scene.all_slots_come_back(&mut [&mut guest, &mut second]);
    });
}

/// Landings lie side by side, so what is written past the end of one would be in another one.
#[test]
fn who_writes_past_the_end_of_a_landing_changes_no_other() {
    over_each("past the end", (2, SHORT), |mut scene| {
        let mut guest = scene.guest();
        let mut second = scene.guest();
        let target = granted(&mut scene.victim, &mut guest, 0, SHORT);
        let other = granted(&mut scene.victim, &mut second, 0, SHORT);
        written(&mut scene.victim, &mut guest, target, honest(SHORT));
        written(&mut scene.victim, &mut second, other, honest(SHORT));
        for target in [target, other] {
            for from in [
                SHORT as u64 - 100,
                SHORT as u64,
                (SHORT as u64).wrapping_neg(),
            ] {
                let beyond = Target {
                    base: target.base.wrapping_add(from),
                    ..target
                };
                attack(&mut scene, &mut [&mut guest, &mut second], beyond);
            }
        }
        handed_out(&mut scene.victim, &mut [&mut guest, &mut second], 0);
        handed_out(&mut scene.victim, &mut [&mut second, &mut guest], 0);
        let messages = scene.victim.messages.iter();
        assert!(
            messages
                .map(|(_, bytes)| bytes)
                .all(|bytes| *bytes == honest(SHORT))
        );
        scene.all_slots_come_back(&mut [&mut guest, &mut second]);
    });
}

/// The peer's connection ends, and it is the peer's fault.
fn closed_for_a_violation(victim: &mut Victim, guest: &mut Guest) {
    until("it is closed", victim, &mut [guest], |victim, guests| {
        guests[0].ended(victim).is_some()
    });
    let reason = guest.ended(victim);
    assert!(
        matches!(reason, Some(CloseReason::Violation(_))),
        "{reason:?}"
    );
}

#[test]
fn who_is_done_twice_is_closed() {
    over_each("twice", (1, SHORT), |mut scene| {
        let mut guest = scene.guest();
        let target = granted(&mut scene.victim, &mut guest, 0, SHORT);
        written(&mut scene.victim, &mut guest, target, honest(SHORT));
        handed_out(&mut scene.victim, &mut [&mut guest], 0);
        guest.liar.say(done(0));
        closed_for_a_violation(&mut scene.victim, &mut guest);
        assert_eq!(scene.victim.messages.len(), 1);
        assert_eq!(scene.victim.messages[0].0.payload(), honest(SHORT));
        scene.all_slots_come_back(&mut [&mut guest]);
    });
}

#[test]
fn who_is_done_without_a_write_gets_nothing_of_others_into_its_message() {
    over_each("no write", (1, SHORT), |mut scene| {
        // What the application left in the slot.
        scene.pool.try_acquire().expect("free").fill(0xab);
        let mut guest = scene.guest();
        granted(&mut scene.victim, &mut guest, 0, SHORT);
        handed_out(&mut scene.victim, &mut [&mut guest], 0);
        assert_eq!(scene.victim.messages[0].1, vec![0; SHORT]);
        scene.victim.messages.clear();
        // The next message has what its sender wrote before.
        let target = granted(&mut scene.victim, &mut guest, 1, SHORT);
        written(&mut scene.victim, &mut guest, target, honest(SHORT));
        handed_out(&mut scene.victim, &mut [&mut guest], 1);
        scene.victim.messages.clear();
        granted(&mut scene.victim, &mut guest, 2, SHORT / 2);
        handed_out(&mut scene.victim, &mut [&mut guest], 2);
        assert_eq!(scene.victim.messages[0].1, honest(SHORT)[..SHORT / 2]);
        scene.all_slots_come_back(&mut [&mut guest]);
    });
}

#[test]
fn who_is_done_before_it_was_granted_anything_is_closed() {
    over_each("before", (1, SHORT), |mut scene| {
        let mut guest = scene.guest();
        // The only slot is taken: the offer waits.
        let taken = scene.pool.try_acquire();
        let offer = Control::new(wire::LONG_OFFER).value(SHORT as u64);
        guest.liar.say(offer);
        guest.liar.say(done(0));
        closed_for_a_violation(&mut scene.victim, &mut guest);
        assert!(scene.victim.messages.is_empty());
        drop(taken);
        scene.all_slots_come_back(&mut [&mut guest]);
    });
}
