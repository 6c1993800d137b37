//! A service and its clients, end to end, over every provider that opens here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Fabric;
use crate::buffer::SharedBufferManager;
use crate::fabric::EndpointKind;
use crate::memory::Access;
use crate::object::testing::raw_server::SOON;
use crate::object::*;

const PIECE: usize = 64 * 1024;

/// Providers whose endpoints reach others of the same process.
pub(super) fn fabrics() -> Vec<Arc<Fabric>> {
    let mut fabrics = crate::object::testing::fabrics::fabrics();
    fabrics.retain(|fabric| {
        let is_here = fabric.provider().name != "shm";
        if !is_here {
            println!("SKIPPED: shm: it is for peers in other processes");
        }
        is_here
    });
    fabrics
}

pub(super) fn by() -> Instant {
    Instant::now() + SOON
}

fn name(text: &str) -> ObjectName {
    ObjectName::new(text).unwrap()
}

pub(super) fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|at| (at * 31 + at / 253) as u8 ^ seed)
        .collect()
}

/// Small pieces, so that an object has many.
pub(super) fn config() -> ObjectServiceConfig {
    let config = ObjectServiceConfig::default();
    config.piece_bytes(PIECE).buffers(16)
}

pub(super) fn serve(
    fabric: &Arc<Fabric>,
    store: impl ObjectStore,
    config: ObjectServiceConfig,
) -> ObjectService {
    let listen = "127.0.0.1:0".parse().unwrap();
    ObjectService::start(store, fabric, listen, fabric, config).expect("a service")
}

pub(super) fn client(fabric: &Arc<Fabric>) -> ObjectClient {
    ObjectClient::open(fabric, ObjectClientConfig::default()).expect("a client")
}

pub(super) fn connect(
    client: &ObjectClient,
    fabric: &Arc<Fabric>,
    service: &ObjectService,
) -> RemoteObjects {
    let address = service.local_addr();
    let config = RemoteConfig::default();
    RemoteObjects::connect(client, fabric, &address, config).expect("a connection")
}

/// Memory of a client.
pub(super) fn memory(client: &ObjectClient, len: usize) -> ObjectMemory {
    let pool = SharedBufferManager::allocate(1, len).expect("a pool");
    let buffer = pool.try_acquire().expect("one is free");
    client.register(buffer, Access::all()).expect("memory")
}

pub(super) fn filled(client: &ObjectClient, content: &[u8]) -> ObjectMemory {
    let memory = memory(client, content.len().max(1));
    memory.copy_in(0, content).expect("a buffer");
    memory
}

pub(super) fn content(memory: &ObjectMemory, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.copy_out(0, &mut bytes).expect("a buffer");
    bytes
}

#[test]
fn everything_once_over_every_provider() {
    for fabric in fabrics() {
        println!("{}", fabric.provider().name);
        let dir = tempfile::tempdir().unwrap();
        let files = FileStore::open(dir.path()).unwrap();
        let service = serve(&fabric, files, config());
        everything(&fabric, &service);
        service.close(by());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let store = MemoryStore::new();
        let service = serve(&fabric, store.clone(), config());
        everything(&fabric, &service);
        service.close(by());
        assert_eq!(store.used_bytes(), 0);
    }
}

