//! Devices, streams and events.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast_cuda::{Cuda, CudaCode, CudaError, Device, DeviceAllocation, MemoryKind, Stream};

use crate::fake_cuda::{Fake, on_a_gpu, over_the_fake};
use crate::memory::Memory;
use crate::pattern::pattern;

#[test]
fn devices_say_what_they_are() {
    on_a_gpu("devices::devices_say_what_they_are", &[], || {
        for device in Device::all().expect("devices") {
            let name = device.name().expect("a name");
            let bus = device.pci_bus_id().expect("a place");
            let bytes = device.total_memory().expect("memory");
            let features = device.features().expect("features");
            println!(
                "| {device} | {name} | {bus} | {} MiB | {features:?} |",
                bytes >> 20
            );
            assert!(!name.is_empty() && bytes >= 1 << 30);
            assert_eq!(bus, bus.to_lowercase());
            assert_eq!(bus.split([':', '.']).count(), 4, "{bus}");
            // Whatever it answers, it must not be in the way.
            let _node = device.numa_node();
        }
    });
}

/// Over a fake with so many devices, which order what network cards write for nobody, for
/// themselves (100) or for all devices (200): whether a flush was called.
fn flushes(test: &str, devices: &str, ordered: &str, expected: bool) {
    let env = [
        ("FAKE_CUDA_DEVICES", devices),
        ("FAKE_CUDA_ORDERED", ordered),
    ];
    over_the_fake(&format!("devices::{test}"), &env, || {
        let device = Device::new(0).expect("a device");
        device.flush_writes().expect("flushed");
        let called = Fake::load().number("fake_cuda_flushes");
        assert_eq!(called, Some(i32::from(expected)));
        let features = device.features().expect("features");
        assert_eq!(features.writes_are_ordered, ordered != "0");
        assert!(features.flush_by_host);
    });
}

#[test]
fn what_was_written_is_flushed() {
    flushes("what_was_written_is_flushed", "1", "0", true);
}

#[test]
fn a_device_that_orders_writes_needs_no_flush() {
    let test = "a_device_that_orders_writes_needs_no_flush";
    flushes(test, "1", "100", false);
}

#[test]
fn another_device_may_read_it_too() {
    flushes("another_device_may_read_it_too", "2", "100", true);
}

#[test]
fn writes_that_are_ordered_for_all_devices_need_no_flush() {
    let test = "writes_that_are_ordered_for_all_devices_need_no_flush";
    flushes(test, "2", "200", false);
}

#[test]
fn a_flush_on_this_machine_is_answered() {
    on_a_gpu("devices::a_flush_on_this_machine_is_answered", &[], || {
        for device in Device::all().expect("devices") {
            match device.flush_writes() {
                // What it does, no test without a network card can see.
                Ok(()) => {}
                Err(error) => assert!(matches!(error, CudaError::Lacks { .. }), "{error}"),
            }
        }
    });
}

#[test]
fn an_event_is_not_done_before_its_work_is() {
    // Real devices are too fast for what this asserts.
    over_the_fake(
        "devices::an_event_is_not_done_before_its_work_is",
        &[],
        || {
            let fake = Fake::load();
            let stream = Stream::new(Device::new(0).expect("a device")).expect("a stream");
            let memory = Memory::of(0, 4096);
            fake.delay(Duration::from_millis(100));
            let begun = Instant::now();
            // SAFETY: the memory is that long; its drop waits for the device.
            unsafe { stream.fill(memory.address(), 1, 4096) }.expect("filled");
            let event = stream.record().expect("recorded");
            assert!(!event.is_done().expect("asked") && !stream.is_idle().expect("asked"));
            event.synchronize().expect("done");
            assert!(begun.elapsed() >= Duration::from_millis(100));
            assert!(event.is_done().expect("asked") && stream.is_idle().expect("asked"));
        },
    );
}

#[test]
fn what_the_driver_refuses_is_an_error() {
    over_the_fake("devices::what_the_driver_refuses_is_an_error", &[], || {
        let fake = Fake::load();
        let stream = Stream::new(Device::new(0).expect("a device")).expect("a stream");
        fake.fail_synchronize(700);
        let failed = stream.synchronize().unwrap_err();
        assert!(
            matches!(failed, CudaError::Call { call: "cuStreamSynchronize", code } if code.0 == 700)
        );
        let text = failed.to_string();
        assert_eq!(
            text,
            "cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700)"
        );
        fake.fail_synchronize(0);
        stream.synchronize().expect("again");
    });
}

#[test]
fn bytes_go_to_a_device_and_back_on_any_thread() {
    let test = "devices::bytes_go_to_a_device_and_back_on_any_thread";
    on_a_gpu(test, &[], || {
        let stream = Stream::new(Device::new(0).expect("a device")).expect("a stream");
        let memory = Memory::of(0, 4000);
        std::thread::scope(|threads| {
            for part in 0..4_u64 {
                let (stream, at) = (stream.clone(), memory.address() + part * 1000);
                threads.spawn(move || {
                    let mut bytes = pattern(1000, part);
                    let place = NonNull::from(&mut bytes[0]);
                    // SAFETY: both are that long, and nobody else uses this part.
                    unsafe { stream.copy_to_device(at, place, 1000) }.expect("copied");
                    stream.synchronize().expect("done");
                    let mut back = vec![0; 1000];
                    let place = NonNull::from(&mut back[0]);
                    // SAFETY: as above.
                    unsafe { stream.copy_to_host(place, at, 1000) }.expect("copied");
                    stream.synchronize().expect("done");
                    assert_eq!(back, bytes);
                });
            }
        });
        assert!(stream.is_idle().expect("asked"));
    });
}

