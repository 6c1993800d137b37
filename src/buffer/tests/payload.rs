use std::sync::Arc;

use super::*;
use crate::buffer::{RingConfig, RingRegion, SharedBufferManager};
use crate::memory::fake::FakeRegistrar;
use crate::memory::{HugePages, Region, Registrar};

fn region(len: usize) -> Arc<Region> {
    Region::host(len)
        .huge_pages(HugePages::Never)
        .build()
        .unwrap()
}

type Run = (usize, usize, usize);

fn lease(
    payload: Payload,
    scope: Scope,
) -> Result<(Vec<Run>, LeasedPayload), (Payload, LeaseError)> {
    let mut runs = Vec::new();
    let leases = payload.lease(scope, &mut |address, len, desc| {
        runs.push((address.addr(), len, desc.addr()))
    });
    match leases {
        // SAFETY: the leases are this payload's.
        Ok(leases) => Ok((runs, unsafe { LeasedPayload::new(payload, leases) })),
        Err(error) => Err((payload, error)),
    }
}

#[test]
fn a_fragment_is_copied_whether_it_wraps_around_or_not() {
    let mut ring = RingRegion::new(region(10), RingConfig::default()).unwrap();
    for start in 0..10 {
        for len in [0, 1, 7, 10] {
            let mut reservation = ring.reserve(len).unwrap();
            let (head, rest) = reservation.segments_mut().unwrap();
            let mut bytes = (1..).map(|byte| byte + start);
            for byte in head.iter_mut().chain(rest) {
                *byte = bytes.next().unwrap();
            }
            let payload = Payload::from(reservation.commit(len));
            let bytes = payload.host_bytes().expect("the host's");
            assert_eq!((payload.len_bytes(), bytes.len()), (len, len));
            let wraps = usize::from(start) + len > 10;
            let runs = usize::from(len > 0) + usize::from(wraps);
            assert_eq!(payload.bytes_and_runs(), (len, runs), "{start}, {len}");
            let mut out = vec![0; len];
            bytes.copy_to(&mut out);
            let want: Vec<_> = (1..).map(|byte| byte + start).take(len).collect();
            assert_eq!(out, want, "{start}");
            assert_eq!(payload.into_fragment().unwrap().len(), len);
            // Where it was: the next one begins there again.
            drop(ring.reserve((10 - len) % 10).unwrap());
        }
        drop(ring.reserve(1).unwrap());
    }
}

#[test]
fn each_kind_of_segment_names_its_runs_and_comes_back() {
    let domain = FakeRegistrar::new();
    let pool = SharedBufferManager::allocate(1, 64).unwrap();
    let data = region(100);
    let mut ring = RingRegion::new(region(10), RingConfig::default()).unwrap();
    drop(ring.reserve(8).unwrap());
    let fragment = ring.reserve(5).unwrap().commit(5);
    let buffer = pool.try_acquire().unwrap().freeze(6).slice(2..);
    let bases = [pool.region(), &data, ring.region()].map(|region| {
        region.register_with(&domain).unwrap();
        region.as_ptr().addr()
    });
    let payload: Payload = [
        Segment::from(buffer),
        data.slice(10..30).unwrap().into(),
        data.slice(5..5).unwrap().into(),
        fragment.into(),
    ]
    .into_iter()
    .collect();
    assert_eq!(
        (
            payload.len_bytes(),
            payload.run_count(),
            payload.segments().len()
        ),
        (29, 4, 4)
    );
    assert!(
        payload.segments()[0].as_bytes().is_some() && payload.segments()[1].as_bytes().is_none()
    );
    let (runs, leased) = lease(payload, domain.scope()).unwrap();
    assert_eq!(
        runs,
        [
            (bases[0] + 2, 4, 1),
            (bases[1] + 10, 20, 2),
            (bases[2] + 8, 2, 3),
            (bases[2], 3, 3)
        ]
    );
    assert_eq!(leased.payload().len_bytes(), 29);
    for region in [pool.region(), &data, ring.region()] {
        region.deregister_from(domain.scope());
    }
    assert_eq!(domain.closed(), 0);
    let payload = leased.into_payload();
    assert_eq!((domain.closed(), payload.len_bytes()), (3, 29));
    assert_eq!((pool.free_count(), ring.outstanding()), (0, 1));
    assert_eq!(payload.into_segments().len(), 4);
    assert_eq!((pool.free_count(), ring.outstanding()), (1, 0));
}

