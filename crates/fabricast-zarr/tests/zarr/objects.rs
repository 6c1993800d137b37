//! The store of objects, over a service in this process.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fabricast::Fabric;
use fabricast::buffer::SharedBufferManager;
use fabricast::fabric::EndpointKind;
use fabricast::memory::Access;
use fabricast::object::{
    MemoryStore, ObjectClient, ObjectClientConfig, ObjectService, ObjectServiceConfig, RemoteConfig,
};
use fabricast_zarr::{AsyncObjectZarrStore, ObjectZarrOptions, ObjectZarrStore, StoreThreads};
use proptest::prelude::*;
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::store_test::{
    async_store_list, async_store_list_size, async_store_read, async_store_write, store_list,
    store_list_size, store_read, store_write,
};
use zarrs_storage::{
    ListableStorageTraits, ReadableStorageTraits, StorageError, WritableStorageTraits, store,
};

use super::{block_on, key, prefix};

/// Short, so that most values take several requests.
const BUFFER: usize = 1000;

pub(super) struct Served {
    fabric: Arc<Fabric>,
    client: ObjectClient,
    service: ObjectService,
}

/// A service of an empty store; says `SKIPPED` where no provider opens.
pub(super) fn served() -> Option<Served> {
    served_with(ObjectServiceConfig::default())
}

pub(super) fn served_with(config: ObjectServiceConfig) -> Option<Served> {
    // What libfabric up to 1.17 calls `net` is `tcp` later.
    let open = |provider| {
        let builder = Fabric::builder().provider(provider);
        let builder = builder.endpoint_kind(EndpointKind::Rdm);
        builder.node("127.0.0.1").open()
    };
    let fabric = match open("tcp").or_else(|_| open("net")) {
        Ok(fabric) => fabric,
        Err(why) => {
            println!("SKIPPED: {why}");
            return None;
        }
    };
    let any = "127.0.0.1:0".parse().unwrap();
    let service = ObjectService::start(MemoryStore::new(), &fabric, any, &fabric, config).unwrap();
    let client = ObjectClient::open(&fabric, ObjectClientConfig::default()).unwrap();
    Some(Served {
        fabric,
        client,
        service,
    })
}

impl Served {
    pub(super) fn store(&self, options: ObjectZarrOptions) -> ObjectZarrStore {
        let options = options.buffer(BUFFER);
        let address = self.service.local_addr();
        ObjectZarrStore::connect(&self.client, &self.fabric, &address, options).unwrap()
    }
}

#[test]
fn the_store_of_objects_passes_the_tests_of_its_traits() {
    let Some(served) = served() else { return };
    let other = served.store(ObjectZarrOptions::default().connections(1));
    for name in ["", "run7.zarr/"] {
        other
            .set(&key("run8.zarr/zarr.json"), vec![1].into())
            .unwrap();
        let store = served.store(ObjectZarrOptions::default().prefix(name));
        for _ in 0..2 {
            store_write(&store).unwrap();
            store_read(&store).unwrap();
            store_list(&store).unwrap();
            store_list_size(&store).unwrap();
        }
        let of_futures = AsyncObjectZarrStore::new(Arc::new(store), StoreThreads::new(2).unwrap());
        block_on(async {
            async_store_write(&of_futures).await.unwrap();
            async_store_read(&of_futures).await.unwrap();
            async_store_list(&of_futures).await.unwrap();
            async_store_list_size(&of_futures).await.unwrap();
        });
        let left = other.size_key(&key("run8.zarr/zarr.json")).unwrap();
        assert_eq!(
            left.is_some(),
            !name.is_empty(),
            "only what is behind the prefix is erased"
        );
        other.erase_prefix(&prefix("")).unwrap();
    }
}