fn everything(fabric: &Arc<Fabric>, service: &ObjectService) {
    let client = client(fabric);
    let mut remote = connect(&client, fabric, service);
    let (any, absent) = (PutCondition::Any, PutCondition::Absent);
    let data = bytes(10 * PIECE + 17, 1);
    let len = data.len() as u64;
    let from = filled(&client, &data);
    let missing = remote.head("a/b", by()).unwrap_err();
    assert_eq!(missing.status(), Some(ObjectStatus::NOT_FOUND));

    let put = remote.put("a/b", &from, 0..len, &absent, by()).unwrap();
    assert_eq!((put.size, put.moved, put.is_checked), (len, len, true));
    let head = remote.head("a/b", by()).unwrap();
    assert_eq!((&head.etag, head.size), (&put.etag, len));
    let exists = remote.put("a/b", &from, 0..len, &absent, by());
    assert_eq!(exists.unwrap_err().status(), Some(ObjectStatus::EXISTS));

    let into = memory(&client, data.len() + 100);
    let all = into.len();
    let got = remote.get("a/b", &into, 0..all, 0, by()).unwrap();
    assert_eq!(
        (got.moved, got.is_checked),
        (len, true),
        "it ends where the object does"
    );
    assert_eq!(got.etag, put.etag);
    assert_eq!(content(&into, data.len()), data);
    let got = remote.get("a/b", &into, 5..5 + 100, 777, by()).unwrap();
    assert_eq!(got.moved, 100);
    assert_eq!(content(&into, 105)[5..], data[777..877]);
    assert_eq!(content(&into, 5), data[..5], "nothing beside the range");
    assert_eq!(remote.get("a/b", &into, 0..9, len, by()).unwrap().moved, 0);
    let behind = remote.get("a/b", &into, 0..9, len + 1, by()).unwrap_err();
    assert_eq!(behind.status(), Some(ObjectStatus::RANGE));
    assert_eq!(remote.get("a/b", &into, 3..3, 5, by()).unwrap().moved, 0);

    let matches = PutCondition::Matches(put.etag.clone());
    let other = remote.put("a/b", &from, 1..2, &matches, by()).unwrap();
    assert_ne!(other.etag, put.etag);
    let stale = remote.put("a/b", &from, 2..3, &matches, by()).unwrap_err();
    assert_eq!(stale.status(), Some(ObjectStatus::ETAG_MISMATCH));
    let empty = remote.put("empty", &from, 0..0, &any, by()).unwrap();
    assert_eq!(empty.size, 0);
    lists(&mut remote);

    let stale = remote.delete("a/b", Some(&put.etag), by()).unwrap_err();
    assert_eq!(stale.status(), Some(ObjectStatus::ETAG_MISMATCH));
    remote.delete("a/b", Some(&other.etag), by()).unwrap();
    remote.delete("empty", None, by()).unwrap();
    let gone = remote.delete("empty", None, by()).unwrap_err();
    assert_eq!(gone.status(), Some(ObjectStatus::NOT_FOUND));
}

fn lists(remote: &mut RemoteObjects) {
    let list = |remote: &mut RemoteObjects, prefix: &str| -> Vec<String> {
        let list = remote.list(prefix, by());
        list.map(|object| object.unwrap().name.to_string())
            .collect()
    };
    assert_eq!(list(remote, ""), ["a/b", "empty"]);
    assert_eq!(list(remote, "a/"), ["a/b"]);
    assert!(list(remote, "b").is_empty());
}

#[test]
fn requests_over_connected_endpoints_and_bytes_without() {
    let control = Fabric::builder()
        .provider("tcp")
        .endpoint_kind(EndpointKind::Msg)
        .node("127.0.0.1")
        .open();
    let control = match control {
        Ok(control) => control,
        Err(error) => return println!("SKIPPED: {error}"),
    };
    for data in fabrics() {
        println!("{}", data.provider().name);
        let any = "127.0.0.1:0".parse().unwrap();
        let config = config().workers(2);
        let service =
            ObjectService::start(MemoryStore::new(), &control, any, &data, config).unwrap();
        let client = client(&data);
        assert_eq!(service.local_addrs().len(), 2);
        for address in service.local_addrs() {
            let settings = RemoteConfig::default().checksum(Some(ChecksumKind::Crc32c));
            let mut remote = RemoteObjects::connect(&client, &control, address, settings).unwrap();
            let data = bytes(3 * PIECE, 2);
            let memory = filled(&client, &data);
            let all = 0..memory.len();
            let put = remote
                .put("x", &memory, all.clone(), &PutCondition::Any, by())
                .unwrap();
            assert_eq!(put.checksum.map(|sum| sum.kind), Some(ChecksumKind::Crc32c));
            memory.copy_in(0, &vec![0; data.len()]).unwrap();
            assert!(remote.get("x", &memory, all, 0, by()).unwrap().is_checked);
            assert_eq!(content(&memory, data.len()), data);
        }
    }
}

