//! What cudarc makes, used here: slices as regions, streams, events. Over the fake, cudarc finds it
//! by `LD_LIBRARY_PATH`.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaStream};
use fabricast::Region;
use fabricast::buffer::{DeviceBufferManager, Payload};
use fabricast::cuda::{CudaError, Device, Event, Stream};
use fabricast::memory::{MemoryError, RegionKind};

use crate::fake_cuda::{self, Fake, on_a_gpu, over_the_fake};
use crate::pattern::pattern;

fn with_cudarc(test: &str, devices: &str, body: impl FnOnce()) {
    let folder = fake_cuda::folder_for_cudarc();
    let path = folder.path().to_str().expect("a path");
    let env = [("LD_LIBRARY_PATH", path), ("FAKE_CUDA_DEVICES", devices)];
    on_a_gpu(test, &env, body);
}

fn context() -> Arc<CudaContext> {
    let device = Device::new(0).expect("a device");
    device.cudarc_context().expect("a context")
}

fn stream() -> Arc<CudaStream> {
    context().new_stream().expect("a stream")
}

/// Whether a context is current in this thread.
fn is_in_a_context() -> bool {
    type Get = unsafe extern "C" fn(*mut *mut c_void) -> i32;
    let get: Get = Fake::load().get("cuCtxGetCurrent").expect("there");
    let mut context = std::ptr::null_mut();
    // SAFETY: the type is that of the function, and the pointer is ours.
    assert_eq!(unsafe { get(&raw mut context) }, 0);
    !context.is_null()
}

#[test]
fn a_slice_is_a_region_and_freed_with_it() {
    with_cudarc("cudarc::a_slice_is_a_region_and_freed_with_it", "1", || {
        let bytes = pattern(1_000_003, 1);
        let (on, stream);
        {
            let theirs = stream_of_cudarc(&bytes);
            on = Stream::from_cudarc(&theirs.0).expect("a stream");
            stream = Arc::downgrade(&theirs.0);
            let region = Region::from_cuda_slice(theirs.1).expect("a region");
            drop(theirs.0);
            assert_eq!(region.len(), bytes.len());
            let device = Device::new(0).expect("a device");
            assert_eq!(region.kind(), RegionKind::Device(device));
            let slice = region.slice(777..900_001).expect("inside");
            drop(region);
            let mut back = vec![0; slice.len()];
            slice.copy_to_host(&mut back, &on).expect("copied");
            assert!(back == bytes[777..900_001], "another content");
        }
        drop(on);
        assert!(stream.upgrade().is_none(), "the stream went with its users");
        // Elements of any size, cut to buffers.
        let slice = self::stream().alloc_zeros::<u64>(1024).expect("memory");
        let region = Region::from_cuda_slice(slice).expect("a region");
        assert_eq!(region.len(), 8192);
        let pool = DeviceBufferManager::new(region, 4096).expect("a pool");
        assert_eq!(pool.slots(), 2);
    });
}

fn stream_of_cudarc(bytes: &[u8]) -> (Arc<CudaStream>, cudarc::driver::CudaSlice<u8>) {
    let stream = stream();
    let slice = stream.clone_htod(bytes).expect("copied");
    (stream, slice)
}

#[test]
fn what_is_still_to_be_done_with_a_slice_is_waited_for() {
    with_cudarc(
        "cudarc::what_is_still_to_be_done_with_a_slice_is_waited_for",
        "1",
        || {
            let fake = Fake::load();
            let (one, two) = (stream(), stream());
            let mut slice = one.clone_htod(&pattern(4096, 1)).expect("copied");
            fake.delay(Duration::from_millis(30));
            let bytes = pattern(4096, 2);
            two.memcpy_htod(&bytes, &mut slice).expect("on its way");
            let region = Region::from_cuda_slice(slice).expect("a region");
            fake.delay(Duration::ZERO);
            let mut back = [0; 4096];
            let on = Stream::new(Device::new(0).expect("a device")).expect("a stream");
            let slice = region.slice(0..4096).expect("inside");
            slice.copy_to_host(&mut back, &on).expect("copied");
            assert!(back[..] == bytes[..], "read before it was written");
        },
    );
}

