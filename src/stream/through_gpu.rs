//! `ThroughGpu`: sources and sinks whose blocks pass a GPU's memory between file and wire.
//!
//! ```text
//!  sender    source ─ cuFile, or staged ─► DeviceBuffer ─ hook ─ copy ─► the pool's buffer ─► wire
//!  receiver  wire ─► the pool's buffer ─ copy ─► DeviceBuffer ─ hook ─ cuFile, or staged ─► sink
//! ```
//!
//! Each thread that reads or writes has one device buffer while it does, so that as many blocks are
//! on the way as there are threads.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use super::copy_streams::CopyStreams;
use super::sink::{BlockSink, Kept, ReadBack, SinkError, SinkFactory, Stop, StreamOffer};
use super::source::{BlockSource, LeftOut, SourceError};
use super::{Block, Manifest};
use crate::buffer::{DeviceBuffer, DeviceBufferManager};
use crate::cuda::{CudaError, Stream};
use crate::storage::{BackEnd, IoStats};

/// How long a thread waits for a device buffer that another one has.
const BUFFER_WAIT: Duration = Duration::from_secs(30);

/// A source or a sink, and a GPU's memory that each of its blocks passes.
///
/// Around a [`BlockSource`] it is one, around a [`SinkFactory`] it is one. Files go into a GPU's
/// memory, and out of it, by cuFile where it works, else staged through pinned memory of the host;
/// the report of a stream says which ([`StreamReport::path`](super::StreamReport::path)). Between
/// file and wire each block can be given to a [hook](Self::hook): a kernel that checks it or
/// changes it.
///
/// Between the GPU's memory and the wire blocks are copied once, through the buffers that they are
/// sent from and received in, also where a provider could reach the GPU's memory by itself:
/// checksums are the host's to compute. So it is best with
/// [`StreamSettings::pinned`](super::StreamSettings::pinned).
///
/// ```no_run
/// use fabricast::Region;
/// use fabricast::buffer::DeviceBufferManager;
/// use fabricast::stream::{FileSource, SenderConfig, ThroughGpu};
///
/// // As many buffers as threads that read, each as long as a block.
/// let pool = DeviceBufferManager::new(Region::device(4 << 20).build()?, 1 << 20)?;
/// let source = ThroughGpu::new(FileSource::file("run1.h5")?, pool).hook(|block| {
///     // ... a kernel on block.stream() works on block.len() bytes at block.address(), then, where
///     // its verdict is needed:
///     block.stream().synchronize()?;
///     Ok(())
/// });
/// let config = SenderConfig::default().stream(|s| s.threads(4).pinned(true));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ThroughGpu<T> {
    inner: T,
    stage: DeviceStage,
}

/// Why a hook does not let a block pass.
pub type HookError = Box<dyn Error + Send + Sync>;

type Hook = dyn Fn(&DeviceBlock<'_>) -> Result<(), HookError> + Send + Sync;

/// A block that lies in a GPU's memory, for a [hook](ThroughGpu::hook).
#[derive(Debug)]
pub struct DeviceBlock<'a> {
    entry: usize,
    offset: u64,
    buffer: &'a DeviceBuffer,
    stream: &'a Stream,
}

impl DeviceBlock<'_> {
    /// The number of its entry in the manifest.
    pub fn entry(&self) -> usize {
        self.entry
    }

    /// Where it begins in its entry, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Its first byte, a `CUdeviceptr`, a multiple of 256.
    pub fn address(&self) -> u64 {
        self.buffer.address()
    }

    /// Its length in bytes: the last of an entry is shorter than the others.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether it has no bytes. No block is given to a hook that has none.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Where work on it belongs. Its bytes are there when this stream begins with that, and go on
    /// when it is done. Its context is current.
    pub fn stream(&self) -> &Stream {
        self.stream
    }
}

