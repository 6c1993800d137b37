//! What lives has an entry, what is gone is in the sums, and the text is text of OpenMetrics.

mod documents;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::registry::{WatchedCells, has};
use super::stats::{EndpointCells, ReceivesCounted, SendsCounted};
use super::*;
use crate::buffer::{RingConfig, RingRegion, SharedBufferManager};
use crate::endpoint::Blocked;
use crate::event_loop::{EventLoop, LoopConfig};
use crate::forked::in_a_child;
use crate::memory::Region;
use crate::stats::{SendCells, SubscribeCells};

/// Entries of this name.
fn named(name: &str) -> Vec<WatchedEntry> {
    let mut entries = snapshot();
    entries.retain(|entry| &*entry.name == name);
    entries
}

fn only(name: &str) -> WatchedStats {
    let mut found = named(name);
    assert_eq!(found.len(), 1, "{name}");
    found.remove(0).stats
}

/// What closed endpoints that subscribe have received: no other test here makes one.
fn closed_subscribers() -> u64 {
    let entries = snapshot().into_iter();
    let closed = entries.filter(|it| it.kind == WatchedKind::Subscribe && it.id == 0);
    let received = closed.map(|entry| match entry.stats {
        WatchedStats::Subscribe(stats) => stats.received,
        // What goes over its connections.
        _ => 0,
    });
    received.sum()
}

#[test]
fn what_lives_has_an_entry_and_what_is_gone_is_in_the_sums() {
    let cells: WatchedCells<SubscribeCells> = WatchedCells::new(WatchedKind::Subscribe, None);
    let id = cells.place().id();
    cells.received.add(3);
    cells.connected.set(2);
    let entry = snapshot().into_iter().find(|entry| entry.id == id);
    let entry = entry.expect("it lives");
    assert!(entry.name.starts_with("subscribe-"), "{}", entry.name);
    let WatchedStats::Subscribe(stats) = entry.stats else {
        panic!("{entry:?}");
    };
    assert_eq!((stats.received, stats.connected), (3, 2));
    let before = closed_subscribers();
    drop(cells);
    assert!(!has(id));
    assert!(closed_subscribers() >= before + 3);
    let closed = snapshot().into_iter().find_map(|it| match it.stats {
        WatchedStats::Subscribe(stats) if it.id == 0 => Some(stats),
        _ => None,
    });
    let closed = closed.expect("one was closed");
    assert_eq!(closed.connected, 0, "of what is gone, nothing is so now");
}

#[test]
fn what_has_two_sorts_of_statistics_has_two_entries_of_one_name() {
    let hub: WatchedCells<EndpointCells> = WatchedCells::new(WatchedKind::Subscribe, Some("two"));
    let layer: WatchedCells<SubscribeCells> = WatchedCells::beside(hub.place());
    layer.received.add(1);
    let pages: Vec<_> = named("two")
        .iter()
        .map(|it| (it.kind, it.stats.page()))
        .collect();
    assert_eq!(
        pages,
        [(WatchedKind::Subscribe, 1), (WatchedKind::Subscribe, 3)]
    );
}

#[test]
fn what_lies_in_something_else_is_read_there_until_it_goes() {
    let pool = SharedBufferManager::allocate(4, 64).unwrap();
    pool.set_name("read where it lies");
    pool.region().set_name("and what it lies in");
    let taken: Vec<_> = (0..4).map(|_| pool.try_acquire().unwrap()).collect();
    assert!(pool.try_acquire().is_none());
    let WatchedStats::Pool(stats) = only("read where it lies") else {
        panic!("no pool");
    };
    assert_eq!((stats.slots, stats.free, stats.empty), (4, 0, 1));
    let WatchedStats::Region(stats) = only("and what it lies in") else {
        panic!("no region");
    };
    assert_eq!((stats.regions, stats.device_bytes), (1, 0));
    assert!(stats.host_bytes >= 256);
    // Buffers keep the pool.
    drop(pool);
    assert_eq!(named("read where it lies").len(), 1);
    drop(taken);
    assert_eq!(named("read where it lies"), []);
    assert_eq!(named("and what it lies in"), []);
}

