//! GPU memory as source and as sink, and files that pass it: over a fake driver, whose device
//! memory the host can't touch, and with `FABRICAST_TEST_GPU=real` over the machine's own.

use std::ffi::{c_int, c_uchar, c_void};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fabricast::buffer::{DeviceBufferManager, RegionSlice};
use fabricast::cuda::{Device, Stream};
use fabricast::stream::{
    BlockSource, BufferSource, DeviceBlock, DeviceSink, DeviceSource, DirectorySink, DiscardSink,
    FileSource, MemorySink, OnDevice, PeerOutcome, ReceiverConfig, RefusalCode, SendOptions,
    SinkError, SinkFactory, StreamError, StreamEvent, StreamReceiver, StreamSender, ThroughGpu,
};
use fabricast::{Domain, Region};

use crate::fake_cuda::{Fake, in_child, on_a_gpu, wants_real};
use crate::world::*;

/// Of the blocks of these tests, in bytes.
const BLOCK: usize = 64 << 10;
/// Device buffers: fewer than threads, so that some wait.
const BUFFERS: usize = 3;

fn stream() -> Stream {
    Stream::new(Device::new(0).expect("a device")).expect("a stream")
}

/// A slice of a device's memory, at an odd place, with that content.
fn filled(len: usize, seed: u64, stream: &Stream) -> RegionSlice {
    let region = Region::device(len + 5).build().expect("device memory");
    let slice = region.slice(5..5 + len).expect("inside");
    slice
        .copy_from_host(&content(len, seed), stream)
        .expect("copied");
    slice
}

/// A sink with memory of its own for each stream.
fn device_sink() -> DeviceSink {
    DeviceSink::new(|offer| {
        let len = usize::try_from(offer.manifest.bytes()).expect("short");
        Ok(Region::device(len).build()?.slice(0..len)?)
    })
}

fn bytes_of(arrived: &OnDevice, stream: &Stream) -> Vec<u8> {
    let Some(slice) = &arrived.bytes else {
        return Vec::new();
    };
    let mut bytes = vec![0; slice.len()];
    slice.copy_to_host(&mut bytes, stream).expect("copied");
    bytes
}

fn pool() -> DeviceBufferManager {
    let region = Region::device(BUFFERS * BLOCK).build();
    DeviceBufferManager::new(region.expect("device memory"), BLOCK).expect("a pool")
}

/// With buffers that are pinned, and several threads.
fn pinned(sink: impl SinkFactory) -> ReceiverConfig {
    receiver_config(sink).stream(|s| s.pinned(true).threads(4))
}

fn send_pinned(
    domain: &Arc<Domain>,
    source: impl BlockSource,
    receiver: &StreamReceiver,
    options: SendOptions,
) -> PeerOutcome {
    let config = sender_config().stream(|s| s.pinned(true).threads(4));
    let sender = StreamSender::open(domain, config).expect("a sender");
    let transfer = sender.send(source, [receiver.local_addr()], options);
    let mut outcomes = transfer.expect("begun").wait(by()).expect("over in time");
    sender.close(by());
    outcomes.pop().expect("one peer")
}

/// Memory that staged transfers of files keep for the next.
fn let_go_of_staging() {
    fabricast::storage::pinned_buffers_clear();
}

#[test]
fn a_gpus_memory_arrives_in_a_gpus_memory() {
    on_a_gpu("gpu::a_gpus_memory_arrives_in_a_gpus_memory", &[], || {
        let (fake, stream) = (Fake::load(), stream());
        over_both(|domain| {
            let sink = device_sink();
            let receiver = listen(domain, pinned(sink.clone()));
            for size in [0, 1, 65_535, 65_536, 65_537, 5_000_001] {
                let slice = filled(size, size as u64, &stream);
                let source = DeviceSource::new("memory", slice, [1; 16]).expect("a source");
                let source = source.after(stream.record().expect("an event"), PATIENCE);
                let pageable = fake.number("fake_cuda_pageable");
                let outcome = send_pinned(domain, source, &receiver, SendOptions::default());
                outcome.result.expect("it arrives");
                let report = complete(&receiver);
                assert_eq!(fake.number("fake_cuda_pageable"), pageable, "none is slow");
                let from = "memory of CUDA device 0 → pinned host memory";
                assert!(
                    outcome.report.path.starts_with(from),
                    "{}",
                    outcome.report.path
                );
                let to = "pinned host memory, registered → memory of CUDA device 0";
                assert!(size == 0 || report.path.ends_with(to), "{}", report.path);
                let arrived = sink.take().pop().expect("one stream");
                assert_eq!(arrived.manifest.bytes(), size as u64);
                assert!(bytes_of(&arrived, &stream) == content(size, size as u64));
            }
            receiver.close(by());
        });
    });
}

