//! `World`: a sender and its receivers at a net in memory, all in one thread, by a clock that
//! stands still until nothing moves.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use super::contents::{TestSinks, TestSource};
use super::machine::TestMachine;
use super::script::{End, Mishap, Script, Side, Wish, dice};
use crate::clock::Clock;
use crate::endpoint::duplex::faults::Dice;
use crate::endpoint::link::PostRefused;
use crate::endpoint::link::fake::Net;
use crate::fabric::EndpointKind;
use crate::protocol::connection::Form;
use crate::stream::interface::Interface;
use crate::stream::receiver::ReceiverByHand;
use crate::stream::sender::SenderByHand;
use crate::stream::{
    BlockSource, Peer, PeerOutcome, ReceiverConfig, SendOptions, SenderConfig, StreamEvent,
    Transfer,
};

/// What is to be done at a time.
#[derive(Debug, Clone, Copy)]
enum Act {
    Wish(Wish),
    Begin(Mishap),
    /// It is over.
    End(Mishap),
}

/// How a side is just now.
#[derive(Debug, Clone, Copy, Default)]
struct Condition {
    /// So many mishaps keep it from doing anything.
    frozen: u32,
    jammed: u32,
    late: u32,
    /// What each read or write takes.
    slow: Option<Duration>,
    /// It has something to look at.
    is_called: bool,
}

/// What a transfer came to.
pub(in crate::stream) struct Ended {
    pub(in crate::stream) errand: usize,
    pub(in crate::stream) outcomes: Vec<PeerOutcome>,
    pub(in crate::stream) was_cancelled: bool,
}

pub(in crate::stream) struct World {
    pub(in crate::stream) script: Script,
    pub(in crate::stream) clock: Clock,
    began: Instant,
    net: Net,
    machines: BTreeMap<Side, TestMachine>,
    conditions: BTreeMap<Side, Condition>,
    sender: SenderByHand,
    receivers: Vec<ReceiverByHand>,
    pub(in crate::stream) sinks: Vec<TestSinks>,
    transfers: BTreeMap<usize, Transfer>,
    cancelled: Vec<usize>,
    /// By time, and then in the order in which they were written down.
    acts: BTreeMap<(Duration, usize), Act>,
    noted: usize,
    /// All that is left is to come to its end: no read or write hangs any more.
    settles: bool,
    /// Connections on which nothing arrives, by the end that dialed.
    dark: Vec<usize>,
    dice: Dice,
    /// Of all that happened, and when.
    trace: DefaultHasher,
    pub(in crate::stream) turns: u64,
    steps: u64,
}

/// More than any rehearsal takes whose time goes on.
const STEPS_MAX: u64 = 2_000_000;

fn kind(form: Form) -> EndpointKind {
    match form {
        Form::Msg => EndpointKind::Msg,
        Form::Rdm => EndpointKind::Rdm,
    }
}

impl World {
    pub(in crate::stream) fn new(script: Script) -> Self {
        let (net, clock) = (Net::new(script.net), Clock::held());
        let kind = kind(script.net.form);
        let mut machines = BTreeMap::from([(Side::Sender, TestMachine::new(&net, kind))]);
        let mut conditions = BTreeMap::from([(Side::Sender, Condition::default())]);
        let (mut receivers, mut sinks) = (Vec::new(), Vec::new());
        for number in 0..script.receivers.len() {
            let (machine, sink) = (TestMachine::new(&net, kind), TestSinks::default());
            let config = receiver_config(&script, number, &clock, &sink);
            let interface = Interface::Rehearsed(machine.clone());
            let place = (interface, "192.0.2.2:1".parse().expect("an address"));
            receivers.push(ReceiverByHand::open(place, config));
            machines.insert(Side::Receiver(number), machine);
            conditions.insert(Side::Receiver(number), Condition::default());
            sinks.push(sink);
        }
        let interface = Interface::Rehearsed(machines[&Side::Sender].clone());
        let sender = SenderByHand::open(interface, sender_config(&script, &clock));
        let mut this = Self {
            began: clock.now(),
            dice: dice(!script.seed),
            clock,
            net,
            machines,
            conditions,
            sender,
            receivers,
            sinks,
            transfers: BTreeMap::new(),
            cancelled: Vec::new(),
            acts: BTreeMap::new(),
            noted: 0,
            settles: false,
            dark: Vec::new(),
            trace: DefaultHasher::new(),
            turns: 0,
            steps: 0,
            script,
        };
        let script = this.script.clone();
        // What is asked for at the same time comes in the order in which it was written down.
        let wishes = script
            .wishes
            .iter()
            .map(|(at, wish)| (*at, Act::Wish(*wish)));
        let mishaps = script.mishaps.iter();
        let mishaps = mishaps.map(|(at, mishap)| (*at, Act::Begin(*mishap)));
        for (at, act) in wishes.chain(mishaps) {
            this.note(at, act);
        }
        this
    }

