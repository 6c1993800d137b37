//! `BackEnd` and `Direction`: which way bytes went, and by what.

use std::fmt;

/// Whether bytes go out of a file or into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the file into memory.
    Read,
    /// From memory into the file.
    Write,
}

impl Direction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Read, Self::Write];

    /// Its word.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// What moved the bytes of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BackEnd {
    /// pread(2) and pwrite(2), on threads.
    Posix,
    /// io_uring(7).
    IoUring,
    /// cuFile, between the file and GPU memory; whether really without the host's memory, cuFile's
    /// own statistics say.
    CuFile,
    /// Between the file and GPU memory through pinned host memory of ours.
    Staged,
}

impl BackEnd {
    /// All of them, in the order in which statistics list them.
    pub const ALL: [Self; 4] = [Self::Posix, Self::IoUring, Self::CuFile, Self::Staged];

    /// Its word.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Posix => "posix",
            Self::IoUring => "io_uring",
            Self::CuFile => "cufile",
            Self::Staged => "staged",
        }
    }

    /// Its place in [`ALL`](Self::ALL).
    pub(super) const fn index(self) -> usize {
        match self {
            Self::Posix => 0,
            Self::IoUring => 1,
            Self::CuFile => 2,
            Self::Staged => 3,
        }
    }
}

impl fmt::Display for BackEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_back_end_is_at_its_place() {
        for (place, back_end) in BackEnd::ALL.into_iter().enumerate() {
            assert_eq!(back_end.index(), place, "{back_end}");
        }
    }
}
