//! Peers that die, stop, lie or come and go, ends in every order, and the crashes of libfabric that
//! we know of.
//!
//! Most of these tests count what belongs to the whole process: they take turns (`common::alone`).

mod chaos;
mod churn;
#[path = "../common/mod.rs"]
mod common;
mod counted;
mod hostile;
mod shutdown;
mod spike;
