//! Sends behind the work of cudarc's streams, out of cudarc's memory, and arrivals in front of it.

#![allow(unsafe_code)]

use std::time::Duration;

use cudarc::driver::result::memset_d8_async;
use fabricast::Region;
use fabricast::buffer::Payload;
use fabricast::cuda::{Event, Stream};
use fabricast::endpoint::DeviceDelivery;

use super::endpoints::{MIB, Setup, device_pool, receive, ring, staged};
use super::fake::on_gpu;
use crate::fake_cuda::folder_for_cudarc;
use crate::pattern::pattern;

const LEN: usize = 300_007;

#[test]
fn what_its_streams_write_is_sent_after_it_was_written() {
    let folder = folder_for_cudarc();
    let path = folder.path().to_str().expect("a path");
    on_gpu(
        "cudarc::what_its_streams_write_is_sent_after_it_was_written",
        &[("LD_LIBRARY_PATH", path), ("FAKE_CUDA_DELAY_US", "1000")],
        |gpu| {
            let context = gpu.device().cudarc_context().expect("a context");
            let producer = context.new_stream().expect("a stream");
            let consumer = context.new_stream().expect("a stream");
            let [by, to] = [&producer, &consumer].map(|it| Stream::from_cudarc(it).expect("ours"));
            let ring = ring(4, MIB);
            let delivery = DeviceDelivery::new(device_pool(4, MIB)).stream(&to);
            let config = receive(MIB, device_pool(1, MIB))
                .incoming(|incoming| incoming.deliver_to(delivery));
            let Some(mut setup) = Setup::new(config, vec![staged(&ring)]) else {
                return;
            };
            let slice = producer.clone_htod(&pattern(MIB, 1)).expect("memory");
            let region = Region::from_cuda_slice(slice).expect("a region");
            region.register(&setup.domain).expect("registered");
            let part = region.slice(17..17 + LEN).expect("inside");
            for byte in 1..4 {
                if let Some(fake) = &gpu.fake {
                    fake.block(&by);
                }
                context.bind_to_thread().expect("current");
                // SAFETY: inside of the region, which stays; what was sent from there has arrived.
                unsafe { memset_d8_async(part.address(), byte, LEN, producer.cu_stream()) }
                    .expect("begun");
                let event = producer.record_event(None).expect("recorded");
                let event = Event::from_cudarc(event).expect("ours");
                setup.send(0, Payload::from(part.clone()).after(&event), byte.into());
                if let Some(fake) = &gpu.fake {
                    setup.idle(Duration::from_millis(20));
                    assert!(setup.arrived.is_empty(), "before its event");
                    fake.unblock();
                }
                let (key, bytes) = setup.message(&to);
                assert_eq!((key, bytes.len()), (byte.into(), LEN));
                assert!(
                    bytes.iter().all(|it| *it == byte),
                    "sent before it was written"
                );
                setup.outcomes(1);
            }
            // Copies are under way, and all that is cudarc's goes before those who use it.
            for key in 4..7 {
                setup.send(0, part.clone(), key);
            }
            drop((producer, consumer, context, region, part));
            drop((by, to, setup, ring));
        },
    );
}