impl<T> ThroughGpu<T> {
    /// With buffers as long as the longest block, at least; one for each thread that reads or
    /// writes, or threads wait for one another.
    pub fn new(inner: T, pool: DeviceBufferManager) -> Self {
        let stage = DeviceStage {
            streams: Arc::new(CopyStreams::new(pool.device())),
            pool,
            hook: None,
            ways: Arc::default(),
        };
        Self { inner, stage }
    }

    /// Called with each block while it is in the GPU's memory, by several threads at once; an error
    /// fails the stream.
    ///
    /// In front of the wire the hook may change the bytes: what is checked and sent is what it
    /// leaves there. Behind the wire it should only look: what it changes is written so, but has
    /// not the checksum that the stream came with, and then such a stream is never resumed where it
    /// was cut, and fails where its sender asked for reading back.
    #[must_use]
    pub fn hook(
        mut self,
        hook: impl Fn(&DeviceBlock<'_>) -> Result<(), HookError> + Send + Sync + 'static,
    ) -> Self {
        self.stage.hook = Some(Arc::new(hook));
        self
    }
}

/// What blocks pass between the host's memory and a source or a sink: a GPU's memory.
#[derive(Clone)]
struct DeviceStage {
    pool: DeviceBufferManager,
    streams: Arc<CopyStreams>,
    hook: Option<Arc<Hook>>,
    /// How bytes went between the GPU's memory and source or sink so far, a bit each: `BY_CUFILE`,
    /// `STAGED`.
    ways: Arc<AtomicU8>,
}

const BY_CUFILE: u8 = 1;
const STAGED: u8 = 2;

impl DeviceStage {
    fn buffer(&self, len: usize) -> Result<DeviceBuffer, String> {
        let has = self.pool.slot_size();
        if len > has {
            return Err(format!("a block of {len} bytes, device buffers have {has}"));
        }
        let buffer = self.pool.acquire(Instant::now() + BUFFER_WAIT);
        let mut buffer = buffer.map_err(|error| format!("a device buffer: {error}"))?;
        buffer.set_len(len);
        Ok(buffer)
    }

    fn run_hook(
        &self,
        (entry, offset): (usize, u64),
        buffer: &DeviceBuffer,
        stream: &Stream,
    ) -> Result<(), HookFailed> {
        let Some(hook) = &self.hook else {
            return Ok(());
        };
        let block = DeviceBlock {
            entry,
            offset,
            buffer,
            stream,
        };
        let _current = stream.enter().map_err(HookFailed::Cuda)?;
        hook(&block).map_err(|error| HookFailed::Refused(error.to_string()))
    }

    fn note(&self, way: BackEnd) {
        let bit = match way {
            BackEnd::CuFile => BY_CUFILE,
            _ => STAGED,
        };
        self.ways.fetch_or(bit, Ordering::Relaxed);
    }

    /// The way between source or sink and the GPU's memory.
    fn way(&self) -> &'static str {
        match self.ways.load(Ordering::Relaxed) {
            0 => "no bytes",
            BY_CUFILE => "cuFile",
            STAGED => "pinned staging",
            _ => "cuFile and pinned staging",
        }
    }
}

enum HookFailed {
    Cuda(CudaError),
    Refused(String),
}

impl From<HookFailed> for SourceError {
    fn from(failed: HookFailed) -> Self {
        match failed {
            HookFailed::Cuda(error) => error.into(),
            HookFailed::Refused(text) => Self::Other(text),
        }
    }
}

impl From<HookFailed> for SinkError {
    fn from(failed: HookFailed) -> Self {
        match failed {
            HookFailed::Cuda(error) => error.into(),
            HookFailed::Refused(text) => Self::Other(text),
        }
    }
}

impl<S: BlockSource> BlockSource for ThroughGpu<S> {
    fn manifest(&self) -> &Manifest {
        self.inner.manifest()
    }

    fn stamp(&self) -> [u8; 16] {
        self.inner.stamp()
    }

