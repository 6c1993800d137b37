//! Objects by token in a device's memory, over providers that don't reach it: the bytes pass
//! buffers of the host's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast::buffer::DeviceBufferManager;
use fabricast::cuda::{Device, Stream};
use fabricast::fabric::EndpointKind;
use fabricast::memory::{Access, Path};
use fabricast::object::{
    CallbackError, ObjectChunk, ObjectClient, ObjectClientConfig, ObjectError, ObjectMemory,
    ObjectOperation, ObjectOps, TransferCause, TransferFailed,
};
use fabricast::{Fabric, Region};

use super::objects::{SOON, Server, Side, content, fill, managed};
use crate::fake_cuda::{Fake, on_a_gpu, over_the_fake};
use crate::pattern::pattern;

/// Bytes of the device's memory, and of one buffer: odd, so that parts begin at odd places.
const BYTES: usize = 300_000;
const STAGE: usize = 65_537;

fn fabrics() -> Vec<Arc<Fabric>> {
    let open = |provider| {
        let fabric = Fabric::builder().provider(provider).node("127.0.0.1");
        let opened = fabric.endpoint_kind(EndpointKind::Rdm).open();
        opened
            .map_err(|error| println!("PARTLY SKIPPED: {provider}: {error}"))
            .ok()
    };
    ["tcp", "net"].into_iter().filter_map(open).collect()
}

fn stream() -> Stream {
    Stream::new(Device::new(0).expect("a device")).expect("a stream")
}

fn device(bytes: usize) -> Arc<Region> {
    Region::device(bytes).build().expect("device memory")
}

fn client(fabric: &Arc<Fabric>, config: ObjectClientConfig) -> ObjectClient {
    ObjectClient::open(fabric, config.staging_bytes(STAGE)).expect("a client")
}

fn register(client: &ObjectClient, region: &Arc<Region>) -> ObjectMemory {
    let all = region.slice(0..region.len()).expect("all of it");
    client.register(all, Access::all()).expect("memory")
}

/// A server that has an object, or gets one.
struct Ask<'a> {
    server: &'a mut Server,
    object: Vec<u8>,
    parts: Vec<(u64, u64, u64)>,
}

impl<'a> Ask<'a> {
    fn new(server: &'a mut Server, object: Vec<u8>) -> Self {
        let parts = Vec::new();
        Self {
            server,
            object,
            parts,
        }
    }

    fn part(&mut self, chunk: &ObjectChunk<'_>) -> std::ops::Range<usize> {
        let (offset, len) = (chunk.offset(), chunk.len());
        self.parts.push((offset, chunk.memory_offset(), len));
        let begin = (offset as usize).min(self.object.len());
        begin..(offset + len).min(self.object.len() as u64) as usize
    }
}

impl ObjectOps for Ask<'_> {
    fn get(&mut self, chunk: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
        let part = self.part(chunk);
        let token = chunk.token().to_string().parse()?;
        let bytes = &self.object[part];
        if !bytes.is_empty() {
            self.server.write(&token, Side::Host, bytes)?;
        }
        Ok(bytes.len() as u64)
    }

    fn put(&mut self, chunk: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
        let part = self.part(chunk);
        let bytes = self.server.read(chunk.token(), Side::Host)?;
        self.object[part].copy_from_slice(&bytes);
        Ok(chunk.len())
    }
}

/// Says nothing to any server.
struct GiveUp;

impl ObjectOps for GiveUp {
    fn get(&mut self, _: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
        Err("the server does not answer".into())
    }

    fn put(&mut self, _: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
        Err("the server does not answer".into())
    }
}

/// Lengths, and where they begin.
const CASES: &[(usize, usize)] = &[
    (1, 0),
    (1, 13),
    (4096, 0),
    (4099, 7),
    (STAGE, 1),
    (STAGE + 1, 0),
    (BYTES, 0),
    (BYTES - 4096, 4093),
];

#[test]
fn a_devices_memory_passes_the_host() {
    on_a_gpu(
        "staged_objects::a_devices_memory_passes_the_host",
        &[],
        || {
            for fabric in fabrics() {
                for region in [device(BYTES), managed(BYTES)] {
                    passes_the_host(&fabric, &region);
                }
            }
        },
    );
}

