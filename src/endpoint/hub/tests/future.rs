//! The futures of a send endpoint over the fake link: what is dropped when, who is woken, and whose
//! buffer is where.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::Error;
use crate::buffer::Payload;
use crate::endpoint::error::{Refused, SendErrorKind};
use crate::endpoint::event::{
    ConnectionEvent, ConnectionInfo, DeadlinePolicy, Level, ReceiveEvent, SendEvent,
};
use crate::endpoint::link::PostRefused;
use crate::endpoint::link::fake::FakeLink;
use crate::endpoint::send::core::SendCore;
use crate::endpoint::testing::rig::{LONG, Rig, Setup, far_future};
use crate::endpoint::windows::destination::Destination;
use crate::endpoint::windows::window::WindowPlace;
use crate::error::FabricErrno;
use crate::future::parts::{
    Driver, Handle, SendOn, Sender, close, closed, connected, connection_event, drive,
};
use crate::future::{EndpointFds, Failed, FutureStats, Reactor, SendFailure, Watch};
use crate::protocol::connection::{CloseReason, State};
use crate::stats::SendStats;

type Core = SendCore<FakeLink>;

impl Sender for Core {
    fn send_data(
        &mut self,
        payload: Payload,
        header: &[u8],
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        Self::send_data(self, payload, header, key)
    }

    fn write(
        &mut self,
        payload: Payload,
        place: WindowPlace<'_>,
        data: Option<u32>,
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        Self::write(self, payload, place, data, Level::Delivered, key)
    }

    fn read(
        &mut self,
        into: Destination,
        place: WindowPlace<'_>,
        key: u64,
    ) -> Result<(), Refused<Destination>> {
        Self::read(self, into, place, key)
    }

    fn poll(&mut self, events: &mut Vec<SendEvent>) -> Result<(), Error> {
        Self::poll(self, events)
    }

    fn begin_close(&mut self, deadline: Instant) {
        // Whoever drops the last handle reads the system's clock; by the one that is held here,
        // that moment is still to come.
        let deadline = match deadline <= Instant::now() {
            true => self.clock().now(),
            false => deadline,
        };
        Self::begin_close(self, deadline);
    }

    fn info(&self) -> Option<ConnectionInfo> {
        Self::info(self).filter(|_| self.state() == State::Established)
    }

    fn error_of_end(&self, reason: CloseReason) -> Error {
        Error::Closed(reason)
    }

    fn close_reason(&self) -> Option<CloseReason> {
        Self::close_reason(self)
    }

    fn stats(&self) -> SendStats {
        Self::stats(self)
    }
}

/// A reactor that calls when the test says so.
#[derive(Clone, Default)]
struct ByHand(Arc<Mutex<Option<Waker>>>);

impl ByHand {
    fn is_armed(&self) -> bool {
        self.0.lock().unwrap().is_some()
    }

    /// Calls whoever waits; false when nobody does.
    fn ring(&self) -> bool {
        let waker = self.0.lock().unwrap().take();
        waker.map(Waker::wake).is_some()
    }
}

impl Reactor for ByHand {
    fn watch(&self, _fds: EndpointFds) -> std::io::Result<Box<dyn Watch>> {
        Ok(Box::new(self.clone()))
    }
}

impl Watch for ByHand {
    fn poll_ready(&mut self, cx: &mut Context<'_>, _until: Instant) -> Poll<()> {
        let old = self.0.lock().unwrap().replace(cx.waker().clone());
        drop(old);
        Poll::Pending
    }
}

/// A waker that remembers.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A future and whether it was woken, as an executor has it.
struct Task<F: Future> {
    future: Pin<Box<F>>,
    flag: Arc<Flag>,
    output: Option<F::Output>,
}

impl<F: Future> Task<F> {
    fn new(future: F) -> Self {
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        Self {
            future: Box::pin(future),
            flag,
            output: None,
        }
    }

    fn is_woken(&self) -> bool {
        self.flag.0.load(Ordering::SeqCst)
    }