#[test]
fn a_file_goes_to_a_gpu_and_a_gpus_memory_to_a_file() {
    on_a_gpu(
        "gpu::a_file_goes_to_a_gpu_and_a_gpus_memory_to_a_file",
        &[],
        || {
            let Some(domain) = domain(fabricast::fabric::EndpointKind::Msg) else {
                return;
            };
            let (stream, dir) = (stream(), tempfile::tempdir().unwrap());
            // Two files, one behind the other in memory.
            let (one, two) = (content(100_001, 3), content(2_000_003, 4));
            let tree = dir.path().join("tree");
            fs::create_dir(&tree).unwrap();
            fs::write(tree.join("a"), &one).unwrap();
            fs::write(tree.join("b"), &two).unwrap();
            let sink = device_sink();
            let receiver = listen(&domain, receiver_config(sink.clone()));
            let source = FileSource::tree(&tree).unwrap();
            let outcomes = send(
                &domain,
                source,
                &[receiver.local_addr()],
                SendOptions::default(),
            );
            outcomes[0].result.clone().unwrap();
            complete(&receiver);
            let arrived = sink.take().pop().expect("one stream");
            assert!(bytes_of(&arrived, &stream) == [one, two].concat());
            receiver.close(by());

            let to = tempfile::tempdir().unwrap();
            let receiver = listen(
                &domain,
                receiver_config(DirectorySink::new(to.path()).unwrap()),
            );
            let slice = arrived
                .bytes
                .expect("it has some")
                .slice(1..2_000_000)
                .unwrap();
            let mut bytes = vec![0; slice.len()];
            slice.copy_to_host(&mut bytes, &stream).expect("copied");
            let source = DeviceSource::new("memory", slice, [2; 16]).unwrap();
            let outcome = send_pinned(&domain, source, &receiver, SendOptions::default());
            outcome.result.unwrap();
            assert!(fs::read(to.path().join("memory")).unwrap() == bytes);
            receiver.close(by());
        },
    );
}

/// An empty file, a byte, files that are read as a whole, and one that is large.
fn make_tree(tree: &Path) {
    fs::create_dir_all(tree.join("below")).unwrap();
    for size in [0, 1, 65_535, 65_536, 65_537, 3_000_001] {
        fs::write(
            tree.join(format!("below/{size}")),
            content(size, size as u64),
        )
        .unwrap();
    }
}

#[test]
fn files_pass_a_gpu_on_both_sides() {
    on_a_gpu("gpu::files_pass_a_gpu_on_both_sides", &[], || {
        let (dir, fake) = (tempfile::tempdir().unwrap(), Fake::load());
        let tree = dir.path().join("tree");
        make_tree(&tree);
        over_both(|domain| {
            let to = tempfile::tempdir().unwrap();
            let (before, behind) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
            let counted = |count: &Arc<AtomicU64>| {
                let count = Arc::clone(count);
                move |block: &DeviceBlock<'_>| {
                    assert_eq!(block.address() % 256, 0);
                    count.fetch_add(block.len() as u64, Ordering::Relaxed);
                    Ok(())
                }
            };
            let pools = [pool(), pool()];
            let sink = DirectorySink::new(to.path()).unwrap();
            let sink = ThroughGpu::new(sink, pools[1].clone()).hook(counted(&behind));
            let receiver = listen(domain, pinned(sink));
            let source = FileSource::tree(&tree).unwrap();
            let source = ThroughGpu::new(source, pools[0].clone()).hook(counted(&before));
            let options = SendOptions::default().sync(true).read_back(true);
            let pageable = fake.number("fake_cuda_pageable");
            let outcome = send_pinned(domain, source, &receiver, options);
            outcome.result.expect("it arrives");
            assert_eq!(fake.number("fake_cuda_pageable"), pageable, "none is slow");
            let report = complete(&receiver);
            assert_same(&tree, &to.path().join("tree"));
            let bytes = outcome.report.bytes;
            for count in [before, behind] {
                assert_eq!(count.load(Ordering::Relaxed), bytes, "each block once");
            }
            for (path, end) in [(&outcome.report.path, "source"), (&report.path, "sink")] {
                assert!(
                    path.contains(end) && path.contains("CUDA device 0"),
                    "{path}"
                );
                assert!(
                    path.contains("pinned staging") || path.contains("cuFile"),
                    "{path}"
                );
            }
            receiver.close(by());
            for pool in pools {
                assert_eq!(pool.free_count(), BUFFERS);
            }
        });
        let_go_of_staging();
    });
}

