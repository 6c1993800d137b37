//! An [`OutgoingStream`] and an [`IncomingStream`] over connections that lose, double, damage and
//! reorder blocks, and that break. Whatever happens, the sink ends up with exactly the source, or
//! both sides know that it did not; and neither ever waits for the other for nothing.

use std::collections::VecDeque;
use std::sync::Arc;

use proptest::prelude::*;

use super::attributes::Attribute;
use super::block_set::BlockSet;
use super::blocks::{Block, BlockPlan};
use super::digest::{StreamDigest, crc32c, crc32c_of_zeros};
use super::error::{RefusalCode, StreamError, StreamViolation};
use super::incoming::{
    HadContent, IncomingSettings, IncomingStream, MessageOutcome, PackedOutcome,
};
use super::limits::Limits;
use super::manifest::{Entry, EntryKind, Manifest, Modified, Owner};
use super::name::RelativeName;
use super::outgoing::OutgoingStream;
use super::slots::{SlotBook, SlotGrants};
use super::sums::content_sum;
use super::wire::{
    Accept, Checks, Complete, Damaged, Features, Freed, HEADER_LEN, Message, Open, OpenFlags, Pack,
    Placed, RangeList, RangesBuilder, StreamIdentity, Sums, WINDOW_DESCRIPTOR_LEN, Window,
};
use crate::endpoint::duplex::faults::{Dice, Faults};

const NO_FAULTS: Faults = Faults {
    drop: 0,
    double: 0,
    damage: 0,
    swap: 0,
    cut: 0,
};

/// A message on its way, as bytes.
#[derive(Debug, Clone)]
struct Packet {
    header: [u8; HEADER_LEN],
    payload: Vec<u8>,
}

impl Packet {
    fn new(message: &Message<'_>) -> Self {
        let mut header = [0; HEADER_LEN];
        let payload = message.encode(&mut header).to_vec();
        Self { header, payload }
    }

    fn is_block(&self) -> bool {
        [5, 11, 12, 13].contains(&self.header[4])
    }
}

/// Blocks that came as one message, with their checksums.
enum Arrived {
    Block(Block, u32, Vec<u8>),
    Pack(Vec<(Block, u32, Vec<u8>)>),
    Zeros(Vec<Block>),
}

impl Arrived {
    fn has(&self, index: u64) -> bool {
        match self {
            Self::Block(block, ..) => block.index == index,
            Self::Pack(blocks) => blocks.iter().any(|(block, ..)| block.index == index),
            Self::Zeros(blocks) => blocks.iter().any(|block| block.index == index),
        }
    }
}

/// One connection. What is under way is lost with it.
#[derive(Default)]
struct Wire {
    to_receiver: VecDeque<Packet>,
    to_sender: VecDeque<Packet>,
    is_cut: bool,
    /// Each side learns of the end in its own time.
    sender_knows: bool,
    receiver_knows: bool,
}

struct World {
    dice: Dice,
    faults: Faults,
    source: Vec<Vec<u8>>,
    sink: Vec<Vec<u8>>,
    manifest: Manifest,
    plan: Arc<BlockPlan>,
    outgoing: OutgoingStream,
    incoming: Option<IncomingStream>,
    settings: IncomingSettings,
    /// What the sink has from before.
    before: BlockSet,
    /// Blocks of which the sink has said what lies in their places.
    compared: BlockSet,
    wires: Vec<Wire>,
    /// Blocks that the sender has read and the network has not taken.
    read: VecDeque<Block>,
    /// Blocks that follow each other go as one message at times.
    packs: bool,
    /// Blocks that are zeros are said to be, and not sent.
    zeros: bool,
    /// What is being checked and written, message by message.
    writing: Vec<Arrived>,
    idle: u32,
    /// Both sides say that they work. Not where blocks are lost: there, silence is what makes a
    /// sender ask.
    is_talkative: bool,
    /// Blocks go by RMA write, over one connection.
    slots: Option<Slots>,
}

/// Both sides' slots, with what is written into them.
#[derive(Default)]
struct Slots {
    /// So many are granted when the stream is accepted.
    count: u32,
    book: SlotBook,
    grants: SlotGrants<()>,
    memory: Vec<Vec<u8>>,
    /// Writes whose completions have not come.
    writing: Vec<(Block, u32, u32)>,
    written: VecDeque<(Block, u32, u32)>,
    /// The receiver's, by block.
    taken: Vec<(u64, u32)>,
}

impl World {
    fn bytes_of(&self, block: &Block) -> Vec<u8> {
        let begin = block.offset as usize;
        self.source[block.entry][begin..begin + block.len as usize].to_vec()
    }

    fn step(&mut self) {
        let moved = match self.dice.roll(8) {
            0 => self.read_one(),
            1 | 2 if self.slots.is_some() => self.write_slot() | self.place_one(),
            1 | 2 => self.send_one(),
            3 => self.say_sender(),
            4 => self.say_receiver(),
            5 => self.deliver(true) | self.deliver(true),
            6 => self.deliver(false),
            _ => self.write_one() | self.break_one(),
        };
        self.idle = if moved { 0 } else { self.idle + 1 };
        if self.idle == 500 {
            self.outgoing.inquire();
        }
    }

    fn read_one(&mut self) -> bool {
        if self.outgoing.first_wanted(0).is_none() && self.read.is_empty() && self.dice.one_in(2) {
            self.outgoing.allow_finish();
        }
        if self.read.len() >= 4 {
            return false;
        }
        let behind = self.read.back().map(|last| last.index + 1);
        let from = match behind {
            Some(behind) if self.packs && !self.dice.one_in(3) => behind,
            _ => self.dice.roll(self.plan.blocks().max(1)),
        };
        let wanted = self.outgoing.first_wanted(from);
        let Some(index) = wanted.or_else(|| self.outgoing.first_wanted(0)) else {
            return false;
        };
        assert!(self.outgoing.take(index) && !self.outgoing.take(index));
        if self.dice.one_in(20) {
            self.outgoing.give_back(index);
            return true;
        }
        self.read.push_back(self.plan.get(index).unwrap());
        true
    }

