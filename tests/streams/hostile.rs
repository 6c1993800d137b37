//! Peers that lie, talk nonsense, or say nothing.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast::buffer::{HeaderSlotConfig, SharedBufferManager};
use fabricast::endpoint::{ConnectionlessConfig, ConnectionlessEvent, HeaderMode, SendConfig};
use fabricast::fabric::EndpointKind;
use fabricast::stream::{
    DirectorySink, DiscardSink, FileSource, RefusalCode, SendOptions, StreamError, StreamEvent,
    StreamReceiver, StreamSender,
};
use fabricast::{
    ConnectionEvent, ConnectionlessEndpoint, Domain, PeerAddr, SendEndpointZeroCopy, SendEvent,
};

use crate::common::patient;
use crate::world::*;

/// A header, and its payload.
type Said = ([u8; 64], Vec<u8>);

/// A message as docs/wire.md has it: the common part, and a body.
fn message(kind: u8, stream: u32, payload_len: usize, body: &[u8]) -> [u8; 64] {
    let mut header = [0; 64];
    header[..4].copy_from_slice(b"FCS2");
    header[4] = kind;
    header[8..12].copy_from_slice(&stream.to_le_bytes());
    header[12..16].copy_from_slice(&(payload_len as u32).to_le_bytes());
    header[16..16 + body.len()].copy_from_slice(body);
    header
}

fn hello(version: u16) -> Said {
    let mut body = Vec::new();
    for number in [version, version, 0, 1] {
        body.extend_from_slice(&number.to_le_bytes());
    }
    body.extend_from_slice(&0_u64.to_le_bytes());
    body.extend_from_slice(&[7; 16]);
    (message(1, 0, 32, &body), vec![9; 32])
}

