//! `OnRing`: a batch over an io_uring of its own.
//!
//! # Safety
//! An entry owns its buffer, and keeps its file open; it lies in the ring's slab while the kernel may touch either.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use super::entry::Entry;
use super::{BatchEvent, Done};
use crate::memory::Region;
use crate::storage::file::File;
use crate::storage::io_buffer::IoBuf;
use crate::storage::uring::fixed::FileSlot;
use crate::storage::uring::request::{Request, Target};
use crate::storage::uring::ring::{Completed, Full, Ring, RingConfig};
use crate::storage::{BackEnd, FileErrorKind};

/// Places for registered files (two a file) and buffers (one for each GiB of a pool) in a batch.
const FILE_PLACES: u32 = 64;
const BUFFER_PLACES: u16 = 256;

/// A file that the kernel keeps for the ring.
struct Registered {
    file: Arc<File>,
    buffered: FileSlot,
    direct: Option<FileSlot>,
}

pub(super) struct OnRing<B: IoBuf> {
    ring: Ring<Entry<B>>,
    files: Vec<Registered>,
    completed: Vec<Completed<Entry<B>>>,
}

impl<B: IoBuf> OnRing<B> {
    pub(super) fn new(depth: u32) -> io::Result<Self> {
        let ring = Ring::open(RingConfig {
            depth,
            files: FILE_PLACES,
            buffers: BUFFER_PLACES,
            one_thread: false,
        })?;
        Ok(Self {
            completed: Vec::with_capacity(ring.depth()),
            ring,
            files: Vec::new(),
        })
    }

    pub(super) fn in_flight(&self) -> usize {
        self.ring.in_flight()
    }

    pub(super) fn register_file(&mut self, file: &Arc<File>) {
        if self
            .files
            .iter()
            .any(|known| Arc::ptr_eq(&known.file, file))
        {
            return;
        }
        let Some(buffered) = self.ring.register_file(file.buffered()) else {
            return;
        };
        let direct = file.direct().and_then(|fd| self.ring.register_file(fd));
        self.files.push(Registered {
            file: Arc::clone(file),
            buffered,
            direct,
        });
    }

    pub(super) fn unregister_file(&mut self, file: &Arc<File>) {
        let Some(at) = self
            .files
            .iter()
            .position(|known| Arc::ptr_eq(&known.file, file))
        else {
            return;
        };
        let known = self.files.swap_remove(at);
        self.ring.unregister_file(known.buffered);
        if let Some(direct) = known.direct {
            self.ring.unregister_file(direct);
        }
    }

    pub(super) fn register_region(&mut self, region: &Arc<Region>) -> io::Result<()> {
        self.ring.register_region(region)
    }

    /// Takes an entry whose kernel is not told yet.
    pub(super) fn queue(&mut self, entry: Entry<B>) -> Result<(), Entry<B>> {
        let piece = entry.next_piece();
        let (first, rest) = entry.descriptors(&piece);
        let known = self
            .files
            .iter()
            .find(|known| Arc::ptr_eq(&known.file, &entry.file));
        let target = |fd: BorrowedFd<'_>| -> Target {
            let slot = known.and_then(|known| {
                let is_direct = fd.as_raw_fd() != entry.file.buffered().as_raw_fd();
                if is_direct {
                    known.direct
                } else {
                    Some(known.buffered)
                }
            });
            slot.map_or_else(|| Target::Fd(fd.as_raw_fd()), Target::Registered)
        };
        let request = Request {
            direction: entry.direction,
            file: target(first),
            rest: rest.map(target),
            memory: entry
                .memory
                .part(piece.at, piece.len)
                .host()
                .map_or(std::ptr::null_mut(), |start| start.as_ptr()),
            len: piece.len,
            offset: piece.offset,
            region: None,
        };
        // SAFETY: the entry owns the buffer (`IoBuf`: its bytes stay where they are, and nobody else touches them) and holds the file with its
        // descriptors; it is only let go of when the ring gives it back.
        match unsafe { self.ring.submit(request, entry) } {
            Ok(_) => Ok(()),
            Err(Full(entry)) => Err(entry),
        }
    }

    pub(super) fn start(&mut self) -> io::Result<()> {
        self.ring.start()
    }

    /// Collects what is over, until `min` are or the deadline.
    pub(super) fn wait(
        &mut self,
        min: usize,
        deadline: Instant,
        done: &mut Done<B>,
    ) -> io::Result<()> {
        let target = done.len() + min.min(self.ring.in_flight());
        loop {
            let missing = target.saturating_sub(done.len());
            let waited = self.ring.wait(missing, Some(deadline), &mut self.completed);
            let went_on = self.take_in(done);
            waited?;
            if went_on {
                self.ring.start()?;
            }
            if done.len() >= target || Instant::now() >= deadline {
                return Ok(());
            }
        }
    }

    /// Entries with more than one piece go on with the next; whether there are such.
    fn take_in(&mut self, done: &mut Done<B>) -> bool {
        if self.completed.is_empty() {
            return false;
        }
        let (mut went_on, now) = (false, Instant::now());
        let mut completed = std::mem::take(&mut self.completed);
        for Completed { mut owner, moved } in completed.drain(..) {
            match owner.advance(moved) {
                Some(result) => done.push_back(over(owner, result, now)),
                None => {
                    went_on = true;
                    // Its own place in the ring has just become free.
                    if let Err(entry) = self.queue(owner) {
                        done.push_back(over(entry, Err(FileErrorKind::QueueFull), now));
                    }
                }
            }
        }
        self.completed = completed;
        went_on
    }

    pub(super) fn cancel(&mut self, wanted: impl Fn(u64) -> bool) {
        self.ring.cancel_where(|entry| {
            let is_wanted = wanted(entry.cookie);
            if is_wanted {
                entry.cancel();
            }
            is_wanted
        });
    }
}

fn over<B: IoBuf>(
    entry: Entry<B>,
    result: Result<(), FileErrorKind>,
    now: Instant,
) -> BatchEvent<B> {
    entry.finish(BackEnd::IoUring, 0, result, now)
}