    fn poll(&mut self) {
        if self.output.is_some() {
            return;
        }
        self.flag.0.store(false, Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(&self.flag));
        if let Poll::Ready(output) = self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            self.output = Some(output);
        }
    }

    /// What an executor does. True: it was woken.
    fn poll_if_woken(&mut self) -> bool {
        let due = self.is_woken() && self.output.is_none();
        if due {
            self.poll();
        }
        due
    }
}

/// One send and which buffer it has.
struct Send {
    key: u64,
    slot: u32,
    task: Task<SendOn<Core>>,
}

impl Send {
    fn check(&self) {
        let payload = match &self.task.output {
            Some(Ok(payload)) => payload,
            Some(Err(failed)) => failed.given.as_ref().expect("the payload is back"),
            None => return,
        };
        let [segment] = payload.segments() else {
            panic!("not the payload that was given: {payload:?}")
        };
        let bytes = segment.as_bytes().expect("a buffer");
        assert_eq!(bytes[..8], self.key.to_le_bytes(), "another content");
    }
}

struct World {
    rig: Rig,
    reactor: ByHand,
    handle: Option<Handle<Core>>,
    hub: std::sync::Weak<Driver<Core>>,
    sends: Vec<Send>,
    driver: Option<Task<Pin<Box<dyn Future<Output = CloseReason>>>>>,
    next_key: u64,
    /// The counters when the handle was last there.
    last: (SendStats, FutureStats),
}

impl World {
    fn new(setup: Setup) -> Self {
        let mut rig = setup.rig();
        let core = rig.sender.take().expect("just made");
        let wait: Arc<crate::endpoint::link::wait::EndpointWait> = Arc::clone(core.wait());
        let reactor = ByHand::default();
        let hub = Driver::new(core, wait, &reactor).expect("watched");
        Self {
            rig,
            reactor,
            hub: Arc::downgrade(&hub),
            handle: Some(Handle(hub)),
            sends: Vec::new(),
            driver: None,
            next_key: 0,
            last: Default::default(),
        }
    }

    fn connected(setup: Setup) -> Self {
        let mut world = Self::new(setup);
        let mut task = Task::new(connected(world.arc()));
        while task.output.is_none() {
            world.move_all();
            assert!(task.poll_if_woken(), "nobody woke the one who connects");
        }
        assert!(task.output.is_some_and(|info| info.is_ok()));
        world
    }

    fn arc(&self) -> Arc<Driver<Core>> {
        self.hub.upgrade().expect("the hub lives")
    }

    fn send(&mut self) -> Option<usize> {
        let hub = self.hub.upgrade()?;
        let mut buffer = self.rig.payloads.try_acquire()?;
        let key = self.next_key;
        self.next_key += 1;
        buffer[..8].copy_from_slice(&key.to_le_bytes());
        let buffer = buffer.freeze(8);
        self.sends.push(Send {
            key,
            slot: buffer.index(),
            task: Task::new(SendOn::new(&hub, buffer.into(), &key.to_be_bytes())),
        });
        Some(self.sends.len() - 1)
    }

    /// A send that was polled once.
    fn polled(&mut self) -> usize {
        let index = self.send().expect("a payload is free");
        self.sends[index].task.poll();
        index
    }

    /// The network moves, the reactor calls.
    fn move_all(&mut self) {
        self.rig.net.deliver(usize::MAX);
        self.rig.poll_receiver();
        self.reactor.ring();
    }

    /// Runs everything that was woken; how many polls that took.
    fn run_woken(&mut self) -> usize {
        let mut polls = 0;
        loop {
            let mut any = false;
            for send in &mut self.sends {
                any |= send.task.poll_if_woken();
            }
            if let Some(driver) = &mut self.driver {
                any |= driver.poll_if_woken();
            }
            if !any {
                return polls;
            }
            polls += 1;
            assert!(polls < 10_000, "it never rests");
        }
    }

    /// Moves and runs until all sends are resolved, or nothing moves.
    fn settle(&mut self) {
        for _ in 0..200 {
            self.run_woken();
            if self.sends.iter().all(|send| send.task.output.is_some()) && self.driver.is_none() {
                return;
            }
            self.move_all();
        }
    }

