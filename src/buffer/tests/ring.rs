use super::*;

#[cfg(not(loom))]
mod plain {
    use proptest::prelude::*;

    use super::*;
    use crate::memory::HugePages;

    fn ring(len: usize, max_fragments: u32) -> RingRegion {
        let region = Region::host(len)
            .huge_pages(HugePages::Never)
            .build()
            .unwrap();
        RingRegion::new(
            region,
            RingConfig {
                max_fragments,
                ..RingConfig::default()
            },
        )
        .unwrap()
    }

    #[test]
    fn limits_are_typed() {
        let mut ring = ring(100, 2);
        assert_eq!(
            ring.reserve(101).unwrap_err(),
            RingError::TooLong { len: 101, max: 100 }
        );
        let first = ring.reserve(60).unwrap();
        assert_eq!(ring.reserve(41).unwrap_err(), RingError::Full { free: 40 });
        let second = ring.reserve(40).unwrap();
        drop(second);
        assert_eq!(
            ring.reserve(0).unwrap_err(),
            RingError::TooManyFragments { max: 2 }
        );
        drop(first);
        assert_eq!(
            (ring.free_bytes(), ring.tail(), ring.head()),
            (100, 100, 100)
        );
        for max_fragments in [0, RingConfig::FRAGMENTS_MAX + 1] {
            let error = RingRegion::new(
                Region::host(1).build().unwrap(),
                RingConfig {
                    max_fragments,
                    ..RingConfig::default()
                },
            )
            .unwrap_err();
            assert!(matches!(
                error,
                MemoryError::Setting {
                    field: "max_fragments",
                    ..
                }
            ));
        }
    }

    #[test]
    fn wrap_around_is_two_segments_with_the_right_bytes() {
        let mut ring = ring(10, 4);
        drop(ring.reserve(7).unwrap());
        let mut reservation = ring.reserve(6).unwrap();
        assert_eq!(reservation.ranges(), (7..10, 0..3));
        let (first, second) = reservation.segments_mut().unwrap();
        first.copy_from_slice(b"abc");
        second.copy_from_slice(b"def");
        let fragment = ring.commit(reservation, 5);
        assert_eq!(fragment.as_slices().unwrap(), (&b"abc"[..], &b"de"[..]));
        assert_eq!(
            (ring.head(), ring.free_bytes(), fragment.position()),
            (12, 5, 7)
        );
    }

    #[test]
    fn tail_moves_over_the_oldest_run_only() {
        let mut ring = ring(100, 8);
        let [a, b, c] = [10, 20, 30].map(|len| ring.reserve(len).unwrap().commit(len));
        drop(b);
        assert_eq!((ring.tail(), ring.outstanding()), (0, 3));
        assert!(ring.oldest_age(Instant::now()).is_some());
        drop(a);
        assert_eq!((ring.tail(), ring.outstanding()), (30, 1));
        let later = Instant::now() + Duration::from_secs(5);
        assert!(ring.oldest_age(later).unwrap() >= Duration::from_secs(5));
        std::thread::spawn(move || drop(c)).join().unwrap();
        assert_eq!((ring.tail(), ring.oldest_age(later)), (60, None));
    }

    #[test]
    fn a_producer_may_say_what_time_it_is() {
        let mut ring = ring(100, 8);
        let now = Instant::now();
        let then = now + Duration::from_secs(5);
        let older = ring.reserve_at(10, now).unwrap();
        let newer = ring.reserve_at(10, then).unwrap();
        let later = now + Duration::from_secs(7);
        assert_eq!(ring.oldest_age(later), Some(Duration::from_secs(7)));
        drop(older);
        assert_eq!(ring.oldest_age(later), Some(Duration::from_secs(2)));
        assert_eq!(newer.position(), 10);
        assert_eq!(
            ring.reserve_at(101, now).unwrap_err(),
            RingError::TooLong { len: 101, max: 100 }
        );
    }

    #[test]
    fn only_the_newest_reservation_shrinks_at_once() {
        let mut ring = ring(100, 8);
        let (older, newer) = (ring.reserve(40).unwrap(), ring.reserve(40).unwrap());
        let older = ring.commit(older, 1);
        assert_eq!((ring.head(), older.len()), (80, 1));
        let newer = ring.commit(newer, 0);
        assert_eq!(
            (ring.head(), ring.free_bytes(), newer.is_empty()),
            (40, 60, true)
        );
        let mut other = super::plain::ring(100, 8);
        let foreign = other.reserve(50).unwrap();
        assert_eq!(ring.commit(foreign, 5).len(), 5);
        assert_eq!((ring.head(), other.head()), (40, 50));
    }

