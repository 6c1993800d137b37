//! Bytes of a peer that says anything at any time, for every parser and both ends of a stream.
//! The fuzz target `stream_wire` and the tests run it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::attributes::AttributeList;
use super::auth::PresharedKey;
use super::block_set::BlockSet;
use super::blocks::{Block, BlockPlan};
use super::handshake::{AnswerSettings, Answering, DialSettings, Dialing, Then};
use super::incoming::{IncomingSettings, IncomingStream, MessageOutcome, PackedOutcome};
use super::journal;
use super::limits::Limits;
use super::manifest::{
    Announced, Entry, EntryKind, Manifest, ManifestLimits, ManifestParser, Modified,
};
use super::name::RelativeName;
use super::outgoing::OutgoingStream;
use super::wire::{self, Checks, Features, HEADER_LEN, Message, Open, OpenFlags, StreamIdentity};

/// The bytes, read once; behind their end everything is 0.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        self.slice(1).first().copied().unwrap_or(0)
    }

    fn slice(&mut self, len: usize) -> &'a [u8] {
        let (these, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        these
    }

    /// A small number mostly, any at times.
    fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..=247 => u64::from(small % 12),
            _ => {
                let mut bytes = [0; 8];
                let these = self.slice(8);
                bytes[..these.len()].copy_from_slice(these);
                u64::from_le_bytes(bytes)
            }
        }
    }

    /// A header that is right as far as any header must be, of the kind that the bytes say, and a
    /// payload.
    fn message(&mut self) -> ([u8; HEADER_LEN], Vec<u8>) {
        let mut header = [0; HEADER_LEN];
        header[..4].copy_from_slice(b"FCS2");
        header[4] = self.byte() % 30;
        header[5] = self.byte() & 3;
        header[8] = 1;
        for at in 0..6 {
            header[16 + at * 8..][..8].copy_from_slice(&self.number().to_le_bytes());
        }
        let mut packed = 0;
        if header[4] == 12 {
            header[28..].fill(0);
        }
        if header[4] == 11 {
            // A pack is one only with all of its blocks, which have 16 bytes mostly.
            header[28..].fill(0);
            packed = usize::from(header[24]) * (4 + 16);
        }
        let len = match self.byte() {
            short @ 0..=63 => usize::from(short),
            64..=128 if packed > 0 => packed,
            64..=128 => 16,
            129..=192 => 32,
            _ => 0,
        };
        let mut payload = self.slice(len).to_vec();
        payload.resize(len, 0);
        header[12..16].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        (header, payload)
    }
}

/// Runs the bytes.
///
/// # Panics
///
/// When something breaks a promise.
pub(crate) fn exercise(bytes: &[u8]) {
    let (header, payload) = bytes.split_at(HEADER_LEN.min(bytes.len()));
    wire::exercise(header, payload);
    journal::exercise(bytes);
    read_manifest(bytes);
    read_attributes(bytes);
    shake_hands(&mut Input(bytes));
    send_to(&mut Input(bytes));
    receive_from(&mut Input(bytes));
}

fn read_manifest(bytes: &[u8]) {
    let limits = ManifestLimits {
        entries: 1000,
        name_bytes: 1 << 20,
        bytes: u64::MAX,
        links: bytes.len().is_multiple_of(2),
        sparse: bytes.len().is_multiple_of(3),
    };
    let announced = Announced {
        entries: 1000,
        manifest_bytes: 1 << 20,
        bytes: u64::MAX,
    };
    let mut parser = ManifestParser::new(announced, &limits).expect("this is within the limits");
    let _ = parser.feed(0, bytes);
}

fn read_attributes(bytes: &[u8]) {
    let (mut whole, mut parts) = (AttributeList::default(), AttributeList::default());
    let is_right = whole.feed(bytes).is_ok();
    let in_parts = bytes.chunks(7).try_for_each(|part| parts.feed(part));
    assert_eq!(in_parts.is_ok(), is_right, "however they are cut");
    if is_right {
        assert!(parts == whole, "however they are cut");
        let of_each: usize = whole.entries().map(|entry| whole.of(entry).count()).sum();
        assert!(of_each >= whole.entries().count(), "each is found");
    }
}

