//! Sizes on the command line.

/// A number of bytes, with K, M or G for powers of 1024.
pub fn parse(text: &str) -> Option<usize> {
    let (digits, shift) = match text.chars().last() {
        Some('k' | 'K') => (&text[..text.len() - 1], 10),
        Some('m' | 'M') => (&text[..text.len() - 1], 20),
        Some('g' | 'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let size = digits.parse::<usize>().ok();
    size.and_then(|size| size.checked_mul(1 << shift))
}
