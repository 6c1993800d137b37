//! `Destination`: where a one-sided read puts its bytes.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use crate::buffer::{BufferMut, DeviceBuffer, RegionSlice};
use crate::cuda::Stream;
use crate::error::CompletionError;
use crate::memory::{Region, Scope};

/// Where a one-sided read puts its bytes: a [`BufferMut`], or its first bytes, a [`RegionSlice`] or
/// a [`DeviceBuffer`]. It moves into the endpoint and comes back with the outcome.
///
/// The memory may be a GPU's. Where the provider can't reach that, the bytes come to slots of the
/// endpoint's [`StagingRing`](crate::endpoint::StagingRing) and are copied from there, in pieces if
/// there are more than a slot has; the outcome follows the last copy, or a stream that is
/// [named](Self::stream) waits for it.
pub struct Destination {
    kind: Kind,
    len: usize,
}

enum Kind {
    Buffer(BufferMut),
    Slice(RegionSlice),
    Device(DeviceBuffer),
    InOrder(Box<InOrder>),
}

/// One of the others, and who waits for its bytes.
struct InOrder {
    kind: Kind,
    stream: Stream,
}

impl Destination {
    /// The first `len` bytes of a buffer.
    ///
    /// # Panics
    ///
    /// If the buffer has fewer.
    pub fn buffer(buffer: BufferMut, len: usize) -> Self {
        assert!(
            len <= buffer.len(),
            "{len} bytes into a buffer of {} bytes",
            buffer.len()
        );
        Self {
            kind: Kind::Buffer(buffer),
            len,
        }
    }

    /// Has this stream wait for the bytes, where they are copied to a GPU's memory: the outcome
    /// comes when the copies are under way, and what is given to the stream from then on finds
    /// them. The memory must not be dropped, nor filled again, before the work with it is done.
    ///
    /// Of two streams the last counts. Where nothing is copied, the outcome comes when the bytes
    /// are there, and no stream waits.
    #[must_use]
    pub fn stream(self, stream: &Stream) -> Self {
        let (kind, stream) = (self.kind.plain(), stream.clone());
        Self {
            kind: Kind::InOrder(Box::new(InOrder { kind, stream })),
            len: self.len,
        }
    }

    /// The stream that was named.
    pub(crate) fn told(&self) -> Option<&Stream> {
        match &self.kind {
            Kind::InOrder(told) => Some(&told.stream),
            Kind::Buffer(_) | Kind::Slice(_) | Kind::Device(_) => None,
        }
    }

    /// How many bytes are read.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no room for a byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The region that it lies in.
    pub fn region(&self) -> &Arc<Region> {
        self.kind.region()
    }

    /// Its first byte, as CUDA has it; for memory of the host, its address.
    pub(crate) fn address(&self) -> u64 {
        self.kind.address()
    }

    /// The buffer, if it is one.
    ///
    /// # Errors
    /// Gives the destination back when it is a slice.
    pub fn into_buffer(self) -> Result<BufferMut, Self> {
        match self.kind.plain() {
            Kind::Buffer(buffer) => Ok(buffer),
            kind => Err(Self { kind, ..self }),
        }
    }

    /// The slice, if it is one.
    ///
    /// # Errors
    /// Gives the destination back when it is a buffer.
    pub fn into_slice(self) -> Result<RegionSlice, Self> {
        match self.kind.plain() {
            Kind::Slice(slice) => Ok(slice),
            kind => Err(Self { kind, ..self }),
        }
    }

    /// The buffer in a device's memory, if it is one.
    ///
    /// # Errors
    /// Gives the destination back when it is something else.
    pub fn into_device_buffer(self) -> Result<DeviceBuffer, Self> {
        match self.kind.plain() {
            Kind::Device(buffer) => Ok(buffer),
            kind => Err(Self { kind, ..self }),
        }
    }

    /// Makes what was read visible, where it is in a device's memory; why that failed.
    #[inline]
    pub(crate) fn unseen(&self) -> Option<CompletionError> {
        let device = self.region().kind().device()?;
        let error = device.see_writes().err()?;
        tracing::error!(%error, "what was read can't be made visible");
        Some(CompletionError::new(libc::EIO))
    }

