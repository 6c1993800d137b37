//! `Timeline`: how a stream went over time: what it waited for, what its threads did, and how many
//! bytes moved, interval by interval.

use std::time::{Duration, Instant};

use super::report::{Stall, Stalls};

/// Samples of a timeline, at most. When there would be more, each two become one.
const SAMPLES_MAX: usize = 512;

/// How long the interval of a sample is at first.
const FIRST_INTERVAL: Duration = Duration::from_millis(5);

/// What happened in one interval of a [`Timeline`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TimelineSample {
    /// The time in which there was no connection yet, or none any more; at a receiver, no stream.
    pub connecting: Duration,
    /// The time that was spent waiting, by reason. What is left of the interval, bytes were moving.
    pub stalls: Stalls,
    /// Time that threads spent reading and computing checksums, all threads together. A thread says
    /// what it took when it is done: its time is that before.
    pub read_time: Duration,
    /// Time that threads spent checking and writing, all threads together.
    pub write_time: Duration,
    /// Time that threads spent computing BLAKE3, all threads together; part of the two above.
    pub hash_time: Duration,
    /// At a sender: bytes that were given to the network. At a receiver: bytes that were written.
    pub bytes: u64,
}

impl TimelineSample {
    fn add(&mut self, other: &Self) {
        for what in Stall::WAITS {
            self.stalls.add(what, other.stalls.of(what));
        }
        self.connecting += other.connecting;
        self.read_time += other.read_time;
        self.write_time += other.write_time;
        self.hash_time += other.hash_time;
        self.bytes += other.bytes;
    }
}

/// How a stream went over time, from its beginning to its end, in samples of equal intervals; the
/// last may be shorter. There are at most 512: the longer a stream takes, the longer is the
/// interval. See [`SendOptions::timeline`](crate::stream::SendOptions::timeline) and
/// [`ReceiverConfig::timeline`](crate::stream::ReceiverConfig::timeline).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeline {
    interval: Duration,
    took: Duration,
    samples: Vec<TimelineSample>,
    addresses: usize,
    /// Of the first sample the bytes of each address, then of the second.
    address_bytes: Vec<u64>,
}

impl Timeline {
    /// How long each sample is, the last one apart.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// From the beginning to the end.
    pub fn took(&self) -> Duration {
        self.took
    }

    /// In the order of time.
    pub fn samples(&self) -> &[TimelineSample] {
        &self.samples
    }

    /// How long one sample is.
    pub fn length(&self, sample: usize) -> Duration {
        self.took
            .saturating_sub(self.begin(sample))
            .min(self.interval)
    }

    /// For how long of a sample bytes were moving and nothing was waited for.
    pub fn moving(&self, sample: usize) -> Duration {
        let other = self.samples.get(sample);
        let other = other.map_or(Duration::ZERO, |it| it.connecting + it.stalls.all());
        self.length(sample).saturating_sub(other)
    }

    /// Of how many addresses of the peer it is known what went by them. At a receiver of none.
    pub fn addresses(&self) -> usize {
        self.addresses
    }

    /// Bytes that were given to the network for one address, sample by sample.
    pub fn address_bytes(&self, address: usize) -> impl Iterator<Item = u64> {
        let all = self.address_bytes.chunks(self.addresses.max(1));
        all.map(move |sample| sample.get(address).copied().unwrap_or(0))
    }

    fn begin(&self, sample: usize) -> Duration {
        self.interval
            .saturating_mul(u32::try_from(sample).unwrap_or(u32::MAX))
    }
}

/// Makes a [`Timeline`] while a stream goes on. It allocates when it is made, and never after.
#[derive(Debug, Clone)]
pub(crate) struct TimelineRecorder {
    began: Instant,
    timeline: Timeline,
}

impl TimelineRecorder {
    /// From now on, for a peer with so many addresses.
    pub(crate) fn new(addresses: usize, now: Instant) -> Self {
        Self {
            began: now,
            timeline: Timeline {
                interval: FIRST_INTERVAL,
                took: Duration::ZERO,
                samples: Vec::with_capacity(SAMPLES_MAX),
                addresses,
                address_bytes: Vec::with_capacity(SAMPLES_MAX * addresses),
            },
        }
    }

    /// This was waited for.
    pub(crate) fn on_waited(&mut self, what: Stall, from: Instant, to: Instant) {
        self.spread(from, to, |sample, time| match what {
            Stall::Connecting => sample.connecting += time,
            what => sample.stalls.add(what, time),
        });
    }