fn shake_hands(input: &mut Input<'_>) {
    let now = Instant::now();
    let key = (input.byte() & 1 != 0)
        .then(|| PresharedKey::from_bytes(&[1; 32]).expect("32 bytes are a key"));
    let deadline = now + Duration::from_secs(1);
    let (mut dialing, _) = Dialing::new(DialSettings {
        session: [0; 16],
        rail: 0,
        rails: 1,
        features: Features::all(),
        key: key.clone(),
        nonce: [1; 32],
        deadline,
    });
    let mut answering = Answering::new(AnswerSettings {
        features: Features::all(),
        streams: 1,
        payload_max: 1 << 20,
        ports: [7000; 6],
        key: key.clone(),
        nonce: [2; 32],
        deadline,
    });
    for _ in 0..4 {
        let (header, payload) = input.message();
        let steps = [
            dialing.on_message(&header, &payload, now),
            answering.on_message(&header, &payload, now),
        ];
        for step in steps {
            let is_ready = matches!(step.then, Then::Ready(_));
            assert!(!(is_ready && key.is_some()), "nobody guesses a proof");
        }
    }
}

/// Three files of 100, 0 and 33 bytes, in blocks of 16; one of them has holes.
fn files() -> Manifest {
    let entry = |name: &'static [u8], size: u64| Entry {
        name: RelativeName::new(name).expect("these are names"),
        kind: EntryKind::File,
        mode: 0o644,
        size,
        modified: Modified::default(),
        sparse: size == 33,
    };
    let entries = [entry(b"a", 100), entry(b"b/c", 0), entry(b"d", 33)];
    Manifest::new(entries).expect("this is a manifest")
}

fn open(manifest: &Manifest, plan: &BlockPlan, flags: OpenFlags) -> Open {
    Open {
        stream: 1,
        flags,
        block_bytes: plan.block_bytes(),
        entries: manifest.len() as u64,
        manifest_bytes: manifest.encoded_len(),
        bytes: plan.bytes(),
        blocks: plan.blocks(),
        attribute_bytes: manifest.encoded_attributes().len() as u32,
        identity: StreamIdentity::default(),
    }
}

/// An honest sender, and a receiver that is the bytes.
fn send_to(input: &mut Input<'_>) {
    let manifest = files();
    let plan = Arc::new(BlockPlan::new(&manifest, 16));
    let flags = OpenFlags::from_bits_truncate((input.byte() & 0x11).into());
    let mut outgoing = OutgoingStream::new(open(&manifest, &plan, flags), Arc::clone(&plan), 0);
    outgoing.add_rail(1);
    let mut lost = [false; 2];
    while !input.0.is_empty() {
        let rail = u16::from(input.byte() & 1);
        match input.byte() % 8 {
            0..=2 => {
                let (header, payload) = input.message();
                if let Ok(message) = Message::parse(&header, &payload) {
                    let _ = outgoing.on_message(&message);
                }
            }
            3 | 4 => {
                if outgoing.next_control(rail, 8192, &manifest).is_some() {
                    outgoing.on_control_sent(rail);
                }
            }
            5 | 6 => {
                let index = outgoing.first_wanted(input.number());
                if let Some(index) = index
                    && !lost[usize::from(rail)]
                    && outgoing.may_send()
                {
                    assert!(outgoing.take(index));
                    let block = plan.get(index).expect("it wants what there is");
                    outgoing.on_sent(rail, &block, 7);
                }
            }
            _ if input.byte() == 1 => {
                lost[usize::from(rail)] = true;
                outgoing.on_rail_lost(rail);
            }
            _ if input.byte() & 1 == 0 => outgoing.allow_finish(),
            _ => drop(outgoing.inquire()),
        }
        if let Some(Ok(complete)) = outgoing.outcome() {
            assert_eq!(
                (complete.blocks, complete.bytes),
                (plan.blocks(), plan.bytes())
            );
            assert_eq!(
                outgoing.first_wanted(0),
                None,
                "all was sent before it was complete"
            );
        }
    }
}

