//! What messages look like here, and the checks of those that arrive.

use std::collections::BTreeMap;

use crate::common::pattern;

/// Header: who sends, which message, how long its payload is.
pub(crate) const HEADER: usize = 24;

pub(crate) fn header(sender: u64, number: u64, len: usize) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&sender.to_le_bytes());
    header[8..16].copy_from_slice(&number.to_le_bytes());
    header[16..].copy_from_slice(&(len as u64).to_le_bytes());
    header
}

pub(crate) const MAX_MESSAGE: usize = (1 << 20) + 4096;

/// Counts what arrives and checks it, byte by byte and in order.
#[derive(Default)]
pub(crate) struct Checker {
    next: BTreeMap<u64, u64>,
    pub(crate) messages: u64,
}

impl Checker {
    pub(crate) fn check(&mut self, header: &[u8], payload: &[u8]) {
        let all = [header, payload].concat();
        let (header, payload) = all.split_at(HEADER);
        let word = |i: usize| u64::from_le_bytes(header[i * 8..][..8].try_into().expect("8"));
        let (sender, number, len) = (word(0), word(1), word(2));
        let next = self.next.entry(sender).or_default();
        assert_eq!(number, *next, "messages of sender {sender} in order");
        assert!(payload == pattern(number, len as usize), "message {number}");
        *next += 1;
        self.messages += 1;
    }
}
