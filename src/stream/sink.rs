//! `BlockSink`: where the bytes of a stream go to.

pub(crate) mod beneath;
mod device;
mod directory;
mod discard;
mod memory;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::block_set::BlockSet;
use super::content_hash::{BlockHash, ContentHash};
use super::digest::{StreamDigest, crc32c};
use super::incoming::HadContent;
use super::sums::{ContentSum, content_sum};
use super::{Block, BlockPlan, EntryKind, Manifest, StreamIdentity};
use crate::buffer::DeviceBuffer;
use crate::cuda::{CudaError, Stream};
use crate::memory::MemoryError;
use crate::storage::{BackEnd, IoStats};

pub use device::{DeviceSink, OnDevice};
pub use directory::{DirectorySink, LinkTargets};
pub use discard::DiscardSink;
pub use memory::{InMemory, MemorySink};

/// What a stream is, as its sender said and the receiver's limits allow.
#[derive(Debug, Clone)]
pub struct StreamOffer {
    /// Where it goes, and what it is. What a sink keeps of a stream that was cut, it keeps under
    /// the key, and resumes with the stamp that it began with only.
    pub identity: StreamIdentity,
    /// The entries, in the sender's order.
    pub manifest: Arc<Manifest>,
    /// Which block is which part of which entry.
    pub plan: Arc<BlockPlan>,
    /// Blocks carry checksums: without, none is known of what was written, and nothing can be
    /// resumed.
    pub crc32c: bool,
    /// BLAKE3 of the content is computed: it takes the hashes of the blocks that are kept, too.
    pub blake3: bool,
    /// Everything is to be on the device before the stream is complete.
    pub sync: bool,
    /// Everything is to be read back and checked before the stream is complete.
    pub read_back: bool,
    /// Whether what the sink has of an earlier stream with this key is to be thrown away.
    pub restart: bool,
    /// Whether files that are there already, with the size and the time of their last change that
    /// the manifest has, are kept as they are ([`Kept::add_unread`]). Only with checksums, and
    /// without `blake3` and `read_back`.
    pub skip_unchanged: bool,
    /// Whether files that are there with the same size and another time are compared: what lies in
    /// them is told by [`Kept::add_compared`]. Only with `skip_unchanged`.
    pub compare_content: bool,
    /// Whether what lies in directories of the stream, and is not of it, is removed when all is in
    /// its place. It comes to sinks that [take it](SinkFactory::takes_deletions) only.
    pub delete: bool,
}

/// Makes a sink for each stream that comes in.
///
/// [`DirectorySink`], [`DiscardSink`], [`MemorySink`] and [`DeviceSink`] are what this library
/// brings.
pub trait SinkFactory: Send + Sync + std::fmt::Debug + 'static {
    /// A sink for one stream; nothing is opened yet.
    ///
    /// # Errors
    /// The stream is refused with it.
    fn make(&self, offer: &StreamOffer) -> Result<Box<dyn BlockSink>, SinkError>;

    /// Whether its sinks take symbolic links ([`EntryKind::Link`]), whose content is what they
    /// point to. A stream that has some is not sent to a receiver that takes none.
    fn takes_links(&self) -> bool {
        false
    }

    /// Whether its sinks give what they make the owners that senders say ([`Manifest::owner`]). A
    /// stream with owners is not sent to a receiver that takes none.
    fn takes_owners(&self) -> bool {
        false
    }

    /// Whether its sinks give what they make the extended attributes that senders say
    /// ([`Manifest::attributes`]). A stream with these is not sent to a receiver that takes none.
    fn takes_attributes(&self) -> bool {
        false
    }

    /// Whether its sinks remove what is there besides, for senders that ask for it
    /// ([`StreamOffer::delete`]). Others are refused that.
    fn takes_deletions(&self) -> bool {
        false
    }
}