    /// Keeps the registration open for one operation; where the bytes go, and the descriptor.
    /// `None`: not registered there.
    pub(crate) fn lease(self, scope: Scope) -> Result<(LeasedDestination, DestinationRun), Self> {
        match self.region().lease(scope) {
            Some(desc) => Ok(self.leased(Some(scope), desc)),
            None => Err(self),
        }
    }

    /// The same where somebody else keeps the registration open for as long as the operation lives,
    /// and has its descriptor.
    #[inline]
    pub(crate) fn leased_elsewhere(self, desc: *mut c_void) -> (LeasedDestination, DestinationRun) {
        self.leased(None, desc)
    }

    #[inline]
    fn leased(
        mut self,
        scope: Option<Scope>,
        desc: *mut c_void,
    ) -> (LeasedDestination, DestinationRun) {
        let run = DestinationRun {
            base: self.kind.base(),
            len: self.len,
            desc,
        };
        let leased = LeasedDestination {
            destination: Some(self),
            scope,
        };
        (leased, run)
    }
}

impl Kind {
    /// Without a stream that waits.
    fn plain(self) -> Self {
        match self {
            Self::InOrder(told) => told.kind,
            plain => plain,
        }
    }

    fn region(&self) -> &Arc<Region> {
        match self {
            Self::Buffer(buffer) => buffer.region(),
            Self::Slice(slice) => slice.region(),
            Self::Device(buffer) => buffer.region(),
            Self::InOrder(told) => told.kind.region(),
        }
    }

    #[inline]
    fn base(&mut self) -> *mut u8 {
        match self {
            Self::Buffer(buffer) => buffer.as_mut_ptr(),
            Self::Slice(slice) => slice.as_ptr(),
            // A number, which the host can't reach anything by.
            Self::Device(buffer) => std::ptr::without_provenance_mut(buffer.address() as usize),
            Self::InOrder(told) => told.kind.base(),
        }
    }

    fn address(&self) -> u64 {
        match self {
            Self::Buffer(buffer) => buffer.as_ptr().addr() as u64,
            Self::Slice(slice) => slice.address(),
            Self::Device(buffer) => buffer.address(),
            Self::InOrder(told) => told.kind.address(),
        }
    }
}

/// Where bytes go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DestinationRun {
    pub(crate) base: *mut u8,
    pub(crate) len: usize,
    pub(crate) desc: *mut c_void,
}

impl From<BufferMut> for Destination {
    /// All of the buffer.
    fn from(buffer: BufferMut) -> Self {
        let len = buffer.len();
        Self {
            kind: Kind::Buffer(buffer),
            len,
        }
    }
}

impl From<RegionSlice> for Destination {
    fn from(slice: RegionSlice) -> Self {
        let len = slice.len();
        Self {
            kind: Kind::Slice(slice),
            len,
        }
    }
}

impl From<DeviceBuffer> for Destination {
    fn from(buffer: DeviceBuffer) -> Self {
        let len = buffer.len();
        Self {
            kind: Kind::Device(buffer),
            len,
        }
    }
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Destination")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// A destination in an operation; its registration stays open while this lives.
#[derive(Debug)]
pub(crate) struct LeasedDestination {
    /// Taken out once.
    destination: Option<Destination>,
    /// Where the lease is; none: it is somebody else's.
    scope: Option<Scope>,
}

impl LeasedDestination {
    /// Ends the lease; to be called when the operation is over.
    pub(crate) fn into_destination(mut self) -> Destination {
        self.take()
    }

    /// The same where it lies; once.
    #[inline]
    pub(crate) fn take(&mut self) -> Destination {
        self.end().expect("an operation is over once")
    }

    #[inline]
    fn end(&mut self) -> Option<Destination> {
        let destination = self.destination.take()?;
        if let Some(scope) = self.scope {
            // SAFETY: `Destination::lease` took one there, and the destination is taken out here,
            // so it is ended once.
            unsafe { destination.region().release(scope) };
        }
        Some(destination)
    }
}

impl Drop for LeasedDestination {
    fn drop(&mut self) {
        drop(self.end());
    }
}
