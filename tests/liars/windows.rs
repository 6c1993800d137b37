//! Windows: one connection stands in the middle of a write or a read, the other one lets the window
//! go.
//!
//! A key is good on every connection of the domain, so what the second connection began must be
//! over, or its endpoint closed, before the memory is the application's again.

use std::time::Instant;

use fabricast::buffer::SharedBufferManager;
use fabricast::endpoint::{Access, LocalWindow};

use crate::common::{SOON, Watchdog, after, alone, drive};
use crate::relay::Relay;
use crate::victim::{BEFORE, Guest, OWN, THEIRS, Victim, a_while, config, until};
use crate::wire::{self, Control, Target};

/// Bytes of a window that is written. What the kernel keeps of a held connection is a part of that.
const WRITTEN: usize = 8 << 20;

/// Bytes of a window that is read: the kernel's buffers of both sides are well below.
const READ: usize = 48 << 20;

/// What passes of the operation before it stands.
const PASSES: u64 = 1 << 20;

/// What passes together with an answer: no more than the victim's socket takes without being read.
const BEHIND: u64 = 64 << 10;

/// How the first connection lets the window go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leave {
    /// It answers the revocation at once.
    Answers,
    HangsUp,
    /// It says goodbye, as a peer that is done.
    SaysGoodbye,
}

/// Two liars of one victim, and a window that only the first may use.
struct Scene {
    victim: Victim,
    /// Whose window it is.
    first: Guest,
    /// Who uses it.
    second: Guest,
    relay: Relay,
    window: Option<LocalWindow>,
    pool: SharedBufferManager,
    target: Target,
}

impl Scene {
    /// `endpoints`: 2 where the second connection is another endpoint's, of the same domain.
    /// `None`: no libfabric.
    fn open(endpoints: usize, bytes: usize, access: Access) -> Option<Self> {
        let mut victim = Victim::new(endpoints, &config())?;
        let pool = SharedBufferManager::allocate(1, bytes).expect("memory");
        let first = Guest::polite(&mut victim, 0, None);
        let at = endpoints - 1;
        let relay = Relay::before(victim.addr(at));
        let second = Guest::polite(&mut victim, at, Some(relay.addr()));
        let window = first.expose(&mut victim, &pool, access);
        let target = Target::of(&window.descriptor().to_bytes());
        Some(Self {
            victim,
            first,
            second,
            relay,
            window: Some(window),
            pool,
            target,
        })
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        drive(what, SOON, || {
            self.poll();
            done(self)
        });
    }

    fn poll(&mut self) {
        self.victim.poll();
        self.first.liar.poll();
        self.second.liar.poll();
    }

    fn a_while(&mut self) {
        a_while(&mut self.victim, &mut [&mut self.first, &mut self.second]);
    }

    /// The second connection writes all of the window, and stands in the middle.
    fn write_and_stand(&mut self) {
        self.relay.hold_up_after(PASSES);
        let bytes = vec![THEIRS; WRITTEN];
        assert!(self.second.liar.write(self.target, bytes, None), "posted");
        self.until("the write stands", |scene| scene.relay.up_is_held());
        // What passed is read.
        self.a_while();
    }

    /// The same with a read.
    fn read_and_stand(&mut self) {
        self.relay.hold_down_after(PASSES);
        self.second.liar.read(self.target);
        self.until("the read stands", |scene| scene.relay.down_is_held());
        self.a_while();
    }

    /// The first connection lets the window go, and the victim knows of it.
    fn leave(&mut self, how: Leave) {
        match how {
            Leave::Answers => {
                let window = self.window.take().expect("once");
                assert!(
                    self.victim
                        .endpoint(0)
                        .windows(window.connection())
                        .revoke(window, after(10 * SOON))
                        .expect("its own window")
                );
                self.first.liar.manners.revocations = false;
                let mut revoked = None;
                self.until("a revocation", |scene| {
                    revoked = scene.first.liar.take(wire::REVOKE);
                    revoked.is_some()
                });
                let number = revoked.expect("just heard").value;
                let answer = Control::new(wire::REVOKE_ACK).value(number);
                self.first.liar.say(answer);
                let question = self.first.liar.ask_for_life();
                self.until("the answer is read", |scene| {
                    scene.first.liar.is_answered(question)
                });
            }
            Leave::HangsUp => {
                self.first.liar.hang_up();
                self.first_ends();
            }
            Leave::SaysGoodbye => {
                self.first.liar.say(Control::new(wire::BYE));
                self.first_ends();
            }
        }
        self.a_while();
    }