/// Takes the blocks of one stream, in any order, from several threads at once. Each block comes
/// once.
///
/// The order of calls is [`open`](Self::open), [`write`](Self::write) for each block that is
/// missing, and then [`finish`](Self::finish) when all are written, or [`abandon`](Self::abandon).
pub trait BlockSink: Send + Sync + std::fmt::Debug {
    /// Makes ready, and says which blocks are there from an earlier stream that was cut: only those
    /// whose bytes were read and found right.
    ///
    /// # Errors
    /// The stream is refused with it.
    fn open(&self, offer: &StreamOffer, stop: &Stop) -> Result<Kept, SinkError>;

    /// Takes the bytes of a block, whose CRC32C was found right.
    ///
    /// # Errors
    /// The stream fails with it.
    fn write(&self, block: Block, crc: u32, bytes: &[u8]) -> Result<(), SinkError>;

    /// Takes several small blocks that came as one message, as a run of small files does.
    ///
    /// Unless a sink has a better way, each is [written](Self::write) by itself.
    ///
    /// # Errors
    /// As for [`write`](Self::write); it is not said which of the blocks were taken.
    fn write_all(&self, blocks: &[CheckedBlock<'_>]) -> Result<(), SinkError> {
        blocks
            .iter()
            .try_for_each(|checked| self.write(checked.block, checked.crc, checked.bytes))
    }

    /// A block is what lies in the file of its name, as the sink has
    /// [told](Kept::add_compared): its bytes don't come. It has this CRC32C. Whether it is still
    /// there: else its bytes are sent.
    ///
    /// # Errors
    /// The stream fails with it.
    fn keep(&self, block: Block, crc: u32) -> Result<bool, SinkError> {
        let _ = (block, crc);
        Ok(false)
    }

    /// Takes the bytes of a block out of a GPU's memory: what [`ThroughGpu`](super::ThroughGpu)
    /// does with a sink. The stream may be used on the way. Which way they went.
    ///
    /// Unless a sink has a better way, they are copied to the host, and [written](Self::write).
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    fn write_from_device(
        &self,
        block: Block,
        crc: u32,
        from: &DeviceBuffer,
        stream: &Stream,
    ) -> Result<BackEnd, SinkError> {
        let mut host = vec![0; from.len()];
        from.copy_to_host(&mut host, stream)?;
        self.write(block, crc, &host)?;
        Ok(BackEnd::Staged)
    }

    /// What the bytes pass behind the memory that they arrive in, for reports; `None`: nothing but
    /// the host's memory.
    fn path(&self) -> Option<String> {
        None
    }

    /// What was done with files so far, for reports; `None`: there are none.
    fn io_stats(&self) -> Option<IoStats> {
        None
    }

    /// All blocks are written: makes everything appear under its name, checked and on the device as
    /// the offer asked. What was read back to check it. Once it has begun to make things appear, it
    /// does not [stop](Stop).
    ///
    /// # Errors
    /// The stream fails with it. [`SinkError::Placed`] says that something has appeared by then,
    /// and how much; each file of that is whole.
    fn finish(&self, stop: &Stop) -> Result<ReadBack, SinkError>;

    /// How many files and directories it has removed, which is asked when it is
    /// [finished](Self::finish).
    fn deleted(&self) -> u64 {
        0
    }

    /// The stream was cut, cancelled, or failed: nothing appears under its name. What is needed to
    /// resume it may be kept.
    fn abandon(&self);
}

/// A block whose CRC32C was found right, for [`BlockSink::write_all`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct CheckedBlock<'a> {
    /// Where it belongs.
    pub block: Block,
    /// Its CRC32C; 0 in a stream without checksums.
    pub crc: u32,
    /// Its bytes.
    pub bytes: &'a [u8],
}

impl<'a> CheckedBlock<'a> {
    /// Of a block and what came of it.
    pub(super) fn new(block: Block, crc: u32, bytes: &'a [u8]) -> Self {
        Self { block, crc, bytes }
    }
}