#[test]
fn a_refused_lease_gives_the_payload_back_and_keeps_nothing() {
    let (domain, other) = (FakeRegistrar::new(), FakeRegistrar::new());
    let (here, elsewhere, nowhere) = (region(8), region(8), region(8));
    here.register_with(&domain).unwrap();
    elsewhere.register_with(&other).unwrap();
    for (second, error) in [
        (&elsewhere, LeaseError::ForeignBuffer { segment: 1 }),
        (&nowhere, LeaseError::NotRegistered { segment: 1 }),
    ] {
        let payload: Payload = [here.slice(0..8).unwrap(), second.slice(0..8).unwrap()]
            .into_iter()
            .collect();
        let (payload, refused) = lease(payload, domain.scope()).unwrap_err();
        assert_eq!((refused, payload.len_bytes()), (error, 16));
    }
    here.deregister_from(domain.scope());
    assert_eq!(domain.closed(), 1, "no lease was left behind");
}

#[test]
fn dropping_a_leased_payload_ends_its_leases_and_its_buffers() {
    let domain = FakeRegistrar::new();
    let pool = SharedBufferManager::allocate(1, 64).unwrap();
    pool.region().register_with(&domain).unwrap();
    let (_, leased) = lease(
        pool.try_acquire().unwrap().freeze(64).into(),
        domain.scope(),
    )
    .unwrap();
    pool.region().deregister_from(domain.scope());
    assert_eq!((domain.closed(), pool.free_count()), (0, 0));
    drop(leased);
    assert_eq!((domain.closed(), pool.free_count()), (1, 1));
}

#[test]
fn a_single_segment_comes_out_as_what_it_was() {
    let pool = SharedBufferManager::allocate(2, 64).unwrap();
    let buffer = || pool.try_acquire().unwrap().freeze(3);
    let payload = Payload::from(buffer())
        .into_fragment()
        .expect_err("it is a buffer");
    let payload = payload.into_slice().expect_err("it is a buffer");
    assert_eq!(payload.into_buffer().unwrap().len(), 3);
    let two = Payload::from(vec![Segment::from(buffer()), buffer().into()]);
    assert_eq!(two.into_buffer().expect_err("two").len_bytes(), 6);
    assert!(Payload::empty().into_buffer().is_err());
    let slice = region(8).slice(2..4).unwrap();
    assert_eq!(Payload::from(slice).into_slice().unwrap().offset(), 2);
    let (runs, leased) = lease(Payload::empty(), FakeRegistrar::new().scope()).unwrap();
    assert!(runs.is_empty() && leased.into_payload().segments().is_empty());
}

#[test]
fn payloads_go_to_other_threads() {
    fn assert_send<T: Send>() {}
    fn assert_sync<T: Sync>() {}
    assert_send::<(
        Payload,
        crate::buffer::BufferMut,
        crate::buffer::HeaderSlot,
        crate::buffer::Reservation,
    )>();
    assert_send::<RingRegion>();
    assert_sync::<(
        SharedBufferManager,
        crate::buffer::HeaderSlotManager,
        Buffer,
        Region,
    )>();
}

#[test]
fn a_header_goes_in_front_of_the_only_buffer_until_the_operation_is_over() {
    let domain = FakeRegistrar::new();
    let pool = SharedBufferManager::allocate_with_headroom(2, 64, 8).unwrap();
    pool.region().register_with(&domain).unwrap();
    let buffer = pool.try_acquire().unwrap().freeze(6);
    let mut payload = Payload::from(buffer.clone());
    assert_eq!(payload.begin_front(&[b"ab", b"c"]), Ok(3));
    let leases = payload.lease(domain.scope(), &mut |_, _, _| {}).unwrap();
    // SAFETY: the leases are this payload's.
    let first = unsafe { LeasedPayload::new(payload, leases.with_front()) };
    let mut other = Payload::from(buffer.clone());
    assert_eq!(other.begin_front(&[b"xyz"]), Err(FrontError::Taken));
    assert_eq!(other.begin_front(&[b"abc"]), Ok(3), "the same header");
    other.end_front();
    drop(first.into_payload());
    assert_eq!(other.begin_front(&[b"xyz"]), Ok(3), "the first is over");
    let leases = other.lease(domain.scope(), &mut |_, _, _| {}).unwrap();
    // SAFETY: the leases are this payload's.
    drop(unsafe { LeasedPayload::new(other, leases.with_front()) });
    assert_eq!(Payload::from(buffer).begin_front(&[b"z"]), Ok(1), "dropped");
}