/// An honest receiver, and a sender that is the bytes.
fn receive_from(input: &mut Input<'_>) {
    let settings = IncomingSettings {
        limits: Limits::default().resent(20),
        memory_left: 1 << 20,
        features: Features::all(),
        payload_max: 1 << 20,
        window: 4,
        slots: 4,
    };
    let mut writing: Vec<Vec<Block>> = Vec::new();
    let Some(mut incoming) = begin(input, settings) else {
        return;
    };
    while !input.0.is_empty() {
        let rail = u16::from(input.byte() & 1);
        match input.byte() % 8 {
            0..=3 => {
                let (header, payload) = input.message();
                let message = Message::parse(&header, &payload);
                let Ok(message) = message else { continue };
                let blocks = match incoming.on_message(rail, &message) {
                    Ok(MessageOutcome::Block(block)) => vec![block],
                    Ok(MessageOutcome::Pack(blocks)) => {
                        let bytes = blocks.iter().map(|it| it.at + it.block.len as usize);
                        assert!(bytes.max().is_some_and(|end| end <= payload.len()));
                        blocks.iter().map(|it| it.block).collect()
                    }
                    Ok(MessageOutcome::Zeros(blocks)) => blocks,
                    _ => continue,
                };
                for block in &blocks {
                    let is_twice = writing.iter().flatten().any(|other| other == block);
                    assert!(!is_twice, "no block is written twice");
                    assert_eq!(incoming.plan().get(block.index), Some(*block));
                }
                writing.push(blocks);
            }
            4 => {
                if incoming.next_control().is_some() {
                    incoming.on_control_sent();
                }
            }
            5 => {
                if let Some(blocks) = writing.pop() {
                    written(&mut incoming, &blocks, PackedOutcome::Written(7, None));
                }
            }
            6 => {
                if let Some(blocks) = writing.pop() {
                    written(&mut incoming, &blocks, PackedOutcome::Damaged(8));
                }
            }
            _ => {
                incoming.on_rail_gone(rail);
                incoming.set_control_rail(1 - rail);
            }
        }
        if incoming.is_whole() {
            assert!(incoming.have().is_full() && writing.is_empty());
            incoming.complete(Checks::all(), 0);
        }
        if incoming.is_announced() {
            incoming.accept(BlockSet::new(incoming.plan().blocks()), 0, None);
        }
    }
}

/// What came as one message is dealt with.
fn written(incoming: &mut IncomingStream, blocks: &[Block], outcome: PackedOutcome) {
    match (blocks, outcome) {
        ([block], PackedOutcome::Written(crc, hash)) => incoming.on_written(block, crc, hash),
        ([block], PackedOutcome::Damaged(crc)) => incoming.on_damaged(block, crc),
        _ => {
            let done: Vec<_> = blocks.iter().map(|block| (*block, outcome)).collect();
            incoming.on_pack_done(&done);
        }
    }
}

/// A stream that the bytes open; else one that is opened honestly, up to where blocks may come.
fn begin(input: &mut Input<'_>, settings: IncomingSettings) -> Option<IncomingStream> {
    if input.byte() & 1 == 0 {
        let (header, payload) = input.message();
        return match Message::parse(&header, &payload) {
            Ok(Message::Open(open)) => IncomingStream::new(0, open, settings).ok(),
            _ => None,
        };
    }
    let manifest = files();
    let plan = BlockPlan::new(&manifest, 16);
    let flags = OpenFlags::CRC32C | OpenFlags::SPARSE;
    let open = open(&manifest, &plan, flags);
    let mut incoming = IncomingStream::new(0, open, settings).ok()?;
    let (entries, _) = manifest.encode_part(0, 8192, true);
    let part = wire::ManifestPart {
        stream: 1,
        first: 0,
        entries: &entries,
    };
    let arrival = incoming.on_message(0, &Message::Manifest(part));
    assert_eq!(arrival, Ok(MessageOutcome::Announced));
    let mut have = BlockSet::new(plan.blocks());
    if input.byte() & 1 != 0 {
        have.insert(3);
    }
    incoming.accept(have, 5, None);
    Some(incoming)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        #[test]
        fn nothing_breaks(
            // Half of them are small. No choice for each: that would be a generator for each.
            numbers in proptest::collection::vec(any::<u16>(), 0..1500),
        ) {
            let byte = |n: u16| if n < 1 << 15 { n as u8 % 40 } else { n as u8 };
            let bytes: Vec<u8> = numbers.into_iter().map(byte).collect();
            exercise(&bytes);
        }
    }
}