    fn note(&mut self, at: Duration, act: Act) {
        self.acts.insert((at, self.noted), act);
        self.noted += 1;
    }

    fn remember(&mut self, what: impl Hash) {
        (self.clock.passed(), what).hash(&mut self.trace);
    }

    /// What happened, as one number.
    pub(in crate::stream) fn trace(&self) -> u64 {
        self.trace.finish()
    }

    // ---- the script -----------------------------------------------------------------------------

    /// Does what is due. Whether something was.
    fn follow(&mut self) -> bool {
        let mut any = false;
        while let Some(entry) = self.acts.first_entry()
            && entry.key().0 <= self.clock.passed()
        {
            let act = entry.remove();
            any = true;
            self.remember(format!("{act:?}"));
            match act {
                Act::Wish(wish) => self.grant(wish),
                Act::Begin(mishap) => self.begin(mishap),
                Act::End(mishap) => self.end(mishap),
            }
        }
        any
    }

    fn grant(&mut self, wish: Wish) {
        self.condition(Side::Sender).is_called = true;
        match wish {
            Wish::Begin(errand) => {
                let plan = self.script.errands[errand].clone();
                let source = TestSource::new(self.script.seed << 3 | errand as u64, &plan.sizes);
                let peers = plan.receivers.iter();
                let peers = peers.map(|to| Peer::from(self.receivers[*to].handle.local_addr()));
                let handle = &self.sender.handle;
                let transfer = handle.send(source, peers.collect::<Vec<_>>(), plan.options);
                self.transfers.insert(errand, transfer.expect("it begins"));
            }
            Wish::Pause(errand) => self.transfers[&errand].pause(),
            Wish::Resume(errand) => self.transfers[&errand].resume(),
            Wish::Cancel(errand) => {
                self.cancelled.push(errand);
                self.transfers[&errand].cancel();
            }
        }
    }

    fn condition(&mut self, side: Side) -> &mut Condition {
        self.conditions.get_mut(&side).expect("a side")
    }

    fn begin(&mut self, mishap: Mishap) {
        let lasts = match mishap {
            Mishap::Cut(which) => {
                if let Some(conn) = self.standing(which) {
                    self.net.cut(conn);
                }
                return;
            }
            Mishap::Lose(which, end) => {
                let dialed = self.standing(which);
                let lost = match end {
                    End::Dialing => dialed,
                    End::Accepting => dialed.and_then(|conn| self.net.other_end(conn)),
                };
                lost.into_iter().for_each(|conn| self.net.lose(conn));
                return;
            }
            Mishap::Refuse(receiver, dials) => {
                let links = self.machines[&Side::Receiver(receiver)].links();
                return self.net.refuse_dials(links[0], dials);
            }
            Mishap::Freeze(side, time) => {
                self.condition(side).frozen += 1;
                time
            }
            Mishap::Jam(side, time) => {
                self.condition(side).jammed += 1;
                time
            }
            Mishap::Dark(which, time) => {
                let Some(conn) = self.standing(which) else {
                    return;
                };
                self.dark.push(conn);
                let over = Mishap::Dark(conn as u64, time);
                return self.note(self.clock.passed() + time, Act::End(over));
            }
            Mishap::Late(side, time) => {
                self.condition(side).late += 1;
                time
            }
            Mishap::Slow(side, each, time) => {
                self.condition(side).slow = Some(each);
                time
            }
        };
        self.note(self.clock.passed() + lasts, Act::End(mishap));
    }

