//! `DeviceSource`: a GPU's memory that is sent.

use std::time::Duration;

use super::{BlockSource, SourceError};
use crate::buffer::RegionSlice;
use crate::clock::Clock;
use crate::cuda::Event;
use crate::stream::Manifest;
use crate::stream::copy_streams::CopyStreams;

/// How often it is asked whether an event has happened.
const ASK_EVERY: Duration = Duration::from_micros(50);

/// One entry, whose bytes lie in a GPU's memory. Each block is copied once, into the buffer that it
/// is sent from, by the threads that read: best with
/// [`StreamSettings::pinned`](crate::stream::StreamSettings::pinned), and with several threads,
/// whose copies run at once.
///
/// Who writes to the memory before the stream is over sends a mixture.
///
/// ```no_run
/// use std::time::Duration;
/// use fabricast::Region;
/// use fabricast::cuda::{Device, Stream};
/// use fabricast::stream::DeviceSource;
///
/// let region = Region::device(1 << 30).build()?;
/// let stream = Stream::new(Device::new(0)?)?;
/// // ... a kernel on the stream fills the region, then:
/// let source = DeviceSource::new("image", region.slice(0..1 << 30)?, [0; 16])?;
/// let source = source.after(stream.record()?, Duration::from_secs(5));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DeviceSource {
    manifest: Manifest,
    slice: RegionSlice,
    stamp: [u8; 16],
    streams: CopyStreams,
    /// The producer's event, and how long it may take.
    after: Option<(Event, Duration)>,
    clock: Clock,
}

impl DeviceSource {
    /// The bytes of a slice under a name. `stamp` is the caller's own: what tells this content from
    /// another of the same name.
    ///
    /// # Errors
    /// [`SourceError::Name`] for a name that can't be sent; [`SourceError::Other`] where the slice
    /// is memory of the host, which [`BufferSource`](super::BufferSource) sends.
    pub fn new(name: &str, slice: RegionSlice, stamp: [u8; 16]) -> Result<Self, SourceError> {
        let streams = CopyStreams::of(&slice)?;
        Ok(Self {
            manifest: super::single(name, slice.len() as u64)?,
            slice,
            stamp,
            streams,
            after: None,
            clock: Clock::system(),
        })
    }

    /// Nothing is copied before the event has happened: what fills the memory was given to its
    /// stream before that was recorded. A block that waits for it longer than `limit` fails the
    /// stream.
    #[must_use]
    pub fn after(mut self, event: Event, limit: Duration) -> Self {
        self.after = Some((event, limit));
        self
    }

    fn wait(&self) -> Result<(), SourceError> {
        let Some((event, limit)) = &self.after else {
            return Ok(());
        };
        let began = self.clock.now();
        while !event.is_done()? {
            if self.clock.since(began) > *limit {
                let text =
                    format!("the event that the memory waits for did not happen in {limit:?}");
                return Err(SourceError::Other(text));
            }
            std::thread::sleep(self.clock.sleep_for(ASK_EVERY));
        }
        Ok(())
    }
}

impl BlockSource for DeviceSource {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn stamp(&self) -> [u8; 16] {
        self.stamp
    }

    fn read(&self, _entry: usize, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        self.wait()?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let to = from.saturating_add(into.len());
        let bytes = self.slice.slice(from..to)?;
        let copy = self.streams.with(|stream| bytes.copy_to_host(into, stream));
        Ok(copy?)
    }

    fn path(&self) -> Option<String> {
        Some(format!("memory of {}", self.streams.device()))
    }
}