/// What a sink has before the stream begins: blocks of an earlier stream that was cut, whose bytes
/// were read and found right; and, where the offer asks for it, files that are there unchanged. It
/// takes a bit for each block of the stream.
#[derive(Debug)]
pub struct Kept {
    have: BlockSet,
    bytes: u64,
    unchanged: u64,
    sums: BTreeMap<u64, ContentSum>,
    digest: Option<StreamDigest>,
    content: Option<ContentHash>,
}

impl Default for Kept {
    fn default() -> Self {
        Self {
            have: BlockSet::new(0),
            bytes: 0,
            unchanged: 0,
            sums: BTreeMap::new(),
            digest: None,
            content: None,
        }
    }
}

impl Kept {
    /// Nothing yet, of this stream. The default is nothing, of any.
    pub fn new(offer: &StreamOffer) -> Self {
        let plan = &offer.plan;
        let content = || ContentHash::new(plan, offer.manifest.len());
        Self {
            have: BlockSet::new(plan.blocks()),
            bytes: 0,
            unchanged: 0,
            sums: BTreeMap::new(),
            digest: Some(StreamDigest::new(plan.blocks())),
            content: offer.blake3.then(content),
        }
    }

    /// Adds a block of the stream, whose bytes were just read and found right. What is no block of
    /// it, or there already, is left out.
    pub fn add(&mut self, offer: &StreamOffer, block: &Block, bytes: &[u8]) {
        self.add_summed(offer, block, bytes, crc32c(bytes));
    }

    /// Adds a block whose CRC32C is known.
    fn add_summed(&mut self, offer: &StreamOffer, block: &Block, bytes: &[u8], crc: u32) {
        let is_of_it = offer.plan.get(block.index) == Some(*block);
        if !is_of_it || bytes.len() != block.len as usize || self.have.contains(block.index) {
            return;
        }
        let Some(digest) = &mut self.digest else {
            return;
        };
        self.have.insert(block.index);
        self.bytes += u64::from(block.len);
        digest.add(block.index, block.len, crc);
        if let Some(content) = &mut self.content {
            content.add(block, BlockHash::new(&offer.plan, block, bytes));
        }
    }

    /// Adds a file of the stream that is there with the size and the time that the manifest has:
    /// all of its blocks, of which none was read. They have no part in the stream's digest. What is
    /// no file of the stream, or not to be kept by its offer, is left out.
    pub fn add_unread(&mut self, offer: &StreamOffer, entry: usize) {
        let Some(found) = offer.manifest.get(entry) else {
            return;
        };
        // What is hashed has to be read.
        let may_skip = offer.skip_unchanged && self.digest.is_some() && self.content.is_none();
        if !may_skip || found.kind == EntryKind::Directory {
            return;
        }
        let blocks = offer.plan.of_entry(entry);
        for block in blocks.filter_map(|index| offer.plan.get(index)) {
            if self.have.insert(block.index) {
                self.bytes += u64::from(block.len);
            }
        }
        self.unchanged += 1;
    }

    /// Tells the sender what lies in the file of a block's name, in the block's place: where it has
    /// the same, it says so ([`BlockSink::keep`]) and does not send it. What is no block of the
    /// stream, there already, or not to be compared by its offer, is left out.
    pub fn add_compared(&mut self, offer: &StreamOffer, block: &Block, bytes: &[u8]) {
        let is_of_it = offer.plan.get(block.index) == Some(*block);
        let is_whole = bytes.len() == block.len as usize;
        if offer.compare_content
            && is_of_it
            && is_whole
            && self.digest.is_some()
            && !self.have.contains(block.index)
        {
            self.sums.insert(block.index, content_sum(bytes));
        }
    }

    /// Which blocks they are.
    pub fn blocks(&self) -> &BlockSet {
        &self.have
    }

    /// What becomes of the answer of a sink that said nothing of this stream, or spoke of another.
    pub(super) fn or_none_of(self, offer: &StreamOffer) -> Self {
        let fits = self.digest.is_some()
            && self.have.blocks() == offer.plan.blocks()
            && self.content.is_some() == offer.blake3;
        if fits { self } else { Self::new(offer) }
    }