    #[test]
    #[should_panic(expected = "commit(6) of a reservation of 5 bytes")]
    fn commit_beyond_the_reservation_panics() {
        ring(10, 1).reserve(5).unwrap().commit(6);
    }

    #[test]
    fn external_rings_give_addresses_only_and_share_with_slices() {
        let bytes = Box::leak(Box::new([0u8; 64]));
        let base = std::ptr::NonNull::from(&mut *bytes).cast();
        // SAFETY: leaked for good, and nobody looks into it.
        let region = unsafe { Region::external(base, 64, Box::new(())) }.unwrap();
        let mut ring = RingRegion::new(Arc::clone(&region), RingConfig::default()).unwrap();
        let mut reservation = ring.reserve(8).unwrap();
        assert!(reservation.segments_mut().is_none());
        assert!(reservation.commit(8).as_slices().is_none());
        assert_eq!(region.slice(0..64).unwrap().len(), 64);
    }

    #[test]
    fn the_ring_keeps_its_region_until_the_last_fragment() {
        let region = Region::host(64).build().unwrap();
        let mut ring = RingRegion::new(Arc::clone(&region), RingConfig::default()).unwrap();
        let fragment = ring.reserve(8).unwrap().commit(8);
        drop(ring);
        assert_eq!(region.purpose(), Some(Purpose::Ring));
        drop(fragment);
        assert_eq!(region.purpose(), None);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Reserve(usize),
        Commit(usize, usize),
        DropReservation(usize),
        DropFragment(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0usize..70).prop_map(Step::Reserve),
            3 => (any::<usize>(), any::<usize>()).prop_map(|(n, len)| Step::Commit(n, len)),
            1 => any::<usize>().prop_map(Step::DropReservation),
            4 => any::<usize>().prop_map(Step::DropFragment),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        /// With headroom: pieces of one range, with room in front that nobody else has; whatever
        /// becomes free can be had again.
        #[test]
        fn pieces_with_headroom_are_apart_and_in_one_range(
            steps in prop::collection::vec((0usize..30, any::<usize>(), any::<bool>()), 1..200),
            headroom in 1usize..9,
        ) {
            let config = RingConfig {
                headroom,
                max_fragments: 5,
            };
            let mut ring = RingRegion::new(Region::host(64).build().unwrap(), config).unwrap();
            let mut out: Vec<RingFragment> = Vec::new();
            for (len, n, take) in steps {
                if take || out.is_empty() {
                    match ring.reserve(len) {
                        Ok(reservation) => {
                            let (first, second) = reservation.ranges();
                            prop_assert_eq!((first.len(), second.len()), (len, 0));
                            prop_assert_eq!(reservation.position() % 64, first.start as u64 % 64);
                            out.push(ring.commit(reservation, len));
                        }
                        Err(_) => prop_assert!(
                            !out.is_empty(),
                            "all of it is free, and {} bytes don't fit",
                            len
                        ),
                    }
                } else {
                    drop(out.swap_remove(n % out.len()));
                }
                let mut taken = [false; 64];
                for fragment in &out {
                    let range = fragment.ranges().0;
                    prop_assert_eq!(fragment.headroom(), headroom);
                    let own = &mut taken[range.start - headroom..range.end];
                    prop_assert!(own.iter().all(|taken| !taken), "bytes of two fragments");
                    own.fill(true);
                }
            }
        }

        /// The model: a list of (end, out) and the bytes that each fragment was filled with.
        #[test]
        fn ring_follows_the_model(steps in prop::collection::vec(step(), 0..200)) {
            const SIZE: usize = 64;
            const MAX: usize = 5;
            let mut ring = ring(SIZE, MAX as u32);
            let (mut model, mut tail, mut head, mut next) =
                (VecDeque::<(u64, u64, bool)>::new(), 0u64, 0u64, 0u64);
            let mut reserved: Vec<(u64, Reservation)> = Vec::new();
            let mut committed: Vec<(u64, RingFragment)> = Vec::new();
            for step in steps {
                match step {
                    Step::Reserve(len) => {
                        let free = SIZE - (head - tail) as usize;
                        let result = ring.reserve(len);
                        if len > SIZE {
                            prop_assert_eq!(
                                result.unwrap_err(),
                                RingError::TooLong { len, max: SIZE }
                            );
                        } else if len > free {
                            prop_assert_eq!(result.unwrap_err(), RingError::Full { free });
                        } else if model.len() == MAX {
                            prop_assert_eq!(
                                result.unwrap_err(),
                                RingError::TooManyFragments { max: MAX as u32 }
                            );
                        } else {
                            let mut reservation = result.unwrap();
                            let (first, second) = reservation.segments_mut().unwrap();
                            prop_assert_eq!(first.len() + second.len(), len);
                            first.fill(next as u8);
                            second.fill(next as u8);
                            head += len as u64;
                            model.push_back((next, head, true));
                            reserved.push((next, reservation));
                            next += 1;
                        }
                    }
                    Step::Commit(n, len) if !reserved.is_empty() => {
                        let (id, reservation) = reserved.swap_remove(n % reserved.len());
                        let (start, len) = (reservation.position(), len % (reservation.len() + 1));
                        if let Some(newest) = model.back_mut().filter(|newest| newest.0 == id) {
                            head = start + len as u64;
                            newest.1 = head;
                        }
                        committed.push((id, ring.commit(reservation, len)));
                    }
                    Step::DropReservation(n) if !reserved.is_empty() => {
                        let (id, _reservation) = reserved.swap_remove(n % reserved.len());
                        model
                            .iter_mut()
                            .filter(|piece| piece.0 == id)
                            .for_each(|piece| piece.2 = false);
                    }
                    Step::DropFragment(n) if !committed.is_empty() => {
                        let (id, _fragment) = committed.swap_remove(n % committed.len());
                        model
                            .iter_mut()
                            .filter(|piece| piece.0 == id)
                            .for_each(|piece| piece.2 = false);
                    }
                    _ => {}
                }
                while model.front().is_some_and(|piece| !piece.2) {
                    tail = model.pop_front().unwrap().1;
                }
                prop_assert_eq!(
                    (ring.head(), ring.tail(), ring.outstanding()),
                    (head, tail, model.len())
                );
                prop_assert_eq!(ring.free_bytes(), SIZE - (head - tail) as usize);
                for (id, fragment) in &committed {
                    let (first, second) = fragment.as_slices().unwrap();
                    prop_assert!(
                        first.iter().chain(second).all(|byte| *byte == *id as u8),
                        "written by another"
                    );
                }
            }
        }
    }
}

