//! Connections whose endpoint a thread opens: over tcp, with an `fi_endpoint` that takes as long as
//! a test wants.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread::ThreadId;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::*;
use crate::buffer::{HeaderSlotConfig, HeaderSlotManager, Payload};
use crate::clock::Clock;
use crate::endpoint::ReceiveConfig;
use crate::endpoint::event::{ConnectionEvent, SendEvent};
use crate::endpoint::link::resolving_ep::ResolverInbox;
use crate::endpoint::reconnect::{ReconnectPolicy, Redial};
use crate::endpoint::send::core::SendCore;
use crate::endpoint::testing::rig::{LONG, Setup, send_settings};
use crate::fabric::hook::{OpenHook, PassiveHook, forget_port};
use crate::protocol::connection::CloseReason;
use crate::{ReceiveEndpoint, ReceiveEvent};

fn domain() -> Option<Arc<Domain>> {
    match Fabric::builder().provider("tcp").node("127.0.0.1").open() {
        Ok(fabric) => Some(fabric.open_domain().unwrap()),
        Err(error) => {
            println!("SKIPPED: {error}");
            None
        }
    }
}

/// An `fi_endpoint` for connections of this side that waits until it may go on.
#[derive(Default)]
struct Provider {
    may_go: Mutex<bool>,
    moved: Condvar,
    calls: Mutex<Vec<ThreadId>>,
    answered: AtomicUsize,
}

impl Provider {
    fn hook(domain: &Arc<Domain>, answer: i32) -> (Arc<Self>, OpenHook) {
        let this = Arc::new(Self::default());
        let provider = Arc::clone(&this);
        let hook = OpenHook::new(domain, move |info| {
            if !info.handle.is_null() {
                return 0;
            }
            assert!(!info.dest_addr.is_null(), "opened for a peer");
            provider
                .calls
                .lock()
                .unwrap()
                .push(std::thread::current().id());
            let may_go = provider.may_go.lock().unwrap();
            let waited = provider.moved.wait_while(may_go, |go| !*go).unwrap();
            drop(waited);
            provider.answered.fetch_add(1, Ordering::SeqCst);
            answer
        });
        (this, hook)
    }

    fn go(&self) {
        *self.may_go.lock().unwrap() = true;
        self.moved.notify_all();
    }

