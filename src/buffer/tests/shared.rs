use proptest::prelude::*;

use super::*;

#[test]
fn slots_are_aligned_apart_and_inside() {
    let region = Region::host(10_000).build().unwrap();
    let base = region.as_ptr().addr();
    let config = SharedBufferConfig {
        headroom: 100,
        alignment: 256,
        ..SharedBufferConfig::new(1000)
    };
    let pool = SharedBufferManager::new(region, config).unwrap();
    // 256 to the first, 1,280 from one to the next: 256 + 6 x 1,280 + 1,000 <= 10,000 < 256 + 7 x
    // 1,280 + 1,000.
    assert_eq!(pool.slots(), 7);
    let mut all: Vec<_> = (0..7).map(|_| pool.try_acquire().unwrap()).collect();
    assert!(pool.try_acquire().is_none());
    let mut last_end = base;
    for buffer in &mut all {
        let start = buffer.as_ptr().addr();
        assert_eq!(
            (start % 256, buffer.len(), buffer.headroom()),
            (0, 1000, 100)
        );
        assert!(start - 100 >= last_end);
        last_end = start + 1000;
        buffer.fill(1);
    }
    assert!(last_end <= base + 10_000);
}

/// What follows the front of each slot is aligned, and a region of the bytes that are said to be
/// needed has just as many slots as are asked for.
#[test]
fn what_is_aligned_may_begin_behind_a_front() {
    for headroom in [0, 10, 5000] {
        for front in [0, 1, 64, 999] {
            let config = SharedBufferConfig {
                slots: Some(5),
                headroom,
                front,
                alignment: 4096,
                ..SharedBufferConfig::new(10_000)
            };
            let region = Region::host(config.region_bytes(5).unwrap()).build();
            let pool = SharedBufferManager::new(region.unwrap(), config).unwrap();
            let all: Vec<_> = (0..5).map(|_| pool.try_acquire().unwrap()).collect();
            for buffer in &all {
                assert_eq!((buffer.as_ptr().addr() + front) % 4096, 0);
                assert_eq!((buffer.len(), buffer.headroom()), (10_000, headroom));
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let region = || Region::host(4096).build().unwrap();
    let config = SharedBufferConfig::new(4096);
    for (bad, field) in [
        (
            SharedBufferConfig {
                slot_size: 0,
                ..config
            },
            "slot_size",
        ),
        (
            SharedBufferConfig {
                alignment: 3,
                ..config
            },
            "alignment",
        ),
        (
            SharedBufferConfig {
                front: 4096,
                ..config
            },
            "front",
        ),
        (
            SharedBufferConfig {
                slots: Some(0),
                ..config
            },
            "slots",
        ),
    ] {
        let error = SharedBufferManager::new(region(), bad).unwrap_err();
        assert!(
            matches!(error, MemoryError::Setting { field: named, .. } if named == field),
            "{error}"
        );
    }
    let two = SharedBufferConfig {
        slots: Some(2),
        ..config
    };
    let error = SharedBufferManager::new(region(), two).unwrap_err();
    assert!(
        matches!(
            error,
            MemoryError::TooSmall {
                need_bytes: 8192,
                have_bytes: 4096,
                ..
            }
        ),
        "{error}"
    );
    let room = SharedBufferConfig {
        headroom: 1,
        ..config
    };
    assert!(matches!(
        SharedBufferManager::new(region(), room),
        Err(MemoryError::TooSmall { .. })
    ));
    let huge = SharedBufferConfig {
        headroom: usize::MAX,
        ..config
    };
    assert!(matches!(
        SharedBufferManager::new(region(), huge),
        Err(MemoryError::Setting {
            field: "headroom",
            value: u64::MAX,
            ..
        })
    ));
    assert!(SharedBufferManager::allocate_with_headroom(1, usize::MAX, 1).is_err());
    assert!(SharedBufferManager::allocate(u32::MAX, usize::MAX / 2).is_err());
}

#[test]
fn external_memory_takes_an_unsafe_constructor() {
    let bytes = Box::leak(Box::new([7u8; 256]));
    let base = std::ptr::NonNull::from(&mut *bytes).cast();
    // SAFETY: leaked for good, and nobody else looks into it.
    let region = unsafe { Region::external(base, 256, Box::new(())) }.unwrap();
    let config = SharedBufferConfig {
        alignment: 1,
        ..SharedBufferConfig::new(128)
    };
    let error = SharedBufferManager::new(Arc::clone(&region), config).unwrap_err();
    assert!(matches!(error, MemoryError::NotHost { .. }));
    // SAFETY: ordinary initialised memory that only this pool uses.
    let pool = unsafe { SharedBufferManager::new_external(region, config) }.unwrap();
    assert_eq!((pool.slots(), pool.try_acquire().unwrap()[127]), (2, 7));
}

#[test]
fn the_region_is_the_pools_until_the_last_buffer_is_gone() {
    let region = Region::host(4096).build().unwrap();
    let pool = SharedBufferManager::new(Arc::clone(&region), SharedBufferConfig::new(64)).unwrap();
    let buffer = pool.try_acquire().unwrap().freeze(3);
    drop(pool);
    assert!(region.slice(0..1).is_err());
    drop(buffer);
    assert!(region.slice(0..1).is_ok());
}

#[test]
fn clones_and_slices_share_a_slot_and_the_only_one_can_be_written_again() {
    let pool = SharedBufferManager::allocate(1, 64).unwrap();
    let mut buffer = pool.try_acquire().unwrap();
    buffer[..6].copy_from_slice(b"abcdef");
    let buffer = buffer.freeze(6);
    let part = buffer.slice(2..).slice(..=1);
    assert_eq!(
        (&part[..], part.len(), &buffer.clone()[..]),
        (&b"cd"[..], 2, &b"abcdef"[..])
    );
    let buffer = buffer.try_into_mut().expect_err("the part is still there");
    assert!(!part.is_unique());
    drop(buffer);
    assert_eq!(pool.free_count(), 0);
    assert_eq!(&part.try_into_mut().unwrap()[..6], b"abcdef");
    assert_eq!(pool.free_count(), 1);
}

#[test]
fn parts_that_are_counted_together_keep_the_slot_and_the_pool() {
    let region = Region::host(4096).build().unwrap();
    let pool = SharedBufferManager::new(Arc::clone(&region), SharedBufferConfig::new(64)).unwrap();
    let free = pool.free_count();
    let mut buffer = pool.try_acquire().unwrap();
    buffer[..6].copy_from_slice(b"abcdef");
    let buffer = buffer.freeze(6).slice(1..);
    let mut parts = buffer.parts(7);
    let (first, second) = (parts.part(0..2), parts.part(2..5));
    drop(parts);
    drop(buffer);
    assert_eq!((&first[..], &second[..]), (&b"bc"[..], &b"def"[..]));
    assert_eq!((pool.free_count(), first.is_unique()), (free - 1, false));
    drop(pool);
    std::thread::spawn(move || drop(first)).join().unwrap();
    assert!(region.slice(0..1).is_err(), "the last part keeps the pool");
    let again = second.try_into_mut().expect("it is the last one");
    assert_eq!(&again[..6], b"abcdef");
    drop(again);
    assert!(region.slice(0..1).is_ok(), "and nobody else does");
}

#[test]
fn handles_that_end_on_many_threads_end_the_pool_once() {
    let region = Region::host(4096).build().unwrap();
    // Each round claims the region anew, which the pool before it must have let go of.
    for _ in 0..200 {
        let config = SharedBufferConfig::new(64);
        let pool = SharedBufferManager::new(Arc::clone(&region), config).unwrap();
        let buffer = pool.try_acquire().unwrap().freeze(8);
        let mut parts = buffer.parts(4);
        let views: Vec<_> = (0..4).map(|at| parts.part(at..at + 1)).collect();
        drop(parts);
        let threads = views
            .into_iter()
            .map(|view| std::thread::spawn(move || assert!(view.len() == 1)));
        let threads: Vec<_> = threads.collect();
        drop((buffer, pool));
        threads.into_iter().for_each(|one| one.join().unwrap());
    }
}

#[test]
#[should_panic(expected = "part 1..3 of a buffer of 2 bytes")]
fn a_part_beyond_the_buffer_panics() {
    let pool = SharedBufferManager::allocate(1, 64).unwrap();
    let buffer = pool.try_acquire().unwrap().freeze(2);
    buffer.parts(1).part(1..3);
}

#[test]
#[should_panic(expected = "0 are left")]
fn more_parts_than_were_counted_panic() {
    let pool = SharedBufferManager::allocate(1, 64).unwrap();
    let buffer = pool.try_acquire().unwrap().freeze(2);
    let mut parts = buffer.parts(1);
    let _first = parts.part(0..1);
    parts.part(1..2);
}

#[test]
#[should_panic(expected = "freeze(65) of a buffer of 64 bytes")]
fn freeze_beyond_the_slot_panics() {
    SharedBufferManager::allocate(1, 64)
        .unwrap()
        .try_acquire()
        .unwrap()
        .freeze(65);
}

#[test]
#[should_panic(expected = "slice(1..5) of a buffer of 4 bytes")]
fn slice_beyond_the_buffer_panics() {
    SharedBufferManager::allocate(1, 64)
        .unwrap()
        .try_acquire()
        .unwrap()
        .freeze(4)
        .slice(1..5);
}

#[test]
fn waiting_gets_the_slot_that_another_thread_frees() {
    let pool = SharedBufferManager::allocate(2, 64).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    let buffer = pool
                        .acquire(Instant::now() + Duration::from_secs(60))
                        .expect("others free theirs");
                    drop(buffer.freeze(1));
                }
            });
        }
    });
    assert_eq!(pool.free_count(), 2);
    let _all = (pool.try_acquire(), pool.try_acquire());
    let AcquireError::TimedOut { waited } = pool
        .acquire(Instant::now() + Duration::from_millis(10))
        .unwrap_err();
    assert!(waited >= Duration::from_millis(9));
}