    pub(super) fn into_content(mut self) -> HadContent {
        // Whatever was added last.
        self.sums.retain(|block, _| !self.have.contains(*block));
        HadContent {
            digest_part: self.digest.map_or(0, |digest| digest.part()),
            blocks: self.have,
            bytes: self.bytes,
            unchanged: self.unchanged,
            sums: self.sums,
            hash: self.content,
        }
    }
}

/// What was read back, once all was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadBack {
    /// Bytes that were read and checked.
    pub bytes: u64,
    /// How long that took, with the syncing that it needs.
    pub took: Duration,
}

/// Whether long work is to be given up, because the peer has gone or the receiver stops.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks for it.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked for.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// # Errors
    /// [`SinkError::Stopped`] when it was asked for.
    pub fn check(&self) -> Result<(), SinkError> {
        match self.is_set() {
            true => Err(SinkError::Stopped),
            false => Ok(()),
        }
    }
}

/// Why a sink can't take a stream, or a block of it.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SinkError {
    /// The system refused.
    #[error("{what}: {}", io::Error::from_raw_os_error(*errno))]
    Os {
        /// The name of the entry.
        what: String,
        /// The system's error number, as errno(3) counts them.
        errno: i32,
    },
    /// What is kept is of another content under the same names. Send it anew, with restart.
    #[error(
        "what is kept of an earlier, cut stream is of another content: it can't be resumed, only \
         restarted (SendOptions::restart, or fabricast send --restart)"
    )]
    SourceChanged,
    /// Another stream with the same names is under way.
    #[error("another stream of the same names is under way: wait for its end, or cancel it")]
    Busy,
    /// What was read back is not what was written.
    #[error("{what}: what was read back of block {block} is not what was written")]
    ReadBack {
        /// The entry's name.
        what: String,
        /// The block's number.
        block: u64,
    },
    /// The stream is larger than there is room for.
    #[error(
        "a stream of {bytes} bytes, and the sink has room for {room}: make it with more, or have \
         senders send less at a time"
    )]
    TooLarge {
        /// Bytes of the stream.
        bytes: u64,
        /// Bytes that there is room for.
        room: u64,
    },
    /// A part of it is under its names already, and the rest can't be put there.
    #[error(
        "{placed} of {entries} files and directories are under their names, the others not: {error}"
    )]
    Placed {
        /// Entries that are.
        placed: u64,
        /// Entries of the stream.
        entries: u64,
        /// What stopped it.
        error: Box<Self>,
    },
    /// All of it is under its names, and not all that was to be removed is.
    #[error(
        "all of it is under its names; {removed} files and directories besides were removed, \
         {failed} could not be: {error}"
    )]
    Delete {
        /// Files and directories that were removed.
        removed: u64,
        /// Those that could not be.
        failed: u64,
        /// Why not the first of these.
        error: Box<Self>,
    },
    /// The CUDA driver refused.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The stream was given up, because the peer has gone or the receiver stops.
    #[error("stopped")]
    Stopped,
    /// What a sink of the user's says.
    #[error("{0}")]
    Other(String),
}

fabricast_process::debug_as_words!(SinkError);

impl SinkError {
    fn os(what: &[u8], error: impl Into<io::Error>) -> Self {
        Self::Os {
            what: String::from_utf8_lossy(what).into_owned(),
            errno: error.into().raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

impl From<MemoryError> for SinkError {
    fn from(error: MemoryError) -> Self {
        Self::Other(error.to_string())
    }
}

/// Where each entry's bytes begin, where they lie one after the other in the order of the manifest.
fn starts(manifest: &Manifest) -> Vec<u64> {
    let sizes = manifest.iter().map(|entry| entry.size);
    let starts = sizes.scan(0, |end, size| {
        *end += size;
        Some(*end - size)
    });
    starts.collect()
}
