//! What the registry says is what the events said, whatever becomes of the peers; and what is gone
//! has no entry.

use fabricast::buffer::Payload;
use fabricast::endpoint::{Blocked, CloseReason, HeaderMode};
use fabricast::metrics::{self, EndpointStats, WatchedEntry, WatchedKind, WatchedStats};
use fabricast::{ConnectionEvent, ReceiveEvent, SendEndpointZeroCopy, SendEvent};

use crate::common::{
    Pair, Random, SOON, Watchdog, after, alone, any_port, domain, drive, sending, small_receiver,
};

/// The entries of endpoints called so.
fn named(name: &str) -> Vec<(WatchedKind, EndpointStats)> {
    let entries = metrics::snapshot().into_iter();
    let endpoints = entries.filter(|entry| &*entry.name == name);
    let endpoints = endpoints.filter_map(|entry| match entry.stats {
        WatchedStats::Endpoint(stats) => Some((entry.kind, *stats)),
        _ => None,
    });
    endpoints.collect()
}

fn only(name: &str) -> EndpointStats {
    let found = named(name);
    assert_eq!(found.len(), 1, "{name}: {found:?}");
    found[0].1
}

/// What closed endpoints of a kind counted.
fn closed(kind: WatchedKind) -> EndpointStats {
    let entries = metrics::snapshot().into_iter();
    let mut closed = entries.filter_map(|entry| match entry.stats {
        WatchedStats::Endpoint(stats) if entry.id == 0 && entry.kind == kind => Some(*stats),
        _ => None,
    });
    closed.next().unwrap_or_default()
}

/// What the test itself counted of the events.
#[derive(Debug, Default, PartialEq, Eq)]
struct Heard {
    header: u64,
    sent: u64,
    sent_bytes: u64,
    completed: u64,
    failed: u64,
    blocked: u64,
    received: u64,
    received_bytes: u64,
}

impl Heard {
    fn take(&mut self, pair: &mut Pair) {
        for event in pair.sent.drain(..) {
            match event {
                SendEvent::Completed { .. } => self.completed += 1,
                SendEvent::Failed { .. } => self.failed += 1,
                _ => {}
            }
        }
        for event in pair.received.drain(..) {
            if let ReceiveEvent::Message(message) = event {
                self.received += 1;
                self.received_bytes += message.payload().len() as u64 + self.header;
            }
        }
    }
}