    fn live_rail(&mut self) -> Option<u16> {
        let live: Vec<usize> = (0..self.wires.len())
            .filter(|rail| !self.wires[*rail].sender_knows)
            .collect();
        let at = self.dice.roll(live.len().max(1) as u64) as usize;
        live.get(at).map(|rail| *rail as u16)
    }

    fn send_one(&mut self) -> bool {
        let Some(rail) = self.live_rail() else {
            return false;
        };
        if !self.outgoing.may_send() {
            return false;
        }
        let Some(block) = self.read.pop_front() else {
            return false;
        };
        if self.say_same(rail, block)
            || self.zeros && self.send_zeros(rail, block)
            || self.packs && self.send_pack(rail, block)
        {
            return true;
        }
        let bytes = self.bytes_of(&block);
        let crc = crc32c(&bytes);
        let header = self.outgoing.header(&block, crc);
        self.outgoing.on_sent(rail, &block, crc);
        let mut packet = Packet::new(&Message::Block(header));
        packet.payload = bytes;
        self.carry(rail, packet);
        true
    }

    /// Says that this block and those behind it that were read are zeros; false: it is not.
    fn send_zeros(&mut self, rail: u16, first: Block) -> bool {
        let is_zeros = |world: &Self, block: &Block| {
            let bytes = world.bytes_of(block);
            bytes.iter().all(|byte| *byte == 0)
        };
        if !is_zeros(self, &first) {
            return false;
        }
        let mut blocks = vec![(first, crc32c_of_zeros(first.len.into()))];
        while let Some(&next) = self.read.front()
            && next.index == first.index + blocks.len() as u64
            && is_zeros(self, &next)
        {
            self.read.pop_front();
            blocks.push((next, crc32c_of_zeros(next.len.into())));
        }
        let packet = Packet::new(&Message::Zeros(self.outgoing.zeros(&blocks)));
        self.outgoing.on_pack_sent(rail, &blocks);
        self.carry(rail, packet);
        true
    }

    /// Says that the sink has a block, if it is so, maybe with some behind it.
    fn say_same(&mut self, rail: u16, first: Block) -> bool {
        let is_same = |this: &Self, block: &Block| {
            let content = content_sum(&this.bytes_of(block));
            this.outgoing.is_same(block.index, Some(content))
        };
        if !is_same(self, &first) {
            return false;
        }
        let mut blocks = vec![(first, crc32c(&self.bytes_of(&first)))];
        while let Some(next) = self.read.front().copied()
            && next.index == first.index + blocks.len() as u64
            && is_same(self, &next)
        {
            self.read.pop_front();
            blocks.push((next, crc32c(&self.bytes_of(&next))));
        }
        let crcs: Vec<_> = blocks.iter().map(|(_, crc)| (*crc).into()).collect();
        let packet = Packet::new(&Message::Same(self.outgoing.same_header(&blocks, &crcs)));
        self.outgoing.on_same_sent(rail, &blocks);
        self.carry(rail, packet);
        true
    }

    /// Sends this block with those behind it that were read; false: there are none.
    fn send_pack(&mut self, rail: u16, first: Block) -> bool {
        let mut blocks = vec![(first, crc32c(&self.bytes_of(&first)))];
        while let Some(next) = self.read.front()
            && next.index == first.index + blocks.len() as u64
        {
            let next = self.read.pop_front().expect("it was looked at");
            blocks.push((next, crc32c(&self.bytes_of(&next))));
        }
        if blocks.len() == 1 {
            return false;
        }
        let mut payload = vec![0; Pack::payload_len(blocks.len(), 0)];
        Pack::put_crcs(&mut payload, blocks.iter().map(|(_, crc)| *crc));
        for (block, _) in &blocks {
            payload.extend_from_slice(&self.bytes_of(block));
        }
        let header = self.outgoing.pack_header(&blocks, &payload);
        let mut packet = Packet::new(&Message::Pack(header));
        packet.payload = payload;
        self.outgoing.on_pack_sent(rail, &blocks);
        self.carry(rail, packet);
        true
    }

    /// Begins a write into a slot, or brings the completion of one, in any order.
    fn write_slot(&mut self) -> bool {
        let Some(slots) = &mut self.slots else {
            return false;
        };
        if !slots.writing.is_empty() && self.dice.one_in(2) {
            let at = self.dice.roll(slots.writing.len() as u64) as usize;
            let done = slots.writing.swap_remove(at);
            slots.written.push_back(done);
            return true;
        }
        let unplaced = (slots.writing.len() + slots.written.len()) as u64;
        if !self.outgoing.may_send() || self.outgoing.room() <= unplaced || self.read.is_empty() {
            return false;
        }
        if let Some(first) = self.read.pop_front() {
            if self.say_same(0, first) {
                return true;
            }
            self.read.push_front(first);
        }
        let Some(slots) = &mut self.slots else {
            return false;
        };
        let Some((slot, _)) = slots.book.take() else {
            return false;
        };
        if self.dice.one_in(4) {
            // The endpoint has no room now.
            slots.book.give_back(slot);
            return true;
        }
        let block = self.read.pop_front().expect("there is one");
        let begin = block.offset as usize;
        let bytes = &self.source[block.entry][begin..begin + block.len as usize];
        slots.memory[slot as usize] = bytes.to_vec();
        slots.writing.push((block, crc32c(bytes), slot));
        true
    }

    /// Tells the receiver of a block that was written.
    fn place_one(&mut self) -> bool {
        let Some(slots) = &mut self.slots else {
            return false;
        };
        if !self.outgoing.may_place() {
            return false;
        }
        let Some((block, crc, slot)) = slots.written.pop_front() else {
            return false;
        };
        slots.book.on_placed(slot);
        let placed = Placed {
            block: self.outgoing.header(&block, crc),
            slot,
        };
        self.outgoing.on_sent(0, &block, crc);
        let packet = Packet::new(&Message::Placed(placed));
        self.wires[0].to_receiver.push_back(packet);
        true
    }

