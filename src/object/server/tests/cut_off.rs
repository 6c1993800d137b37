//! Clients that do not answer in time.

use super::*;

/// Takes a client in, so that it can be late.
fn meet(rig: &mut Rig, client: &mut WindowClient) {
    rig.get_and_put(client, 0, 100);
}

fn get(rig: &mut Rig, client: &WindowClient, len: usize, key: u64, time: Duration) {
    let payload = rig.filled(len, 1).freeze(len);
    let deadline = rig.now() + time;
    let accepted = rig
        .channel
        .handle_get(&client.token(), 0, payload, key, deadline);
    accepted.expect("accepted");
}

fn put(rig: &mut Rig, client: &WindowClient, len: usize, key: u64, time: Duration) {
    let into = rig.pool.try_acquire().expect("a free buffer");
    let into = crate::endpoint::Destination::buffer(into, len);
    let deadline = rig.now() + time;
    let accepted = rig
        .channel
        .handle_put(&client.token(), 0, into, key, deadline);
    accepted.expect("accepted");
}

/// Whoever never answered was sent nothing, and everything comes back at once.
#[test]
fn who_never_polls_is_cut_off_and_was_sent_nothing() {
    for fabric in fabrics() {
        let provider = fabric.provider().name;
        let mut rig = Rig::over(&fabric, ObjectServerConfig::default());
        let (silent, mut good) = (rig.client(4096), rig.client(4096));
        get(&mut rig, &silent, 4096, 7, SHORT);
        put(&mut rig, &silent, 4096, 8, SHORT);
        let mut others = 0;
        let mut over = Vec::new();
        while over.len() < 2 {
            get(&mut rig, &good, 1000, 1, SOON);
            loop {
                match rig.next(&mut [&mut good]) {
                    ChannelEvent::Written { key: 1, .. } => break,
                    other => over.push(other),
                }
            }
            others += 1;
        }
        over.sort_by_key(ChannelEvent::key);
        for event in over {
            let error = match event {
                ChannelEvent::WriteFailed {
                    key: 7,
                    payload: Some(_),
                    error,
                } => error,
                ChannelEvent::ReadFailed {
                    key: 8,
                    into: Some(_),
                    error,
                } => error,
                other => panic!("{provider}: {other:?}"),
            };
            assert_eq!(error.kind, TransferErrorKind::Deadline);
            assert!(!error.posted, "{provider}");
        }
        assert!(others > 0 && silent.copy().iter().all(|byte| *byte == 0));
        let stats = rig.channel.stats();
        assert_eq!((stats.cut_off, stats.late, stats.resets), (2, 0, 0));
        assert_eq!(rig.pool.free_count(), 8);
    }
}

/// Whoever stops in the middle is told of at the deadline; the memory comes back behind that, and
/// those who are in time notice nothing.
#[test]
fn who_stops_in_the_middle_is_cut_off_and_the_memory_comes_back() {
    for fabric in fabrics() {
        let provider = fabric.provider().name;
        let mut rig = Rig::over(&fabric, ObjectServerConfig::default());
        let (mut late, mut good) = (rig.client(2 << 20), rig.client(2 << 20));
        meet(&mut rig, &mut late);
        meet(&mut rig, &mut good);
        get(&mut rig, &late, 2 << 20, 7, SHORT);
        put(&mut rig, &late, 2 << 20, 8, SHORT);
        let (mut told, mut returned) = (Vec::new(), Vec::new());
        while returned.len() < 2 {
            get(&mut rig, &good, 1000, 1, SOON);
            put(&mut rig, &good, 1000, 2, SOON);
            let mut done = 0;
            while done < 2 {
                match rig.next(&mut [&mut good]) {
                    ChannelEvent::Written { key: 1, .. } | ChannelEvent::Read { key: 2, .. } => {
                        done += 1;
                    }
                    ChannelEvent::WriteFailed {
                        key: 7,
                        payload: None,
                        error,
                    } => told.push(error),
                    ChannelEvent::ReadFailed {
                        key: 8,
                        into: None,
                        error,
                    } => told.push(error),
                    ChannelEvent::WriteReturned { key, .. } if told.len() == 2 => {
                        returned.push(key);
                    }
                    ChannelEvent::ReadReturned { key, .. } if told.len() == 2 => {
                        returned.push(key);
                    }
                    other => panic!("{provider}: {other:?}"),
                }
            }
        }
        assert!(
            told.iter()
                .all(|it| it.posted && it.kind == TransferErrorKind::Deadline)
        );
        returned.sort_unstable();
        assert_eq!(returned, [7, 8]);
        let stats = rig.channel.stats();
        assert_eq!((stats.cut_off, stats.late, stats.resets), (2, 0, 1));
        assert_eq!((stats.endpoints, rig.pool.free_count()), (1, 8));
        // It answers again, on an endpoint of its own. What was sent before may still come.
        late.drain();
        rig.get_and_put(&mut late, 11, 5000);
        rig.get_and_put(&mut good, 11, 5000);
        assert_eq!(rig.channel.stats().endpoints, 2);
    }
}

