//! Regions of device memory, and what is made of them.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fabricast::Region;
use fabricast::buffer::{
    DeviceBufferManager, Payload, RingConfig, RingRegion, SharedBufferConfig, SharedBufferManager,
};
use fabricast::cuda::{Device, MemoryKind, Stream};
use fabricast::memory::{MemoryError, RegionKind};

use crate::fake_cuda::{Fake, has_two_devices, on_a_gpu, over_the_fake};
use crate::pattern::pattern;

fn stream() -> Stream {
    Stream::new(Device::new(0).expect("a device")).expect("a stream")
}

#[test]
fn bytes_go_there_and_come_back() {
    on_a_gpu("regions::bytes_go_there_and_come_back", &[], || {
        let stream = stream();
        let most: usize = if crate::fake_cuda::wants_real() {
            1 << 30
        } else {
            8 << 20
        };
        for virtual_memory in [false, true] {
            for len in [1, 7, 4095, 4096, 65_537, 1 << 20, most] {
                let region = Region::device(len + 3)
                    .virtual_memory(virtual_memory)
                    .build()
                    .expect("memory");
                let device = Device::new(0).expect("a device");
                assert_eq!(region.kind(), RegionKind::Device(device));
                assert!(region.is_device() && !region.is_host() && region.pages().is_none());
                let slice = region.slice(3..len + 3).expect("an odd slice");
                let bytes = pattern(len, len as u64);
                slice.copy_from_host(&bytes, &stream).expect("copied");
                let mut back = vec![0; len];
                slice.copy_to_host(&mut back, &stream).expect("copied");
                assert!(
                    back == bytes,
                    "{len} bytes, virtual memory: {virtual_memory}"
                );
            }
        }
    });
}

#[test]
fn the_host_gets_no_bytes_of_a_device() {
    on_a_gpu("regions::the_host_gets_no_bytes_of_a_device", &[], || {
        let region = || Region::device(1 << 16).build().expect("memory");
        let config = || SharedBufferConfig::new(4096);
        let refused = SharedBufferManager::new(region(), config()).map(drop);
        assert!(
            matches!(refused, Err(MemoryError::NotHost { .. })),
            "{refused:?}"
        );
        // SAFETY: it is refused, which is what this is about.
        let refused = unsafe { SharedBufferManager::new_external(region(), config()) }.map(drop);
        assert!(
            matches!(refused, Err(MemoryError::NotHost { .. })),
            "{refused:?}"
        );
        let refused = RingRegion::new(region(), RingConfig::default()).map(drop);
        assert!(
            matches!(refused, Err(MemoryError::NotHost { .. })),
            "{refused:?}"
        );
        let host = Region::host(1 << 16).build().expect("host memory");
        let refused = DeviceBufferManager::new(host, 4096).map(drop);
        assert!(
            matches!(
                refused,
                Err(MemoryError::NotDeviceRegion {
                    kind: RegionKind::Host,
                    ..
                })
            ),
            "{refused:?}"
        );
        let pool = DeviceBufferManager::new(region(), 4096).expect("a pool");
        let payload = Payload::from(pool.try_acquire().expect("free"));
        assert!(payload.is_device() && payload.segments()[0].as_bytes().is_none());
        let buffer = payload.into_device_buffer().expect("what it was");
        assert_eq!(buffer.len(), 4096);
    });
}

