//! Files: how they are opened, and what is said of a transfer. Transfers are in `file_transfer.rs`.

#![allow(unsafe_code)] // Functions that C calls.

use std::ffi::c_char;
use std::os::fd::BorrowedFd;

use fabricast::storage::{
    BackEnd, BackEndChoice, CompatMode, DirectIo, FileError, FileErrorKind, FileHandle, IoOptions,
    OpenOptions, Transferred,
};

use crate::call::call;
use crate::file_stats::fcast_file_stats;
use crate::pointer::{self, Out, Sized0};
use crate::status::{
    FCAST_AGAIN, FCAST_CLOSED, FCAST_DEVICE, FCAST_FORKED, FCAST_INVALID, FCAST_NO_RESOURCES,
    FCAST_NOT_FOUND, FCAST_PANIC, FCAST_SYSTEM, FCAST_UNSUPPORTED, Failure, fcast_status,
};
use crate::table::Table;

pub(crate) static FILES: Table<FileHandle> = Table::new(34, "file");

/// An open file, which is read and written at offsets. Any thread may use it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_file {
    /// Its number; 0: none.
    pub id: u64,
}

/// The default: of a file, as the setting of the process; of a transfer, as the file was opened.
pub const FCAST_DIRECT_DEFAULT: u32 = 0;
/// Around the page cache (O_DIRECT) wherever the file system allows it.
pub const FCAST_DIRECT_ON: u32 = 1;
/// Through the page cache.
pub const FCAST_DIRECT_OFF: u32 = 2;

/// In settings: the best that works. What moved the bytes is never this.
pub const FCAST_BACK_END_DEFAULT: u32 = 0;
/// pread(2) and pwrite(2).
pub const FCAST_BACK_END_POSIX: u32 = 1;
/// io_uring(7); in settings: where the kernel does not allow it, POSIX.
pub const FCAST_BACK_END_IO_URING: u32 = 2;
/// cuFile, between the file and a GPU's memory; in settings: an error where it does not work.
pub const FCAST_BACK_END_CUFILE: u32 = 3;
/// Through pinned memory of the host, to or from a GPU's; not for settings.
pub const FCAST_BACK_END_STAGED: u32 = 4;

/// As the setting compat_mode of the process (the variables FABRICAST_COMPAT_MODE,
/// KVIKIO_COMPAT_MODE).
pub const FCAST_COMPAT_DEFAULT: u32 = 0;
/// GPU memory by cuFile where that can be used, else staged.
pub const FCAST_COMPAT_AUTO: u32 = 1;
/// GPU memory never by cuFile.
pub const FCAST_COMPAT_ON: u32 = 2;
/// GPU memory by cuFile; where it can't be used, the file is not opened.
pub const FCAST_COMPAT_OFF: u32 = 3;

/// How a file is opened. All zeros but the size are the defaults.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_file_settings {
    /// sizeof(fcast_file_settings).
    pub size: usize,
    /// The permissions of a file that is made, less the umask, to 07777; 0: 0664.
    pub mode: u32,
    /// FCAST_DIRECT_DEFAULT or another.
    pub direct: u32,
    /// FCAST_BACK_END_DEFAULT or another.
    pub back_end: u32,
    /// FCAST_COMPAT_DEFAULT or another.
    pub compat: u32,
}

// SAFETY: C's layout, a `usize` first; 0 is a value of all its fields.
unsafe impl Sized0 for fcast_file_settings {}

/// What one transfer asks for. All zeros but the size are the defaults.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_file_options {
    /// sizeof(fcast_file_options).
    pub size: usize,
    /// Bytes of one task of a transfer that threads share; 0: the setting task_size.
    pub task_size: usize,
    /// GPU memory: transfers of fewer bytes are done by the calling thread; 0: the setting
    /// gds_threshold.
    pub gds_threshold: usize,
    /// FCAST_DIRECT_DEFAULT or another.
    pub direct: u32,
    /// FCAST_BACK_END_DEFAULT or another.
    pub back_end: u32,
    /// GPU memory: 1: does not wait for CUDA's default stream first.
    pub no_stream_sync: u32,
    /// fcast_file_read and fcast_file_write: 1: the threads of the pool take part.
    pub parallel: u32,
}

// SAFETY: C's layout, a `usize` first; 0 is a value of all its fields.
unsafe impl Sized0 for fcast_file_options {}

