//! `JournalFile`: the journal of a stream that is not whole yet, as it lies in the hidden
//! directory.
//!
//! It is small, is only ever written at its end (O_APPEND), and has to be there after a kill: it
//! goes through the page cache by write(2), and not by `storage`, which refuses such descriptors.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::clock::Clock;
use crate::stream::Block;
use crate::stream::journal::{
    self, Claims, JOURNAL_HEADER_LEN, JournalError, JournalHeader, JournalReader,
};
use crate::stream::sink::SinkError;

pub(super) const JOURNAL: &str = "journal";

/// Bytes of a journal that are read at once.
const JOURNAL_PIECE: usize = 64 << 10;

/// The journal is written when it has so many records, or blocks of so many bytes: what a kill
/// costs at most is sent again.
const RECORDS_MAX: usize = 64;
const BYTES_MAX: u64 = 16 << 20;
/// Or when it was not written for so long.
const WRITTEN_EVERY: Duration = Duration::from_millis(100);

/// The journal's end.
#[derive(Debug)]
pub(super) struct JournalFile {
    file: File,
    /// The checksum that its first record begins from.
    seal: u32,
    unwritten: Vec<u8>,
    records: usize,
    bytes: u64,
    written_at: Instant,
    clock: Clock,
}

impl JournalFile {
    /// The journal of a stream, to be written at its end; what is behind `known`, the end of the
    /// last whole record, goes. Without it, the journal is begun anew.
    pub(super) fn open(
        work: BorrowedFd<'_>,
        header: &JournalHeader,
        known: Option<u64>,
        clock: Clock,
    ) -> Result<Self, SinkError> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::APPEND;
        let fd = rustix::fs::openat(work, JOURNAL, flags, Mode::from_raw_mode(0o600));
        let mut file = File::from(fd.map_err(|error| failed(error.into()))?);
        file.set_len(known.unwrap_or(0)).map_err(failed)?;
        if known.is_none() {
            file.write_all(&header.encode()).map_err(failed)?;
        }
        Ok(Self {
            file,
            seal: header.seal(),
            unwritten: Vec::new(),
            records: 0,
            bytes: 0,
            written_at: clock.now(),
            clock,
        })
    }

    /// Blocks are written: the journal says so, some time.
    pub(super) fn record(
        &mut self,
        blocks: impl IntoIterator<Item = (Block, u32)>,
    ) -> Result<(), SinkError> {
        for (block, crc) in blocks {
            let record = journal::record(self.seal, block.index, crc);
            self.unwritten.extend_from_slice(&record);
            self.records += 1;
            self.bytes += u64::from(block.len);
        }
        let is_due = self.records >= RECORDS_MAX
            || self.bytes >= BYTES_MAX
            || self.clock.since(self.written_at) >= WRITTEN_EVERY;
        match is_due {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// What was recorded is in the file.
    pub(super) fn flush(&mut self) -> Result<(), SinkError> {
        self.file.write_all(&self.unwritten).map_err(failed)?;
        self.unwritten.clear();
        (self.records, self.bytes) = (0, 0);
        self.written_at = self.clock.now();
        Ok(())
    }
}

fn failed(error: io::Error) -> SinkError {
    SinkError::os(JOURNAL.as_bytes(), error)
}

/// What an earlier stream wrote of itself, and where its whole records end; or why that is of no
/// use for the stream of `wanted`.
pub(super) fn read_journal(
    work: BorrowedFd<'_>,
    wanted: &JournalHeader,
) -> Result<Result<(Claims, u64), JournalError>, SinkError> {
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

/// Whether it has a journal, of which nothing was written since then.
pub(super) fn is_stale(work: BorrowedFd<'_>, since: SystemTime) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let mut journal = File::from(rustix::fs::openat(work, JOURNAL, flags, Mode::empty())?);
    let mut header = [0; JOURNAL_HEADER_LEN];
    journal.read_exact(&mut header)?;
    let is_ours = matches!(
        JournalHeader::parse(&header),
        Ok(_) | Err(JournalError::Version(_))
    );
    Ok(is_ours && journal.metadata()?.modified()? < since)
}
