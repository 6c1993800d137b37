//! `Partials`: the files of a stream that is not whole yet, and the journal of what is in them.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{Advice, AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use super::dress;
use crate::buffer::DeviceBuffer;
use crate::clock::Clock;
use crate::storage::{BackEnd, FileError, FileErrorKind, FileHandle, IoOptions};
use crate::stream::Block;
use crate::stream::Entry;
use crate::stream::block_set::BlockSet;
use crate::stream::digest::crc32c;
use crate::stream::journal::{
    self, Claims, JOURNAL_HEADER_LEN, JournalError, JournalHeader, JournalReader,
};
use crate::stream::sink::{Kept, ReadBack, SinkError, Stop, StreamOffer};

const JOURNAL: &str = "journal";

/// Bytes of a journal that are read at once.
const JOURNAL_PIECE: usize = 64 << 10;

/// Files that are held open for the next block of theirs.
const OPEN_MAX: usize = 32;

/// The journal is written when it has so many records, or blocks of so many bytes: what a kill
/// costs at most is sent again.
const RECORDS_MAX: usize = 64;
const BYTES_MAX: u64 = 16 << 20;
/// Or when it was not written for so long.
const WRITTEN_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Partials {
    work: OwnedFd,
    offer: StreamOffer,
    /// What the records of its journal begin from.
    seal: u32,
    open: Mutex<VecDeque<(usize, Arc<OpenFile>)>>,
    journal: Mutex<Writer>,
    clock: Clock,
}

/// A file that is held open.
#[derive(Debug)]
struct OpenFile {
    file: File,
    /// For a GPU's memory; made when it is needed.
    for_devices: Mutex<Option<Arc<FileHandle>>>,
}

impl OpenFile {
    fn for_devices(&self) -> Result<Arc<FileHandle>, FileError> {
        let made = self.for_devices.lock();
        let mut made = made.unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = &*made {
            return Ok(Arc::clone(handle));
        }
        // Opened once more, without the flags that cuFile refuses.
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let handle = Arc::new(FileHandle::open(path, "r+")?);
        *made = Some(Arc::clone(&handle));
        Ok(handle)
    }
}

impl std::ops::Deref for OpenFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

/// The journal's end.
#[derive(Debug)]
struct Writer {
    file: File,
    unwritten: Vec<u8>,
    records: usize,
    bytes: u64,
    written_at: Instant,
}