#[test]
fn a_ring_and_a_loop_say_what_they_did() {
    let mut ring =
        RingRegion::new(Region::host(4096).build().unwrap(), RingConfig::default()).unwrap();
    ring.set_name("a ring of its own");
    let capacity = ring.capacity();
    let kept = ring.reserve(capacity - 100).unwrap();
    assert!(ring.reserve(200).is_err());
    let WatchedStats::Ring(stats) = only("a ring of its own") else {
        panic!("no ring");
    };
    assert_eq!((stats.capacity, stats.full), (capacity as u64, 1));
    assert_eq!(stats.reserved, capacity as u64 - 100);
    assert_eq!((stats.used, stats.fragments), (capacity as u64 - 100, 1));
    drop(kept);

    let mut turning = EventLoop::with(LoopConfig::default().name("a loop of its own")).unwrap();
    turning.add_timer(std::time::Duration::from_millis(3), None);
    turning.run(|it, _| it.stop()).unwrap();
    let WatchedStats::EventLoop(stats) = only("a loop of its own") else {
        panic!("no loop");
    };
    assert_eq!(stats, turning.stats());
    assert!(
        stats.rounds >= 1 && stats.sleeps >= 1 && stats.slept_ns > 0,
        "{stats:?}"
    );
}

#[test]
fn each_reason_to_block_has_its_place() {
    let cells: WatchedCells<EndpointCells> = WatchedCells::new(WatchedKind::Send, Some("blocked"));
    let sends = SendsCounted(cells.share());
    for (times, why) in Blocked::ALL.into_iter().enumerate() {
        assert_eq!(why.index(), times);
        for _ in 0..times {
            sends.count_blocked(why);
        }
    }
    let WatchedStats::Endpoint(stats) = only("blocked") else {
        panic!("no endpoint");
    };
    for (times, why) in Blocked::ALL.into_iter().enumerate() {
        assert_eq!(stats.blocked(why), times as u64);
    }
}

#[test]
fn a_child_has_a_registry_of_its_own_which_is_empty() {
    let cells: WatchedCells<SubscribeCells> =
        WatchedCells::new(WatchedKind::Subscribe, Some("parent"));
    let id = cells.place().id();
    let mut cells = Some(cells);
    let code = in_a_child(|| {
        let knows = i32::from(has(id));
        // Its drop is none of the child's business, and takes no lock of the parent's.
        drop(cells.take());
        let own: WatchedCells<SubscribeCells> = WatchedCells::new(WatchedKind::Subscribe, None);
        knows | i32::from(!has(own.place().id())) << 1
    });
    assert_eq!(code, 0, "what went wrong, by bits");
    assert_eq!(named("parent").len(), 1);
}

#[test]
fn readers_and_those_that_come_and_go_do_not_disturb_each_other() {
    let over = AtomicBool::new(false);
    let (opened, before) = (2000_u64, closed_subscribers());
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut last = 0;
            while !over.load(Ordering::Relaxed) {
                let entries = snapshot().into_iter();
                let received = entries.map(|entry| match entry.stats {
                    WatchedStats::Subscribe(it) if &*entry.name == "passer-by" || entry.id == 0 => {
                        it.received
                    }
                    _ => 0,
                });
                let received = received.sum();
                assert!(
                    received >= last,
                    "{received} after {last}: what was counted is lost"
                );
                last = received;
            }
        });
        for _ in 0..opened {
            let cells: WatchedCells<SubscribeCells> =
                WatchedCells::new(WatchedKind::Subscribe, Some("passer-by"));
            cells.received.add(1);
        }
        over.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
    assert_eq!(named("passer-by"), []);
    assert!(closed_subscribers() >= before + opened);
}

/// Metrics of a text of OpenMetrics, each with its samples; panics where the text is none.
pub(super) fn parse(text: &str) -> BTreeMap<String, Vec<(String, f64)>> {
    let (mut families, mut now) = (BTreeMap::<String, Vec<(String, f64)>>::new(), None);
    let (mut seen, mut kind) = (BTreeSet::new(), String::new());
    let body = text.strip_suffix("# EOF\n").expect("it ends so");
    for line in body.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words.as_slice() {
            ["#", "TYPE", name, word] => {
                assert!(!families.contains_key(*name), "{name} comes twice");
                families.insert((*name).to_owned(), Vec::new());
                (now, kind) = (Some((*name).to_owned()), (*word).to_owned());
            }
            ["#", "UNIT", name, unit] => {
                assert_eq!(Some(*name), now.as_deref());
                assert!(name.ends_with(&format!("_{unit}")), "{name}: {unit}");
            }
            ["#", "HELP", name, help] => {
                assert_eq!(Some(*name), now.as_deref());
                assert!(
                    help.ends_with('.') && !help.contains('\\'),
                    "{name}: {help}"
                );
            }
            _ => {
                let (series, value) = line.rsplit_once(' ').expect("a sample");
                assert!(seen.insert(series.to_owned()), "{series} comes twice");
                let family = now.as_deref().expect("behind a TYPE");
                let name = series.split('{').next().unwrap();
                let suffix = name.strip_prefix(family).expect("all of a metric together");
                let allowed: &[&str] = match kind.as_str() {
                    "counter" => &["_total"],
                    "gauge" => &[""],
                    "info" => &["_info"],
                    "histogram" => &["_bucket", "_count", "_sum"],
                    other => panic!("{other}"),
                };
                assert!(allowed.contains(&suffix), "{line}");
                let value = value.parse().expect("a number");
                families
                    .get_mut(family)
                    .unwrap()
                    .push((series.to_owned(), value));
            }
        }
    }
    families
}

