//! What is refused before anything is begun: with what was given, and why.

use super::*;
use crate::buffer::SharedBufferManager;
use crate::fabric::EndpointKind;
use crate::memory::Region;

fn token(of: &RdmaToken, change: impl FnOnce(&mut Fields)) -> RdmaToken {
    let mut fields = Fields {
        base: of.base(),
        len: of.len(),
        provider: of.provider().to_owned(),
        name: of.name().to_vec(),
        key: of.key(),
    };
    change(&mut fields);
    let Fields {
        base,
        len,
        provider,
        name,
        key,
    } = fields;
    RdmaToken::new(base, len, &provider, &name, key).expect("a token")
}

use crate::object::RdmaToken;

struct Fields {
    base: u64,
    len: u64,
    provider: String,
    name: Vec<u8>,
    key: u64,
}

/// Both directions refuse it, for the same reason; everything comes back.
fn refused(rig: &mut Rig, token: &RdmaToken, at: u64, len: usize) -> TransferErrorKind {
    refused_by(rig, token, (at, len), rig.now() + SOON)
}

fn refused_by(
    rig: &mut Rig,
    token: &RdmaToken,
    (at, len): (u64, usize),
    deadline: Instant,
) -> TransferErrorKind {
    let payload = rig.filled(len, 1).freeze(len);
    let get = rig.channel.handle_get(token, at, payload, 5, deadline);
    let get = get.expect_err("refused");
    assert_eq!((get.key, get.given.len_bytes()), (5, len));
    drop(get.given);
    let into = rig.pool.try_acquire().expect("a free buffer");
    let into = crate::endpoint::Destination::buffer(into, len);
    let put = rig.channel.handle_put(token, at, into, 6, deadline);
    let put = put.expect_err("refused");
    assert_eq!((put.key, put.given.len()), (6, len));
    assert_eq!(
        std::mem::discriminant(&put.kind),
        std::mem::discriminant(&get.kind)
    );
    assert!(!get.kind.is_would_block());
    get.kind
}

#[test]
fn what_a_token_says_is_checked_before_anything_is_begun() {
    for fabric in fabrics() {
        let mut rig = Rig::over(&fabric, ObjectServerConfig::default());
        let client = rig.client(4096);
        let good = client.token();
        for (at, len) in [
            (0, 4097),
            (4096, 1),
            (4095, 2),
            (u64::MAX, 1),
            (u64::MAX - 1, 4),
        ] {
            let kind = refused(&mut rig, &good, at, len);
            let window_len = 4096;
            let len = len as u64;
            assert_eq!(
                kind,
                TransferErrorKind::OutOfRange {
                    at,
                    len,
                    window_len
                }
            );
        }
        assert_eq!(refused(&mut rig, &good, 0, 0), TransferErrorKind::Empty);
        let other = token(&good, |it| it.provider = "verbs;ofi_rxm".to_owned());
        let kind = refused(&mut rig, &other, 0, 1);
        assert!(matches!(kind, TransferErrorKind::Provider { .. }), "{kind}");
        let own = rig.channel.core.engine.local();
        let own = own.to_provider_bytes().expect("a name");
        let kind = refused(&mut rig, &token(&good, |it| it.name = own), 0, 1);
        assert!(matches!(kind, TransferErrorKind::Peer { .. }), "{kind}");
        for name in [
            vec![1],
            good.name()[..good.name().len() - 1].to_vec(),
            [good.name(), &[0]].concat(),
            vec![0xff; 192],
            vec![0; good.name().len()],
            b"fi_shm://1:2:3\0".to_vec(),
        ] {
            let hostile = token(&good, |it| it.name = name);
            let kind = refused(&mut rig, &hostile, 0, 1);
            assert!(matches!(kind, TransferErrorKind::Name { .. }), "{kind}");
        }
        let soon = rig.now() + Duration::from_millis(9);
        for deadline in [soon, rig.now()] {
            let kind = refused_by(&mut rig, &good, (0, 1), deadline);
            assert!(matches!(kind, TransferErrorKind::Budget { .. }), "{kind}");
        }
        let stats = rig.channel.stats();
        assert_eq!((stats.accepted, stats.peers, stats.refused), (0, 0, 32));
        assert_eq!(rig.pool.free_count(), 8);
    }
}

/// No address wraps around, whatever a token says.
#[test]
fn windows_at_the_end_of_the_addresses_have_an_end() {
    let Some(mut rig) = rig::any(ObjectServerConfig::default()) else {
        return;
    };
    let client = rig.client(4096);
    let high = token(&client.token(), |it| (it.base, it.len) = (u64::MAX - 8, 8));
    let kind = refused(&mut rig, &high, 0, 9);
    assert!(
        matches!(kind, TransferErrorKind::OutOfRange { .. }),
        "{kind}"
    );
    rig.channel.core.parts = Arc::new(ServerParts {
        domain: Arc::clone(rig.server.domain()),
        rma: RmaLimits {
            key_bytes: 4,
            ..rig.channel.core.parts.rma
        },
        config: ObjectServerConfig::default(),
        telemetry: Arc::clone(&rig.channel.core.parts.telemetry),
        names: Arc::default(),
    });
    let wide = token(&client.token(), |it| it.key = 1 << 32);
    let kind = refused(&mut rig, &wide, 0, 1);
    assert_eq!(kind, TransferErrorKind::Key { key_bytes: 4 });
}

