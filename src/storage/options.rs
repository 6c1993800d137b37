//! `IoOptions`: what one call may ask for; and the choices that files and calls have, `DirectIo`
//! and `BackEndChoice`.

use super::ThreadPool;

/// Whether transfers go around the page cache (O_DIRECT).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DirectIo {
    /// As the settings `auto_direct_io_read` and `auto_direct_io_write` say, and only transfers of
    /// 64 KiB and more. The default.
    #[default]
    Auto,
    /// Wherever the file system allows it: all but the edges of what is not aligned. Where the file
    /// system does not, buffered.
    On,
    /// Never. A handle that is opened so has no second descriptor.
    Off,
}

/// Which back end is to move the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum BackEndChoice {
    /// The best that works for this memory and this file. The default.
    ///
    /// For the host's memory: io_uring for aligned reads around the page cache of 4 MiB and more
    /// that would be cut for several threads (longer than `task_size`), where the kernel allows it
    /// and the setting `io_uring` does; else POSIX. A [`Batch`](super::Batch) goes by io_uring
    /// wherever it may. For GPU memory: cuFile where it works, else staged.
    #[default]
    Auto,
    /// pread(2) and pwrite(2).
    Posix,
    /// io_uring(7); where the kernel does not allow it, POSIX.
    IoUring,
    /// cuFile; an error where it does not work.
    CuFile,
}

/// What one call asks for. `None` stands for the setting at the time of the call, or the handle's
/// own choice.
///
/// ```
/// use fabricast::storage::{DirectIo, IoOptions};
/// let options =
///     IoOptions { task_size: Some(1 << 20), direct: Some(DirectIo::On), ..IoOptions::default() };
/// assert!(options.pool.is_none());
/// ```
#[derive(Debug, Clone, Default)]
pub struct IoOptions {
    /// Bytes of one task, at least 1; rounded up to pages, since tasks begin at pages of the file.
    /// Default: the setting `task_size`.
    ///
    /// What one thread does best as a whole is cut less: a task of GPU memory that is staged has
    /// `bounce_buffer_size` bytes at least (the setting; 16 MiB), and a transfer by io_uring is one
    /// task. A transfer through bounce buffers of the host's memory is cut more, down to 512 KiB.
    pub task_size: Option<usize>,
    /// GPU memory: below this many bytes, the transfer is staged by the calling thread, also in
    /// [`pread`](super::FileHandle::pread) and [`pwrite`](super::FileHandle::pwrite), whose future
    /// is ready then; unless [`BackEndChoice::CuFile`] was asked for. Default: the setting
    /// `gds_threshold`.
    pub gds_threshold: Option<usize>,
    /// The threads that do it. Default: the pool of the process, or of the file's block device
    /// where the settings say so.
    pub pool: Option<ThreadPool>,
    /// GPU memory: waits for the CUDA default stream first. Default: yes.
    pub sync_default_stream: Option<bool>,
    /// Around the page cache or through it. Default: the handle's.
    pub direct: Option<DirectIo>,
    /// Which back end. Default: the handle's.
    pub back_end: Option<BackEndChoice>,
}
