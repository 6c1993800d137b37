//! Lent memory, over every provider that opens here.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Fabric;
use crate::buffer::{BufferMut, SharedBufferManager};
use crate::fabric::{AccessEnds, EndpointKind};
use crate::memory::Access;
use crate::object::testing::fabrics::fabrics;
use crate::object::testing::raw_server::{RawServer, SOON};
use crate::object::*;

fn buffer(bytes: usize, fill: u8) -> BufferMut {
    let pool = SharedBufferManager::allocate(1, bytes).expect("a pool");
    let mut buffer = pool.try_acquire().expect("one is free");
    buffer.fill(fill);
    buffer
}

fn client(fabric: &Arc<Fabric>) -> ObjectClient {
    ObjectClient::open(fabric, ObjectClientConfig::default()).expect("a client")
}

fn lent(client: &ObjectClient, buffer: BufferMut, access: Access) -> ObjectMemory {
    client.register(buffer, access).expect("memory")
}

fn name(fabric: &Arc<Fabric>) -> &'static str {
    fabric.provider().name
}

fn bytes_of(memory: &ObjectMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len() as usize];
    memory.copy_out(0, &mut bytes).expect("a buffer");
    bytes
}

/// Has a raw server do what the chunk says.
struct Ask<'a> {
    server: &'a mut RawServer,
    seen: Vec<(u64, u64)>,
    tokens: Vec<RdmaToken>,
}

impl<'a> Ask<'a> {
    fn new(server: &'a mut RawServer) -> Self {
        Self {
            server,
            seen: Vec::new(),
            tokens: Vec::new(),
        }
    }

    fn note(&mut self, chunk: &ObjectChunk<'_>) {
        self.seen.push((chunk.offset(), chunk.len()));
        self.tokens.push(chunk.token().clone());
    }
}

impl ObjectOps for Ask<'_> {
    fn get(&mut self, chunk: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
        self.note(chunk);
        let token = chunk.token().to_string().parse()?;
        self.server
            .write(&token, 0, chunk.len() as usize)
            .map_err(|error| error.to_string())?;
        Ok(chunk.len())
    }

    fn put(&mut self, chunk: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
        self.note(chunk);
        self.server
            .read(chunk.token(), 0, chunk.len() as usize)
            .map_err(|e| e.to_string())?;
        Ok(chunk.len())
    }
}

#[test]
fn a_get_writes_and_a_put_reads_exactly_the_range() {
    for fabric in fabrics() {
        println!("{}", name(&fabric));
        let client = client(&fabric);
        let mut server = RawServer::open(&fabric, 1 << 20);
        let memory = lent(&client, buffer(1 << 20, 7), Access::all());
        server.memory().fill(9);
        let mut ask = Ask::new(&mut server);
        assert_eq!(client.get(&mut ask, &memory, 1024..5120, 77).unwrap(), 4096);
        assert_eq!(ask.seen, [(77, 4096)]);
        let bytes = bytes_of(&memory);
        assert!(bytes[1024..5120].iter().all(|byte| *byte == 9));
        assert!(
            bytes[..1024]
                .iter()
                .chain(&bytes[5120..])
                .all(|byte| *byte == 7)
        );
        memory.copy_in(5000, b"put me").expect("a buffer");
        assert_eq!(
            client
                .put(&mut Ask::new(&mut server), &memory, 5000..5006, 0)
                .unwrap(),
            6
        );
        assert_eq!(&server.memory()[..6], b"put me");
        let back = memory
            .release(Instant::now() + SOON)
            .expect("nobody has it");
        let back = back.into_buffer_mut().expect("what was given");
        assert_eq!(&back[5000..5006], b"put me");
        let stats = client.stats();
        assert_eq!((stats.get.bytes, stats.put.bytes), (4096, 6));
        assert_eq!((stats.get.done, stats.put.done), (1, 1));
        assert_eq!(stats.get.latency.count(), 1);
    }
}

#[test]
fn a_large_request_is_several_callbacks_in_ascending_order() {
    for fabric in fabrics() {
        let config = ObjectClientConfig::default().callback_bytes(1000);
        let client = ObjectClient::open(&fabric, config).expect("a client");
        let mut server = RawServer::open(&fabric, 4096);
        let memory = lent(&client, buffer(4096, 0), Access::WRITE);
        assert_eq!(memory.max_callback_size(), 1000);
        let mut ask = Ask::new(&mut server);
        assert_eq!(client.get(&mut ask, &memory, 10..2510, 5).unwrap(), 2500);
        assert_eq!(ask.seen, [(5, 1000), (1005, 1000), (2005, 500)]);
        let keys: Vec<_> = ask.tokens.iter().map(RdmaToken::key).collect();
        assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2]);
    }
}