    fn stats(&mut self) -> (SendStats, FutureStats) {
        if let Some(hub) = self.hub.upgrade() {
            self.last = hub.with(|engine, _| (engine.send_stats(), engine.stats()));
        }
        self.last
    }

    #[track_caller]
    fn check(&mut self) {
        self.rig.net.check();
        self.sends.iter().for_each(Send::check);
        let (s, f) = self.stats();
        assert_eq!(
            s.posted,
            s.completed + s.failed + s.abandoned + s.in_flight,
            "{s:?}"
        );
        assert_eq!(
            s.posted,
            f.resolved + f.detached + f.unresolved,
            "{s:?} {f:?}"
        );
        assert!(f.detached_in_flight <= s.in_flight, "{s:?} {f:?}");
    }

    fn free(&self) -> usize {
        self.rig.payloads.free_count()
    }

    #[track_caller]
    fn end(mut self) {
        self.sends.clear();
        self.driver = None;
        self.handle = None;
        assert!(self.hub.upgrade().is_none(), "the hub is kept by nobody");
        self.rig.end();
    }
}

fn setup() -> Setup {
    Setup::default()
}

// ---- dropping a send at every point -------------------------------------------------------------

#[test]
fn a_send_dropped_before_its_first_poll_was_never_made() {
    let mut world = World::connected(setup());
    let all = world.free();
    world.send();
    assert_eq!(world.free(), all - 1);
    world.sends.clear();
    assert_eq!(world.free(), all);
    assert_eq!(world.stats().0.posted, 0);
    assert_eq!(world.stats().1.detached, 0);
    world.end();
}

#[test]
fn a_send_dropped_while_it_waits_for_room_was_never_made_and_the_next_has_its_turn() {
    let mut world = World::connected(Setup {
        depth: 1,
        ..setup()
    });
    let (first, second, third) = (world.polled(), world.polled(), world.polled());
    assert!(world.sends[first].task.future.is_posted());
    assert!(!world.sends[second].task.future.is_posted());
    assert_eq!(world.stats().1.waiting, 2);
    let free = world.free();
    // It has the word that there is room, and goes.
    world.move_all();
    world.sends[first].task.poll();
    assert!(world.sends[second].task.is_woken());
    drop(world.sends.remove(second));
    assert_eq!(world.free(), free + 1);
    let third = &mut world.sends[third - 1].task;
    assert!(third.is_woken(), "the next in the queue was not told");
    third.poll();
    assert!(third.future.is_posted());
    world.settle();
    assert_eq!((world.stats().0.posted, world.stats().1.detached), (2, 0));
    world.check();
    world.end();
}

#[test]
fn a_send_dropped_in_flight_keeps_its_buffer_until_it_is_done() {
    let mut world = World::connected(setup());
    let all = world.free();
    let index = world.polled();
    assert!(world.sends[index].task.future.is_posted());
    world.sends.clear();
    assert_eq!(world.free(), all - 1, "the network still reads the buffer");
    let f = world.stats().1;
    assert_eq!((f.detached, f.detached_in_flight, f.unresolved), (1, 1, 0));
    world.check();
    // Another send drives the endpoint; the message of the first arrives all the same.
    world.polled();
    world.settle();
    assert_eq!(world.rig.received, [0, 1]);
    let (s, f) = world.stats();
    assert_eq!((s.completed, f.resolved, f.detached), (2, 1, 1));
    assert_eq!(f.detached_in_flight, 0);
    world.sends.clear();
    assert_eq!(world.free(), all);
    world.end();
}

#[test]
fn a_send_dropped_after_it_was_done_and_before_it_was_polled_gives_its_buffer_back_at_once() {
    let mut world = World::connected(setup());
    let all = world.free();
    let (first, second) = (world.polled(), world.polled());
    world.rig.net.deliver(usize::MAX);
    world.reactor.ring();
    // One of them finds out for both.
    world.sends[second].task.poll();
    assert!(world.sends[second].task.output.is_some());
    assert!(world.sends[first].task.output.is_none());
    assert!(world.sends[first].task.is_woken());
    drop(world.sends.remove(first));
    world.sends.clear();
    assert_eq!(world.free(), all);
    let f = world.stats().1;
    assert_eq!((f.resolved, f.detached, f.detached_in_flight), (1, 1, 0));
    world.check();
    world.end();
}

