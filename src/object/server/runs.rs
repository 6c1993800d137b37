//! `RunList`: where the bytes of a transfer lie here, and which of them go next.

use std::ffi::c_void;

use smallvec::SmallVec;

use crate::endpoint::link::iov::IovList;

/// One run of memory.
#[derive(Clone, Copy, Debug)]
struct LocalRun {
    base: *const u8,
    len: usize,
    desc: *mut c_void,
}

/// The runs of one transfer, in their order. It names memory, and touches none.
#[derive(Debug, Default)]
pub(super) struct RunList {
    runs: SmallVec<[LocalRun; 2]>,
    /// The run that the next byte lies in, and where in it.
    at: usize,
    within: usize,
}

impl RunList {
    /// One run more; nothing where it has no byte.
    pub(super) fn push(&mut self, base: *const u8, len: usize, desc: *mut c_void) {
        if len > 0 {
            self.runs.push(LocalRun { base, len, desc });
        }
    }

    /// Names what goes next: at most so many bytes in so many segments. How many bytes that are.
    pub(super) fn next(&self, segments: usize, max_bytes: u64, iov: &mut IovList) -> usize {
        let mut room = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        let (mut within, mut named) = (self.within, 0);
        for run in self.runs[self.at..].iter().take(segments) {
            let len = (run.len - within).min(room);
            if len == 0 {
                break;
            }
            // Of a device's memory it is a number only, so nothing is said of an allocation.
            iov.push(run.base.wrapping_add(within), len, run.desc);
            (within, named, room) = (0, named + len, room - len);
        }
        named
    }

    /// So many bytes went.
    pub(super) fn advance(&mut self, mut bytes: usize) {
        while let Some(run) = self.runs.get(self.at) {
            let left = run.len - self.within;
            if bytes < left {
                self.within += bytes;
                return;
            }
            bytes -= left;
            (self.at, self.within) = (self.at + 1, 0);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn list(lens: &[usize]) -> RunList {
        let mut list = RunList::default();
        let mut base = 0x1000;
        for &len in lens {
            list.push(
                std::ptr::without_provenance(base),
                len,
                std::ptr::null_mut(),
            );
            base += 0x1000;
        }
        list
    }

    /// Every byte goes once, in its order, whatever the limits are.
    #[test]
    fn pieces_are_all_of_the_bytes_in_their_order() {
        let lens = [3, 1, 0, 7, 2];
        let all: Vec<usize> = (0..5)
            .flat_map(|run| (0..lens[run]).map(move |at| (run + 1) * 0x1000 + at))
            .collect();
        for segments in 1..=5 {
            for max in 1..=14 {
                let (mut list, mut got) = (list(&lens), Vec::new());
                loop {
                    let mut iov = IovList::new();
                    let named = list.next(segments, max, &mut iov);
                    assert!(iov.len() <= segments && named as u64 <= max);
                    assert_eq!(iov.len_bytes(), named);
                    for it in iov.iov() {
                        let base = it.iov_base.addr();
                        // Bases lie apart, but for what was empty.
                        got.extend(base..base + it.iov_len);
                    }
                    if named == 0 {
                        break;
                    }
                    list.advance(named);
                }
                assert_eq!(got, all, "{segments} segments, {max} bytes");
            }
        }
    }
}
