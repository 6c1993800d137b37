//! Endpoints as futures, driven by tokio: on one thread and on several, over real tcp, in one
//! process and in two.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fabricast::buffer::SharedBufferManager;
use fabricast::endpoint::{CloseReason, ReceiveConfig, SendConfig};
use fabricast::future::{
    AsyncSendEndpoint, EndpointFds, Events, Executor, Failed, Reactor, TokioReactor,
};
use fabricast::{
    ConnectionEvent, Domain, PeerAddr, ReceiveEndpoint, ReceiveEvent, SendEndpointZeroCopy,
};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use crate::common;
use crate::common::child::{self, Child};
use crate::common::{
    SOON, Watchdog, after, any_port, buffer, domain, millis, pattern, pool, small_receiver,
};

// ---- tools --------------------------------------------------------------------------------------

fn one_thread() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

fn two_threads() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}

fn listen(domain: &Arc<Domain>, config: ReceiveConfig) -> Events<ReceiveEndpoint> {
    let receiver = ReceiveEndpoint::listen(domain, any_port(), config).expect("listens");
    Events::new(receiver, &TokioReactor::current()).expect("watched")
}

fn connect(domain: &Arc<Domain>, to: PeerAddr, config: SendConfig) -> AsyncSendEndpoint {
    let sender = SendEndpointZeroCopy::connect(domain, to, config).expect("begins to connect");
    AsyncSendEndpoint::new(sender, &TokioReactor::current()).expect("watched")
}

/// Receives until so many connections have said goodbye; how many messages came. Each header says
/// whose it is, and its number.
async fn receive(mut receiver: Events<ReceiveEndpoint>, senders: usize) -> u64 {
    let (mut count, mut ended) = (0, 0);
    let mut next = std::collections::HashMap::new();
    while ended < senders {
        match receiver.next().await.expect("no end").expect("no error") {
            ReceiveEvent::Message(message) => {
                let (whose, number) = message.header().split_at(8);
                let number = u64::from_le_bytes(number.try_into().expect("8 bytes"));
                let expected = next.entry(whose.to_vec()).or_insert(0);
                assert_eq!(number, *expected, "out of order");
                assert_eq!(message.payload(), pattern(number, message.payload().len()));
                *expected += 1;
                count += 1;
            }
            ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(reason)) => {
                assert_eq!(reason, CloseReason::Finished);
                ended += 1;
            }
            _ => {}
        }
    }
    count
}

async fn send(
    sender: AsyncSendEndpoint,
    pool: SharedBufferManager,
    whose: u64,
    count: u64,
    len: usize,
) {
    for i in 0..count {
        let payload = loop {
            match pool.try_acquire() {
                Some(mut free) => {
                    free[..len].copy_from_slice(&pattern(i, len));
                    break free.freeze(len);
                }
                None => tokio::task::yield_now().await,
            }
        };
        let header = [whose.to_le_bytes(), i.to_le_bytes()].concat();
        let back = sender.send(payload, &header).await.expect("sent");
        assert_eq!(back.len_bytes(), len);
    }
}

