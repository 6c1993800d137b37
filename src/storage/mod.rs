//! Files: cuFile, so far.

pub mod cufile;
