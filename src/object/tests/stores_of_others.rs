//! Stores of applications that do not answer, answer nonsense, or panic: the service goes on.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::buffer::BufferMut;
use crate::object::tests::service::{
    by, bytes, client, config, connect, content, fabrics, filled, memory, serve,
};
use crate::object::*;

/// Reads that are not answered.
type HeldPieces = Arc<Mutex<Vec<(BufferMut, StoreCompletion<BufferMut>)>>>;

/// What it does when it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// It never answers.
    Hangs,
    /// It gives the piece up.
    Drops,
    /// It says that it read less.
    ReadsLess,
    Panics,
    /// It says what files there are.
    Talks,
}

/// A store whose objects `hangs`, `drops` and so on behave so; all others are a store's in memory.
#[derive(Debug, Clone, Default)]
struct OddStore {
    memory: MemoryStore,
    held: HeldPieces,
}

#[derive(Debug)]
struct OddObject {
    manner: Manner,
    info: ObjectInfo,
    held: HeldPieces,
}

fn manner(name: &ObjectName) -> Option<Manner> {
    match name.as_str() {
        "hangs" => Some(Manner::Hangs),
        "drops" => Some(Manner::Drops),
        "less" => Some(Manner::ReadsLess),
        "panics" => Some(Manner::Panics),
        "talks" => Some(Manner::Talks),
        _ => None,
    }
}

impl ObjectStore for OddStore {
    fn head(&self, name: &ObjectName) -> Result<ObjectInfo, StoreError> {
        assert!(manner(name) != Some(Manner::Panics), "as it was told to");
        self.memory.head(name)
    }

    fn open(&self, name: &ObjectName) -> Result<Arc<dyn StoredObject>, StoreError> {
        let Some(manner) = manner(name) else {
            return self.memory.open(name);
        };
        let (size, checksum, modified) = (200_000, None, None);
        let etag = ObjectEtag::of_content(0, size);
        Ok(Arc::new(OddObject {
            manner,
            info: ObjectInfo {
                size,
                etag,
                modified,
                checksum,
            },
            held: Arc::clone(&self.held),
        }))
    }

    fn begin(
        &self,
        name: &ObjectName,
        size: u64,
        condition: &PutCondition,
    ) -> Result<Box<dyn ObjectUpload>, StoreError> {
        self.memory.begin(name, size, condition)
    }

    fn list(&self, query: &ListQuery) -> Result<ListPage, StoreError> {
        self.memory.list(query)
    }

    fn delete(&self, name: &ObjectName, etag: Option<&ObjectEtag>) -> Result<(), StoreError> {
        self.memory.delete(name, etag)
    }
}

impl StoredObject for OddObject {
    fn info(&self) -> &ObjectInfo {
        &self.info
    }

    fn read(&self, _: u64, len: usize, buffer: BufferMut, done: StoreCompletion<BufferMut>) {
        match self.manner {
            Manner::Hangs => self.held.lock().unwrap().push((buffer, done)),
            Manner::Drops => {}
            Manner::ReadsLess => done.end(buffer, Ok(len - 1)),
            Manner::Panics => panic!("as it was told to"),
            Manner::Talks => done.end(buffer, Err(StoreError::Failed("/srv/secret".into()))),
        }
    }
}

#[test]
fn what_a_store_does_wrong_is_one_request_that_fails() {
    let Some(fabric) = fabrics().into_iter().next() else {
        return;
    };
    let store = OddStore::default();
    let service = serve(&fabric, store, config());
    let client = client(&fabric);
    let mut remote = connect(&client, &fabric, &service);
    let data = bytes(200_000, 3);
    let memory = filled(&client, &data);
    let all = 0..memory.len();
    let cases = [
        ("drops", ObjectStatus::STORE),
        ("less", ObjectStatus::CHANGED),
        ("panics", ObjectStatus::STORE),
        ("talks", ObjectStatus::STORE),
    ];
    for (object, expected) in cases {
        let failed = remote
            .get(object, &memory, all.clone(), 0, by())
            .unwrap_err();
        assert_eq!(failed.status(), Some(expected), "{object}: {failed}");
        assert!(!failed.to_string().contains("secret"), "{failed}");
        assert_eq!(content(&memory, data.len()), data, "nothing was written");
    }
    let failed = remote.head("panics", by()).unwrap_err();
    assert_eq!(failed.status(), Some(ObjectStatus::STORE));
    remote
        .put("fine", &memory, all.clone(), &PutCondition::Any, by())
        .unwrap();
    assert!(
        remote
            .get("fine", &memory, all, 0, by())
            .unwrap()
            .is_checked
    );
}

