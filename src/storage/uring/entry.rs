//! `entry`: how the kernel is told of one operation.

use io_uring::{opcode, squeue, types};

use super::request::{Part, Request, Target};
use crate::storage::Direction;

/// The entry of the submission queue for a part of a request.
#[inline]
pub(super) fn entry(request: &Request, part: Part) -> squeue::Entry {
    let mut flags = squeue::Flags::empty();
    let file = match part.file {
        Target::Fd(fd) => types::Fd(fd),
        Target::Registered(slot) => {
            flags |= squeue::Flags::FIXED_FILE;
            types::Fd(slot.index() as i32)
        }
    };
    if part.by_worker {
        flags |= squeue::Flags::ASYNC;
    }
    let memory = request.memory.wrapping_add(part.at);
    let (len, offset) = (part.len, request.offset + part.at as u64);
    let entry = match (request.direction, request.region) {
        (Direction::Read, None) => opcode::Read::new(file, memory, len).offset(offset).build(),
        (Direction::Write, None) => opcode::Write::new(file, memory, len).offset(offset).build(),
        (Direction::Read, Some(slot)) => opcode::ReadFixed::new(file, memory, len, slot.index())
            .offset(offset)
            .build(),
        (Direction::Write, Some(slot)) => opcode::WriteFixed::new(file, memory, len, slot.index())
            .offset(offset)
            .build(),
    };
    entry.flags(flags)
}