#[test]
fn values_of_all_lengths_and_ranges_of_them() {
    let Some(served) = served() else { return };
    let store = served.store(ObjectZarrOptions::default().connections(1));
    for len in [0, 1, BUFFER - 1, BUFFER, BUFFER + 1, 3 * BUFFER, 20_001] {
        let name = key(&format!("c/{len}"));
        let value: Vec<u8> = (0..len).map(|at| (at / 7 % 251) as u8).collect();
        store.set(&name, value.clone().into()).unwrap();
        assert!(store.get(&name).unwrap().unwrap() == value, "{len}");
        assert_eq!(store.size_key(&name).unwrap(), Some(len as u64));
        for at in [0, 1, len / 2, len].into_iter().filter(|at| *at <= len) {
            let behind = ByteRange::FromStart(at as u64, None);
            assert!(store.get_partial(&name, behind).unwrap().unwrap() == value[at..]);
            let last = ByteRange::Suffix(at as u64);
            assert!(store.get_partial(&name, last).unwrap().unwrap() == value[len - at..]);
            let first = ByteRange::FromStart(0, Some(at as u64));
            assert!(store.get_partial(&name, first).unwrap().unwrap() == value[..at]);
        }
        let end = len as u64;
        for wrong in [
            ByteRange::Suffix(end + 1),
            ByteRange::FromStart(end + 1, None),
            ByteRange::FromStart(end, Some(1)),
            ByteRange::FromStart(0, Some(end + 1)),
            ByteRange::FromStart(u64::MAX, Some(1)),
            ByteRange::FromStart(0, Some(u64::MAX)),
        ] {
            let error = store.get_partial(&name, wrong).unwrap_err();
            assert!(
                matches!(error, StorageError::InvalidByteRangeError(_)),
                "{len}: {error:?}"
            );
            assert_eq!(store.get_partial(&key("none"), wrong).unwrap(), None);
        }
    }
}

#[test]
fn parts_that_threads_set_are_all_there() {
    let Some(served) = served() else { return };
    let store = served.store(ObjectZarrOptions::default().connections(3));
    let shard = key("shard");
    thread::scope(|scope| {
        for thread in 0..6u8 {
            let (store, shard) = (&store, &shard);
            scope.spawn(move || {
                for part in 0..4 {
                    let at = u64::from(thread) * 400 + part * 100;
                    store
                        .set_partial(shard, at, vec![thread; 100].into())
                        .unwrap();
                }
            });
        }
    });
    let value = store.get(&shard).unwrap().unwrap();
    assert_eq!(value.len(), 2400);
    for (thread, part) in value.chunks(400).enumerate() {
        assert!(part.iter().all(|byte| usize::from(*byte) == thread));
    }
}

#[test]
fn directories_are_listed_without_all_that_is_below_them() {
    let Some(served) = served() else { return };
    let store = served.store(ObjectZarrOptions::default().prefix("p/"));
    let keys = [
        "a",
        "a!",
        "a/c/0",
        "a/c/\u{10ffff}",
        "a/c/\u{10ffff}z",
        "a/d/e",
        "a0",
        "b/c/d/e",
    ];
    for name in keys {
        store.set(&key(name), vec![1, 2].into()).unwrap();
    }
    assert_eq!(store.list().unwrap(), keys.map(key));
    let root = store.list_dir(&prefix("")).unwrap();
    assert_eq!(root.keys(), &["a", "a!", "a0"].map(key));
    assert_eq!(root.prefixes(), &["a/", "b/"].map(prefix));
    let below = store.list_dir(&prefix("a/")).unwrap();
    assert!(below.keys().is_empty());
    assert_eq!(below.prefixes(), &["a/c/", "a/d/"].map(prefix));
    assert_eq!(store.size_prefix(&prefix("a/")).unwrap(), 8);
}

#[test]
fn values_go_to_registered_memory_and_back() {
    let Some(served) = served() else { return };
    let store = served.store(ObjectZarrOptions::default());
    let pool = SharedBufferManager::allocate(1, 10_000).unwrap();
    let buffer = pool.try_acquire().unwrap();
    let memory = store.client().register(buffer, Access::all()).unwrap();
    let value: Vec<u8> = (0..5000).map(|at| (at % 251) as u8).collect();
    memory.copy_in(100, &value).unwrap();
    store.write_from(&key("c/0"), &memory, 100..5100).unwrap();
    assert!(store.get(&key("c/0")).unwrap().unwrap() == value);
    for (range, expected) in [
        (ByteRange::FromStart(0, None), &value[..]),
        (ByteRange::FromStart(10, Some(20)), &value[10..30]),
        (ByteRange::Suffix(7), &value[4993..]),
    ] {
        memory.copy_in(0, &[0; 10_000]).unwrap();
        let read = store.read_into(&key("c/0"), range, &memory, 3).unwrap();
        assert_eq!(read, Some(expected.len() as u64));
        let mut bytes = vec![0; expected.len() + 4];
        memory.copy_out(0, &mut bytes).unwrap();
        assert!(bytes[..3] == [0; 3] && &bytes[3..bytes.len() - 1] == expected);
    }
    assert_eq!(
        store
            .read_into(&key("c/1"), (..5).into(), &memory, 0)
            .unwrap(),
        None
    );
    let all = ByteRange::FromStart(0, None);
    let wrong = ByteRange::FromStart(u64::MAX, Some(1));
    assert!(store.read_into(&key("c/0"), wrong, &memory, 0).is_err());
    assert!(
        store.read_into(&key("c/0"), all, &memory, 5001).is_err(),
        "too short"
    );
    assert!(
        store
            .read_into(&key("c/0"), (0..5001).into(), &memory, 0)
            .is_err(),
        "too much"
    );
}

