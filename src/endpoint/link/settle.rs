//! What a queue is read for before its endpoint closes.

use crate::fabric::{Completions, Cq};

/// Reads of the queue, at most, and so many in a row that must find nothing.
const SETTLE_READS_MAX: u32 = 256;
const SETTLE_EMPTY_READS: u32 = 16;

/// What the provider knows already it is made to deal with before the endpoint closes: `ofi_rxm`
/// answers what it finds in its own queue on connections that it has just closed, and crashes. What
/// completes meanwhile is added to `last`. Never blocks; bounded.
pub(crate) fn settle(cq: &Cq, last: &mut Completions) {
    let mut empty = 0;
    for _ in 0..SETTLE_READS_MAX {
        match cq.read(last) {
            Ok(0) => empty += 1,
            Ok(_) => empty = 0,
            Err(_) => return,
        }
        if empty == SETTLE_EMPTY_READS {
            return;
        }
    }
}