    /// A block is dealt with: its slot may be written again.
    fn free_slot(&mut self, index: u64) {
        let Some(slots) = &mut self.slots else { return };
        let at = slots.taken.iter().position(|(block, _)| *block == index);
        let (_, slot) = slots.taken.swap_remove(at.expect("it was in a slot"));
        slots.grants.free(slot);
        let packet = Packet::new(&Message::Freed(Freed { stream: 1, slot }));
        self.wires[0].to_sender.push_back(packet);
    }

    /// Puts a block on its way, or does with it what networks do in this test.
    fn carry(&mut self, rail: u16, mut packet: Packet) {
        let (dice, faults) = (&mut self.dice, self.faults);
        let queue = &mut self.wires[usize::from(rail)].to_receiver;
        if dice.one_in(faults.drop) {
            return;
        }
        if dice.one_in(faults.double) {
            queue.push_back(packet.clone());
        }
        if dice.one_in(faults.damage) && !packet.payload.is_empty() {
            let at = dice.roll(packet.payload.len() as u64) as usize;
            packet.payload[at] ^= 1 << dice.roll(8);
        }
        queue.push_back(packet);
        if dice.one_in(faults.swap) && queue.len() >= 2 {
            let last = queue.len() - 1;
            if queue[last - 1].is_block() {
                queue.swap(last - 1, last);
            }
        }
    }

    fn say_sender(&mut self) -> bool {
        if self.is_talkative && self.dice.one_in(30) {
            self.outgoing.want_sign_of_life();
        }
        let Some(rail) = self.live_rail() else {
            return false;
        };
        let Some(message) = self.outgoing.next_control(rail, 8192, &self.manifest) else {
            return false;
        };
        let packet = Packet::new(&message);
        if self.dice.one_in(4) {
            // The endpoint has no room now.
            return true;
        }
        self.outgoing.on_control_sent(rail);
        self.wires[usize::from(rail)].to_receiver.push_back(packet);
        true
    }

    fn say_receiver(&mut self) -> bool {
        let Some(incoming) = &mut self.incoming else {
            return false;
        };
        if incoming.control_rail().is_none() {
            let live = (0..self.wires.len()).find(|rail| !self.wires[*rail].receiver_knows);
            match live {
                Some(rail) => incoming.set_control_rail(rail as u16),
                None => return false,
            }
        }
        let rail = incoming.control_rail().unwrap();
        if self.dice.one_in(10) {
            incoming.want_progress();
        }
        if self.is_talkative && self.dice.one_in(30) {
            incoming.want_sign_of_life();
        }
        let Some(message) = incoming.next_control() else {
            return false;
        };
        let packet = Packet::new(&message);
        if self.dice.one_in(4) {
            return true;
        }
        incoming.on_control_sent();
        self.wires[usize::from(rail)].to_sender.push_back(packet);
        true
    }

    fn deliver(&mut self, to_receiver: bool) -> bool {
        let rail = self.dice.roll(self.wires.len() as u64) as usize;
        let wire = &mut self.wires[rail];
        let (queue, knows) = match to_receiver {
            true => (&mut wire.to_receiver, wire.receiver_knows),
            false => (&mut wire.to_sender, wire.sender_knows),
        };
        if knows {
            return false;
        }
        let Some(packet) = queue.pop_front() else {
            return false;
        };
        let message = Message::parse(&packet.header, &packet.payload).unwrap();
        match to_receiver {
            true => self.on_receiver(rail as u16, &message, &packet.payload),
            false => self.on_sender(&message),
        }
        true
    }

    fn on_sender(&mut self, message: &Message<'_>) {
        let taken = self.outgoing.on_message(message);
        taken.expect("an honest receiver keeps to the protocol");
        let Some(slots) = &mut self.slots else { return };
        match message {
            Message::Window(window) => slots.book.add(window, 16, 16).expect("a slot"),
            Message::Freed(freed) => slots.book.on_freed(freed.slot).expect("it was taken"),
            _ => {}
        }
    }

    fn on_receiver(&mut self, rail: u16, message: &Message<'_>, payload: &[u8]) {
        if let Message::Open(open) = message {
            let incoming =
                IncomingStream::new(rail, *open, self.settings.clone()).expect("it is admitted");
            self.incoming = Some(incoming);
            self.decide();
            return;
        }
        let incoming = self.incoming.as_mut().expect("the first message opens");
        let arrival = incoming
            .on_message(rail, message)
            .expect("an honest sender keeps to the protocol");
        match (arrival, message) {
            (MessageOutcome::Announced, _) => self.decide(),
            (MessageOutcome::Block(block), Message::Block(header)) => {
                let written = self.writing.iter().any(|other| other.has(block.index));
                assert!(
                    !written && !incoming.have().contains(block.index),
                    "no block is written twice"
                );
                let arrived = Arrived::Block(block, header.crc, payload.to_vec());
                self.writing.push(arrived);
            }
            (MessageOutcome::Pack(blocks), Message::Pack(pack)) => {
                let bytes = &payload[payload.len() - pack.len as usize..];
                let blocks = blocks.iter().map(|packed| {
                    let (index, end) = (packed.block.index, packed.at + packed.block.len as usize);
                    let written = self.writing.iter().any(|other| other.has(index));
                    assert!(
                        !written && !incoming.have().contains(index),
                        "no block is written twice"
                    );
                    (packed.block, packed.crc, bytes[packed.at..end].to_vec())
                });
                let arrived = Arrived::Pack(blocks.collect());
                self.writing.push(arrived);
            }
            (MessageOutcome::Zeros(blocks), _) => {
                let is_new = |block: &Block| {
                    let written = self.writing.iter().any(|other| other.has(block.index));
                    !written && !incoming.have().contains(block.index)
                };
                assert!(blocks.iter().all(is_new), "no block is written twice");
                self.writing.push(Arrived::Zeros(blocks));
            }
            (MessageOutcome::Same(blocks), Message::Same(_)) => {
                let blocks = blocks.iter().map(|(block, crc)| {
                    let written = self.writing.iter().any(|other| other.has(block.index));
                    assert!(
                        !written && !incoming.have().contains(block.index),
                        "no block is kept twice"
                    );
                    let begin = block.offset as usize;
                    let bytes = &self.sink[block.entry][begin..begin + block.len as usize];
                    (*block, *crc, bytes.to_vec())
                });
                let arrived = Arrived::Pack(blocks.collect());
                self.writing.push(arrived);
            }
            (MessageOutcome::Block(block), Message::Placed(placed)) => {
                let slots = self.slots.as_mut().expect("there are slots");
                slots.grants.take(placed.slot).expect("it is the sender's");
                slots.taken.push((block.index, placed.slot));
                let bytes = slots.memory[placed.slot as usize].clone();
                let arrived = Arrived::Block(block, placed.block.crc, bytes);
                self.writing.push(arrived);
            }
            (MessageOutcome::Twice, Message::Placed(_)) => {
                panic!("no block is lost, so none comes twice")
            }
            (MessageOutcome::CloseRail(rail), _) => {
                let wire = &mut self.wires[usize::from(rail)];
                wire.receiver_knows = true;
                assert!(wire.is_cut, "the sender only gives up what is lost");
            }
            _ => {}
        }
    }

