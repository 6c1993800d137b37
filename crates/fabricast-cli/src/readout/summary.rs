//! What a builder counted: sent to each source at the end of the run, and compared there.

use fabricast::metrics::Latencies;

use crate::readout::wire::{ANSWER_LEN_MAX, Volume};

/// What a builder counted of one source, and the times of all.
#[derive(Debug, Clone)]
pub(crate) struct Summary {
    /// What came from this source.
    pub(crate) received: Volume,
    /// Events that were answered to it as built.
    pub(crate) built: u64,
    /// Events that were answered to it as lost: their fragments did not all come in time.
    pub(crate) lost: u64,
    /// Fragments that came twice.
    pub(crate) duplicates: u64,
    /// Fragments out of order, or behind a gap.
    pub(crate) order_errors: u64,
    /// Fragments whose bytes were wrong.
    pub(crate) content_errors: u64,
    /// Fragments whose check was timed, and the nanoseconds that this took.
    pub(crate) timed: u64,
    pub(crate) timed_ns: u64,
    /// What the builder's process used since it said Ready.
    pub(crate) cpu_ns: u64,
    pub(crate) allocations: u64,
    /// From a fragment's commit to the event that was complete with it; of all sources with the
    /// builder's clock.
    pub(crate) latency: Latencies,
}

const COUNTS: usize = 11;
const _: () = assert!((COUNTS + Latencies::WORDS) * 8 <= ANSWER_LEN_MAX);

impl Summary {
    pub(crate) fn words(&self) -> impl Iterator<Item = u64> {
        let counts: [u64; COUNTS] = [
            self.received.fragments,
            self.received.bytes,
            self.built,
            self.lost,
            self.duplicates,
            self.order_errors,
            self.content_errors,
            self.timed,
            self.timed_ns,
            self.cpu_ns,
            self.allocations,
        ];
        counts.into_iter().chain(self.latency.to_words())
    }

    pub(crate) fn from_words(mut words: impl Iterator<Item = u64>) -> Option<Self> {
        let mut next = || words.next();
        Some(Self {
            received: Volume {
                fragments: next()?,
                bytes: next()?,
            },
            built: next()?,
            lost: next()?,
            duplicates: next()?,
            order_errors: next()?,
            content_errors: next()?,
            timed: next()?,
            timed_ns: next()?,
            cpu_ns: next()?,
            allocations: next()?,
            latency: Latencies::from_words(&words.collect::<Vec<_>>())?,
        })
    }
}