/// What a transfer moved, and which way. Its layout does not change.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct fcast_file_moved {
    /// Bytes that were moved, from the offset on. A read is short only at the end of the file.
    pub bytes: u64,
    /// Of those, bytes that went around the page cache.
    pub direct_bytes: u64,
    /// Of the direct ones, bytes that were copied, since the memory is not aligned.
    pub bounced_bytes: u64,
    /// What moved them: FCAST_BACK_END_POSIX or another.
    pub back_end: u32,
    /// 0.
    pub reserved: u32,
    /// 0.
    pub more: [u64; 2],
}

const _: () = assert!(size_of::<fcast_file_moved>() == 48);

impl From<Transferred> for fcast_file_moved {
    fn from(moved: Transferred) -> Self {
        Self {
            bytes: moved.bytes as u64,
            direct_bytes: moved.direct_bytes as u64,
            bounced_bytes: moved.bounced_bytes as u64,
            back_end: match moved.back_end {
                BackEnd::Posix => FCAST_BACK_END_POSIX,
                BackEnd::IoUring => FCAST_BACK_END_IO_URING,
                BackEnd::CuFile => FCAST_BACK_END_CUFILE,
                BackEnd::Staged => FCAST_BACK_END_STAGED,
            },
            reserved: 0,
            more: [0; 2],
        }
    }
}

impl From<FileError> for Failure {
    #[cold]
    fn from(error: FileError) -> Self {
        let status = match &error.kind {
            FileErrorKind::Os { errno } if *errno == libc::ENOENT => FCAST_NOT_FOUND,
            FileErrorKind::Os { .. } => FCAST_SYSTEM,
            FileErrorKind::WriteZero => FCAST_NO_RESOURCES,
            FileErrorKind::Closed | FileErrorKind::Cancelled => FCAST_CLOSED,
            FileErrorKind::Forked { .. } => FCAST_FORKED,
            FileErrorKind::QueueFull => FCAST_AGAIN,
            FileErrorKind::CuFile(_) => FCAST_DEVICE,
            FileErrorKind::Unsupported { .. } => FCAST_UNSUPPORTED,
            FileErrorKind::Panicked(_) => FCAST_PANIC,
            _ => FCAST_INVALID,
        };
        let mut failure = Self::new(status, error.to_string());
        failure.errno = error.errno().unwrap_or(0);
        failure
    }
}

#[cold]
fn out_of_range(field: &str, value: u32, range: &str) -> Failure {
    Failure::invalid(format!("{field} = {value}: must be {range}"))
}

pub(crate) fn direct_of(value: u32) -> Result<Option<DirectIo>, Failure> {
    match value {
        FCAST_DIRECT_DEFAULT => Ok(None),
        FCAST_DIRECT_ON => Ok(Some(DirectIo::On)),
        FCAST_DIRECT_OFF => Ok(Some(DirectIo::Off)),
        other => Err(out_of_range("direct", other, "0 to 2")),
    }
}

pub(crate) fn back_end_of(value: u32) -> Result<Option<BackEndChoice>, Failure> {
    match value {
        FCAST_BACK_END_DEFAULT => Ok(None),
        FCAST_BACK_END_POSIX => Ok(Some(BackEndChoice::Posix)),
        FCAST_BACK_END_IO_URING => Ok(Some(BackEndChoice::IoUring)),
        FCAST_BACK_END_CUFILE => Ok(Some(BackEndChoice::CuFile)),
        other => Err(out_of_range("back_end", other, "0 to 3")),
    }
}

impl fcast_file_settings {
    fn options(&self) -> Result<OpenOptions, Failure> {
        let mut options = OpenOptions::new();
        if self.mode != 0 {
            options = options.mode(self.mode);
        }
        if let Some(direct) = direct_of(self.direct)? {
            options = options.direct(direct);
        }
        if let Some(back_end) = back_end_of(self.back_end)? {
            options = options.back_end(back_end);
        }
        Ok(match self.compat {
            FCAST_COMPAT_DEFAULT => options,
            FCAST_COMPAT_AUTO => options.compat_mode(CompatMode::Auto),
            FCAST_COMPAT_ON => options.compat_mode(CompatMode::On),
            FCAST_COMPAT_OFF => options.compat_mode(CompatMode::Off),
            other => return Err(out_of_range("compat", other, "0 to 3")),
        })
    }
}

impl fcast_file_options {
    pub(crate) fn options(&self) -> Result<IoOptions, Failure> {
        let some = |value: usize| (value != 0).then_some(value);
        Ok(IoOptions {
            task_size: some(self.task_size),
            gds_threshold: some(self.gds_threshold),
            sync_default_stream: (self.no_stream_sync != 0).then_some(false),
            direct: direct_of(self.direct)?,
            back_end: back_end_of(self.back_end)?,
            ..IoOptions::default()
        })
    }
}

