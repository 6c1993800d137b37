//! Clients and servers that are not ours: refused with a reason or cut off within our own deadline,
//! no descriptor lost, and the listener goes on serving.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast::endpoint::{CloseReason, CreditError, ReceiveConfig, Violation};
use fabricast::{
    ConnectionEvent, Domain, PeerAddr, ReceiveEndpoint, ReceiveEvent, SendEndpointZeroCopy,
};

use crate::common;
use crate::common::raw::{RawEvent, RawPeer, control, cq_data, hello};
use crate::common::{
    Offers, Pair, Random, SOON, Watchdog, alone, any_port, assert_fds_back, domain, drive,
    fd_count, got, millis, node, receive_ends, send_end, small_receiver, within,
};

/// What a peer may take to become a connection, where it is tested that others are cut off.
const HANDSHAKE: Duration = Duration::from_millis(500);

/// When a peer that does not must be gone, on an idle machine: looked at every half timeout.
const GONE_WITHIN: Duration = Duration::from_secs(3);

/// What a peer may take elsewhere: longer than a machine stands still.
const PATIENT: Duration = SOON;

fn patient_for(handshake: Duration) -> ReceiveConfig {
    small_receiver().connection(|c| c.connect_timeout(handshake).max_connections(16))
}

/// A client of ours that is connected all the time, and a listener with that patience. Where that
/// is short, the client itself may be cut off by a machine that stands still, and tries again.
fn good_pair(domain: &Arc<Domain>, handshake: Duration) -> Pair {
    let mut pair = Pair::connecting(domain, common::sending(), patient_for(handshake));
    let addr = pair.receiver().local_addr();
    drive("a client is connected", SOON, || {
        pair.step();
        if send_end(&pair.sent).is_some() {
            pair.sent.clear();
            pair.sender = Some(client(domain, addr));
        }
        let accepted = |e: &ReceiveEvent| {
            matches!(
                e,
                ReceiveEvent::Connection(_, ConnectionEvent::Connected(_))
            )
        };
        pair.sender().is_connected() && pair.received.iter().any(accepted)
    });
    pair.sent.clear();
    pair.received.clear();
    pair
}

fn client(domain: &Arc<Domain>, addr: PeerAddr) -> SendEndpointZeroCopy {
    SendEndpointZeroCopy::connect(domain, addr, common::sending()).expect("begins")
}

/// The old client works, and a new one can connect, at the second try if the machine stood still
/// for as long as a handshake may take, and leaves again.
fn assert_serves(pair: &mut Pair, domain: &Arc<Domain>) {
    let payload = pair.buffer(b"still here");
    pair.received.clear();
    assert_eq!(pair.exchange(payload, b"h", 1), got(b"h", b"still here"));
    let addr = pair.receiver().local_addr();
    let mut fresh = client(domain, addr);
    let (mut events, mut closing) = (Vec::new(), false);
    pair.until("a new client comes and goes", |_| {
        fresh.poll(&mut events).expect("polls");
        if send_end(&events).is_some() && !closing {
            events.clear();
            fresh = client(domain, addr);
        }
        if fresh.is_connected() && !closing {
            closing = true;
            fresh.begin_close(Instant::now() + SOON);
        }
        send_end(&events).is_some()
    });
    assert_eq!(send_end(&events), Some(CloseReason::Finished));
    pair.until("its connection is closed", |pair| {
        !receive_ends(&pair.received).is_empty()
    });
    pair.received.clear();
}

