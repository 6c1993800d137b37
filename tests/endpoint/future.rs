//! Endpoints as futures, without a runtime: over real tcp, in one process and in two.

use std::cell::Cell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use fabricast::buffer::{Payload, SharedBufferManager};
use fabricast::endpoint::{
    AcceptPolicy, Access, BufferedConfig, CloseReason, Destination, PublishConfig, ReceiveConfig,
    ReconnectPolicy, SendConfig, SendErrorKind, SubscribeConfig, WindowDescriptor, WindowEvent,
};
use fabricast::error::{CompletionError, Error};
use fabricast::fabric::AccessEnds;
use fabricast::future::{
    AsyncSendEndpoint, EndpointFds, Events, Executor, Failed, Reactor, SendFailure, Watch,
};
use fabricast::{
    BufferedEvent, ConnectionEvent, Domain, PeerAddr, PublishEndpoint, PublishEvent,
    ReceiveEndpoint, ReceiveEvent, SendEndpointBuffered, SendEndpointZeroCopy, SubscribeEndpoint,
    SubscribeEvent,
};

use crate::common;
use crate::common::child::{self, Child};
use crate::common::{
    SOON, Watchdog, after, any_port, buffer, domain, millis, pattern, pool, small_receiver,
};

// ---- tools --------------------------------------------------------------------------------------

/// Runs several futures in one task, each polled whenever the task is.
struct All<'a>(Vec<Option<Pin<Box<dyn Future<Output = ()> + 'a>>>>);

impl<'a> All<'a> {
    fn new() -> Self {
        Self(Vec::new())
    }

    fn with(mut self, future: impl Future<Output = ()> + 'a) -> Self {
        self.0.push(Some(Box::pin(future)));
        self
    }
}

impl Future for All<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        for place in &mut self.0 {
            if place
                .as_mut()
                .is_some_and(|future| future.as_mut().poll(cx).is_ready())
            {
                *place = None;
            }
        }
        match self.0.iter().all(Option::is_none) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

fn listen(
    domain: &Arc<Domain>,
    config: ReceiveConfig,
    reactor: &dyn Reactor,
) -> Events<ReceiveEndpoint> {
    let receiver = ReceiveEndpoint::listen(domain, any_port(), config).expect("listens");
    Events::new(receiver, reactor).expect("watched")
}

fn connect(
    domain: &Arc<Domain>,
    to: PeerAddr,
    config: SendConfig,
    reactor: &dyn Reactor,
) -> AsyncSendEndpoint {
    let sender = SendEndpointZeroCopy::connect(domain, to, config).expect("begins to connect");
    AsyncSendEndpoint::new(sender, reactor).expect("watched")
}

/// A sender and a receiver of one executor.
struct Both {
    executor: Executor,
    sender: AsyncSendEndpoint,
    receiver: Events<ReceiveEndpoint>,
    pool: SharedBufferManager,
}

impl Both {
    fn with(domain: &Arc<Domain>, send: SendConfig, receive: ReceiveConfig) -> Self {
        Self::between(domain, domain, send, receive)
    }

    /// With a receiver in a domain of its own: on libfabric 2.x a poll drives all endpoints of its
    /// domain, so what is to stay in flight while nobody receives needs two.
    fn apart(domain: &Arc<Domain>, send: SendConfig, receive: ReceiveConfig) -> Self {
        let elsewhere = common::domain().expect("there is one already");
        Self::between(domain, &elsewhere, send, receive)
    }

    fn between(
        domain: &Arc<Domain>,
        receiving: &Arc<Domain>,
        send: SendConfig,
        receive: ReceiveConfig,
    ) -> Self {
        let executor = Executor::new().expect("an eventfd");
        let receiver = listen(receiving, receive, &executor);
        let sender = connect(domain, receiver.endpoint().local_addr(), send, &executor);
        let pool = pool(domain, 64, 64 * 1024);
        Self {
            executor,
            sender,
            receiver,
            pool,
        }
    }

    fn open(domain: &Arc<Domain>) -> Self {
        Self::with(domain, common::sending(), small_receiver())
    }
}

/// Takes messages and checks that they count up from 0, until the peer said goodbye.
async fn receive_counted(receiver: &mut Events<ReceiveEndpoint>) -> u64 {
    let mut count = 0;
    loop {
        match receiver.next().await.expect("no end").expect("no error") {
            ReceiveEvent::Message(message) => {
                assert_eq!(message.header(), count.to_string().as_bytes());
                assert_eq!(message.payload(), pattern(count, message.payload().len()));
                count += 1;
            }
            ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(reason)) => {
                assert_eq!(reason, CloseReason::Finished);
                return count;
            }
            _ => {}
        }
    }
}

async fn send_counted(
    sender: &AsyncSendEndpoint,
    pool: &SharedBufferManager,
    count: u64,
    len: usize,
) {
    for i in 0..count {
        let payload = buffer(pool, &pattern(i, len));
        let back = sender
            .send(payload, i.to_string().as_bytes())
            .await
            .expect("sent");
        assert_eq!(back.len_bytes(), len);
    }
}

fn assert_accounts(sender: &AsyncSendEndpoint) {
    let (s, f) = (sender.stats(), sender.future_stats());
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
}

/// Polls once with a waker that does nothing.
fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Waits without a future: as long as the condition is false, in real time, while the executor
/// runs.
async fn until(executor_ticks: &Ticker, mut done: impl FnMut() -> bool) {
    let limit = after(SOON);
    while !done() {
        assert!(Instant::now() < limit, "not within {SOON:?}");
        executor_ticks.tick().await;
    }
}