fn passes_the_host(fabric: &Arc<Fabric>, region: &Arc<Region>) {
    let client = client(fabric, ObjectClientConfig::default());
    let mut server = Server::open(fabric, BYTES);
    let memory = register(&client, region);
    let Path::Staged(why) = memory.path().clone() else {
        panic!("{}", memory.path());
    };
    println!("| {} | {} | {} |", fabric.report(), region.kind(), why);
    assert_eq!(memory.max_callback_size(), STAGE as u64);
    let refused = memory.token(0..1, ObjectOperation::Get);
    let refused = refused.expect_err("it is reached by nobody");
    let ObjectError::NotDirect { kind, reason } = &refused else {
        panic!("{refused}");
    };
    assert_eq!((*kind, reason), (region.kind(), &why));
    assert!(refused.to_string().contains("copy"), "{refused}");

    let stream = stream();
    for (seed, &(len, at)) in CASES.iter().enumerate() {
        let under = pattern(BYTES, 100 + seed as u64);
        let over = pattern(len, seed as u64);
        fill(region, &under, &stream);
        let range = at as u64..(at + len) as u64;
        let mut ask = Ask::new(&mut server, over.clone());
        let got = client.get(&mut ask, &memory, range.clone(), 0);
        assert_eq!(got.expect("got"), len as u64);
        let parts = len.div_ceil(STAGE);
        assert_eq!(ask.parts.len(), parts, "{:?}", ask.parts);
        let mut wanted = under;
        wanted[at..at + len].copy_from_slice(&over);
        assert!(content(region, &stream) == wanted, "GET of {len} at {at}");

        let mut ask = Ask::new(&mut server, vec![0; len]);
        let put = client.put(&mut ask, &memory, range, 0);
        assert_eq!(put.expect("put"), len as u64);
        assert!(ask.object == over, "PUT of {len} from {at}");
        assert!(content(region, &stream) == wanted, "a PUT changes nothing");
    }
    ends_with_the_object(&client, &memory, region, &mut server);
    let end = BYTES as u64;
    let beyond = client.get(&mut GiveUp, &memory, end - 1..end + 1, 0);
    assert!(matches!(
        beyond.unwrap_err().cause,
        TransferCause::Object(ObjectError::OutOfRange { .. })
    ));
    let back = memory.release(Instant::now() + SOON).expect("it was free");
    assert_eq!(back.into_slice().expect("what was given").len(), BYTES);
}

/// An object that is shorter than what was asked for ends the request, and leaves the rest alone.
fn ends_with_the_object(
    client: &ObjectClient,
    memory: &ObjectMemory,
    region: &Arc<Region>,
    server: &mut Server,
) {
    let (stream, len) = (stream(), STAGE + 1000);
    let mut wanted = pattern(BYTES, 8);
    fill(region, &wanted, &stream);
    let mut ask = Ask::new(server, pattern(len, 9));
    let got = client.get(&mut ask, memory, 5..BYTES as u64, 0);
    assert_eq!(got.expect("got"), len as u64);
    wanted[5..5 + len].copy_from_slice(&pattern(len, 9));
    assert!(content(region, &stream) == wanted);
}