    fn decide(&mut self) {
        let incoming = self.incoming.as_mut().unwrap();
        if !incoming.is_announced() {
            return;
        }
        let sizes: Vec<usize> = incoming
            .manifest()
            .iter()
            .map(|entry| entry.size as usize)
            .collect();
        assert_eq!(sizes, self.source.iter().map(Vec::len).collect::<Vec<_>>());
        assert!(**incoming.manifest() == self.manifest, "owners and all");
        let mut digest = StreamDigest::new(self.plan.blocks());
        for index in self.before.ranges(0).flatten() {
            let block = self.plan.get(index).unwrap();
            let begin = block.offset as usize;
            let bytes = &self.sink[block.entry][begin..begin + block.len as usize];
            digest.add(index, block.len, crc32c(bytes));
        }
        let blocks = |set: &BlockSet| {
            let all = set.ranges(0).flatten();
            let all = all.filter_map(|index| self.plan.get(index));
            all.collect::<Vec<_>>()
        };
        let there = |block: &Block| {
            let begin = block.offset as usize;
            &self.sink[block.entry][begin..begin + block.len as usize]
        };
        let compared = blocks(&self.compared);
        let sums = compared
            .iter()
            .map(|block| (block.index, content_sum(there(block))));
        incoming.accept_counted(HadContent {
            bytes: blocks(&self.before)
                .iter()
                .map(|block| u64::from(block.len))
                .sum(),
            blocks: self.before.clone(),
            unchanged: 0,
            sums: sums.collect(),
            digest_part: digest.part(),
            hash: None,
        });
        let Some(slots) = &mut self.slots else { return };
        for _ in 0..slots.count {
            let window = Window {
                stream: 1,
                first_slot: slots.grants.grant(()),
                slots: 1,
                stride: 16,
                descriptor: &[0; WINDOW_DESCRIPTOR_LEN],
            };
            slots.memory.push(Vec::new());
            let packet = Packet::new(&Message::Window(window));
            self.wires[0].to_sender.push_back(packet);
        }
    }

    fn write_one(&mut self) -> bool {
        let Some(incoming) = &mut self.incoming else {
            return false;
        };
        if incoming.is_whole() {
            incoming.complete(Checks::CRC32C, 0);
            return true;
        }
        if self.writing.is_empty() {
            return false;
        }
        let at = self.dice.roll(self.writing.len() as u64) as usize;
        let (block, said, bytes) = match self.writing.swap_remove(at) {
            Arrived::Block(block, said, bytes) => (block, said, bytes),
            Arrived::Pack(blocks) => {
                let outcomes = blocks.iter().map(|(block, said, bytes)| {
                    let crc = crc32c(bytes);
                    if crc != *said {
                        return (*block, PackedOutcome::Damaged(crc));
                    }
                    let begin = block.offset as usize;
                    self.sink[block.entry][begin..begin + bytes.len()].copy_from_slice(bytes);
                    (*block, PackedOutcome::Written(crc, None))
                });
                incoming.on_pack_done(&outcomes.collect::<Vec<_>>());
                return true;
            }
            Arrived::Zeros(blocks) => {
                let outcomes = blocks.iter().map(|block| {
                    let begin = block.offset as usize;
                    self.sink[block.entry][begin..begin + block.len as usize].fill(0);
                    let crc = crc32c_of_zeros(block.len.into());
                    (*block, PackedOutcome::Written(crc, None))
                });
                incoming.on_pack_done(&outcomes.collect::<Vec<_>>());
                return true;
            }
        };
        self.free_slot(block.index);
        let Some(incoming) = &mut self.incoming else {
            return false;
        };
        let crc = crc32c(&bytes);
        if crc != said {
            incoming.on_damaged(&block, crc);
            return true;
        }
        let begin = block.offset as usize;
        self.sink[block.entry][begin..begin + bytes.len()].copy_from_slice(&bytes);
        incoming.on_written(&block, crc, None);
        true
    }

    /// Cuts a connection, brings the news to one of its ends, or makes a new one.
    fn break_one(&mut self) -> bool {
        let rail = self.dice.roll(self.wires.len() as u64) as usize;
        let may_cut = self.outgoing.is_accepted() && self.wires.len() < 12;
        if may_cut && !self.wires[rail].is_cut && self.dice.one_in(self.faults.cut) {
            let wire = &mut self.wires[rail];
            wire.is_cut = true;
            // What was under way arrives up to some point.
            let keep = self.dice.roll(wire.to_receiver.len() as u64 + 1) as usize;
            wire.to_receiver.truncate(keep);
            let keep = self.dice.roll(wire.to_sender.len() as u64 + 1) as usize;
            wire.to_sender.truncate(keep);
            let number = self.wires.len() as u16;
            self.wires.push(Wire::default());
            self.outgoing.add_rail(number);
            return true;
        }
        let wire = &mut self.wires[rail];
        if !wire.is_cut {
            return false;
        }
        if !wire.sender_knows && wire.to_sender.is_empty() {
            wire.sender_knows = true;
            self.outgoing.on_rail_lost(rail as u16);
            return true;
        }
        if !wire.receiver_knows && wire.to_receiver.is_empty() {
            wire.receiver_knows = true;
            if let Some(incoming) = &mut self.incoming {
                incoming.on_rail_gone(rail as u16);
            }
            return true;
        }
        false
    }