#[test]
fn a_pool_of_device_buffers() {
    on_a_gpu("regions::a_pool_of_device_buffers", &[], || {
        let stream = stream();
        let region = Region::device(10_000).build().expect("memory");
        let pool = DeviceBufferManager::new(Arc::clone(&region), 1000).expect("a pool");
        // 1,024 apart, and the last one need not be padded.
        assert_eq!(
            (pool.slots(), pool.slot_size(), pool.free_count()),
            (9, 1000, 9)
        );
        assert!(matches!(
            region.slice(0..1),
            Err(MemoryError::Claimed { .. })
        ));
        let mut taken: Vec<_> = std::iter::from_fn(|| pool.try_acquire()).collect();
        assert_eq!(taken.len(), 9);
        for (seed, buffer) in taken.iter_mut().enumerate() {
            assert_eq!(buffer.address() % 256, region.address() % 256);
            buffer
                .copy_from_host(&pattern(1000, seed as u64), &stream)
                .expect("copied");
        }
        for (seed, buffer) in taken.iter().enumerate() {
            let mut back = vec![0; 1000];
            buffer.copy_to_host(&mut back, &stream).expect("copied");
            assert!(
                back == pattern(1000, seed as u64),
                "buffer {seed} is its own"
            );
        }
        assert!(pool.try_acquire().is_none());
        let late = pool.acquire(Instant::now() + Duration::from_millis(10));
        assert!(late.is_err(), "none is free");
        let mut last = taken.pop().expect("nine");
        last.set_len(10);
        assert_eq!((last.len(), last.capacity()), (10, 1000));
        last.fill(3, &stream).expect("filled");
        let mut back = [0; 10];
        last.copy_to_host(&mut back, &stream).expect("copied");
        assert_eq!(back, [3; 10]);
        let handed = std::thread::spawn(move || drop(last));
        let again = pool
            .acquire(Instant::now() + Duration::from_secs(5))
            .expect("one came back");
        assert_eq!(again.len(), 1000, "its length is the slot's again");
        handed.join().expect("dropped");
        drop((again, taken, pool));
        region.slice(0..1).expect("the pool is gone");
    });
}

#[test]
fn memory_of_others_is_what_it_is() {
    on_a_gpu("regions::memory_of_others_is_what_it_is", &[], || {
        struct Dropped(Arc<AtomicBool>, Arc<Region>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                assert!(!self.1.is_empty());
                self.0.store(true, Ordering::SeqCst);
            }
        }
        for (owner, wants_device) in [
            (Region::device(100_000).build().expect("memory"), true),
            (
                Region::device(100_000)
                    .virtual_memory(true)
                    .build()
                    .expect("memory"),
                true,
            ),
            (Region::pinned(100_000).build().expect("pinned"), false),
        ] {
            let (address, dropped) = (owner.address(), Arc::default());
            let keep = Box::new(Dropped(Arc::clone(&dropped), owner));
            // SAFETY: the keep-alive holds the region, and nobody has a reference to its bytes.
            let theirs = unsafe { Region::external_device(address + 1000, 5000, keep) }
                .expect("known to CUDA");
            assert_eq!(theirs.is_device(), wants_device, "{theirs:?}");
            let device = Device::new(0).expect("a device");
            let kind = if wants_device {
                RegionKind::Device(device)
            } else {
                RegionKind::PinnedHost
            };
            assert_eq!((theirs.kind(), theirs.address()), (kind, address + 1000));
            let slice = theirs.slice(1..5000).expect("a slice");
            if wants_device {
                let (bytes, stream) = (pattern(4999, 1), stream());
                slice.copy_from_host(&bytes, &stream).expect("copied");
                let mut back = vec![0; 4999];
                slice.copy_to_host(&mut back, &stream).expect("copied");
                assert!(back == bytes);
            }
            drop(theirs);
            assert!(!dropped.load(Ordering::SeqCst), "the slice keeps it");
            drop(slice);
            assert!(dropped.load(Ordering::SeqCst));
        }
        let plain = Region::device(5000).build().expect("memory");
        // SAFETY: refused, since it is longer than the allocation.
        let refused = unsafe { Region::external_device(plain.address(), 1 << 40, Box::new(())) };
        assert!(
            matches!(refused, Err(MemoryError::NotDevice { .. })),
            "{:?}: {refused:?}",
            MemoryKind::of(plain.address())
        );
        let local = 0_u8;
        // SAFETY: refused, since CUDA does not know it.
        let refused =
            unsafe { Region::external_device((&raw const local).addr() as u64, 1, Box::new(())) };
        assert!(
            matches!(refused, Err(MemoryError::NotDevice { .. })),
            "{refused:?}"
        );
    });
}

