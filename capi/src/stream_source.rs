//! What a stream is made of: bytes of the program's, and payloads.

#![allow(unsafe_code)] // Memory that C answers for.

use std::fmt;

use fabricast::buffer::{Buffer, Payload, RegionSlice};
use fabricast::stream::{
    BlockSource, Entry, EntryKind, Manifest, Modified, RelativeName, SourceError,
};

use crate::region::KeepAlive;
use crate::status::{FCAST_UNSUPPORTED, Failure};

/// What a payload lies in, where a stream can be of it.
#[derive(Clone)]
pub(crate) enum Lent {
    Buffer(Buffer),
    /// Memory of a GPU.
    Device(RegionSlice),
}

impl Lent {
    /// # Errors
    ///
    /// It is something else, or is not to be sent now; with the payload.
    pub(crate) fn of(payload: Payload) -> Result<Self, (Failure, Payload)> {
        let wrong = |text, payload| (Failure::new(FCAST_UNSUPPORTED, text), payload);
        if payload.is_after() {
            let text = "the payload waits for work of a GPU, which a stream of blocks does not";
            return Err(wrong(text, payload));
        }
        let other = match payload.into_buffer() {
            Ok(buffer) => return Ok(Self::Buffer(buffer)),
            Err(other) => other,
        };
        let text = "the payload is neither a frozen buffer nor a part of a region of a GPU's";
        match other.is_device() {
            true => other
                .into_slice()
                .map(Self::Device)
                .map_err(|other| wrong(text, other)),
            false => Err(wrong(text, other)),
        }
    }
}

impl From<Lent> for Payload {
    fn from(lent: Lent) -> Self {
        match lent {
            Lent::Buffer(buffer) => buffer.into(),
            Lent::Device(slice) => slice.into(),
        }
    }
}

/// Bytes of the program's under a name, which it keeps until they are given back.
pub(crate) struct CallerBytes {
    manifest: Manifest,
    stamp: [u8; 16],
    bytes: &'static [u8],
    /// Gives them back as it is dropped, behind the last read.
    _keep: KeepAlive,
}

impl CallerBytes {
    /// # Errors
    ///
    /// A name that can't be sent.
    ///
    /// # Safety
    ///
    /// The bytes stay mapped, and nobody writes to them, until `keep` is dropped.
    pub(crate) unsafe fn new(
        name: &str,
        bytes: &[u8],
        stamp: [u8; 16],
        keep: KeepAlive,
    ) -> Result<Self, Failure> {
        let name = RelativeName::new(name.as_bytes())
            .map_err(|error| Failure::invalid(format!("name: {error}")))?;
        let entry = Entry {
            name,
            kind: EntryKind::File,
            mode: 0o644,
            size: bytes.len() as u64,
            modified: Modified::default(),
            sparse: false,
        };
        let manifest =
            Manifest::new([entry]).map_err(|error| Failure::invalid(format!("name: {error}")))?;
        Ok(Self {
            manifest,
            stamp,
            // SAFETY: the caller has promised them until `keep` is dropped, which goes with this.
            bytes: unsafe { std::slice::from_raw_parts(bytes.as_ptr(), bytes.len()) },
            _keep: keep,
        })
    }
}

impl fmt::Debug for CallerBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallerBytes")
            .field("len", &self.bytes.len())
            .finish_non_exhaustive()
    }
}

impl BlockSource for CallerBytes {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn stamp(&self) -> [u8; 16] {
        self.stamp
    }

    fn read(&self, _entry: usize, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = self.bytes.get(from..);
        let bytes = rest.and_then(|rest| rest.get(..into.len()));
        let bytes = bytes.ok_or_else(|| SourceError::Other("behind the end".to_owned()))?;
        into.copy_from_slice(bytes);
        Ok(())
    }
}