    /// Runs until both sides know how it ended.
    fn run(&mut self) {
        for _ in 0..400_000 {
            self.step();
            let is_over = self
                .incoming
                .as_ref()
                .is_some_and(|it| it.outcome().is_some());
            if is_over && self.outgoing.outcome().is_some() {
                return;
            }
            assert!(
                self.idle < 20_000,
                "both wait for nothing: {:#?} {:#?}",
                self.outgoing,
                self.incoming
            );
        }
        panic!("it does not end: {:#?} {:#?}", self.outgoing, self.incoming);
    }
}

fn manifest(source: &[Vec<u8>]) -> Manifest {
    let names: Vec<String> = (0..source.len()).map(|n| format!("file {n:04}")).collect();
    Manifest::new(names.iter().zip(source).map(|(name, bytes)| Entry {
        name: RelativeName::new(name.as_bytes()).unwrap(),
        kind: EntryKind::File,
        mode: 0o644,
        size: bytes.len() as u64,
        modified: Modified::default(),
        sparse: true,
    }))
    .unwrap()
}

fn open(manifest: &Manifest, plan: &BlockPlan) -> Open {
    Open {
        stream: 1,
        flags: OpenFlags::CRC32C | OpenFlags::SPARSE,
        block_bytes: plan.block_bytes(),
        entries: manifest.len() as u64,
        manifest_bytes: manifest.encoded_len(),
        bytes: plan.bytes(),
        blocks: plan.blocks(),
        attribute_bytes: manifest.encoded_attributes().len() as u32,
        identity: StreamIdentity::default(),
    }
}

fn settings(window: u64) -> IncomingSettings {
    IncomingSettings {
        limits: Limits::default(),
        memory_left: 1 << 20,
        features: Features::SPARSE,
        payload_max: 1 << 20,
        window,
        slots: 0,
    }
}

fn world(
    sizes: &[usize],
    had: &[bool],
    window: u64,
    rails: u16,
    faults: Faults,
    seed: u64,
) -> World {
    let mut dice = Dice(seed | 1);
    let source: Vec<Vec<u8>> = sizes
        .iter()
        .map(|len| {
            let mut bytes: Vec<_> = (0..*len).map(|_| dice.roll(256) as u8).collect();
            // Of each file some blocks are zeros.
            let holes = bytes.chunks_mut(16).enumerate();
            holes
                .filter(|(number, _)| number % 7 > 3)
                .for_each(|(_, block)| block.fill(0));
            bytes
        })
        .collect();
    let manifest = manifest(&source);
    let plan = Arc::new(BlockPlan::new(&manifest, 16));
    let mut before = BlockSet::new(plan.blocks());
    // What was there before is not zeros.
    let mut sink: Vec<Vec<u8>> = source.iter().map(|bytes| vec![9; bytes.len()]).collect();
    for (block, had) in plan.iter().zip(had.iter().cycle()) {
        if *had {
            before.insert(block.index);
            let begin = block.offset as usize;
            let range = begin..begin + block.len as usize;
            sink[block.entry][range.clone()].copy_from_slice(&source[block.entry][range]);
        }
    }
    let mut outgoing = OutgoingStream::new(open(&manifest, &plan), Arc::clone(&plan), 0);
    (1..rails).for_each(|rail| outgoing.add_rail(rail));
    World {
        dice,
        faults,
        source,
        sink,
        manifest,
        plan,
        outgoing,
        incoming: None,
        settings: settings(window),
        before,
        compared: BlockSet::new(0),
        wires: (0..rails).map(|_| Wire::default()).collect(),
        read: VecDeque::new(),
        packs: false,
        zeros: false,
        writing: Vec::new(),
        idle: 0,
        is_talkative: false,
        slots: None,
    }
}

/// The same by RMA write, over one connection that loses nothing.
fn by_write(sizes: &[usize], had: &[bool], window: u64, slots: u32, seed: u64) -> World {
    let mut world = world(sizes, had, window, 1, NO_FAULTS, seed);
    world.settings.features |= Features::BY_WRITE;
    world.settings.slots = slots;
    let mut open = open(&world.manifest, &world.plan);
    open.flags |= OpenFlags::BY_WRITE;
    world.outgoing = OutgoingStream::new(open, Arc::clone(&world.plan), 0);
    world.slots = Some(Slots {
        count: slots,
        ..Slots::default()
    });
    world
}

impl World {
    /// The sink has files of the same names: of some blocks it says what lies in their places,
    /// which is the same or not.
    fn compare(&mut self, rails: u16) {
        self.compared = BlockSet::new(self.plan.blocks());
        for block in self.plan.iter() {
            if self.before.contains(block.index) || self.dice.one_in(3) {
                continue;
            }
            self.compared.insert(block.index);
            if !self.dice.one_in(3) {
                let range = block.offset as usize..block.offset as usize + block.len as usize;
                self.sink[block.entry][range.clone()]
                    .copy_from_slice(&self.source[block.entry][range]);
            }
        }
        self.settings.features |= Features::COMPARE;
        let mut open = open(&self.manifest, &self.plan);
        open.flags |= OpenFlags::SKIP_UNCHANGED | OpenFlags::COMPARE;
        open.flags.set(OpenFlags::BY_WRITE, self.slots.is_some());
        self.outgoing = OutgoingStream::new(open, Arc::clone(&self.plan), 0);
        (1..rails).for_each(|rail| self.outgoing.add_rail(rail));
    }