/// The thread serves whatever is lent next: at once, and after it has let the endpoint go.
#[test]
fn tokens_one_after_the_other_are_served_whenever_they_are_lent() {
    for fabric in fabrics() {
        let client = client(&fabric);
        let mut server = RawServer::open(&fabric, 4096);
        let memory = lent(&client, buffer(4096, 0), Access::WRITE);
        for pause_ms in [0, 0, 3, 250, 0] {
            std::thread::sleep(Duration::from_millis(pause_ms));
            let got = client.get(&mut Ask::new(&mut server), &memory, 0..4096, 0);
            assert_eq!(got.unwrap(), 4096, "after {pause_ms} ms");
        }
        memory.release(Instant::now() + SOON).expect("given back");
        assert_eq!(client.standing(), (0, 0));
    }
}

/// Answers for what it is told to.
struct Says(Vec<Result<u64, CallbackError>>);

impl ObjectOps for Says {
    fn get(&mut self, _: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
        self.0.remove(0)
    }

    fn put(&mut self, _: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
        self.0.remove(0)
    }
}

#[test]
fn a_callback_that_fails_lies_or_is_short_ends_the_request() {
    let Some(fabric) = fabrics().into_iter().next() else {
        return;
    };
    let config = ObjectClientConfig::default().callback_bytes(10);
    let client = ObjectClient::open(&fabric, config).expect("a client");
    let memory = lent(&client, buffer(100, 0), Access::all());
    let mut says = Says(vec![Ok(10), Ok(4), Ok(10)]);
    assert_eq!(client.get(&mut says, &memory, 0..100, 0).unwrap(), 14);
    assert_eq!(says.0.len(), 1, "it is not called once more");
    let failed = client.put(
        &mut Says(vec![Ok(10), Err("no".into())]),
        &memory,
        0..100,
        0,
    );
    let failed = failed.unwrap_err();
    assert_eq!(failed.transferred, 10);
    assert_eq!(
        failed.to_string(),
        "PUT ended after 10 bytes: the callback failed: no"
    );
    let failed = client
        .put(&mut Says(vec![Ok(11)]), &memory, 0..100, 0)
        .unwrap_err();
    assert!(matches!(
        failed.cause,
        TransferCause::TooMany {
            said: 11,
            asked: 10
        }
    ));
    let other = ObjectClient::open(&fabric, ObjectClientConfig::default()).expect("a client");
    let failed = other.get(&mut Says(vec![]), &memory, 0..1, 0).unwrap_err();
    assert!(matches!(failed.cause, TransferCause::OtherClient));
}

#[test]
fn ranges_that_can_not_be_are_refused_before_the_first_callback() {
    let Some(fabric) = fabrics().into_iter().next() else {
        return;
    };
    let config = ObjectClientConfig::default().callback_bytes(10);
    let client = ObjectClient::open(&fabric, config).expect("a client");
    let memory = lent(&client, buffer(100, 0), Access::all());
    // Nobody is to be called: it would panic.
    let mut ops = Says(Vec::new());
    let mut refused = |range: Range<u64>, offset| {
        let get = client.get(&mut ops, &memory, range.clone(), offset);
        let put = client.put(&mut ops, &memory, range, offset);
        let both = [get.unwrap_err(), put.unwrap_err()];
        assert!(both.iter().all(|failed| failed.transferred == 0));
        both.map(|failed| failed.cause)
    };
    for (len, offset) in [(100, u64::MAX - 99), (100, u64::MAX), (1, u64::MAX)] {
        for cause in refused(0..len, offset) {
            let TransferCause::BeyondObjects {
                offset: said,
                len: bytes,
            } = cause
            else {
                panic!("{cause}");
            };
            assert_eq!((said, bytes), (offset, len));
        }
    }
    for cause in refused(Range { start: 9, end: 8 }, 0) {
        let is_it = matches!(
            cause,
            TransferCause::Object(ObjectError::Reversed { start: 9, end: 8 })
        );
        assert!(is_it, "{cause}");
    }
    for range in [90..101, 101..102, 0..u64::MAX] {
        for cause in refused(range, 0) {
            let is_it = matches!(cause, TransferCause::Object(ObjectError::OutOfRange { .. }));
            assert!(is_it, "{cause}");
        }
    }
    for cause in refused(7..7, 0) {
        assert!(
            matches!(cause, TransferCause::Object(ObjectError::Empty)),
            "{cause}"
        );
    }
    let mut says = Says(vec![Ok(10), Ok(0)]);
    let last = client.get(&mut says, &memory, 0..100, u64::MAX - 100);
    assert_eq!(last.expect("an object may end there"), 10);
}

