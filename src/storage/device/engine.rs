//! `CuFileEngine`, and which engine moves a transfer of GPU memory.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;

use super::staged::Staged;
use crate::cuda::{Context, Cuda, CudaError, Current};
use crate::storage::cufile::{CuFileError, Handle};
use crate::storage::engine::{Engine, Task, TaskOutcome};
use crate::storage::file::File;
use crate::storage::io_buffer::RawMemory;
use crate::storage::{BackEnd, BackEndChoice, Direction, FileErrorKind, Place};

/// So many bytes are staged rather than given to a cuFile that only copies: measured on an H200
/// without nvidia-fs.
const COPIED_MAX: usize = 1 << 20;

/// The engine for a transfer of `len` bytes; below `threshold` it is not cuFile, unless that was
/// asked for.
pub(crate) fn engine_for(
    file: &File,
    choice: BackEndChoice,
    len: usize,
    threshold: usize,
) -> Result<&'static dyn Engine, FileErrorKind> {
    match choice {
        BackEndChoice::Posix | BackEndChoice::IoUring => staged(),
        BackEndChoice::CuFile => {
            let route = file.route()?;
            if route.handle.is_some() {
                return Ok(&CuFileEngine);
            }
            Err(FileErrorKind::Unsupported {
                what: "cuFile",
                reason: format!("compatibility mode is {}", route.compat.reason),
            })
        }
        BackEndChoice::Auto if len < threshold => staged(),
        BackEndChoice::Auto => {
            let route = file.route()?;
            // Where cuFile copies through the host's memory, too, it gains by its threads alone,
            // and a short transfer has nothing to share out.
            let copies = route.cufile_copies && len <= COPIED_MAX;
            match route.handle {
                Some(_) if !copies => Ok(&CuFileEngine),
                _ => staged(),
            }
        }
    }
}

fn staged() -> Result<&'static dyn Engine, FileErrorKind> {
    match Cuda::ready() {
        Ok(_) => Ok(&Staged),
        Err(why) => Err(FileErrorKind::Unsupported {
            what: "GPU memory",
            reason: why.to_string(),
        }),
    }
}

/// The context of a device's memory; where `synchronize`, its default stream is waited for: what
/// was given to it before is then in the memory.
pub(crate) fn prepare(place: Place, synchronize: bool) -> Result<Option<Context>, FileErrorKind> {
    let Place::Device { base, .. } = place else {
        return Ok(None);
    };
    let prepare = || {
        let cuda = Cuda::ready()?;
        let context = cuda.context_of(base)?;
        if synchronize {
            // SAFETY: the context of the operation's memory, which is freed before that goes.
            let _current = unsafe { cuda.enter(context) }?;
            cuda.synchronize_default()?;
        }
        Ok(Some(context))
    };
    prepare().map_err(|error: CudaError| failed(error.into()))
}

/// Makes the context of a device's memory current in this thread.
pub(super) fn enter(memory: RawMemory, base: u64) -> Result<Current, CudaError> {
    let cuda = Cuda::ready()?;
    match memory.context() {
        // SAFETY: as above.
        Some(context) => unsafe { cuda.enter(context) },
        None => cuda.enter_at(base),
    }
}

/// What stopped an operation: the system's error where there is one, else cuFile's or CUDA's own.
pub(super) fn failed(error: CuFileError) -> FileErrorKind {
    match error.errno() {
        Some(errno) => FileErrorKind::Os { errno },
        None => FileErrorKind::CuFile(error),
    }
}

/// The back end that leaves it all to cuFile.
#[derive(Debug)]
pub(crate) struct CuFileEngine;

impl Engine for CuFileEngine {
    fn back_end(&self) -> BackEnd {
        BackEnd::CuFile
    }

    unsafe fn run(&self, task: &Task<'_>) -> TaskOutcome {
        let place = task.memory.place();
        let handle = match task.file.route() {
            Ok(route) => route.handle.as_ref(),
            Err(kind) => return TaskOutcome::failed(kind),
        };
        let (Place::Device { base, offset, .. }, Some(handle)) = (place, handle) else {
            return TaskOutcome::failed(FileErrorKind::Unsupported {
                what: "cuFile",
                reason: "it moves GPU memory of files that are registered with it".into(),
            });
        };
        let mut outcome = TaskOutcome::default();
        let mut all = || {
            let current = enter(task.memory, base);
            let _current = current.map_err(|error| failed(error.into()))?;
            // SAFETY: the task's memory is good for the transfer until this returns, and its
            // context is current.
            unsafe { whole(handle, task, base, offset, &mut outcome.moved) }
        };
        outcome.error = all().err();
        outcome
    }
}

/// All bytes of a task: short transfers go on, interrupted ones are made again.
///
/// # Safety
/// As for [`Engine::run`]; `base` and `offset` are those of its memory, whose context is current.
unsafe fn whole(
    handle: &Handle,
    task: &Task<'_>,
    base: u64,
    offset: usize,
    moved: &mut usize,
) -> Result<(), FileErrorKind> {
    let len = task.memory.len();
    let base: *mut c_void = ptr::with_exposed_provenance_mut(base as usize);
    while *moved < len {
        let (behind, at) = (offset + *moved, task.offset + *moved as u64);
        let result = match task.direction {
            // SAFETY: what is left of the task's memory, as the caller vouches for.
            Direction::Read => unsafe { handle.read(base, behind, len - *moved, at) },
            // SAFETY: as above.
            Direction::Write => unsafe { handle.write(base, behind, len - *moved, at) },
        };
        match result {
            Ok(0) if task.direction == Direction::Read => return Ok(()),
            Ok(0) => return Err(FileErrorKind::WriteZero),
            Ok(done) => *moved += done,
            Err(error) if error.errno() == Some(libc::EINTR) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}