/// Fills the beginning of a block: a kernel that changes what is sent.
fn stamp(block: &DeviceBlock<'_>) -> Result<(), fabricast::stream::HookError> {
    type Fill = unsafe extern "C" fn(u64, c_uchar, usize, *mut c_void) -> c_int;
    let fill = Fake::load().get::<Fill>("cuMemsetD8Async");
    let fill = fill.ok_or("no cuMemsetD8Async")?;
    let len = block.len().min(16);
    // SAFETY: the type is that of the function; the block's own bytes, in the order of its stream.
    match unsafe { fill(block.address(), 7, len, block.stream().raw()) } {
        0 => Ok(()),
        code => Err(format!("cuMemsetD8Async: {code}").into()),
    }
}

#[test]
fn what_a_hook_changes_in_front_of_the_wire_is_what_arrives() {
    on_a_gpu(
        "gpu::what_a_hook_changes_in_front_of_the_wire_is_what_arrives",
        &[],
        || {
            let Some(domain) = domain(fabricast::fabric::EndpointKind::Msg) else {
                return;
            };
            Fake::load().delay(Duration::from_millis(1));
            let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let mut bytes = content(10 * BLOCK + 10, 1);
            fs::write(from.path().join("file"), &bytes).unwrap();
            let sink = DirectorySink::new(to.path()).unwrap();
            let receiver = listen(&domain, pinned(ThroughGpu::new(sink, pool())));
            let source = FileSource::file(from.path().join("file")).unwrap();
            let source = ThroughGpu::new(source, pool()).hook(stamp);
            let options = SendOptions::default().read_back(true);
            let outcome = send_pinned(&domain, source, &receiver, options);
            outcome
                .result
                .expect("checksums are those of what was sent");
            for block in bytes.chunks_mut(BLOCK) {
                let len = block.len().min(16);
                block[..len].fill(7);
            }
            assert!(fs::read(to.path().join("file")).unwrap() == bytes);
            receiver.close(by());
            let_go_of_staging();
        },
    );
}

#[test]
fn what_a_hook_refuses_fails_the_stream_and_what_was_written_is_resumed() {
    on_a_gpu(
        "gpu::what_a_hook_refuses_fails_the_stream_and_what_was_written_is_resumed",
        &[],
        || {
            let Some(domain) = domain(fabricast::fabric::EndpointKind::Msg) else {
                return;
            };
            let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let path = from.path().join("file");
            let size = 40 * BLOCK + 1;
            fs::write(&path, content(size, 1)).unwrap();
            let pools = [pool(), pool()];
            // The first attempt ends at the sink, the second at the source, each at a block of its
            // own.
            let left = Arc::new(AtomicU64::new(20));
            let bad_at = |last: u64, left: Arc<AtomicU64>| {
                move |_: &DeviceBlock<'_>| {
                    let taken = left
                        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
                    match taken {
                        Ok(n) if n == last => Err("a bad checksum".into()),
                        _ => Ok(()),
                    }
                }
            };
            let sink = ThroughGpu::new(DirectorySink::new(to.path()).unwrap(), pools[1].clone());
            let sink = sink.hook(bad_at(1, Arc::clone(&left)));
            let receiver = listen(&domain, pinned(sink));
            let bad = Arc::new(AtomicU64::new(5));
            let source = |bad: &Arc<AtomicU64>| {
                let source = FileSource::file(&path).unwrap();
                ThroughGpu::new(source, pools[0].clone()).hook(bad_at(1, Arc::clone(bad)))
            };
            let none = Arc::new(AtomicU64::new(0));
            let first = send_pinned(&domain, source(&none), &receiver, SendOptions::default());
            let (code, reason) = given_up(first.result.expect_err("the sink's hook"));
            assert_eq!(code, RefusalCode::SINK);
            assert!(reason.contains("a bad checksum"), "{reason}");
            assert!(matches!(next_end(&receiver), StreamEvent::Cut(..)));
            let second = send_pinned(&domain, source(&bad), &receiver, SendOptions::default());
            let (code, reason) = given_up(second.result.expect_err("the source's hook"));
            assert_eq!(code, RefusalCode::SOURCE);
            assert!(reason.contains("a bad checksum"), "{reason}");
            assert!(matches!(next_end(&receiver), StreamEvent::Cut(..)));
            assert!(!to.path().join("file").exists());
            let third = send_pinned(&domain, source(&none), &receiver, SendOptions::default());
            third.result.expect("nobody refuses any more");
            let resumed = third.report.resumed_bytes;
            assert!((BLOCK as u64..size as u64).contains(&resumed), "{resumed}");
            assert!(fs::read(to.path().join("file")).unwrap() == content(size, 1));
            receiver.close(by());
            for pool in pools {
                assert_eq!(pool.free_count(), BUFFERS);
            }
            let_go_of_staging();
        },
    );
}