/// Whether the other side has closed the stream.
fn is_closed(stream: &mut TcpStream) -> bool {
    let mut room = [0; 256];
    match stream.read(&mut room) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

fn connect(addr: PeerAddr) -> TcpStream {
    let stream =
        TcpStream::connect(addr.socket_addr().expect("tcp")).expect("the listener listens");
    stream.set_nonblocking(true).expect("a setting");
    stream
}

#[test]
fn bytes_that_are_not_ours_are_cut_off() {
    let _alone = alone();
    let _dog = Watchdog::new("bytes");
    let Some(domain) = domain() else { return };
    if !domain.has_sockets() {
        return;
    }
    let mut random = Random::from_printed_seed("bytes_that_are_not_ours");
    let mut pair = good_pair(&domain, HANDSHAKE);
    assert_serves(&mut pair, &domain);
    let addr = pair.receiver().local_addr();
    let fds = fd_count();
    let mut cases: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0; 64],
        vec![0; 65_536],
        vec![0xff; 300],
        // The beginning of tcp's own handshake, and then nothing.
        vec![1],
        vec![1, 3, 0, 0],
        hello(0).to_vec(),
        // The provider waits for ever for the first byte; we do not.
        Vec::new(),
    ];
    for _ in 0..8 {
        let len = 1 + random.below(2000);
        cases.push((0..len).map(|_| random.next() as u8).collect());
    }
    let mut streams: Vec<TcpStream> = cases
        .iter()
        .map(|bytes| {
            let mut stream = connect(addr);
            // A refusal to take all of it is one more way to be cut off.
            let _ = stream.write(bytes);
            stream
        })
        .collect();
    assert_serves(&mut pair, &domain);
    drive("all are cut off", within(GONE_WITHIN), || {
        pair.step();
        streams.retain_mut(|stream| !is_closed(stream));
        streams.is_empty()
    });
    assert_fds_back(fds, SOON, || pair.step());
    assert_serves(&mut pair, &domain);
    let reaped = pair.receiver().stats().reaped;
    assert!(reaped >= 1, "the silent one");
}

/// Room for both ends of the connections in one process; gives how many connections there is room
/// for.
fn raise_fd_limit(connections: u64) -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let wanted = 2 * connections + 200;
    let maximum = limit.maximum.unwrap_or(u64::MAX);
    let current = limit.current.unwrap_or(u64::MAX).max(wanted.min(maximum));
    let raised = Rlimit {
        current: Some(current),
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).expect("up to the maximum");
    connections.min((current - 200) / 2)
}

#[test]
fn a_thousand_half_open_connections_are_cut_off_while_others_are_served() {
    let _alone = alone();
    let _dog = Watchdog::new("half open");
    let Some(domain) = domain() else { return };
    if !domain.has_sockets() {
        return;
    }
    let count = raise_fd_limit(1000);
    if count < 1000 {
        println!("only {count} connections: the limit on descriptors (ulimit -n) is lower");
    }
    let mut pair = good_pair(&domain, HANDSHAKE);
    assert_serves(&mut pair, &domain);
    let addr = pair.receiver().local_addr();
    let fds = fd_count();
    let mut streams = Vec::new();
    for i in 0..count {
        streams.push(connect(addr));
        if i % 50 == 49 {
            pair.step();
        }
    }
    assert_serves(&mut pair, &domain);
    drive("all are cut off", within(2 * GONE_WITHIN), || {
        pair.step();
        std::thread::sleep(millis(1));
        streams.retain_mut(|stream| !is_closed(stream));
        streams.is_empty()
    });
    assert_serves(&mut pair, &domain);
    assert_fds_back(fds, SOON, || pair.step());
    let reaped = pair.receiver().stats().reaped;
    assert!(reaped >= count, "{reaped} of {count}");
}

/// A raw client's answer, with the listener driven meanwhile.
fn answer_to(pair: &mut Pair, elsewhere: &Arc<Domain>, private: &[u8]) -> RawEvent {
    let addr = pair.receiver().local_addr();
    let mut peer = RawPeer::connect(elsewhere, addr, private);
    let mut answer = None;
    drive("an answer", SOON, || {
        pair.step();
        answer = peer.poll();
        answer.is_some()
    });
    answer.expect("an answer")
}