/// The endpoint goes on for those who still have time on it.
#[test]
fn a_retiring_endpoint_finishes_what_it_has() {
    for fabric in fabrics() {
        let mut rig = Rig::over(&fabric, ObjectServerConfig::default());
        let (mut late, mut slow) = (rig.client(2 << 20), rig.client(2 << 20));
        meet(&mut rig, &mut late);
        meet(&mut rig, &mut slow);
        get(&mut rig, &slow, 2 << 20, 5, SOON);
        get(&mut rig, &late, 2 << 20, 7, SHORT);
        let event = rig.next(&mut []);
        assert!(matches!(
            event,
            ChannelEvent::WriteFailed {
                key: 7,
                payload: None,
                ..
            }
        ));
        for _ in 0..20 {
            assert_eq!(rig.channel.poll(&mut rig.events).expect("it polls"), 0);
        }
        assert_eq!(rig.channel.stats().late, 1);
        let first = rig.next(&mut [&mut slow]);
        assert!(
            matches!(first, ChannelEvent::Written { key: 5, .. }),
            "{first:?}"
        );
        let second = rig.next(&mut [&mut slow]);
        assert!(
            matches!(second, ChannelEvent::WriteReturned { key: 7, .. }),
            "{second:?}"
        );
        assert!(slow.copy() == pattern(2 << 20, 1), "all of it came");
    }
}

/// However many are late, endpoints are few, and everything comes back in the end.
#[test]
fn endpoints_that_retire_are_bounded() {
    for fabric in fabrics() {
        let config = ObjectServerConfig::default().retiring(1);
        let mut rig = Rig::over(&fabric, config);
        let mut clients: Vec<_> = (0..4).map(|_| rig.client(1 << 20)).collect();
        let mut slow = rig.client(1 << 20);
        meet(&mut rig, &mut slow);
        get(&mut rig, &slow, 1 << 20, 100, SOON);
        for (key, client) in clients.iter_mut().enumerate() {
            meet_beside(&mut rig, client);
            get(&mut rig, client, 1 << 20, key as u64, SHORT);
            let event = rig.next(&mut []);
            let late = matches!(event, ChannelEvent::WriteFailed { payload: None, .. });
            assert!(late && event.key() == key as u64, "{event:?}");
            assert!(
                rig.channel.stats().endpoints <= 3,
                "{:?}",
                rig.channel.stats()
            );
        }
        assert_eq!(rig.channel.stats().late, 4);
        let first = rig.next(&mut [&mut slow]);
        assert!(
            matches!(first, ChannelEvent::Written { key: 100, .. }),
            "{first:?}"
        );
        drop(first);
        let mut back: Vec<_> = (0..4).map(|_| rig.next(&mut [&mut slow]).key()).collect();
        back.sort_unstable();
        assert_eq!(back, [0, 1, 2, 3]);
        let stats = rig.channel.stats();
        assert_eq!((stats.late, stats.open, rig.pool.free_count()), (0, 0, 8));
    }
}

/// As [`meet`], while others are busy.
fn meet_beside(rig: &mut Rig, client: &mut WindowClient) {
    get(rig, client, 100, 1000, SOON);
    let event = rig.next(&mut [client]);
    assert!(
        matches!(event, ChannelEvent::Written { key: 1000, .. }),
        "{event:?}"
    );
}

/// Eight clients that never answer, and a thread that waits for them.
#[test]
fn stalled_clients_cost_little() {
    for fabric in fabrics() {
        let provider = fabric.provider().name;
        let mut rig = Rig::over(&fabric, ObjectServerConfig::default());
        let mut clients: Vec<_> = (0..8).map(|_| rig.client(1 << 20)).collect();
        for client in &mut clients[..4] {
            meet(&mut rig, client);
        }
        rig.real_time();
        let (began, used) = (Instant::now(), thread_time());
        for (key, client) in clients.iter().enumerate() {
            let payload = rig.pool.try_acquire().expect("a free buffer");
            let (token, deadline) = (client.token(), began + Duration::from_secs(1));
            let payload = payload.freeze(1 << 20);
            let get = rig
                .channel
                .handle_get(&token, 0, payload, key as u64, deadline);
            get.expect("accepted");
        }
        while rig.events.len() < 8 {
            rig.channel.wait(SOON).expect("it sleeps");
            rig.channel.poll(&mut rig.events).expect("it polls");
        }
        let (used, passed) = (thread_time() - used, began.elapsed());
        println!("{provider}: {used:?} of {passed:?}");
        assert!(used < passed / 2, "{provider}: {used:?} of {passed:?}");
    }
}

/// What this thread has used of a processor.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
