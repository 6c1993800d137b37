//! Clients that are gone, and channels that end, with transfers in flight.

use super::*;
use std::collections::BTreeMap;

/// Eight transfers: of a client that is known, and of one that never was.
fn begin(rig: &mut Rig, clients: &[&WindowClient; 2], time: Duration) {
    for key in 0..4 {
        for (at, client) in clients.iter().enumerate() {
            let deadline = rig.now() + time;
            let key = key * 2 + at as u64;
            if key % 4 < 2 {
                let payload = rig.filled(1 << 20, 1).freeze(1 << 20);
                let get = rig
                    .channel
                    .handle_get(&client.token(), 0, payload, key, deadline);
                get.expect("accepted");
            } else {
                let into = rig.pool.try_acquire().expect("a free buffer");
                let into = crate::endpoint::Destination::buffer(into, 1 << 20);
                let put = rig
                    .channel
                    .handle_put(&client.token(), 0, into, key, deadline);
                put.expect("accepted");
            }
        }
    }
}

/// Outcomes, by key; each has one.
fn outcomes(events: &[ChannelEvent]) -> BTreeMap<u64, &ChannelEvent> {
    let mut found = BTreeMap::new();
    for event in events.iter().filter(|event| event.is_outcome()) {
        assert!(
            found.insert(event.key(), event).is_none(),
            "two outcomes: {event:?}"
        );
    }
    found
}

fn opened(fabric: &Arc<Fabric>) -> (Rig, WindowClient, WindowClient) {
    let mut rig = Rig::over(fabric, ObjectServerConfig::default());
    let (mut known, stranger) = (rig.client(1 << 20), rig.client(1 << 20));
    rig.get_and_put(&mut known, 0, 100);
    (rig, known, stranger)
}

#[test]
fn a_channel_that_is_closed_tells_of_everything() {
    for fabric in fabrics() {
        let provider = fabric.provider().name;
        let (mut rig, known, stranger) = opened(&fabric);
        begin(&mut rig, &[&known, &stranger], SOON);
        let events = rig.close_within(Duration::from_millis(20));
        let told = outcomes(&events);
        assert_eq!(told.len(), 8);
        for (key, event) in told {
            let (ChannelEvent::WriteFailed { error, .. } | ChannelEvent::ReadFailed { error, .. }) =
                event
            else {
                panic!("{event:?}");
            };
            assert_eq!(error.posted, key % 2 == 0, "{provider} {key}: {error}");
        }
        drop(events);
        assert_eq!(rig.pool.free_count(), 8);
    }
}

/// What is in flight when it is closed has its time.
#[test]
fn a_channel_that_is_closed_finishes_what_it_has() {
    for fabric in fabrics() {
        let (mut rig, known, stranger) = opened(&fabric);
        rig.real_time();
        begin(&mut rig, &[&known, &stranger], SOON);
        let driven = [known.drive(), stranger.drive()];
        let events = rig.close_within(SOON);
        assert_eq!(outcomes(&events).len(), 8);
        let done = |event: &ChannelEvent| {
            matches!(
                event,
                ChannelEvent::Written { .. } | ChannelEvent::Read { .. }
            )
        };
        assert!(events.iter().all(done), "{events:?}");
        driven.into_iter().for_each(|it| drop(it.stop()));
    }
}

#[test]
fn a_channel_that_is_dropped_gives_everything_back() {
    for fabric in fabrics() {
        let provider = fabric.provider().name;
        for order in 0..3 {
            let (mut rig, known, stranger) = opened(&fabric);
            // Late ones among them.
            begin(&mut rig, &[&known, &stranger], SHORT);
            if order == 2 {
                while rig.events.len() < 8 {
                    rig.channel.poll(&mut rig.events).expect("it polls");
                    rig.pass();
                }
            }
            let Rig {
                channel,
                events,
                pool,
                server,
                fabric,
            } = rig;
            if order == 1 {
                drop((known, stranger, server));
            }
            drop(channel);
            drop(events);
            assert_eq!(pool.free_count(), 8, "{provider}, order {order}");
            drop(fabric);
        }
    }
}

/// Whoever is gone fails by what the provider says, or at the deadline.
#[test]
fn who_is_gone_fails_alone() {
    for fabric in fabrics() {
        let provider = fabric.provider().name;
        let (mut rig, mut known, mut stranger) = opened(&fabric);
        let mut good = rig.client(1 << 20);
        begin(&mut rig, &[&known, &stranger], 3 * SHORT);
        known.go();
        stranger.go();
        let mut told = 0;
        while told < 8 || rig.channel.stats().late > 0 || !rig.events.is_empty() {
            let event = rig.next(&mut [&mut good]);
            let failed = matches!(
                event,
                ChannelEvent::WriteFailed { .. } | ChannelEvent::ReadFailed { .. }
            );
            assert_eq!(failed, event.is_outcome(), "{provider}: {event:?}");
            told += usize::from(failed);
        }
        rig.get_and_put(&mut good, 3, 1 << 19);
        rig.events.clear();
        assert_eq!((rig.channel.stats().failed, rig.pool.free_count()), (8, 8));
    }
}

/// What the provider may touch for ever is never freed, and that is counted.
#[test]
fn what_an_endpoint_that_would_not_close_holds_is_leaked() {
    let Some(fabric) = rig::any_fabric() else {
        return;
    };
    let (mut rig, known, stranger) = opened(&fabric);
    begin(&mut rig, &[&known, &stranger], SHORT);
    rig.channel.core.engine.refuses_close = true;
    let mut told = 0;
    let until = Instant::now() + SOON;
    while told < 8 || rig.channel.stats().late > 0 {
        assert!(Instant::now() < until, "{:?}", rig.channel.stats());
        rig.channel.poll(&mut rig.events).expect("it polls");
        rig.pass();
        for event in rig.events.drain(..) {
            let (ChannelEvent::WriteFailed { payload: None, .. }
            | ChannelEvent::ReadFailed { into: None, .. }) = event
            else {
                assert!(event.key() % 2 == 1, "it was posted: {event:?}");
                told += 1;
                continue;
            };
            told += 1;
        }
    }
    assert_eq!(rig.channel.stats().leaked, 4);
    assert_eq!(rig.pool.free_count(), 4);
    drop(rig.channel);
    assert_eq!(rig.pool.free_count(), 4);
    // Their endpoint is open for ever, and may touch them.
    std::mem::forget((known, stranger, rig.pool, rig.server));
}
