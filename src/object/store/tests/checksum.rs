//! Known values, and pieces in any order.

use proptest::prelude::*;

use super::*;

#[test]
fn check_values_of_both() {
    let of = |kind| ObjectChecksum::of(kind, b"123456789").value;
    assert_eq!(of(ChecksumKind::Crc64Nvme), 0xae8b_1486_0a79_9888);
    assert_eq!(of(ChecksumKind::Crc32c), 0xe306_9283);
    assert_eq!(ObjectChecksum::of(ChecksumKind::Crc64Nvme, b"").value, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn pieces_in_any_order_give_the_checksum_of_all(
        bytes in prop::collection::vec(any::<u8>(), 0..5000),
        piece in 1_usize..900,
        start in 0_u64..1 << 40,
        seed in any::<u64>(),
        is_short in any::<bool>(),
    ) {
        let kind = if is_short { ChecksumKind::Crc32c } else { ChecksumKind::Crc64Nvme };
        let mut pieces: Vec<_> = bytes.chunks(piece).enumerate().collect();
        // Any order that the seed says.
        pieces.sort_by_key(|(index, _)| (*index as u64 + 1).wrapping_mul(seed | 1));
        let mut sum = RangeChecksum::new(kind, start);
        for (index, bytes) in pieces {
            sum.add(start + (index * piece) as u64, bytes);
        }
        prop_assert_eq!(sum.done(), start + bytes.len() as u64);
        prop_assert_eq!(sum.value(), ObjectChecksum::of(kind, &bytes));
    }
}

#[test]
fn a_checksum_goes_on_behind_what_is_there() {
    let bytes: Vec<u8> = (0..100_000_u32)
        .map(|at| (at * 7 + at / 251) as u8)
        .collect();
    let all = ObjectChecksum::of(ChecksumKind::Crc64Nvme, &bytes);
    for there in [0, 1, 4096, 99_999, 100_000] {
        let (front, back) = bytes.split_at(there);
        let front = ObjectChecksum::of(ChecksumKind::Crc64Nvme, front);
        let mut sum = RangeChecksum::behind(front.value, there as u64);
        assert_eq!((sum.value(), sum.done()), (front, there as u64));
        // The second half before the first.
        let (middle, end) = back.split_at(back.len() / 2);
        sum.add((there + middle.len()) as u64, end);
        sum.add(there as u64, middle);
        assert_eq!((sum.value(), sum.done()), (all, 100_000), "{there}");
    }
}
