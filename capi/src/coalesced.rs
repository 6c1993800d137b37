//! Small messages in one buffer, read one by one.

#![allow(unsafe_code)] // Functions that C calls.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use fabricast::coalesce::{Format, FormatError, ReadPosition, SmallMessage, SmallMessages};

use crate::call::call;
use crate::pointer::{self, Out};
use crate::settings::out_of_range;
use crate::status::{Failure, fcast_status};

/// This library's format of small messages: with a magic number, a count and a length.
pub const FCAST_FORMAT_COMPACT: u32 = 0;
/// netio3's format of small messages, as its documentation describes it.
pub const FCAST_FORMAT_NETIO3: u32 = 1;

/// How far a buffer of small messages was read. All zeros: from its start. What is in it is the
/// library's.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_small_cursor {
    /// Bytes that were read.
    pub at: u64,
    /// The tag of the last message.
    pub tag: u64,
    /// Messages that were read.
    pub found: u32,
    /// 1: nothing comes any more.
    pub over: u32,
}

/// A small message, as it lies in its buffer.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_small_message {
    /// Whose it is.
    pub tag: u64,
    /// Its bytes, which are aligned to nothing.
    pub data: *const c_void,
    /// How many.
    pub len: usize,
    /// 0: fine; all else is the program's.
    pub status: u32,
    /// 0.
    pub reserved: u32,
}

pub(crate) fn format(number: u32) -> Result<Format, Failure> {
    match number {
        FCAST_FORMAT_COMPACT => Ok(Format::Compact),
        FCAST_FORMAT_NETIO3 => Ok(Format::Netio3),
        other => Err(out_of_range("format", other, "0 to 1")),
    }
}

/// Reads the next small messages of a buffer, such as the data of FCAST_EVENT_MESSAGE from a
/// buffered sender: at most `capacity`, `*count` of them, 0 when there are no more. They point into
/// the buffer. The cursor goes on from call to call. No byte is trusted. Any thread.
///
/// FCAST_DATA: the buffer is malformed behind what was read; afterwards there are no more.
///
/// # Safety
///
/// `data`: NULL, or `len` bytes, the same in each call; `cursor`: NULL, or writable; `messages`:
/// NULL, or room for `capacity`; `count`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_coalesced_next(
    format: u32,
    data: *const c_void,
    len: usize,
    cursor: *mut fcast_small_cursor,
    messages: *mut fcast_small_message,
    capacity: usize,
    count: *mut usize,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(count, "count") }?;
        // SAFETY: the caller's promise.
        let bytes = unsafe { pointer::bytes(data.cast::<u8>(), len, "data") }?;
        // SAFETY: the caller's promise.
        let places = unsafe { pointer::array_out(messages, capacity, "messages") }?;
        // SAFETY: the caller's promise.
        let cursor = unsafe { cursor.as_mut() }.ok_or_else(|| pointer::null("cursor"))?;
        let start = cursor.position();
        // A loop of its own for the usual one, which is not asked for with each message then.
        let (small, written, fault) = match self::format(format)? {
            Format::Compact => read(Format::Compact, bytes, start, places),
            other => read(other, bytes, start, places),
        };
        cursor.set(match fault {
            None => small.position(),
            // What stands in front of a fault is told first, and the fault by the next call.
            Some(_) if written > 0 => behind(self::format(format)?, bytes, start, written),
            Some(error) => {
                cursor.set(small.position());
                return Err(error.into());
            }
        });
        out.set(written);
        Ok(())
    })
}

/// Reads messages into places, up to the end or to a fault: how many there were.
#[inline(always)]
fn read<'m>(
    format: Format,
    bytes: &'m [u8],
    start: ReadPosition,
    places: &mut [MaybeUninit<fcast_small_message>],
) -> (SmallMessages<'m>, usize, Option<FormatError>) {
    let mut small = SmallMessages::resume(format, bytes, start);
    let mut written = 0;
    for place in places {
        match small.next() {
            Some(Ok(message)) => place.write(message.into()),
            None => break,
            Some(Err(error)) => return (small, written, Some(error)),
        };
        written += 1;
    }
    (small, written, None)
}

/// Where so many more messages were read.
#[cold]
#[inline(never)]
fn behind(format: Format, bytes: &[u8], start: ReadPosition, messages: usize) -> ReadPosition {
    let mut small = SmallMessages::resume(format, bytes, start);
    small.by_ref().take(messages).for_each(drop);
    small.position()
}

impl From<SmallMessage<'_>> for fcast_small_message {
    #[inline(always)]
    fn from(message: SmallMessage<'_>) -> Self {
        Self {
            tag: message.tag,
            data: message.bytes.as_ptr().cast::<c_void>(),
            len: message.bytes.len(),
            status: u32::from(message.status),
            reserved: 0,
        }
    }
}

impl fcast_small_cursor {
    fn position(&self) -> ReadPosition {
        ReadPosition {
            at: usize::try_from(self.at).unwrap_or(usize::MAX),
            tag: self.tag,
            found: self.found,
            over: self.over != 0,
        }
    }

    fn set(&mut self, position: ReadPosition) {
        *self = Self {
            at: position.at as u64,
            tag: position.tag,
            found: position.found,
            over: u32::from(position.over),
        };
    }
}