impl Partials {
    /// Finds what an earlier stream left, or begins anew.
    pub(super) fn open(
        work: OwnedFd,
        offer: &StreamOffer,
        clock: Clock,
    ) -> Result<Self, SinkError> {
        let header = JournalHeader::new(offer.identity, &offer.manifest, &offer.plan);
        let known = match read_journal(work.as_fd(), &header)? {
            _ if offer.restart => None,
            Ok((_, end)) => Some(end),
            Err(JournalError::SourceChanged) => return Err(SinkError::SourceChanged),
            Err(_) => None,
        };
        if known.is_none() {
            clear(work.as_fd()).map_err(|error| SinkError::os(JOURNAL.as_bytes(), error))?;
        }
        let file = open_journal(work.as_fd(), &header, known)?;
        Ok(Self {
            work,
            offer: offer.clone(),
            seal: header.seal(),
            open: Mutex::new(VecDeque::new()),
            journal: Mutex::new(Writer {
                file,
                unwritten: Vec::new(),
                records: 0,
                bytes: 0,
                written_at: clock.now(),
            }),
            clock,
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.work.as_fd()
    }

    /// Which of the blocks that the journal names are there, byte for byte.
    pub(super) fn prove(&self, stop: &Stop) -> Result<Kept, SinkError> {
        let offer = &self.offer;
        let mut kept = Kept::new(offer);
        self.check_each(stop, |place, crc, bytes| {
            if crc32c(bytes) == crc {
                kept.add_summed(offer, &place, bytes, crc);
            }
        })?;
        Ok(kept)
    }

    /// Reads the blocks that the journal names, as far as they are there; each with the checksum
    /// that it is to have.
    fn check_each(
        &self,
        stop: &Stop,
        mut check: impl FnMut(Block, u32, &[u8]),
    ) -> Result<(), SinkError> {
        let offer = &self.offer;
        let header = JournalHeader::new(offer.identity, &offer.manifest, &offer.plan);
        let Ok((claims, _)) = read_journal(self.work.as_fd(), &header)? else {
            return Ok(());
        };
        let mut buffer = Vec::new();
        for index in claims.blocks().ranges(0).flatten() {
            stop.check()?;
            if let (Some(place), Some(crc)) = (offer.plan.get(index), claims.crc(index))
                && self.read_block(place, &mut buffer).is_ok()
            {
                check(place, crc, &buffer);
            }
        }
        Ok(())
    }

    fn read_block(&self, place: Block, buffer: &mut Vec<u8>) -> io::Result<()> {
        let file = self.file(place.entry, false)?;
        buffer.resize(place.len as usize, 0);
        file.read_exact_at(buffer, place.offset)
    }

    pub(super) fn write(&self, place: Block, crc: u32, bytes: &[u8]) -> Result<(), SinkError> {
        let failed = |error| SinkError::os(self.name(place.entry).as_bytes(), error);
        let file = self.file(place.entry, true).map_err(failed)?;
        file.write_all_at(bytes, place.offset).map_err(failed)?;
        self.record(place, crc)
    }

    /// The same out of a GPU's memory.
    pub(super) fn write_from_device(
        &self,
        place: Block,
        crc: u32,
        from: &DeviceBuffer,
    ) -> Result<BackEnd, SinkError> {
        let failed = |error| SinkError::os(self.name(place.entry).as_bytes(), error);
        let file = self.file(place.entry, true).map_err(failed)?;
        let refused = |error| self.file_error(place.entry, error);
        let handle = file.for_devices().map_err(refused)?;
        let options = IoOptions {
            // Nothing else was given the buffer.
            sync_default_stream: Some(false),
            ..IoOptions::default()
        };
        let moved = handle.write_from(from, .., place.offset, &options);
        let moved = moved.map_err(refused)?;
        self.record(place, crc)?;
        Ok(moved.back_end)
    }

    fn file_error(&self, entry: usize, error: FileError) -> SinkError {
        let name = self.name(entry);
        match error.kind {
            FileErrorKind::Os { errno } => SinkError::Os { what: name, errno },
            kind => SinkError::Other(format!("{name}: {kind}")),
        }
    }

    /// A block is written: the journal says so, some time.
    fn record(&self, place: Block, crc: u32) -> Result<(), SinkError> {
        if !self.offer.crc32c {
            return Ok(());
        }
        let record = journal::record(self.seal, place.index, crc);
        let mut journal = self.journal();
        journal.unwritten.extend_from_slice(&record);
        journal.records += 1;
        journal.bytes += u64::from(place.len);
        if journal.records >= RECORDS_MAX
            || journal.bytes >= BYTES_MAX
            || self.clock.since(journal.written_at) >= WRITTEN_EVERY
        {
            return journal.flush(&self.clock);
        }
        Ok(())
    }

    /// What was written is in the journal.
    pub(super) fn flush(&self) -> Result<(), SinkError> {
        self.journal().flush(&self.clock)
    }

    fn journal(&self) -> std::sync::MutexGuard<'_, Writer> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every block once more, from the device as far as the kernel can be asked for that.
    pub(super) fn read_back(&self, stop: &Stop) -> Result<ReadBack, SinkError> {
        let began = self.clock.now();
        self.sync_each()?;
        let files = self.offer.manifest.iter().enumerate();
        for (number, entry) in files.filter(|(_, entry)| entry.size > 0) {
            let failed = |error| SinkError::os(entry.name.as_bytes(), error);
            let file = self.file(number, false).map_err(failed)?;
            // It is advice: where it is not taken, the page cache is what is read.
            let _ = rustix::fs::fadvise(&file.file, 0, None, Advice::DontNeed);
        }
        let mut right = BlockSet::new(self.offer.plan.blocks());
        self.check_each(stop, |place, crc, bytes| {
            if crc32c(bytes) == crc {
                right.insert(place.index);
            }
        })?;
        if !right.is_full() {
            let wrong = self
                .offer
                .plan
                .iter()
                .find(|block| !right.contains(block.index));
            let (entry, block) = wrong.map_or((0, 0), |block| (block.entry, block.index));
            let what = self.name(entry);
            return Err(SinkError::ReadBack { what, block });
        }
        Ok(ReadBack {
            bytes: self.offer.manifest.bytes(),
            took: self.clock.since(began),
        })
    }

    pub(super) fn sync_each(&self) -> Result<(), SinkError> {
        let files = self.offer.manifest.iter().enumerate();
        for (number, entry) in files.filter(|(_, entry)| entry.size > 0) {
            let failed = |error| SinkError::os(entry.name.as_bytes(), error);
            let file = self.file(number, false).map_err(failed)?;
            file.sync_data().map_err(failed)?;
        }
        Ok(())
    }

    /// Makes the file of an entry what it is to be under its name: its length, rights and times.
    pub(super) fn finish(&self, number: usize, entry: Entry<'_>) -> Result<(), SinkError> {
        let failed = |error: io::Error| SinkError::os(entry.name.as_bytes(), error);
        // One without bytes was never written; any other one is there.
        let file = self.file(number, entry.size == 0).map_err(failed)?;
        if file.metadata().map_err(failed)?.len() != entry.size {
            file.set_len(entry.size).map_err(failed)?;
        }
        dress(&file.file, &entry).map_err(failed)?;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(known, _)| *known != number);
        Ok(())
    }

    /// All is where it belongs: what is left goes.
    pub(super) fn remove(&self) {
        // What can't be removed hurts nobody.
        let _ = clear(self.work.as_fd());
    }

    fn name(&self, entry: usize) -> String {
        let entry = self.offer.manifest.get(entry);
        entry.map_or_else(String::new, |entry| entry.name.to_string())
    }

    fn file(&self, entry: usize, make: bool) -> io::Result<Arc<OpenFile>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = open.iter().position(|(known, _)| *known == entry)
            && let Some(found) = open.remove(at)
        {
            let file = Arc::clone(&found.1);
            open.push_back(found);
            return Ok(file);
        }
        let mut flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        flags.set(OFlags::CREATE, make);
        let mode = Mode::from_raw_mode(0o600);
        let file = rustix::fs::openat(&self.work, entry.to_string(), flags, mode)?;
        if make {
            self.make_room(file.as_fd(), entry)?;
        }
        let file = Arc::new(OpenFile {
            file: File::from(file),
            for_devices: Mutex::default(),
        });
        if open.len() >= OPEN_MAX {
            open.pop_front();
        }
        open.push_back((entry, Arc::clone(&file)));
        Ok(file)
    }