#[test]
fn a_wrong_hello_is_refused_with_the_reason() {
    const VERSION: u16 = 1;
    const MALFORMED: u16 = 2;
    const RECEIVE_DEPTH: u16 = 7;
    let _alone = alone();
    let _dog = Watchdog::new("wrong hello");
    let Some(domain) = domain() else { return };
    let elsewhere = common::domain().expect("there is one already");
    let mut pair = good_pair(&domain, PATIENT);
    assert_serves(&mut pair, &domain);
    let with = |at: usize, bytes: &[u8]| {
        let mut hello = hello(0).to_vec();
        hello[at..at + bytes.len()].copy_from_slice(bytes);
        hello
    };
    let mut random = Random::from_printed_seed("wrong hello");
    let mut cases: Vec<(&str, Vec<u8>, u16)> = vec![
        ("nothing", Vec::new(), MALFORMED),
        ("short", hello(0)[..20].to_vec(), MALFORMED),
        ("one byte short", hello(0)[..47].to_vec(), MALFORMED),
        (
            "random",
            (0..48).map(|_| random.next() as u8).collect(),
            MALFORMED,
        ),
        ("long and random", vec![0xee; 200], MALFORMED),
        ("another magic", with(0, b"NIXL"), MALFORMED),
        ("an answer as a hello", with(4, &[2]), MALFORMED),
        ("a refusal as a hello", with(4, &[3]), MALFORMED),
        ("no such header mode", with(5, &[9]), MALFORMED),
        ("a future version", with(8, &[9, 0, 5, 0]), VERSION),
        ("version 0", with(8, &[0, 0, 0, 0]), MALFORMED),
        ("credits without depth", with(16, &[1; 16]), RECEIVE_DEPTH),
    ];
    // The connection manager of cards takes 56 bytes, and makes all that is shorter as long as
    // that, with zeros.
    if !domain.fabric().provider().over_tcp {
        cases.retain(|(_, private, _)| [0, 48].contains(&private.len()));
    }
    // Once before counting: queues and pools that stay.
    answer_to(&mut pair, &elsewhere, b"warm up");
    let (fds, refused) = (fd_count(), pair.receiver().stats().refused);
    let count = cases.len() as u64;
    for (what, private, code) in cases {
        let answer = answer_to(&mut pair, &elsewhere, &private);
        let RawEvent::Refused { data, .. } = answer else {
            panic!("{what}: {answer:?}");
        };
        assert_eq!(data.get(..5), Some(&b"FbCt\x03"[..]), "{what}: {data:?}");
        assert_eq!(u16::from_le_bytes([data[6], data[7]]), code, "{what}");
        if code == VERSION {
            assert_eq!(data[8..12], [2, 0, 2, 0], "{what}: says what it speaks");
        }
    }
    assert_eq!(pair.receiver().stats().refused - refused, count);
    assert_fds_back(fds, SOON, || pair.step());
    assert_serves(&mut pair, &domain);
}

#[test]
fn a_newer_peer_that_still_speaks_our_version_is_taken() {
    let _alone = alone();
    let _dog = Watchdog::new("newer peer");
    let Some(domain) = domain() else { return };
    let elsewhere = common::domain().expect("there is one already");
    let mut pair = good_pair(&domain, PATIENT);
    let mut newer = hello(0);
    newer[8] = 9;
    let answer = answer_to(&mut pair, &elsewhere, &newer);
    assert_eq!(answer, RawEvent::Connected);
}

