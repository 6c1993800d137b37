//! Streams of small messages that the kernel gathers: the fake one acknowledges nothing, so what it
//! gathers leaves when it is told to, and not before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::buffer::{HeaderSlotConfig, HeaderSlotManager, SharedBufferManager};
use crate::clock::Clock;
use crate::endpoint::ReceiveConfig;
use crate::endpoint::error::{Blocked, SendErrorKind};
use crate::endpoint::event::{ReceiveEvent, SendEvent};
use crate::endpoint::hub::in_flight_max::InFlightMax;
use crate::endpoint::link::fake::NetConfig;
use crate::endpoint::link::provider::ProviderLink;
use crate::endpoint::receive::ReceiveEndpoint;
use crate::endpoint::reconnect::{ReconnectPolicy, Redial};
use crate::endpoint::send::core::SendCore;
use crate::endpoint::testing::rig::{Rig, Setup, send_settings};
use crate::event_loop::WaitSource;
use crate::fabric::{EndpointKind, EndpointSettings, Fabric};
use crate::protocol::connection::{Form, State};

/// Messages by which a stream is known; the last of them is gathered.
const STREAM: u64 = 36;
/// Payloads are of 8 bytes or of 200, and headers of 10.
const SMALL: u64 = 100;

fn gathering() -> Setup {
    let setup = Setup {
        depth: 128,
        header_slots: 128,
        payloads: 128,
        receive_depth: 64,
        receive_slots: 160,
        ..Setup::default()
    };
    Setup {
        net: NetConfig {
            gathers_below: Some(SMALL),
            ..setup.net
        },
        ..setup
    }
}

fn send_all(rig: &mut Rig, keys: std::ops::Range<u64>) {
    for key in keys {
        rig.send(key)
            .unwrap_or_else(|refused| panic!("{key}: {refused}"));
    }
}

/// A poll that nobody asked for.
fn poll(rig: &mut Rig) {
    let mut events = Vec::new();
    rig.sender().poll(&mut events).unwrap();
    rig.absorb(events);
}

/// Lets the receiver have what leaves.
fn receive(rig: &mut Rig) {
    rig.net.deliver(usize::MAX);
    for _ in 0..8 {
        rig.poll_receiver();
    }
}

/// How many messages were gathered, in how many streams, and how many of these a poll ended.
fn told(rig: &mut Rig) -> (u64, u64, u64) {
    let stats = rig.sender().stats();
    (
        stats.gathered.messages,
        stats.gathered.streams,
        stats.gathered.let_go,
    )
}

#[test]
fn a_stream_is_gathered_and_the_second_poll_behind_it_lets_it_go() {
    let mut rig = gathering().connected();
    send_all(&mut rig, 0..STREAM + 8);
    assert_eq!(told(&mut rig), (9, 1, 0), "from the 36th on");
    rig.net.deliver(usize::MAX);
    poll(&mut rig);
    assert_eq!(rig.net.deliver(usize::MAX), 0, "more may come");
    poll(&mut rig);
    assert_eq!(told(&mut rig), (9, 1, 1));
    rig.settle();
    let all: Vec<_> = (0..STREAM + 8).collect();
    assert_eq!((&rig.received, &rig.completed), (&all, &all));
    rig.check_all_back();
    rig.end();
}

#[test]
fn while_polls_find_that_more_was_sent_the_kernel_goes_on() {
    let mut rig = gathering().connected();
    for key in 0..STREAM + 8 {
        rig.send(key).unwrap();
        poll(&mut rig);
    }
    assert_eq!(told(&mut rig), (9, 1, 0));
    rig.settle();
    assert_eq!(rig.received.len() as u64, STREAM + 8);
    rig.end();
}

#[test]
fn a_lone_message_is_never_gathered_however_seldom_anybody_polls() {
    let mut rig = gathering().connected();
    for key in 0..60 {
        rig.pass(Duration::from_micros(9));
        rig.send(key).unwrap();
        assert_eq!(rig.net.deliver(usize::MAX), 1, "{key}");
    }
    assert_eq!(told(&mut rig), (0, 0, 0));
    rig.settle();
    rig.end();
}

#[test]
fn a_lone_message_behind_a_stream_leaves_at_once_with_all_before_it() {
    let mut rig = gathering().connected();
    send_all(&mut rig, 0..STREAM + 8);
    rig.pass(Duration::from_micros(9));
    rig.send(STREAM + 8).unwrap();
    receive(&mut rig);
    assert_eq!(rig.received.len() as u64, STREAM + 9);
    assert_eq!(told(&mut rig), (9, 1, 0), "no poll did");
    rig.settle();
    rig.end();
}