#[test]
fn a_dropped_send_that_fails_gives_its_buffer_back_too() {
    let mut world = World::connected(setup());
    let all = world.free();
    world.polled();
    world.sends.clear();
    let conn = world.rig.conn;
    world.rig.net.flush(conn, libc::ECONNRESET);
    world.reactor.ring();
    let mut driver = Task::new(drive(world.arc()));
    driver.poll();
    assert!(driver.output.is_some(), "the connection is lost");
    assert_eq!(world.free(), all);
    assert_eq!(world.stats().1.detached_in_flight, 0);
    drop(driver);
    world.check();
    world.end();
}

// ---- the endpoint goes --------------------------------------------------------------------------

#[test]
fn dropping_the_endpoint_gives_every_future_its_payload_back() {
    let mut world = World::connected(Setup {
        depth: 2,
        ..setup()
    });
    for _ in 0..4 {
        world.polled();
    }
    let (s, f) = world.stats();
    assert_eq!((s.in_flight, f.waiting), (2, 2));
    let unpolled = world.send().expect("a payload is free");
    world.handle = None;
    assert_eq!(world.run_woken(), 1, "each is woken once");
    for (index, send) in world.sends.iter().enumerate() {
        let Some(Err(Failed { why: error, .. })) = &send.task.output else {
            panic!("send {index}: {:?}", send.task.output)
        };
        match error {
            SendFailure::Failed(error) => {
                assert_eq!((index < 2, error.errno.get()), (true, libc::ECANCELED))
            }
            SendFailure::Refused(SendErrorKind::Closed(CloseReason::ClosedByDeadline)) => {
                assert!(index >= 2)
            }
            other => panic!("send {index}: {other:?}"),
        }
    }
    assert!(unpolled >= 4);
    world.check();
    world.end();
}

#[test]
fn dropping_the_endpoint_without_a_future_drops_it_at_once() {
    let mut world = World::connected(setup());
    world.polled();
    world.sends.clear();
    world.handle = None;
    assert!(world.hub.upgrade().is_none());
    assert_eq!(world.rig.abandoned.lock().unwrap().len(), 1);
    assert_eq!(world.free(), world.rig.payloads.slots());
    world.end();
}

#[test]
fn futures_dropped_after_the_endpoint_let_it_go() {
    let mut world = World::connected(setup());
    world.polled();
    world.polled();
    world.handle = None;
    assert!(world.hub.upgrade().is_some(), "its futures still need it");
    world.sends.clear();
    assert!(world.hub.upgrade().is_none());
    world.end();
}

#[test]
fn a_broken_endpoint_is_told_to_everybody() {
    let mut world = World::connected(Setup {
        depth: 1,
        ..setup()
    });
    world.polled();
    world.polled();
    let near = world.rig.near;
    world.rig.net.break_cq(near, libc::EOVERFLOW);
    world.reactor.ring();
    world.run_woken();
    assert!(
        world
            .sends
            .iter()
            .all(|send| matches!(send.task.output, Some(Err(_))))
    );
    let mut after = Task::new(closed(world.arc()));
    after.poll();
    assert_eq!(
        after.output,
        Some(CloseReason::EndpointFailed("the completion queue broke"))
    );
    drop(after);
    world.check();
    world.end();
}