/// Why a stream was given up, by this side or by the other.
fn given_up(error: StreamError) -> (RefusalCode, String) {
    match error {
        StreamError::GivenUp { code, reason } | StreamError::Failed { code, reason, .. } => {
            (code, reason)
        }
        other => panic!("{other}"),
    }
}

/// One stream out of a GPU's memory into one; the error, if there is one.
fn between_gpus(
    domain: &Arc<Domain>,
    receiver: &StreamReceiver,
    slice: &RegionSlice,
) -> Result<(), StreamError> {
    let source = DeviceSource::new("memory", slice.clone(), [3; 16]).expect("a source");
    let outcome = send_pinned(domain, source, receiver, SendOptions::default());
    outcome.result
}

#[test]
fn what_the_driver_refuses_fails_that_stream_alone() {
    on_a_gpu(
        "gpu::what_the_driver_refuses_fails_that_stream_alone",
        &[],
        || {
            if wants_real() {
                return println!("SKIPPED: the driver can't be made to fail");
            }
            let Some(domain) = domain(fabricast::fabric::EndpointKind::Msg) else {
                return;
            };
            let (fake, stream) = (Fake::load(), stream());
            let slice = filled(1_000_000, 8, &stream);
            let sink = device_sink();
            let receiver = listen(&domain, pinned(sink.clone()));
            for (function, code) in [
                ("cuMemcpyDtoHAsync", RefusalCode::SOURCE),
                ("cuMemcpyHtoDAsync", RefusalCode::SINK),
            ] {
                fake.fail(function, 700);
                let failed = between_gpus(&domain, &receiver, &slice);
                let (found, reason) = given_up(failed.expect_err(function));
                assert_eq!(found, code, "{function}");
                assert!(
                    reason.contains(function) && reason.contains("700"),
                    "{reason}"
                );
                assert!(
                    matches!(next_end(&receiver), StreamEvent::Cut(..)),
                    "{function}"
                );
                assert!(sink.take().is_empty(), "{function}");
                between_gpus(&domain, &receiver, &slice).expect(function);
                complete(&receiver);
                let arrived = sink.take().pop().expect("one stream");
                assert!(
                    bytes_of(&arrived, &stream) == content(1_000_000, 8),
                    "{function}"
                );
            }
            receiver.close(by());
        },
    );
}

#[test]
fn nothing_is_copied_before_the_producers_event() {
    on_a_gpu(
        "gpu::nothing_is_copied_before_the_producers_event",
        &[],
        || {
            if wants_real() {
                return println!("SKIPPED: no stream of the driver can be held up");
            }
            let Some(domain) = domain(fabricast::fabric::EndpointKind::Msg) else {
                return;
            };
            let (fake, stream, own) = (Fake::load(), stream(), stream());
            let sink = device_sink();
            let receiver = listen(&domain, pinned(sink.clone()));
            let slice = filled(300_000, 8, &own);
            let source = || DeviceSource::new("memory", slice.clone(), [3; 16]).expect("a source");
            fake.block(&stream);
            let late = source().after(
                stream.record().expect("an event"),
                Duration::from_millis(50),
            );
            let outcome = send_pinned(&domain, late, &receiver, SendOptions::default());
            let error = outcome.result.expect_err("it never happens").to_string();
            assert!(error.contains("did not happen in 50ms"), "{error}");
            assert!(matches!(next_end(&receiver), StreamEvent::Cut(..)));

            let source = source().after(stream.record().expect("an event"), PATIENCE);
            let producer = std::thread::spawn({
                let slice = slice.clone();
                move || {
                    std::thread::sleep(Duration::from_millis(100));
                    let filled = slice.copy_from_host(&content(300_000, 9), &own);
                    filled.expect("copied");
                    Fake::load().unblock();
                }
            });
            let outcome = send_pinned(&domain, source, &receiver, SendOptions::default());
            producer.join().expect("it does not panic");
            outcome.result.expect("it arrives");
            complete(&receiver);
            let arrived = sink.take().pop().expect("one stream");
            assert!(
                bytes_of(&arrived, &stream) == content(300_000, 9),
                "what the producer left"
            );
            receiver.close(by());
        },
    );
}

