//! Many threads, one directory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use fabricast_zarr::{AsyncFileZarrStore, FileZarrStore, StoreThreads};
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{
    AsyncReadableStorageTraits, AsyncWritableStorageTraits, Bytes, ListableStorageTraits,
    ReadableStorageTraits, WritableStorageTraits,
};

use super::{block_on, empty, key, names, prefix};

const ROUNDS: usize = 100;
const LEN: usize = 100_000;

fn is_one_value(bytes: &[u8]) -> bool {
    bytes.len() == LEN && bytes.iter().all(|byte| *byte == bytes[0])
}

#[test]
fn who_reads_while_a_value_is_set_sees_one_value_as_a_whole() {
    let (directory, store) = empty();
    let chunk = key("a/c/0");
    store.set(&chunk, vec![0; LEN].into()).unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers: Vec<_> = (1..4u8)
            .map(|byte| {
                let (store, chunk) = (&store, &chunk);
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        store.set(chunk, vec![byte; LEN].into()).unwrap();
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                assert!(is_one_value(&store.get(&chunk).unwrap().unwrap()));
                let all = ByteRange::FromStart(0, None);
                let begun = store.pread_into(&chunk, all, vec![0xff; LEN], 0).unwrap();
                assert!(is_one_value(&begun.wait().into_result().unwrap().0));
                assert_eq!(store.list().unwrap(), std::slice::from_ref(&chunk));
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(
        names(directory.path().join("a/c")),
        ["0"],
        "nothing temporary is left"
    );
}

#[test]
fn values_are_set_while_others_take_their_directory_away() {
    let (directory, store) = empty();
    thread::scope(|scope| {
        for thread in 0..3 {
            let store = &store;
            scope.spawn(move || {
                let mine = key(&format!("a/c/{thread}"));
                for round in 0..ROUNDS as u64 {
                    store.set(&mine, vec![7; 10].into()).unwrap();
                    store.set_partial(&mine, round, vec![8].into()).unwrap();
                    store.erase(&mine).unwrap();
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                store.erase_prefix(&prefix("a/")).unwrap();
                store.list_dir(&prefix("")).unwrap();
                store.size().unwrap();
            }
        });
    });
    assert_eq!(store.list().unwrap(), []);
    store.erase_prefix(&prefix("")).unwrap();
    assert!(names(directory.path()).is_empty());
}

#[test]
fn threads_that_write_parts_of_a_new_value_find_all_of_them() {
    for round in 0..20 {
        let (_directory, store) = empty();
        let shard = key(&format!("shard/{round}"));
        thread::scope(|scope| {
            for thread in 0..8u8 {
                let (store, shard) = (&store, &shard);
                let part = Bytes::from(vec![thread; 1000]);
                scope.spawn(move || {
                    let at = u64::from(thread) * 1000;
                    store.set_partial(shard, at, part).unwrap();
                });
            }
        });
        let value = store.get(&shard).unwrap().unwrap();
        assert_eq!(value.len(), 8000);
        for (thread, part) in value.chunks(1000).enumerate() {
            assert!(part.iter().all(|byte| usize::from(*byte) == thread));
        }
    }
}

#[test]
fn futures_of_many_values_share_a_few_threads() {
    let (_directory, store) = empty();
    let threads = StoreThreads::new(3).unwrap();
    let store: Arc<FileZarrStore> = Arc::new(store);
    let of_futures = AsyncFileZarrStore::new(Arc::clone(&store), threads.clone());
    let keys: Vec<_> = (0..200).map(|n| key(&format!("c/{n}"))).collect();
    block_on(async {
        for (n, key) in keys.iter().enumerate() {
            of_futures
                .set(key, vec![n as u8; 100].into())
                .await
                .unwrap();
        }
        of_futures.erase_many(&keys[..100]).await.unwrap();
        assert!(of_futures.get(&keys[99]).await.unwrap().is_none());
        let last = of_futures
            .get_partial(&keys[150], ByteRange::Suffix(1))
            .await
            .unwrap();
        assert_eq!(last.unwrap(), vec![150]);
    });
    assert_eq!(store.list().unwrap().len(), 100, "the same directory");
}
