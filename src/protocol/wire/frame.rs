//! A frame: several data messages in one, each behind its length.
//!
//! ```text
//!  u32 length │ message │ u32 length │ message │ ...
//! ```
//!
//! A message in a frame has the bytes that it would have by itself: framing, header, payload.

use std::ops::Range;

use super::{WireError, field};

/// Bytes in front of each message.
pub(crate) const LENGTH_LEN: usize = 4;

/// Messages of one frame, at most: each has an event at the receiver, which the few bytes of an
/// empty one must not multiply without a bound.
pub(crate) const MESSAGES_MAX: usize = 512;

/// Bytes of one frame, at most.
pub(crate) const FRAME_MAX: usize = 32 * 1024;

/// How many messages a frame of `len` bytes can have, at most.
pub(crate) fn count_max(len: usize) -> usize {
    (len / LENGTH_LEN).min(MESSAGES_MAX)
}

/// Writes what goes in front of a message of `len` bytes.
///
/// # Panics
///
/// When `out` is shorter than that, or `len` is no length of a message in a frame.
#[inline]
pub(crate) fn put_length(out: &mut [u8], len: usize) {
    let word = u32::try_from(len).expect("a frame is shorter than 4 GiB");
    out[..LENGTH_LEN].copy_from_slice(&word.to_le_bytes());
}

/// How far a frame was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FramePlace {
    /// Bytes that were read.
    at: usize,
    /// Messages that they are.
    pub(crate) count: usize,
}

/// The messages of a frame that came from a peer, in their order: where each lies. Ends with the
/// first error.
pub(crate) struct FrameMessages<'a> {
    bytes: &'a [u8],
    place: FramePlace,
}

/// Begins to read a frame.
pub(crate) fn messages(bytes: &[u8]) -> FrameMessages<'_> {
    messages_from(bytes, FramePlace::default())
}

/// Goes on to read a frame.
#[inline(always)]
pub(crate) fn messages_from(bytes: &[u8], place: FramePlace) -> FrameMessages<'_> {
    FrameMessages { bytes, place }
}

impl FrameMessages<'_> {
    /// How far it was read.
    #[inline(always)]
    pub(crate) fn place(&self) -> FramePlace {
        self.place
    }

    #[cold]
    fn fail(&mut self, error: WireError) -> Option<Result<Range<usize>, WireError>> {
        self.place.at = self.bytes.len();
        self.place.count = self.place.count.max(1);
        Some(Err(error))
    }
}

impl Iterator for FrameMessages<'_> {
    type Item = Result<Range<usize>, WireError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let FramePlace { at, count } = self.place;
        let rest = self.bytes.get(at..).unwrap_or_default();
        let Some((length, behind)) = rest.split_first_chunk::<LENGTH_LEN>() else {
            return match (rest.len(), count) {
                (0, 1..) => None,
                (len, _) => self.fail(WireError::Short {
                    len,
                    need: LENGTH_LEN,
                }),
            };
        };
        if count == MESSAGES_MAX {
            return self.fail(field("messages of a frame", MESSAGES_MAX as u64 + 1));
        }
        let len = u32::from_le_bytes(*length) as usize;
        if len > behind.len() {
            return self.fail(WireError::Short {
                len: behind.len(),
                need: len,
            });
        }
        let start = at + LENGTH_LEN;
        self.place = FramePlace {
            at: start + len,
            count: count + 1,
        };
        Some(Ok(start..start + len))
    }
}

/// Reads arbitrary bytes as a frame and checks what the reader promises.
///
/// # Panics
///
/// When it breaks a promise.
#[cfg(any(test, fuzzing))]
pub(super) fn exercise(bytes: &[u8]) {
    let (mut end, mut count, mut failed) = (0, 0, false);
    for message in messages(bytes) {
        assert!(!failed, "nothing comes behind an error");
        match message {
            Ok(range) => {
                assert_eq!(range.start, end + LENGTH_LEN, "one behind the other");
                assert!(range.end <= bytes.len(), "within the frame");
                (end, count) = (range.end, count + 1);
            }
            Err(_) => failed = true,
        }
    }
    assert!(count <= count_max(bytes.len()));
    assert_eq!(
        failed,
        count == 0 || end != bytes.len(),
        "all of it, or an error"
    );
}
