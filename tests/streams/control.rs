//! Keys, limits, pause, cancel, rate, rails.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast::Domain;
use fabricast::buffer::SharedBufferManager;
use fabricast::fabric::EndpointKind;
use fabricast::stream::{
    BufferSource, DirectorySink, DiscardSink, FileSource, Limits, Peer, PresharedKey, RefusalCode,
    SendOptions, SlowPeer, StreamError, StreamEvent, StreamReceiver, StreamSender, Transport,
};

use crate::world::*;

fn file(size: usize) -> (tempfile::TempDir, FileSource) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), content(size, 3)).unwrap();
    let source = FileSource::file(dir.path().join("file")).unwrap();
    (dir, source)
}

#[test]
fn only_who_has_the_key_is_let_in_and_only_to_who_has_it_anything_is_sent() {
    over_both(|domain| {
        let key = |text: &str| PresharedKey::from_bytes(text.as_bytes()).unwrap();
        let (right, wrong) = (key("0123456789abcdef0123"), key("0123456789abcdef0124"));
        let closed = listen(
            domain,
            receiver_config(DiscardSink).stream(|s| s.key(right.clone())),
        );
        let open = listen(domain, receiver_config(DiscardSink));
        let attempt = |to, key: Option<&PresharedKey>| {
            let mut config = sender_config();
            if let Some(key) = key {
                config = config.stream(|s| s.key(key.clone()));
            }
            let sender = StreamSender::open(domain, config).unwrap();
            let (_dir, source) = file(100_000);
            let transfer = sender.send(source, [to], SendOptions::default()).unwrap();
            let outcome = transfer.wait(by()).unwrap().pop().unwrap();
            sender.close(by());
            outcome.result
        };
        attempt(closed.local_addr(), Some(&right)).unwrap();
        attempt(open.local_addr(), None).unwrap();
        for (what, result) in [
            ("a wrong key", attempt(closed.local_addr(), Some(&wrong))),
            ("no key", attempt(closed.local_addr(), None)),
            (
                "a receiver without one",
                attempt(open.local_addr(), Some(&right)),
            ),
        ] {
            match result.expect_err(what) {
                StreamError::Refused { code, .. } => assert_eq!(code, RefusalCode::KEY, "{what}"),
                StreamError::Unproven => {}
                other => panic!("{what}: {other:?}"),
            }
        }
        closed.close(by());
        open.close(by());
    });
}

/// Whatever somebody asks for, the threads of a sender go on.
#[test]
fn options_out_of_their_range_are_refused_before_anything_is_sent() {
    let Some(domain) = domain(EndpointKind::Msg) else {
        return;
    };
    let receiver = listen(&domain, receiver_config(DiscardSink));
    let sender = StreamSender::open(&domain, sender_config()).unwrap();
    let options = SendOptions::default;
    for (options, wanted) in [
        (options().deadline(Some(Duration::MAX)), "deadline"),
        (options().deadline(Some(Duration::ZERO)), "deadline"),
        (options().stalled_after(Duration::MAX), "stalled_after"),
        (options().stalled_after(Duration::ZERO), "stalled_after"),
        (options().slow(SlowPeer::Wait(Duration::MAX)), "slow"),
        (options().slow(SlowPeer::Drop(Duration::MAX)), "slow"),
        (options().rails(0), "rails"),
        (options().read_back(true).crc32c(false), "read_back"),
    ] {
        let (_dir, source) = file(100_000);
        match sender.send(source, [receiver.local_addr()], options) {
            Err(error @ StreamError::Setting { name, .. }) => {
                assert_eq!(name, wanted);
                assert!(error.to_string().contains(wanted), "{error}");
            }
            other => panic!("{wanted}: {other:?}"),
        }
    }
    // The longest that may be asked for are no more than others are, and a transfer beside them
    // ends.
    let longest = options()
        .deadline(Some(Duration::from_secs(3650 * 86_400)))
        .stalled_after(Duration::from_secs(86_400))
        .slow(SlowPeer::Wait(Duration::from_secs(86_400)))
        .rate(Some(u64::MAX))
        .priority(u8::MAX);
    for options in [longest, options()] {
        let (_dir, source) = file(100_000);
        let transfer = sender.send(source, [receiver.local_addr()], options);
        let outcome = transfer.unwrap().wait(by()).unwrap().pop().unwrap();
        outcome.result.unwrap();
    }
    sender.close(by());
    receiver.close(by());
}