    fn calls(&self) -> usize {
        self.calls.lock().unwrap().len()
    }
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !done() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A sender whose link has its endpoints opened by a thread.
fn connect(domain: &Arc<Domain>, peer: &PeerAddr, timeout: Duration) -> SendCore<FabricLink> {
    let mut link = FabricLink::open(
        domain,
        QueueSizes::of_one(32, 8),
        &EndpointSettings::default(),
    )
    .unwrap();
    link.resolver = EpResolver::by_thread().unwrap();
    let headers = HeaderSlotManager::new(HeaderSlotConfig::default()).unwrap();
    headers.region().register(domain).unwrap();
    let setup = Setup {
        handshake_timeout: timeout,
        ..Setup::default()
    };
    let waiter = link.waiter();
    let settings = send_settings(&setup, &Arc::default(), &headers);
    SendCore::connect(
        link,
        waiter,
        Clock::system(),
        *peer,
        settings,
        Redial::new(ReconnectPolicy::off(), 0),
    )
    .unwrap()
}

fn nobody() -> PeerAddr {
    "127.0.0.1:9".parse().unwrap()
}

fn ended(events: &[SendEvent]) -> Option<CloseReason> {
    events.iter().find_map(|event| match event {
        SendEvent::Connection(ConnectionEvent::Disconnected(reason)) => Some(*reason),
        _ => None,
    })
}

/// Nothing of a link's, and no thread, keeps the domain open.
fn assert_left_alone(domain: &Arc<Domain>, before: usize) {
    wait_until("threads end", || domain.resolver().threads() == 0);
    wait_until("the domain is let go", || {
        Arc::strong_count(domain) == before
    });
}

#[test]
fn a_connection_goes_on_when_its_provider_has_found_the_peer() {
    let Some(domain) = domain() else { return };
    let (provider, _hook) = Provider::hook(&domain, 0);
    let config = ReceiveConfig::default()
        .incoming(|incoming| incoming.slots(16).credits(4))
        .connection(|c| c.max_connections(2));
    let mut receiver =
        ReceiveEndpoint::listen(&domain, "127.0.0.1:0".parse().unwrap(), config).unwrap();
    let mut core = connect(&domain, &receiver.local_addr(), LONG);
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    wait_until("asked for", || provider.calls() == 1);
    assert_ne!(
        provider.calls.lock().unwrap()[0],
        std::thread::current().id()
    );
    for _ in 0..1000 {
        core.poll(&mut sent).unwrap();
    }
    assert!(sent.is_empty() && core.conn().unwrap().as_raw().is_none());
    let wait = Arc::clone(core.wait());
    provider.go();
    while core.conn().expect("in time").as_raw().is_none() {
        // Ended by the answer, or never.
        wait.sleep(Instant::now() + LONG).unwrap();
        core.poll(&mut sent).unwrap();
    }
    wait_until("connected", || {
        core.poll(&mut sent).unwrap();
        receiver.poll(&mut received).unwrap();
        !sent.is_empty()
    });
    assert!(
        matches!(
            sent[..],
            [SendEvent::Connection(ConnectionEvent::Connected(_))]
        ),
        "{sent:?}"
    );
    assert!(core.conn().unwrap().as_raw().is_some());
    core.send_data(Payload::empty(), b"a header", 7).unwrap();
    wait_until("a message and its completion", || {
        core.poll(&mut sent).unwrap();
        receiver.poll(&mut received).unwrap();
        let came = |event: &ReceiveEvent| {
            matches!(event, ReceiveEvent::Message(m)
                if m.header() == b"a header")
        };
        sent.len() == 2 && received.iter().any(came)
    });
    drop(receiver);
    wait_until("the end of the peer", || {
        core.poll(&mut sent).unwrap();
        ended(&sent).is_some()
    });
    let lost = matches!(ended(&sent), Some(CloseReason::PeerLost { .. }));
    assert!(lost, "{sent:?}");
}

#[test]
fn a_connection_ends_in_time_whatever_its_provider_does() {
    let Some(domain) = domain() else { return };
    let before = Arc::strong_count(&domain);
    let (provider, hook) = Provider::hook(&domain, 0);
    let mut core = connect(&domain, &nobody(), Duration::from_millis(50));
    let mut events = Vec::new();
    wait_until("an end", || {
        core.poll(&mut events).unwrap();
        ended(&events).is_some()
    });
    assert_eq!(ended(&events), Some(CloseReason::ConnectTimedOut));
    assert_eq!(provider.answered.load(Ordering::SeqCst), 0);
    // Another attempt of the same endpoint, which is dropped as it is.
    core.dial_again().unwrap();
    wait_until("asked for", || provider.calls() == 2);
    core.poll(&mut events).unwrap();
    drop(core);
    assert_eq!(provider.answered.load(Ordering::SeqCst), 0);
    provider.go();
    assert_left_alone(&domain, before + 1);
    drop(hook);
    assert_eq!(provider.answered.load(Ordering::SeqCst), 2);
}

#[test]
fn what_comes_too_late_is_closed_by_the_next_poll() {
    let Some(domain) = domain() else { return };
    let before = Arc::strong_count(&domain);
    let (provider, _hook) = Provider::hook(&domain, 0);
    let mut link = FabricLink::open(
        &domain,
        QueueSizes::of_one(8, 8),
        &EndpointSettings::default(),
    )
    .unwrap();
    link.resolver = EpResolver::by_thread().unwrap();
    let conn = link.prepare_connect(&nobody()).unwrap();
    link.connect(&conn, &nobody(), b"hello").unwrap();
    let dropped = link.prepare_connect(&nobody()).unwrap();
    wait_until("asked for", || provider.calls() == 2);
    link.close(conn).unwrap();
    drop(dropped);
    provider.go();
    wait_until("it came", || domain.resolver().threads() == 0);
    assert!(link.poll_cm().unwrap().is_none());
    // Left: the link's own, with those of its queues.
    let idle = FabricLink::open(
        &domain,
        QueueSizes::of_one(8, 8),
        &EndpointSettings::default(),
    )
    .unwrap();
    let now = Arc::strong_count(&domain);
    drop(idle);
    let each = now - Arc::strong_count(&domain);
    assert_eq!(Arc::strong_count(&domain), before + 1 + each);
    drop(link);
    assert_left_alone(&domain, before + 1);
}

#[test]
fn an_unreachable_peer_ends_its_connection_with_the_reason_and_is_looked_for_once() {
    let Some(domain) = domain() else { return };
    for (errno, calls) in [(libc::ETIMEDOUT, 1), (libc::ENODEV, 1)] {
        let (provider, _hook) = Provider::hook(&domain, -errno);
        provider.go();
        let mut core = connect(&domain, &nobody(), LONG);
        let mut events = Vec::new();
        wait_until("an end", || {
            core.poll(&mut events).unwrap();
            ended(&events).is_some()
        });
        let reason = CloseReason::ConnectFailed(FabricErrno::new(errno));
        assert_eq!(ended(&events), Some(reason));
        assert_eq!(provider.calls(), calls);
    }
}

#[test]
fn a_failure_is_told_once_whenever_it_comes() {
    let Some(domain) = domain() else { return };
    let (provider, _hook) = Provider::hook(&domain, -libc::EHOSTUNREACH);
    provider.go();
    let mut link = FabricLink::open(
        &domain,
        QueueSizes::of_one(8, 8),
        &EndpointSettings::default(),
    )
    .unwrap();
    link.resolver = EpResolver::by_thread().unwrap();
    // Before the connection was begun: who begins it is told.
    let early = link.prepare_connect(&nobody()).unwrap();
    wait_until("it came", || {
        let came = link.poll_cm().unwrap();
        assert!(came.is_none(), "{came:?}");
        domain.resolver().threads() == 0 && link.resolver.is_idle()
    });
    let refused = link.connect(&early, &nobody(), b"hello");
    assert!(
        matches!(refused, Err(Error::Fabric { errno, .. }) if errno.get() == libc::EHOSTUNREACH),
        "{refused:?}"
    );
    // Behind that: by an event.
    let late = link.prepare_connect(&nobody()).unwrap();
    link.connect(&late, &nobody(), b"hello").unwrap();
    let mut event = None;
    wait_until("an event", || {
        event = link.poll_cm().unwrap();
        event.is_some()
    });
    match event {
        Some(CmEvent::Refused { conn, errno, .. }) => {
            assert_eq!((conn, errno.get()), (late.key(), libc::EHOSTUNREACH));
        }
        other => panic!("{other:?}"),
    }
    assert!(link.poll_cm().unwrap().is_none());
    assert_ne!(early.key(), late.key());
    link.close(early).unwrap();
    link.close(late).unwrap();
}

#[test]
fn queues_are_shortened_for_errors_of_sizes_only() {
    let Some(domain) = domain() else { return };
    for (errno, many) in [
        (libc::ENODATA, true),
        (libc::EINVAL, true),
        (libc::ENOMEM, true),
        (libc::ETIMEDOUT, false),
        (libc::EHOSTUNREACH, false),
        (libc::EADDRINUSE, false),
    ] {
        let (provider, _hook) = Provider::hook(&domain, -errno);
        provider.go();
        let tx = domain.fabric().info().tx().size;
        let mut link = FabricLink::open(
            &domain,
            QueueSizes::of_one(8 * tx, 8),
            &EndpointSettings::default(),
        )
        .unwrap();
        let made = link.prepare_connect(&nobody());
        assert_eq!(provider.calls(), if many { 4 } else { 1 }, "{errno}");
        let of_the_peer = matches!(errno, libc::ETIMEDOUT | libc::EHOSTUNREACH);
        assert_eq!(made.is_ok(), of_the_peer, "{errno}: {made:?}");
    }
}

/// A port that nobody has now.
fn free_addr() -> PeerAddr {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap().into()
}

#[test]
fn who_is_somewhere_else_than_asked_is_not_there_at_all() {
    let Some(domain) = domain() else { return };
    let (asked, settings) = (free_addr(), EndpointSettings::default());
    let named = |error: Error| {
        let text = error.to_string();
        let is_address = matches!(error, Error::Address { .. });
        assert!(is_address && text.contains(&asked.to_string()), "{text}");
        assert!(text.contains("instead"), "{text}");
    };
    {
        let _hook = PassiveHook::new(domain.fabric());
        let listen = FabricLink::listen(&domain, &asked, QueueSizes::of_one(8, 8), &settings);
        named(listen.expect_err("it listens at another port"));
    }
    let link = FabricLink::listen(&domain, &asked, QueueSizes::of_one(8, 8), &settings).unwrap();
    assert_eq!(link.local_addr(), Some(asked));
    drop(link);
    let source = settings.source(asked);
    let mut link = FabricLink::open(&domain, QueueSizes::of_one(8, 8), &source).unwrap();
    {
        let _hook = OpenHook::new(&domain, |info| {
            forget_port(info);
            0
        });
        named(link.prepare_connect(&nobody()).expect_err("another port"));
    }
    let conn = link.prepare_connect(&nobody()).unwrap();
    link.close(conn).unwrap();
}

/// A bell that goes on ringing would never let a loop sleep again.
#[test]
fn the_bell_is_silent_when_all_was_taken() {
    let inbox = Arc::new(ResolverInbox::new().unwrap());
    let rings = |inbox: &ResolverInbox| {
        let bell = PollFd::from_borrowed_fd(inbox.bell(), PollFlags::IN);
        rustix::event::poll(&mut [bell], Some(&Timespec::default())).unwrap() > 0
    };
    for key in 0..300 {
        let putting = Arc::clone(&inbox);
        let thread = std::thread::spawn(move || {
            putting.put(key, Err(Error::fabric("fi_endpoint", libc::ETIMEDOUT)));
        });
        let mut taken = 0;
        while taken == 0 {
            taken += inbox.take().len();
        }
        thread.join().unwrap();
        assert_eq!((taken, inbox.take().len()), (1, 0));
        assert!(!rings(&inbox), "round {key}: nothing is there to be taken");
    }
}

/// What was read of the event queue while a connection was closed lies in no queue of the
/// provider's any more: nothing there would wake who sleeps.
#[test]
fn nobody_sleeps_while_events_are_kept() {
    let (Some(near), Some(far)) = (domain(), domain()) else {
        return;
    };
    let (sizes, settings) = (QueueSizes::of_one(64, 64), EndpointSettings::default());
    let at = "127.0.0.1:0".parse().unwrap();
    let mut listener = FabricLink::listen(&near, &at, sizes, &settings).unwrap();
    let to = listener.local_addr().unwrap();
    let mut other = FabricLink::open(&far, sizes, &settings).unwrap();
    let mut asking = Vec::new();
    // Whether others lie behind the first when it is closed, nobody can say beforehand.
    while listener.events.kept.is_empty() {
        assert!(asking.len() < 300, "one at a time");
        for _ in 0..3 {
            let conn = other.prepare_connect(&to).unwrap();
            other.connect(&conn, &to, b"hello").unwrap();
            asking.push(conn);
        }
        let mut request = None;
        wait_until("a request", || {
            other.poll_cm().unwrap();
            if let Some(CmEvent::Request { request: it, .. }) = listener.poll_cm().unwrap() {
                request = Some(it);
            }
            request.is_some()
        });
        let conn = listener.prepare_accept(request.unwrap());
        listener.close(conn.map_err(|(_, e)| e).unwrap()).unwrap();
    }
    let waiter = listener.waiter();
    assert!(!waiter.try_wait().unwrap(), "others have asked");
    while listener.poll_cm().unwrap().is_some() {}
    wait_until("there is nothing", || {
        listener.poll_cm().unwrap().is_none() && waiter.try_wait().unwrap()
    });
}
