//! Peers that answer fences late, and one that is stopped: what the others of the domain wait for.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use fabricast::buffer::SharedBufferManager;
use fabricast::endpoint::{Access, CloseReason, LongMessages, ReceiveConfig};
use fabricast::{SendEndpointZeroCopy, SendEvent};

use crate::common::child::{self, Child};
use crate::common::{self, Offers, SOON, Watchdog, after, alone, buffer, drive, millis};
use crate::victim::{Guest, Victim, config};
use crate::wire::{self, Control};

const MESSAGE: usize = 1 << 20;

/// Slots for long messages.
const SLOTS: u32 = 4;

/// Messages of one measurement.
const MESSAGES: u64 = 15;

/// How late liars answer: just below what is late, with default settings.
const LATE: Duration = Duration::from_millis(900);

/// What a message may wait at most in the middle, beside liars: far below what they take.
const FAR_BELOW: Duration = Duration::from_millis(180);

/// A liar that answers each fence when so much time has passed.
struct Latecomer {
    guest: Guest,
    late: Duration,
    questions: VecDeque<(Instant, Control)>,
}

impl Latecomer {
    fn come(victim: &mut Victim, late: Duration) -> Self {
        let mut guest = Guest::polite(victim, 0, None);
        guest.liar.manners.fences = false;
        Self {
            guest,
            late,
            questions: VecDeque::new(),
        }
    }

    fn poll(&mut self) {
        let liar = &mut self.guest.liar;
        liar.poll();
        let now = Instant::now();
        while let Some(fence) = liar.take(wire::FENCE) {
            self.questions.push_back((now + self.late, fence));
        }
        while self.questions.front().is_some_and(|(at, _)| *at <= now)
            && let Some((_, fence)) = self.questions.pop_front()
        {
            liar.say(wire::fenced(fence));
        }
    }
}

/// One that keeps to everything, and sends long messages.
struct Honest {
    sender: SendEndpointZeroCopy,
    pool: SharedBufferManager,
    events: Vec<SendEvent>,
}

impl Honest {
    fn come(victim: &mut Victim) -> Self {
        let domain = common::domain().expect("there is one already");
        let config = common::sending();
        let mut sender =
            SendEndpointZeroCopy::connect(&domain, victim.addr(0), config).expect("begins");
        let mut events = Vec::new();
        drive("an honest one connects", SOON, || {
            victim.poll();
            sender.poll(&mut events).expect("polls");
            sender.is_connected()
        });
        Self {
            sender,
            pool: common::pool(&domain, 2, MESSAGE),
            events,
        }
    }

    fn send_off(&mut self, key: u64, bytes: &[u8]) {
        let payload = buffer(&self.pool, bytes);
        self.sender
            .send_data(payload, &key.to_le_bytes(), key)
            .expect("taken");
    }

    fn poll(&mut self) {
        self.sender.poll(&mut self.events).expect("polls");
        // What was sent comes back with its outcome.
        self.events.clear();
    }

    /// How long a message takes until it is handed out.
    fn send(
        &mut self,
        victim: &mut Victim,
        key: u64,
        mut others: impl FnMut(&mut Victim),
    ) -> Duration {
        let bytes = common::pattern(key, MESSAGE);
        let began = Instant::now();
        self.send_off(key, &bytes);
        drive("a message", SOON, || {
            victim.poll();
            self.poll();
            others(victim);
            victim.messages.len() == 1 && self.pool.free_count() == 2
        });
        let took = began.elapsed();
        let (message, _) = victim.messages.pop().expect("just seen");
        assert!(message.payload() == bytes, "message {key}");
        took
    }

    /// The median of some messages, and the longest.
    fn median(
        &mut self,
        victim: &mut Victim,
        mut others: impl FnMut(&mut Victim),
    ) -> (Duration, Duration) {
        let mut times: Vec<_> = (0..MESSAGES)
            .map(|key| self.send(victim, key, &mut others))
            .collect();
        times.sort_unstable();
        (times[times.len() / 2], times[times.len() - 1])
    }
}

/// A receiver with default settings and room for long messages.
fn victim() -> Option<(Victim, SharedBufferManager)> {
    let pool = SharedBufferManager::allocate(SLOTS, MESSAGE + 4096).expect("memory");
    let config = ReceiveConfig::default()
        .incoming(|i| i.long_messages(LongMessages::new(pool.clone())))
        .connection(|c| c.max_connections(32).windows(4));
    Some((Victim::new(1, &config)?, pool))
}

/// Everything of a pool comes back, however late they are.
fn all_back(pool: &SharedBufferManager, victim: &mut Victim, mut others: impl FnMut(&mut Victim)) {
    drive("the slots are free", SOON, || {
        victim.poll();
        others(victim);
        pool.free_count() == SLOTS as usize
    });
}

#[test]
fn honest_messages_do_not_wait_for_late_answers() {
    let _alone = alone();
    let _dog = Watchdog::new("late answers");
    for liars in [1, 4, 16] {
        let Some((mut victim, pool)) = victim() else {
            return;
        };
        let mut honest = Honest::come(&mut victim);
        let (alone, _) = honest.median(&mut victim, |_| {});
        let mut liars: Vec<_> = (0..liars)
            .map(|_| Latecomer::come(&mut victim, LATE))
            .collect();
        let mut others = |_: &mut Victim| liars.iter_mut().for_each(Latecomer::poll);
        let (median, longest) = honest.median(&mut victim, &mut others);
        all_back(&pool, &mut victim, &mut others);
        let liars = liars.len();
        println!("beside {liars} that are {LATE:?} late: {median:?}, at most {longest:?}");
        println!("alone before: {alone:?}");
        assert!(median < FAR_BELOW, "{median:?} beside {liars}");
    }
}