#[test]
fn what_does_not_fit_is_refused() {
    on_a_gpu("gpu::what_does_not_fit_is_refused", &[], || {
        let Some(domain) = domain(fabricast::fabric::EndpointKind::Msg) else {
            return;
        };
        let stream = stream();
        let slice = filled(100_000, 8, &stream);
        let host = Region::host(1 << 20)
            .build()
            .unwrap()
            .slice(0..1 << 20)
            .unwrap();
        let error = DeviceSource::new("host", host.clone(), [0; 16])
            .unwrap_err()
            .to_string();
        assert!(error.contains("host memory"), "{error}");
        let small = slice.slice(0..99_999).unwrap();
        let full = DeviceSink::new(|_| Err(SinkError::Other("no memory is left".to_owned())));
        for (sink, code, text) in [
            (
                DeviceSink::new(move |_| Ok(small.clone())),
                RefusalCode::SPACE,
                "99999",
            ),
            (
                DeviceSink::new(move |_| Ok(host.clone())),
                RefusalCode::SINK,
                "host memory",
            ),
            (full, RefusalCode::SINK, "no memory is left"),
        ] {
            let receiver = listen(&domain, pinned(sink.clone()));
            match between_gpus(&domain, &receiver, &slice).expect_err(text) {
                StreamError::Refused {
                    code: found,
                    reason,
                    ..
                } => {
                    assert_eq!(found, code, "{reason}");
                    assert!(reason.contains(text), "{reason}");
                }
                other => panic!("{other}"),
            }
            assert!(sink.take().is_empty());
            receiver.close(by());
        }
        // Blocks that are longer than the device buffers.
        let tiny = Region::device(4096).build().unwrap();
        let tiny = DeviceBufferManager::new(tiny, 4096).unwrap();
        let receiver = listen(&domain, pinned(ThroughGpu::new(DiscardSink, tiny)));
        let error = between_gpus(&domain, &receiver, &slice)
            .unwrap_err()
            .to_string();
        assert!(error.contains("device buffers have 4096"), "{error}");
        receiver.close(by());
    });
}

/// A sink and a source that know nothing of GPUs.
#[test]
fn any_source_and_any_sink_can_pass_a_gpu() {
    on_a_gpu("gpu::any_source_and_any_sink_can_pass_a_gpu", &[], || {
        let Some(domain) = domain(fabricast::fabric::EndpointKind::Msg) else {
            return;
        };
        let host = fabricast::buffer::SharedBufferManager::allocate(1, 300_000).unwrap();
        let mut buffer = host.try_acquire().unwrap();
        buffer.copy_from_slice(&content(300_000, 2));
        let source = BufferSource::new("memory", buffer.freeze(300_000), [1; 16]).unwrap();
        let sink = MemorySink::new(1 << 20);
        let receiver = listen(&domain, pinned(ThroughGpu::new(sink.clone(), pool())));
        let source = ThroughGpu::new(source, pool());
        let outcome = send_pinned(&domain, source, &receiver, SendOptions::default());
        outcome.result.expect("it arrives");
        complete(&receiver);
        assert!(sink.take().pop().expect("one stream").bytes == content(300_000, 2));
        receiver.close(by());
    });
}

#[test]
fn without_a_driver_pinned_buffers_are_a_clear_error() {
    let nowhere = [("FABRICAST_CUDA", "/nowhere/libcuda.so.1")];
    in_child(
        "gpu::without_a_driver_pinned_buffers_are_a_clear_error",
        &nowhere,
        || {
            let Some(domain) = domain(fabricast::fabric::EndpointKind::Msg) else {
                return;
            };
            let missing = "the CUDA driver cannot be loaded: tried /nowhere/libcuda.so.1";
            let sender = StreamSender::open(&domain, sender_config().stream(|s| s.pinned(true)));
            let error = sender.expect_err("no driver").to_string();
            assert!(error.contains(missing), "{error}");
            let config = receiver_config(DiscardSink).stream(|s| s.pinned(true));
            let receiver = StreamReceiver::listen(&domain, any_port(), config);
            let error = receiver.expect_err("no driver").to_string();
            assert!(error.contains(missing), "{error}");
        },
    );
}