#[test]
fn an_armed_waker_is_called_when_a_buffer_comes_back() {
    let pool = SharedBufferManager::allocate(1, 64).unwrap();
    let (send, receive) = std::sync::mpsc::channel();
    let id = pool.add_waker(Arc::new(move || send.send(()).expect("the test listens")));
    assert!(pool.arm(id), "one is free");
    let buffer = pool.try_acquire().unwrap();
    assert!(!pool.arm(id));
    std::thread::spawn(move || drop(buffer)).join().unwrap();
    assert!(receive.try_recv().is_ok() && receive.try_recv().is_err());
    assert!(pool.remove_waker(id));
}

#[test]
fn a_pool_does_not_know_the_wakers_of_another_one() {
    let pools = [(); 2].map(|()| SharedBufferManager::allocate(1, 64).unwrap());
    let ids = pools.each_ref().map(|pool| pool.add_waker(Arc::new(|| {})));
    assert!(!pools[0].remove_waker(ids[1]) && !pools[1].remove_waker(ids[0]));
    assert_eq!(pools.each_ref().map(SharedBufferManager::wakers), [1, 1]);
    assert!(pools[0].remove_waker(ids[0]) && pools[1].remove_waker(ids[1]));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    /// The model: the bytes that each handle must show, by slot.
    #[test]
    fn pool_follows_the_model(
        steps in prop::collection::vec((0u8..4, any::<usize>(), any::<u8>()), 0..200),
    ) {
        let pool = SharedBufferManager::allocate(3, 16).unwrap();
        let mut held: Vec<(Vec<u8>, Buffer)> = Vec::new();
        let mut low = 3;
        for (step, n, byte) in steps {
            match step {
                0 => match pool.try_acquire() {
                    Some(mut buffer) => {
                        let len = n % 17;
                        let bytes: Vec<u8> = (0..len).map(|i| byte.wrapping_add(i as u8)).collect();
                        buffer[..len].copy_from_slice(&bytes);
                        held.push((bytes, buffer.freeze(len)));
                    }
                    None => prop_assert_eq!(slots_of(&held), 3),
                },
                _ if held.is_empty() => {}
                1 => {
                    let (bytes, buffer) = &held[n % held.len()];
                    let copy = (bytes.clone(), buffer.clone());
                    held.push(copy);
                }
                2 => {
                    let (bytes, buffer) = &held[n % held.len()];
                    let cut = byte as usize % (bytes.len() + 1);
                    let part = (bytes[cut..].to_vec(), buffer.slice(cut..));
                    held.push(part);
                }
                _ => drop(held.swap_remove(n % held.len())),
            }
            low = low.min(3 - slots_of(&held));
            prop_assert_eq!(
                (pool.free_count(), pool.low_water()),
                (3 - slots_of(&held), low)
            );
            for (bytes, buffer) in &held {
                prop_assert_eq!(&buffer[..], &bytes[..]);
                prop_assert_eq!(
                    buffer.is_unique(),
                    held.iter()
                        .filter(|other| other.1.index() == buffer.index())
                        .count()
                        == 1
                );
            }
        }
    }
}