#[test]
fn a_server_that_answers_garbage_or_hangs_up_is_no_connection() {
    let _alone = alone();
    let _dog = Watchdog::new("garbage server");
    let Some(domain) = domain() else { return };
    if !domain.has_sockets() {
        return;
    }
    let answers: [&[u8]; 4] = [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        &[0; 512],
        &[0xff; 9],
    ];
    let attempt = |answer: &'static [u8]| {
        let server = TcpListener::bind((node(), 0)).expect("binds");
        let addr = PeerAddr::from(server.local_addr().expect("bound"));
        let serve = std::thread::spawn(move || {
            let (mut stream, _) = server.accept().expect("the client connects");
            // Hangs up at the end, with the client's hello unread or not.
            let _ = stream.write_all(answer);
        });
        let config = common::sending().connection(|c| c.connect_timeout(millis(500)));
        let mut sender = SendEndpointZeroCopy::connect(&domain, addr, config).expect("begins");
        let mut events = Vec::new();
        drive("the end", SOON, || {
            sender.poll(&mut events).expect("polls");
            send_end(&events).is_some()
        });
        serve.join().expect("no panic");
        send_end(&events).expect("ended")
    };
    attempt(b"");
    let fds = fd_count();
    for answer in answers {
        let reason = attempt(answer);
        let expected = matches!(
            reason,
            CloseReason::ConnectFailed(_) | CloseReason::ConnectTimedOut
        );
        assert!(expected, "{answer:?}: {reason}");
    }
    assert_fds_back(fds, SOON, || ());
}

// ---- after a valid hello ------------------------------------------------------------------------

/// A raw client with a valid hello does something; gives why its connection ended. A good client
/// must not notice.
fn end_after(header_mode: u8, mut misbehave: impl FnMut(&mut RawPeer, u32)) -> Option<CloseReason> {
    let _alone = alone();
    let _dog = Watchdog::new("misbehaviour");
    let domain = domain()?;
    let elsewhere = common::domain().expect("there is one already");
    let mut pair = Pair::with(&domain, common::sending(), patient_for(PATIENT));
    let addr = pair.receiver().local_addr();
    let mut peer = RawPeer::connect(&elsewhere, addr, &hello(header_mode));
    let mut connected = false;
    pair.until("the raw peer is connected", |pair| {
        connected |= peer.poll() == Some(RawEvent::Connected);
        let accepted = |e: &ReceiveEvent| {
            matches!(
                e,
                ReceiveEvent::Connection(_, ConnectionEvent::Connected(_))
            )
        };
        connected && pair.received.iter().any(accepted)
    });
    let mut round = 0;
    // What arrives stays in the list, so that its buffers do not come back.
    pair.until("its connection is closed", |pair| {
        misbehave(&mut peer, round);
        round += 1;
        peer.poll();
        !receive_ends(&pair.received).is_empty()
    });
    let ends = receive_ends(&pair.received);
    assert_eq!(ends.len(), 1, "one connection ends: {ends:?}");
    pair.received.clear();
    assert_serves(&mut pair, &domain);
    Some(ends[0].1)
}

/// The same, with the messages sent once; the end must be a violation.
fn violation_of(header_mode: u8, messages: &[(&[u8], Option<u64>)]) -> Option<Violation> {
    let end = end_after(header_mode, |peer, round| {
        if round == 0 {
            for (bytes, data) in messages {
                peer.send(bytes, *data);
            }
        }
    })?;
    match end {
        CloseReason::Violation(violation) => Some(violation),
        other => panic!("{other}"),
    }
}

#[test]
fn more_messages_than_were_granted_end_the_connection() {
    let end = end_after(0, |peer, round| {
        if round < 400 {
            peer.send(b"one more", None);
        }
    });
    let Some(end) = end else { return };
    assert!(
        matches!(end, CloseReason::Violation(Violation::Credit(_))),
        "{end}"
    );
}

#[test]
fn a_message_longer_than_the_buffers_ends_the_connection() {
    // A card says "local length error", of which libfabric makes that.
    let Some(domain) = domain() else { return };
    let by_card = domain.fabric().provider().delivers_alone;
    let long = vec![7; 100_000];
    let end = end_after(0, |peer, round| {
        if round == 0 {
            peer.send(&long, None);
        }
    });
    let Some(end) = end else { return };
    // The provider truncates it, and says so; how long it was it does not always say.
    let truncated = match end {
        CloseReason::Violation(Violation::TooLong { .. }) => true,
        CloseReason::PeerLost { errno: Some(errno) } => {
            errno.get() == libfabric_sys::FI_ETRUNC || (by_card && errno.get() == libc::EIO)
        }
        _ => false,
    };
    assert!(truncated, "{end}");
}