    /// It is said which extended attributes files have, and, maybe, whose they are.
    fn attribute(&mut self, rails: u16, value: &[u8]) {
        let number = 0..self.manifest.len();
        let attributes = number.map(|number| {
            let name = b"user.some";
            (number, Attribute { name, value })
        });
        let manifest = std::mem::take(&mut self.manifest);
        self.manifest = manifest.with_attributes(attributes).expect("in order");
        self.settings.features |= Features::ATTRIBUTES;
        let mut open = open(&self.manifest, &self.plan);
        if self.dice.one_in(2) {
            let owner = Owner { user: 1, group: 2 };
            let owners = vec![owner; self.manifest.len()];
            let manifest = std::mem::take(&mut self.manifest);
            self.manifest = manifest.with_owners(owners).expect("as many as files");
            self.settings.features |= Features::OWNERS;
            open.flags |= OpenFlags::OWNERS;
        }
        open.flags |= OpenFlags::ATTRIBUTES;
        open.flags.set(OpenFlags::BY_WRITE, self.slots.is_some());
        self.outgoing = OutgoingStream::new(open, Arc::clone(&self.plan), 0);
        (1..rails).for_each(|rail| self.outgoing.add_rail(rail));
    }

    /// It is said whose files are.
    fn own(&mut self, rails: u16) {
        let owner = |number: usize| Owner {
            user: number as u32,
            group: 7,
        };
        let owners = (0..self.manifest.len()).map(owner).collect();
        let manifest = std::mem::take(&mut self.manifest);
        self.manifest = manifest.with_owners(owners).expect("as many as files");
        self.settings.features |= Features::OWNERS;
        let mut open = open(&self.manifest, &self.plan);
        open.flags |= OpenFlags::OWNERS;
        open.flags.set(OpenFlags::BY_WRITE, self.slots.is_some());
        self.outgoing = OutgoingStream::new(open, Arc::clone(&self.plan), 0);
        (1..rails).for_each(|rail| self.outgoing.add_rail(rail));
    }

    fn check_complete(&mut self) {
        self.run();
        let outcome = self.outgoing.outcome().unwrap();
        let complete = outcome.as_ref().expect("an honest network gets it there");
        assert_eq!(
            self.incoming
                .as_ref()
                .unwrap()
                .outcome()
                .unwrap()
                .as_ref()
                .unwrap(),
            complete
        );
        assert_eq!(self.sink, self.source);
        let mut digest = StreamDigest::new(self.plan.blocks());
        for block in self.plan.iter() {
            digest.add(block.index, block.len, crc32c(&self.bytes_of(&block)));
        }
        assert_eq!(complete.digest, digest.digest());
        assert_eq!(
            self.outgoing.written(),
            (self.plan.blocks(), self.plan.bytes())
        );
    }
}

#[test]
fn without_faults_each_block_is_sent_once() {
    for sizes in [&[][..], &[0], &[1], &[0, 5000, 0, 16, 17]] {
        let mut world = world(sizes, &[false], 4, 1, NO_FAULTS, 5);
        world.check_complete();
        assert_eq!(world.outgoing.sent(), (world.plan.blocks(), 0));
        assert_eq!(world.incoming.unwrap().arrived(), (world.plan.blocks(), 0));
    }
}

/// A pack is one message against the credit, whatever it has.
#[test]
fn packs_are_fewer_messages_than_blocks() {
    let mut world = world(&[16 * 200, 5, 0, 7], &[false], 1, 1, NO_FAULTS, 5);
    world.packs = true;
    world.check_complete();
    let (sent, resent) = world.outgoing.sent();
    assert!(sent < world.plan.blocks() && resent == 0, "{sent}");
    assert_eq!(world.incoming.unwrap().arrived(), (sent, 0));
}

/// So are zeros, which have no bytes.
#[test]
fn zeros_are_said_and_not_sent() {
    let mut world = world(&[16 * 200, 5, 0, 7], &[false], 1, 1, NO_FAULTS, 5);
    (world.packs, world.zeros) = (true, true);
    let mut said = 0;
    while world.outgoing.outcome().is_none() {
        world.step();
        let queued = world.wires[0].to_receiver.iter();
        said = said.max(queued.filter(|it| it.header[4] == 12).count());
    }
    assert!(said > 0, "some blocks are zeros");
    world.check_complete();
    let (sent, resent) = world.outgoing.sent();
    assert!(sent < world.plan.blocks() && resent == 0, "{sent}");
}

/// Between the engine's word that all was sent and the sender's, one hears that it was not.
#[test]
fn what_comes_damaged_before_finish_is_said_is_sent_first() {
    let mut world = world(&[100], &[false], 8, 1, NO_FAULTS, 12);
    let World {
        outgoing,
        manifest,
        plan,
        ..
    } = &mut world;
    while outgoing.next_control(0, 8192, manifest).is_some() {
        outgoing.on_control_sent(0);
    }
    let accept = Accept {
        stream: 1,
        granted: 8,
        have_blocks: 0,
        have_digest: 0,
        slots: 0,
        unchanged: 0,
        compared: 0,
    };
    outgoing.on_message(&Message::Accept(accept)).unwrap();
    for block in plan.iter() {
        assert!(outgoing.take(block.index));
        outgoing.on_sent(0, &block, 1);
    }
    outgoing.allow_finish();
    let (stream, index, crc) = (1, 3, 2);
    let damaged = Message::Damaged(Damaged { stream, index, crc });
    outgoing.on_message(&damaged).unwrap();
    assert!(!outgoing.is_finishing() && outgoing.wants(index));
    assert!(outgoing.next_control(0, 8192, manifest).is_none());
}

