//! `DeviceSink`: streams that end in a GPU's memory.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::{BlockSink, Kept, ReadBack, SinkError, SinkFactory, Stop, StreamOffer, starts};
use crate::buffer::RegionSlice;
use crate::stream::copy_streams::CopyStreams;
use crate::stream::{Block, Manifest, StreamIdentity};

/// Streams that have arrived and were not taken, at most.
const ARRIVED_MAX: usize = 4096;

/// One stream that has arrived.
#[derive(Debug, Clone)]
pub struct OnDevice {
    /// Where it was to go, and what it is.
    pub identity: StreamIdentity,
    /// Its entries.
    pub manifest: Arc<Manifest>,
    /// The bytes of all of them, one after the other in the order of the manifest, from the
    /// beginning of the memory that was given for it. `None` for a stream of 0 bytes.
    pub bytes: Option<RegionSlice>,
}

/// Puts streams into a GPU's memory, and keeps them until they are [taken](Self::take).
///
/// Each block is copied once, out of the buffer that it came in, by the threads that write: best
/// with [`StreamSettings::pinned`](crate::stream::StreamSettings::pinned). When a stream is
/// complete its copies are over: whatever is given to any CUDA stream from then on sees all of it.
/// Of a stream that was cut nothing is kept: it begins anew.
///
/// ```no_run
/// use fabricast::Region;
/// use fabricast::stream::{DeviceSink, ReceiverConfig, SinkError};
///
/// // Memory of its own for each stream.
/// let sink = DeviceSink::new(|offer| {
///     let len = usize::try_from(offer.manifest.bytes()).unwrap_or(usize::MAX);
///     Ok(Region::device(len).build()?.slice(0..len)?)
/// });
/// let config = ReceiverConfig::new(sink.clone()).stream(|s| s.pinned(true));
/// // ... a `StreamReceiver` says `StreamEvent::Complete`, then:
/// for stream in sink.take() {
///     println!("{:?} at {:?}", stream.manifest, stream.bytes.map(|bytes| bytes.address()));
/// }
/// # Ok::<(), SinkError>(())
/// ```
#[derive(Debug, Clone)]
pub struct DeviceSink(Arc<DeviceSinkShared>);

struct DeviceSinkShared {
    place: Box<Place>,
    arrived: Mutex<Vec<OnDevice>>,
}

type Place = dyn Fn(&StreamOffer) -> Result<RegionSlice, SinkError> + Send + Sync;

/// One stream.
#[derive(Debug)]
struct DeviceFilling {
    shared: Arc<DeviceSinkShared>,
    stream: OnDevice,
    starts: Vec<u64>,
    /// `None`: the stream has no bytes.
    streams: Option<CopyStreams>,
}

impl DeviceSink {
    /// `place` is asked once for each stream, which must fit: an error of its refuses the stream.
    /// It gives what nobody else uses until the stream was taken, or the slice is dropped because
    /// it was cut. It runs on the receiver's thread, and should not take long.
    pub fn new(
        place: impl Fn(&StreamOffer) -> Result<RegionSlice, SinkError> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(DeviceSinkShared {
            place: Box::new(place),
            arrived: Mutex::default(),
        }))
    }

    /// The streams that have arrived, whole and checked, since the last time.
    pub fn take(&self) -> Vec<OnDevice> {
        std::mem::take(&mut self.0.lock())
    }
}

impl DeviceSinkShared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<OnDevice>> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SinkFactory for DeviceSink {
    fn make(&self, offer: &StreamOffer) -> Result<Box<dyn BlockSink>, SinkError> {
        if self.0.lock().len() >= ARRIVED_MAX {
            let text = format!("{ARRIVED_MAX} streams have arrived, and nobody takes them");
            return Err(SinkError::Other(text));
        }
        let bytes = offer.manifest.bytes();
        let mut slice = None;
        let mut streams = None;
        if bytes > 0 {
            let given = (self.0.place)(offer)?;
            let room = given.len() as u64;
            if bytes > room {
                return Err(SinkError::TooLarge { bytes, room });
            }
            streams = Some(CopyStreams::of(&given)?);
            slice = Some(given);
        }
        Ok(Box::new(DeviceFilling {
            shared: Arc::clone(&self.0),
            stream: OnDevice {
                identity: offer.identity,
                manifest: Arc::clone(&offer.manifest),
                bytes: slice,
            },
            starts: starts(&offer.manifest),
            streams,
        }))
    }
}

impl BlockSink for DeviceFilling {
    fn open(&self, _offer: &StreamOffer, _stop: &Stop) -> Result<Kept, SinkError> {
        Ok(Kept::default())
    }

    fn write(&self, block: Block, _crc: u32, bytes: &[u8]) -> Result<(), SinkError> {
        let out_of_place = || SinkError::Other("a block out of its place".to_owned());
        let start = self.starts.get(block.entry).copied();
        let (Some(start), Some(slice), Some(streams)) = (start, &self.stream.bytes, &self.streams)
        else {
            return Err(out_of_place());
        };
        let from = usize::try_from(start + block.offset).map_err(|_| out_of_place())?;
        let place = slice.slice(from..from.saturating_add(bytes.len()))?;
        let copy = streams.with(|stream| place.copy_from_host(bytes, stream));
        Ok(copy?)
    }

    fn finish(&self, _stop: &Stop) -> Result<ReadBack, SinkError> {
        self.shared.lock().push(self.stream.clone());
        Ok(ReadBack::default())
    }

    fn abandon(&self) {}

    fn path(&self) -> Option<String> {
        let streams = self.streams.as_ref();
        streams.map(|streams| format!("memory of {}", streams.device()))
    }
}

impl fmt::Debug for DeviceSinkShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceSink")
            .field("arrived", &self.lock().len())
            .finish_non_exhaustive()
    }
}
