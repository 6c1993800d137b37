use proptest::prelude::*;

use super::*;
use crate::buffer::ZeroCopyBufferManager;

fn manager(slots: u32, slot_size: usize) -> HeaderSlotManager {
    HeaderSlotManager::new(HeaderSlotConfig { slots, slot_size }).unwrap()
}

#[test]
fn settings_out_of_range_are_named() {
    for (slots, slot_size, field) in [
        (0, 64, "slots"),
        (65_537, 64, "slots"),
        (1, 0, "slot_size"),
        (1, 4097, "slot_size"),
    ] {
        let error = HeaderSlotManager::new(HeaderSlotConfig { slots, slot_size }).unwrap_err();
        assert!(
            matches!(error, MemoryError::Setting { field: named, .. } if named == field),
            "{error}"
        );
    }
}

#[test]
fn a_header_in_parts_lies_joined_in_one_slot_of_the_block() {
    let headers = manager(3, 65);
    let _first = headers.acquire(&[1; 65], 0, EndpointId::next()).unwrap();
    let slot = headers
        .acquire_parts(&[&[5, 0], b"", b"hello"], 9, EndpointId::next())
        .unwrap();
    assert_eq!(
        (slot.as_bytes(), slot.len(), slot.key(), slot.is_empty()),
        (&b"\x05\x00hello"[..], 7, 9, false)
    );
    assert_eq!(
        slot.as_bytes().as_ptr().addr() - headers.region().as_ptr().addr(),
        128
    );
    assert_eq!(headers.region().purpose(), Some(Purpose::HeaderSlots));
}

#[test]
fn refusals_take_no_slot() {
    let headers = manager(1, 8);
    let me = EndpointId::next();
    assert_eq!(
        headers.acquire(&[0; 9], 1, me).unwrap_err(),
        HeaderError::TooLong { len: 9, max: 8 }
    );
    assert_eq!(headers.low_water(), 1);
    let slot = headers.acquire(&[0; 8], 1, me).unwrap();
    assert_eq!(
        headers.acquire(&[], 2, me).unwrap_err(),
        HeaderError::NoSlot
    );
    assert_eq!(headers.pending(me), [1]);
    drop(slot);
    assert_eq!((headers.free_count(), headers.pending(me)), (1, vec![]));
}

#[test]
fn threads_share_slots_and_get_their_own_keys_back() {
    let headers = manager(7, 8);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let headers = headers.clone();
            scope.spawn(move || {
                let me = EndpointId::next();
                for round in 0..20_000u64 {
                    let key = thread << 32 | round;
                    let Ok(slot) = headers.acquire(&key.to_le_bytes(), key, me) else {
                        continue;
                    };
                    assert_eq!(headers.pending(me), [key]);
                    assert_eq!(slot.as_bytes(), key.to_le_bytes());
                    assert_eq!(headers.release(slot), key);
                }
            });
        }
    });
    assert_eq!(headers.free_count(), 7);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    /// The model: the list of (endpoint, key, header) that are out.
    #[test]
    fn slots_follow_the_model(
        steps in prop::collection::vec(
            (any::<bool>(), 0usize..3, any::<u64>(), 0usize..12),
            0..150,
        ),
    ) {
        let headers = manager(4, 10);
        let endpoints = [EndpointId::next(), EndpointId::next(), EndpointId::next()];
        let mut out: Vec<(usize, Vec<u8>, HeaderSlot)> = Vec::new();
        let mut low = 4;
        for (acquire, endpoint, key, len) in steps {
            if acquire {
                let header = vec![key as u8; len];
                match headers.acquire(&header, key, endpoints[endpoint]) {
                    Ok(slot) => out.push((endpoint, header, slot)),
                    Err(HeaderError::TooLong { len, max }) => prop_assert!(len > max && max == 10),
                    Err(HeaderError::NoSlot) => prop_assert_eq!(out.len(), 4),
                }
            } else if !out.is_empty() {
                let (_, header, slot) = out.swap_remove(len % out.len());
                prop_assert_eq!(slot.as_bytes(), &header[..]);
                let key = slot.key();
                prop_assert_eq!(key, headers.release(slot));
            }
            low = low.min(4 - out.len());
            prop_assert_eq!(
                (headers.free_count(), headers.low_water()),
                (4 - out.len(), low)
            );
            for (index, endpoint) in endpoints.iter().enumerate() {
                let mut pending = headers.pending(*endpoint);
                let mut expected: Vec<u64> = out
                    .iter()
                    .filter(|held| held.0 == index)
                    .map(|held| held.2.key())
                    .collect();
                pending.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(pending, expected);
            }
        }
    }
}

#[test]
fn a_shared_slot_is_free_when_its_last_holder_gave_it_back() {
    let headers = manager(2, 64);
    let me = EndpointId::next();
    let mut first = headers.take(&[b"one"], 7, me).unwrap();
    let second = headers.share(&mut first);
    let third = headers.share(&mut first);
    assert_eq!(headers.start(&second), headers.start(&first));
    assert_eq!((second.len(), headers.pending(me)), (3, vec![7]));
    headers.give_back(second);
    headers.give_back(first);
    assert_eq!(headers.free_count(), 1, "one still has it");
    headers.give_back(third);
    assert_eq!((headers.free_count(), headers.pending(me)), (2, vec![]));
    // The next one in the same slot is nobody else's.
    let alone = headers.take(&[b"two"], 8, me).unwrap();
    headers.give_back(alone);
    assert_eq!(headers.free_count(), 2);
}

#[test]
fn managers_of_other_memory_share_header_slots() {
    let headers = manager(2, 16);
    let region = || Region::host(4096).build().unwrap();
    let of = [region(), region()].map(|data| ZeroCopyBufferManager::with_headers(data, &headers));
    assert!(!Arc::ptr_eq(of[0].region(), of[1].region()));
    let owner = EndpointId::next();
    let taken = [0, 1].map(|which| of[which].acquire(b"h", which as u64, owner).unwrap());
    assert!(matches!(
        of[0].acquire(b"h", 9, owner),
        Err(HeaderError::NoSlot)
    ));
    assert_eq!(taken.map(|slot| of[1].release(slot)), [0, 1]);
    assert_eq!(
        (of[0].free_count(), headers.free_count(), of[1].low_water()),
        (2, 2, 0)
    );
}
