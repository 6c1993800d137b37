//! The histogram beside all of its values, sorted.

use proptest::prelude::*;

use super::*;

fn recorded(values: &[u64]) -> Latencies {
    let cells = LatencyCells::default();
    for &ns in values {
        cells.record(Duration::from_nanos(ns));
    }
    cells.snapshot()
}

#[test]
fn buckets_follow_each_other_and_none_is_wider_than_a_sixteenth() {
    let mut next = 0;
    for place in 0..LONGEST {
        let (first, last) = bounds(place);
        assert_eq!(first, next, "bucket {place}");
        assert_eq!((bucket(first), bucket(last)), (place, place));
        assert!(last - first <= first / 16, "bucket {place}");
        next = last + 1;
    }
    assert_eq!(next, 1 << LONGEST_BITS);
    assert_eq!(bounds(LONGEST), (next, u64::MAX));
    assert_eq!((bucket(next), bucket(u64::MAX)), (LONGEST, LONGEST));
}

#[test]
fn nothing_has_no_quantiles() {
    let none = Latencies::default();
    assert_eq!(none, recorded(&[]));
    assert_eq!(none.count(), 0);
    for share in [0.0, 0.5, 1.0, f64::NAN] {
        assert_eq!(none.quantile(share), None);
    }
    assert_eq!((none.max(), none.mean()), (None, None));
}

#[test]
fn what_takes_for_ever_is_the_longest_and_does_not_overflow() {
    let two = recorded(&[5, u64::MAX, u64::MAX]);
    assert_eq!(two.quantile(1.0), Some(Duration::from_nanos(u64::MAX)));
    assert_eq!(two.quantile(0.0), Some(Duration::from_nanos(5)));
    assert_eq!(two.total(), Duration::from_nanos(5 + 2 * SUM_MAX));
    let cells = LatencyCells::default();
    cells.record(Duration::MAX);
    assert_eq!(cells.snapshot().count(), 1);
}

#[test]
fn threads_lose_nothing() {
    let cells = LatencyCells::default();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let cells = &cells;
            scope.spawn(move || {
                for i in 0..2500 {
                    cells.record(Duration::from_nanos(thread * 2500 + i));
                }
            });
        }
    });
    let all: Vec<u64> = (0..10_000).collect();
    assert_eq!(cells.snapshot(), recorded(&all));
}

/// Of every size, rather than mostly huge.
fn latency() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64u32).prop_map(|(ns, shift)| ns >> shift)
}

proptest! {
    #[test]
    fn quantiles_are_those_of_the_sorted_values_within_a_sixteenth(
        mut values in proptest::collection::vec(latency(), 1..300),
        share in 0.0..=1.0f64,
    ) {
        let found = recorded(&values);
        values.sort_unstable();
        let count = values.len();
        prop_assert_eq!(found.count(), count as u64);
        prop_assert_eq!(found.max(), values.last().map(|&ns| Duration::from_nanos(ns)));
        for share in [share, 0.5, 0.99, 0.0, 1.0] {
            let rank = ((count as f64 * share).ceil() as usize).clamp(1, count);
            let right = values[rank - 1];
            let told = found.quantile(share).unwrap().as_nanos() as u64;
            prop_assert!(told >= right, "{told} < {right}");
            let last = values[count - 1];
            let bound = match right < 1 << LONGEST_BITS {
                true => right + right / 16,
                false => last,
            };
            prop_assert!(told <= bound && told <= last, "{told} > {bound} or {last}");
        }
    }

    #[test]
    fn sums_and_counts_below_a_power_of_two_are_exact(
        values in proptest::collection::vec(latency(), 0..300),
        bits in 4..=LONGEST_BITS,
    ) {
        let found = recorded(&values);
        let below = values.iter().filter(|&&ns| ns < 1 << bits).count();
        prop_assert_eq!(found.below(bits), below as u64);
        let total: u64 = values.iter().map(|&ns| ns.min(SUM_MAX)).sum();
        prop_assert_eq!(found.total(), Duration::from_nanos(total));
    }

    #[test]
    fn two_added_are_as_one(
        one in proptest::collection::vec(latency(), 0..100),
        other in proptest::collection::vec(latency(), 0..100),
    ) {
        let mut sum = recorded(&one);
        sum += &recorded(&other);
        prop_assert_eq!(sum, recorded(&[one, other].concat()));
    }
}

#[test]
fn words_make_the_same_histogram_and_others_make_none() {
    let one = recorded(&[3, 70_000, 70_000, u64::MAX]);
    let words = one.to_words();
    assert_eq!(words.len(), Latencies::WORDS);
    assert_eq!(Latencies::from_words(&words), Some(one));
    let none = Latencies::default();
    assert_eq!(Latencies::from_words(&none.to_words()), Some(none));
    assert_eq!(Latencies::from_words(&words[1..]), None);
    assert_eq!(Latencies::from_words(&[]), None);
    let too_many = vec![u64::MAX; Latencies::WORDS];
    assert_eq!(Latencies::from_words(&too_many), None);
}

#[test]
fn the_longest_are_in_the_last_bucket() {
    let found: Vec<_> = recorded(&[0, u64::MAX]).buckets().collect();
    let [first, last] = [0, u64::MAX].map(Duration::from_nanos);
    assert_eq!(found, [(first, 1), (last, 1)]);
}

#[test]
fn recorded_by_one_thread_is_the_same_as_by_any() {
    let values = [0, 15, 16, 1 << 20, 1 << 41, u64::MAX];
    let mut own = Latencies::default();
    for ns in values {
        own.record(Duration::from_nanos(ns));
    }
    assert_eq!(own, recorded(&values));
}