#[test]
fn what_is_no_name_and_a_service_that_is_gone() {
    let Some(served) = served() else { return };
    // Nobody answers in the end: not longer than it takes on a busy machine.
    let remote = RemoteConfig::default().connect_timeout(Duration::from_secs(5));
    let options = ObjectZarrOptions::default().remote(remote);
    let store = served.store(options.connections(1));
    for wrong in ["", "..", "a/../b", "a\0"] {
        let error = store.set(&key(wrong), vec![1].into()).unwrap_err();
        assert!(
            matches!(error, StorageError::InvalidStoreKey(_)),
            "{error:?}"
        );
        assert!(store.get(&key(wrong)).is_err());
    }
    let address = served.service.local_addr();
    for options in [
        ObjectZarrOptions::default().connections(0),
        ObjectZarrOptions::default().connections(257),
        ObjectZarrOptions::default().buffer(0),
        ObjectZarrOptions::default().timeout(Duration::MAX),
    ] {
        let opened = ObjectZarrStore::connect(&served.client, &served.fabric, &address, options);
        assert!(matches!(opened, Err(StorageError::Other(_))));
    }
    let Served { service, .. } = served;
    drop(service);
    let error = store.get(&key("a")).unwrap_err();
    assert!(matches!(error, StorageError::IOError(_)), "{error:?}");
}

const KEYS: [&str; 6] = ["zarr.json", "a", "a/c", "a/c/0", "a/c/1", "b"];

#[derive(Debug, Clone)]
enum Call {
    Set(Vec<u8>),
    SetPart(u64, Vec<u8>),
    Erase,
    ErasePrefix,
}

fn calls() -> impl Strategy<Value = (usize, Call)> {
    let bytes = |least| prop::collection::vec(any::<u8>(), least..3 * BUFFER);
    let call = prop_oneof![
        4 => bytes(0).prop_map(Call::Set),
        3 => (0..4000u64, bytes(1)).prop_map(|(at, part)| Call::SetPart(at, part)),
        2 => Just(Call::Erase),
        1 => Just(Call::ErasePrefix),
    ];
    (0..KEYS.len(), call)
}

fn call(to: &impl WritableStorageTraits, name: &str, call: Call) {
    let done = match call {
        Call::Set(bytes) => to.set(&key(name), bytes.into()),
        Call::SetPart(at, part) => to.set_partial(&key(name), at, part.into()),
        Call::Erase => to.erase(&key(name)),
        Call::ErasePrefix => to.erase_prefix(&key(name).to_prefix()),
    };
    done.unwrap();
}

#[test]
fn random_calls_to_objects_do_what_they_do_in_memory() {
    let Some(served) = served() else { return };
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(16)
    };
    let sequences = prop::collection::vec(calls(), 1..30);
    proptest!(config, |(calls in sequences)| {
        let store = served.store(ObjectZarrOptions::default().connections(1));
        store.erase_prefix(&prefix("")).unwrap();
        let memory = store::MemoryStore::new();
        for (name, one) in calls {
            call(&store, KEYS[name], one.clone());
            call(&memory, KEYS[name], one);
            assert_eq!(store.get(&key(KEYS[name])).unwrap(), memory.get(&key(KEYS[name])).unwrap());
        }
        assert_eq!(store.list().unwrap(), memory.list().unwrap());
        for name in ["", "a/", "a/c/", "b/"].map(prefix) {
            assert_eq!(store.list_prefix(&name).unwrap(), memory.list_prefix(&name).unwrap());
            assert_eq!(store.list_dir(&name).unwrap(), memory.list_dir(&name).unwrap());
            assert_eq!(store.size_prefix(&name).unwrap(), memory.size_prefix(&name).unwrap());
        }
    });
}
