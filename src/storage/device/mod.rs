//! GPU memory: through cuFile, or staged through pinned memory of the host.
//!
//! ```text
//!  file ══ cuFile ══════════════════════════════════► GPU memory   CuFileEngine
//!  file ── pread, O_DIRECT or not ── pinned ─ copy ─► GPU memory   Staged
//! ```
//!
//! Staged: while one half is copied, the other is read.
//!
//! Which one, [`Route`] knows for each file; it is looked for at the first need, since opening
//! cuFile's driver takes half a second that who moves host memory alone must not pay.

mod engine;
mod lane;
mod memory;
mod route;
mod staged;
mod stream_io;

/// Frees the pinned memory of the host that is kept for the next staged transfers of GPU memory,
/// and says how many bytes that were. [`bounce_buffers_clear`](super::bounce_buffers_clear) does
/// this and more.
///
/// A staged transfer has two pieces of pinned memory at a time, of a quarter of the setting
/// `bounce_buffer_size` each. At most 32 of them, and no more bytes than `bounce_pool_size`, are
/// kept: 128 MiB with the default settings. Those of another size are freed at the first transfer
/// after the setting was changed.
pub fn pinned_buffers_clear() -> usize {
    lane::clear()
}

pub(crate) use engine::{engine_for, prepare};
pub use memory::DeviceMemory;
pub(crate) use route::Route;
pub use stream_io::StreamFuture;