#[test]
fn managed_memory_is_a_devices() {
    on_a_gpu("regions::managed_memory_is_a_devices", &[], || {
        let (fake, stream) = (Fake::load(), stream());
        // Something that makes a context current, as whoever allocates such memory does.
        stream.synchronize().expect("idle");
        let mut address = 0;
        let alloc: unsafe extern "C" fn(*mut u64, usize, u32) -> i32 =
            fake.get("cuMemAllocManaged").expect("there");
        let free: unsafe extern "C" fn(u64) -> i32 = fake.get("cuMemFree_v2").expect("there");
        let push: unsafe extern "C" fn(*mut std::ffi::c_void) -> i32 =
            fake.get("cuCtxSetCurrent").expect("there");
        let retain: unsafe extern "C" fn(*mut *mut std::ffi::c_void, i32) -> i32 =
            fake.get("cuDevicePrimaryCtxRetain").expect("there");
        let mut context = std::ptr::null_mut();
        // SAFETY: the type is that of the function, and the place is ours.
        assert_eq!(unsafe { retain(&raw mut context, 0) }, 0);
        // SAFETY: a context that was just answered.
        assert_eq!(unsafe { push(context) }, 0);
        // SAFETY: the type is that of the function, and the place is ours.
        assert_eq!(unsafe { alloc(&raw mut address, 1 << 16, 1) }, 0);
        // SAFETY: allocated above, and freed below, when the region is gone.
        let region = unsafe { Region::external_device(address, 1 << 16, Box::new(())) }
            .expect("known to CUDA");
        assert_eq!(
            region.kind(),
            RegionKind::Managed(Device::new(0).expect("a device"))
        );
        assert!(region.is_device(), "the host leaves it alone");
        let slice = region.slice(5..50_000).expect("a slice");
        let bytes = pattern(slice.len(), 3);
        slice.copy_from_host(&bytes, &stream).expect("copied");
        let mut back = vec![0; bytes.len()];
        slice.copy_to_host(&mut back, &stream).expect("copied");
        assert!(back == bytes);
        drop((slice, region));
        // SAFETY: allocated above, and nobody uses it any more.
        assert_eq!(unsafe { free(address) }, 0);
    });
}

#[test]
fn pinned_memory_is_the_hosts_own() {
    on_a_gpu("regions::pinned_memory_is_the_hosts_own", &[], || {
        let stream = stream();
        let host = Region::pinned(1 << 20).build().expect("pinned memory");
        assert!(host.is_host() && !host.is_device());
        assert_eq!(host.kind(), RegionKind::PinnedHost);
        let pool = SharedBufferManager::new(host, SharedBufferConfig::new(4096)).expect("a pool");
        let mut buffer = pool.try_acquire().expect("free");
        let bytes = pattern(4096, 9);
        buffer.copy_from_slice(&bytes);
        let device = Region::device(4096).build().expect("memory");
        let slice = device.slice(0..4096).expect("a slice");
        slice.copy_from_host(&buffer, &stream).expect("copied");
        buffer.fill(0);
        slice.copy_to_host(&mut buffer, &stream).expect("copied");
        assert!(buffer[..] == bytes[..]);
    });
}

#[test]
fn the_second_device_has_its_own_memory() {
    on_a_gpu(
        "regions::the_second_device_has_its_own_memory",
        &[("FAKE_CUDA_DEVICES", "2")],
        || {
            if !has_two_devices() {
                return;
            }
            let second = Device::new(1).expect("a device");
            let stream = Stream::new(second).expect("a stream");
            let region = Region::device(4096).device(1).build().expect("memory");
            assert_eq!(region.kind(), RegionKind::Device(second));
            let slice = region.slice(0..4096).expect("a slice");
            let bytes = pattern(4096, 1);
            slice.copy_from_host(&bytes, &stream).expect("copied");
            let mut back = vec![0; 4096];
            // By a stream of the other one.
            slice
                .copy_to_host(&mut back, &self::stream())
                .expect("copied");
            assert!(back == bytes);
        },
    );
}

/// A context that somebody made and has current may be destroyed before the region goes.
#[test]
fn pinned_memory_does_without_the_context_of_somebody_else() {
    let test = "regions::pinned_memory_does_without_the_context_of_somebody_else";
    over_the_fake(test, &[], || {
        let fake = Fake::load();
        let make_current = |context: usize| {
            let set: unsafe extern "C" fn(usize) -> i32 =
                fake.get("cuCtxSetCurrent").expect("there");
            // SAFETY: a pointer is a number to this function of the fake's.
            assert_eq!(unsafe { set(context) }, 0);
        };
        make_current(0x9000);
        let region = Region::pinned(4096).build().expect("pinned memory");
        // It was destroyed meanwhile.
        make_current(0);
        drop(region);
        assert_eq!(fake.number("fake_cuda_strangers_pushed"), Some(0));
        assert_eq!(fake.number("fake_cuda_registered_live"), Some(0));
    });
}