#[test]
fn what_a_receiver_is_opened_with_is_checked_limits_included() {
    let Some(domain) = domain(EndpointKind::Msg) else {
        return;
    };
    let config = || receiver_config(DiscardSink);
    for (config, wanted) in [
        (
            config().stream(|s| s.connect_timeout(Duration::MAX)),
            "connect_timeout",
        ),
        (config().stalled_after(Duration::MAX), "stalled_after"),
        (config().paused_for(Duration::MAX), "paused_for"),
        (
            config().stream(|s| s.lost_after(Duration::MAX)),
            "lost_after",
        ),
        (
            config().limits(Limits::default().streams(u32::MAX)),
            "streams",
        ),
        (config().limits(Limits::default().blocks(0)), "blocks"),
    ] {
        match StreamReceiver::listen(&domain, any_port(), config) {
            Err(StreamError::Setting { name, .. }) => assert_eq!(name, wanted),
            other => panic!("{wanted}: {other:?}"),
        }
    }
    let receiver = listen(&domain, config());
    assert!(receiver.next(Duration::from_millis(1)).is_none());
    receiver.close(by());
}

#[test]
fn what_is_beyond_a_limit_is_refused_with_the_reason() {
    over_both(|domain| {
        let attempt = |limits, options: SendOptions| {
            let receiver = listen(domain, receiver_config(DiscardSink).limits(limits));
            let (_dir, source) = file(100_000);
            let outcome = send(domain, source, &[receiver.local_addr()], options)
                .pop()
                .unwrap();
            let news = receiver.close(by());
            (outcome.result, news)
        };
        for (limits, expected) in [
            (Limits::default().bytes(99_999), RefusalCode::BYTES),
            (Limits::default().entries(0), RefusalCode::ENTRIES),
            (Limits::default().blocks(1), RefusalCode::BLOCKS),
            (Limits::default().block_bytes(65_535), RefusalCode::BLOCKS),
        ] {
            let (result, news) = attempt(limits, SendOptions::default());
            match result.expect_err("beyond a limit") {
                StreamError::Refused { code, .. } => assert_eq!(code, expected),
                other => panic!("{other:?}"),
            }
            let refused = |news: &StreamEvent| {
                matches!(news, StreamEvent::Refused { code, .. }
                    if *code == expected)
            };
            assert!(news.iter().any(refused), "{news:?}");
        }
        attempt(
            Limits::default().bytes(100_000).blocks(2).entries(1),
            SendOptions::default(),
        )
        .0
        .unwrap();
    });
}

#[test]
fn a_transfer_is_paused_slowed_and_cancelled() {
    over_both(|domain| {
        let receiver = listen(domain, receiver_config(DiscardSink));
        let sender = StreamSender::open(domain, sender_config()).unwrap();
        let (_dir, source) = file(4_000_000);
        let began = Instant::now();
        let options = SendOptions::default().rate(Some(8_000_000));
        let transfer = sender
            .send(source, [receiver.local_addr()], options)
            .unwrap();
        while transfer.progress()[0].sent == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        transfer.pause();
        // Commands are taken in order, so it has heard of the pause when it answers.
        of_sender(&sender);
        let sent = transfer.progress()[0].sent;
        for _ in 0..20 {
            // Another turn of the sender's.
            of_sender(&sender);
            assert_eq!(transfer.progress()[0].sent, sent, "it is paused");
        }
        transfer.resume();
        let outcome = transfer.wait(by()).unwrap().pop().unwrap();
        outcome.result.unwrap();
        let took = began.elapsed();
        // Half a second for the bytes, the first of which go at once: it can't be less, however
        // busy the machine is.
        assert!(took > Duration::from_millis(450), "{took:?}");

        let (_dir, source) = file(4_000_000);
        // After the first block, it waits.
        let options = SendOptions::default().rate(Some(1));
        let transfer = sender
            .send(source, [receiver.local_addr()], options)
            .unwrap();
        while transfer.progress()[0].sent == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        transfer.cancel();
        let outcome = transfer.wait(by()).unwrap().pop().unwrap();
        match outcome.result.unwrap_err() {
            StreamError::GivenUp { code, .. } => assert_eq!(code, RefusalCode::CANCELLED),
            other => panic!("{other:?}"),
        }
        match (next_end(&receiver), next_end(&receiver)) {
            (
                StreamEvent::Complete(..),
                StreamEvent::Cut(_, StreamError::Failed { code, .. }, _),
            ) => {
                assert_eq!(code, RefusalCode::CANCELLED);
            }
            other => panic!("{other:?}"),
        }
        let (_dir, source) = file(4_000_000);
        let options = SendOptions::default()
            .rate(Some(1))
            .deadline(Some(Duration::from_millis(300)));
        let transfer = sender
            .send(source, [receiver.local_addr()], options)
            .unwrap();
        let outcome = transfer.wait(by()).unwrap().pop().unwrap();
        assert!(matches!(outcome.result, Err(StreamError::Deadline { .. })));
        sender.close(by());
        receiver.close(by());
    });
}