/// One buffer, which a server may still write to, or read what others put there: nobody else gets
/// it before that is over.
#[test]
fn the_buffer_of_a_request_that_was_given_up_is_quarantined() {
    let test = "staged_objects::the_buffer_of_a_request_that_was_given_up_is_quarantined";
    on_a_gpu(test, &[], || {
        for fabric in fabrics() {
            let config = ObjectClientConfig::default().staging_buffers(1);
            let client = client(&fabric, config.quarantine(Duration::from_millis(20)));
            let mut server = Server::open(&fabric, BYTES);
            let region = device(BYTES);
            let memory = register(&client, &region);
            let host = Region::host(4096).build().expect("memory");
            let other = register(&client, &host);
            for gets in [true, false] {
                let stands = other.token(0..8, ObjectOperation::Get).expect("a token");
                let failed = match gets {
                    true => client.get(&mut GiveUp, &memory, 0..9, 0),
                    false => client.put(&mut GiveUp, &memory, 0..9, 0),
                };
                let cause = failed.unwrap_err().cause;
                assert!(matches!(cause, TransferCause::Callback(_)), "{cause}");
                let bytes = pattern(BYTES, 3);
                let again = |server: &mut Server| {
                    let mut ask = Ask::new(server, bytes.clone());
                    client.get(&mut ask, &memory, 0..BYTES as u64, 0)
                };
                match again(&mut server) {
                    Ok(_) => panic!("the close of a key is the end of nothing here"),
                    Err(TransferFailed { cause, .. }) => assert!(
                        matches!(cause, TransferCause::Object(ObjectError::Quarantined)),
                        "{cause}"
                    ),
                }
                stands.done();
                assert_eq!(again(&mut server).expect("nothing can land"), BYTES as u64);
                assert!(content(&region, &stream()) == bytes);
            }
        }
    });
}

/// Asks for more while it is asked itself.
struct Nested<'a>(&'a ObjectClient, &'a ObjectMemory, Vec<TransferFailed>);

impl ObjectOps for Nested<'_> {
    fn get(&mut self, chunk: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
        let inner = self.0.get(&mut GiveUp, self.1, 0..1, 0);
        self.2.push(inner.expect_err("there is one buffer"));
        Ok(chunk.len())
    }

    fn put(&mut self, _: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
        Ok(0)
    }
}

#[test]
fn there_are_as_many_buffers_as_was_said() {
    let test = "staged_objects::there_are_as_many_buffers_as_was_said";
    on_a_gpu(test, &[], || {
        for fabric in fabrics() {
            let config = ObjectClientConfig::default().staging_buffers(1);
            let client = client(&fabric, config.quarantine(Duration::from_millis(1)));
            let pool = DeviceBufferManager::new(device(BYTES), 4096).expect("a pool");
            let buffer = pool.try_acquire().expect("one is free");
            let memory = client.register(buffer, Access::WRITE).expect("memory");
            let mut nested = Nested(&client, &memory, Vec::new());
            assert_eq!(client.get(&mut nested, &memory, 0..5, 0).expect("got"), 5);
            let cause = &nested.2[0].cause;
            assert!(
                matches!(
                    cause,
                    TransferCause::Object(ObjectError::StagingBusy { limit: 1 })
                ),
                "{cause}"
            );
            let zero = ObjectClientConfig::default().staging_buffers(0);
            let zero = ObjectClient::open(&fabric, zero).unwrap_err();
            assert!(zero.to_string().contains("staging_buffers"), "{zero}");
            drop(memory);
            drop(client);
            assert_eq!(pool.free_count(), pool.slots());
        }
    });
}

#[test]
fn a_copy_that_fails_ends_the_request() {
    let test = "staged_objects::a_copy_that_fails_ends_the_request";
    over_the_fake(test, &[], || {
        let fake = Fake::load();
        for fabric in fabrics() {
            let client = client(&fabric, ObjectClientConfig::default());
            let mut server = Server::open(&fabric, BYTES);
            let region = device(BYTES);
            let memory = register(&client, &region);
            let all = 0..BYTES as u64;
            let bytes = pattern(BYTES, 4);
            // The second part's.
            fake.fail_after("cuMemcpyHtoDAsync", 1, 1);
            let mut ask = Ask::new(&mut server, bytes.clone());
            let failed = client.get(&mut ask, &memory, all.clone(), 0).unwrap_err();
            assert_eq!(failed.transferred, STAGE as u64);
            assert!(
                matches!(failed.cause, TransferCause::Object(ObjectError::Copy(_))),
                "{failed}"
            );
            fake.fail("cuMemcpyDtoHAsync", 1);
            let mut ask = Ask::new(&mut server, vec![0; BYTES]);
            let failed = client.put(&mut ask, &memory, all.clone(), 0).unwrap_err();
            assert_eq!((failed.transferred, ask.parts.len()), (0, 0));
            let mut ask = Ask::new(&mut server, bytes);
            assert!(client.get(&mut ask, &memory, all, 0).is_ok());
            fake.assert_innocent();
        }
    });
}