#[test]
fn what_can_not_be_lent_is_refused_and_said() {
    let Some(fabric) = fabrics().into_iter().next() else {
        return;
    };
    let config = ObjectClientConfig::default().tokens(2);
    let client = ObjectClient::open(&fabric, config).expect("a client");
    let refused = client.register(buffer(8, 0), Access::empty()).unwrap_err();
    assert!(matches!(refused.kind, ObjectError::Access { .. }));
    assert_eq!(refused.given.len(), 8);
    let shared = client
        .register(buffer(8, 0).freeze(8), Access::WRITE)
        .unwrap_err();
    assert!(matches!(
        shared.kind,
        ObjectError::Access {
            has: Access::READ,
            ..
        }
    ));
    let memory = lent(&client, buffer(8, 0), Access::READ);
    let token = |range, operation| memory.token(range, operation);
    let no_right = token(0..8, ObjectOperation::Get).unwrap_err();
    assert!(matches!(
        no_right,
        ObjectError::Access {
            asked: Access::WRITE,
            has: Access::READ
        }
    ));
    assert!(matches!(
        token(3..3, ObjectOperation::Put),
        Err(ObjectError::Empty)
    ));
    let beyond = token(4..9, ObjectOperation::Put).unwrap_err();
    assert!(matches!(
        beyond,
        ObjectError::OutOfRange {
            offset: 4,
            len: 5,
            memory_len: 8
        }
    ));
    let huge = token(u64::MAX - 1..u64::MAX, ObjectOperation::Put).unwrap_err();
    assert!(matches!(huge, ObjectError::OutOfRange { .. }), "{huge}");
    let two = [
        token(0..8, ObjectOperation::Put),
        token(0..8, ObjectOperation::Put),
    ];
    let third = token(0..8, ObjectOperation::Put).unwrap_err();
    assert!(matches!(third, ObjectError::TooManyTokens { limit: 2 }));
    drop(two);
    let again = token(0..8, ObjectOperation::Put).expect("there is room again");
    let lent = memory.release(Instant::now()).unwrap_err();
    assert!(matches!(lent, NotReleased::Lent { tokens: 1, .. }));
    drop(again);
    lent.into_memory()
        .release(Instant::now() + SOON)
        .expect("free");
    assert_eq!(client.standing(), (0, 0));
}

#[test]
fn objects_need_endpoints_without_connections() {
    let Ok(fabric) = Fabric::builder()
        .provider("tcp")
        .endpoint_kind(EndpointKind::Msg)
        .node("127.0.0.1")
        .open()
    else {
        return println!("SKIPPED: no tcp");
    };
    let error = ObjectClient::open(&fabric, ObjectClientConfig::default()).unwrap_err();
    assert!(error.to_string().contains("endpoint_kind"), "{error}");
    let zero = ObjectClientConfig::default().tokens(0);
    let error = ObjectClient::open(&fabric, zero).unwrap_err();
    assert!(error.to_string().contains("tokens = 0"), "{error}");
}

#[test]
fn a_token_is_good_for_its_range_its_direction_and_its_time_only() {
    for fabric in fabrics() {
        let name = name(&fabric);
        let client = client(&fabric);
        let memory = lent(&client, buffer(4096, 1), Access::all());
        let other = lent(&client, buffer(4096, 2), Access::all());
        let stands = other.token(0..4096, ObjectOperation::Get).expect("a token");
        // Each liar is a server of its own: what it says ends its own connection only.
        let liar = || {
            let mut server = RawServer::open(&fabric, 8192);
            server.memory().fill(66);
            server
        };
        let token = memory
            .token(1024..2048, ObjectOperation::Get)
            .expect("a token");
        let forge = |base, len, key| {
            RdmaToken::new(base, len, token.provider(), token.name(), key).expect("well formed")
        };
        let (base, key) = (token.base(), token.key());
        let beyond = forge(base, 4096, key);
        assert!(
            liar().is_refused(&beyond, 2048, true),
            "{name}: beyond its end"
        );
        assert!(
            liar().is_refused(&token, 1024, false),
            "{name}: the other direction"
        );
        assert!(
            liar().is_refused(&forge(base, 1024, key ^ 1), 1024, true),
            "{name}: guessed"
        );
        if base > 0 {
            let before = forge(base - 512, 1024, key);
            assert!(
                liar().is_refused(&before, 1024, true),
                "{name}: before its start"
            );
        }
        let text = token.to_string();
        token.done();
        let old: RdmaToken = text.parse().expect("what it said");
        assert!(liar().is_refused(&old, 1024, true), "{name}: dropped");
        assert!(
            bytes_of(&memory).iter().all(|byte| *byte == 1),
            "{name}: untouched"
        );
        assert!(
            bytes_of(&other).iter().all(|byte| *byte == 2),
            "{name}: untouched"
        );
        let mut honest = liar();
        honest
            .write(&stands, 0, 4096)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(bytes_of(&other).iter().all(|byte| *byte == 66), "{name}");
    }
}

