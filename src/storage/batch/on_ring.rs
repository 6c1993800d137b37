//! `OnRing`: a batch over an io_uring of its own.
//!
//! # Safety
//! An entry owns its buffer, and keeps its file open; it lies in the ring's slab while the kernel
//! may touch either.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::EventOutput;
use super::entry::{BatchEntry, Entry, Way, descriptors};
use crate::memory::Region;
use crate::storage::file::File;
use crate::storage::io_buffer::{IoBuf, RawMemory};
use crate::storage::plan::Piece;
use crate::storage::stats::{Record, Tally};
use crate::storage::uring::fixed::FileSlot;
use crate::storage::uring::flight::Full;
use crate::storage::uring::request::{Request, Target};
use crate::storage::uring::ring::{Ring, RingConfig};
use crate::storage::{BackEnd, Direction, FileErrorKind};

/// Places for registered files (two a file) and buffers (one for each GiB of a pool) in a batch.
const FILE_PLACES: u32 = 64;
const BUFFER_PLACES: u16 = 256;

/// A file that the kernel keeps for the ring.
struct RegisteredFile {
    file: Arc<File>,
    buffered: FileSlot,
    direct: Option<FileSlot>,
}

pub(super) struct OnRing<B: IoBuf> {
    ring: Ring<Entry<B>>,
    files: Vec<RegisteredFile>,
    /// When the first of the entries was queued that the kernel has not been told of: those that
    /// join it share this look at the clock.
    queued: Option<Instant>,
    /// Entries with more than one piece, between two of them.
    between: Vec<Entry<B>>,
    gathered: EndedTogether,
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
            ring,
            files: Vec::new(),
            queued: None,
            between: Vec::new(),
            gathered: EndedTogether::default(),
        })
    }

    #[inline]
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
        self.files.push(RegisteredFile {
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

    /// Takes an entry that the kernel is not told of yet.
    #[inline]
    pub(super) fn queue(
        &mut self,
        entry: BatchEntry<B>,
        cookie: u64,
        way: &Way,
    ) -> Result<(), BatchEntry<B>> {
        let (file, direction) = (entry.file(), entry.direction());
        let request = request(&self.files, file, direction, way.memory, &way.piece);
        let Some(room) = self.ring.room() else {
            return Err(entry);
        };
        let now = *self.queued.get_or_insert_with(Instant::now);
        // SAFETY: the entry owns the buffer (`IoBuf`: its bytes stay where they are, and nobody
        // else touches them) and holds the file with its descriptors; it is only let go of when the
        // ring gives it back.
        unsafe { room.submit(request, entry.begin(cookie, way, now)) };
        Ok(())
    }

    /// The same for the next piece of one that has begun.
    fn queue_next(&mut self, entry: Entry<B>) -> Result<(), Entry<B>> {
        let piece = entry.next_piece();
        let (file, direction) = (entry.file(), entry.direction);
        let request = request(&self.files, file, direction, entry.memory, &piece);
        // SAFETY: as in `queue`.
        let submitted = unsafe { self.ring.submit(request, entry) };
        submitted.map_err(|Full(entry)| entry)
    }

    pub(super) fn start(&mut self) -> io::Result<()> {
        self.queued = None;
        self.ring.start()
    }

    /// Collects what is over, until `min` are or the deadline.
    #[inline]
    pub(super) fn wait(
        &mut self,
        min: usize,
        deadline: Instant,
        output: &mut EventOutput<'_, B>,
    ) -> io::Result<()> {
        self.queued = None;
        let mut missing = min.min(self.ring.in_flight());
        loop {
            let waited = self.wait_once(&mut missing, deadline, output);
            let goes_on = !self.between.is_empty();
            if goes_on {
                self.go_on(&mut missing, output);
            }
            if waited.is_err() || missing == 0 || Instant::now() >= deadline {
                // What was just begun anew, the kernel is to know of in any case.
                let started = if goes_on { self.ring.start() } else { Ok(()) };
                self.gathered.count();
                return waited.and(started);
            }
        }
    }

    #[inline]
    fn wait_once(
        &mut self,
        missing: &mut usize,
        deadline: Instant,
        output: &mut EventOutput<'_, B>,
    ) -> io::Result<()> {
        let Self {
            ring,
            between,
            gathered,
            ..
        } = self;
        let mut watch = Watch::default();
        let mut refused = None;
        let waited = ring.wait_each(*missing, Some(deadline), |mut ended, moved| {
            let Some(entry) = ended.owner() else { return };
            if moved.direct_refused {
                refused = Some((Arc::clone(entry.file()), entry.direction));
            }
            let Some(result) = entry.advance(moved) else {
                between.extend(ended.into_owner());
                return;
            };
            *missing = missing.saturating_sub(1);
            let elapsed = watch.since(entry.begun);
            give(entry, result, elapsed, gathered, output);
            ended.clear_away();
        });
        // Of each file, it is found out again; and not before all outcomes are safe, as a
        // subscriber of `tracing` hears of it, which may panic.
        if let Some((file, direction)) = refused {
            refuse_direct(&file, direction);
        }
        waited
    }

    /// Entries with more than one piece go on with the next.
    #[cold]
    fn go_on(&mut self, missing: &mut usize, output: &mut EventOutput<'_, B>) {
        let mut between = std::mem::take(&mut self.between);
        for entry in between.drain(..) {
            // Its own place in the ring has just become free.
            if let Err(mut entry) = self.queue_next(entry) {
                *missing = missing.saturating_sub(1);
                let full = Err(FileErrorKind::QueueFull);
                let elapsed = entry.begun.elapsed();
                give(&mut entry, full, elapsed, &mut self.gathered, output);
            }
        }
        self.between = between;
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

/// The kernel answered EINVAL to a direct transfer that was aligned as the file asks.
#[cold]
fn refuse_direct(file: &File, direction: Direction) {
    let errno = io::Error::from_raw_os_error(libc::EINVAL);
    file.refuse_direct(format!("a direct {direction} was refused: {errno}"));
}

/// Counts an entry that is over, and gives its outcome away.
#[inline(always)]
fn give<B: IoBuf>(
    entry: &mut Entry<B>,
    result: Result<(), FileErrorKind>,
    elapsed: Duration,
    gathered: &mut EndedTogether,
    output: &mut EventOutput<'_, B>,
) {
    let record = entry.record(BackEnd::IoUring, 0, result.is_err(), elapsed);
    match result {
        Ok(()) => output.give(|| entry.done(BackEnd::IoUring, 0)),
        Err(kind) => output.give(|| entry.failed(kind)),
    }
    if let Some(file) = entry.take_file() {
        gathered.add(file, &record);
    }
}

/// One look at the clock for all that end together, and one subtraction for all that began
/// together.
#[derive(Default)]
struct Watch {
    now: Option<Instant>,
    last: Option<(Instant, Duration)>,
}

impl Watch {
    #[inline]
    fn since(&mut self, begun: Instant) -> Duration {
        match self.last {
            Some((same, elapsed)) if same == begun => elapsed,
            _ => self.anew(begun),
        }
    }

    fn anew(&mut self, begun: Instant) -> Duration {
        let now = *self.now.get_or_insert_with(Instant::now);
        let elapsed = now.saturating_duration_since(begun);
        self.last = Some((begun, elapsed));
        elapsed
    }
}

/// What the kernel is asked for one piece.
#[inline]
fn request(
    files: &[RegisteredFile],
    file: &Arc<File>,
    direction: Direction,
    memory: RawMemory,
    piece: &Piece,
) -> Request {
    let known = files.iter().find(|known| Arc::ptr_eq(&known.file, file));
    let (first, rest) = descriptors(file, piece);
    let target = |fd: BorrowedFd<'_>, slot: Option<FileSlot>| -> Target {
        slot.map_or_else(|| Target::Fd(fd.as_raw_fd()), Target::Registered)
    };
    let buffered = known.map(|known| known.buffered);
    let direct = known.and_then(|known| known.direct);
    let part = memory.part(piece.at, piece.len);
    Request {
        direction,
        // With a rest, it begins with the direct one.
        file: target(first, if rest.is_some() { direct } else { buffered }),
        rest: rest.map(|rest| target(rest, buffered)),
        memory: part
            .host()
            .map_or(std::ptr::null_mut(), |start| start.as_ptr()),
        len: piece.len,
        offset: piece.offset,
        region: None,
    }
}

/// Entries of one file that ended together and are not counted yet.
struct EndedTogether {
    file: Option<Arc<File>>,
    direction: Direction,
    tally: Box<Tally>,
}

impl Default for EndedTogether {
    fn default() -> Self {
        let direction = Direction::Read;
        Self {
            file: None,
            direction,
            tally: Box::new(Tally::new(direction, BackEnd::IoUring)),
        }
    }
}

impl EndedTogether {
    #[inline]
    fn add(&mut self, file: Arc<File>, record: &Record) {
        let is_same = (self.file.as_ref()).is_some_and(|known| Arc::ptr_eq(known, &file))
            && self.direction == record.direction;
        if !is_same {
            self.begin(file, record.direction);
        }
        self.tally.add(record);
    }

    fn begin(&mut self, file: Arc<File>, direction: Direction) {
        self.count();
        self.file = Some(file);
        self.direction = direction;
        *self.tally = Tally::new(direction, BackEnd::IoUring);
    }

    /// Counts what was gathered. Before the outcomes are given out: who has them sees them counted.
    fn count(&mut self) {
        let Some(file) = self.file.take() else { return };
        if self.direction == Direction::Write {
            file.forget_size();
        }
        file.counters().record_all(&mut self.tally);
    }
}
