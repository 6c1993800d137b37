//! Two GPUs: over the fake driver always, over the machine's where it has two.

use std::sync::Arc;

use fabricast::buffer::{DeviceBufferManager, Payload, Segment};
use fabricast::cuda::{Device, Stream};
use fabricast::endpoint::{StagingConfig, StagingRing};
use fabricast::{Domain, Region};

use super::endpoints::{MIB, Setup, filled, receive, ring, staged};
use super::fake::on_gpu;
use crate::fake_cuda::has_two_devices;
use crate::pattern::pattern;

const TWO: (&str, &str) = ("FAKE_CUDA_DEVICES", "2");

fn region_on(device: u32, domain: &Domain, len: usize) -> Arc<Region> {
    let region = Region::device(len).device(device).build();
    let region = region.expect("device memory");
    region.register(domain).expect("registered");
    region
}

fn pool_on(device: u32, slots: usize, slot_size: usize) -> DeviceBufferManager {
    let region = Region::device(slots * slot_size.next_multiple_of(256)).device(device);
    DeviceBufferManager::new(region.build().expect("device memory"), slot_size).expect("a pool")
}

fn stream_of(device: u32) -> Stream {
    Stream::new(Device::new(device).expect("a device")).expect("a stream")
}

/// All by this one thread, which makes no context current itself.
#[test]
fn both_ways_between_them_through_one_ring() {
    on_gpu(
        "two::both_ways_between_them_through_one_ring",
        &[TWO, ("FAKE_CUDA_DELAY_US", "100")],
        |_| {
            if !has_two_devices() {
                return;
            }
            let ring = ring(8, MIB);
            let way = |to| {
                Setup::new(
                    receive(2 * MIB, pool_on(to, 4, 2 * MIB)),
                    vec![staged(&ring)],
                )
            };
            // The first goes from device 0 to device 1, the second back.
            let (Some(there), Some(back)) = (way(1), way(0)) else {
                return;
            };
            let mut ways = [there, back];
            let sizes = [1, 4097, 65_536, MIB - 3, MIB + 1, 2 * MIB - 64, 300_007];
            let streams = [0, 1].map(stream_of);
            let regions = [0, 1].map(|from| region_on(from, &ways[from as usize].domain, 16 * MIB));
            for round in 0..21 {
                let size = sizes[round % sizes.len()];
                let key = round as u64;
                for from in 0..2 {
                    let seed = key * 2 + from as u64;
                    // Filled by a stream of the other device, too: addresses are of all.
                    let by = &streams[(from + round) % 2];
                    let slice = filled(&regions[from], round * 251, size, seed, by);
                    ways[from].send(0, slice, key);
                }
                for (from, way) in ways.iter_mut().enumerate() {
                    way.until("message", |it| !it.arrived.is_empty());
                    let on = way.arrived[0].payload().device().ordinal();
                    assert_eq!(on as usize, 1 - from, "the other device");
                    let (got, bytes) = way.message(&streams[round % 2]);
                    assert_eq!((got, bytes.len()), (key, size));
                    assert!(
                        bytes == pattern(size, key * 2 + from as u64),
                        "other content"
                    );
                    assert_eq!(way.outcomes(1)[0].0, key);
                }
            }
            assert_eq!(ring.free_slots(), 8);
            assert_eq!(ring.stats().payloads, 42);
        },
    );
}

#[test]
fn a_payload_of_both_is_one_message() {
    on_gpu("two::a_payload_of_both_is_one_message", &[TWO], |_| {
        if !has_two_devices() {
            return;
        }
        let ring = ring(4, MIB);
        let config = receive(MIB, pool_on(1, 2, MIB));
        let Some(mut setup) = Setup::new(config, vec![staged(&ring)]) else {
            return;
        };
        let streams = [0, 1].map(stream_of);
        let regions = [0, 1].map(|device| region_on(device, &setup.domain, MIB));
        let part = |device: usize, at, len, seed| {
            Segment::from(filled(&regions[device], at, len, seed, &streams[device]))
        };
        let payload: Payload = [
            part(0, 3, 10_001, 1),
            part(1, 70_000, 99_999, 2),
            part(0, 200_000, 5, 3),
        ]
        .into_iter()
        .collect();
        // One event behind the streams of both.
        let event = streams[1].record().expect("an event");
        streams[0].wait_for(&event).expect("waits for the other's");
        let both = streams[0].record().expect("an event");
        setup.send(0, payload.after(&both), 7);
        let (key, bytes) = setup.message(&streams[1]);
        let whole = [pattern(10_001, 1), pattern(99_999, 2), pattern(5, 3)];
        assert!(key == 7 && bytes == whole.concat(), "another content");
        let (_, payload) = setup.outcomes(1).remove(0);
        let on = |at: usize| payload.segments()[at].region().kind().device();
        assert_eq!([0, 1, 2].map(on), [0, 1, 0].map(|it| Device::new(it).ok()));
    });
}

/// A ring next to each GPU; on the first node, where the machine does not say what is next to it.
#[test]
fn slots_lie_on_the_node_that_is_named() {
    on_gpu("two::slots_lie_on_the_node_that_is_named", &[TWO], |_| {
        for device in Device::all().expect("devices") {
            let node = device.numa_node().unwrap_or_default();
            let ring = StagingRing::new(StagingConfig {
                slots: 8,
                slot_bytes: MIB,
                numa_node: Some(node),
                ..StagingConfig::default()
            });
            let ring = match ring {
                Ok(ring) => ring,
                Err(why) => return println!("SKIPPED: memory on node {node}: {why}"),
            };
            let Some(nodes) = nodes_of(ring.region()) else {
                return println!("SKIPPED: /proc/self/numa_maps does not say where memory lies");
            };
            assert_eq!(nodes, [node], "{device}");
            println!("| the slots of {device} lie on node {node} |");
        }
    });
}

/// The nodes that a region's pages lie on; `None` where the kernel does not say.
fn nodes_of(region: &Region) -> Option<Vec<u32>> {
    let maps = std::fs::read_to_string("/proc/self/numa_maps").ok()?;
    let start = format!("{:x} ", region.as_ptr().addr());
    let line = maps.lines().find(|line| line.starts_with(&start))?;
    let fields = line.split(' ').filter_map(|field| field.strip_prefix('N'));
    let nodes = fields.filter_map(|field| field.split('=').next()?.parse().ok());
    Some(nodes.collect())
}