#[test]
fn events_and_streams_order_as_ours_do() {
    with_cudarc("cudarc::events_and_streams_order_as_ours_do", "1", || {
        let fake = Fake::load();
        let theirs = stream();
        let ours = Stream::from_cudarc(&theirs).expect("a stream");
        assert_eq!(ours.raw(), theirs.cu_stream().cast());
        let mut slice = theirs.alloc_zeros::<u8>(1 << 20).expect("memory");
        theirs.synchronize().expect("done");
        let is_fake = !fake_cuda::wants_real();
        if is_fake {
            fake.block(&ours);
        }
        theirs.memset_zeros(&mut slice).expect("on its way");
        let event = theirs.record_event(None).expect("recorded");
        let event = Event::from_cudarc(event).expect("an event");
        let recorded = ours.record().expect("recorded");
        if is_fake {
            assert!(!event.is_done().expect("asked") && !recorded.is_done().expect("asked"));
            fake.unblock();
        }
        let payload = Payload::empty().after(&event);
        recorded.synchronize().expect("done");
        assert!(event.is_done().expect("asked") && ours.is_idle().expect("asked"));
        drop(payload);
        drop(slice);
    });
}

/// Also on a thread that has another context, or none.
#[test]
fn what_goes_leaves_the_context_of_its_thread() {
    with_cudarc(
        "cudarc::what_goes_leaves_the_context_of_its_thread",
        "1",
        || {
            let dropped = |what: Box<dyn Send>| {
                std::thread::spawn(move || {
                    drop(what);
                    is_in_a_context()
                })
                .join()
                .expect("no panic")
            };
            let theirs = stream();
            let event = theirs.record_event(None).expect("recorded");
            let event = Event::from_cudarc(event).expect("an event");
            let slice = theirs.alloc_zeros::<u8>(100).expect("memory");
            let region = Region::from_cuda_slice(slice).expect("a region");
            let ours = Stream::from_cudarc(&theirs).expect("a stream");
            drop(theirs);
            for what in [
                Box::new(event) as Box<dyn Send>,
                Box::new(region),
                Box::new(ours),
            ] {
                assert!(!dropped(what), "a context stayed current");
            }
            let fresh = std::thread::spawn(|| {
                let device = Device::new(0).expect("a device");
                let _context = device.cudarc_context().expect("a context");
                is_in_a_context()
            });
            assert!(!fresh.join().expect("no panic"));
        },
    );
}

#[test]
fn what_is_of_another_context_or_thread_is_refused() {
    with_cudarc(
        "cudarc::what_is_of_another_context_or_thread_is_refused",
        "2",
        || {
            let context = context();
            let each = context.per_thread_stream();
            let refused = Stream::from_cudarc(&each).expect_err("another one for each thread");
            assert!(refused.to_string().contains("each thread"), "{refused}");
            let empty = stream().null::<u8>();
            if let Ok(empty) = empty {
                let refused = Region::from_cuda_slice(empty).expect_err("no bytes");
                assert!(matches!(refused, MemoryError::Empty), "{refused}");
            }
            if fake_cuda::wants_real() {
                return;
            }
            let second = Device::new(1).expect("a second");
            let second = second.cudarc_context().expect("its context");
            // SAFETY: in the fake a context is a number; this one is never destroyed.
            let posing = unsafe { CudaContext::from_raw_context(0, 0, second.cu_ctx()) };
            let posing = std::mem::ManuallyDrop::new(posing.expect("made"));
            let stream = posing.default_stream();
            let refused = Stream::from_cudarc(&stream).expect_err("another context");
            assert!(
                matches!(refused, CudaError::Cudarc { reason } if reason.contains("primary")),
                "{refused}"
            );
            std::mem::forget(stream);
        },
    );
}

/// cudarc panics where it finds no driver; over this one it would.
#[test]
fn a_driver_that_cudarc_does_not_find_is_an_error() {
    over_the_fake(
        "cudarc::a_driver_that_cudarc_does_not_find_is_an_error",
        &[],
        || {
            let refused = Device::new(0).expect("a device").cudarc_context();
            let refused = refused.expect_err("it has another driver, or none");
            let text = refused.to_string();
            assert!(
                text.starts_with("cudarc: ") || text.contains("CUDA"),
                "{text}"
            );
        },
    );
}
