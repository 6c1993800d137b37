//! What packing and parsing a small message costs: buffers of 64 KiB of a pool, one thread; times
//! are for one message.
#![allow(
    missing_docs,
    reason = "criterion's macros make functions without documentation"
)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fabricast::buffer::{Buffer, SharedBufferManager};
use fabricast::coalesce::{Format, OwnedSmallMessages, Packer, SmallMessages};

const BUFFER: usize = 64 * 1024;

fn packed(pool: &SharedBufferManager, format: Format, message: &[u8]) -> (Buffer, u64) {
    let buffer = pool.try_acquire().expect("one at a time");
    let mut packer = Packer::new(format, buffer);
    while packer.push(7, 0, black_box(message)).is_ok() {}
    let count = packer.count().into();
    (packer.freeze(), count)
}

fn coalesce(c: &mut Criterion) {
    let pool = SharedBufferManager::allocate(4, BUFFER).expect("256 KiB");
    for format in [Format::Compact, Format::Netio3] {
        for size in [64, 1024] {
            let message = vec![1; size];
            let (buffer, count) = packed(&pool, format, &message);
            let mut group = c.benchmark_group(format!("{format:?} {size} B"));
            group.throughput(Throughput::Elements(count));
            group.bench_function("pack", |b| b.iter(|| packed(&pool, format, &message)));
            group.bench_function("parse, borrowed", |b| {
                b.iter(|| {
                    for small in SmallMessages::new(format, black_box(&buffer)) {
                        let small = small.expect("well-formed");
                        black_box((small.tag, small.status, small.bytes.len()));
                    }
                });
            });
            group.bench_function("parse, owned", |b| {
                b.iter(|| {
                    for small in OwnedSmallMessages::new(format, buffer.clone()) {
                        drop(black_box(small.expect("well-formed")));
                    }
                });
            });
        }
    }
}

criterion_group!(benches, coalesce);
criterion_main!(benches);