    fn first_ends(&mut self) {
        self.until("the end of the first connection", |scene| {
            scene.first.ended(&scene.victim).is_some()
        });
    }

    /// The wire goes on, until all that was begun is over, and the second connection, too.
    fn go_on(&mut self) {
        self.relay.open();
        self.until("the operation is over", |scene| {
            let liar = &scene.second.liar;
            liar.over || liar.done + liar.failed > 0
        });
        if !self.second.liar.over {
            let question = self.second.liar.ask_for_life();
            self.until("all is read", |scene| {
                scene.second.liar.over || scene.second.liar.is_answered(question)
            });
        }
        self.a_while();
        self.until("the memory comes back", |scene| {
            scene.victim.released.len() == 1
        });
        if !self.second.liar.over {
            self.second.liar.hang_up();
        }
        self.until("the end of the second connection", |scene| {
            scene.second.ended(&scene.victim).is_some()
        });
        self.a_while();
    }
}

fn written(test: &'static str, endpoints: usize, how: Leave) {
    let _alone = alone();
    let _dog = Watchdog::new(test);
    let Some(mut scene) = Scene::open(endpoints, WRITTEN, Access::WRITE) else {
        return;
    };
    scene.write_and_stand();
    scene.leave(how);
    let early = scene.victim.released.len();
    let standing = scene.second.liar.done + scene.second.liar.failed == 0;
    assert!(standing, "not in the middle of the write");
    scene.go_on();
    let changed = scene.victim.changed();
    assert_eq!(
        (early, changed),
        (0, 0),
        "given back while a write was under way; bytes that changed afterwards"
    );
}

fn read(test: &'static str, endpoints: usize, how: Leave) {
    let _alone = alone();
    let _dog = Watchdog::new(test);
    let Some(mut scene) = Scene::open(endpoints, READ, Access::READ) else {
        return;
    };
    scene.read_and_stand();
    scene.leave(how);
    let early = scene.victim.released.len();
    let standing = scene.second.liar.done + scene.second.liar.failed == 0;
    assert!(standing, "not in the middle of the read");
    scene.go_on();
    let got = scene.second.liar.bytes_read();
    let before = got.iter().filter(|byte| **byte == BEFORE).count();
    let own = got.iter().filter(|byte| **byte == OWN).count();
    assert!(before > 0, "it was a read of the window");
    assert_eq!(
        (early, own),
        (0, 0),
        "given back while a read was under way; bytes that went out afterwards"
    );
}

macro_rules! standing {
    ($($name:ident: $what:ident, $endpoints:literal, $how:ident;)*) => {
        $(
            #[test]
            fn $name() {
                $what(stringify!($name), $endpoints, Leave::$how);
            }
        )*
    };
}

standing! {
    a_write_stands_and_the_other_answers: written, 1, Answers;
    a_write_stands_and_the_other_hangs_up: written, 1, HangsUp;
    a_write_stands_and_the_other_says_goodbye: written, 1, SaysGoodbye;
    a_write_to_another_endpoint_stands_and_the_other_answers: written, 2, Answers;
    a_write_to_another_endpoint_stands_and_the_other_hangs_up: written, 2, HangsUp;
    a_read_stands_and_the_other_answers: read, 1, Answers;
    a_read_stands_and_the_other_hangs_up: read, 1, HangsUp;
    a_read_stands_and_the_other_says_goodbye: read, 1, SaysGoodbye;
    a_read_of_another_endpoint_stands_and_the_other_answers: read, 2, Answers;
}

/// The endpoint that exposed the window is dropped, the connection that writes is another's of the
/// same domain.
#[test]
fn a_write_to_another_endpoint_stands_and_the_endpoint_is_dropped() {
    let _alone = alone();
    let _dog = Watchdog::new("endpoint dropped");
    let Some(mut scene) = Scene::open(2, WRITTEN, Access::WRITE) else {
        return;
    };
    scene.write_and_stand();
    assert_eq!(scene.pool.free_count(), 0);
    scene.window = None;
    scene.victim.endpoints[0] = None;
    scene.a_while();
    // What the pool gives away is the next owner's.
    let mut early = scene.pool.try_acquire();
    if let Some(buffer) = &mut early {
        buffer.fill(OWN);
    }
    scene.relay.open();
    scene.until("the write is over", |scene| {
        let liar = &scene.second.liar;
        liar.over || liar.done + liar.failed > 0
    });
    scene.a_while();
    let early = early.map(|buffer| buffer.iter().filter(|byte| **byte != OWN).count());
    assert_eq!(
        early, None,
        "given back while a write was under way; bytes that changed afterwards"
    );
    scene.second.liar.hang_up();
    scene.until("the memory comes back", |scene| {
        scene.pool.free_count() == 1
    });
}

