//! Files.

mod back_end;
// What operations will use.
#[allow(dead_code)]
pub mod stats;
#[allow(dead_code)]
mod thread_pool;

pub use back_end::{BackEnd, Direction};
pub use stats::IoStats;
pub use thread_pool::{ThreadPool, ThreadPoolStats};