#[test]
fn a_store_that_hangs_costs_its_request_and_no_other() {
    let Some(fabric) = fabrics().into_iter().next() else {
        return;
    };
    let store = OddStore::default();
    let stall = Duration::from_secs(2);
    let service = serve(&fabric, store.clone(), config().stall(stall).requests(1));
    let client = client(&fabric);
    let mut remote = connect(&client, &fabric, &service);
    let mut other = connect(&client, &fabric, &service);
    // The service gives up.
    let memory = memory(&client, 1000);
    let failed = remote.get("hangs", &memory, 0..1000, 0, by()).unwrap_err();
    assert_eq!(failed.status(), Some(ObjectStatus::TIMED_OUT));
    // The client gives up, and says so; until then the service has no room for others.
    let begin = Instant::now();
    let asked = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let soon = Instant::now() + Duration::from_millis(1500);
            remote.get("hangs", &memory, 0..1000, 0, soon)
        });
        // It has the one place.
        while store.held.lock().unwrap().len() < 2 && !waiting.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let busy = Some(ObjectStatus::BUSY);
        let mut was_busy = false;
        loop {
            let status = other.head("x", by()).unwrap_err().status();
            was_busy |= status == busy;
            if waiting.is_finished() && status != busy {
                break;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "{status:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
        // Unless the machine was so slow that it was over before it was seen.
        assert!(was_busy || begin.elapsed() > Duration::from_secs(1));
        waiting.join().unwrap()
    });
    let failed = asked.unwrap_err();
    // Whichever of the two was sooner, where the machine is slow.
    let is_late = matches!(failed, RemoteError::TimedOut { .. })
        || failed.status() == Some(ObjectStatus::TIMED_OUT);
    assert!(is_late, "{failed}");
    // What comes too late is of no use, and does no harm.
    for (buffer, done) in store.held.lock().unwrap().drain(..) {
        done.end(buffer, Ok(1000));
    }
    let missing = remote.head("x", by()).unwrap_err();
    assert_eq!(missing.status(), Some(ObjectStatus::NOT_FOUND));
    let data = bytes(1000, 1);
    let fresh = filled(&client, &data);
    remote
        .put("fine", &fresh, 0..1000, &PutCondition::Any, by())
        .unwrap();
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    let Some(fabric) = fabrics().into_iter().next() else {
        return;
    };
    let base = ObjectServiceConfig::default;
    let wrong = [
        ("workers", base().workers(0)),
        ("store_threads", base().store_threads(65)),
        ("piece_bytes", base().piece_bytes(4095)),
        ("buffers", base().buffers(3)),
        ("pieces", base().pieces(0)),
        ("connections", base().connections(4097)),
        ("connection_requests", base().connection_requests(0)),
        ("requests", base().requests(0)),
        ("stall", base().stall(Duration::from_millis(9))),
        // In 64 bits, that many milliseconds would look like 999.
        (
            "stall",
            base().stall(Duration::from_millis(u64::MAX) + Duration::from_secs(1)),
        ),
        ("budget", base().budget(Duration::from_secs(25 * 3600))),
        ("page", base().page(0)),
        ("lost_after", base().lost_after(Duration::ZERO)),
    ];
    for (setting, config) in wrong {
        let any = "127.0.0.1:0".parse().unwrap();
        let started = ObjectService::start(MemoryStore::new(), &fabric, any, &fabric, config);
        match started.map(drop) {
            Err(crate::Error::Config { field, .. }) => assert_eq!(field, setting),
            other => panic!("{setting}: {other:?}"),
        }
    }
}
