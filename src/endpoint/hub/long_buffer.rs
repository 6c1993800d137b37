//! `LongBuffer`: a buffer that a long message lands in, in the host's memory or in a device's.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::buffer::{BufferMut, DEVICE_ALIGNMENT, DeviceBuffer};
use crate::cuda::{CudaError, Stream};
use crate::endpoint::windows::volatile_buffer::VolatileBuffer;
use crate::endpoint::windows::window::WindowMemory;
use crate::memory::{Access, RawRegistration, RegisterError, Registrar};
use crate::protocol::wire::{self, HeaderMode, WireError};

/// Bytes of a header whose length nobody knows that are copied out of a device's memory at first; a
/// longer one takes a second copy.
const HEADER_AT_FIRST: usize = 512;

/// Where a long message lands.
pub(super) enum LongBuffer {
    Host(BufferMut),
    Device(DeviceBuffer),
}

impl LongBuffer {
    /// One of the host's that peers may still write: nobody but by copies looks at it any more.
    pub(super) fn landed(buffer: BufferMut) -> Arc<VolatileBuffer> {
        Arc::new(VolatileBuffer::landed(buffer))
    }

    /// Lets a peer write the first `len` bytes; where they begin.
    pub(super) fn open(
        &mut self,
        registrar: &dyn Registrar,
        len: usize,
        mode: HeaderMode,
    ) -> Result<(RawRegistration, u64), RegisterError> {
        match self {
            Self::Host(buffer) => {
                let Some(base) = NonNull::new(buffer.as_mut_ptr()) else {
                    unreachable!("a buffer lies somewhere");
                };
                let registration = registrar.register_window(base, len, Access::WRITE)?;
                Ok((registration, base.as_ptr().addr() as u64))
            }
            Self::Device(buffer) => {
                let shift = shift(mode, len, buffer.capacity());
                buffer.skip(shift);
                buffer.set_len(len);
                let Some(range) = buffer.range() else {
                    unreachable!("a pool in a device's memory");
                };
                let registration = registrar.register_device(&range, Some(Access::WRITE))?;
                Ok((registration, buffer.address()))
            }
        }
    }
}

/// How far into its slot a message goes, so that its payload begins where slots may.
fn shift(mode: HeaderMode, len: usize, room: usize) -> usize {
    match mode {
        HeaderMode::Fixed(header) => {
            let header = usize::from(header);
            let shift = header.next_multiple_of(DEVICE_ALIGNMENT) - header;
            if len + shift <= room { shift } else { 0 }
        }
        HeaderMode::Prefixed | HeaderMode::Raw => 0,
    }
}

impl From<LongBuffer> for WindowMemory {
    fn from(long: LongBuffer) -> Self {
        match long {
            LongBuffer::Host(buffer) => buffer.into(),
            LongBuffer::Device(buffer) => buffer.into(),
        }
    }
}

/// Why a message in a device's memory can't be handed out.
pub(super) enum Unread {
    Header(WireError),
    Cuda(CudaError),
}

/// Takes the header off a message in a device's memory, where every byte of it is visible from now
/// on.
pub(super) fn take_header(
    buffer: &mut DeviceBuffer,
    mode: HeaderMode,
    stream: &Stream,
) -> Result<Vec<u8>, Unread> {
    buffer.device().see_writes().map_err(Unread::Cuda)?;
    let mut bytes = vec![0; header_guess(mode).min(buffer.len())];
    loop {
        buffer
            .copy_to_host(&mut bytes, stream)
            .map_err(Unread::Cuda)?;
        match wire::split(mode, &bytes) {
            Ok((header, payload)) => {
                buffer.skip(payload.start);
                bytes.truncate(header.end);
                bytes.drain(..header.start);
                return Ok(bytes);
            }
            Err(WireError::Short { need, .. }) if bytes.len() < need && need <= buffer.len() => {
                bytes.resize(need, 0);
            }
            Err(error) => return Err(Unread::Header(error)),
        }
    }
}

/// How many bytes of a message to copy so that they hold the whole header, most likely.
fn header_guess(mode: HeaderMode) -> usize {
    match mode {
        HeaderMode::Raw => 0,
        HeaderMode::Fixed(header) => header.into(),
        HeaderMode::Prefixed => HEADER_AT_FIRST,
    }
}
