//! Moves bytes from storage and GPU memory to network peers over libfabric, without a copy of its own.

pub mod endpoint;
pub mod error;
mod sync;

/// A door for the fuzzer; not part of the library's interface.
#[doc(hidden)]
pub mod __fuzz {
    /// Every parser of bytes that peers send. Panics where one is wrong.
    pub fn wire(bytes: &[u8]) {
        crate::endpoint::wire::exercise(bytes);
    }
}