#[test]
fn a_token_of_a_request_is_not_good_a_second_time() {
    for fabric in fabrics() {
        let client = client(&fabric);
        let memory = lent(&client, buffer(512, 0), Access::all());
        let mut server = RawServer::open(&fabric, 512);
        server.memory().fill(1);
        let mut ask = Ask::new(&mut server);
        client.get(&mut ask, &memory, 0..512, 0).expect("got");
        let old = ask.tokens.remove(0);
        // Something has to stand, or nobody would answer.
        let stands = memory.token(0..512, ObjectOperation::Put).expect("a token");
        server.memory().fill(2);
        assert!(server.is_refused(&old, 512, true), "{}", name(&fabric));
        assert!(bytes_of(&memory).iter().all(|byte| *byte == 1));
        drop(stands);
    }
}

#[test]
fn memory_of_a_transfer_that_was_given_up_is_kept_out_until_nothing_can_land() {
    for fabric in fabrics() {
        let name = name(&fabric);
        let client = client(&fabric);
        let memory = lent(&client, buffer(512, 0), Access::all());
        let other = lent(&client, buffer(512, 0), Access::all());
        let stands = other.token(0..512, ObjectOperation::Get).expect("a token");
        drop(memory.token(0..512, ObjectOperation::Get).expect("a token"));
        let with_key = client.core.lender().limits().rma.access_ends == AccessEnds::WithKey;
        let again = memory.token(0..512, ObjectOperation::Get);
        assert_eq!(again.is_ok(), with_key, "{name}");
        if let Err(error) = again {
            assert!(matches!(error, ObjectError::Quarantined), "{name}: {error}");
            let late = memory
                .release(Instant::now() + Duration::from_millis(5))
                .unwrap_err();
            let memory = late.into_memory();
            // The token that stands keeps the endpoint open, and is as good as before.
            let mut server = RawServer::open(&fabric, 512);
            server.memory().fill(5);
            server
                .write(&stands, 0, 512)
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            stands.done();
            memory
                .token(0..512, ObjectOperation::Get)
                .expect("nothing can land")
                .done();
            memory.release(Instant::now() + SOON).expect("free");
        }
        other.release(Instant::now() + SOON).expect("free");
    }
}

#[test]
fn what_is_dropped_in_any_order_comes_back_or_is_kept() {
    for fabric in fabrics() {
        let pool = SharedBufferManager::allocate(3, 64).expect("a pool");
        let take = || pool.try_acquire().expect("one is free");
        let client = client(&fabric);
        let [a, b, c] = [(); 3].map(|()| client.register(take(), Access::all()).expect("memory"));
        let (of_a, of_b) = (
            a.token(0..64, ObjectOperation::Get).expect("a token"),
            b.token(0..64, ObjectOperation::Put).expect("a token"),
        );
        drop(c);
        assert_eq!(pool.free_count(), 1, "nobody could reach it");
        drop(a);
        assert_eq!(pool.free_count(), 1, "a token of it stands");
        drop(client);
        drop(of_a);
        drop(of_b);
        drop(b);
        let until = Instant::now() + SOON;
        while pool.free_count() < 3 {
            assert!(Instant::now() < until, "{}", name(&fabric));
            std::thread::yield_now();
        }
    }
}

#[test]
fn keys_never_repeat() {
    let Some(fabric) = fabrics().into_iter().next() else {
        return;
    };
    let client = client(&fabric);
    let memory = lent(&client, buffer(64, 0), Access::all());
    let mut keys = std::collections::HashSet::new();
    let mut standing = Vec::new();
    for round in 0..500 {
        let token = memory.token(0..64, ObjectOperation::Put).expect("a token");
        assert!(keys.insert(token.key()), "round {round}");
        if round % 2 == 0 {
            standing.push(token);
        }
    }
}
