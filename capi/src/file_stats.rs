//! `fcast_file_stats`: what was done with a file.

#![allow(unsafe_code)] // A promise to `pointer::write_sized`.

use std::time::Duration;

use fabricast::storage::IoStats;
use fabricast::storage::stats::DirectionStats;

use crate::pointer::Sized0;

/// What was done with a file in one direction.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct fcast_file_direction_stats {
    /// Operations that are over, failed ones too.
    pub operations: u64,
    /// Bytes that were moved, by failed operations too, as far as they got.
    pub bytes: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Bytes that went around the page cache.
    pub direct_bytes: u64,
    /// Of those, bytes that were copied through a bounce buffer.
    pub bounced_bytes: u64,
    /// All latencies added up, in nanoseconds.
    pub latency_sum_ns: u64,
    /// A bound below which half of the operations stayed, in nanoseconds, up to twice too large.
    pub latency_p50_ns: u64,
    /// The same of 99 of 100 operations.
    pub latency_p99_ns: u64,
}

/// What was done with a file.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct fcast_file_stats {
    /// sizeof(fcast_file_stats), set by the caller.
    pub size: usize,
    /// What was read.
    pub read: fcast_file_direction_stats,
    /// What was written.
    pub write: fcast_file_direction_stats,
}

// SAFETY: C's layout, a `usize` first; 0 is a value of all its fields.
unsafe impl Sized0 for fcast_file_stats {}

impl From<IoStats> for fcast_file_stats {
    fn from(of: IoStats) -> Self {
        Self {
            size: 0,
            read: (&of.read).into(),
            write: (&of.write).into(),
        }
    }
}

impl From<&DirectionStats> for fcast_file_direction_stats {
    fn from(of: &DirectionStats) -> Self {
        let quantile = |share| of.latency.quantile(share).map_or(0, nanoseconds);
        Self {
            operations: of.operations(),
            bytes: of.bytes(),
            errors: of.errors(),
            direct_bytes: of.direct_bytes,
            bounced_bytes: of.bounced_bytes,
            latency_sum_ns: nanoseconds(of.latency.total()),
            latency_p50_ns: quantile(0.5),
            latency_p99_ns: quantile(0.99),
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