fn slots_of(held: &[(Vec<u8>, Buffer)]) -> usize {
    held.iter()
        .map(|(_, buffer)| buffer.index())
        .collect::<std::collections::HashSet<_>>()
        .len()
}

#[test]
fn a_pool_of_its_own_has_room_in_front_of_each_buffer() {
    let pool = SharedBufferManager::allocate_with_headroom(3, 100, 70).unwrap();
    assert_eq!((pool.slots(), pool.headroom()), (3, 70));
    let buffer = pool.try_acquire().unwrap();
    assert_eq!((buffer.as_ptr().addr() % 64, buffer.headroom()), (0, 70));
    let buffer = buffer.freeze(10);
    assert_eq!(buffer.headroom(), 70);
    assert_eq!(buffer.slice(..4).headroom(), 70, "it begins there, too");
    assert_eq!(
        buffer.slice(1..).headroom(),
        0,
        "there lie bytes of its own"
    );
    let plain = SharedBufferManager::allocate(3, 100).unwrap();
    assert_eq!(plain.try_acquire().unwrap().freeze(1).headroom(), 0);
}

/// What a provider would send: the bytes in front of the buffer, and the buffer.
fn as_sent(buffer: &Buffer, header: usize) -> Vec<u8> {
    let start = buffer.region().at(buffer.offset() - header);
    // SAFETY: the header was put there, and its claim is held; the buffer's own bytes are behind
    // it.
    unsafe { std::slice::from_raw_parts(start.as_ptr(), header + buffer.len()) }.to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    /// The model: for each buffer in flight its header and its bytes; whoever holds another header
    /// of the same slot keeps a new one out.
    #[test]
    fn headers_in_front_of_buffers_follow_the_model(
        steps in prop::collection::vec((0u8..4, any::<usize>(), 0u8..6), 0..120),
    ) {
        let pool = SharedBufferManager::allocate_with_headroom(3, 16, 9).unwrap();
        let mut buffers: Vec<(Vec<u8>, Buffer)> = Vec::new();
        let mut in_flight: Vec<(Vec<u8>, Vec<u8>, Buffer)> = Vec::new();
        for (step, n, byte) in steps {
            match step {
                0 => if let Some(mut buffer) = pool.try_acquire() {
                    buffer.fill(byte);
                    let len = n % 17;
                    buffers.push((vec![byte; len], buffer.freeze(len)));
                },
                1 => if !in_flight.is_empty() {
                    let (_, _, buffer) = in_flight.swap_remove(n % in_flight.len());
                    buffer.end_front();
                },
                2 => if !buffers.is_empty() {
                    drop(buffers.swap_remove(n % buffers.len()));
                },
                _ => if !buffers.is_empty() {
                    let (bytes, buffer) = &buffers[n % buffers.len()];
                    let header = vec![byte; 1 + usize::from(byte) * 8 / 5];
                    let keeps_out = |other: &(Vec<u8>, Vec<u8>, Buffer)| {
                        other.2.index() == buffer.index() && other.0 != header
                    };
                    let (front, rest) = header.split_at(header.len() / 2);
                    let begun = buffer.begin_front(&[front, rest], header.len());
                    prop_assert_eq!(begun.is_err(), in_flight.iter().any(keeps_out));
                    if begun.is_ok() {
                        in_flight.push((header, bytes.clone(), buffer.clone()));
                    }
                },
            }
            for (bytes, buffer) in &buffers {
                prop_assert_eq!(&buffer[..], &bytes[..]);
            }
            for (header, bytes, buffer) in &in_flight {
                prop_assert_eq!(as_sent(buffer, header.len()), [&header[..], bytes].concat());
            }
        }
    }
}