/// A timer of the executor: a watch without a descriptor.
struct Ticker(Mutex<Box<dyn Watch>>);

impl Ticker {
    fn new(reactor: &dyn Reactor) -> Self {
        Self(Mutex::new(
            reactor.watch(EndpointFds::none()).expect("a timer"),
        ))
    }

    async fn tick(&self) {
        self.sleep(millis(1)).await;
    }

    async fn sleep(&self, time: Duration) {
        let at = after(time);
        std::future::poll_fn(|cx| self.0.lock().expect("whole").poll_ready(cx, at)).await;
    }
}

// ---- sending and receiving ----------------------------------------------------------------------

#[test]
fn messages_go_through_and_payloads_come_back() {
    let _dog = Watchdog::new("messages_go_through");
    let Some(domain) = domain() else { return };
    for len in [0, 1, 100, 5_000, 60_000] {
        let Both {
            executor,
            sender,
            mut receiver,
            pool,
        } = Both::open(&domain);
        let mut received = 0;
        executor.block_on(
            All::new()
                .with(async {
                    let info = sender.connected().await.expect("connects");
                    assert_eq!(info.max_message, 64 * 1024);
                    send_counted(&sender, &pool, 50, len).await;
                    assert_eq!(sender.close(after(SOON)).await, CloseReason::Finished);
                })
                .with(async { received = receive_counted(&mut receiver).await }),
        );
        assert_eq!(received, 50);
        assert_eq!(pool.free_count(), pool.slots());
        assert_eq!(sender.future_stats().resolved, 50);
        assert_accounts(&sender);
    }
}

#[test]
fn sends_wait_for_room_by_themselves_whatever_is_scarce() {
    let _dog = Watchdog::new("sends_wait_for_room");
    let Some(domain) = domain() else { return };
    let one_slot = fabricast::buffer::HeaderSlotConfig {
        slots: 1,
        ..Default::default()
    };
    let scarce = [
        (
            common::sending().outgoing(|out| out.depth(1)),
            small_receiver(),
        ),
        (
            common::sending().outgoing(|out| out.headers(one_slot)),
            small_receiver(),
        ),
        (
            common::sending(),
            small_receiver().incoming(|incoming| incoming.credits(1)),
        ),
    ];
    for (send, receive) in scarce {
        let Both {
            executor,
            sender,
            mut receiver,
            pool,
        } = Both::with(&domain, send, receive);
        let mut received = 0;
        // All at once, in the order in which they are first polled.
        let mut sends = All::new();
        for i in 0..40_u64 {
            let send = sender.send(buffer(&pool, &pattern(i, 9_000)), i.to_string().as_bytes());
            sends = sends.with(async { drop(send.await.expect("sent")) });
        }
        let sends = async {
            sends.await;
            assert_eq!(sender.close(after(SOON)).await, CloseReason::Finished);
        };
        executor.block_on(
            All::new()
                .with(sends)
                .with(async { received = receive_counted(&mut receiver).await }),
        );
        assert_eq!(received, 40);
        assert!(sender.stats().would_block > 0, "nothing was scarce");
        assert_eq!(pool.free_count(), pool.slots());
        assert_accounts(&sender);
    }
}