#[test]
fn what_is_gathered_leaves_after_50_microseconds_while_more_comes() {
    let mut rig = gathering().connected();
    send_all(&mut rig, 0..STREAM);
    for key in STREAM..STREAM + 13 {
        rig.pass(Duration::from_micros(4));
        rig.send(key).unwrap();
    }
    let stats = rig.sender().stats();
    assert_eq!((stats.gathered.streams, stats.gathered.pushed), (1, 1));
    poll(&mut rig);
    poll(&mut rig);
    assert_eq!(told(&mut rig), (14, 1, 1));
    rig.settle();
    assert_eq!(rig.received.len() as u64, STREAM + 13);
    rig.end();
}

#[test]
fn a_message_above_the_size_leaves_at_once_with_all_before_it() {
    let mut rig = gathering().connected();
    for key in 0..STREAM + 1 {
        rig.send_long(key).unwrap();
        assert_eq!(rig.net.deliver(usize::MAX), 1);
    }
    rig.settle();
    assert_eq!(told(&mut rig), (0, 0, 0));
    send_all(&mut rig, 100..100 + STREAM + 8);
    rig.send_long(200).unwrap();
    receive(&mut rig);
    assert_eq!(rig.received.last(), Some(&200));
    rig.settle();
    rig.end();
}

#[test]
fn a_stream_that_the_peer_has_no_credits_for_goes_as_far_as_they_do() {
    let mut rig = Setup {
        receive_depth: 44,
        ..gathering()
    }
    .connected();
    send_all(&mut rig, 0..44);
    let blocked = SendErrorKind::WouldBlock(Blocked::Credits);
    assert_eq!(rig.send(44), Err(blocked));
    rig.net.deliver(usize::MAX);
    poll(&mut rig);
    poll(&mut rig);
    receive(&mut rig);
    assert_eq!(rig.received.len(), 44, "or there would be no grant, ever");
    rig.settle();
    send_all(&mut rig, 44..54);
    assert_eq!(
        told(&mut rig),
        (9 + 7, 2, 1),
        "it goes on, but for three messages"
    );
    rig.settle();
    assert_eq!(rig.received.len(), 54);
    rig.end();
}

#[test]
fn nobody_sleeps_while_the_kernel_gathers() {
    let mut rig = gathering().connected();
    let wait = Arc::clone(rig.sender().wait());
    poll(&mut rig);
    assert!(wait.prepare_wait().unwrap(), "nothing to do");
    send_all(&mut rig, 0..STREAM);
    assert!(!wait.prepare_wait().unwrap());
    poll(&mut rig);
    assert!(!wait.prepare_wait().unwrap(), "it may be gathering yet");
    poll(&mut rig);
    assert!(wait.prepare_wait().unwrap(), "all went");
    // Somebody sleeps: they are woken.
    send_all(&mut rig, STREAM..STREAM + 4);
    assert!(!wait.prepare_wait().unwrap());
    rig.settle();
    assert_eq!(rig.received.len() as u64, STREAM + 4);
    rig.end();
}

#[test]
fn a_connection_that_ends_while_its_messages_are_gathered_lets_its_thread_sleep() {
    for fails in [false, true] {
        let mut rig = gathering().connected();
        let wait = Arc::clone(rig.sender().wait());
        send_all(&mut rig, 0..STREAM + 8);
        if fails {
            rig.sender().hub().fail("as a test says, between two polls");
        } else {
            rig.receiver = None;
        }
        for _ in 0..3 {
            rig.poll_sender();
            rig.net.deliver(usize::MAX);
        }
        // `poll_sender` wakes before it polls; this poll was not asked for.
        rig.sender().poll(&mut Vec::new()).unwrap();
        assert!(rig.owed.is_empty() && rig.ended.is_some(), "{fails}");
        assert!(wait.prepare_wait().unwrap(), "{fails}");
        rig.end();
    }
}

#[test]
fn nothing_is_gathered_where_the_setting_says_so_or_the_kernel_can_t_be_told() {
    let off = Setup {
        gather: false,
        ..gathering()
    };
    let mut cannot = gathering();
    cannot.net.can_gather = false;
    for setup in [off, cannot] {
        let mut rig = setup.connected();
        send_all(&mut rig, 0..60);
        receive(&mut rig);
        assert_eq!(rig.received.len(), 60);
        assert_eq!(told(&mut rig).1, 0);
        let wait = Arc::clone(rig.sender().wait());
        poll(&mut rig);
        poll(&mut rig);
        assert!(wait.prepare_wait().unwrap());
        rig.settle();
        rig.end();
    }
}

/// A sender over tcp, whose clock stands still, and its receiver.
struct OverTcp {
    sender: SendCore<ProviderLink>,
    receiver: ReceiveEndpoint,
    clock: Clock,
    payloads: SharedBufferManager,
    received: Vec<u64>,
    completed: u64,
    events: Vec<SendEvent>,
    begun: Instant,
}

