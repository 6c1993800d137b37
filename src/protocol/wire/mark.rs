//! Marks: the remote CQ data of a message, which says of which kind and connection it is, and in
//! the RDM form its number.

use super::ControlKind;

/// How many bits of the CQ data are the connection index: the low ones.
pub(crate) const INDEX_BITS: u32 = 24;

/// Which bits those are.
pub(crate) const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

/// The bit that says that a mark is a short one: kinds are below 128.
const SHORT: u32 = 1 << 31;

/// Where the low two bits of the kind lie in a short mark: those of [`ControlKind::DATA`] and of
/// what else is numbered.
const SHORT_KIND: u32 = 29;

/// Where the number lies in a short mark.
const SHORT_NUMBER: u32 = 15;

/// The connection index in a short mark.
pub(crate) const SHORT_INDEX_MASK: u32 = (1 << SHORT_NUMBER) - 1;

/// Numbers of messages with short marks are modulo this.
pub(crate) const SHORT_NUMBERS: u32 = 1 << (SHORT_KIND - SHORT_NUMBER);

/// The most data messages that may be granted with short marks: each may be two, and together they
/// are half of the numbers.
pub(crate) const SHORT_DEPTH_MAX: u32 = SHORT_NUMBERS / 4;

/// RDM form: the mark of numbered messages of a kind (32, 34, 35, 37), without their numbers. Where
/// a provider has but 4 bytes of CQ data (`short`), the number has to go in there, too.
pub(crate) fn mark(short: bool, kind: ControlKind, index: u32) -> u32 {
    if short {
        SHORT | u32::from(kind.0 & 3) << SHORT_KIND | index & SHORT_INDEX_MASK
    } else {
        cq_data(kind, index)
    }
}

/// Whether a mark is a short one.
pub(crate) fn is_short(mark: u32) -> bool {
    mark & SHORT != 0
}

/// RDM form: the CQ data of a data message, with its number: in the high half (modulo 2^32), or
/// between the bits of a short mark.
#[inline]
pub(crate) fn numbered(mark: u32, number: u64) -> u64 {
    if is_short(mark) {
        return u64::from(mark | (number as u32 % SHORT_NUMBERS) << SHORT_NUMBER);
    }
    number << u32::BITS | u64::from(mark)
}

/// RDM form: the same CQ data with a number that is lower by so much.
pub(crate) fn renumbered(cq_data: u64, by: u32) -> u64 {
    let (mark, number) = split_numbered(cq_data);
    numbered(mark, number.wrapping_sub(by).into())
}

/// RDM form: the mark in CQ data, and the number of a data message (with a short mark: modulo
/// [`SHORT_NUMBERS`]).
pub(crate) fn split_numbered(cq_data: u64) -> (u32, u32) {
    let (mark, high) = (cq_data as u32, (cq_data >> u32::BITS) as u32);
    if is_short(mark) && high == 0 {
        let number = mark >> SHORT_NUMBER & (SHORT_NUMBERS - 1);
        return (mark & !(number << SHORT_NUMBER), number);
    }
    (mark, high)
}

/// The CQ data of a control message; the index is 0 where the endpoint itself is the connection.
pub(crate) fn cq_data(kind: ControlKind, index: u32) -> u32 {
    u32::from(kind.0) << 24 | index & INDEX_MASK
}

/// Kind and connection index of a message that came with CQ data.
pub(crate) fn split_cq_data(cq_data: u32) -> (ControlKind, u32) {
    if is_short(cq_data) {
        let kind = match ControlKind::DATA.0 | (cq_data >> SHORT_KIND & 3) as u8 {
            // What is written has no mark, so frames have these bits.
            kind if kind == ControlKind::WRITTEN.0 => ControlKind::FRAME,
            kind => ControlKind(kind),
        };
        return (kind, cq_data & SHORT_INDEX_MASK);
    }
    (ControlKind((cq_data >> 24) as u8), cq_data & INDEX_MASK)
}

/// The immediate data of a one-sided write: whose window it is, and what the application says.
pub(crate) fn written_data(mark: u32, data: u32) -> u64 {
    u64::from(data) << 32 | u64::from(cq_data(ControlKind::WRITTEN, mark))
}

/// The window's mark and the application's data, if these are the immediate data of a one-sided
/// write.
pub(crate) fn split_written(immediate: u64) -> Option<(u32, u32)> {
    let (kind, mark) = split_cq_data(immediate as u32);
    let is_it = kind == ControlKind::WRITTEN && !is_short(immediate as u32);
    is_it.then_some((mark, (immediate >> 32) as u32))
}