#[test]
fn memory_has_to_be_registered_with_the_servers_domain() {
    let Some(mut rig) = rig::any(ObjectServerConfig::default()) else {
        return;
    };
    let client = rig.client(4096);
    let foreign = rig::domain(&rig.fabric);
    for elsewhere in [false, true] {
        let pool = SharedBufferManager::allocate(1, 4096).expect("a pool");
        if elsewhere {
            pool.region().register(&foreign).expect("registered");
        }
        let is_right = |kind: &TransferErrorKind| match elsewhere {
            false => matches!(kind, TransferErrorKind::NotRegistered { .. }),
            true => matches!(kind, TransferErrorKind::ForeignBuffer { .. }),
        };
        let deadline = rig.now() + SOON;
        let buffer = pool.try_acquire().expect("it is free");
        let segments = [rig.filled(4, 1).freeze(4).into(), buffer.freeze(4).into()];
        let payload = crate::buffer::Payload::from(Vec::from(segments));
        let get = rig
            .channel
            .handle_get(&client.token(), 0, payload, 5, deadline);
        let get = get.expect_err("refused");
        assert!(is_right(&get.kind), "{}", get.kind);
        assert!(get.kind.to_string().contains("segment 1"), "{}", get.kind);
        assert_eq!(get.given.len_bytes(), 8);
        drop(get);
        let buffer = pool.try_acquire().expect("it is back");
        let put = rig
            .channel
            .handle_put(&client.token(), 0, buffer, 6, deadline);
        let put = put.expect_err("refused");
        assert!(is_right(&put.kind), "{}", put.kind);
    }
    assert_eq!(rig.channel.stats().accepted, 0);
}

/// Back-pressure says so, and passes.
#[test]
fn a_full_channel_takes_no_more_until_something_is_over() {
    let config = ObjectServerConfig::default().depth(3).peers(2);
    let Some(mut rig) = rig::any(config) else {
        return;
    };
    let mut clients = [rig.client(4096), rig.client(4096), rig.client(4096)];
    let deadline = rig.now() + SOON;
    let get = |rig: &mut Rig, client: usize| {
        let payload = rig.filled(10, 1).freeze(10);
        let token = clients[client].token();
        let got = rig
            .channel
            .handle_get(&token, 0, payload, client as u64, deadline);
        got.map_err(|refused| refused.kind)
    };
    get(&mut rig, 0).expect("accepted");
    get(&mut rig, 1).expect("accepted");
    let kind = get(&mut rig, 2).expect_err("two clients are there");
    assert_eq!(kind, TransferErrorKind::PeersInUse { limit: 2 });
    assert!(kind.is_would_block());
    get(&mut rig, 0).expect("accepted");
    let kind = get(&mut rig, 1).expect_err("three transfers are there");
    assert!(kind.is_would_block() && kind == TransferErrorKind::Full { depth: 3 });
    let [one, two, three] = &mut clients;
    for _ in 0..3 {
        let event = rig.next(&mut [one, two]);
        assert!(matches!(event, ChannelEvent::Written { .. }), "{event:?}");
    }
    // Both are idle: the one that is so longer leaves.
    rig.get_and_put(three, 5, 1000);
    assert_eq!(rig.channel.stats().peers, 2);
    rig.get_and_put(one, 5, 1000);
    rig.get_and_put(two, 5, 1000);
}

#[test]
fn settings_out_of_range_and_fabrics_that_do_not_fit_are_refused_by_name() {
    let Some(fabric) = rig::any_fabric() else {
        return;
    };
    let good = ObjectServerConfig::default;
    for (config, field) in [
        (good().depth(0), "depth"),
        (good().depth(65_537), "depth"),
        (good().peers(0), "peers"),
        (good().first_contacts(0), "first_contacts"),
        (good().retiring(65), "retiring"),
        (good().min_budget(Duration::from_secs(3601)), "min_budget"),
        (good().idle_after(Duration::ZERO), "idle_after"),
    ] {
        let error = ObjectServer::open(&fabric, config)
            .expect_err("out of range")
            .to_string();
        assert!(error.contains(&format!("setting {field} = ")), "{error}");
    }
    let connected = Fabric::builder().provider("tcp").node("127.0.0.1");
    let connected = connected.endpoint_kind(EndpointKind::Msg).open();
    let error = ObjectServer::open(&connected.expect("tcp"), good()).expect_err("connected");
    assert!(error.to_string().contains("EndpointKind::Rdm"), "{error}");
}

/// A region that is told to go while a transfer uses it stays until that is over.
#[test]
fn a_registration_in_use_stays_open() {
    let Some(mut rig) = rig::any(ObjectServerConfig::default()) else {
        return;
    };
    let mut client = rig.client(1 << 20);
    let region = Region::host(1 << 20).build().expect("memory");
    region.register(rig.server.domain()).expect("registered");
    let slice = region.slice(0..1 << 20).expect("a slice");
    let deadline = rig.now() + SOON;
    let get = rig
        .channel
        .handle_get(&client.token(), 0, slice, 1, deadline);
    get.expect("accepted");
    region.deregister(rig.server.domain());
    let event = rig.next(&mut [&mut client]);
    assert!(
        matches!(event, ChannelEvent::Written { key: 1, .. }),
        "{event:?}"
    );
    assert_eq!(region.registration_count(), 0);
}
