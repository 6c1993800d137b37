//! Files.

pub(crate) mod uring;
