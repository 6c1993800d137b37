//! What fragments are filled with, so that a builder knows whether it got the right bytes.

use crc_fast::{CrcAlgorithm, Digest};

const CRC32C: CrcAlgorithm = CrcAlgorithm::Crc32Iscsi;
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The first word of a fragment: says which event and detector it belongs to. The others follow in
/// equal steps.
fn first_word(event: u64, detector: u16) -> u64 {
    let product = (event << 16 | u64::from(detector)).wrapping_mul(STEP);
    // The low bytes of the product know little of the event.
    product ^ product >> 32
}

/// Fills a fragment, whose first part is whole words long if there is a second, and returns its
/// CRC32C.
pub(crate) fn fill(event: u64, detector: u16, parts: (&mut [u8], &mut [u8])) -> u32 {
    let mut word = first_word(event, detector);
    let mut digest = Digest::new(CRC32C);
    for part in [parts.0, parts.1] {
        let mut words = part.chunks_exact_mut(8);
        for bytes in &mut words {
            bytes.copy_from_slice(&word.to_le_bytes());
            word = word.wrapping_add(STEP);
        }
        let rest = words.into_remainder();
        rest.copy_from_slice(&word.to_le_bytes()[..rest.len()]);
        digest.update(part);
    }
    digest.finalize() as u32
}

/// Whether these are the bytes of that event and detector, and all of them are right.
pub(crate) fn is_right(event: u64, detector: u16, crc: u32, bytes: &[u8]) -> bool {
    let word = first_word(event, detector).to_le_bytes();
    let len = bytes.len().min(8);
    bytes[..len] == word[..len] && crc_fast::checksum(CRC32C, bytes) as u32 == crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_event_or_detector_is_noticed() {
        for len in [1, 7, 8, 9, 4096, 4099] {
            let mut bytes = vec![0; len];
            // As a ring gives them that wraps around: the first part is whole words long.
            let (head, rest) = bytes.split_at_mut(len / 16 * 8);
            let crc = fill(77, 3, (head, rest));
            assert!(is_right(77, 3, crc, &bytes), "{len}");
            if len >= 8 {
                assert!(!is_right(78, 3, crc, &bytes), "{len}");
                assert!(!is_right(77, 4, crc, &bytes), "{len}");
            }
            for at in [0, len / 2, len - 1] {
                bytes[at] ^= 0x10;
                assert!(!is_right(77, 3, crc, &bytes), "{len}: byte {at}");
                bytes[at] ^= 0x10;
            }
        }
    }
}
