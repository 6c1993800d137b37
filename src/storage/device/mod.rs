//! GPU memory: through cuFile, or staged through pinned memory of the host.
//!
//! ```text
//!  file ══ cuFile ═══════════════════════════════► GPU memory     CuFileEngine
//!  file ── pread, O_DIRECT or not ── pinned ─ copy ─► GPU memory   Staged: while one half is copied, the other is read
//! ```
//!
//! Which one, [`Route`] knows for each file; it is looked for at the first need, since opening cuFile's driver takes half a
//! second that who moves host memory alone must not pay.

mod engine;
mod lane;
mod memory;
mod route;
mod staged;
mod stream_io;

/// Frees the pinned memory of the host that is kept for the next transfers of GPU memory, and says how many bytes that were.
pub fn pinned_buffers_clear() -> usize {
    Cuda::ready().map_or(0, lane::clear)
}

pub(crate) use engine::{engine_for, prepare};
pub use memory::DeviceMemory;
pub(crate) use route::Route;
pub use stream_io::{StreamFuture, StreamIoOutcome};

use crate::cuda::Cuda;
