//! `FileHoles`: where a file has no bytes but zeros, as its file system says.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// Shorter holes are read: no block is shorter, but the last one of a file.
const HOLE_MIN: u64 = 4 << 10;

/// The holes of a file, in order.
#[derive(Debug, Default)]
pub(super) struct FileHoles(Box<[Range<u64>]>);

impl FileHoles {
    /// The holes of an open file of this size, at most `most` of them: the rest is taken for data,
    /// and so is all of a file whose file system does not tell.
    pub(super) fn of(file: BorrowedFd<'_>, size: u64, most: usize) -> Self {
        let mut holes = Vec::new();
        let mut at = 0;
        while at < size && holes.len() < most {
            let data = match seek(file, SeekFrom::Data(at)) {
                Ok(data) => data.min(size),
                // There is none behind.
                Err(Errno::NXIO) => size,
                Err(_) => break,
            };
            if data.saturating_sub(at) >= HOLE_MIN {
                holes.push(at..data);
            }
            match seek(file, SeekFrom::Hole(data)) {
                Ok(hole) if hole > data => at = hole,
                _ => break,
            }
        }
        Self(holes.into())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether all of these bytes of the file lie in a hole.
    pub(super) fn contain(&self, bytes: &Range<u64>) -> bool {
        let next = self.0.partition_point(|hole| hole.end < bytes.end);
        self.0
            .get(next)
            .is_some_and(|hole| hole.start <= bytes.start)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn holes_are_what_is_not_data() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(10 << 20).expect("sparse");
        for at in [1 << 20, 4 << 20] {
            file.write_all_at(&[1; 100_000], at).expect("written");
        }
        let holes = FileHoles::of(file.as_fd(), 10 << 20, 100);
        if holes.len() == 0 {
            return println!("SKIPPED: the file system of temporary files has no holes");
        }
        assert_eq!(holes.len(), 3);
        let contain = |begin: u64, end: u64| holes.contain(&(begin..end));
        assert!(contain(0, 1 << 20) && contain(5 << 20, 10 << 20) && contain(2 << 20, 3 << 20));
        assert!(!contain(0, (1 << 20) + 1), "the last byte is data");
        assert!(!contain((1 << 20) + 99_999, 2 << 20), "the first one is");
        assert!(!contain(0, 10 << 20) && !contain(9 << 20, (10 << 20) + 1));
        let few = FileHoles::of(file.as_fd(), 10 << 20, 1);
        assert!(few.contain(&(0..1 << 20)) && !few.contain(&(5 << 20..6 << 20)));
    }
}
