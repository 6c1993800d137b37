use proptest::prelude::*;

use super::*;

const PAGE: usize = 4096;

fn rules(direction: Direction, direct: bool, memory: u32, offset: u32) -> Rules {
    Rules {
        direction,
        direct,
        alignment: DirectAlignment::new(memory, offset).unwrap(),
        page: PAGE,
    }
}

/// What a byte of a transfer may be moved by, worked out for it alone.
fn allowed(rules: Rules, address: usize, start: u64, len: usize, at: usize) -> How {
    if !rules.direct {
        return How::Buffered;
    }
    let grain = match rules.direction {
        Direction::Read => u64::from(rules.alignment.offset),
        Direction::Write => u64::from(rules.alignment.offset).max(PAGE as u64),
    };
    let block = (start + at as u64) / grain * grain;
    let whole = block >= start && block + grain <= start + len as u64;
    if !whole {
        return How::Buffered;
    }
    // The address of the block's first byte decides, and it is the same for all blocks as long as
    // blocks are no smaller.
    let first = start.next_multiple_of(grain) - start;
    if (address + first as usize).is_multiple_of(rules.alignment.memory as usize) {
        How::Direct
    } else {
        How::Bounced
    }
}

fn check(rules: Rules, address: usize, offset: u64, len: usize) {
    let mut next = 0;
    for piece in Plan::new(rules, address, offset, len) {
        assert_eq!(piece.at, next, "no gap, no overlap");
        assert_eq!(piece.offset, offset + next as u64);
        assert!(piece.len > 0 && piece.len <= PIECE_MAX);
        for at in [piece.at, piece.at + piece.len / 2, piece.at + piece.len - 1] {
            let oracle = allowed(rules, address, offset, len, at);
            assert_eq!(
                piece.how, oracle,
                "byte {at} of {len} at {offset}, memory {address:#x}, {rules:?}"
            );
        }
        if piece.how != How::Buffered {
            let grain = rules.alignment.offset as usize;
            assert!(piece.offset.is_multiple_of(grain as u64) && piece.len.is_multiple_of(grain));
            if rules.direction == Direction::Write {
                assert!(piece.offset.is_multiple_of(PAGE as u64) && piece.len.is_multiple_of(PAGE));
            }
        }
        if piece.how == How::Direct {
            assert!((address + piece.at).is_multiple_of(rules.alignment.memory as usize));
        }
        next += piece.len;
    }
    assert_eq!(next, len, "every byte");
}

fn power(most: u32) -> impl Strategy<Value = u32> {
    (0..=most).prop_map(|bits| 1 << bits)
}

fn direction() -> impl Strategy<Value = Direction> {
    prop_oneof![Just(Direction::Read), Just(Direction::Write)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn each_byte_is_moved_once_and_as_its_block_allows(
        direction in direction(),
        direct in any::<bool>(),
        memory in power(13),
        offset_grain in power(14),
        address in 0..1usize << 20,
        offset in prop_oneof![0..100_000u64, (1u64 << 40)..(1 << 40) + 100_000],
        len in prop_oneof![0..100usize, 0..100_000usize, Just(1 << 16)],
        aligned in any::<bool>(),
    ) {
        let (address, offset) = if aligned {
            (address & !8191, offset & !16383)
        } else {
            (address, offset)
        };
        check(
            rules(direction, direct, memory, offset_grain),
            address,
            offset,
            len,
        );
    }

    #[test]
    fn tasks_cover_the_transfer_and_begin_at_pages(
        boundary in power(16),
        offset in prop_oneof![0..100_000u64, (1u64 << 40)..(1 << 40) + 100_000],
        len in 0..1usize << 22,
        size in prop_oneof![0..10usize, 0..100_000usize, Just(1 << 20), Just(usize::MAX)],
    ) {
        let boundary = boundary as usize;
        let tasks = Tasks::new(boundary, offset, len, size);
        let mut next = 0;
        for index in 0..tasks.count() {
            let (start, task) = tasks.range(index);
            prop_assert_eq!(start, next);
            prop_assert!(task > 0 || len == 0);
            prop_assert!(
                task <= size
                    .max(1)
                    .checked_next_multiple_of(boundary)
                    .unwrap_or(usize::MAX)
            );
            if index > 0 {
                prop_assert!((offset + start as u64).is_multiple_of(boundary as u64));
            }
            next += task;
        }
        prop_assert_eq!(next, len);
    }
}

#[test]
fn every_small_transfer() {
    for direction in Direction::ALL {
        for offset in 0..20 {
            for len in 0..40 {
                for address in 0..8 {
                    let rules = Rules {
                        page: 8,
                        ..rules(direction, true, 4, 4)
                    };
                    let pieces: Vec<_> = Plan::new(rules, address, offset, len).collect();
                    assert_eq!(pieces.iter().map(|piece| piece.len).sum::<usize>(), len);
                    assert!(pieces.len() <= 3, "{pieces:?}");
                }
            }
        }
    }
}

#[test]
fn long_transfers_are_cut_at_a_gibibyte() {
    let rules = rules(Direction::Read, true, 512, 512);
    let pieces: Vec<_> = Plan::new(rules, 100, 100, 5 << 30).collect();
    assert_eq!(pieces.len(), 1 + 5 + 1);
    assert!(pieces[1..6].iter().all(|piece| piece.how == How::Direct));
    check(rules, 100, 100, 5 << 30);
}

#[test]
fn an_aligned_transfer_is_one_direct_piece() {
    let rules = rules(Direction::Write, true, 512, 512);
    let piece = Piece {
        at: 0,
        offset: 8192,
        len: 1 << 20,
        how: How::Direct,
    };
    assert_eq!(
        Plan::new(rules, 1 << 21, 8192, 1 << 20).collect::<Vec<_>>(),
        [piece]
    );
    let bounced = Piece {
        how: How::Bounced,
        ..piece
    };
    assert_eq!(
        Plan::new(rules, (1 << 21) + 16, 8192, 1 << 20).collect::<Vec<_>>(),
        [bounced]
    );
}

#[test]
fn there_are_never_more_tasks_than_can_be_counted() {
    let tasks = Tasks::new(1, 0, usize::MAX / 2, 1);
    let last = tasks.count() - 1;
    let (start, len) = tasks.range(last);
    assert_eq!(start + len, usize::MAX / 2);
    assert_eq!(Tasks::whole(0).count(), 1);
    assert_eq!(Tasks::whole(7).range(0), (0, 7));
}