    fn read(&self, entry: usize, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        // What a link points to is no content for a hook.
        if self.inner.manifest().is_link(entry) {
            return self.inner.read(entry, offset, into);
        }
        let stage = &self.stage;
        let mut buffer = stage.buffer(into.len()).map_err(SourceError::Other)?;
        stage.streams.with(|stream| {
            let way = self
                .inner
                .read_to_device(entry, offset, &mut buffer, into, stream)?;
            stage.note(way);
            stage.run_hook((entry, offset), &buffer, stream)?;
            Ok(buffer.copy_to_host(into, stream)?)
        })
    }

    fn path(&self) -> Option<String> {
        let device = self.stage.pool.device();
        let way = self.stage.way();
        Some(format!("source → {way} → memory of {device}"))
    }

    fn io_stats(&self) -> Option<IoStats> {
        self.inner.io_stats()
    }

    fn check_unchanged(&self) -> Result<(), SourceError> {
        self.inner.check_unchanged()
    }

    fn left_out(&self) -> LeftOut {
        self.inner.left_out()
    }
}

impl<F: SinkFactory> SinkFactory for ThroughGpu<F> {
    fn make(&self, offer: &StreamOffer) -> Result<Box<dyn BlockSink>, SinkError> {
        Ok(Box::new(ThroughGpuSink {
            inner: self.inner.make(offer)?,
            manifest: Arc::clone(&offer.manifest),
            stage: DeviceStage {
                // Of this stream alone.
                ways: Arc::default(),
                ..self.stage.clone()
            },
        }))
    }

    fn takes_links(&self) -> bool {
        self.inner.takes_links()
    }

    fn takes_owners(&self) -> bool {
        self.inner.takes_owners()
    }

    fn takes_attributes(&self) -> bool {
        self.inner.takes_attributes()
    }

    fn takes_deletions(&self) -> bool {
        self.inner.takes_deletions()
    }
}

/// The sink of one stream.
#[derive(Debug)]
struct ThroughGpuSink {
    inner: Box<dyn BlockSink>,
    manifest: Arc<Manifest>,
    stage: DeviceStage,
}

impl BlockSink for ThroughGpuSink {
    fn open(&self, offer: &StreamOffer, stop: &Stop) -> Result<Kept, SinkError> {
        self.inner.open(offer, stop)
    }

    fn write(&self, block: Block, crc: u32, bytes: &[u8]) -> Result<(), SinkError> {
        if self.manifest.is_link(block.entry) {
            return self.inner.write(block, crc, bytes);
        }
        let stage = &self.stage;
        let mut buffer = stage.buffer(bytes.len()).map_err(SinkError::Other)?;
        stage.streams.with(|stream| {
            buffer.copy_from_host(bytes, stream)?;
            stage.run_hook((block.entry, block.offset), &buffer, stream)?;
            if stage.hook.is_some() {
                // What writes the file has streams of its own.
                stream.synchronize()?;
            }
            let way = self.inner.write_from_device(block, crc, &buffer, stream)?;
            stage.note(way);
            Ok(())
        })
    }

    fn path(&self) -> Option<String> {
        let device = self.stage.pool.device();
        let way = self.stage.way();
        Some(format!("memory of {device} → {way} → sink"))
    }

    fn io_stats(&self) -> Option<IoStats> {
        self.inner.io_stats()
    }

    fn finish(&self, stop: &Stop) -> Result<ReadBack, SinkError> {
        self.inner.finish(stop)
    }

    fn deleted(&self) -> u64 {
        self.inner.deleted()
    }

    fn keep(&self, block: Block, crc: u32) -> Result<bool, SinkError> {
        self.inner.keep(block, crc)
    }

    fn abandon(&self) {
        self.inner.abandon();
    }
}

impl fmt::Debug for DeviceStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceStage")
            .field("pool", &self.pool)
            .field("hook", &self.hook.is_some())
            .finish_non_exhaustive()
    }
}