#[test]
fn large_requests_are_several_of_one_object() {
    let Some(fabric) = fabrics().into_iter().next() else {
        return;
    };
    let store = MemoryStore::new();
    let service = serve(&fabric, store.clone(), config());
    let parts = ObjectClientConfig::default().callback_bytes(100_000);
    let client = ObjectClient::open(&fabric, parts).unwrap();
    let mut remote = connect(&client, &fabric, &service);
    let data = bytes(1_000_001, 3);
    let memory = filled(&client, &data);
    let all = 0..memory.len();
    let absent = PutCondition::Absent;
    let put = remote
        .put("parts", &memory, all.clone(), &absent, by())
        .unwrap();
    assert_eq!((put.size, put.is_checked), (1_000_001, true));
    assert_eq!(store.get(&name("parts")).unwrap(), data);
    memory.copy_in(0, &vec![0; data.len()]).unwrap();
    let got = remote.get("parts", &memory, all, 0, by()).unwrap();
    assert_eq!((got.moved, got.is_checked), (1_000_001, true));
    assert_eq!(content(&memory, data.len()), data);
}

/// Nothing of them is sent: the service would close the connection, or take half of an object.
#[test]
fn ranges_that_can_not_be_are_refused_here() {
    let Some(fabric) = fabrics().into_iter().next() else {
        return;
    };
    let store = MemoryStore::new();
    let service = serve(&fabric, store.clone(), config());
    let parts = ObjectClientConfig::default().callback_bytes(4);
    let client = ObjectClient::open(&fabric, parts).unwrap();
    let settings = RemoteConfig::default().checksum(None);
    let address = service.local_addr();
    let remote = RemoteObjects::connect(&client, &fabric, &address, settings);
    let mut remote = remote.expect("a connection");
    let memory = filled(&client, b"some bytes");
    let any = &PutCondition::Any;
    remote.put("x", &memory, 0..9, any, by()).unwrap();
    for start in [u64::MAX, u64::MAX - 8] {
        let beyond = remote.get("x", &memory, 0..9, start, by()).unwrap_err();
        let RemoteError::Transfer(failed) = beyond else {
            panic!("{beyond}");
        };
        let cause = failed.cause;
        let is_it =
            matches!(cause, TransferCause::BeyondObjects { offset, len: 9 } if offset == start);
        assert!(is_it && failed.transferred == 0, "{cause}");
    }
    let last = remote
        .get("x", &memory, 0..9, u64::MAX - 9, by())
        .unwrap_err();
    assert_eq!(
        last.status(),
        Some(ObjectStatus::RANGE),
        "the service is asked"
    );
    let reversed = std::ops::Range { start: 5, end: 3 };
    let get = remote.get("x", &memory, reversed.clone(), 0, by());
    let put = remote.put("x", &memory, reversed, any, by());
    for refused in [get.unwrap_err(), put.unwrap_err()] {
        let is_it = matches!(
            refused,
            RemoteError::Memory(ObjectError::Reversed { start: 5, end: 3 })
        );
        assert!(is_it, "{refused}");
    }
    let get = remote.get("x", &memory, 6..11, 0, by());
    let put = remote.put("x", &memory, 6..11, any, by());
    for refused in [get.unwrap_err(), put.unwrap_err()] {
        let is_it = matches!(refused, RemoteError::Memory(ObjectError::OutOfRange { .. }));
        assert!(is_it, "{refused}");
    }
    assert!(remote.is_connected());
    assert_eq!(
        store.get(&name("x")).unwrap(),
        b"some byte",
        "as it was put"
    );
    let stats = client.stats();
    assert_eq!(
        (stats.get.bytes, stats.put.bytes),
        (0, 9),
        "nothing else was begun"
    );
}

