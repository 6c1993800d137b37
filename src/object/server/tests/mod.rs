//! The server over real providers, within one process: windows of domains of their own, whose
//! endpoints the tests drive, or do not.

mod contact;
mod cut_off;
mod ends;
mod loops;
mod refused;
mod rig;
mod rxm;
mod shm;
mod target;
mod walk;

use super::*;
use rig::{BUFFER, Rig, SOON, WindowClient, fabrics, pattern};
use std::time::{Duration, Instant};

/// Whose budget is to pass.
const SHORT: Duration = Duration::from_millis(150);

/// GET and PUT of all sizes at all places, byte by byte.
#[test]
fn bytes_go_both_ways_and_nowhere_else() {
    for fabric in fabrics() {
        let mut rig = Rig::over(&fabric, ObjectServerConfig::default());
        let mut client = rig.client(3 << 20);
        for (at, len) in [
            (0, 1),
            (1, 2),
            (4095, 4097),
            (7, 70_001),
            (1 << 20, 2 << 20),
            ((3 << 20) - 1, 1),
        ] {
            rig.get_and_put(&mut client, at, len);
        }
        let stats = rig.channel.stats();
        assert_eq!((stats.done, stats.failed, stats.open), (12, 0, 0));
        assert_eq!((stats.endpoints, stats.peers), (1, 1), "{stats:?}");
    }
}

/// What is longer than one operation of the provider, or of more segments.
#[test]
fn long_ones_go_in_pieces() {
    for fabric in fabrics() {
        let mut rig = Rig::over(&fabric, ObjectServerConfig::default().depth(8));
        rig.channel.core.engine.rma.max_bytes = 1000;
        let mut client = rig.client(1 << 20);
        for (at, len) in [(3, 999), (0, 1000), (5, 1001), (100, 300_007)] {
            rig.get_and_put(&mut client, at, len);
        }
        rig.channel.core.engine.rma.max_bytes = 1 << 30;
        rig.channel.core.engine.rma.iov_limit = 2;
        let lens = [1, 4096, 17, 0, 100_000];
        let segments = lens.map(|len| rig.filled(len.max(1), len as u8).freeze(len).into());
        let payload = crate::buffer::Payload::from(Vec::from(segments));
        let deadline = rig.now() + SOON;
        let get = rig
            .channel
            .handle_get(&client.token(), 9, payload, 4, deadline);
        get.expect("accepted");
        let event = rig.next(&mut [&mut client]);
        let ChannelEvent::Written { key: 4, payload } = event else {
            panic!("{event:?}");
        };
        assert_eq!(payload.segments().len(), lens.len(), "as it was given");
        let wanted = lens.map(|len| pattern(len, len as u8)).concat();
        assert_eq!(client.copy()[9..][..wanted.len()], wanted);
        assert_eq!(rig.channel.stats().done, 9);
    }
}

/// Several clients at once, over one channel.
#[test]
fn several_clients_go_at_once() {
    for fabric in fabrics() {
        let mut rig = Rig::over(&fabric, ObjectServerConfig::default());
        let mut clients: Vec<_> = (0..4).map(|_| rig.client(1 << 20)).collect();
        let deadline = rig.now() + SOON;
        for (at, client) in clients.iter().enumerate() {
            for part in 0..2 {
                let payload = rig.filled(500_000, at as u8 + part).freeze(500_000);
                let (token, place) = (client.token(), u64::from(part) << 19);
                let get = rig.channel.handle_get(&token, place, payload, 0, deadline);
                get.expect("accepted");
            }
        }
        for _ in 0..8 {
            let mut all: Vec<_> = clients.iter_mut().collect();
            let event = rig.next(&mut all);
            assert!(matches!(event, ChannelEvent::Written { .. }), "{event:?}");
        }
        for (at, client) in clients.iter().enumerate() {
            let bytes = client.copy();
            for part in 0..2_u8 {
                let got = &bytes[usize::from(part) << 19..][..500_000];
                let wanted = pattern(500_000, at as u8 + part);
                assert!(got == wanted, "client {at}, part {part}");
            }
        }
        assert_eq!((rig.pool.free_count(), rig.channel.stats().peers), (8, 4));
    }
}

/// A thread that sleeps hears of what is over, and does not turn in circles.
#[test]
fn a_sleeper_is_woken() {
    for fabric in fabrics() {
        let mut rig = Rig::over(&fabric, ObjectServerConfig::default());
        rig.real_time();
        let client = rig.client(1 << 20);
        let token = client.token();
        let driven = client.drive();
        for key in 0..20 {
            let payload = rig.filled(10_000, 1).freeze(10_000);
            let deadline = rig.now() + SOON;
            let get = rig.channel.handle_get(&token, 0, payload, key, deadline);
            get.expect("accepted");
            while rig.channel.poll(&mut rig.events).expect("it polls") == 0 {
                rig.channel.wait(SOON).expect("it sleeps");
            }
            let event = rig.events.pop();
            assert!(
                matches!(event, Some(ChannelEvent::Written { .. })),
                "{event:?}"
            );
        }
        driven.stop();
    }
}

#[test]
fn servers_are_shared_and_channels_move() {
    fn is_sync<T: Send + Sync>() {}
    fn is_send<T: Send>() {}
    is_sync::<ObjectServer>();
    is_send::<ObjectChannel>();
}