async fn all(tasks: Vec<JoinHandle<()>>) {
    for task in tasks {
        task.await.expect("no panic");
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

// ---- tasks on one endpoint ----------------------------------------------------------------------

/// Four tasks send on one connection, with and without a driver.
async fn four_tasks(domain: Arc<Domain>, with_driver: bool, depth: u32) {
    let receiver = listen(&domain, small_receiver());
    let sender = connect(
        &domain,
        receiver.endpoint().local_addr(),
        common::sending().outgoing(|out| out.depth(depth)),
    );
    let pool = pool(&domain, 16, 16 * 1024);
    let receiving = tokio::spawn(receive(receiver, 1));
    let driver = with_driver.then(|| tokio::spawn(sender.driver()));
    let tasks =
        (0..4).map(|task| tokio::spawn(send(sender.clone(), pool.clone(), task, 100, 10_000)));
    all(tasks.collect()).await;
    assert_eq!(sender.close(after(SOON)).await, CloseReason::Finished);
    assert_eq!(receiving.await.expect("no panic"), 400);
    if let Some(driver) = driver {
        assert_eq!(driver.await.expect("no panic"), CloseReason::Finished);
    }
    assert_eq!(sender.future_stats().resolved, 400);
    assert_eq!(pool.free_count(), pool.slots());
    assert_accounts(&sender);
}

#[test]
fn tasks_of_one_thread_send_on_one_endpoint() {
    let _dog = Watchdog::new("tasks_of_one_thread");
    let Some(domain) = domain() else { return };
    for (with_driver, depth) in [(false, 64), (true, 64), (false, 1), (true, 2)] {
        one_thread().block_on(four_tasks(Arc::clone(&domain), with_driver, depth));
    }
}

#[test]
fn tasks_of_several_threads_send_on_one_endpoint() {
    let _dog = Watchdog::new("tasks_of_several_threads");
    let Some(domain) = domain() else { return };
    for (with_driver, depth) in [(false, 64), (true, 64), (false, 1), (true, 2)] {
        let runtime = two_threads();
        let task = runtime.spawn(four_tasks(Arc::clone(&domain), with_driver, depth));
        runtime.block_on(task).expect("no panic");
    }
}

#[test]
fn several_endpoints_share_a_runtime() {
    let _dog = Watchdog::new("several_endpoints");
    let Some(domain) = domain() else { return };
    let runtime = two_threads();
    let tasks = async move {
        let receiver = listen(
            &domain,
            small_receiver().incoming(|incoming| incoming.slots(128)),
        );
        let to = receiver.endpoint().local_addr();
        let receiving = tokio::spawn(receive(receiver, 5));
        let mut tasks = Vec::new();
        for whose in 0..5 {
            let sender = connect(&domain, to, common::sending());
            let pool = pool(&domain, 4, 4096);
            tasks.push(tokio::spawn(async move {
                send(sender.clone(), pool, whose, 100, 3_000).await;
                assert_eq!(sender.close(after(SOON)).await, CloseReason::Finished);
            }));
        }
        all(tasks).await;
        assert_eq!(receiving.await.expect("no panic"), 500);
    };
    runtime.block_on(tasks);
}

#[test]
fn two_processes_talk_by_tokio() {
    if let Some(role) = child::role() {
        assert_eq!(role, "sender");
        let domain = domain().expect("the parent has one");
        return one_thread().block_on(async {
            let to: PeerAddr = child::argument().parse().expect("an address");
            let sender = connect(&domain, to, common::sending());
            send(sender.clone(), pool(&domain, 8, 16 * 1024), 1, 300, 10_000).await;
            assert_eq!(sender.close(after(SOON)).await, CloseReason::Finished);
        });
    }
    let _dog = Watchdog::new("two_processes_tokio");
    let Some(domain) = domain() else { return };
    two_threads().block_on(async {
        let receiver = listen(&domain, small_receiver());
        let mut peer = Child::start(
            "two_processes_talk_by_tokio",
            "sender",
            receiver.endpoint().local_addr(),
        );
        assert_eq!(receive(receiver, 1).await, 300);
        peer.finish(SOON);
    });
}

// ---- the end of things --------------------------------------------------------------------------

#[test]
fn aborted_tasks_lose_no_buffer() {
    let _dog = Watchdog::new("aborted_tasks");
    let Some(domain) = domain() else { return };
    two_threads().block_on(async {
        let config = ReceiveConfig::default()
            .incoming(|incoming| incoming.max_message(8 << 20).slots(6).credits(3))
            .connection(|c| c.max_connections(1));
        // A domain of its own: on libfabric 2.x a sender's poll drives whatever else its domain
        // has.
        let apart = common::domain().expect("there is one already");
        let receiver = listen(&apart, config);
        let sender = connect(
            &domain,
            receiver.endpoint().local_addr(),
            common::sending().outgoing(|out| out.depth(2)),
        );
        let pool = pool(&domain, 5, BIG);
        let receiving = tokio::spawn(drain(receiver, millis(1)));
        let driver = tokio::spawn(sender.driver());
        let mut rounds = 0..300_u64;
        while let Some(round) = rounds.next()
            && (round < 30 || sender.future_stats().detached == 0)
        {
            let tasks: Vec<_> = (0..4)
                .map(|_| tokio::spawn(send_for_ever(sender.clone(), pool.clone())))
                .collect();
            tokio::time::sleep(Duration::from_micros(100 * (round % 30))).await;
            for task in tasks {
                task.abort();
                assert!(task.await.expect_err("aborted").is_cancelled());
            }
            assert_accounts(&sender);
        }
        // What was posted goes on, by the driver.
        tokio::time::timeout(SOON, async {
            while pool.free_count() < pool.slots() {
                tokio::time::sleep(millis(1)).await;
            }
        })
        .await
        .expect("every buffer is back");
        let f = sender.future_stats();
        assert_eq!((f.unresolved, f.detached_in_flight, f.waiting), (0, 0, 0));
        assert!(f.detached > 0, "{f:?}");
        assert_eq!(sender.close(after(SOON)).await, CloseReason::Finished);
        assert_eq!(driver.await.expect("no panic"), CloseReason::Finished);
        assert!(receiving.await.expect("no panic") > 0);
    });
}

/// Larger than the buffers of a pair of sockets, so that a send is in flight until the receiver has
/// read some of it.
const BIG: usize = 8_000_000;

async fn send_for_ever(sender: AsyncSendEndpoint, pool: SharedBufferManager) {
    loop {
        match pool.try_acquire() {
            Some(free) => drop(sender.send(free.freeze(BIG), b"h").await.expect("sent")),
            None => tokio::task::yield_now().await,
        }
    }
}

/// Receives until the first connection has ended, with a pause after each message.
async fn drain(mut receiver: Events<ReceiveEndpoint>, pause: Duration) -> u64 {
    let mut count = 0;
    loop {
        match receiver.next().await.expect("no end").expect("no error") {
            ReceiveEvent::Message(_) => {
                count += 1;
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                }
            }
            ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(_)) => return count,
            _ => {}
        }
    }
}

