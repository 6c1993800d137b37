//! First contacts, where the provider takes its time; and endpoints that can't be opened.

use super::*;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::fabric::PeerAddr;
use crate::fabric::hook::OpenHook;
use crate::object::server::contacts::{FirstContacts, Hook};

/// Has threads take clients in, and waits there for those that are held up.
fn by_thread(rig: &mut Rig, limit: u32) -> Arc<Mutex<Vec<PeerAddr>>> {
    let held: Arc<Mutex<Vec<PeerAddr>>> = Arc::default();
    let seen = Arc::clone(&held);
    let mut contacts = FirstContacts::new(rig.server.domain(), limit).expect("contacts");
    contacts.by_thread = true;
    contacts.before = Hook(Some(Arc::new(move |addr: &PeerAddr| {
        while seen.lock().expect("nobody panics").contains(addr) {
            std::thread::sleep(Duration::from_micros(100));
        }
    })));
    rig.channel.core.contacts = contacts;
    held
}

fn addr(client: &WindowClient) -> PeerAddr {
    let token = client.token();
    PeerAddr::from_provider_bytes(client.format, token.name()).expect("an address")
}

fn get(rig: &mut Rig, client: &WindowClient, key: u64, time: Duration) {
    let payload = rig.filled(10, 1).freeze(10);
    let deadline = rig.now() + time;
    let get = rig
        .channel
        .handle_get(&client.token(), 0, payload, key, deadline);
    get.expect("accepted");
}

#[test]
fn a_slow_first_contact_holds_up_nobody_else() {
    let Some(mut rig) = rig::any(ObjectServerConfig::default()) else {
        return;
    };
    let held = by_thread(&mut rig, 2);
    let (mut slow, mut good) = (rig.client(4096), rig.client(4096));
    held.lock().expect("nobody panics").push(addr(&slow));
    // One contact for all of them.
    for key in 0..3 {
        get(&mut rig, &slow, key, SOON);
    }
    assert_eq!(rig.channel.stats().contacts, 1);
    rig.get_and_put(&mut good, 0, 1000);
    get(&mut rig, &slow, 9, SHORT);
    let event = rig.next(&mut []);
    let ChannelEvent::WriteFailed {
        key: 9,
        payload: Some(_),
        error,
    } = event
    else {
        panic!("{event:?}");
    };
    assert!(!error.posted && error.kind == TransferErrorKind::Deadline);
    held.lock().expect("nobody panics").clear();
    for key in 0..3 {
        let event = rig.next(&mut [&mut slow]);
        assert!(
            matches!(event, ChannelEvent::Written { .. }) && event.key() == key,
            "{event:?}"
        );
    }
    assert_eq!(
        (
            rig.channel.stats().contacts,
            rig.channel.stats().eagain < 10_000
        ),
        (0, true)
    );
}

/// Those that are one too many wait for their turn; a thread that comes late finds a channel that
/// is gone.
#[test]
fn first_contacts_are_bounded_and_a_channel_may_go_meanwhile() {
    let Some(mut rig) = rig::any(ObjectServerConfig::default()) else {
        return;
    };
    let held = by_thread(&mut rig, 2);
    let mut clients = [0; 4].map(|_| rig.client(4096));
    let all = clients.iter().map(addr).collect();
    *held.lock().expect("nobody panics") = all;
    for (key, client) in clients.iter().enumerate() {
        get(&mut rig, client, key as u64, SOON);
    }
    for _ in 0..100 {
        rig.channel.poll(&mut rig.events).expect("it polls");
        assert_eq!((rig.channel.stats().contacts, rig.events.len()), (2, 0));
    }
    held.lock()
        .expect("nobody panics")
        .retain(|it| *it == addr(&clients[3]));
    let [a, b, c, _] = &mut clients;
    for _ in 0..3 {
        let event = rig.next(&mut [a, b, c]);
        assert!(
            matches!(event, ChannelEvent::Written { key: 0..3, .. }),
            "{event:?}"
        );
    }
    let Rig {
        channel,
        pool,
        server,
        ..
    } = rig;
    drop(channel);
    assert_eq!(pool.free_count(), 8);
    held.lock().expect("nobody panics").clear();
    while server.domain().resolver().threads() > 0 {
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Where no endpoint can be opened any more, what waits for one says why.
#[test]
fn an_endpoint_that_can_not_be_opened_is_the_reason() {
    let Some(mut rig) = rig::any(ObjectServerConfig::default()) else {
        return;
    };
    let (mut late, mut good) = (rig.client(1 << 20), rig.client(1 << 20));
    rig.get_and_put(&mut late, 0, 100);
    let payload = rig.filled(1 << 20, 1).freeze(1 << 20);
    let deadline = rig.now() + SHORT;
    let held = rig
        .channel
        .handle_get(&late.token(), 0, payload, 1, deadline);
    held.expect("accepted");
    for _ in 0..2 {
        let event = rig.next(&mut []);
        assert_eq!(event.key(), 1, "{event:?}");
    }
    let fails = Arc::new(AtomicBool::new(true));
    let told = Arc::clone(&fails);
    let hook = OpenHook::new(rig.server.domain(), move |_| {
        match told.load(Ordering::Relaxed) {
            true => -libc::EMFILE,
            false => 0,
        }
    });
    get(&mut rig, &good, 2, SOON);
    let event = rig.next(&mut [&mut good]);
    let ChannelEvent::WriteFailed {
        key: 2,
        payload: Some(_),
        error,
    } = event
    else {
        panic!("{event:?}");
    };
    assert!(
        matches!(error.kind, TransferErrorKind::Endpoint { .. }),
        "{error}"
    );
    assert!(
        !error.posted && error.to_string().contains("nothing of it went out"),
        "{error}"
    );
    fails.store(false, Ordering::Relaxed);
    rig.get_and_put(&mut good, 0, 1000);
    drop(rig.channel);
    drop(hook);
}

#[test]
fn idle_clients_leave_by_age() {
    let config = ObjectServerConfig::default().idle_after(Duration::from_secs(5));
    let Some(mut rig) = rig::any(config) else {
        return;
    };
    let clock = rig.channel.core.clock.clone();
    let (mut one, mut other) = (rig.client(4096), rig.client(4096));
    rig.get_and_put(&mut one, 0, 10);
    clock.advance(Duration::from_secs(3));
    rig.get_and_put(&mut other, 0, 10);
    assert_eq!(rig.channel.stats().peers, 2);
    clock.advance(Duration::from_secs(3));
    rig.channel.poll(&mut rig.events).expect("it polls");
    assert_eq!(rig.channel.stats().peers, 1);
    clock.advance(Duration::from_secs(3));
    rig.channel.poll(&mut rig.events).expect("it polls");
    assert_eq!(rig.channel.stats().peers, 0);
    rig.get_and_put(&mut one, 0, 10);
    rig.get_and_put(&mut other, 0, 10);
}