#[test]
fn one_stream_waits_for_what_another_was_given_before() {
    let test = "devices::one_stream_waits_for_what_another_was_given_before";
    on_a_gpu(test, &[], || {
        let fake = Fake::load();
        let device = Device::new(0).expect("a device");
        let streams = [0, 1].map(|_| Stream::new(device).expect("a stream"));
        let memory = Memory::of(0, 1 << 20);
        fake.delay(Duration::from_millis(20));
        // SAFETY: the memory is that long, and its drop waits for the device.
        unsafe { streams[0].fill(memory.address(), 7, 1 << 20) }.expect("filled");
        let event = streams[0].record().expect("recorded");
        streams[1].wait_for(&event).expect("waits");
        let mut back = [0; 5];
        let place = NonNull::from(&mut back[0]);
        // SAFETY: both are that long.
        unsafe { streams[1].copy_to_host(place, memory.address(), 5) }.expect("copied");
        streams[1].synchronize().expect("done");
        assert_eq!(back, [7; 5], "the copy came behind the event");
        // It is used again, and stands for what came since.
        streams[1].record_in(&event).expect("recorded");
        event.synchronize().expect("done");
        assert!(event.is_done().expect("asked"));
        fake.delay(Duration::ZERO);
    });
}

#[test]
fn a_context_is_current_until_it_is_left() {
    on_a_gpu(
        "devices::a_context_is_current_until_it_is_left",
        &[],
        || {
            let cuda = Cuda::ready().expect("a driver");
            assert_eq!(cuda.current_context(), Ok(None));
            let outer = cuda.enter_device(0).expect("entered");
            let inner = cuda.enter_device(0).expect("entered");
            let context = cuda.current_context().expect("asked");
            assert_eq!(context, cuda.primary_context(0).map(Some).expect("one"));
            drop(inner);
            assert_eq!(cuda.current_context().expect("asked"), context);
            drop(outer);
            assert_eq!(cuda.current_context(), Ok(None), "as it was before");
            let elsewhere = std::thread::spawn(move || cuda.current_context());
            assert_eq!(elsewhere.join().expect("no panic"), Ok(None));
        },
    );
}

#[test]
fn an_address_belongs_to_the_host_or_to_an_allocation() {
    let test = "devices::an_address_belongs_to_the_host_or_to_an_allocation";
    on_a_gpu(test, &[], || {
        let local = 1_u64;
        let here = (&raw const local).addr() as u64;
        assert_eq!(MemoryKind::of(here), Ok(MemoryKind::Host));
        assert_eq!(MemoryKind::of_host(here), MemoryKind::Host);
        // Nothing is mapped in the first page, nor beyond what user programs may have.
        for nowhere in [0, 8, 1 << 62] {
            assert_eq!(MemoryKind::of(nowhere), Ok(MemoryKind::Invalid));
            assert_eq!(MemoryKind::of_host(nowhere), MemoryKind::Invalid);
        }
        let cuda = Cuda::ready().expect("a driver");
        let memory = Memory::of(0, 10_000);
        let kind = MemoryKind::Device {
            ordinal: 0,
            allocation: DeviceAllocation::Plain,
        };
        assert_eq!(MemoryKind::of(memory.address() + 9_999), Ok(kind));
        let current = cuda.enter_device(0).expect("entered");
        let (base, len) = cuda.address_range(memory.address() + 5).expect("asked");
        assert_eq!(base, memory.address());
        assert!(len >= 10_000);
        let pinned = cuda.host_alloc(1 << 16).expect("pinned memory");
        let address = pinned.addr().get() as u64;
        assert_eq!(MemoryKind::of(address + 5), Ok(MemoryKind::PinnedHost));
        // SAFETY: allocated above, and not used by anybody.
        unsafe { cuda.host_free(pinned) }.expect("freed");
        drop(current);
    });
}

#[test]
fn what_there_is_no_room_for_is_refused_with_the_call() {
    let test = "devices::what_there_is_no_room_for_is_refused_with_the_call";
    over_the_fake(test, &[], || {
        let cuda = Cuda::ready().expect("a driver");
        let _current = cuda.enter_device(0).expect("entered");
        Fake::load().fail("cuMemAlloc", CudaCode::OUT_OF_MEMORY.0);
        let refused = cuda.alloc(4096).expect_err("no room");
        assert_eq!(refused.code(), Some(CudaCode::OUT_OF_MEMORY));
        assert!(refused.to_string().starts_with("cuMemAlloc: "), "{refused}");
    });
}

/// Whoever made the stream may destroy its context with it, and an event goes in that context.
#[test]
fn an_event_keeps_the_stream_of_somebody_else() {
    let test = "devices::an_event_keeps_the_stream_of_somebody_else";
    over_the_fake(test, &[], || {
        let device = Device::new(0).expect("a device");
        let theirs = Stream::new(device).expect("a stream");
        let kept = Arc::new(());
        let keep_alive = Box::new((theirs.clone(), Arc::clone(&kept)));
        // SAFETY: the keep-alive has a clone of the stream.
        let ours = unsafe { Stream::from_raw(theirs.raw(), device, keep_alive) };
        let event = ours.expect("a stream").record().expect("recorded");
        assert_eq!(Arc::strong_count(&kept), 2, "the event is still there");
        drop(event);
        assert_eq!(Arc::strong_count(&kept), 1);
    });
}