/// The sending side of `one_sided_operations_are_futures`.
async fn use_windows(
    sender: AsyncSendEndpoint,
    pool: SharedBufferManager,
    told: std::sync::mpsc::Receiver<WindowDescriptor>,
    ticker: Ticker,
    by_card: bool,
) {
    sender.connected().await.expect("connected");
    let mut descriptor = None;
    until(&ticker, || {
        descriptor = told.try_recv().ok();
        descriptor.is_some()
    })
    .await;
    let window = sender
        .windows()
        .open(&descriptor.expect("just heard"))
        .expect("opened");
    let payload = sender
        .windows()
        .write(buffer(&pool, b"by a future"), window.at(4))
        .await
        .expect("written");
    assert_eq!(payload.len_bytes(), 11);
    drop(payload);
    let free = pool.free_count();
    let into = Destination::buffer(pool.try_acquire().expect("a buffer"), 11);
    let into = sender
        .windows()
        .read(into, window.at(4))
        .await
        .expect("read");
    assert_eq!(into.into_buffer().expect("a buffer")[..11], *b"by a future");
    // Posted and dropped: the destination goes back to the pool when the read is over.
    let into = Destination::buffer(pool.try_acquire().expect("a buffer"), 11);
    let mut reading = Box::pin(sender.windows().read(into, window.at(4)));
    let polled = poll_once(reading.as_mut());
    // A card may be done before the call that posted looks for it.
    let is_done = by_card && polled.is_ready();
    assert!(is_done || (polled.is_pending() && reading.is_posted()));
    drop((polled, reading));
    let refused = sender
        .windows()
        .write(buffer(&pool, b"beyond"), window.at(1 << 20))
        .await
        .expect_err("beyond its end");
    assert_eq!(refused.given.as_ref().map(Payload::len_bytes), Some(6));
    assert!(matches!(refused.why, SendFailure::Refused(_)));
    drop(refused);
    // A message lets the other side use a window of this one.
    let own = pool.try_acquire().expect("a buffer");
    let own = sender
        .windows()
        .expose(own, Access::all())
        .expect("exposed");
    let bytes = buffer(&pool, &own.descriptor().to_bytes());
    drop(sender.send(bytes, b"window").await.expect("sent"));
    assert_eq!(own.connection(), window.connection());
    // The other side takes its window back when it is done with this one.
    match sender.windows().event().await {
        Some(WindowEvent::Revoked { .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(
        sender
            .windows()
            .revoke(own, after(SOON))
            .expect("its own window")
    );
    match sender.windows().event().await {
        Some(WindowEvent::Released { memory, .. }) => {
            let buffer = memory.into_buffer_mut().expect("a buffer");
            assert_eq!(buffer[2..10], *b"and back");
        }
        other => panic!("{other:?}"),
    }
    until(&ticker, || pool.free_count() == free).await;
    assert_accounts(&sender);
    assert_eq!(sender.future_stats().detached, u64::from(!is_done));
    assert_eq!(sender.close(after(SOON)).await, CloseReason::Finished);
    assert!(sender.windows().event().await.is_none(), "all was told");
}

/// And the receiving side.
async fn offer_a_window(
    mut receiver: Events<ReceiveEndpoint>,
    tell: std::sync::mpsc::Sender<WindowDescriptor>,
) {
    let pool = receiver.endpoint().pool().clone();
    let mut window = None;
    loop {
        match receiver.next().await.expect("lives").expect("works") {
            ReceiveEvent::Connection(connection, ConnectionEvent::Connected(_)) => {
                let memory = pool.try_acquire().expect("a buffer");
                let exposed = receiver
                    .endpoint_mut()
                    .windows(connection)
                    .expose(memory, Access::all());
                let exposed = exposed.expect("exposed");
                tell.send(exposed.descriptor()).expect("the other lives");
                window = Some(exposed);
            }
            ReceiveEvent::Message(message) => {
                let descriptor = WindowDescriptor::parse(message.payload()).expect("ours");
                let theirs = receiver
                    .endpoint_mut()
                    .windows(message.connection())
                    .open(&descriptor)
                    .expect("opened");
                let payload = receiver
                    .write(buffer(&pool, b"and back"), theirs.at(2))
                    .await
                    .expect("written");
                assert_eq!(payload.len_bytes(), 8);
                let into = Destination::buffer(pool.try_acquire().expect("a buffer"), 8);
                let into = receiver.read(into, theirs.at(2)).await.expect("read");
                assert_eq!(into.into_buffer().expect("a buffer")[..8], *b"and back");
                let window = window.take().expect("exposed");
                assert!(
                    receiver
                        .endpoint_mut()
                        .windows(window.connection())
                        .revoke(window, after(SOON))
                        .expect("its own window")
                );
            }
            ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(reason)) => {
                return assert_eq!(reason, CloseReason::Finished);
            }
            _ => {}
        }
    }
}

/// Both sides write and read each other's windows; a read whose future is dropped is not lost.
#[test]
fn one_sided_operations_are_futures() {
    let _watchdog = Watchdog::new("one_sided_operations_are_futures");
    let Some(domain) = domain() else { return };
    let receive = small_receiver().connection(|c| c.windows(4));
    let both = Both::with(&domain, common::sending(), receive);
    let ticker = Ticker::new(&both.executor);
    let (tell, told) = std::sync::mpsc::channel();
    let by_card = domain.fabric().provider().memory.access_ends == AccessEnds::WithKey;
    let using = use_windows(both.sender, both.pool, told, ticker, by_card);
    let offering = offer_a_window(both.receiver, tell);
    both.executor
        .block_on(All::new().with(using).with(offering));
}

#[test]
fn threads_send_on_one_endpoint_each_with_an_executor_of_its_own() {
    let _dog = Watchdog::new("threads_send");
    let Some(domain) = domain() else { return };
    let executor = Executor::new().expect("an eventfd");
    let mut receiver = listen(&domain, small_receiver(), &executor);
    let sender = connect(
        &domain,
        receiver.endpoint().local_addr(),
        common::sending().outgoing(|out| out.depth(3)),
        &executor,
    );
    let pool = pool(&domain, 16, 8192);
    let threads: Vec<_> = (0..3_u64)
        .map(|thread| {
            let (sender, pool) = (sender.clone(), pool.clone());
            std::thread::spawn(move || {
                let executor = Executor::new().expect("an eventfd");
                executor.block_on(async {
                    for i in 0..200_u64 {
                        let payload = buffer(&pool, &pattern(i, 500));
                        let header = [thread.to_le_bytes(), i.to_le_bytes()].concat();
                        drop(sender.send(payload, &header).await.expect("sent"));
                    }
                });
            })
        })
        .collect();
    let mut next = [0; 3];
    executor.block_on(async {
        for _ in 0..600 {
            let message = receiver
                .next_message()
                .await
                .expect("no end")
                .expect("no error");
            let number = |at: usize| {
                u64::from_le_bytes(message.header()[at..at + 8].try_into().expect("8 bytes"))
            };
            let thread = number(0) as usize;
            assert_eq!(number(8), next[thread], "out of order");
            assert_eq!(message.payload(), pattern(next[thread], 500));
            next[thread] += 1;
        }
        // The endpoint's reactor is this executor: the other threads need it until their last send
        // is resolved.
        let ticks = Ticker::new(&executor);
        until(&ticks, || sender.future_stats().resolved == 600).await;
    });
    for thread in threads {
        thread.join().expect("no panic");
    }
    assert_eq!(next, [200; 3]);
    assert_eq!(pool.free_count(), pool.slots());
    assert_accounts(&sender);
}

#[test]
fn two_processes_talk_by_futures() {
    if let Some(role) = child::role() {
        assert_eq!(role, "sender");
        return send_as_child();
    }
    let _dog = Watchdog::new("two_processes");
    let Some(domain) = domain() else { return };
    let executor = Executor::new().expect("an eventfd");
    let mut receiver = listen(&domain, small_receiver(), &executor);
    let mut peer = Child::start(
        "two_processes_talk_by_futures",
        "sender",
        receiver.endpoint().local_addr(),
    );
    let received = executor.block_on(receive_counted(&mut receiver));
    assert_eq!(received, 300);
    assert_eq!(peer.expect("done", SOON), "300");
    peer.finish(SOON);
}

fn send_as_child() {
    let domain = domain().expect("the parent has one");
    let to: PeerAddr = child::argument().parse().expect("an address");
    let executor = Executor::new().expect("an eventfd");
    let sender = connect(&domain, to, common::sending(), &executor);
    let pool = pool(&domain, 8, 16 * 1024);
    executor.block_on(async {
        send_counted(&sender, &pool, 300, 10_000).await;
        assert_eq!(sender.close(after(SOON)).await, CloseReason::Finished);
    });
    child::tell(format!("done {}", sender.future_stats().resolved));
}

#[test]
fn messages_are_a_stream() {
    let _dog = Watchdog::new("messages_are_a_stream");
    let Some(domain) = domain() else { return };
    let Both {
        executor,
        sender,
        mut receiver,
        pool,
    } = Both::open(&domain);
    let mut headers = Vec::new();
    executor.block_on(
        All::new()
            .with(send_counted(&sender, &pool, 10, 10))
            .with(async {
                let mut messages = receiver.messages();
                while headers.len() < 10 {
                    let next = std::future::poll_fn(|cx| poll_next(Pin::new(&mut messages), cx));
                    let message = next.await.expect("no end").expect("no error");
                    headers.push(message.header().to_vec());
                }
            }),
    );
    let expect: Vec<_> = (0..10).map(|i: u64| i.to_string().into_bytes()).collect();
    assert_eq!(headers, expect);
}

/// Through the trait, as a user of streams calls it.
fn poll_next<S: futures_core::Stream>(
    stream: Pin<&mut S>,
    cx: &mut Context<'_>,
) -> Poll<Option<S::Item>> {
    stream.poll_next(cx)
}

#[test]
fn a_receiver_that_asks_answers_and_closes() {
    let _dog = Watchdog::new("a_receiver_that_asks");
    let Some(domain) = domain() else { return };
    let config = small_receiver().connection(|c| c.accept(AcceptPolicy::Ask));
    let Both {
        executor,
        sender,
        mut receiver,
        pool,
    } = Both::with(&domain, common::sending(), config);
    let late = connect(
        &domain,
        receiver.endpoint().local_addr(),
        common::sending(),
        &executor,
    );
    let mut arrived = Vec::new();
    executor.block_on(
        All::new()
            .with(async {
                send_counted(&sender, &pool, 3, 10).await;
                assert_eq!(sender.closed().await, CloseReason::Finished);
            })
            .with(async {
                let error = late.connected().await.expect_err("refused");
                assert!(
                    matches!(
                        error,
                        Error::NotConnected {
                            reason: CloseReason::Refused(_),
                            ..
                        }
                    ),
                    "{error}"
                );
            })
            .with(async {
                let (mut messages, mut requests) = (0, 0);
                while messages < 1 || requests < 2 {
                    match receiver.next().await.expect("no end").expect("no error") {
                        ReceiveEvent::Request(request) => {
                            requests += 1;
                            let answered = match requests {
                                1 => receiver.accept(request),
                                _ => receiver.endpoint_mut().refuse(request, [7, 8]),
                            };
                            assert!(answered);
                        }
                        ReceiveEvent::Message(_) => messages += 1,
                        _ => {}
                    }
                }
                // The peer may still send what it has begun: the goodbye waits for that.
                arrived = receiver.close(after(SOON)).await;
            }),
    );
    let end = arrived.last();
    assert!(
        matches!(
            end,
            Some(ReceiveEvent::Connection(
                _,
                ConnectionEvent::Disconnected(CloseReason::Finished)
            ))
        ),
        "{end:?}"
    );
}

#[test]
fn nobody_to_connect_to_is_told_to_all() {
    let _dog = Watchdog::new("nobody_to_connect_to");
    let Some(domain) = domain() else { return };
    let executor = Executor::new().expect("an eventfd");
    let address = listen(&domain, small_receiver(), &executor)
        .endpoint()
        .local_addr();
    let pool = pool(&domain, 4, 100);
    let sender = connect(&domain, address, common::sending(), &executor);
    executor.block_on(async {
        let failed = sender
            .send(buffer(&pool, b"abc"), b"")
            .await
            .expect_err("nobody");
        assert!(
            matches!(failed.why, SendFailure::Refused(SendErrorKind::Closed(_))),
            "{failed}"
        );
        assert_eq!(failed.given.as_ref().map(Payload::len_bytes), Some(3));
        let connected = sender.connected().await;
        assert!(matches!(connected, Err(Error::NotConnected { .. })));
        assert_eq!(Some(sender.closed().await), sender.close_reason());
    });
    assert_eq!(pool.free_count(), 4);
}

// ---- cancelling ---------------------------------------------------------------------------------

#[test]
fn dropped_sends_go_on_and_lose_nothing() {
    let _dog = Watchdog::new("dropped_sends");
    let Some(domain) = domain() else { return };
    // More than the buffers of a pair of sockets, together.
    const LEN: usize = 8_000_000;
    let receive = ReceiveConfig::default()
        .incoming(|incoming| incoming.max_message(8 << 20).slots(6).credits(2))
        .connection(|c| c.max_connections(1));
    let Both {
        executor,
        sender,
        mut receiver,
        ..
    } = Both::apart(&domain, common::sending(), receive);
    let pool = pool(&domain, 6, LEN);
    let mut received = 0;
    executor.block_on(
        All::new()
            .with(async {
                sender.connected().await.expect("connects");
                for i in 0..16_u64 {
                    let payload = buffer(&pool, &pattern(i, LEN));
                    let mut send = Box::pin(sender.send(payload, i.to_string().as_bytes()));
                    // Polled until it is posted, then dropped; every third is waited for, and so
                    // the pool never runs out.
                    if i % 3 == 0 {
                        drop(send.await.expect("sent"));
                        continue;
                    }
                    std::future::poll_fn(|cx| match send.as_mut().poll(cx) {
                        Poll::Pending if !send.is_posted() => Poll::Pending,
                        _ => Poll::Ready(()),
                    })
                    .await;
                }
                // Never polled, and never made.
                drop(sender.send(buffer(&pool, b"never"), b"never"));
                assert_eq!(sender.close(after(SOON)).await, CloseReason::Finished);
            })
            .with(async { received = receive_counted(&mut receiver).await }),
    );
    assert_eq!(received, 16, "what was posted arrives");
    assert_eq!(pool.free_count(), pool.slots());
    let (s, f) = (sender.stats(), sender.future_stats());
    assert_eq!((s.posted, s.completed), (16, 16));
    assert_eq!(f.resolved + f.detached, 16);
    assert!(f.resolved >= 6 && f.detached >= 1, "{f:?}");
    assert_eq!(f.detached_in_flight, 0);
    assert_accounts(&sender);
}

#[test]
fn a_driver_completes_what_nobody_waits_for() {
    let _dog = Watchdog::new("a_driver_completes");
    let Some(domain) = domain() else { return };
    let Both {
        executor,
        sender,
        mut receiver,
        pool,
    } = Both::open(&domain);
    let ticks = Ticker::new(&executor);
    let driver = sender.driver();
    let watched = sender.clone();
    executor.block_on(
        All::new()
            .with(async { assert_eq!(driver.await, CloseReason::ClosedByDeadline) })
            .with(async {
                // Moved in, and dropped with the connection when all is done.
                let sender = sender;
                sender.connected().await.expect("connects");
                for i in 0..5_u64 {
                    let send = sender.send(buffer(&pool, &pattern(i, 30_000)), b"x");
                    let mut send = pin!(send);
                    assert!(poll_once(send.as_mut()).is_pending() || !send.is_posted());
                }
                until(&ticks, || pool.free_count() == pool.slots()).await;
                assert_eq!(watched.future_stats().detached_in_flight, 0);
                drop(watched);
            })
            .with(async {
                while let Some(Ok(event)) = receiver.next().await {
                    if matches!(
                        event,
                        ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(_))
                    ) {
                        break;
                    }
                }
            }),
    );
}

#[test]
fn dropping_the_endpoint_gives_the_payloads_of_living_futures_back() {
    let _dog = Watchdog::new("dropping_the_endpoint");
    let Some(domain) = domain() else { return };
    // A peer in another domain that does nothing: what is posted beyond the socket's buffers stays
    // in flight.
    let elsewhere = common::domain().expect("there is one already");
    let executor = Executor::new().expect("an eventfd");
    let config = ReceiveConfig::default()
        .incoming(|incoming| incoming.max_message(4 << 20).slots(16).credits(8))
        .connection(|c| c.max_connections(1));
    let mut receiver = ReceiveEndpoint::listen(&elsewhere, any_port(), config).expect("listens");
    let sender = connect(
        &domain,
        receiver.local_addr(),
        common::sending().outgoing(|out| out.depth(8)),
        &executor,
    );
    let pool = pool(&domain, 12, 4 << 20);
    let mut connected = pin!(sender.connected());
    let mut events = Vec::new();
    common::drive("connected", SOON, || {
        receiver.poll(&mut events).expect("polls");
        // Its executor does not run: that it is polled is enough.
        poll_once(connected.as_mut()).is_ready()
    });
    let mut sends: Vec<_> = (0..12)
        .map(|_| {
            let payload = pool.try_acquire().expect("12 are free").freeze(4_000_000);
            Box::pin(sender.send(payload, b"big"))
        })
        .collect();
    // What fits into the sockets is done at once.
    let mut outcomes: Vec<Result<Payload, Failed<Payload>>> = Vec::new();
    sends.retain_mut(|send| match poll_once(send.as_mut()) {
        Poll::Ready(outcome) => {
            outcomes.push(outcome);
            false
        }
        Poll::Pending => true,
    });
    let (posted, waiting) = (sender.stats().posted, sender.future_stats().waiting);
    assert!(
        posted >= 8 && posted + waiting == 12,
        "{posted} posted, {waiting} wait"
    );
    drop(sender);
    let (mut canceled, mut refused) = (0, 0);
    outcomes.extend(sends.into_iter().map(|send| executor.block_on(send)));
    for outcome in &outcomes {
        match outcome {
            Ok(payload) => assert_eq!(payload.len_bytes(), 4_000_000),
            Err(Failed { given, why }) => {
                assert_eq!(given.as_ref().map(Payload::len_bytes), Some(4_000_000));
                match why {
                    SendFailure::Failed(CompletionError { .. }) => canceled += 1,
                    SendFailure::Refused(SendErrorKind::Closed(_)) => refused += 1,
                    other => panic!("{other}"),
                }
            }
        }
    }
    assert_eq!(refused, waiting);
    // A card needs nobody's program to deliver them.
    let alone = domain.fabric().provider().delivers_alone;
    assert!(
        alone || canceled > 0,
        "all of 32 MB fitted into the sockets"
    );
    assert_eq!(pool.free_count(), 0);
    drop(outcomes);
    assert_eq!(pool.free_count(), 12);
}

// ---- how often it wakes -------------------------------------------------------------------------

#[test]
fn an_idle_endpoint_sleeps() {
    let _dog = Watchdog::new("an_idle_endpoint");
    let Some(domain) = domain() else { return };
    let Both {
        executor,
        sender,
        mut receiver,
        ..
    } = Both::open(&domain);
    executor.block_on(
        All::new()
            .with(async { assert!(sender.connected().await.is_ok()) })
            .with(async { drop(receiver.next().await.expect("no end").expect("connected")) }),
    );
    let ticks = Ticker::new(&executor);
    let before = (executor.stats(), sender.future_stats());
    let begun = Instant::now();
    let mut closed = pin!(sender.closed());
    executor.block_on(async {
        let mut timer = pin!(ticks.sleep(millis(600)));
        let mut event = pin!(receiver.next());
        std::future::poll_fn(|cx| {
            assert!(closed.as_mut().poll(cx).is_pending());
            assert!(event.as_mut().poll(cx).is_pending());
            timer.as_mut().poll(cx)
        })
        .await;
    });
    let after = (executor.stats(), sender.future_stats());
    let (polls, sleeps) = (
        after.0.polls - before.0.polls,
        after.0.sleeps - before.0.sleeps,
    );
    // On a machine that stood still meanwhile, it was longer, and there was a heartbeat more.
    let times = 1 + begun.elapsed().as_secs();
    assert!(
        polls <= 12 * times && sleeps <= 12 * times,
        "{polls} polls, {sleeps} sleeps in {:?} of silence",
        begun.elapsed()
    );
    assert!(
        after.1.turns - before.1.turns <= 24 * times,
        "{:?}",
        after.1
    );
}

#[test]
fn a_message_costs_a_bounded_number_of_wake_ups() {
    let _dog = Watchdog::new("wake_ups_of_a_message");
    let Some(domain) = domain() else { return };
    let Both {
        executor,
        sender,
        mut receiver,
        pool,
    } = Both::open(&domain);
    let before = executor.stats();
    executor.block_on(
        All::new()
            .with(async {
                send_counted(&sender, &pool, 500, 4_000).await;
                assert_eq!(sender.close(after(SOON)).await, CloseReason::Finished);
            })
            .with(async { assert_eq!(receive_counted(&mut receiver).await, 500) }),
    );
    let stats = executor.stats();
    let (polls, sleeps) = (stats.polls - before.polls, stats.sleeps - before.sleeps);
    assert!(
        polls <= 500 * 10 && sleeps <= 500 * 10,
        "{polls} polls, {sleeps} sleeps for 500 messages"
    );
    println!(
        "500 messages, one after the other: {polls} polls, {sleeps} sleeps, {:?}",
        sender.future_stats()
    );
}

// ---- the executor -------------------------------------------------------------------------------

#[test]
fn the_executor_wakes_by_threads_and_by_time() {
    let executor = Executor::new().expect("an eventfd");
    let ticks = Ticker::new(&executor);
    let begin = Instant::now();
    executor.block_on(ticks.sleep(millis(20)));
    assert!(begin.elapsed() >= millis(20));
    let slot: Arc<Mutex<(bool, Option<Waker>)>> = Arc::default();
    let other = Arc::clone(&slot);
    let thread = std::thread::spawn(move || {
        std::thread::sleep(millis(20));
        let waker = {
            let mut slot = other.lock().expect("whole");
            slot.0 = true;
            slot.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    });
    let before = executor.stats();
    executor.block_on(std::future::poll_fn(|cx| {
        let mut slot = slot.lock().expect("whole");
        slot.1 = Some(cx.waker().clone());
        if slot.0 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }));
    thread.join().expect("no panic");
    let stats = executor.stats();
    assert!(stats.polls - before.polls <= 3, "{stats:?}");
}

#[test]
#[should_panic(expected = "block_on was called by the future that it runs")]
fn the_executor_does_not_nest() {
    let executor = Executor::new().expect("an eventfd");
    executor.block_on(async { executor.block_on(async {}) });
}

#[test]
fn futures_are_send_and_static() {
    fn check(_: impl Future + Send + 'static) {}
    fn check_type<T: Send + 'static>() {}
    fn check_shared<T: Send + Sync + Clone + 'static>() {}
    check_shared::<AsyncSendEndpoint>();
    check_type::<Events<ReceiveEndpoint>>();
    check_type::<Executor>();
    let Some(domain) = domain() else { return };
    let both = Both::open(&domain);
    check(both.sender.send(Payload::empty(), b""));
    check(both.sender.connected());
    check(both.sender.close(after(SOON)));
    check(both.sender.closed());
    check(both.sender.driver());
    check(both.receiver.close(after(SOON)));
}

/// A waker that counts.
struct Count(AtomicU64);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_task_is_woken_a_bounded_number_of_times_for_each_send() {
    let _dog = Watchdog::new("a_task_is_woken");
    let Some(domain) = domain() else { return };
    let Both {
        executor,
        sender,
        mut receiver,
        pool,
    } = Both::open(&domain);
    executor.block_on(
        All::new()
            .with(async { assert!(sender.connected().await.is_ok()) })
            .with(async { drop(receiver.next().await.expect("no end").expect("connected")) }),
    );
    let count = Arc::new(Count(AtomicU64::new(0)));
    let waker = Waker::from(Arc::clone(&count));
    let mut sends: Vec<_> = (0..16_u64)
        .map(|i| Box::pin(sender.send(buffer(&pool, &pattern(i, 60_000)), b"h")))
        .collect();
    let ticks = Ticker::new(&executor);
    let mut polls = 0;
    executor.block_on(async {
        let mut seen = u64::MAX;
        let mut event = None;
        let limit = after(SOON);
        while !sends.is_empty() {
            assert!(Instant::now() < limit, "{} left", sends.len());
            // As an executor: polled only when woken, the first time apart.
            if count.0.load(Ordering::Relaxed) != seen {
                seen = count.0.load(Ordering::Relaxed);
                polls += 1;
                sends.retain_mut(|send| {
                    send.as_mut()
                        .poll(&mut Context::from_waker(&waker))
                        .is_pending()
                });
            }
            std::future::poll_fn(|cx| {
                event = receiver.poll_event(cx).map(drop).is_ready().then_some(());
                Poll::Ready(())
            })
            .await;
            if event.is_none() {
                ticks.tick().await;
            }
        }
    });
    let woken = count.0.load(Ordering::Relaxed);
    // Each sign of life wakes whoever waits, as there is no driver; 16 sends have few of them.
    assert!(woken <= 16 * 16 * 2, "{woken} wake-ups, {polls} polls");
    assert_accounts(&sender);
}

// ---- taking an endpoint over --------------------------------------------------------------------

#[test]
fn an_endpoint_that_was_polled_before_is_taken_over() {
    let _dog = Watchdog::new("taken_over");
    let Some(domain) = domain() else { return };
    let mut pair = common::Pair::open(&domain);
    let executor = Executor::new().expect("an eventfd");
    // With a send in flight it is refused: the outcome would go to whoever has the same key.
    let payload = pair.buffer(b"first");
    pair.send(payload, b"0", 1);
    let sender = pair.sender.take().expect("open");
    let error = AsyncSendEndpoint::new(sender, &executor).expect_err("in flight");
    assert!(
        matches!(
            error,
            Error::Config {
                field: "endpoint",
                ..
            }
        ),
        "{error}"
    );
    let mut pair = common::Pair::open(&domain);
    let payload = pair.buffer(b"second");
    pair.exchange(payload, b"0", 1);
    let sender = pair.sender.take().expect("open");
    let receiver = pair.receiver.take().expect("open");
    let sender = AsyncSendEndpoint::new(sender, &executor).expect("watched");
    let receiver = Events::new(receiver, &executor).expect("watched");
    executor.block_on(
        All::new()
            .with(async {
                let info = sender.connected().await.expect("it is");
                assert_eq!(info.max_message, 64 * 1024);
                assert_eq!(sender.closed().await, CloseReason::Finished);
                assert!(sender.connected().await.is_err());
            })
            .with(async {
                // It knows connections that it has not reported itself.
                let arrived = receiver.close(after(SOON)).await;
                let end = arrived.last();
                assert!(
                    matches!(
                        end,
                        Some(ReceiveEvent::Connection(
                            _,
                            ConnectionEvent::Disconnected(CloseReason::Finished)
                        ))
                    ),
                    "{end:?}"
                );
            }),
    );
}

#[test]
fn closing_a_receiver_ends_at_the_deadline_whatever_the_peer_does() {
    let _dog = Watchdog::new("closing_a_receiver");
    let Some(domain) = domain() else { return };
    // A peer that nobody polls once it is connected.
    let elsewhere = common::domain().expect("there is one already");
    let executor = Executor::new().expect("an eventfd");
    let mut receiver = listen(&elsewhere, small_receiver(), &executor);
    let sender = connect(
        &domain,
        receiver.endpoint().local_addr(),
        common::sending(),
        &executor,
    );
    executor.block_on(
        All::new()
            .with(async { assert!(sender.connected().await.is_ok()) })
            .with(async { drop(receiver.next().await.expect("no end").expect("connected")) }),
    );
    let begin = Instant::now();
    let arrived = executor.block_on(receiver.close(after(millis(100))));
    assert!(begin.elapsed() >= millis(100));
    assert!(
        matches!(
            arrived.last(),
            Some(ReceiveEvent::Connection(
                _,
                ConnectionEvent::Disconnected(CloseReason::ClosedByDeadline)
            ))
        ),
        "{arrived:?}"
    );
}

#[test]
fn sends_wait_while_the_connection_is_made_again() {
    let _dog = Watchdog::new("made_again");
    let Some(domain) = domain() else { return };
    let executor = Executor::new().expect("an eventfd");
    let address = listen(&domain, small_receiver(), &executor)
        .endpoint()
        .local_addr();
    let config = common::sending().connection(|c| c.reconnect(ReconnectPolicy::fixed(millis(20))));
    let sender = connect(&domain, address, config, &executor);
    let pool = pool(&domain, 4, 100);
    let ticks = Ticker::new(&executor);
    let (mut receiver, attempts) = (None, Cell::new(0));
    executor.block_on(
        All::new()
            .with(async {
                let back = sender
                    .send(buffer(&pool, b"late"), b"h")
                    .await
                    .expect("sent");
                assert_eq!(back.len_bytes(), 4);
            })
            .with(async {
                while let Some(event) = sender.connection_event().await {
                    match event {
                        ConnectionEvent::Reconnecting { attempt, .. } => {
                            attempts.set(attempts.get() + 1);
                            assert_eq!(attempt, attempts.get(), "told of each");
                        }
                        ConnectionEvent::Connected(_) => break,
                        other => panic!("{other:?}"),
                    }
                }
            })
            .with(async {
                // Some attempts find nobody.
                until(&ticks, || attempts.get() >= 3).await;
                let again =
                    ReceiveEndpoint::listen(&domain, address, small_receiver()).expect("listens");
                let mut again = Events::new(again, &executor).expect("watched");
                let message = again
                    .next_message()
                    .await
                    .expect("no end")
                    .expect("no error");
                assert_eq!(message.payload(), b"late");
                receiver = Some(again);
            }),
    );
    assert_eq!(sender.close_reason(), None);
}

/// A publisher and a subscriber in one task, each driven by its stream.
#[test]
fn events_of_a_publisher_and_of_a_subscriber_are_streams() {
    let _dog = Watchdog::new("futures: publish");
    let domain = common::domain();
    let Some(domain) = domain else { return };
    let executor = Executor::new().expect("an eventfd");
    let pool = pool(&domain, 4, 64);
    let publisher = PublishEndpoint::listen(&domain, any_port(), PublishConfig::default());
    let mut publisher = Events::new(publisher.expect("listens"), &executor).expect("watched");
    let subscriber = SubscribeEndpoint::open(&domain, SubscribeConfig::default()).expect("opens");
    let mut subscriber = Events::new(subscriber, &executor).expect("watched");
    let address = publisher.endpoint().local_addr();
    let at = subscriber.endpoint_mut().connect(address).expect("begins");
    subscriber.endpoint_mut().subscribe(at, 7).expect("asked");
    let (mut ended, mut over) = (None, None);
    executor.block_on(
        All::new()
            .with(async {
                let payload = loop {
                    match publisher.next().await.expect("no end").expect("no error") {
                        PublishEvent::Subscribed { tag: 7, .. } => {
                            let payload = buffer(&pool, b"published");
                            let publication = publisher
                                .endpoint_mut()
                                .publish(7, payload, b"", 42)
                                .unwrap();
                            assert_eq!(publication.posted, 1);
                        }
                        PublishEvent::Published { key, payload, .. } => {
                            assert_eq!(key, 42);
                            break payload;
                        }
                        _ => {}
                    }
                };
                assert_eq!(payload.len_bytes(), 9);
                ended = Some(publisher.close(after(SOON)).await);
            })
            .with(async {
                loop {
                    let event = subscriber.next().await.expect("no end").expect("no error");
                    if let SubscribeEvent::Publication { message, .. } = event {
                        assert_eq!(message.payload(), b"published");
                        break;
                    }
                }
                over = Some(subscriber.close(after(SOON)).await);
            }),
    );
    let finished = ConnectionEvent::Disconnected(CloseReason::Finished);
    let last = ended.expect("closed").pop();
    assert!(
        matches!(&last, Some(PublishEvent::Connection(_, event)) if *event == finished),
        "{last:?}"
    );
    let last = over.expect("closed").pop();
    assert!(
        matches!(&last, Some(SubscribeEvent::Connection(_, event)) if *event == finished),
        "{last:?}"
    );
}

/// Where there is one connection, the stream ends with it, after everything was told.
#[test]
fn events_of_one_connection_end_with_it() {
    let _dog = Watchdog::new("futures: the end");
    let domain = common::domain();
    let Some(domain) = domain else { return };
    let executor = Executor::new().expect("an eventfd");
    let mut receiver = listen(&domain, small_receiver(), &executor);
    let address = receiver.endpoint().local_addr();
    let sender = SendEndpointBuffered::connect(&domain, address, BufferedConfig::default());
    let mut sender = Events::new(sender.expect("begins"), &executor).expect("watched");
    let (mut confirmed, mut received) = (0, 0);
    executor.block_on(
        All::new()
            .with(async {
                while let Some(event) = sender.next().await {
                    match event.expect("no error") {
                        BufferedEvent::Connection(ConnectionEvent::Connected(_)) => {
                            let pushed = sender.endpoint_mut().push(1, 0, b"small");
                            assert_eq!(pushed.expect("room"), 0);
                            sender.endpoint_mut().begin_close(after(SOON));
                        }
                        BufferedEvent::Completed { carried, .. } => confirmed += carried.messages(),
                        BufferedEvent::Connection(ConnectionEvent::Disconnected(reason)) => {
                            assert_eq!(reason, CloseReason::Finished);
                        }
                        _ => {}
                    }
                }
                assert!(sender.next().await.is_none(), "it stays at its end");
            })
            .with(async {
                loop {
                    match receiver.next().await.expect("no end").expect("no error") {
                        ReceiveEvent::Message(_) => received += 1,
                        ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(_)) => break,
                        _ => {}
                    }
                }
            }),
    );
    assert_eq!((confirmed, received), (1, 1));
}