    /// Where the file system can say beforehand whether there is room, it is asked; small files are
    /// not worth the call.
    fn make_room(&self, file: BorrowedFd<'_>, entry: usize) -> io::Result<()> {
        let size = self.offer.manifest.get(entry).map_or(0, |entry| entry.size);
        if size <= u64::from(self.offer.plan.block_bytes()) || rustix::fs::fstat(file)?.st_size > 0
        {
            return Ok(());
        }
        // Of files in memory the pages are made by who writes them, side by side; beforehand one
        // thread would make all of them.
        let system = rustix::fs::fstatfs(file)?;
        if system.f_type == libc::TMPFS_MAGIC {
            let free = system.f_bavail.saturating_mul(system.f_bsize as u64);
            // Without a limit it has 0 blocks.
            return match system.f_blocks > 0 && free < size {
                true => Err(Errno::NOSPC.into()),
                false => Ok(()),
            };
        }
        match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Writer {
    fn flush(&mut self, clock: &Clock) -> Result<(), SinkError> {
        let written = self.file.write_all(&self.unwritten);
        written.map_err(|error| SinkError::os(JOURNAL.as_bytes(), error))?;
        self.unwritten.clear();
        (self.records, self.bytes) = (0, 0);
        self.written_at = clock.now();
        Ok(())
    }
}

/// What an earlier stream wrote of itself, and where its whole records end; or why that is of no
/// use for the stream of `wanted`.
fn read_journal(
    work: BorrowedFd<'_>,
    wanted: &JournalHeader,
) -> Result<Result<(Claims, u64), JournalError>, SinkError> {
    let failed = |error: io::Error| SinkError::os(JOURNAL.as_bytes(), error);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let mut file = match rustix::fs::openat(work, JOURNAL, flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(Errno::NOENT) => return Ok(Err(JournalError::Header)),
        Err(error) => return Err(failed(error.into())),
    };
    let mut header = [0; JOURNAL_HEADER_LEN];
    match file.read_exact(&mut header) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Ok(Err(JournalError::Header));
        }
        read => read.map_err(failed)?,
    }
    let checked = JournalHeader::parse(&header).and_then(|known| known.check(wanted));
    if let Err(error) = checked {
        return Ok(Err(error));
    }
    let mut reader = JournalReader::new(wanted);
    let mut piece = vec![0; JOURNAL_PIECE];
    loop {
        let len = file.read(&mut piece).map_err(failed)?;
        if len == 0 {
            return Ok(Ok(reader.finish()));
        }
        if let Err(error) = reader.feed(&piece[..len]) {
            return Ok(Err(error));
        }
    }
}

/// The journal, with its header, to be written at its end; what is behind the last whole record
/// goes.
fn open_journal(
    work: BorrowedFd<'_>,
    header: &JournalHeader,
    known: Option<u64>,
) -> Result<File, SinkError> {
    let failed = |error: io::Error| SinkError::os(JOURNAL.as_bytes(), error);
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::APPEND;
    let fd = rustix::fs::openat(work, JOURNAL, flags, Mode::from_raw_mode(0o600));
    let mut file = File::from(fd.map_err(|error| failed(error.into()))?);
    file.set_len(known.unwrap_or(0)).map_err(failed)?;
    if known.is_none() {
        file.write_all(&header.encode()).map_err(failed)?;
    }
    Ok(file)
}

/// Whether it has a journal, of which nothing was written since then.
pub(super) fn is_stale(work: BorrowedFd<'_>, since: SystemTime) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let mut journal = File::from(rustix::fs::openat(work, JOURNAL, flags, Mode::empty())?);
    let mut header = [0; JOURNAL_HEADER_LEN];
    journal.read_exact(&mut header)?;
    let is_ours = JournalHeader::parse(&header).is_ok();
    Ok(is_ours && journal.metadata()?.modified()? < since)
}

/// Removes the files of the hidden directory: there are no others in it.
pub(super) fn clear(work: BorrowedFd<'_>) -> io::Result<()> {
    for found in rustix::fs::Dir::read_from(work)? {
        let found = found?;
        let name = found.file_name();
        if name.to_bytes() != b"." && name.to_bytes() != b".." {
            rustix::fs::unlinkat(work, name, AtFlags::empty())?;
        }
    }
    Ok(())
}
