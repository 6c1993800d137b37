//! `TransferRoute`: how one transfer is to be done, as the call, the handle and the settings say.

use super::Defaults;
use super::device;
use super::engine::{Engine, engine_for};
use super::file::File;
use super::io_buffer::RawMemory;
use super::plan::{Plan, Rules, Tasks};
use super::uring::engine::Uring;
use super::{BackEndChoice, DirectIo, Direction, FileErrorKind, IoOptions, Place};
use crate::cuda::Context;

/// A transfer that is cut for the sake of overlapping its copies has no tasks shorter than this, in
/// bytes, but for the last.
const BOUNCE_TASK_MIN: usize = 512 << 10;

/// Where the choice is open, an aligned direct read that would be cut for several threads goes by
/// io_uring from this length on, in bytes: one thread keeps the device as busy, for less of the
/// processor. A shorter one is done before there is anything to gain. Not so reads by one thread,
/// since a single pread(2) keeps a device busy, and not writes: those that change how a file lies
/// on the device go through the kernel's workers, which takes more of the processor than threads
/// do.
const RING_MIN: usize = 4 << 20;

/// How a transfer is done.
#[derive(Clone, Copy)]
pub(crate) struct TransferRoute {
    pub(crate) engine: &'static dyn Engine,
    /// Of GPU memory: the CUDA context that it belongs to, looked up once for all tasks.
    pub(crate) context: Option<Context>,
    pub(crate) tasks: Tasks,
    /// Around the page cache, where alignment allows.
    pub(crate) direct: bool,
    /// The size of bounce buffers, in bytes.
    pub(crate) bounce: usize,
    /// Copies are to overlap with transfers: threads beside the pool's take part.
    pub(crate) helpers: bool,
}

impl TransferRoute {
    /// Whether it is a transfer of GPU memory that is so short that the thread that asks for it
    /// does it, staged, before the call returns: another thread would take longer to wake up.
    pub(crate) fn is_done_at_once(file: &File, memory: RawMemory, options: &IoOptions) -> bool {
        let choice = options.back_end.unwrap_or_else(|| file.used().back_end);
        let threshold = options.gds_threshold;
        matches!(memory.place(), Place::Device { .. })
            && choice != BackEndChoice::CuFile
            && memory.len() < threshold.unwrap_or_else(|| Defaults::get().gds_threshold)
    }

    /// For a transfer that `threads` may work on; 1: it is not to be cut, unless that is for
    /// overlapping copies.
    pub(crate) fn new(
        file: &File,
        direction: Direction,
        memory: RawMemory,
        offset: u64,
        options: &IoOptions,
        threads: usize,
    ) -> Result<Self, FileErrorKind> {
        let settings = Defaults::get();
        let len = memory.len();
        let used = file.used();
        let choice = options.back_end.unwrap_or(used.back_end);
        let threshold = options.gds_threshold.unwrap_or(settings.gds_threshold);
        let engine = engine_for(file, choice, memory.place(), threshold)?;
        let context = device::prepare(memory.place(), options.sync_default_stream.unwrap_or(true))?;
        let direct = wants_direct(options.direct.unwrap_or(used.direct), direction, len);
        let rules = Rules {
            direction,
            direct: direct && file.direct().is_some(),
            alignment: file.alignment(),
            page: rustix::param::page_size(),
        };
        let asked = options.task_size.unwrap_or(settings.task_size);
        let size = engine.task_size(asked, len);
        let address = memory.host().map_or(0, |ptr| ptr.addr().get());
        let helpers = engine.copies_alternate() && Plan::new(rules, address, offset, len).bounces();
        let tasks = if helpers {
            // Each thread has a helper.
            let share = len.div_ceil(2 * threads).max(BOUNCE_TASK_MIN);
            let most = size.min(settings.bounce_buffer_size);
            Tasks::new(rules.boundary(), offset, len, share.min(most))
        } else if threads == 1 || size >= len {
            Tasks::whole(len)
        } else {
            Tasks::new(rules.boundary(), offset, len, size)
        };
        let is_open = choice == BackEndChoice::Auto && matches!(memory.place(), Place::Host { .. });
        let serves = || rules.direct && !helpers && tasks.count() > 1 && Uring::is_allowed();
        let (engine, tasks) = match direction {
            Direction::Read if is_open && len >= RING_MIN && serves() => {
                (&Uring as &'static dyn Engine, Tasks::whole(len))
            }
            _ => (engine, tasks),
        };
        Ok(Self {
            engine,
            context,
            tasks,
            direct,
            bounce: settings.bounce_buffer_size,
            helpers,
        })
    }
}

/// Whether a transfer of `len` bytes is to go around the page cache.
#[inline]
pub(crate) fn wants_direct(direct: DirectIo, direction: Direction, len: usize) -> bool {
    match direct {
        DirectIo::On => true,
        DirectIo::Off => false,
        DirectIo::Auto => goes_direct_by_itself(direction, len),
    }
}

/// What the settings say.
fn goes_direct_by_itself(direction: Direction, len: usize) -> bool {
    let settings = Defaults::get();
    len >= settings.auto_direct_io_threshold
        && match direction {
            Direction::Read => settings.auto_direct_io_read,
            Direction::Write => settings.auto_direct_io_write,
        }
}