#[test]
fn tasks_hear_of_a_peer_that_is_killed() {
    if let Some(role) = child::role() {
        assert_eq!(role, "receiver");
        let domain = domain().expect("the parent has one");
        return one_thread().block_on(async {
            let mut receiver = listen(&domain, small_receiver());
            child::tell(format!("listening {}", receiver.endpoint().local_addr()));
            while let Some(Ok(_)) = receiver.next().await {}
        });
    }
    let _dog = Watchdog::new("a_peer_that_is_killed");
    let Some(domain) = domain() else { return };
    two_threads().block_on(async {
        let mut peer = Child::start("tasks_hear_of_a_peer_that_is_killed", "receiver", "");
        let to = peer.expect("listening", SOON).parse().expect("an address");
        let sender = connect(&domain, to, common::sending());
        let pool = pool(&domain, 64, 60_000);
        sender.connected().await.expect("connects");
        peer.stop();
        let tasks: Vec<_> = (0..40)
            .map(|_| {
                let payload = buffer(&pool, &pattern(1, 50_000));
                tokio::spawn(sender.send(payload, b"h"))
            })
            .collect();
        while sender.future_stats().waiting == 0 {
            tokio::time::sleep(millis(1)).await;
        }
        peer.kill();
        let mut failed = 0;
        for task in tasks {
            match task.await.expect("no panic") {
                Ok(payload) => assert_eq!(payload.len_bytes(), 50_000),
                Err(Failed { given, .. }) => {
                    let payload = given.expect("the payload is back");
                    assert_eq!(payload.len_bytes(), 50_000);
                    failed += 1;
                }
            }
        }
        assert!(failed > 0);
        assert!(matches!(
            sender.closed().await,
            CloseReason::PeerLost { .. }
        ));
        assert_accounts(&sender);
    });
}

#[test]
fn dropping_the_last_handle_ends_the_driver() {
    let _dog = Watchdog::new("dropping_the_last_handle");
    let Some(domain) = domain() else { return };
    one_thread().block_on(async {
        let receiver = listen(&domain, small_receiver());
        let sender = connect(&domain, receiver.endpoint().local_addr(), common::sending());
        let receiving = tokio::spawn(drain(receiver, Duration::ZERO));
        let driver = tokio::spawn(sender.driver());
        sender.connected().await.expect("connects");
        drop(sender);
        assert_eq!(
            driver.await.expect("no panic"),
            CloseReason::ClosedByDeadline
        );
        assert_eq!(receiving.await.expect("no panic"), 0);
    });
}