#[test]
fn only_one_whole_buffer_of_a_pool_with_room_takes_a_header() {
    let pool = SharedBufferManager::allocate_with_headroom(2, 64, 8).unwrap();
    let (one, two) = (pool.try_acquire().unwrap(), pool.try_acquire().unwrap());
    let (one, two) = (one.freeze(6), two.freeze(6));
    let no_room = |room| Err(FrontError::NoRoom { len: 3, room });
    let header: &[&[u8]] = &[b"abc"];
    assert_eq!(
        Payload::from(one.slice(1..)).begin_front(header),
        no_room(0)
    );
    let too_long: &[&[u8]] = &[b"123456789"];
    let error = FrontError::NoRoom { len: 9, room: 8 };
    assert_eq!(Payload::from(one.clone()).begin_front(too_long), Err(error));
    let slice = region(64).slice(8..20).unwrap();
    assert_eq!(Payload::from(slice).begin_front(header), no_room(0));
    let mut both: Payload = [one.clone(), two.clone()].into_iter().collect();
    assert_eq!(both.begin_front(header), no_room(0));
    let mut with_empty: Payload = [two.slice(0..0), one].into_iter().collect();
    assert_eq!(with_empty.begin_front(header), Ok(3));
    with_empty.end_front();
}

#[test]
fn a_header_goes_in_front_of_a_fragment_of_a_ring_with_headroom() {
    let config = RingConfig {
        headroom: 4,
        ..RingConfig::default()
    };
    let mut ring = RingRegion::new(region(32), config).unwrap();
    let mut reservation = ring.reserve(3).unwrap();
    let (bytes, _) = reservation.segments_mut().unwrap();
    bytes.copy_from_slice(b"xyz");
    let mut payload = Payload::from(ring.commit(reservation, 3));
    assert_eq!(payload.begin_front(&[b"a", b"bc"]), Ok(3));
    payload.end_front();
    let start = ring.region().at(1).as_ptr();
    // SAFETY: host memory, mapped zeroed; the header and the fragment lie there, and nobody writes.
    let sent = unsafe { std::slice::from_raw_parts(start, 6) };
    assert_eq!(sent, b"abcxyz");
    let too_long: &[&[u8]] = &[b"12345"];
    let error = FrontError::NoRoom { len: 5, room: 4 };
    assert_eq!(payload.begin_front(too_long), Err(error));
    let external = RingConfig {
        headroom: 70_000,
        ..config
    };
    let refused = RingRegion::new(region(32), external);
    assert!(matches!(
        refused,
        Err(crate::memory::MemoryError::Setting { .. })
    ));
}

#[test]
fn what_has_one_owner_can_be_shared_and_comes_back_to_it() {
    let domain = FakeRegistrar::new();
    let pool = SharedBufferManager::allocate(1, 64).unwrap();
    let mut ring = RingRegion::new(region(10), RingConfig::default()).unwrap();
    drop(ring.reserve(8).unwrap());
    let fragment = ring.reserve(5).unwrap().commit(5);
    for region in [pool.region(), ring.region()] {
        region.register_with(&domain).unwrap();
    }
    let buffer = pool.try_acquire().unwrap().freeze(6);
    let mut payload: Payload = [Segment::from(buffer), fragment.into()]
        .into_iter()
        .collect();
    let named = |payload: &Payload| {
        let mut runs = Vec::new();
        let mut leases = payload
            .lease(domain.scope(), &mut |at, len, _| {
                runs.push((at.addr(), len))
            })
            .unwrap();
        leases.end_parts(payload);
        runs
    };
    let runs = named(&payload);
    assert_eq!(runs.len(), 3, "the fragment wraps around");
    let other = payload.share();
    assert_eq!((named(&other), named(&payload)), (runs.clone(), runs));
    assert_eq!((other.len_bytes(), other.run_count()), (11, 3));
    let payload = payload.unshared();
    assert_eq!(ring.outstanding(), 1);
    let fragment = payload.into_segments().nth(1).unwrap();
    let still_shared = fragment.into_fragment().unwrap_err();
    drop(other);
    let alone = Payload::from(still_shared).unshared();
    let fragment = alone.into_fragment().expect("the last handle");
    assert_eq!((fragment.len(), ring.outstanding()), (5, 1));
    drop(fragment);
    assert_eq!(ring.outstanding(), 0);
}