    /// A thread is done with reading, which took so long, so much of it for the hash.
    pub(crate) fn on_read(&mut self, took: Duration, hash_time: Duration, now: Instant) {
        self.spread_back(took, now, |sample, time| sample.read_time += time);
        self.spread_back(hash_time, now, |sample, time| sample.hash_time += time);
    }

    /// A thread is done with writing, which took so long, so much of it for the hash.
    pub(crate) fn on_written(&mut self, took: Duration, hash_time: Duration, now: Instant) {
        self.spread_back(took, now, |sample, time| sample.write_time += time);
        self.spread_back(hash_time, now, |sample, time| sample.hash_time += time);
    }

    /// So many bytes have moved; by this address of the peer, if it is one of several.
    pub(crate) fn on_bytes(&mut self, bytes: u64, address: Option<usize>, now: Instant) {
        let at = self.sample_of(now);
        let timeline = &mut self.timeline;
        timeline.samples[at].bytes += bytes;
        if let Some(address) = address.filter(|address| *address < timeline.addresses) {
            timeline.address_bytes[at * timeline.addresses + address] += bytes;
        }
    }

    /// It ends now.
    pub(crate) fn finish(mut self, now: Instant) -> Timeline {
        let last = self.sample_of(now);
        self.timeline.took = self.since(now);
        // What happened at the very end of an interval belongs to it.
        if last > 0 && self.timeline.length(last) == Duration::ZERO {
            self.timeline.merge(last, last - 1);
            self.timeline.truncate(last);
        }
        self.timeline
    }

    fn since(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.began)
    }

    /// The same for time that ends now; what would be before the beginning is within its first
    /// interval.
    fn spread_back(
        &mut self,
        took: Duration,
        now: Instant,
        add: impl Fn(&mut TimelineSample, Duration),
    ) {
        let before = took.saturating_sub(self.since(now));
        if before > Duration::ZERO {
            let first = self.sample_of(self.began);
            add(&mut self.timeline.samples[first], before);
        }
        let from = self.began + self.since(now).saturating_sub(took);
        self.spread(from, now, add);
    }

    /// Gives each interval its part of the time between two moments.
    fn spread(&mut self, from: Instant, to: Instant, add: impl Fn(&mut TimelineSample, Duration)) {
        self.sample_of(to);
        let (mut from, to) = (self.since(from), self.since(to));
        while from < to {
            let at = self.timeline.sample_at(from);
            let until = self.timeline.begin(at + 1).min(to);
            add(&mut self.timeline.samples[at], until - from);
            from = until;
        }
    }

    /// The number of the sample of this moment, which is there behind this call, and so are all
    /// before it.
    fn sample_of(&mut self, at: Instant) -> usize {
        let since = self.since(at);
        while since >= self.timeline.begin(SAMPLES_MAX) {
            self.timeline.halve();
        }
        let at = self.timeline.sample_at(since);
        let all = self.timeline.samples.len().max(at + 1);
        self.timeline.samples.resize(all, TimelineSample::default());
        let addresses = self.timeline.addresses;
        self.timeline.address_bytes.resize(all * addresses, 0);
        at
    }
}

impl Timeline {
    fn sample_at(&self, since: Duration) -> usize {
        usize::try_from(since.as_nanos() / self.interval.as_nanos()).unwrap_or(usize::MAX)
    }

    /// Each two samples become one.
    fn halve(&mut self) {
        self.interval *= 2;
        let samples = self.samples.len();
        for from in 1..samples {
            match from % 2 {
                0 => self.put(from, from / 2),
                _ => self.merge(from, from / 2),
            }
        }
        self.truncate(samples.div_ceil(2));
    }

    fn put(&mut self, from: usize, into: usize) {
        self.samples[into] = self.samples[from];
        let (addresses, from) = (self.addresses, from * self.addresses);
        let range = from..from + addresses;
        self.address_bytes.copy_within(range, into * addresses);
    }

    fn merge(&mut self, from: usize, into: usize) {
        let other = self.samples[from];
        self.samples[into].add(&other);
        for address in 0..self.addresses {
            let bytes = self.address_bytes[from * self.addresses + address];
            self.address_bytes[into * self.addresses + address] += bytes;
        }
    }

    fn truncate(&mut self, samples: usize) {
        self.samples.truncate(samples);
        self.address_bytes.truncate(samples * self.addresses);
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/timeline.rs"]
mod tests;
