use super::*;

#[cfg(not(loom))]
mod plain {
    use std::cell::RefCell;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_equal_headers_share_a_room() {
        let claims = RoomClaims::new(2);
        let room = RefCell::new(Vec::new());
        let begin = |header: &[u8]| {
            let write = || *room.borrow_mut() = header.to_vec();
            let is_equal = || *room.borrow() == header;
            claims.begin(1, header.len() as u32, write, is_equal)
        };
        begin(b"one").unwrap();
        begin(b"one").unwrap();
        assert_eq!(begin(b"two"), Err(RoomTaken), "other bytes");
        assert_eq!(begin(b"on"), Err(RoomTaken), "another length");
        claims.end(1);
        assert_eq!(begin(b"two"), Err(RoomTaken), "one holds it still");
        claims.end(1);
        begin(b"two").unwrap();
        assert_eq!(room.borrow().as_slice(), b"two");
        assert!(claims.is_free(0), "another slot's");
        claims.end(1);
        assert!(claims.is_free(1));
    }

    proptest! {
        /// Against a list of who holds which header.
        #[test]
        fn claims_are_what_a_list_of_holders_says(
            steps in prop::collection::vec((0u32..3, prop::option::of(0u8..3)), 1..80),
        ) {
            let claims = RoomClaims::new(3);
            let rooms = RefCell::new([0u8; 3]);
            let mut holders: [Vec<u8>; 3] = Default::default();
            for (index, header) in steps {
                let slot = index as usize;
                let Some(header) = header else {
                    if holders[slot].pop().is_some() {
                        claims.end(index);
                    }
                    continue;
                };
                // Headers 0 and 1 differ in their bytes, 2 differs in its length too.
                let len = 1 + u32::from(header == 2);
                let may = holders[slot].iter().all(|held| *held == header);
                let begun = claims.begin(
                    index,
                    len,
                    || rooms.borrow_mut()[slot] = header,
                    || rooms.borrow()[slot] == header,
                );
                prop_assert_eq!(begun.is_ok(), may);
                if may {
                    holders[slot].push(header);
                }
                for (index, held) in holders.iter().enumerate() {
                    prop_assert_eq!(claims.is_free(index as u32), held.is_empty());
                    prop_assert!(held.iter().all(|h| *h == rooms.borrow()[index]));
                }
            }
        }
    }
}

#[cfg(loom)]
mod model {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    struct Slot {
        claims: RoomClaims,
        room: UnsafeCell<u32>,
    }

    /// Claims the room for a header, reads it as a provider would, and lets go.
    fn send(slot: &Slot, header: u32) -> bool {
        let begun = slot.claims.begin(
            0,
            4,
            #[allow(unsafe_code)]
            // SAFETY: what is tested: nobody else is there while a header is written.
            || slot.room.with_mut(|room| unsafe { *room = header }),
            #[allow(unsafe_code)]
            // SAFETY: what is tested: nobody writes while a holder looks.
            || slot.room.with(|room| unsafe { *room }) == header,
        );
        if begun.is_err() {
            return false;
        }
        #[allow(unsafe_code)]
        // SAFETY: what is tested: a claim keeps writers out until it ends.
        let there = slot.room.with(|room| unsafe { *room });
        assert_eq!(there, header, "another header is in the room");
        slot.claims.end(0);
        true
    }

    /// Three threads send one buffer, two of them with equal headers: loom reports a header that is
    /// written while another thread reads it, and the assertion one that was overwritten. At most
    /// three switches that a thread did not ask for, or it takes hours.
    #[test]
    fn loom_a_header_is_not_overwritten_while_it_is_used() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let slot = Arc::new(Slot {
                claims: RoomClaims::new(1),
                room: UnsafeCell::new(0),
            });
            let others: Vec<_> = [1, 2]
                .into_iter()
                .map(|header| {
                    let slot = Arc::clone(&slot);
                    thread::spawn(move || send(&slot, header))
                })
                .collect();
            send(&slot, 1);
            others
                .into_iter()
                .for_each(|other| drop(other.join().unwrap()));
            assert!(send(&slot, 3), "all claims are over");
        });
    }
}
