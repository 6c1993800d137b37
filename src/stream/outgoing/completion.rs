//! What a receiver says when it is complete, against what was asked of it.

use crate::stream::StreamViolation;
use crate::stream::wire::{Checks, Complete, OpenFlags};

/// Whether a receiver has checked all that was asked for, and removed nothing unless it was asked.
///
/// # Errors
/// It has not.
pub(super) fn check_asked(flags: OpenFlags, complete: &Complete) -> Result<(), StreamViolation> {
    let asked = [
        (OpenFlags::CRC32C, Checks::CRC32C),
        (OpenFlags::BLAKE3, Checks::BLAKE3),
        (OpenFlags::SYNC, Checks::SYNC),
        (OpenFlags::READ_BACK, Checks::READ_BACK),
    ];
    let lacks = |(flag, check): &&(OpenFlags, Checks)| {
        flags.contains(*flag) && !complete.checks.contains(*check)
    };
    if complete.deleted > 0 && !flags.contains(OpenFlags::DELETE) {
        return Err(StreamViolation::Count {
            what: "the number of files that the peer removed",
            value: complete.deleted,
        });
    }
    let Some((flag, _)) = asked.iter().find(lacks) else {
        return Ok(());
    };
    Err(StreamViolation::Count {
        what: "the checks: one that was asked for was not done",
        value: flag.bits().into(),
    })
}