/// Sends these messages over a connection of its own, and waits for its end.
fn say(domain: &Arc<Domain>, to: PeerAddr, messages: Vec<Said>) {
    let config = SendConfig::default().outgoing(|out| out.header_mode(HeaderMode::Fixed(64)));
    let config = config.connection(|c| c.connect_timeout(patient(PATIENCE)));
    let mut end = SendEndpointZeroCopy::connect(domain, to, config).unwrap();
    let pool = SharedBufferManager::allocate_with_headroom(8, 4096, 64).unwrap();
    pool.region().register(domain).unwrap();
    let (mut events, mut waiting) = (Vec::new(), messages.into_iter().peekable());
    let by = by();
    let mut connected = false;
    loop {
        assert!(Instant::now() < by, "the receiver did not end it");
        // Its own failure ends it, too.
        let _ = end.poll(&mut events);
        for event in events.drain(..) {
            match event {
                SendEvent::Connection(ConnectionEvent::Connected(_)) => connected = true,
                SendEvent::Connection(ConnectionEvent::Disconnected(why)) => {
                    assert!(connected, "it could say nothing: {why:?}");
                    return;
                }
                _ => {}
            }
        }
        if connected && let Some((header, payload)) = waiting.peek() {
            let mut buffer = pool.try_acquire().unwrap();
            buffer[..payload.len()].copy_from_slice(payload);
            if end
                .send_data(buffer.freeze(payload.len()), header, 1)
                .is_ok()
            {
                waiting.next();
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn assert_serves(domain: &Arc<Domain>, receiver: &StreamReceiver) {
    let from = tempfile::tempdir().unwrap();
    fs::write(from.path().join("file"), content(300_000, 4)).unwrap();
    let source = FileSource::file(from.path().join("file")).unwrap();
    let outcomes = send(
        domain,
        source,
        &[receiver.local_addr()],
        SendOptions::default(),
    );
    outcomes[0].result.clone().unwrap();
}

#[test]
fn nonsense_ends_its_own_connection_and_no_other() {
    over_both(|domain| {
        let to = tempfile::tempdir().unwrap();
        let config = receiver_config(DirectorySink::new(to.path()).unwrap());
        let receiver = listen(domain, config.stream(|s| s.connections(16)));
        let addr = receiver.local_addr();
        // One of little patience, for those who say nothing: whoever is to be served in time comes
        // to the other one.
        let hasty =
            receiver_config(DiscardSink).stream(|s| s.connect_timeout(Duration::from_millis(300)));
        let hasty = listen(domain, hasty);
        let mut open = Vec::new();
        for number in [1_u64, 30, u64::MAX / 2, u64::MAX / 2] {
            open.extend_from_slice(&number.to_le_bytes());
        }
        open.extend_from_slice(&1_u32.to_le_bytes());
        let cases: Vec<(&str, Vec<Said>, Option<RefusalCode>)> = vec![
            (
                "zeros",
                vec![([0; 64], vec![])],
                Some(RefusalCode::MALFORMED),
            ),
            (
                "random bytes",
                vec![([0xa5; 64], vec![1, 2, 3])],
                Some(RefusalCode::MALFORMED),
            ),
            (
                "another version",
                vec![hello(99)],
                Some(RefusalCode::VERSION),
            ),
            (
                "a block first",
                vec![(message(5, 1, 0, &[]), vec![])],
                Some(RefusalCode::MALFORMED),
            ),
            ("hello twice", vec![hello(1), hello(1)], None),
            (
                "absurd sizes",
                vec![hello(1), (message(3, 1, 32, &open), vec![1; 32])],
                None,
            ),
            (
                "a block before the stream",
                vec![hello(1), (message(5, 1, 1, &[]), vec![0])],
                None,
            ),
        ];
        // All of a kind at once: each waits for its end, which comes a while after its refusal.
        let (coded, others): (Vec<_>, Vec<_>) =
            cases.into_iter().partition(|(_, _, code)| code.is_some());
        let mut expected: Vec<_> = coded.iter().filter_map(|(_, _, code)| *code).collect();
        for said in [coded, others] {
            std::thread::scope(|scope| {
                for (what, messages, _) in said {
                    println!("{what}");
                    scope.spawn(move || say(domain, addr, messages));
                }
            });
            // In whatever order they came.
            while !expected.is_empty() {
                match next_end(&receiver) {
                    StreamEvent::Refused { code, .. } => {
                        let at = expected.iter().position(|it| *it == code);
                        expected.swap_remove(at.unwrap_or_else(|| panic!("{code:?}")));
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        println!("nothing");
        let by_then = by();
        let news = loop {
            say(domain, hasty.local_addr(), vec![]);
            // Its endpoint is as hasty. On a slow machine it ends a connection that is made on the
            // other side only, and nobody is told of that: then one more says nothing.
            if let Some(news) = hasty.next(Duration::from_secs(1)) {
                break news;
            }
            assert!(Instant::now() < by_then, "{}", of_receiver(&hasty));
        };
        match news {
            StreamEvent::Refused { code, .. } => assert_eq!(code, RefusalCode::DEADLINE),
            other => panic!("{other:?}"),
        }
        hasty.close(by());
        assert_serves(domain, &receiver);
        assert_eq!(names(to.path()), ["file"]);
        receiver.close(by());
    });
}

/// A receiver that says what it is told to: a connectionless endpoint can send and receive.
fn liar(domain: &Arc<Domain>, answer: impl Fn(u8) -> Vec<Said> + Send + 'static) -> PeerAddr {
    let headers = HeaderSlotConfig {
        slots: 16,
        slot_size: 64,
    };
    let config = ConnectionlessConfig::default()
        .max_peers(8)
        .incoming(|incoming| incoming.max_message(64 + 65_536))
        .outgoing(|out| out.headers(headers).header_mode(HeaderMode::Fixed(64)));
    let mut end = ConnectionlessEndpoint::open(domain, any_port(), config).unwrap();
    let addr = end.local_addr();
    let pool = SharedBufferManager::allocate_with_headroom(16, 4096, 64).unwrap();
    pool.region().register(domain).unwrap();
    std::thread::spawn(move || {
        let by = by();
        let (mut events, mut waiting) = (Vec::new(), Vec::new());
        while Instant::now() < by {
            let _ = end.poll(&mut events);
            for event in events.drain(..) {
                if let ConnectionlessEvent::Message { peer, message } = event {
                    waiting.extend(
                        answer(message.header()[4])
                            .into_iter()
                            .map(|said| (peer, said)),
                    );
                }
            }
            waiting.retain(|(peer, (header, payload))| {
                let Some(mut buffer) = pool.try_acquire() else {
                    return true;
                };
                buffer[..payload.len()].copy_from_slice(payload);
                let sent = end.send_data(*peer, buffer.freeze(payload.len()), header, 1);
                sent.is_err_and(|refused| refused.is_would_block())
            });
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    addr
}

#[test]
fn a_receiver_that_lies_or_stalls_ends_in_a_clear_error() {
    let Some(domain) = domain(EndpointKind::Rdm) else {
        return;
    };
    let from = tempfile::tempdir().unwrap();
    fs::write(from.path().join("file"), content(1_000_000, 4)).unwrap();
    let attempt = |addr: PeerAddr, timeout: Duration, deadline: Option<Duration>| {
        let config = sender_config().stream(|s| s.connect_timeout(timeout));
        let sender = StreamSender::open(&domain, config).unwrap();
        let source = FileSource::file(from.path().join("file")).unwrap();
        let options = SendOptions::default().reconnects(0).deadline(deadline);
        let transfer = sender.send(source, [addr], options).unwrap();
        let outcome = transfer.wait(by()).unwrap().pop().unwrap();
        sender.close(by());
        outcome.result.unwrap_err()
    };
    let (short, long) = (patient(Duration::from_millis(300)), 10 * PATIENCE);
    // Never answers the hello.
    let error = attempt(liar(&domain, |_| vec![]), short, None);
    assert!(matches!(error, StreamError::Deadline { .. }), "{error:?}");
    // Answers with nonsense.
    let nonsense = |_| vec![([0x11; 64], vec![])];
    let error = attempt(liar(&domain, nonsense), long, None);
    assert!(matches!(error, StreamError::Violation(_)), "{error:?}");
    // Answers with another session's hello.
    let mut ack = Vec::new();
    ack.extend_from_slice(&[1, 0, 0, 0, 1, 0, 0, 0]);
    ack.extend_from_slice(&0_u64.to_le_bytes());
    ack.extend_from_slice(&[1; 16]);
    ack.extend_from_slice(&65_536_u32.to_le_bytes());
    let other = move |kind| match kind {
        1 => vec![(message(17, 0, 32, &ack), vec![2; 32])],
        _ => vec![],
    };
    let error = attempt(liar(&domain, other), long, None);
    assert!(matches!(error, StreamError::Violation(_)), "{error:?}");
    // A deadline for all of it holds, whatever the peer does.
    let error = attempt(liar(&domain, |_| vec![]), long, Some(short));
    assert!(matches!(error, StreamError::Deadline { .. }), "{error:?}");
}

#[test]
fn a_link_in_the_directory_leads_nobody_out_of_it() {
    over_both(|domain| {
        let (from, outer) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let inner = outer.path().join("inner");
        fs::create_dir_all(&inner).unwrap();
        std::os::unix::fs::symlink("..", inner.join("up")).unwrap();
        std::os::unix::fs::symlink("../victim", inner.join("file")).unwrap();
        fs::write(outer.path().join("victim"), b"untouched").unwrap();
        fs::create_dir(from.path().join("up")).unwrap();
        fs::write(from.path().join("up/escaped"), b"out").unwrap();
        fs::write(from.path().join("file"), b"whole").unwrap();
        let receiver = listen(domain, receiver_config(DirectorySink::new(&inner).unwrap()));
        let attempt = |source| {
            let outcomes = send(
                domain,
                source,
                &[receiver.local_addr()],
                SendOptions::default(),
            );
            outcomes[0].result.clone()
        };
        // A directory that is a link at the receiver: refused, and nothing is outside.
        attempt(FileSource::tree(from.path().join("up")).unwrap()).unwrap_err();
        assert!(!outer.path().join("escaped").exists());
        // A file that is a link at the receiver: the link itself is replaced.
        attempt(FileSource::file(from.path().join("file")).unwrap()).unwrap();
        assert_eq!(fs::read(outer.path().join("victim")).unwrap(), b"untouched");
        assert_same(&from.path().join("file"), &inner.join("file"));
        receiver.close(by());
    });
}