#[test]
fn a_polite_close_completes_what_is_in_flight_and_refuses_what_waits() {
    let mut world = World::connected(Setup {
        depth: 2,
        ..setup()
    });
    for _ in 0..3 {
        world.polled();
    }
    let mut task = Task::new(close(world.arc(), far_future()));
    task.poll();
    for _ in 0..100 {
        world.run_woken();
        task.poll_if_woken();
        world.move_all();
    }
    assert_eq!(task.output, Some(CloseReason::Finished));
    assert!(matches!(world.sends[0].task.output, Some(Ok(_))));
    assert!(matches!(world.sends[1].task.output, Some(Ok(_))));
    let Some(Err(failed)) = &world.sends[2].task.output else {
        panic!("{:?}", world.sends[2].task.output)
    };
    assert!(matches!(
        failed.why,
        SendFailure::Refused(SendErrorKind::Closing)
    ));
    assert_eq!(world.rig.received, [0, 1]);
    drop(task);
    world.check();
    world.end();
}

// ---- what happens to the connection -------------------------------------------------------------

/// The next event of the connection; `None`: there is none yet.
fn next_event(world: &mut World) -> Option<Option<ConnectionEvent>> {
    let mut task = Task::new(connection_event(world.arc()));
    task.poll();
    for _ in 0..3 {
        world.reactor.ring();
        task.poll_if_woken();
    }
    task.output
}

#[test]
fn what_happens_to_the_connection_is_told_to_who_asks() {
    let deadline = Duration::from_millis(20);
    let mut world = World::connected(Setup {
        send_deadline: Some(deadline),
        policy: DeadlinePolicy::Notify,
        ..setup()
    });
    let first = next_event(&mut world);
    assert!(
        matches!(first, Some(Some(ConnectionEvent::Connected(_)))),
        "{first:?}"
    );
    assert_eq!(next_event(&mut world), None);

    world.polled();
    let mut waiting = Task::new(connection_event(world.arc()));
    waiting.poll();
    world.rig.pass(deadline);
    world.reactor.ring();
    assert!(
        waiting.poll_if_woken(),
        "who asks is one of those who drive"
    );
    assert_eq!(waiting.output, Some(Some(ConnectionEvent::Late)));
    world.settle();
    assert!(matches!(world.sends[0].task.output, Some(Ok(_))));

    let mut closing = Task::new(close(world.arc(), far_future()));
    let mut asking = Task::new(connection_event(world.arc()));
    for _ in 0..100 {
        closing.poll_if_woken();
        asking.poll_if_woken();
        if matches!(asking.output, Some(Some(_))) {
            asking = Task::new(connection_event(world.arc()));
        }
        world.move_all();
    }
    assert_eq!(closing.output, Some(CloseReason::Finished));
    assert_eq!(asking.output, Some(None), "all was told");
    drop((closing, asking, waiting));
    world.check();
    world.end();
}

#[test]
fn of_what_nobody_asks_for_the_last_are_kept() {
    let mut world = World::connected(setup());
    world.arc().with(|engine, after| {
        for _ in 0..255 {
            engine.keep_connection_event(ConnectionEvent::Unresponsive, after);
        }
        // The first of all goes, the one of the connection, and one more.
        engine.keep_connection_event(ConnectionEvent::Responsive, after);
        engine.keep_connection_event(ConnectionEvent::Late, after);
    });
    let mut told = Vec::new();
    while let Some(event) = next_event(&mut world) {
        told.push(event.expect("it is not over"));
    }
    assert_eq!(told.len(), 256);
    assert!(
        told[..254]
            .iter()
            .all(|event| *event == ConnectionEvent::Unresponsive)
    );
    assert_eq!(
        told[254..],
        [ConnectionEvent::Responsive, ConnectionEvent::Late]
    );
    world.check();
    world.end();
}

// ---- who is woken -------------------------------------------------------------------------------

#[test]
fn sends_that_wait_for_room_go_in_the_order_in_which_they_came() {
    let mut world = World::connected(Setup {
        depth: 1,
        receive_depth: 2,
        payloads: 16,
        ..setup()
    });
    for _ in 0..12 {
        world.polled();
    }
    // Polled from the last on, and more often than they were woken: that gains nobody a better
    // place.
    for _ in 0..200 {
        for send in world.sends.iter_mut().rev() {
            send.task.poll();
        }
        world.move_all();
    }
    assert_eq!(world.rig.received, (0..12).collect::<Vec<_>>());
    assert!(
        world
            .sends
            .iter()
            .all(|send| matches!(send.task.output, Some(Ok(_))))
    );
    world.check();
    world.end();
}