#[cfg(loom)]
mod model {
    use loom::thread;

    use super::*;

    /// Two threads write to what they got and drop it in any order while the producer waits for the
    /// room: loom reports a fragment that is handed out while its last owner still reads it. The
    /// bytes stand for the region's, which loom does not see.
    #[test]
    fn loom_ring_gives_bytes_to_one_owner() {
        loom::model(|| {
            let region = Region::host(2).build().unwrap();
            let mut ring = RingRegion::new(
                region,
                RingConfig {
                    max_fragments: 2,
                    ..RingConfig::default()
                },
            )
            .unwrap();
            let bytes = loom::sync::Arc::new([
                loom::cell::UnsafeCell::new(0u8),
                loom::cell::UnsafeCell::new(0u8),
            ]);
            let owners: Vec<_> = (0..2)
                .map(|_| {
                    let fragment = ring.reserve(1).unwrap().commit(1);
                    let bytes = loom::sync::Arc::clone(&bytes);
                    thread::spawn(move || {
                        // SAFETY: what is tested: a fragment's bytes have one owner.
                        bytes[fragment.ranges().0.start].with_mut(|byte| unsafe { *byte += 1 });
                        drop(fragment);
                    })
                })
                .collect();
            if let Ok(reservation) = ring.reserve(1) {
                // SAFETY: as above.
                bytes[reservation.ranges().0.start].with_mut(|byte| unsafe { *byte += 1 });
                drop(reservation);
            }
            owners.into_iter().for_each(|owner| owner.join().unwrap());
            assert_eq!(ring.outstanding(), 0);
            assert_eq!(ring.tail(), ring.head());
        });
    }
}