    fn end(&mut self, mishap: Mishap) {
        match mishap {
            Mishap::Freeze(side, _) => self.condition(side).frozen -= 1,
            Mishap::Jam(side, _) => self.condition(side).jammed -= 1,
            Mishap::Late(side, _) => self.condition(side).late -= 1,
            Mishap::Slow(side, ..) => self.condition(side).slow = None,
            Mishap::Dark(conn, _) => {
                let at = self.dark.iter().position(|dark| *dark == conn as usize);
                self.dark.remove(at.expect("it began"));
            }
            Mishap::Cut(_) | Mishap::Lose(..) | Mishap::Refuse(..) => {}
        }
    }

    /// One of the connections that stand.
    fn standing(&self, which: u64) -> Option<usize> {
        let all = self.net.standing();
        let at = which.checked_rem(all.len() as u64)?;
        Some(all[at as usize])
    }

    // ---- what moves -----------------------------------------------------------------------------

    /// Delivers some of what is on its way. Whether something moved, or might have.
    fn deliver(&mut self) -> bool {
        let mut any = false;
        for conn in self.net.laden() {
            let dials = self.net.dialing_end(conn);
            if self.dark.contains(&dials) {
                continue;
            }
            if self.net.leads_nowhere(conn) {
                // Its provider finds that out in a while.
                if self.dice.one_in(16) {
                    self.net.fail_sends(conn);
                    any = true;
                }
                continue;
            }
            if self.dice.one_in(4) {
                // It is still on its way.
                any |= self.net.can_deliver(conn);
                continue;
            }
            let burst = 1 + self.dice.roll(self.script.burst);
            for _ in 0..burst {
                if !self.net.deliver_one(conn) {
                    break;
                }
                any = true;
                self.remember(("moved", conn));
            }
        }
        any
    }

    /// What the provider takes and tells, as it is just now.
    fn provide(&mut self) -> bool {
        let mut any = false;
        for (side, machine) in &self.machines {
            let condition = self.conditions[side];
            for link in machine.links() {
                let refused = (condition.jammed > 0).then_some(PostRefused::Again);
                self.net.refuse_all_sends(link, refused);
                self.net.hold_reports(link, condition.late > 0);
                let held = self.net.held_reports(link);
                // While it is late, one in a while; then all, in any order.
                let tells = match condition.late > 0 {
                    true => usize::from(self.dice.one_in(8)),
                    false => held,
                };
                for left in 0..tells.min(held) {
                    let which = self.dice.roll((held - left) as u64);
                    self.net.report_late(link, which as usize);
                    any = true;
                }
            }
        }
        any
    }

    /// Whether a side would wake up now.
    fn is_awake(&self, side: Side) -> bool {
        let condition = self.conditions[&side];
        if condition.frozen > 0 {
            return false;
        }
        let due = match side {
            Side::Sender => self.sender.due(),
            Side::Receiver(number) => self.receivers[number].due(),
        };
        let links = self.machines[&side].links();
        condition.is_called
            || self.clock.now() >= due
            || links.iter().any(|link| self.net.has_news(*link))
    }

    fn take_turn(&mut self, side: Side) -> bool {
        if !self.is_awake(side) {
            return false;
        }
        self.turns += 1;
        let worked = match side {
            Side::Sender => self.sender.turn(),
            Side::Receiver(number) => self.receivers[number].turn(),
        };
        self.condition(side).is_called = worked;
        self.remember((side == Side::Sender, worked));
        true
    }

    /// Threads read and write.
    fn work(&mut self, side: Side) -> bool {
        let slow = self.conditions[&side].slow.filter(|_| !self.settles);
        let (dice, usual) = (&mut self.dice, self.script.work);
        let mut takes = || match (slow, usual.as_micros() as u64) {
            (Some(time), _) => time,
            (None, 0) => Duration::ZERO,
            (None, usual) => Duration::from_micros(dice.roll(usual)),
        };
        let worked = match side {
            Side::Sender => self.sender.read(&mut takes),
            Side::Receiver(number) => self.receivers[number].write(&mut takes),
        };
        if worked {
            self.condition(side).is_called = true;
            self.remember("work");
        }
        worked
    }