/// Messages of any length; then a side closes, or is dropped, with some in flight.
#[test]
fn the_registry_counts_what_the_events_say() {
    let _alone = alone();
    let Some(domain) = domain() else {
        return;
    };
    let _watchdog = Watchdog::new("the_registry_counts_what_the_events_say");
    let mut random = Random::from_printed_seed("counted");
    for round in 0..12 {
        let (sends, receives) = (
            format!("counted sends {round}"),
            format!("counted receives {round}"),
        );
        let mut pair = Pair::with(
            &domain,
            sending().connection(|c| c.name(&sends)),
            small_receiver().connection(|c| c.name(&receives)),
        );
        let mode = pair.sender().connection_info().map(|info| info.header_mode);
        let mut heard = Heard {
            // A header goes with its length in front of it, where that is not agreed.
            header: match mode {
                Some(HeaderMode::Prefixed) => 4 + 2,
                _ => 4,
            },
            ..Heard::default()
        };
        let before = closed(WatchedKind::Send);
        for key in 0..200 {
            let len = random.below(6000) as usize;
            let (mut payload, bytes) = (None::<Payload>, vec![7; len]);
            drive("a send", SOON, || {
                // What was received and is held, and what is on its way, has buffers.
                let given = match payload.take() {
                    Some(payload) => payload,
                    None if pair.pool.free_count() > 0 => pair.buffer(&bytes).into(),
                    None => {
                        pair.step();
                        heard.take(&mut pair);
                        return false;
                    }
                };
                match pair.sender().send_data(given, b"head", key) {
                    Ok(()) => {
                        heard.sent += 1;
                        heard.sent_bytes += len as u64 + heard.header;
                        return true;
                    }
                    Err(refused) => {
                        assert!(refused.is_would_block(), "{refused}");
                        heard.blocked += 1;
                        payload = Some(refused.given);
                    }
                }
                pair.step();
                heard.take(&mut pair);
                false
            });
        }
        // Some of them are still on their way: it is known which.
        let stats = only(&sends);
        assert_eq!(stats.sends.posted, heard.sent);
        assert_eq!(stats.sends.bytes, heard.sent_bytes);
        assert_eq!(stats.sends.would_block, heard.blocked);
        let by_reason: u64 = Blocked::ALL.map(|why| stats.blocked(why)).iter().sum();
        assert_eq!(by_reason, heard.blocked);
        assert_eq!(stats.connections(), 1);
        match round % 4 {
            // Both sides are there to the end.
            0 => {
                pair.sender().begin_close(after(SOON));
                let mut ended = false;
                drive("the close", SOON, || {
                    pair.step();
                    ended |= pair.sent.iter().any(|event| {
                        matches!(
                            event,
                            SendEvent::Connection(ConnectionEvent::Disconnected(
                                CloseReason::Finished
                            ))
                        )
                    });
                    heard.take(&mut pair);
                    ended && heard.received == heard.sent
                });
                assert_eq!(only(&sends).connections(), 0);
            }
            // The receiver is dropped: what is in flight fails, or had arrived.
            1 => {
                heard.take(&mut pair);
                let receiver = only(&receives);
                assert_eq!(receiver.receives.messages, heard.received);
                assert_eq!(receiver.receives.bytes, heard.received_bytes);
                pair.receiver = None;
                assert_eq!(named(&receives), []);
                drive("the outcomes", SOON, || {
                    pair.step();
                    heard.take(&mut pair);
                    heard.completed + heard.failed == heard.sent
                });
            }
            // The sender is dropped: nobody hears of what is in flight.
            2 => {
                heard.take(&mut pair);
                let in_flight = only(&sends).sends.in_flight;
                assert_eq!(in_flight, heard.sent - heard.completed - heard.failed);
                pair.sender = None;
                assert_eq!(named(&sends), []);
                let after = closed(WatchedKind::Send);
                assert_eq!(after.sends.posted - before.sends.posted, heard.sent);
                assert_eq!(after.sends.abandoned - before.sends.abandoned, in_flight);
                assert_eq!(
                    after.sends.in_flight, 0,
                    "of what is gone nothing is so now"
                );
                assert_eq!(after.connections(), 0);
                continue;
            }
            // Nothing is wrong, and nobody closes.
            _ => drive("all of them", SOON, || {
                pair.step();
                heard.take(&mut pair);
                heard.received == heard.sent && heard.completed == heard.sent
            }),
        }
        heard.take(&mut pair);
        let stats = only(&sends);
        assert_eq!(
            (
                stats.sends.completed,
                stats.sends.failed,
                stats.sends.in_flight
            ),
            (
                heard.completed,
                heard.failed,
                heard.sent - heard.completed - heard.failed
            ),
            "round {round}"
        );
        if pair.receiver.is_some() {
            let stats = only(&receives);
            assert_eq!(
                (stats.receives.messages, stats.receives.bytes),
                (heard.received, heard.received_bytes),
                "round {round}"
            );
        }
        // What the endpoint says by itself is the same.
        let own = pair.sender().stats();
        assert_eq!(
            (own.posted, own.completed, own.packed),
            (stats_of(&sends), heard.completed, only(&sends).sends.packed)
        );
    }
}

fn stats_of(name: &str) -> u64 {
    only(name).sends.posted
}

/// How many entries of each kind live.
fn living() -> usize {
    let entries = metrics::snapshot();
    entries
        .iter()
        .filter(|entry: &&WatchedEntry| entry.id != 0)
        .count()
}

#[test]
fn a_thousand_endpoints_that_came_and_went_leave_no_entry() {
    let _alone = alone();
    let Some(domain) = domain() else {
        return;
    };
    let _watchdog = Watchdog::new("a_thousand_endpoints_that_came_and_went_leave_no_entry");
    let before = living();
    {
        let config = small_receiver().connection(|c| c.max_connections(64).name("churned"));
        let config = config.incoming(|incoming| incoming.slots(512).credits(4));
        let mut receiver =
            fabricast::ReceiveEndpoint::listen(&domain, any_port(), config).expect("listens");
        let (mut events, mut most) = (Vec::new(), 0);
        for _ in 0..25 {
            let senders: Vec<_> = (0..40)
                .map(|_| {
                    let config = sending().connection(|c| c.name("churned"));
                    SendEndpointZeroCopy::connect(&domain, receiver.local_addr(), config)
                })
                .map(|sender| sender.expect("begins to connect"))
                .collect();
            most = most.max(living());
            assert_eq!(named("churned").len(), 41);
            receiver.poll(&mut events).expect("polls");
            events.clear();
            drop(senders);
            assert_eq!(named("churned").len(), 1);
        }
        assert!(most >= before + 40, "{most}, {before} before");
    }
    assert_eq!(named("churned"), []);
    assert_eq!(living(), before);
}
