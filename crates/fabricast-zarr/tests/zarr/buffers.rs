//! Buffers of the caller's own, in the host's memory.

use std::time::{Duration, Instant};

use fabricast::buffer::SharedBufferManager;
use fabricast::storage::wait_all;
use fabricast_zarr::{ReadRefusal, ReadRefused};
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{ReadableStorageTraits, StorageError, WritableStorageTraits};

use super::{empty, key};

const ALL: ByteRange = ByteRange::FromStart(0, None);

#[test]
fn chunks_go_to_slots_of_a_pool_and_back() {
    let (_directory, store) = empty();
    let pool = SharedBufferManager::allocate(8, 4096).unwrap();
    for n in 0..8u8 {
        let mut slot = pool.try_acquire().unwrap();
        slot[..3000].fill(n);
        let moved = store
            .write_from(&key(&format!("c/{n}")), &slot, ..3000)
            .unwrap();
        assert_eq!(moved.bytes, 3000);
    }
    let begun: Vec<_> = (0..8)
        .map(|n| {
            let slot = pool.try_acquire().unwrap();
            store
                .pread_into(&key(&format!("c/{n}")), ALL, slot, 1000)
                .unwrap()
        })
        .collect();
    let ended = wait_all(begun, Instant::now() + Duration::from_secs(60));
    for (n, outcome) in ended.into_iter().enumerate() {
        let (slot, moved) = outcome.unwrap().into_result().unwrap();
        assert_eq!(moved.bytes, 3000);
        assert!(slot[1000..4000].iter().all(|byte| usize::from(*byte) == n));
    }
    assert_eq!(pool.free_count(), 8, "every buffer came back");
}

#[test]
fn a_read_that_does_not_begin_gives_its_buffer_back() {
    let (_directory, store) = empty();
    store.set(&key("c/0"), vec![1; 100].into()).unwrap();
    let begin = |name: &str, range, at| {
        let begun = store.pread_into(&key(name), range, vec![9u8; 100], at);
        let ReadRefused { buffer, reason } = begun.unwrap_err();
        assert_eq!(buffer, [9; 100]);
        reason
    };
    assert!(matches!(begin("c/1", ALL, 0), ReadRefusal::NotFound));
    let outside = begin("c/0", ByteRange::Suffix(101), 0);
    assert!(matches!(
        outside,
        ReadRefusal::Storage(StorageError::InvalidByteRangeError(_))
    ));
    for at in [1, 100, usize::MAX] {
        let reason = begin("c/0", ALL, at);
        assert!(reason.to_string().contains("a buffer of 100"), "{reason}");
    }
    let error = store
        .write_from(&key("c/0"), &vec![2; 10], 5..11)
        .unwrap_err();
    assert!(error.to_string().contains("5..11"), "{error}");
    assert_eq!(
        store.get(&key("c/0")).unwrap().unwrap(),
        vec![1; 100],
        "as it was"
    );
}