impl OverTcp {
    fn new(gather: bool) -> Option<Self> {
        let fabric = Fabric::builder().provider("tcp").node("127.0.0.1");
        let domain = match fabric.endpoint_kind(EndpointKind::Msg).open() {
            Ok(fabric) => fabric.open_domain().unwrap(),
            Err(error) => {
                println!("SKIPPED: {error}");
                return None;
            }
        };
        let config = ReceiveConfig::default()
            .incoming(|incoming| incoming.max_message(1024).slots(512).credits(200));
        let any = "127.0.0.1:0".parse().unwrap();
        let receiver = ReceiveEndpoint::listen(&domain, any, config).unwrap();
        let clock = Clock::held();
        let setup = Setup {
            gather,
            ..gathering()
        };
        let headers = HeaderSlotManager::new(HeaderSlotConfig {
            slots: 128,
            slot_size: 64,
        });
        let headers = headers.unwrap();
        headers.region().register(&domain).unwrap();
        let payloads = SharedBufferManager::allocate(128, 64).unwrap();
        payloads.region().register(&domain).unwrap();
        let settings = send_settings(&setup, &Arc::default(), &headers);
        let receives = settings.receives(Form::Msg).max as usize;
        let sizes = InFlightMax::of_hub(&settings, Form::Msg, receives).queue_sizes();
        let link = ProviderLink::dial(&domain, sizes, &EndpointSettings::default()).unwrap();
        let (waiter, to) = (link.waiter(), receiver.local_addr());
        let redial = Redial::new(ReconnectPolicy::off(), 1);
        let sender = SendCore::connect(link, waiter, clock.clone(), to, settings, redial);
        let mut this = Self {
            sender: sender.unwrap(),
            receiver,
            clock,
            payloads,
            received: Vec::new(),
            completed: 0,
            events: Vec::new(),
            begun: Instant::now(),
        };
        while this.sender.state() != State::Established {
            this.poll();
            this.receive();
        }
        Some(this)
    }

    fn send(&mut self, key: u64) {
        let mut buffer = self.payloads.try_acquire().unwrap();
        buffer[..8].copy_from_slice(&key.to_le_bytes());
        let sent = self
            .sender
            .send_data(buffer.freeze(8).into(), &[0; 10], key);
        sent.unwrap_or_else(|refused| panic!("{key}: {refused}"));
    }

    fn poll(&mut self) {
        assert!(self.begun.elapsed() < Duration::from_secs(60), "no end");
        self.sender.poll(&mut self.events).unwrap();
        for event in self.events.drain(..) {
            self.completed += u64::from(matches!(event, SendEvent::Completed { .. }));
        }
    }

    fn receive(&mut self) {
        let mut events = Vec::new();
        self.receiver.poll(&mut events).unwrap();
        for event in events {
            if let ReceiveEvent::Message(message) = event {
                let key = message.payload().try_into().unwrap();
                self.received.push(u64::from_le_bytes(key));
            }
        }
    }

    /// Until so many are received, while the sender polls, or does not.
    fn until(&mut self, all: u64, polls: bool) {
        while (self.received.len() as u64) < all || self.completed < all {
            self.receive();
            if polls || self.received.len() as u64 == all {
                self.poll();
            }
            assert!(self.begun.elapsed() < Duration::from_secs(60), "no end");
        }
        assert!(self.received.iter().copied().eq(0..all), "in order");
    }
}

#[test]
fn over_tcp_a_stream_is_gathered_and_lone_messages_are_not() {
    let Some(mut tcp) = OverTcp::new(true) else {
        return;
    };
    for key in 0..50 {
        tcp.clock.advance(Duration::from_micros(9));
        tcp.send(key);
    }
    // None of them needs the sender's poll.
    tcp.until(50, false);
    assert_eq!(tcp.sender.stats().gathered.messages, 0);
    for round in 0..20 {
        for key in 50 + 100 * round..150 + 100 * round {
            tcp.send(key);
        }
        tcp.until(150 + 100 * round, true);
    }
    let stats = tcp.sender.stats();
    assert!(stats.gathered.messages > 1500, "{stats:?}");
    assert!(stats.gathered.let_go > 0, "{stats:?}");
    tcp.poll();
    tcp.poll();
    let stats = tcp.sender.stats();
    assert_eq!(stats.gathered.streams, stats.gathered.let_go);
}

#[test]
fn over_tcp_nothing_is_gathered_where_the_setting_says_so() {
    let Some(mut tcp) = OverTcp::new(false) else {
        return;
    };
    for key in 0..100 {
        tcp.send(key);
    }
    tcp.until(100, false);
    assert_eq!(tcp.sender.stats().gathered.messages, 0);
}
