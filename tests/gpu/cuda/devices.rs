//! Regions, streams and events together; each for itself: the tests of `fabricast-cuda`.

#![allow(unsafe_code)]

use std::time::Duration;

use fabricast::Region;
use fabricast::buffer::DeviceBufferManager;
use fabricast::cuda::{Device, MemoryKind, Stream};

use crate::fake_cuda::{Fake, on_a_gpu};
use crate::pattern::pattern;

#[test]
fn streams_work_on_any_thread() {
    on_a_gpu("devices::streams_work_on_any_thread", &[], || {
        let device = Device::new(0).expect("a device");
        let stream = Stream::new(device).expect("a stream");
        let region = Region::device(1 << 20).build().expect("memory");
        let slice = region.slice(0..1 << 20).expect("a slice");
        std::thread::scope(|threads| {
            for seed in 0..4 {
                let (stream, slice) = (stream.clone(), slice.clone());
                threads.spawn(move || {
                    let part = slice
                        .slice(seed * 1000..seed * 1000 + 1000)
                        .expect("inside");
                    let bytes = pattern(1000, seed as u64);
                    part.copy_from_host(&bytes, &stream).expect("copied");
                    let mut back = vec![0; 1000];
                    part.copy_to_host(&mut back, &stream).expect("copied");
                    assert_eq!(back, bytes);
                });
            }
        });
        assert!(stream.is_idle().expect("asked"));
    });
}

#[test]
fn a_stream_waits_for_another_ones_event() {
    on_a_gpu(
        "devices::a_stream_waits_for_another_ones_event",
        &[],
        || {
            let fake = Fake::load();
            let device = Device::new(0).expect("a device");
            let (one, two) = (
                Stream::new(device).expect("one"),
                Stream::new(device).expect("two"),
            );
            let pool = DeviceBufferManager::new(
                Region::device(64 << 20).build().expect("memory"),
                32 << 20,
            )
            .expect("a pool");
            let mut buffer = pool.try_acquire().expect("free");
            buffer.fill(1, &one).expect("filled");
            fake.delay(Duration::from_millis(20));
            // Work of the device itself: a kernel in the place of which the driver fills memory.
            fill_later(&fake, buffer.address(), 7, buffer.len(), &one);
            let event = one.record().expect("recorded");
            two.wait_for(&event).expect("waits");
            let mut back = [0; 5];
            buffer.copy_to_host(&mut back, &two).expect("copied");
            assert_eq!(back, [7; 5], "the copy came behind the event");
            assert!(event.is_done().expect("asked"));
            event.synchronize().expect("done");
            fake.delay(Duration::ZERO);
        },
    );
}

#[test]
fn events_and_streams_go_in_any_order() {
    on_a_gpu("devices::events_and_streams_go_in_any_order", &[], || {
        let fake = Fake::load();
        fake.delay(Duration::from_millis(5));
        let device = Device::new(0).expect("a device");
        for round in 0..6 {
            let stream = Stream::new(device).expect("a stream");
            let region = Region::device(4 << 20).build().expect("memory");
            let slice = region.slice(0..4 << 20).expect("a slice");
            fill_later(&fake, slice.address(), round, slice.len(), &stream);
            let event = stream.record().expect("recorded");
            match round {
                0 => drop((stream, event, slice, region)),
                1 => drop((event, stream, region, slice)),
                2 => drop((slice, region, event, stream)),
                3 => drop((region, slice, stream, event)),
                4 => drop((stream, slice, event, region)),
                _ => drop((event, region, slice, stream)),
            }
        }
    });
}

#[test]
fn an_address_is_what_it_is() {
    on_a_gpu("devices::an_address_is_what_it_is", &[], || {
        let local = 1_u64;
        let here = (&raw const local).addr() as u64;
        assert_eq!(MemoryKind::of(here), Ok(MemoryKind::Host));
        let pinned = Region::pinned(1 << 16).build().expect("pinned memory");
        assert_eq!(
            MemoryKind::of(pinned.address() + 5),
            Ok(MemoryKind::PinnedHost)
        );
        let device = Region::device(100).build().expect("memory");
        let MemoryKind::Device { ordinal, .. } =
            MemoryKind::of(device.address() + 99).expect("asked")
        else {
            panic!("not a device's");
        };
        assert_eq!(ordinal, 0);
    });
}

/// Has the driver fill memory in the order of a stream, and does not wait.
fn fill_later(fake: &Fake, at: u64, byte: u8, len: usize, stream: &Stream) {
    type Fill = unsafe extern "C" fn(u64, u8, usize, *mut std::ffi::c_void) -> i32;
    type Push = unsafe extern "C" fn(*mut std::ffi::c_void) -> i32;
    let retained = context(fake);
    let push: Push = fake.get("cuCtxPushCurrent_v2").expect("there");
    let fill: Fill = fake.get("cuMemsetD8Async").expect("there");
    let pop: unsafe extern "C" fn(*mut *mut std::ffi::c_void) -> i32 =
        fake.get("cuCtxPopCurrent_v2").expect("there");
    let mut popped = std::ptr::null_mut();
    // SAFETY: a context that is kept for good.
    assert_eq!(unsafe { push(retained) }, 0);
    // SAFETY: the type is that of the function; the memory is the test's, whose drop waits for the
    // device.
    assert_eq!(unsafe { fill(at, byte, len, stream.raw()) }, 0);
    // SAFETY: the type is that of the function, and the pointer is ours.
    assert_eq!(unsafe { pop(&raw mut popped) }, 0);
}

/// The primary context of device 0.
fn context(fake: &Fake) -> *mut std::ffi::c_void {
    type Retain = unsafe extern "C" fn(*mut *mut std::ffi::c_void, i32) -> i32;
    let retain: Retain = fake.get("cuDevicePrimaryCtxRetain").expect("there");
    let mut context = std::ptr::null_mut();
    // SAFETY: the type is that of the function, and the pointer is ours.
    let code = unsafe { retain(&raw mut context, 0) };
    assert_eq!(code, 0);
    context
}
