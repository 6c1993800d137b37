//! What the pools cost: buffers, header slots and the in-flight slab, one thread, one operation at
//! a time.
#![allow(
    missing_docs,
    reason = "criterion's macros make functions without documentation"
)]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use fabricast::__internals::in_flight_round;
use fabricast::buffer::{HeaderSlotConfig, HeaderSlotManager, Payload, SharedBufferManager};
use fabricast::endpoint::EndpointId;

fn buffers(c: &mut Criterion) {
    let pool = SharedBufferManager::allocate(256, 4096).expect("1 MiB");
    c.bench_function("buffer acquire, drop", |b| {
        b.iter(|| black_box(pool.try_acquire()))
    });
    c.bench_function("buffer acquire, freeze, clone, drop both", |b| {
        b.iter(|| {
            let buffer = pool.try_acquire().expect("one at a time").freeze(4096);
            black_box((buffer.clone(), buffer))
        });
    });
    c.bench_function("buffer to payload and back", |b| {
        b.iter(|| {
            let buffer = pool.try_acquire().expect("one at a time").freeze(4096);
            black_box(Payload::from(buffer)).into_buffer().is_ok()
        });
    });
}

fn header_slots(c: &mut Criterion) {
    let headers = HeaderSlotManager::new(HeaderSlotConfig::default()).expect("16 KiB");
    let (me, header) = (EndpointId::next(), [7u8; 32]);
    c.bench_function("header slot acquire, release", |b| {
        b.iter(|| {
            let slot = headers
                .acquire(black_box(&header), 42, me)
                .expect("one at a time");
            headers.release(slot)
        });
    });
}

fn in_flight(c: &mut Criterion) {
    for (kind, cells) in [("Opaque", false), ("Cells", true)] {
        let mut round = in_flight_round(cells);
        c.bench_function(&format!("in flight begin, finish ({kind})"), |b| {
            b.iter(|| round(black_box(42)));
        });
    }
}

criterion_group!(benches, buffers, header_slots, in_flight);
criterion_main!(benches);