/// Cuts the first connection of this process to an address.
fn cut_one(to: std::net::SocketAddr) -> bool {
    let fds = fs::read_dir("/proc/self/fd").unwrap();
    for fd in fds.filter_map(|fd| fd.unwrap().file_name().to_str()?.parse::<i32>().ok()) {
        // SAFETY: borrowed for the two calls below; a number that was closed meanwhile makes them
        // fail.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
        let peer = rustix::net::getpeername(fd).ok().flatten();
        let peer = peer.and_then(|peer| std::net::SocketAddr::try_from(peer).ok());
        if peer == Some(to) {
            return rustix::net::shutdown(fd, rustix::net::Shutdown::Both).is_ok();
        }
    }
    false
}

/// `threads`: of the sender and of the receiver, for connections.
fn rails(domain: &Arc<Domain>, transport: Transport, cut: bool, threads: (u32, u32)) {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = from.path().join("file");
    fs::write(&path, content(16 << 20, 8)).unwrap();
    let config = receiver_config(DirectorySink::new(to.path()).unwrap());
    let config = config.stream(|s| s.rail_threads(threads.1));
    let receiver = listen(domain, config.rma_slots(16));
    let config = sender_config().stream(|s| s.rail_threads(threads.0));
    let sender = StreamSender::open(domain, config).unwrap();
    let addr = receiver.local_addr();
    let options = SendOptions::default().rails(3).transport(transport);
    // What is behind it can't be sent before the cut.
    let gate = Arc::new(Gate::default());
    let source = Gated::new(FileSource::file(&path).unwrap(), &gate);
    let transfer = sender.send(source, [Peer::from(addr)], options).unwrap();
    if cut {
        let ready = |what: &str| what.matches("Ready").count() == 3;
        let end = by();
        while transfer.progress()[0].sent < 1 << 20
            || !sender.describe(PATIENCE).is_some_and(|what| ready(&what))
        {
            assert!(
                Instant::now() < end,
                "no three connections: {:?}\n{:?}\n{:?}",
                transfer.progress(),
                sender.describe(PATIENCE),
                receiver.describe(PATIENCE)
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(
            cut_one(addr.socket_addr().unwrap()),
            "there is a connection to cut"
        );
    }
    gate.open();
    let outcome = over(&transfer, &sender, &receiver).pop().unwrap();
    outcome.result.unwrap();
    let lost = outcome.report.rails_lost;
    match domain.fabric().endpoint_kind() {
        EndpointKind::Msg => assert_eq!(lost, u64::from(cut), "{:?}", outcome.report),
        // A provider that lost nothing of ours makes its socket anew, and nobody hears of it.
        EndpointKind::Rdm => assert!(lost <= u64::from(cut), "{:?}", outcome.report),
    }
    assert_eq!(outcome.report.reconnects, 0);
    assert_same(&path, &to.path().join("file"));
    sender.close(by());
    receiver.close(by());
}

/// The receiver says where a stream comes from.
#[test]
fn a_peer_is_reached_by_the_domain_that_is_named_for_it() {
    let kind = EndpointKind::Msg;
    let Some(domain) = domain(kind) else { return };
    if !domain.fabric().provider().over_tcp {
        return println!("SKIPPED: this provider has one address");
    }
    let nodes = ["127.0.0.1", "127.0.0.2"];
    let domains = nodes.map(|node| domain_at(kind, node).expect("loopback has all of them"));
    let receiver = listen(&domain, receiver_config(DiscardSink));
    let sender = StreamSender::over(&domains, sender_config()).unwrap();
    let to = || Peer::from(receiver.local_addr());
    for (peer, node) in [
        (to(), nodes[0]),
        (to().by_domains([0]), nodes[0]),
        (to().by_domains([1]), nodes[1]),
    ] {
        let (_dir, source) = file(100_000);
        let transfer = sender.send(source, [peer], SendOptions::default()).unwrap();
        let outcome = over(&transfer, &sender, &receiver).pop().unwrap();
        outcome.result.unwrap();
        assert_eq!(outcome.report.address_bytes, [100_000]);
        let begun = loop {
            match receiver.next(PATIENCE).expect("something happened") {
                StreamEvent::Began(stream) => break stream,
                _ => continue,
            }
        };
        let from = begun.peer.unwrap().socket_addr().unwrap();
        assert_eq!(from.ip().to_string(), node);
    }
    for (wrong, name) in [
        (to().by_domains([2]), "domain of a peer"),
        (to().by_domains([0, 1]), "domains of a peer"),
    ] {
        let (_dir, source) = file(1);
        let refused = sender.send(source, [wrong], SendOptions::default());
        let error = refused.expect_err("refused").to_string();
        assert!(error.contains(name), "{error}");
    }
    sender.close(by());
    receiver.close(by());
}

/// Threads for connections of both sides, of one, and of none.
const THREADS: [(u32, u32); 4] = [(1, 1), (3, 3), (3, 1), (1, 2)];

#[test]
fn several_rails_share_a_stream() {
    for threads in THREADS {
        over_both_by_both(|domain, transport| rails(domain, transport, false, threads));
    }
}

#[test]
fn a_rail_that_is_cut_is_taken_over_by_the_others() {
    for threads in THREADS {
        over_both(|domain| {
            if domain.has_sockets() {
                rails(domain, Transport::Message, true, threads);
            }
        });
        if let Some(domain) = domain(EndpointKind::Msg)
            && domain.has_sockets()
        {
            rails(&domain, Transport::Write, true, threads);
        }
    }
}

/// The threads that this process has by this name.
fn threads_named(name: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|it| it.trim() == name).count()
}

#[test]
fn connections_are_made_by_more_threads_while_that_pays() {
    let Some(domain) = domain(EndpointKind::Msg) else {
        return;
    };
    let config = receiver_config(DiscardSink).stream(|s| s.rail_threads(3));
    let receiver = listen(&domain, config);
    assert_eq!(receiver.local_addrs().len(), 1, "the others are its own");
    let config = sender_config().stream(|s| s.rail_threads(3).lost_after(PATIENCE));
    let sender = StreamSender::open(&domain, config).unwrap();
    // A thread gives itself its name.
    let end = by();
    while threads_named("stream-rail") < 6 {
        assert!(Instant::now() < end, "three of each side");
        std::thread::sleep(Duration::from_millis(1));
    }
    // As long as it takes to see another connection.
    let len = 256 << 20;
    let pool = SharedBufferManager::allocate(1, len).unwrap();
    sender.register(&pool).unwrap();
    let buffer = pool.try_acquire().unwrap().freeze(len);
    let source = BufferSource::new("zeros", buffer, [0; 16]).unwrap();
    let transfer = sender.send(source, [receiver.local_addr()], SendOptions::default());
    let transfer = transfer.unwrap();
    let mut most = 0;
    let outcome = loop {
        if let Some(mut outcomes) = transfer.wait(Instant::now() + Duration::from_millis(1)) {
            break outcomes.pop().unwrap();
        }
        let words = sender.describe(PATIENCE).unwrap_or_default();
        most = most.max(words.matches("): Ready").count());
    };
    outcome.result.unwrap();
    println!("{most} connections, {}", outcome.report);
    assert!((1..=3).contains(&most), "{most}");
    sender.close(by());
    receiver.close(by());
}