/// Opens a file. `flags` as of fopen(3): "r" (read), "w" (write; made or emptied), "a" (write;
/// made, kept), "x" (write; made, must not exist), each with "+" for both directions. Any thread.
///
/// FCAST_NOT_FOUND: there is none by this name. FCAST_INVALID: the flags, a setting, or no file
/// that has offsets. FCAST_SYSTEM: open(2); fcast_last_errno() says what.
///
/// # Safety
///
/// `path` and `flags`: NULL, or texts that end with a zero; `settings`: NULL, or a struct whose
/// size field is right; `file`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_file_open(
    path: *const c_char,
    flags: *const c_char,
    settings: *const fcast_file_settings,
    file: *mut fcast_file,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(file, "file") }?;
        // SAFETY: the caller's promise.
        let path = unsafe { pointer::path(path, "path") }?;
        // SAFETY: the caller's promise.
        let flags = unsafe { pointer::needed_text(flags, "flags") }?;
        // SAFETY: the caller's promise.
        let settings: fcast_file_settings = unsafe { pointer::sized(settings, "settings") }?;
        let opened = settings.options()?.flags(flags).open(path)?;
        let id = FILES.insert(opened)?;
        out.set(fcast_file { id });
        Ok(())
    })
}

/// Makes a file of a descriptor, which is duplicated: the program keeps its own. What the
/// descriptor was opened for counts; its position is neither used nor moved. Any thread.
///
/// # Safety
///
/// `fd` is open during the call; `settings`: NULL, or a struct whose size field is right; `file`:
/// NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_file_from_fd(
    fd: i32,
    settings: *const fcast_file_settings,
    file: *mut fcast_file,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(file, "file") }?;
        // SAFETY: the caller's promise.
        let settings: fcast_file_settings = unsafe { pointer::sized(settings, "settings") }?;
        if fd < 0 {
            return Err(Failure::invalid(format!("fd = {fd}: no descriptor")));
        }
        // SAFETY: not -1, and the caller has promised that it is open.
        let own = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?;
        let opened = settings.options()?.from_fd(own)?;
        let id = FILES.insert(opened)?;
        out.set(fcast_file { id });
        Ok(())
    })
}

/// The size of a file in bytes, asked for now. Any thread.
///
/// # Safety
///
/// `bytes`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_file_size(file: fcast_file, bytes: *mut u64) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(bytes, "bytes") }?;
        out.set(FILES.share(file.id)?.refresh()?);
        Ok(())
    })
}

/// Makes a file as long as that: what is behind is gone, what is new reads as zeros. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_file_truncate(file: fcast_file, bytes: u64) -> fcast_status {
    call(|| Ok(FILES.share(file.id)?.truncate(bytes)?))
}

/// Waits until what was written is on the device: fsync(2), or fdatasync(2) where `data_only` is
/// set. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_file_sync(file: fcast_file, data_only: bool) -> fcast_status {
    call(|| {
        let file = FILES.share(file.id)?;
        match data_only {
            true => file.sync_data()?,
            false => file.sync_all()?,
        }
        Ok(())
    })
}

/// What O_DIRECT asks for, in bytes: of offsets and lengths, and of addresses. What is not aligned
/// is moved all the same, partly through the page cache or a copy. Any thread.
///
/// # Safety
///
/// Each pointer: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_file_alignment(
    file: fcast_file,
    offset: *mut u32,
    memory: *mut u32,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let offset = unsafe { Out::new(offset, "offset") }?;
        // SAFETY: the caller's promise.
        let memory = unsafe { Out::new(memory, "memory") }?;
        let file = FILES.share(file.id)?;
        let closed = || Failure::new(FCAST_CLOSED, "the file was closed");
        let alignment = file.alignment().ok_or_else(closed)?;
        offset.set(alignment.offset);
        memory.set(alignment.memory);
        Ok(())
    })
}

/// What was done with a file. The field `size` is set by the caller. Any thread.
///
/// # Safety
///
/// `stats`: NULL, or a writable struct whose size field is right.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_file_read_stats(
    file: fcast_file,
    stats: *mut fcast_file_stats,
) -> fcast_status {
    call(|| {
        let counted = FILES.share(file.id)?.stats().into();
        // SAFETY: the caller's promise.
        unsafe { pointer::write_sized(stats, &counted, "stats") }
    })
}

/// Gives a file back. It is closed when the last transfer of it is over. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_file_release(file: fcast_file) -> fcast_status {
    call(|| FILES.release(file.id))
}
