//! Connections that a receiver does not take: each is told why before it is left.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use crate::endpoint::{ConnectionId, ReceiveEvent};
use crate::stream::chaos::over_both;
use crate::stream::outbox::Outbox;
use crate::stream::sender::{self, SenderConfig};
use crate::stream::wire::{Features, Hello, Message, OLDEST, VERSION};
use crate::stream::{DiscardSink, Limits, RefusalCode};

const PATIENCE: Duration = Duration::from_secs(60);

/// One connection to a receiver, which says what it is told to.
struct Caller {
    endpoint: DuplexEndpoint,
    connection: ConnectionId,
    control: SharedBufferManager,
    outbox: Outbox,
    is_connected: bool,
    /// It was welcomed.
    is_taken: bool,
    refused: Option<(RefusalCode, String)>,
    is_over: bool,
}

impl Caller {
    fn new(domain: &Arc<Domain>, to: PeerAddr) -> Self {
        let config = sender::duplex(domain, &SenderConfig::default(), 1).unwrap();
        let mut endpoint = DuplexEndpoint::dialing(domain, &config).unwrap();
        Self {
            connection: endpoint.dial(&to).unwrap(),
            endpoint,
            control: control_pool(&[Arc::clone(domain)]).unwrap(),
            outbox: Outbox::default(),
            is_connected: false,
            is_taken: false,
            refused: None,
            is_over: false,
        }
    }

    fn hello(domain: &Arc<Domain>, to: PeerAddr, session: u8, rail: u16) -> Self {
        let mut this = Self::new(domain, to);
        this.outbox.push(&Message::Hello(Hello {
            version: VERSION,
            oldest: OLDEST,
            rail,
            rails: 2,
            features: Features::RAILS,
            session: [session; 16],
            nonce: [1; 32],
        }));
        this
    }

    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let (by, mut events) = (Instant::now() + PATIENCE, Vec::new());
        while !done(self) {
            assert!(Instant::now() < by, "{what}: {:?}", self.refused);
            self.endpoint.poll(&mut events).unwrap();
            for event in events.drain(..) {
                self.on_event(event);
            }
            if self.is_connected && !self.is_over {
                self.outbox
                    .pump(&mut self.endpoint, self.connection, &self.control);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn on_event(&mut self, event: ReceiveEvent) {
        match event {
            ReceiveEvent::Connected { .. } => self.is_connected = true,
            ReceiveEvent::Disconnected { .. } => self.is_over = true,
            ReceiveEvent::Message(message) => {
                match Message::parse(message.header(), message.payload()).unwrap() {
                    Message::HelloAck(_) => self.is_taken = true,
                    Message::Refuse(it) => self.refused = Some((it.code, it.reason.to_string())),
                    other => panic!("{other:?}"),
                }
            }
            _ => {}
        }
    }

    /// It is told this, and then left.
    fn assert_refused(&mut self, code: RefusalCode) -> String {
        self.until("the end", |it| it.is_over);
        let (said, reason) = self.refused.take().expect("it is told why");
        assert_eq!(said, code, "{reason}");
        reason
    }
}

fn receiver(domain: &Arc<Domain>, config: ReceiverConfig) -> StreamReceiver {
    let addr = "127.0.0.1:0".parse().unwrap();
    StreamReceiver::listen(domain, addr, config).unwrap()
}

fn config() -> ReceiverConfig {
    ReceiverConfig::new(DiscardSink).block_bytes(8192)
}

#[test]
fn who_does_not_say_who_it_is_hears_that_its_time_is_over() {
    over_both(|domain| {
        let time = Duration::from_millis(200);
        let receiver = receiver(domain, config().handshake_timeout(time));
        let mut silent = Caller::new(domain, receiver.local_addr());
        silent.until("a connection", |it| it.is_connected);
        let began = Instant::now();
        silent.assert_refused(RefusalCode::DEADLINE);
        let took = began.elapsed();
        assert!(took >= time / 2, "{took:?}");
        match receiver.next(PATIENCE) {
            Some(StreamNews::Refused { code, .. }) => assert_eq!(code, RefusalCode::DEADLINE),
            other => panic!("{other:?}"),
        }
        receiver.stop(Instant::now());
    });
}

#[test]
fn the_number_of_a_rail_is_used_once_and_of_sessions_there_are_as_many_as_may_be() {
    over_both(|domain| {
        let config = config().limits(Limits::default().streams(1));
        let receiver = receiver(domain, config.stalled_after(PATIENCE));
        let to = receiver.local_addr();
        let mut first = Caller::hello(domain, to, 7, 0);
        first.until("a welcome", |it| it.is_taken);
        let mut twin = Caller::hello(domain, to, 7, 0);
        let reason = twin.assert_refused(RefusalCode::ALREADY);
        assert!(reason.contains("of this number"), "{reason}");
        let mut second = Caller::hello(domain, to, 7, 1);
        second.until("a welcome", |it| it.is_taken);
        Caller::hello(domain, to, 8, 0).assert_refused(RefusalCode::BUSY);
        // A number is not used again after its connection has gone.
        second.endpoint.abort_connection(second.connection);
        Caller::hello(domain, to, 7, 1).assert_refused(RefusalCode::ALREADY);
        assert!(
            first.refused.is_none() && !first.is_over,
            "{:?}",
            first.refused
        );
        receiver.stop(Instant::now());
    });
}
