//! The reader: a thread that reads files block by block into registered buffers.
//!
//! The pool is the only window: a reader that is ahead of the network waits for a buffer to come back.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crc_fast::{CrcAlgorithm, Digest};
use fabricast::buffer::{BufferMut, Payload, SharedBufferManager};
use fabricast::event_loop::Waker;

use crate::failure::Failure;
use crate::wire::Request;

/// A file that is to be sent, open.
#[derive(Debug)]
pub(crate) struct Source {
    path: PathBuf,
    file: File,
    size: u64,
}

impl Source {
    /// Opens a regular file; anything else has no size to announce, or would block.
    pub(crate) fn open(path: PathBuf) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::file(&path, &error);
        let kind = fs::metadata(&path).map_err(failed)?.file_type();
        if kind.is_dir() {
            return Err(failed(io::Error::from_raw_os_error(libc::EISDIR)));
        }
        if !kind.is_file() {
            return Err(Failure::new(format!(
                "{}: not a regular file",
                path.display()
            )));
        }
        let file = File::open(&path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        Ok(Self { path, file, size })
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// The name that the receiver gives it: the last part of the path.
    pub(crate) fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or(self.path.as_os_str())
    }
}

/// A message that waits to be sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) request: Request,
    pub(crate) payload: Payload,
}

impl Outgoing {
    pub(crate) fn without_payload(request: Request) -> Self {
        Self {
            request,
            payload: Payload::empty(),
        }
    }
}

/// What the reader has to say.
pub(crate) type Read = Result<Outgoing, Failure>;

/// Counters of the reader.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReadStats {
    /// Blocks read.
    pub(crate) blocks: u64,
    /// Times that it waited for a buffer: the network was slower than the file.
    pub(crate) waits: u64,
}

/// Reads `sources` one after the other; `waker` tells the loop of each message.
pub(crate) fn spawn(
    sources: Vec<Source>,
    pool: SharedBufferManager,
    block: usize,
    patience: Duration,
    waker: Waker,
) -> (Receiver<Read>, JoinHandle<ReadStats>) {
    // Room for each buffer, and for what comes without one: the reader only ever waits for the pool.
    let (sender, receiver) = sync_channel(pool.slots() + 2);
    let mut reader = Reader {
        pool,
        block,
        patience,
        sender,
        waker,
        stats: ReadStats::default(),
    };
    let thread = std::thread::Builder::new().name("reader".to_owned());
    let thread = thread
        .spawn(move || {
            reader.read_all(&sources);
            reader.stats
        })
        .expect("a process that just started has room for a thread");
    (receiver, thread)
}

struct Reader {
    pool: SharedBufferManager,
    block: usize,
    patience: Duration,
    sender: SyncSender<Read>,
    waker: Waker,
    stats: ReadStats,
}

/// Why the reader stops before the end.
enum Stop {
    /// A file can't be read.
    Failed(Failure),
    /// The loop has ended: nobody listens.
    Deaf,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Reader {
    fn read_all(&mut self, sources: &[Source]) {
        for (file, source) in (0..).zip(sources) {
            match self.read(file, source) {
                Ok(()) => {}
                Err(Stop::Failed(failure)) => {
                    let _ = self.tell(Err(failure));
                    return;
                }
                Err(Stop::Deaf) => return,
            }
        }
    }

    fn read(&mut self, file: u32, source: &Source) -> Result<(), Stop> {
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        let open = self.open_message(file, source)?;
        self.tell(Ok(open))?;
        let (mut offset, mut index) = (0, 0);
        while offset < source.size {
            let left = usize::try_from(source.size - offset).unwrap_or(usize::MAX);
            let len = left.min(self.block);
            let mut buffer = self.acquire()?;
            read_block(source, &mut buffer[..len], offset)?;
            // Now, while the block is in the cache.
            digest.update(&buffer[..len]);
            self.tell(Ok(Outgoing {
                request: Request::Block {
                    file,
                    index,
                    offset,
                },
                payload: buffer.freeze(len).into(),
            }))?;
            offset += len as u64;
            index += 1;
            self.stats.blocks += 1;
        }
        let crc = digest.finalize() as u32;
        self.tell(Ok(Outgoing::without_payload(Request::Close { file, crc })))
    }

    fn open_message(&mut self, file: u32, source: &Source) -> Result<Outgoing, Failure> {
        let name = source.name().as_bytes();
        let mut buffer = self.acquire()?;
        buffer[..name.len()].copy_from_slice(name);
        Ok(Outgoing {
            request: Request::Open {
                file,
                size: source.size,
            },
            payload: buffer.freeze(name.len()).into(),
        })
    }

    fn acquire(&mut self) -> Result<BufferMut, Failure> {
        if let Some(buffer) = self.pool.try_acquire() {
            return Ok(buffer);
        }
        self.stats.waits += 1;
        self.pool
            .acquire(Instant::now() + self.patience)
            .map_err(|error| Failure::new(error.to_string()))
    }

    fn tell(&self, read: Read) -> Result<(), Stop> {
        self.sender.send(read).map_err(|_| Stop::Deaf)?;
        self.waker.wake();
        Ok(())
    }
}

fn read_block(source: &Source, bytes: &mut [u8], offset: u64) -> Result<(), Failure> {
    match source.file.read_exact_at(bytes, offset) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(Failure::new(format!(
            "{}: became shorter while it was read",
            source.path.display()
        ))),
        Err(error) => Err(Failure::file(&source.path, &error)),
    }
}
