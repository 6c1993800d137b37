//! `MemorySink`: streams that end in memory.

use std::sync::{Arc, Mutex, PoisonError};

use super::{BlockSink, Kept, ReadBack, SinkError, SinkFactory, Stop, StreamOffer, starts};
use crate::stream::{Block, Manifest};

/// One stream that has arrived.
#[derive(Debug, Clone)]
pub struct InMemory {
    /// Its entries.
    pub manifest: Arc<Manifest>,
    /// The bytes of all of them, one after the other in the order of the manifest.
    pub bytes: Vec<u8>,
}

/// Keeps streams in memory until they are [taken](Self::take).
///
/// All that was kept and not taken counts against the limit; a stream for which there is no room is
/// refused.
#[derive(Debug, Clone)]
pub struct MemorySink(Arc<MemorySinkShared>);

#[derive(Debug)]
struct MemorySinkShared {
    room: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used: u64,
    done: Vec<InMemory>,
}

#[derive(Debug)]
struct MemoryFilling {
    kept: Arc<MemorySinkShared>,
    claimed: u64,
    /// Taken by `finish`.
    parts: Mutex<Option<InMemory>>,
    starts: Vec<u64>,
}

impl MemorySink {
    /// Room for so many bytes.
    pub fn new(room: u64) -> Self {
        let state = Mutex::new(State::default());
        Self(Arc::new(MemorySinkShared { room, state }))
    }

    /// The streams that have arrived, whole and checked, since the last time.
    pub fn take(&self) -> Vec<InMemory> {
        let mut state = self.0.lock();
        let done = std::mem::take(&mut state.done);
        let taken: u64 = done.iter().map(|stream| stream.bytes.len() as u64).sum();
        state.used -= taken;
        done
    }
}

impl MemorySinkShared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SinkFactory for MemorySink {
    fn make(&self, offer: &StreamOffer) -> Result<Box<dyn BlockSink>, SinkError> {
        let bytes = offer.manifest.bytes();
        let mut state = self.0.lock();
        let room = self.0.room - state.used;
        let fits = usize::try_from(bytes).ok().filter(|_| bytes <= room);
        let Some(len) = fits else {
            return Err(SinkError::TooLarge { bytes, room });
        };
        state.used += bytes;
        drop(state);
        Ok(Box::new(MemoryFilling {
            kept: Arc::clone(&self.0),
            claimed: bytes,
            starts: starts(&offer.manifest),
            parts: Mutex::new(Some(InMemory {
                manifest: Arc::clone(&offer.manifest),
                bytes: vec![0; len],
            })),
        }))
    }
}

impl BlockSink for MemoryFilling {
    fn open(&self, _offer: &StreamOffer, _stop: &Stop) -> Result<Kept, SinkError> {
        Ok(Kept::default())
    }

    fn write(&self, block: Block, _crc: u32, bytes: &[u8]) -> Result<(), SinkError> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let start = self.starts.get(block.entry).copied();
        let place = start.zip(parts.as_mut()).and_then(|(start, stream)| {
            let from = usize::try_from(start + block.offset).ok()?;
            stream.bytes.get_mut(from..from + bytes.len())
        });
        let place = place.ok_or_else(|| SinkError::Other("a block out of its place".to_owned()))?;
        place.copy_from_slice(bytes);
        Ok(())
    }

    fn finish(&self, _stop: &Stop) -> Result<ReadBack, SinkError> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = parts.take() {
            self.kept.lock().done.push(stream);
        }
        Ok(ReadBack::default())
    }

    fn abandon(&self) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if parts.take().is_some() {
            self.kept.lock().used -= self.claimed;
        }
    }
}

impl Drop for MemoryFilling {
    fn drop(&mut self) {
        self.abandon();
    }
}