#[test]
fn with_a_driver_a_wake_up_wakes_the_driver_and_those_who_are_done() {
    let mut world = World::connected(setup());
    let mut driver = Task::new(drive(world.arc()));
    driver.poll();
    let (first, second) = (world.polled(), world.polled());
    assert!(!driver.is_woken());
    world.rig.net.deliver(1);
    world.reactor.ring();
    assert!(driver.is_woken());
    assert!(!world.sends[first].task.is_woken() && !world.sends[second].task.is_woken());
    driver.poll();
    assert!(world.sends[first].task.is_woken());
    assert!(!world.sends[second].task.is_woken());
    world.run_woken();
    // Woken, and dropped before it was polled: another drives.
    world.rig.net.deliver(1);
    world.reactor.ring();
    assert!(driver.is_woken() && !world.sends[second].task.is_woken());
    drop(driver);
    assert!(world.sends[second].task.is_woken());
    world.settle();
    world.check();
    world.end();
}

#[test]
fn polls_that_nobody_asked_for_cost_a_turn_an_interval_and_no_more() {
    let mut world = World::connected(setup());
    world.polled();
    let (turns, begin) = (world.stats().1.turns, Instant::now());
    assert!(world.reactor.is_armed());
    for _ in 0..1000 {
        world.sends[0].task.poll();
    }
    let intervals = begin.elapsed().as_millis() as u64;
    let turns = world.stats().1.turns - turns;
    assert!(turns <= intervals + 1, "{turns} turns in {intervals} ms");
    assert!(!world.sends[0].task.is_woken());
    // Without the reactor: who polls makes progress all the same.
    world.rig.net.deliver(usize::MAX);
    let limit = far_future();
    while world.sends[0].task.output.is_none() {
        assert!(Instant::now() < limit);
        world.sends[0].task.poll();
    }
    world.end();
}

#[test]
fn a_provider_that_is_full_is_tried_again_without_a_spin() {
    let mut world = World::connected(setup());
    let near = world.rig.near;
    world
        .rig
        .net
        .refuse_all_sends(near, Some(PostRefused::Again));
    world.polled();
    assert!(world.reactor.is_armed(), "the interval");
    assert!(!world.sends[0].task.is_woken());
    for _ in 0..5 {
        let before = world.stats().1.turns;
        world.reactor.ring();
        world.run_woken();
        assert!(world.stats().1.turns - before <= 4, "{:?}", world.stats().1);
        assert!(world.reactor.is_armed());
    }
    world.rig.net.refuse_all_sends(near, None);
    world.settle();
    assert!(matches!(world.sends[0].task.output, Some(Ok(_))));
    world.end();
}

// ---- random walks -------------------------------------------------------------------------------

#[derive(Clone, Debug)]
enum Step {
    Send,
    Poll { which: usize, woken: bool },
    RunWoken,
    Drop(usize),
    Deliver(usize),
    PollReceiver,
    Ring,
    Hold(bool),
    DropMessage,
    RefuseSend,
    Storm(bool),
    Driver { drop: bool },
    // From here on: what a connection does not survive.
    FailSend,
    Flush { far: bool },
    ShutDown { far: bool },
    BreakQueue,
    Close { soon: bool },
    DropHandle,
}

fn benign() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => Just(Step::Send),
        20 => (any::<usize>(), any::<bool>())
            .prop_map(|(which, woken)| Step::Poll { which, woken }),
        10 => Just(Step::RunWoken),
        6 => any::<usize>().prop_map(Step::Drop),
        15 => (1usize..6).prop_map(Step::Deliver),
        10 => Just(Step::PollReceiver),
        8 => Just(Step::Ring),
        3 => any::<bool>().prop_map(Step::Hold),
        4 => Just(Step::DropMessage),
        3 => Just(Step::RefuseSend),
        2 => any::<bool>().prop_map(Step::Storm),
        2 => any::<bool>().prop_map(|drop| Step::Driver { drop }),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    let far = any::<bool>;
    prop_oneof![
        40 => benign(),
        1 => Just(Step::FailSend),
        1 => far().prop_map(|far| Step::Flush { far }),
        1 => far().prop_map(|far| Step::ShutDown { far }),
        1 => Just(Step::BreakQueue),
        1 => far().prop_map(|soon| Step::Close { soon }),
        1 => Just(Step::DropHandle),
    ]
}