#[test]
fn descriptors_are_gone_with_the_endpoint() {
    const NAME: &str = "descriptors_are_gone_with_the_endpoint";
    if child::role().is_none() {
        // In a process of its own: descriptors are counted.
        let _dog = Watchdog::new(NAME);
        return Child::start(NAME, "count", "").finish(SOON);
    }
    let Some(domain) = domain() else { return };
    one_thread().block_on(async {
        let round = async || {
            let receiver = listen(&domain, small_receiver());
            let sender = connect(&domain, receiver.endpoint().local_addr(), common::sending());
            let receiving = tokio::spawn(drain(receiver, Duration::ZERO));
            sender.connected().await.expect("connects");
            assert_eq!(sender.close(after(SOON)).await, CloseReason::Finished);
            receiving.await.expect("no panic");
        };
        round().await;
        let before = common::fd_count();
        for _ in 0..5 {
            round().await;
        }
        common::assert_fds_back(before, SOON, || {});
    });
}

// ---- waking -------------------------------------------------------------------------------------

/// Counts the polls of a future.
async fn counted<F: Future>(count: &AtomicU64, future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| {
        count.fetch_add(1, Ordering::Relaxed);
        future.as_mut().poll(cx)
    })
    .await
}

#[test]
fn an_idle_endpoint_wakes_no_task() {
    let _dog = Watchdog::new("an_idle_endpoint_wakes_no_task");
    let Some(domain) = domain() else { return };
    one_thread().block_on(async {
        let mut receiver = listen(&domain, small_receiver());
        let sender = connect(&domain, receiver.endpoint().local_addr(), common::sending());
        let connecting = tokio::spawn(sender.connected());
        drop(receiver.next().await.expect("no end").expect("connected"));
        connecting.await.expect("no panic").expect("connects");
        let polls = AtomicU64::new(0);
        let turns = sender.future_stats().turns;
        let begun = std::time::Instant::now();
        let silence = async {
            let mut closed = std::pin::pin!(counted(&polls, sender.closed()));
            let mut event = std::pin::pin!(counted(&polls, receiver.next()));
            let mut over = std::pin::pin!(tokio::time::sleep(millis(600)));
            std::future::poll_fn(|cx| {
                assert!(closed.as_mut().poll(cx).is_pending());
                assert!(event.as_mut().poll(cx).is_pending());
                over.as_mut().poll(cx)
            })
            .await;
        };
        silence.await;
        let (polls, turns) = (polls.into_inner(), sender.future_stats().turns - turns);
        // On a machine that stood still meanwhile, it was longer, and there was a heartbeat more.
        let most = 24 * (1 + begun.elapsed().as_secs());
        assert!(
            polls <= most && turns <= most,
            "{polls} polls, {turns} turns in {:?} of silence",
            begun.elapsed()
        );
    });
}

#[test]
fn a_message_costs_a_bounded_number_of_turns() {
    let _dog = Watchdog::new("turns_of_a_message");
    let Some(domain) = domain() else { return };
    one_thread().block_on(async {
        let receiver = listen(&domain, small_receiver());
        let sender = connect(&domain, receiver.endpoint().local_addr(), common::sending());
        let pool = pool(&domain, 4, 8192);
        let receiving = tokio::spawn(receive(receiver, 1));
        let polls = AtomicU64::new(0);
        counted(&polls, send(sender.clone(), pool, 0, 500, 4_000)).await;
        assert_eq!(sender.close(after(SOON)).await, CloseReason::Finished);
        receiving.await.expect("no panic");
        let (polls, stats) = (polls.into_inner(), sender.future_stats());
        assert!(
            polls <= 500 * 10 && stats.turns <= 500 * 20,
            "{polls} polls, {stats:?}"
        );
        println!("500 messages, one after the other: {polls} polls, {stats:?}");
    });
}

#[test]
fn a_watch_without_descriptors_is_a_timer() {
    let runtime = two_threads();
    let reactor = TokioReactor::new(runtime.handle().clone());
    let mut watch = reactor.watch(EndpointFds::none()).expect("a timer");
    // Waited for outside of the runtime, which wakes all the same.
    let executor = Executor::new().expect("an eventfd");
    for time in [20, 1, 30] {
        let at = after(millis(time));
        // A timer may come early where the one before was set for an earlier time; never late by
        // much.
        while std::time::Instant::now() < at {
            executor.block_on(std::future::poll_fn(|cx| watch.poll_ready(cx, at)));
        }
        assert!(at.elapsed() < SOON);
    }
    let polls = executor.stats().polls;
    assert!(polls <= 20, "{polls} polls");
}