/// A second connection that never answers the fence: its endpoint is closed for it, and then the
/// memory is back, untouched.
#[test]
fn who_does_not_answer_a_fence_is_closed() {
    let _alone = alone();
    let _dog = Watchdog::new("no answer");
    let silence = std::time::Duration::from_millis(1500);
    let Some(mut victim) = Victim::new(1, &config().connection(|c| c.lost_after(Some(silence))))
    else {
        return;
    };
    let pool = SharedBufferManager::allocate(1, WRITTEN).expect("memory");
    let mut first = Guest::polite(&mut victim, 0, None);
    let mut second = Guest::polite(&mut victim, 0, None);
    second.liar.manners.fences = false;
    let window = first.expose(&mut victim, &pool, Access::WRITE);
    let endpoint = victim.endpoint(0);
    assert!(
        endpoint
            .windows(window.connection())
            .revoke(window, Instant::now() + 10 * SOON)
            .expect("its own window")
    );
    // It answers heartbeats all the time: it is not silent.
    let mut guests = [&mut first, &mut second];
    until(
        "the second one is closed",
        &mut victim,
        &mut guests,
        |v, guests| {
            assert!(
                v.released.is_empty() || guests[1].ended(v).is_some(),
                "given back before the fence was answered"
            );
            guests[1].ended(v).is_some() && !v.released.is_empty()
        },
    );
    assert!(second.liar.take(wire::FENCE).is_some(), "it was asked");
    assert_eq!(first.ended(&victim), None, "who answers stays");
}

/// One connection suffices: it answers the revocation, and writes on behind its answer.
#[test]
fn who_answers_writes_on_behind_the_answer() {
    let _alone = alone();
    let _dog = Watchdog::new("writes on");
    let Some(mut victim) = Victim::new(1, &config()) else {
        return;
    };
    let pool = SharedBufferManager::allocate(1, WRITTEN).expect("memory");
    let relay = Relay::before(victim.addr(0));
    let mut guest = Guest::polite(&mut victim, 0, Some(relay.addr()));
    guest.liar.manners.revocations = false;
    let window = guest.expose(&mut victim, &pool, Access::WRITE);
    let target = Target::of(&window.descriptor().to_bytes());
    assert!(
        victim
            .endpoint(0)
            .windows(window.connection())
            .revoke(window, after(10 * SOON))
            .expect("its own window")
    );
    let mut revoked = None;
    until(
        "a revocation",
        &mut victim,
        &mut [&mut guest],
        |_, guests| {
            revoked = guests[0].liar.take(wire::REVOKE);
            revoked.is_some()
        },
    );
    let number = revoked.expect("just heard").value;
    // The victim reads the answer and the beginning of the write at one time.
    relay.hold_up_after(BEHIND);
    let answer = Control::new(wire::REVOKE_ACK).value(number);
    guest.liar.say(answer);
    assert!(guest.liar.write(target, vec![THEIRS; WRITTEN], None));
    drive("the write stands", SOON, || {
        guest.liar.poll();
        relay.up_is_held()
    });
    a_while(&mut victim, &mut [&mut guest]);
    let early = victim.released.len();
    relay.open();
    until(
        "the memory comes back",
        &mut victim,
        &mut [&mut guest],
        |victim, guests| {
            let liar = &guests[0].liar;
            victim.released.len() == 1 && (liar.over || liar.done + liar.failed > 1)
        },
    );
    a_while(&mut victim, &mut [&mut guest]);
    guest.liar.hang_up();
    until(
        "its end",
        &mut victim,
        &mut [&mut guest],
        |victim, guests| guests[0].ended(victim).is_some(),
    );
    a_while(&mut victim, &mut []);
    let changed = victim.changed();
    // A provider that had not looked the key up yet refuses the write, and ends the connection;
    // then the memory is back at once.
    println!("given back while it stood: {early}, bytes that changed afterwards: {changed}");
    assert_eq!(changed, 0, "bytes that changed after they were given back");
}