/// A peer that keeps files though it was not asked to, or more than there are.
#[test]
fn a_peer_keeps_no_files_but_those_that_it_may() {
    let accept = |unchanged| Accept {
        stream: 1,
        granted: 8,
        have_blocks: 0,
        have_digest: 0,
        slots: 0,
        unchanged,
        compared: 0,
    };
    for (may_skip, unchanged, is_right) in [
        (false, 0, true),
        (false, 1, false),
        (true, 1, true),
        (true, 2, false),
        (true, u64::MAX, false),
    ] {
        let manifest = manifest(&[vec![1; 100]]);
        let plan = Arc::new(BlockPlan::new(&manifest, 16));
        let mut open = open(&manifest, &plan);
        open.flags.set(OpenFlags::SKIP_UNCHANGED, may_skip);
        let mut outgoing = OutgoingStream::new(open, plan, 0);
        while outgoing.next_control(0, 8192, &manifest).is_some() {
            outgoing.on_control_sent(0);
        }
        let said = outgoing.on_message(&Message::Accept(accept(unchanged)));
        assert_eq!(said.is_ok(), is_right, "{may_skip} {unchanged}: {said:?}");
    }
}

/// A peer that says what its files have though it was not asked, of blocks that are not to be
/// compared, or of more than it said.
#[test]
fn a_peer_compares_no_blocks_but_those_that_it_may() {
    // Of 7 blocks it has the first one.
    let said = |may_compare: bool, compared: u64, runs: &[(u64, usize)]| {
        let manifest = manifest(&[vec![1; 100]]);
        let plan = Arc::new(BlockPlan::new(&manifest, 16));
        let mut open = open(&manifest, &plan);
        open.flags.set(OpenFlags::COMPARE, may_compare);
        let mut outgoing = OutgoingStream::new(open, plan, 0);
        while outgoing.next_control(0, 8192, &manifest).is_some() {
            outgoing.on_control_sent(0);
        }
        let accept = Accept {
            stream: 1,
            granted: 8,
            have_blocks: 1,
            have_digest: 0,
            slots: 0,
            unchanged: 0,
            compared,
        };
        outgoing.on_message(&Message::Accept(accept))?;
        let mut ranges = RangesBuilder::default();
        ranges.push(0..1);
        outgoing.on_message(&Message::Have(RangeList {
            stream: 1,
            lap: 0,
            more: false,
            ranges: ranges.ranges(),
        }))?;
        assert_eq!(outgoing.is_accepted(), compared == 0, "told all?");
        for (first, count) in runs {
            outgoing.on_message(&Message::Sums(Sums {
                stream: 1,
                first: *first,
                sums: &vec![[7; 16]; *count],
            }))?;
        }
        assert!(!outgoing.is_same(1, Some([8; 16])) && !outgoing.is_same(1, None));
        Ok::<_, StreamViolation>((outgoing.is_accepted(), outgoing.is_same(1, Some([7; 16]))))
    };
    assert_eq!(said(false, 0, &[]), Ok((true, false)));
    assert_eq!(said(true, 6, &[(1, 3), (4, 3)]), Ok((true, true)));
    assert_eq!(
        said(true, 2, &[(2, 1)]),
        Ok((false, false)),
        "one is to come"
    );
    for (may, compared, runs) in [
        (false, 1, &[][..]),
        (true, 7, &[]),
        (true, u64::MAX, &[]),
        (false, 0, &[(1, 1)]),
        (true, 2, &[(0, 1)]),
        (true, 2, &[(6, 2)]),
        (true, 2, &[(u64::MAX - 4, 2)]),
        (true, 2, &[(1, 3)]),
        (true, 2, &[(2, 1), (2, 1)]),
        (true, 2, &[(3, 1), (2, 1)]),
        (true, 2, &[(1, 2), (4, 1)]),
    ] {
        said(may, compared, runs).expect_err(&format!("{may} {compared} {runs:?}"));
    }
}

/// A peer that has removed something though it was not asked to.
#[test]
fn a_peer_removes_nothing_but_where_it_may() {
    for (may_delete, deleted, is_right) in [
        (false, 0, true),
        (false, 1, false),
        (true, 0, true),
        (true, u64::MAX, true),
    ] {
        let manifest = manifest(&[vec![]]);
        let plan = Arc::new(BlockPlan::new(&manifest, 16));
        let mut open = open(&manifest, &plan);
        open.flags.set(OpenFlags::DELETE, may_delete);
        let mut outgoing = OutgoingStream::new(open, plan, 0);
        let speak = |outgoing: &mut OutgoingStream| {
            while outgoing.next_control(0, 8192, &manifest).is_some() {
                outgoing.on_control_sent(0);
            }
        };
        speak(&mut outgoing);
        let accept = Accept {
            stream: 1,
            granted: 8,
            have_blocks: 0,
            have_digest: 0,
            slots: 0,
            unchanged: 0,
            compared: 0,
        };
        let accepted = outgoing.on_message(&Message::Accept(accept));
        accepted.expect("nothing is wrong with it");
        outgoing.allow_finish();
        speak(&mut outgoing);
        let complete = Complete {
            stream: 1,
            checks: Checks::CRC32C,
            digest: StreamDigest::new(0).digest(),
            blocks: 0,
            bytes: 0,
            deleted,
            blake3: None,
        };
        let said = outgoing.on_message(&Message::Complete(complete));
        assert_eq!(said.is_ok(), is_right, "{may_delete} {deleted}: {said:?}");
        let is_complete = matches!(outgoing.outcome(), Some(Ok(_)));
        assert_eq!(is_complete, is_right, "{may_delete} {deleted}");
        let counted = if is_right { deleted } else { 0 };
        assert_eq!(outgoing.deleted(), counted, "{may_delete} {deleted}");
    }
}

/// Owners of so many files that they take several messages.
#[test]
fn owners_of_many_files_are_said_in_parts() {
    let mut world = world(&[0; 1500], &[false], 8, 2, NO_FAULTS, 12);
    world.own(2);
    world.check_complete();
    let owner = world.incoming.unwrap().manifest().owner(1499);
    let wanted = Owner {
        user: 1499,
        group: 7,
    };
    assert_eq!(owner, Some(wanted));
}

/// Extended attributes of so many bytes that they take several messages, in parts.
#[test]
fn attributes_of_many_files_are_said_in_parts() {
    let mut world = world(&[0; 30], &[false], 8, 2, NO_FAULTS, 12);
    world.attribute(2, &[7; 5000]);
    world.check_complete();
    let incoming = world.incoming.unwrap();
    let of_last = incoming.manifest().attributes(29).expect("they are said");
    let value = &[7; 5000];
    let name = b"user.some";
    assert!(of_last.eq([Attribute { name, value }]));
}