#[test]
fn control_messages_that_make_no_sense_end_the_connection() {
    let (short, noise) = (&control(2, 0)[..9], [0xab; 32]);
    let (bye, credit) = (control(2, 0), control(1, u64::MAX));
    let cases: [(&str, &[u8], u64); 8] = [
        ("garbage", &noise, cq_data(1)),
        ("a short bye", short, cq_data(2)),
        ("an empty one", &[], cq_data(2)),
        ("an unknown kind", &bye, cq_data(99)),
        ("a reserved kind", &bye, cq_data(3)),
        ("another connection's index", &bye, cq_data(2) | 5),
        ("a kind that is not the body's", &bye, cq_data(1)),
        ("credit nobody can have", &credit, cq_data(1)),
    ];
    for (what, bytes, data) in cases {
        let Some(violation) = violation_of(0, &[(bytes, Some(data))]) else {
            return;
        };
        println!("{what}: {violation}");
    }
}

#[test]
fn a_goodbye_that_is_wrong_ends_the_connection() {
    let Some(early) = violation_of(
        0,
        &[
            (b"one", None),
            (b"two", None),
            (&control(2, 1), Some(cq_data(2))),
        ],
    ) else {
        return;
    };
    assert!(matches!(early, Violation::Count { .. }), "{early}");
    let two_byes = [
        (&control(2, 9)[..], Some(cq_data(2))),
        (&control(2, 9)[..], Some(cq_data(2))),
    ];
    let second = violation_of(0, &two_byes).expect("there is libfabric");
    assert!(matches!(second, Violation::OutOfTurn(_)), "{second}");
    let data_after = [(&control(2, 9)[..], Some(cq_data(2))), (&b"late"[..], None)];
    let after = violation_of(0, &data_after).expect("there is libfabric");
    assert!(matches!(after, Violation::OutOfTurn(_)), "{after}");
}

#[test]
fn a_message_that_ends_before_its_header_ends_the_connection() {
    let Some(violation) = violation_of(1, &[(&[200, 0, 1, 2, 3], None)]) else {
        return;
    };
    assert!(matches!(violation, Violation::Malformed(_)), "{violation}");
}

#[test]
fn the_same_grant_again_and_again_ends_the_connection() {
    let grant = control(1, 0);
    let end = end_after(0, |peer, _| peer.send(&grant, Some(cq_data(1))));
    let Some(reason) = end else { return };
    let repeated = CreditError::Repeated { granted: 0 };
    assert_eq!(reason, CloseReason::Violation(Violation::Credit(repeated)));
}

#[test]
fn a_peer_that_offers_no_heartbeats_and_says_nothing_is_lost() {
    let _alone = alone();
    let _dog = Watchdog::new("silence");
    let Some(domain) = domain() else { return };
    let elsewhere = common::domain().expect("there is one already");
    let silence = millis(300);
    let config =
        small_receiver().connection(|c| c.unresponsive_after(None).lost_after(Some(silence)));
    let mut receiver = ReceiveEndpoint::listen(&domain, any_port(), config).expect("listens");
    // Its hello has no feature bit.
    let mut peer = RawPeer::connect(&elsewhere, receiver.local_addr(), &hello(0));
    let mut events = Vec::new();
    drive("it is given up", Duration::from_secs(60), || {
        peer.poll();
        receiver.poll(&mut events).expect("polls");
        !receive_ends(&events).is_empty()
    });
    assert_eq!(
        receive_ends(&events)[0].1,
        CloseReason::PeerSilent { silence }
    );
    let accepted = |e: &ReceiveEvent| {
        matches!(
            e,
            ReceiveEvent::Connection(_, ConnectionEvent::Connected(_))
        )
    };
    assert!(events.iter().any(accepted), "{events:?}");
}