#[test]
fn the_text_is_text_of_openmetrics_and_has_every_metric() {
    let cells: WatchedCells<EndpointCells> =
        WatchedCells::new(WatchedKind::Send, Some("a \"name\"\\\n"));
    SendsCounted(cells.share()).posted.add(7);
    let again: WatchedCells<EndpointCells> =
        WatchedCells::new(WatchedKind::Send, Some("a \"name\"\\\n"));
    SendsCounted(again.share()).posted.add(4);
    let files = crate::storage::stats::IoCounters::new();
    let families = parse(&openmetrics_text());
    for metric in all() {
        assert!(families.contains_key(metric.name), "{}", metric.name);
    }
    let sends = &families["fabricast_endpoint_sends"];
    let wanted = "fabricast_endpoint_sends_total{kind=\"send\",name=\"a \\\"name\\\"\\\\\\n\"}";
    let found = sends.iter().find(|(series, _)| series == wanted);
    assert_eq!(
        found.map(|it| it.1),
        Some(11.0),
        "one series for both: {sends:?}"
    );
    let buckets = &families["fabricast_file_operation_seconds"];
    assert!(
        buckets
            .iter()
            .any(|(series, _)| series.contains("le=\"+Inf\""))
    );
    drop(files);
}

#[test]
fn the_json_has_an_object_for_each_entry() {
    let cells: WatchedCells<EndpointCells> = WatchedCells::new(WatchedKind::Receive, Some("json"));
    ReceivesCounted(cells.share()).messages.add(5);
    let all: serde_json::Value = serde_json::from_str(&json()).expect("JSON");
    let entries = all["entries"].as_array().expect("a list");
    let found = entries
        .iter()
        .find(|it| it["name"] == "json")
        .expect("it lives");
    assert_eq!(found["kind"], "receive");
    assert_eq!(found["metrics"]["fabricast_endpoint_received_messages"], 5);
    let blocked = &found["metrics"]["fabricast_endpoint_would_block"][0];
    assert_eq!(
        (&blocked["reason"], &blocked["value"]),
        (&"header_slots".into(), &0.into())
    );
}

#[test]
fn names_are_of_openmetrics_and_unique() {
    let mut seen = BTreeSet::new();
    for metric in all() {
        let name = metric.name;
        assert!(seen.insert(name), "{name}");
        assert!(name.starts_with("fabricast_"), "{name}");
        assert!(
            name.chars().all(|c| c.is_ascii_lowercase() || c == '_'),
            "{name}"
        );
        assert!(!name.ends_with("_total"), "{name}: the text adds it");
        assert!(metric.help.ends_with('.'), "{name}: {}", metric.help);
        for label in metric.labels {
            assert!(!["kind", "name", "le"].contains(label), "{name}: {label}");
        }
    }
}

proptest! {
    /// One thread writes, another reads: what is read never runs backwards, and is all in the end.
    #[test]
    fn a_count_is_read_as_it_was_written(steps in proptest::collection::vec(1_u64..100, 1..200)) {
        let cells = Arc::new(SendCells::default());
        let read = Arc::clone(&cells);
        let total: u64 = steps.iter().sum();
        let reader = std::thread::spawn(move || {
            let mut last = 0;
            while last < total {
                let now = read.posted.read();
                assert!(now >= last, "{now} after {last}");
                last = now;
                std::thread::yield_now();
            }
            last
        });
        for step in &steps {
            cells.posted.add(*step);
        }
        prop_assert_eq!(reader.join().unwrap(), total);
    }
}