    /// Everybody does what there is to do, in any order. Whether anything moved.
    fn step(&mut self) -> bool {
        let mut any = self.follow();
        any |= self.provide();
        any |= self.deliver();
        let mut sides: Vec<_> = self.machines.keys().copied().collect();
        while !sides.is_empty() {
            let next = self.dice.roll(sides.len() as u64) as usize;
            let side = sides.swap_remove(next);
            any |= self.work(side);
            any |= self.take_turn(side);
        }
        any
    }

    /// Whether somebody was not told yet of what it has sent.
    fn holds_reports(&self) -> bool {
        let mut links = self.machines.values().flat_map(TestMachine::links);
        links.any(|link| self.net.held_reports(link) > 0)
    }

    /// When something happens next, if nothing moves before.
    fn next_moment(&self) -> Instant {
        let act = self.acts.keys().next().map(|(at, _)| self.began + *at);
        let mut all: Vec<_> = act.into_iter().chain(self.sender.next_read()).collect();
        if self.conditions[&Side::Sender].frozen == 0 {
            all.push(self.sender.due());
        }
        for (number, receiver) in self.receivers.iter().enumerate() {
            all.extend(receiver.next_written());
            if self.conditions[&Side::Receiver(number)].frozen == 0 {
                all.push(receiver.due());
            }
        }
        let late = self.conditions.values().any(|it| it.late > 0) && self.holds_reports();
        all.extend(late.then(|| self.clock.now() + Duration::from_millis(10)));
        all.into_iter().min().expect("somebody waits for something")
    }

    /// Time passes until then: a little where things move, else until somebody has something to do.
    fn pass(&mut self, moved: bool) {
        let least = Duration::from_micros(1 + self.dice.roll(30));
        if !moved {
            let next = self.next_moment();
            self.clock.advance_to(next);
        }
        self.clock.advance(least);
    }

    /// Goes on until something is so; or says how everything is, when it is not by then.
    fn run_until(&mut self, by: Duration, so: impl Fn(&mut Self) -> bool) -> Result<(), String> {
        while !so(self) {
            if self.clock.passed() > by || self.steps > STEPS_MAX {
                let steps = self.steps;
                let how = self.describe();
                return Err(format!("not so by {by:?} or {steps} steps:\n{how}"));
            }
            self.steps += 1;
            let moved = self.step();
            self.pass(moved);
        }
        Ok(())
    }

    pub(in crate::stream) fn describe(&self) -> String {
        let receivers = self.receivers.iter().map(ReceiverByHand::describe);
        let receivers: Vec<_> = receivers.collect();
        let (sender, receivers) = (self.sender.describe(), receivers.join("\n"));
        let passed = self.clock.passed();
        format!(
            "after {passed:?}:\n{sender}\n{receivers}\n{:#?}",
            self.net.queues()
        )
    }

    // ---- its end --------------------------------------------------------------------------------

    /// Another transfer, beside those of the script.
    pub(in crate::stream) fn send(
        &mut self,
        source: impl BlockSource,
        options: SendOptions,
    ) -> Transfer {
        let to = self.receivers[0].handle.local_addr();
        let transfer = self.sender.handle.send(source, [to], options);
        self.condition(Side::Sender).is_called = true;
        transfer.expect("it begins")
    }

    /// What became of it, within that time.
    pub(in crate::stream) fn outcome(
        &mut self,
        of: &Transfer,
        by: Duration,
    ) -> Result<PeerOutcome, String> {
        let limit = self.clock.passed() + by;
        self.run_until(limit, |_| of.is_over())?;
        let outcomes = of.wait(self.began).expect("it is over");
        Ok(outcomes.into_iter().next().expect("it has one peer"))
    }

    /// Every transfer, until it is over.
    pub(in crate::stream) fn run(&mut self) -> Result<Vec<Ended>, String> {
        let limit = self.script.limit();
        let all = self.script.errands.len();
        self.run_until(limit, |this| {
            this.transfers.len() == all && this.transfers.values().all(Transfer::is_over)
        })?;
        let ended = self.transfers.iter().map(|(errand, transfer)| Ended {
            errand: *errand,
            outcomes: transfer.wait(self.began).expect("it is over"),
            was_cancelled: self.cancelled.contains(errand),
        });
        Ok(ended.collect())
    }