/// One who answers each question, and always late, is ended at last, and nobody else.
#[test]
fn who_is_late_again_and_again_is_ended() {
    let _alone = alone();
    let _dog = Watchdog::new("again and again");
    let limit = Duration::from_millis(1600);
    let pool = SharedBufferManager::allocate(1, 4096).expect("memory");
    let config = config().connection(|c| c.fence_timeout(limit));
    let Some(mut victim) = Victim::new(1, &config) else {
        return;
    };
    let mut first = Guest::polite(&mut victim, 0, None);
    let mut liar = Latecomer::come(&mut victim, limit * 3 / 4);
    let mut waits = Vec::new();
    drive("it is ended", SOON, || {
        let window = first.expose(&mut victim, &pool, Access::WRITE);
        let windows = &mut victim.endpoint(0).windows(window.connection());
        windows.revoke(window, after(SOON)).expect("its own window");
        let began = Instant::now();
        drive("the memory is back", SOON, || {
            victim.poll();
            first.liar.poll();
            liar.poll();
            victim.released.len() == 1
        });
        waits.push(began.elapsed());
        victim.released.clear();
        liar.guest.ended(&victim).is_some()
    });
    println!("a window waited for {waits:?}");
    let reason = liar.guest.ended(&victim);
    assert_eq!(reason, Some(CloseReason::FencesLate { times: 3, limit }));
    // The third question was open for half of the time; more where this machine stood still.
    assert!(waits.len() >= 3, "{waits:?}");
    assert_eq!(first.ended(&victim), None, "who is honest stays");
}

/// A copy is as it was when it was taken, and says that it is one; what never was late is none.
#[test]
fn what_was_copied_says_so_and_stays_as_it_was() {
    let _alone = alone();
    let _dog = Watchdog::new("says so");
    let Some((mut victim, pool)) = victim() else {
        return;
    };
    let mut honest = Honest::come(&mut victim);
    let mut liar = Latecomer::come(&mut victim, LATE);
    let before = victim.endpoint(0).stats();
    assert_eq!((before.late_copied, before.long_copied), (0, 0));
    let mut copied = 0;
    for key in 0..3 {
        let bytes = common::pattern(key, MESSAGE);
        honest.send_off(key, &bytes);
        drive("a message", SOON, || {
            victim.poll();
            honest.poll();
            liar.poll();
            !victim.messages.is_empty()
        });
        let (message, then) = victim.messages.pop().expect("just seen");
        assert!(message.is_copied(), "message {key}");
        assert!(message.payload() == bytes && then == bytes);
        copied += MESSAGE as u64;
    }
    let stats = victim.endpoint(0).stats();
    assert!(stats.late_copied >= copied, "{stats:?}");
    assert_eq!(stats.long_copied, 0);
    all_back(&pool, &mut victim, |_| liar.poll());
}

/// A program that connects and does nothing else.
fn bystander() {
    let domain = common::domain().expect("the parent has libfabric");
    let addr = child::argument().parse().expect("an address");
    let config = common::sending();
    let mut sender = SendEndpointZeroCopy::connect(&domain, addr, config).expect("begins");
    sender.wait_connected().expect("connected");
    child::tell("connected");
    let mut events = Vec::new();
    // Until it is killed.
    loop {
        sender.poll(&mut events).expect("polls");
        events.clear();
        std::thread::sleep(millis(1));
    }
}

#[test]
fn honest_messages_do_not_wait_for_a_stopped_program() {
    if child::role().is_some() {
        return bystander();
    }
    let _alone = alone();
    let _dog = Watchdog::new("a stopped program");
    let Some((mut victim, pool)) = victim() else {
        return;
    };
    if !common::domain().is_some_and(|domain| domain.stops_with_programs()) {
        return;
    }
    let test = "late::honest_messages_do_not_wait_for_a_stopped_program";
    let mut child = Child::start(test, "bystander", victim.addr(0));
    let mut told = false;
    drive("the other program connects", SOON, || {
        victim.poll();
        told |= child.heard().is_some_and(|line| line == "connected");
        told && victim.connected.len() == 1
    });
    let mut honest = Honest::come(&mut victim);
    let (alone, _) = honest.median(&mut victim, |_| {});
    child.stop();
    let (median, longest) = honest.median(&mut victim, |_| {});
    println!("alone: {alone:?}; beside a stopped one: {median:?}, at most {longest:?}");
    assert!(median < FAR_BELOW, "{median:?}, and {alone:?} alone");
    all_back(&pool, &mut victim, |_| {});
    let (at, id) = victim.connected[0];
    drive("it is told", SOON, || {
        victim.poll();
        victim.end_of(at, id).is_some()
    });
    let limit = Duration::from_secs(2);
    let reason = Some(CloseReason::FenceDeadline { limit });
    assert_eq!(victim.end_of(at, id), reason);
}
