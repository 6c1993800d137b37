//! Copies of bytes that somebody else may change meanwhile: no reference to them is ever made, and
//! each is read or written once, as volatile.

#![allow(unsafe_code)]

/// Bytes that are copied at once.
type Piece = [u64; 4];

/// Copies what is at an address at this moment.
///
/// # Safety
///
/// `into.len()` bytes from `at` on can be read, and no thread of this process writes them meanwhile
/// by a reference.
pub(crate) unsafe fn copy_out(mut at: *const u8, into: &mut [u8]) {
    let misaligned = at.align_offset(align_of::<Piece>()).min(into.len());
    let (first, rest) = into.split_at_mut(misaligned);
    // SAFETY: the first bytes of those that the caller vouches for.
    at = unsafe { read_bytes(at, first) };
    let mut pieces = rest.chunks_exact_mut(size_of::<Piece>());
    for piece in &mut pieces {
        // SAFETY: within what the caller vouches for; aligned, by the split; any bytes are numbers.
        let words = unsafe { at.cast::<Piece>().read_volatile() };
        // At once, and not word by word: without optimisation those are most of the time.
        // SAFETY: the piece has so many bytes, and nobody else has them.
        unsafe { piece.as_mut_ptr().cast::<Piece>().write_unaligned(words) };
        at = at.wrapping_add(size_of::<Piece>());
    }
    // SAFETY: the last bytes of those that the caller vouches for.
    unsafe { read_bytes(at, pieces.into_remainder()) };
}

/// The same byte by byte; where it ends.
///
/// # Safety
///
/// As [`copy_out`].
unsafe fn read_bytes(mut at: *const u8, into: &mut [u8]) -> *const u8 {
    for byte in into {
        // SAFETY: the caller's promise.
        *byte = unsafe { at.read_volatile() };
        at = at.wrapping_add(1);
    }
    at
}

/// Copies bytes to an address.
///
/// # Safety
///
/// `bytes.len()` bytes from `at` on can be written, nobody has a reference to them, and no other
/// thread of this process reads or writes them meanwhile.
pub(crate) unsafe fn copy_in(mut at: *mut u8, bytes: &[u8]) {
    let misaligned = at.align_offset(align_of::<Piece>()).min(bytes.len());
    let (first, rest) = bytes.split_at(misaligned);
    // SAFETY: the first bytes of those that the caller vouches for.
    at = unsafe { write_bytes(at, first) };
    let mut pieces = rest.chunks_exact(size_of::<Piece>());
    for piece in &mut pieces {
        // SAFETY: the piece has so many bytes; any bytes are numbers.
        let words = unsafe { piece.as_ptr().cast::<Piece>().read_unaligned() };
        // SAFETY: within what the caller vouches for; aligned, by the split.
        unsafe { at.cast::<Piece>().write_volatile(words) };
        at = at.wrapping_add(size_of::<Piece>());
    }
    // SAFETY: the last bytes of those that the caller vouches for.
    unsafe { write_bytes(at, pieces.remainder()) };
}

/// The same byte by byte; where it ends.
///
/// # Safety
///
/// As [`copy_in`].
unsafe fn write_bytes(mut at: *mut u8, bytes: &[u8]) -> *mut u8 {
    for byte in bytes {
        // SAFETY: the caller's promise.
        unsafe { at.write_volatile(*byte) };
        at = at.wrapping_add(1);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_copied_whatever_the_place_and_the_length() {
        let pattern: Vec<u8> = (0..300).map(|at| (at % 251) as u8).collect();
        for from in [0, 1, 7, 8, 9, 31] {
            for len in [0, 1, 31, 32, 33, 64, 200] {
                let mut memory = vec![0u8; 300];
                let at = memory[from..].as_mut_ptr();
                // SAFETY: `from + len` is less than 300, and nobody else has the vector.
                unsafe { copy_in(at, &pattern[..len]) };
                let mut out = vec![0; len];
                // SAFETY: as above.
                unsafe { copy_out(at, &mut out) };
                assert_eq!(out, pattern[..len], "{len} bytes at {from}");
                assert!(memory[..from].iter().all(|byte| *byte == 0));
                assert!(memory[from + len..].iter().all(|byte| *byte == 0));
                assert_eq!(memory[from..from + len], pattern[..len]);
            }
        }
    }
}
