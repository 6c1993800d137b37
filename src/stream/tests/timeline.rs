use proptest::prelude::*;

use super::*;

/// What happens, and how many microseconds after the last.
#[derive(Debug, Clone)]
enum Happening {
    Waits(Stall),
    Read(u64, u64),
    Written(u64),
    Bytes(u64, usize),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        (0..7usize).prop_map(|n| Happening::Waits(match n {
            0 => Stall::None,
            1 => Stall::Connecting,
            n => Stall::WAITS[n - 2],
        })),
        (0..40_000u64, 0..1000u64).prop_map(|(took, hash)| Happening::Read(took, hash.min(took))),
        (0..40_000u64).prop_map(Happening::Written),
        (0..1_000_000u64, 0..3usize).prop_map(|(bytes, address)| Happening::Bytes(bytes, address)),
    ]
}

/// Moments and what happens then; from a few microseconds to hours apart.
fn story() -> impl Strategy<Value = Vec<(u64, Happening)>> {
    let gap = prop_oneof![0..50u64, 0..20_000u64, 0..4_000_000u64, 0..4_000_000_000u64];
    proptest::collection::vec((gap, happening()), 0..60)
}

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

/// How much of an interval lies between two moments.
fn overlap((a, b): (Duration, Duration), (from, to): (Duration, Duration)) -> Duration {
    b.min(to).saturating_sub(a.max(from))
}

proptest! {
    #[test]
    fn each_moment_is_in_one_sample_and_nothing_is_lost(
        story in story(),
        rest in 0..10_000_000u64,
    ) {
        let began = Instant::now();
        let mut recorder = TimelineRecorder::new(2, began);
        let (mut now, mut waits) = (Duration::ZERO, (Stall::None, Duration::ZERO));
        // What was waited for, from when to when; and what threads and bytes came to.
        let mut spans = Vec::new();
        let (mut read, mut hash, mut written) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        let (mut bytes, mut by_address) = (0, [0, 0]);
        for (gap, happening) in story {
            now += us(gap);
            let at = began + now;
            match happening {
                Happening::Waits(what) => {
                    recorder.on_waited(waits.0, began + waits.1, at);
                    spans.push((waits.0, (waits.1, now)));
                    waits = (what, now);
                }
                Happening::Read(took, hashing) => {
                    recorder.on_read(us(took), us(hashing), at);
                    read += us(took);
                    hash += us(hashing);
                }
                Happening::Written(took) => {
                    recorder.on_written(us(took), Duration::ZERO, at);
                    written += us(took);
                }
                Happening::Bytes(more, address) => {
                    recorder.on_bytes(more, Some(address), at);
                    bytes += more;
                    if let Some(sum) = by_address.get_mut(address) {
                        *sum += more;
                    }
                }
            }
        }
        now += us(rest);
        recorder.on_waited(waits.0, began + waits.1, began + now);
        spans.push((waits.0, (waits.1, now)));
        let timeline = recorder.finish(began + now);

        prop_assert!(timeline.samples().len() <= SAMPLES_MAX);
        prop_assert_eq!(timeline.took(), now);
        let all = 0..timeline.samples().len();
        prop_assert_eq!(all.clone().map(|n| timeline.length(n)).sum::<Duration>(), now);
        for n in all.clone() {
            let begin = timeline.begin(n);
            let interval = (begin, begin + timeline.length(n));
            let sample = &timeline.samples()[n];
            for what in Stall::WAITS {
                let of_it = spans.iter().filter(|(it, _)| *it == what);
                let expected: Duration = of_it.map(|(_, span)| overlap(interval, *span)).sum();
                prop_assert_eq!(sample.stalls.of(what), expected, "sample {} {:?}", n, what);
            }
            let of_it = spans.iter().filter(|(it, _)| *it == Stall::Connecting);
            let expected: Duration = of_it.map(|(_, span)| overlap(interval, *span)).sum();
            prop_assert_eq!(sample.connecting, expected);
            let others = sample.connecting + sample.stalls.all();
            prop_assert_eq!(timeline.moving(n) + others, timeline.length(n));
        }
        let samples = timeline.samples();
        prop_assert_eq!(samples.iter().map(|it| it.read_time).sum::<Duration>(), read);
        prop_assert_eq!(samples.iter().map(|it| it.hash_time).sum::<Duration>(), hash);
        prop_assert_eq!(samples.iter().map(|it| it.write_time).sum::<Duration>(), written);
        prop_assert_eq!(samples.iter().map(|it| it.bytes).sum::<u64>(), bytes);
        for (address, sum) in by_address.into_iter().enumerate() {
            prop_assert_eq!(timeline.address_bytes(address).sum::<u64>(), sum);
            prop_assert_eq!(timeline.address_bytes(address).count(), samples.len());
        }
    }
}

#[test]
fn nothing_is_allocated_while_a_stream_goes_on() {
    let began = Instant::now();
    let mut recorder = TimelineRecorder::new(3, began);
    let places = |it: &TimelineRecorder| {
        let timeline = &it.timeline;
        (
            timeline.samples.as_ptr() as usize,
            timeline.address_bytes.as_ptr() as usize,
        )
    };
    let before = places(&recorder);
    for n in 0..5000 {
        let at = began + Duration::from_millis(10 * n);
        recorder.on_bytes(1, Some(2), at);
        recorder.on_waited(Stall::Wire, at, at + Duration::from_millis(5));
    }
    assert_eq!(places(&recorder), before);
    let timeline = recorder.finish(began + Duration::from_secs(50));
    assert!(
        timeline.samples().len() > SAMPLES_MAX / 2,
        "as fine as it may be"
    );
    assert_eq!(timeline.address_bytes(2).sum::<u64>(), 5000);
}
