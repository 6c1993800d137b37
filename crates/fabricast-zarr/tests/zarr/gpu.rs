//! Values to a GPU's memory and back: over the fake driver, and over a real one where
//! `FABRICAST_TEST_GPU=real` asks for it (`make test-gpu`).

use std::time::{Duration, Instant};

use fabricast::Region;
use fabricast::buffer::{DeviceBuffer, DeviceBufferManager};
use fabricast::cuda::{Device, Stream};
use fabricast::storage::{BackEnd, IoOptions, pinned_buffers_clear, wait_all};
use fabricast_zarr::ZarrStoreOptions;
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{ReadableStorageTraits, WritableStorageTraits};

use super::fake_cuda::on_a_gpu;
use super::key;

const ALL: ByteRange = ByteRange::FromStart(0, None);
const SLOT: usize = 1 << 20;

fn bytes(slot: &DeviceBuffer, stream: &Stream) -> Vec<u8> {
    let mut bytes = vec![0; SLOT];
    slot.copy_to_host(&mut bytes, stream).unwrap();
    bytes
}

#[test]
fn chunks_go_to_gpu_memory_and_back() {
    on_a_gpu("chunks_go_to_gpu_memory_and_back", &[], || {
        there_and_back();
        pinned_buffers_clear();
    });
}

fn there_and_back() {
    let directory = tempfile::tempdir().unwrap();
    // Below the threshold, the caller's thread does it; so the pool's does here.
    let io = IoOptions {
        gds_threshold: Some(0),
        ..IoOptions::default()
    };
    let store = ZarrStoreOptions::new()
        .io(io)
        .open(directory.path())
        .unwrap();
    let stream = Stream::new(Device::new(0).unwrap()).unwrap();
    let pool = DeviceBufferManager::new(Region::device(4 * SLOT).build().unwrap(), SLOT).unwrap();
    let value: Vec<u8> = (0..SLOT - 777).map(|at| (at % 253) as u8).collect();
    store.set(&key("c/0"), value.clone().into()).unwrap();

    let mut slot = pool.try_acquire().unwrap();
    let moved = store
        .read_into(&key("c/0"), ALL, &mut slot, 5)
        .unwrap()
        .unwrap();
    assert_eq!(moved.bytes, value.len());
    assert!(bytes(&slot, &stream)[5..5 + value.len()] == value);

    let moved = store
        .write_from(&key("c/1"), &slot, 5..5 + value.len())
        .unwrap();
    assert!(moved.bytes == value.len() && moved.back_end != BackEnd::Posix);
    assert!(store.get(&key("c/1")).unwrap().unwrap() == value);

    let begun = ["c/0", "c/1"].map(|name| {
        let slot = pool.try_acquire().unwrap();
        store
            .pread_into(&key(name), ByteRange::Suffix(1000), slot, 0)
            .unwrap()
    });
    for outcome in wait_all(begun, Instant::now() + Duration::from_secs(60)) {
        let (slot, moved) = outcome.unwrap().into_result().unwrap();
        assert_eq!(moved.bytes, 1000);
        assert!(bytes(&slot, &stream)[..1000] == value[value.len() - 1000..]);
        println!("| moved by {:?}", moved.back_end);
    }
}
