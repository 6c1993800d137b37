//! What files and transfers do where nothing else was asked for, in the whole process.

#![allow(unsafe_code)] // Functions that C calls.

use fabricast::storage::{CompatMode, Defaults, Settings};

use crate::call::call;
use crate::file::{FCAST_COMPAT_AUTO, FCAST_COMPAT_OFF, FCAST_COMPAT_ON};
use crate::pointer::{self, Sized0};
use crate::status::{Failure, fcast_status};

/// In settings that may be left as they are: on.
pub const FCAST_SWITCH_ON: u32 = 1;
/// In settings that may be left as they are: off.
pub const FCAST_SWITCH_OFF: u32 = 2;

/// What files and transfers of the process do where nothing else was asked for. The values at the
/// start are those of variables: FABRICAST_NUM_THREADS and so on, or those of KvikIO.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct fcast_file_defaults {
    /// sizeof(fcast_file_defaults).
    pub size: usize,
    /// Threads of the pool, 1 to 1,024. Default 8.
    pub num_threads: usize,
    /// Bytes of one task. Default 4 MiB.
    pub task_size: usize,
    /// Transfers of GPU memory of fewer bytes are done by the calling thread. Default 16 KiB.
    pub gds_threshold: usize,
    /// Bytes of the longest bounce buffer. Default 16 MiB.
    pub bounce_buffer_size: usize,
    /// Bytes that all bounce buffers may take. Default 256 MiB.
    pub bounce_pool_size: usize,
    /// Transfers of fewer bytes go through the page cache. Default 64 KiB.
    pub auto_direct_io_threshold: usize,
    /// Operations that wait for a thread at most. Default 4,096.
    pub thread_pool_queue: usize,
    /// Pieces in flight on a ring of io_uring's. Default 32.
    pub io_uring_depth: usize,
    /// FCAST_COMPAT_AUTO, FCAST_COMPAT_ON or FCAST_COMPAT_OFF, for files that are opened later.
    pub compat: u32,
    /// Whether reads go around the page cache. Default off.
    pub auto_direct_io_read: u32,
    /// Whether writes go around the page cache. Default on.
    pub auto_direct_io_write: u32,
    /// Whether reads around the page cache read what lies around them, too. Default off.
    pub auto_direct_io_read_overread: u32,
    /// Whether each block device has a pool of its own. Default off.
    pub thread_pool_per_block_device: u32,
    /// Whether io_uring is used. Default on.
    pub io_uring: u32,
}

// SAFETY: C's layout, a `usize` first; 0 is a value of all its fields.
unsafe impl Sized0 for fcast_file_defaults {}

fn switch(on: bool) -> u32 {
    if on {
        FCAST_SWITCH_ON
    } else {
        FCAST_SWITCH_OFF
    }
}

impl From<Settings> for fcast_file_defaults {
    fn from(of: Settings) -> Self {
        Self {
            size: 0,
            num_threads: of.num_threads,
            task_size: of.task_size,
            gds_threshold: of.gds_threshold,
            bounce_buffer_size: of.bounce_buffer_size,
            bounce_pool_size: of.bounce_pool_size,
            auto_direct_io_threshold: of.auto_direct_io_threshold,
            thread_pool_queue: of.thread_pool_queue,
            io_uring_depth: of.io_uring_depth,
            compat: match of.compat_mode {
                CompatMode::Auto => FCAST_COMPAT_AUTO,
                CompatMode::On => FCAST_COMPAT_ON,
                CompatMode::Off => FCAST_COMPAT_OFF,
            },
            auto_direct_io_read: switch(of.auto_direct_io_read),
            auto_direct_io_write: switch(of.auto_direct_io_write),
            auto_direct_io_read_overread: switch(of.auto_direct_io_read_overread),
            thread_pool_per_block_device: switch(of.thread_pool_per_block_device),
            io_uring: switch(of.io_uring),
        }
    }
}

impl fcast_file_defaults {
    /// The settings with those changed that are not 0.
    fn over(&self, mut of: Settings) -> Result<Settings, Failure> {
        let numbers = [
            (self.num_threads, &mut of.num_threads),
            (self.task_size, &mut of.task_size),
            (self.gds_threshold, &mut of.gds_threshold),
            (self.bounce_buffer_size, &mut of.bounce_buffer_size),
            (self.bounce_pool_size, &mut of.bounce_pool_size),
            (
                self.auto_direct_io_threshold,
                &mut of.auto_direct_io_threshold,
            ),
            (self.thread_pool_queue, &mut of.thread_pool_queue),
            (self.io_uring_depth, &mut of.io_uring_depth),
        ];
        for (value, place) in numbers.into_iter().filter(|(value, _)| *value != 0) {
            *place = value;
        }
        let switches = [
            (self.auto_direct_io_read, &mut of.auto_direct_io_read),
            (self.auto_direct_io_write, &mut of.auto_direct_io_write),
            (
                self.auto_direct_io_read_overread,
                &mut of.auto_direct_io_read_overread,
            ),
            (
                self.thread_pool_per_block_device,
                &mut of.thread_pool_per_block_device,
            ),
            (self.io_uring, &mut of.io_uring),
        ];
        for (value, place) in switches.into_iter().filter(|(value, _)| *value != 0) {
            *place = match value {
                FCAST_SWITCH_ON => true,
                FCAST_SWITCH_OFF => false,
                other => return Err(wrong("a switch", other, "FCAST_SWITCH_ON or _OFF")),
            };
        }
        of.compat_mode = match self.compat {
            0 => of.compat_mode,
            FCAST_COMPAT_AUTO => CompatMode::Auto,
            FCAST_COMPAT_ON => CompatMode::On,
            FCAST_COMPAT_OFF => CompatMode::Off,
            other => return Err(wrong("compat", other, "0 to 3")),
        };
        Ok(of)
    }
}

#[cold]
fn wrong(field: &str, value: u32, range: &str) -> Failure {
    Failure::invalid(format!("{field} = {value}: must be {range}"))
}

/// What files of the process do where nothing else was asked for. The field `size` is set by the
/// caller. Any thread.
///
/// # Safety
///
/// `defaults`: NULL, or a writable struct whose size field is right.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_file_defaults_get(
    defaults: *mut fcast_file_defaults,
) -> fcast_status {
    call(|| {
        let now = Defaults::get().into();
        // SAFETY: the caller's promise.
        unsafe { pointer::write_sized(defaults, &now, "defaults") }
    })
}

/// Changes what files of the process do where nothing else was asked for: the fields that are not
/// 0. FCAST_INVALID: one is out of its range, and nothing was changed. Any thread.
///
/// # Safety
///
/// `defaults`: NULL, or a struct whose size field is right.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_file_defaults_set(
    defaults: *const fcast_file_defaults,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let given: fcast_file_defaults = unsafe { pointer::sized(defaults, "defaults") }?;
        // What is wrong with it is told before anything is changed.
        given.over(Defaults::get())?;
        let set = Defaults::set(|settings| {
            if let Ok(changed) = given.over(*settings) {
                *settings = changed;
            }
        });
        set.map_err(|error| Failure::invalid(format!("setting {error}")))
    })
}
