use super::*;
use proptest::prelude::*;

fn record(direction: Direction, back_end: BackEnd, bytes: u64, ns: u64) -> Record {
    Record {
        direction,
        back_end,
        bytes,
        direct_bytes: bytes / 2,
        bounced_bytes: bytes / 4,
        elapsed: Duration::from_nanos(ns),
        failed: bytes.is_multiple_of(3),
    }
}

#[test]
fn what_a_file_counts_is_in_its_own_statistics_and_in_those_of_the_process() {
    let before = process();
    let (one, other) = (IoCounters::new(), IoCounters::new());
    one.record(&record(Direction::Read, BackEnd::Posix, 4096, 10_000));
    one.record(&record(Direction::Read, BackEnd::IoUring, 8192, 20_000));
    other.record(&record(Direction::Write, BackEnd::Staged, 3, 5));

    let stats = one.snapshot();
    assert_eq!(stats.read.operations(), 2);
    assert_eq!(stats.read.bytes(), 12_288);
    assert_eq!(stats.read.back_end(BackEnd::IoUring).bytes, 8192);
    assert_eq!(stats.read.direct_bytes, 6144);
    assert_eq!(stats.read.buffered_bytes(), 6144);
    assert_eq!(stats.read.bounced_bytes, 3072);
    assert_eq!(
        stats.read.latency.mean(),
        Some(Duration::from_nanos(15_000))
    );
    assert_eq!(stats.write, DirectionStats::default());
    assert_eq!(other.snapshot().write.errors(), 1);

    // Other tests of this process may count meanwhile: at least these, open or closed.
    let grown = |now: IoStats| {
        assert!(now.read.bytes() >= before.read.bytes() + 12_288);
        assert!(
            now.write.back_end(BackEnd::Staged).operations
                > before.write.back_end(BackEnd::Staged).operations
        );
    };
    grown(process());
    drop(one);
    grown(process());
    drop(other);
    grown(process());
}

proptest! {
    /// Gathered or one by one: the same statistics.
    #[test]
    fn what_is_gathered_counts_as_if_one_by_one(
        operations in proptest::collection::vec((0u64..10_000, any::<u64>()), 0..50),
        write: bool,
    ) {
        let direction = if write {
            Direction::Write
        } else {
            Direction::Read
        };
        let (gathered, single) = (IoCounters::new(), IoCounters::new());
        let mut tally = Tally::new(direction, BackEnd::IoUring);
        for (turn, (bytes, ns)) in operations.into_iter().enumerate() {
            // So that the sum of all stays one.
            let record = record(direction, BackEnd::IoUring, bytes, ns >> 6 >> (ns % 50));
            tally.add(&record);
            single.record(&record);
            if turn % 7 == 6 {
                gathered.record_all(&mut tally);
                prop_assert_eq!(gathered.snapshot(), single.snapshot());
            }
        }
        gathered.record_all(&mut tally);
        gathered.record_all(&mut tally);
        prop_assert_eq!(gathered.snapshot(), single.snapshot());
    }
}

#[test]
fn closed_files_are_not_kept() {
    let counters = IoCounters::new();
    let id = counters.cells.place().id();
    assert!(metrics::registry::has(id));
    drop(counters);
    assert!(!metrics::registry::has(id));
}

#[test]
fn threads_lose_no_count() {
    let counters = IoCounters::new();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for ns in 0..1000 {
                    counters.record(&record(Direction::Write, BackEnd::Posix, 7, ns));
                }
            });
        }
    });
    let stats = counters.snapshot().write;
    assert_eq!((stats.operations(), stats.bytes()), (4000, 28_000));
    assert_eq!(stats.latency.count(), 4000);
    assert_eq!(stats.latency.total(), Duration::from_nanos(4 * 499_500));
}