fn any_setup() -> impl Strategy<Value = Setup> {
    (1u32..6, 1u32..6, 3u32..12, 1u32..5).prop_map(|(depth, headers, slots, receive_depth)| Setup {
        depth,
        header_slots: headers,
        receive_slots: slots,
        receive_depth,
        max_connections: 1,
        handshake_timeout: LONG,
        ..Setup::default()
    })
}

impl World {
    fn take(&mut self, step: &Step) {
        self.rig.pass(Duration::from_micros(100));
        let (near, conn) = (self.rig.near, self.rig.conn);
        match *step {
            Step::Send => drop(self.send()),
            Step::Poll { which, woken } if !self.sends.is_empty() => {
                let which = which % self.sends.len();
                let task = &mut self.sends[which].task;
                if !woken || task.is_woken() {
                    task.poll();
                }
            }
            Step::Poll { .. } => {}
            Step::RunWoken => drop(self.run_woken()),
            Step::Drop(which) if !self.sends.is_empty() => {
                let which = which % self.sends.len();
                drop(self.sends.swap_remove(which));
            }
            Step::Drop(_) => {}
            Step::Deliver(n) => drop(self.rig.net.deliver(n)),
            Step::PollReceiver => self.rig.poll_receiver(),
            Step::Ring => drop(self.reactor.ring()),
            Step::Hold(on) => self.rig.drop_at_once = !on,
            Step::DropMessage => drop(self.rig.held.pop()),
            Step::RefuseSend => self.rig.net.refuse_sends(near, &[PostRefused::Again]),
            Step::Storm(on) => {
                let refused = on.then_some(PostRefused::Again);
                self.rig.net.refuse_all_sends(near, refused);
            }
            Step::Driver { drop: true } => self.driver = None,
            Step::Driver { drop: false } => {
                self.driver = self.hub.upgrade().map(|hub| {
                    let future: Pin<Box<dyn Future<Output = CloseReason>>> = Box::pin(drive(hub));
                    Task::new(future)
                });
            }
            Step::FailSend => drop(self.rig.net.fail_send(conn, libc::EIO)),
            Step::Flush { far } if far && !self.is_accepted() => {}
            Step::Flush { far } => self
                .rig
                .net
                .flush(conn + usize::from(far), libc::ECONNRESET),
            Step::ShutDown { far } if far && !self.is_accepted() => {}
            Step::ShutDown { far } => self.rig.net.shut_down(conn + usize::from(far)),
            Step::BreakQueue => self.rig.net.break_cq(near, libc::EOVERFLOW),
            Step::Close { soon } => {
                let deadline = if soon { self.rig.now() } else { far_future() };
                if let Some(hub) = self.hub.upgrade() {
                    hub.with(|engine, after| engine.begin_close(deadline, after));
                }
            }
            Step::DropHandle => self.handle = None,
        }
    }

    /// The far end of the connection exists.
    fn is_accepted(&self) -> bool {
        let mut said = self.rig.said.iter();
        said.any(|event| {
            matches!(
                event,
                ReceiveEvent::Connection(_, ConnectionEvent::Connected(_))
            )
        })
    }

    /// No fault any more, and nobody holds a message.
    fn heal(&mut self) {
        self.rig.net.refuse_all_sends(self.rig.near, None);
        self.rig.drop_at_once = true;
        self.rig.held.clear();
        self.driver = None;
    }
}