#[test]
fn what_the_sink_has_is_not_sent() {
    let mut world = world(&[16 * 5000], &[true, false], 8, 1, NO_FAULTS, 6);
    world.check_complete();
    assert_eq!(world.outgoing.had(), (2500, 16 * 2500));
    assert_eq!(world.outgoing.sent(), (2500, 0));
    let mut all = world_all_there();
    all.check_complete();
    assert_eq!(all.outgoing.sent(), (0, 0));
}

fn world_all_there() -> World {
    world(&[100, 100], &[true], 8, 2, NO_FAULTS, 7)
}

#[test]
fn a_source_that_changes_under_way_is_found_out() {
    let faults = Faults {
        drop: 4,
        ..NO_FAULTS
    };
    let mut world = world(&[4000], &[false], 8, 1, faults, 8);
    for _ in 0..500_000 {
        world.step();
        // Each time that a block is read, it is another.
        world.source[0]
            .iter_mut()
            .for_each(|byte| *byte = byte.wrapping_add(1));
        if world.outgoing.outcome().is_some() {
            break;
        }
    }
    match world.outgoing.outcome() {
        Some(Err(StreamError::Failed { code, .. })) => assert_eq!(*code, RefusalCode::DIGEST),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_sender_that_gives_up_is_understood() {
    let mut world = world(&[4000], &[false], 8, 2, NO_FAULTS, 9);
    while world
        .incoming
        .as_ref()
        .is_none_or(|incoming| incoming.bytes() < 1000)
    {
        world.step();
    }
    world.outgoing.give_up(RefusalCode::CANCELLED, "enough");
    world.run();
    match world.incoming.unwrap().outcome() {
        Some(Err(StreamError::Failed { code, reason, .. })) => {
            assert_eq!((*code, reason.as_str()), (RefusalCode::CANCELLED, "enough"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_sink_that_fails_is_understood() {
    let mut world = world(&[4000], &[false], 8, 2, NO_FAULTS, 10);
    while world
        .incoming
        .as_ref()
        .is_none_or(|incoming| incoming.bytes() < 1000)
    {
        world.step();
    }
    let incoming = world.incoming.as_mut().unwrap();
    incoming.fail(RefusalCode::SPACE, Some(7), "no space left on device");
    world.run();
    match world.outgoing.outcome() {
        Some(Err(StreamError::Failed { code, block, .. })) => {
            assert_eq!((*code, *block), (RefusalCode::SPACE, Some(7)));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn blocks_that_are_always_damaged_end_it() {
    let faults = Faults {
        damage: 1,
        ..NO_FAULTS
    };
    let mut world = world(&[400], &[false], 8, 1, faults, 11);
    world.settings.limits.resent = 50;
    world.run();
    assert!(world.outgoing.outcome().unwrap().is_err());
    assert!(world.incoming.unwrap().outcome().unwrap().is_err());
}

/// Transfers of all sizes around the bounds of blocks, by message and by write, in any order of
/// turns, with posts that are refused and words that are said though there is nothing new.
/// FABRICAST_SOAK=1: 100,000 of them; FABRICAST_SEED repeats a run.
#[test]
fn transfers_in_any_order_of_turns_come_to_an_end() {
    let is_soak = std::env::var_os("FABRICAST_SOAK").is_some_and(|it| it == "1");
    let seed = std::env::var("FABRICAST_SEED").ok();
    let seed: u64 = seed.map_or(4711, |seed| seed.parse().expect("a number"));
    let transfers: u64 = if is_soak { 100_000 } else { 3000 };
    println!("{transfers} transfers, FABRICAST_SEED={seed}");
    let mut blocks = 0;
    for number in 0..transfers {
        let mut dice = Dice(
            seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .wrapping_add(number)
                | 1,
        );
        dice.roll(2);
        let size = [0, 1, 15, 16, 17, 16 * 77 - 1][dice.roll(6) as usize];
        let had = [false, dice.one_in(4)];
        let window = 1 + dice.roll(16);
        let turns = dice.roll(u64::MAX);
        let mut world = match dice.one_in(2) {
            true => by_write(&[size], &had, window, 1 + dice.roll(16) as u32, turns),
            false => world(
                &[size],
                &had,
                window,
                1 + dice.roll(3) as u16,
                NO_FAULTS,
                turns,
            ),
        };
        let rails = world.wires.len() as u16;
        match dice.roll(5) {
            0 => world.compare(rails),
            1 => world.own(rails),
            2 => world.attribute(rails, b"value"),
            _ => {}
        }
        world.is_talkative = true;
        (world.packs, world.zeros) = (dice.one_in(2), dice.one_in(2));
        world.check_complete();
        let (sent, resent) = world.outgoing.sent();
        assert_eq!(resent, 0, "transfer {number}");
        blocks += sent;
    }
    println!("{blocks} blocks");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_the_network_does_the_content_is_exact(
        sizes in proptest::collection::vec(0..700_usize, 0..5),
        had in proptest::collection::vec(any::<bool>(), 1..6),
        window in 1..12_u64,
        rails in 1..4_u16,
        (packs, zeros, compares) in any::<(bool, bool, bool)>(),
        faults in (0..12_u64, 0..12_u64, 0..12_u64, 0..6_u64, 0..30_u64),
        seed in any::<u64>(),
    ) {
        let one_in = |n: u64| if n < 3 { 0 } else { n };
        let faults = Faults {
            drop: one_in(faults.0),
            double: one_in(faults.1),
            damage: one_in(faults.2),
            swap: one_in(faults.3),
            cut: one_in(faults.4),
        };
        let mut world = world(&sizes, &had, window, rails, faults, seed);
        (world.packs, world.zeros) = (packs, zeros);
        if compares {
            world.compare(rails);
        }
        // The world's faults hit each block several times in a row at times.
        world.outgoing.allow_resent(1 << 20);
        world.check_complete();
    }
}