    /// Both sides until nothing is left of any stream.
    pub(in crate::stream) fn settle(&mut self) -> Result<(), String> {
        let limit = self.clock.passed() + self.script.limit();
        self.settles = true;
        self.sender.let_go();
        self.receivers.iter_mut().for_each(ReceiverByHand::let_go);
        self.run_until(limit, |this| {
            let receivers: usize = this.receivers.iter().map(ReceiverByHand::busy).sum();
            this.sender.busy() == 0 && receivers == 0
        })
    }

    /// So much time passes, whatever happens. Connections that still have something on its way.
    pub(in crate::stream) fn rest(&mut self, time: Duration) -> Result<usize, String> {
        let end = self.clock.passed() + time;
        self.run_until(Duration::MAX, |this| this.clock.passed() >= end)?;
        Ok(self.net.laden().len())
    }

    /// Messages that went to an endpoint which was gone.
    pub(in crate::stream) fn lost(&self) -> u64 {
        self.net.lost()
    }

    /// What each receiver told of.
    pub(in crate::stream) fn events(&self) -> Vec<Vec<StreamEvent>> {
        let events = |receiver: &ReceiverByHand| {
            std::iter::from_fn(|| receiver.handle.next(Duration::ZERO)).collect()
        };
        self.receivers.iter().map(events).collect()
    }

    /// Ends both sides, and looks whether everything is back: buffers, slots, keys.
    pub(in crate::stream) fn close(self) -> Result<(), String> {
        let Self {
            net,
            machines,
            sender,
            receivers,
            sinks,
            transfers,
            ..
        } = self;
        let receivers = receivers.into_iter().map(ReceiverByHand::end);
        let receivers: Option<Vec<_>> = receivers.collect();
        let receivers = receivers.ok_or("a receiver does not stop at once")?;
        let sender = sender.end().ok_or("the sender does not stop at once")?;
        let theirs = receivers.iter().flat_map(|receiver| receiver.pools());
        for pool in theirs.chain([sender.pool()]) {
            let (free, slots) = (pool.free_count(), pool.slots());
            check(
                free == slots,
                &format!("{free} of {slots} buffers are back"),
            )?;
        }
        for sinks in &sinks {
            let offences = sinks.offences();
            check(offences.is_empty(), &format!("{offences:?}"))?;
            check(sinks.in_use() == 0, "each sink was told its end")?;
        }
        drop((sender, receivers, transfers));
        net.check();
        for (side, machine) in &machines {
            let open = net.open_of(machine.memory());
            check(
                open == 0,
                &format!("{open} registrations of {side:?} are open"),
            )?;
        }
        Ok(())
    }
}

fn check(so: bool, what: &str) -> Result<(), String> {
    match so {
        true => Ok(()),
        false => Err(what.to_owned()),
    }
}

fn sender_config(script: &Script, clock: &Clock) -> SenderConfig {
    let plan = &script.sender;
    let mut config = SenderConfig::default()
        .stream(|s| {
            s.block_bytes(plan.block_bytes)
                .buffers(plan.buffers)
                .threads(plan.readers)
                .connections(16)
                .connect_timeout(script.times.connect)
                .lost_after(script.times.lost)
        })
        .depth(plan.depth)
        .clock(clock.clone());
    if let Some(faults) = &plan.faults {
        config = config.faults(faults.clone());
    }
    config.swallow = plan.swallow.clone();
    config
}

fn receiver_config(
    script: &Script,
    number: usize,
    clock: &Clock,
    sinks: &TestSinks,
) -> ReceiverConfig {
    let plan = &script.receivers[number];
    let mut config = ReceiverConfig::new(sinks.clone())
        .stream(|s| {
            s.block_bytes(plan.block_bytes)
                .connections(12)
                .buffers(plan.buffers)
                .threads(plan.writers)
                .connect_timeout(script.times.connect)
                .lost_after(script.times.lost)
        })
        .credits(plan.window)
        .rma_slots(plan.windows)
        .stalled_after(script.times.stalled)
        .paused_for(script.times.paused)
        .clock(clock.clone());
    config.swallow = plan.swallow.clone();
    config
}