#[test]
fn names_that_try_to_escape_are_refused_on_both_sides() {
    use crate::object::wire::{Request, RequestBody};
    let Some(fabric) = fabrics().into_iter().next() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("secret"), "nobody's").unwrap();
    std::fs::create_dir(dir.path().join("served")).unwrap();
    let served = dir.path().join("served");
    std::os::unix::fs::symlink("../secret", served.join("link")).unwrap();
    let service = serve(&fabric, FileStore::open(&served).unwrap(), config());
    let client = client(&fabric);
    let mut remote = connect(&client, &fabric, &service);
    for wrong in [
        "../secret",
        "/etc/passwd",
        "a/../../secret",
        "",
        "a//b",
        "a\0b",
    ] {
        let refused = remote.head(wrong, by()).unwrap_err();
        assert!(
            matches!(refused, RemoteError::Name(_)),
            "{wrong:?}: {refused}"
        );
    }
    let link = remote.head("link", by()).unwrap_err();
    assert_eq!(link.status(), Some(ObjectStatus::NOT_FOUND));
    assert!(!link.to_string().contains("secret"), "{link}");
    // A client that does not check: the name is changed on its way.
    let name = name("aa/secret");
    let answered = remote.call_with(RequestBody::Head { name }, by(), |request: &Request| {
        let (mut header, mut payload) = ([0; 64], Vec::new());
        request.encode(&mut header, &mut payload);
        payload[..2].copy_from_slice(b"..");
        (header, payload)
    });
    assert_eq!(answered.unwrap_err().status(), Some(ObjectStatus::NAME));
    assert!(
        remote.is_connected(),
        "an error of the user's, and not of the program's"
    );
}

#[test]
fn two_clients_at_once_get_what_is_theirs() {
    for fabric in fabrics() {
        let service = serve(&fabric, MemoryStore::new(), config());
        std::thread::scope(|scope| {
            for seed in 0..2 {
                let (fabric, service) = (&fabric, &service);
                scope.spawn(move || {
                    let client = client(fabric);
                    let mut remote = connect(&client, fabric, service);
                    let data = bytes(5 * PIECE + 3, seed);
                    let memory = filled(&client, &data);
                    let all = 0..memory.len();
                    for round in 0..10 {
                        let object = format!("{seed}/{round}");
                        let any = &PutCondition::Any;
                        remote
                            .put(&object, &memory, all.clone(), any, by())
                            .unwrap();
                        memory.copy_in(0, &vec![0; data.len()]).unwrap();
                        remote.get(&object, &memory, all.clone(), 0, by()).unwrap();
                        assert_eq!(content(&memory, data.len()), data);
                    }
                });
            }
        });
    }
}

#[test]
fn a_client_that_serves_no_window_is_cut_off_and_others_go_on() {
    for fabric in fabrics() {
        let store = MemoryStore::new();
        let data = bytes(4 * PIECE, 9);
        store.insert(&name("x"), &data, &PutCondition::Any).unwrap();
        let stall = Duration::from_millis(500);
        let service = serve(&fabric, store, config().stall(stall));
        let client = client(&fabric);
        let mut remote = connect(&client, &fabric, &service);
        // A window that is gone: nobody is there.
        let stale = {
            let other = super::service::client(&fabric);
            let memory = memory(&other, data.len());
            let token = memory.token(0..memory.len(), ObjectOperation::Get).unwrap();
            token.to_string()
        };
        let body = crate::object::wire::RequestBody::Get {
            name: name("x"),
            offset: 0,
            len: data.len() as u64,
            etag: None,
            checksum: None,
            token: stale,
        };
        let refused = remote.call_with(body, by(), |request| {
            let (mut header, mut payload) = ([0; 64], Vec::new());
            request.encode(&mut header, &mut payload);
            (header, payload)
        });
        let status = refused.unwrap_err().status().expect("the service says so");
        let may_be = [ObjectStatus::TIMED_OUT, ObjectStatus::TRANSFER];
        assert!(may_be.contains(&status), "{status}");
        let memory = memory(&client, data.len());
        remote.get("x", &memory, 0..memory.len(), 0, by()).unwrap();
        assert_eq!(content(&memory, data.len()), data);
    }
}