proptest! {
    #![proptest_config(crate::soak::cases(100, 3000))]

    /// While the connection lives, every send whose future lives resolves, though futures are
    /// polled only when woken.
    #[test]
    fn no_wake_up_is_lost(setup in any_setup(), steps in prop::collection::vec(benign(), 1..120)) {
        let mut world = World::connected(setup);
        for step in &steps {
            world.take(step);
            world.check();
        }
        world.heal();
        world.settle();
        for send in &world.sends {
            prop_assert!(
                matches!(send.task.output, Some(Ok(_))),
                "{} of slot {}: {:?}",
                send.key,
                send.slot,
                send.task.output
            );
        }
        world.check();
        let (s, f) = world.stats();
        // Those that nobody waits for need somebody who drives.
        if s.in_flight > 0 {
            prop_assert_eq!(s.in_flight, f.detached_in_flight);
            world.polled();
            world.settle();
            world.move_all();
            let mut driver = Task::new(drive(world.arc()));
            for _ in 0..50 {
                driver.poll_if_woken();
                world.move_all();
            }
            prop_assert_eq!(world.stats().0.in_flight, 0);
            drop(driver);
        }
        world.end();
    }

    /// Whatever happens, nothing is lost, freed too early or reported twice; and the end of the
    /// endpoint resolves everything.
    #[test]
    fn every_buffer_has_one_owner_to_the_end(
        setup in any_setup(),
        steps in prop::collection::vec(any_step(), 1..120),
    ) {
        let mut world = World::new(setup);
        for step in &steps {
            world.take(step);
            world.check();
        }
        world.heal();
        world.settle();
        world.check();
        world.handle = None;
        world.run_woken();
        for send in &world.sends {
            prop_assert!(send.task.output.is_some(), "{} hangs", send.key);
        }
        world.check();
        world.end();
    }
}

#[test]
fn wakers_may_call_back() {
    // A waker that looks at the endpoint when it is called, as an executor that polls at once
    // would.
    struct Nosy(std::sync::Weak<Driver<Core>>, AtomicBool);
    impl Wake for Nosy {
        fn wake(self: Arc<Self>) {
            if let Some(hub) = self.0.upgrade() {
                hub.with(|engine, _| engine.stats());
            }
            self.1.store(true, Ordering::SeqCst);
        }
    }
    impl Drop for Nosy {
        fn drop(&mut self) {
            if let Some(hub) = self.0.upgrade() {
                hub.with(|engine, _| engine.stats());
            }
        }
    }
    let mut world = World::connected(setup());
    let index = world.send().expect("a payload is free");
    for _ in 0..3 {
        let nosy = Arc::new(Nosy(world.hub.clone(), AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&nosy));
        let future = world.sends[index].task.future.as_mut();
        assert!(future.poll(&mut Context::from_waker(&waker)).is_pending());
        drop(waker);
        world.reactor.ring();
        assert!(nosy.1.load(Ordering::SeqCst));
    }
    world.rig.net.deliver(usize::MAX);
    world.reactor.ring();
    world.sends[index].task.poll();
    assert!(world.sends[index].task.output.is_some());
    world.end();
}

#[test]
fn a_message_that_can_never_be_sent_is_refused_with_its_payload() {
    let mut world = World::connected(setup());
    let hub = world.arc();
    let buffer = world.rig.payloads.try_acquire().expect("free").freeze(8);
    let mut task = Task::new(SendOn::new(&hub, buffer.into(), &[0; 4096]));
    task.poll();
    let Some(Err(failed)) = &task.output else {
        panic!("{:?}", task.output)
    };
    assert!(matches!(
        failed.why,
        SendFailure::Refused(SendErrorKind::HeaderTooLong { .. })
    ));
    assert_eq!(failed.given.as_ref().map(Payload::len_bytes), Some(8));
    world.rig.net.refuse_sends(
        world.rig.near,
        &[PostRefused::Errno(FabricErrno::new(libc::EPERM))],
    );
    world.polled();
    assert!(matches!(
        &world.sends[0].task.output,
        Some(Err(Failed {
            why: SendFailure::Refused(SendErrorKind::Fabric(_)),
            ..
        }))
    ));
    drop((task, hub));
    world.check();
    world.end();
}