#[test]
fn a_client_that_goes_in_the_middle_of_a_put_leaves_nothing() {
    let Some(fabric) = fabrics().into_iter().next() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let service = serve(&fabric, FileStore::open(dir.path()).unwrap(), config());
    let parts = ObjectClientConfig::default().callback_bytes(100_000);
    let client = ObjectClient::open(&fabric, parts).unwrap();
    let mut remote = connect(&client, &fabric, &service);
    let data = bytes(300_000, 4);
    let memory = filled(&client, &data);
    let token = memory.token(0..100_000, ObjectOperation::Put).unwrap();
    let body = crate::object::wire::RequestBody::Put(crate::object::wire::PutRequest {
        name: name("d/half"),
        offset: 0,
        len: 100_000,
        total: 300_000,
        upload: 1,
        begins: true,
        ends: false,
        condition: PutCondition::Any,
        checksum: None,
        given: None,
        token: token.to_string(),
    });
    let answered = remote.call_with(body, by(), |request| {
        let (mut header, mut payload) = ([0; 64], Vec::new());
        request.encode(&mut header, &mut payload);
        (header, payload)
    });
    answered.unwrap();
    assert_eq!(
        std::fs::read_dir(dir.path().join("d")).unwrap().count(),
        1,
        "a temporary file"
    );
    drop(remote);
    let end = by();
    while std::fs::read_dir(dir.path()).unwrap().count() > 0 {
        assert!(Instant::now() < end, "what was half put is still there");
        std::thread::sleep(Duration::from_millis(5));
    }
    token.done();
    // The service serves others.
    let mut remote = connect(&client, &fabric, &service);
    assert_eq!(remote.list("", by()).count(), 0);
}

/// A token that names an address of somebody else's is no way to have the service connect there.
#[test]
fn a_token_sends_the_service_to_whoever_asks_and_nowhere_else() {
    use std::net::TcpListener;

    use crate::fabric::PeerAddr;

    for fabric in fabrics() {
        let victim = match TcpListener::bind("127.0.0.2:0") {
            Ok(victim) => victim,
            Err(error) => return println!("SKIPPED: 127.0.0.2: {error}"),
        };
        victim.set_nonblocking(true).expect("a socket");
        let there = PeerAddr::from(victim.local_addr().expect("bound"));
        let there = there.to_provider_bytes().expect("an address");
        let visits = || std::iter::from_fn(|| victim.accept().ok()).count();
        for networks in [None, Some("127.0.0.1"), Some("asker"), Some("any")] {
            println!("{} {networks:?}", fabric.provider().name);
            let mut server = ObjectServerConfig::default();
            if let Some(networks) = networks {
                server = server.clients(networks.parse().expect("networks"));
            }
            let store = MemoryStore::new();
            let config = config().server(server).stall(Duration::from_millis(500));
            let service = serve(&fabric, store, config);
            let client = client(&fabric);
            let mut remote = connect(&client, &fabric, &service);
            let memory = filled(&client, &bytes(1000, 1));
            let (any, all) = (PutCondition::Any, 0..1000);
            remote
                .put("x", &memory, all.clone(), &any, by())
                .expect("its own memory");
            remote
                .get("x", &memory, all, 0, by())
                .expect("its own memory");
            let own = memory
                .token(0..1000, ObjectOperation::Get)
                .expect("a token");
            let own_token: RdmaToken = own.to_string().parse().expect("a token");
            let (base, len, key) = (own_token.base(), own_token.len(), own_token.key());
            let token = RdmaToken::new(base, len, own_token.provider(), &there, key);
            let get = crate::object::wire::RequestBody::Get {
                name: name("x"),
                offset: 0,
                len: 1000,
                etag: None,
                checksum: None,
                token: token.expect("a token").to_string(),
            };
            let answered = remote.call_with(get, by(), |request| {
                let (mut header, mut payload) = ([0; 64], Vec::new());
                request.encode(&mut header, &mut payload);
                (header, payload)
            });
            let refused = answered.expect_err("nobody serves a window there");
            if networks == Some("any") {
                assert_ne!(refused.status(), Some(ObjectStatus::TOKEN), "{refused}");
                assert!(visits() > 0, "the service goes where the token says");
            } else {
                assert_eq!(refused.status(), Some(ObjectStatus::TOKEN), "{refused}");
                assert!(
                    refused.to_string().contains("ObjectServerConfig::clients"),
                    "{refused}"
                );
                assert_eq!(visits(), 0, "connections");
            }
            own.done();
            drop(remote);
            service.close(by());
        }
    }
}
