//! `PeerSession`: the session with one peer: its connections, its stream, and the blocks that go by
//! them.

use std::time::Instant;

use super::config::Transport;
use super::outgoing_transfer::TransferState;
use super::peer::PeerContext;
use super::peer_blocks::{PeerBlocks, Ready, Takes};
use super::peer_errors::{is_unsendable, reason_of};
use super::peer_rails::PeerRails;
use super::peer_stage::PeerStage;
use super::side::SenderTools;
use super::slot_writer::InSlot;
use crate::buffer::Payload;
use crate::endpoint::duplex::DuplexEndpoint;
use crate::endpoint::{SendErrorKind, WindowEvent};
use crate::stream::outgoing::OutgoingStream;
use crate::stream::wire::{Features, HASH_LEN, HEADER_LEN, Message, Placed};
use crate::stream::{RefusalCode, StreamError};

/// Control messages that wait on a rail at once: a tree has a long manifest.
const WAITING: usize = 4;

/// The same for blocks that were written.
const PLACED_WAITING: usize = 64;

/// What was given to a rail.
pub(super) struct SentNext {
    /// The rail's number.
    pub(super) rail: u16,
    pub(super) blocks: u64,
    pub(super) bytes: u64,
}

/// The session with one peer; after it was lost, the next one.
#[derive(Default)]
pub(super) struct PeerSession {
    pub(super) rails: PeerRails,
    /// None until the stream is open.
    pub(super) outgoing: Option<OutgoingStream>,
    /// Blocks go by RMA write.
    pub(super) by_write: bool,
    pub(super) blocks: PeerBlocks,
    /// Why no endpoint will ever take the next block.
    pub(super) unsendable: Option<String>,
}

impl PeerSession {
    /// Blocks that are read for the peer, wait for it, or are on their way to it.
    pub(super) fn held(&self) -> usize {
        self.blocks.being_read() + self.blocks.waiting() + self.rails.in_flight()
    }

    /// Blocks are being read at once, so many from this one on; they are this peer's, if it wants
    /// them all.
    pub(super) fn assign(&mut self, first: u64, blocks: usize) {
        let Some(outgoing) = &mut self.outgoing else {
            return;
        };
        let all = first..first + blocks as u64;
        if all.clone().all(|index| outgoing.wants(index)) {
            for index in all {
                outgoing.take(index);
            }
            self.blocks.assign(first, blocks);
        }
    }

    /// Whether the peer takes several blocks in one message.
    pub(super) fn takes_packs(&self) -> bool {
        !self.by_write && self.rails.iter().any(|rail| rail.can(Features::PACKS))
    }

    /// Whether the peer takes word of blocks that are zeros.
    pub(super) fn takes_zeros(&self) -> bool {
        !self.by_write && self.rails.first_can(Features::ZEROS)
    }

    /// Blocks were read. Whether they were for the peer, too.
    pub(super) fn on_read(&mut self, ready: Ready) -> bool {
        let takes = Takes {
            packs: self.takes_packs(),
            zeros: self.takes_zeros(),
        };
        let outgoing = self.outgoing.as_ref();
        self.blocks.on_read(ready, takes, |index, content| {
            outgoing.is_some_and(|outgoing| outgoing.is_same(index, content))
        })
    }

    /// Everything was sent, and the source is still what it was. `blake3`: of what was read, if all
    /// of it was.
    pub(super) fn allow_finish(&mut self, blake3: Option<[u8; HASH_LEN]>) {
        if let Some(outgoing) = &mut self.outgoing {
            if let Some(hash) = blake3 {
                outgoing.set_blake3(hash);
            }
            outgoing.allow_finish();
        }
    }

    /// Asks the peer what it lacks, if it is out of credit. Whether it is asked now.
    pub(super) fn inquire(&mut self) -> bool {
        let outgoing = self.outgoing.as_mut();
        outgoing.is_some_and(OutgoingStream::inquire)
    }

    /// Whether the peer may work for long and say nothing: it can't say that it does.
    pub(super) fn may_take_long(&self, stage: PeerStage) -> bool {
        let is_told = self.rails.iter().any(|rail| rail.can(Features::WORKING));
        matches!(stage, PeerStage::Opening | PeerStage::Finishing) && !is_told
    }

    /// Whether a block could be written into a slot, or needs none.
    pub(super) fn has_slot(&self) -> bool {
        !self.by_write || self.rails.any_slot()
    }

    /// Whether everything was sent.
    pub(super) fn has_sent_all(&self) -> bool {
        let is_idle = self.rails.in_flight() == 0 && self.rails.unplaced() == 0;
        let idle = is_idle && self.blocks.is_empty();
        idle && self
            .outgoing
            .as_ref()
            .is_some_and(|outgoing| outgoing.first_wanted(0).is_none())
    }

    /// Puts into the outboxes what the peer is to hear, as far as there is room.
    pub(super) fn speak(&mut self, transfer: &TransferState) {
        let Some(outgoing) = &mut self.outgoing else {
            return;
        };
        let manifest = transfer.source.manifest();
        for rail in self.rails.iter_mut().filter(|rail| rail.is_ready()) {
            let room = rail.control_room();
            while rail.outbox.len() < WAITING
                && let Some(message) = outgoing.next_control(rail.number, room, manifest)
            {
                rail.outbox.push(&message);
                outgoing.on_control_sent(rail.number);
            }
        }
    }

    /// The stream is given up by this side: the peer is told why.
    pub(super) fn tell_why(&mut self, error: &StreamError, with: &mut PeerContext<'_>) {
        if let Some(outgoing) = &mut self.outgoing {
            let (code, text) = reason_of(error);
            outgoing.give_up(code, &text);
            self.speak(with.transfer);
            for rail in self.rails.iter_mut() {
                rail.pump(&mut with.tools.network);
            }
        }
    }

    /// The session is over: its connections are left, and what was on the way is to be sent anew.
    pub(super) fn leave(&mut self, politely: bool, tools: &mut SenderTools) {
        self.rails.leave(politely, tools);
        self.outgoing = None;
        self.by_write = false;
        self.blocks.clear();
    }

    /// A rail is lost that was ready: what was on its way by it is to be sent anew. Whether there
    /// is a stream that it was of.
    pub(super) fn on_rail_lost(&mut self, rail: usize) -> bool {
        let Some(outgoing) = &mut self.outgoing else {
            return false;
        };
        let lost = &mut self.rails[rail];
        lost.local.in_flight = 0;
        let slot_writer = lost.local.slot_writer.as_mut();
        let unplaced = slot_writer.map(|slot_writer| slot_writer.lose());
        for block in unplaced.into_iter().flatten() {
            outgoing.give_back(block);
        }
        outgoing.on_rail_lost(lost.number);
        true
    }

    /// What became of a block that was written into a slot. Whether something has moved.
    pub(super) fn on_window_event(&mut self, rail: usize, event: WindowEvent) -> bool {
        let rail = &mut self.rails[rail];
        let Some(slot_writer) = &mut rail.local.slot_writer else {
            return false;
        };
        match event {
            WindowEvent::Written { key, .. } => {
                slot_writer.on_written(key);
                rail.local.in_flight -= 1;
                true
            }
            // The end of the connection follows, and what becomes of the block.
            WindowEvent::WriteFailed { .. } => {
                rail.local.in_flight -= 1;
                false
            }
            _ => false,
        }
    }

    /// What is said of slots to write into, on the rail whose slots they are.
    pub(super) fn on_slots(
        &mut self,
        rail: usize,
        message: &Message<'_>,
        with: &mut PeerContext<'_>,
    ) -> Result<(), StreamError> {
        let rail = &mut self.rails[rail];
        let (Some(connection), Some(slot_writer)) =
            (rail.connection(), &mut rail.local.slot_writer)
        else {
            return Ok(());
        };
        let (network, port) = (&mut with.tools.network, rail.port);
        let Some(plan) = &with.transfer.plan else {
            return Ok(());
        };
        match message {
            Message::Window(window) => {
                let block_bytes = plan.blocks.block_bytes();
                slot_writer.on_window(window, block_bytes, |descriptor| {
                    network.call(port, move |it| it.open_window(connection, &descriptor))
                })
            }
            Message::Freed(freed) => Ok(slot_writer.on_freed(freed.slot)?),
            _ => Ok(()),
        }
    }

    /// Bytes that the peer's sink has.
    pub(super) fn written_bytes(&self) -> u64 {
        let written = self.outgoing.as_ref().map(OutgoingStream::written);
        written.map_or(0, |(_, bytes)| bytes)
    }

    /// Decides whether blocks of this session go by message or by RMA write: why, in words.
    /// `no_windows`: the receiver had none left.
    ///
    /// # Errors
    /// Writes are wanted, and can't be had.
    pub(super) fn choose_transport(
        &mut self,
        (wanted, no_windows): (Transport, bool),
        block_bytes: u32,
        tools: &mut SenderTools,
    ) -> Result<&'static str, StreamError> {
        let Some(first) = self.rails.first() else {
            return Ok("");
        };
        let (able, favoured) = tools.writes(first.port, block_bytes);
        let may = wanted == Transport::Write || !no_windows;
        let offered = able && may && first.can(Features::BY_WRITE);
        let chosen = wanted.choose(offered, favoured);
        let (by_write, why) = chosen.map_err(|reason| StreamError::GivenUp {
            code: RefusalCode::FEATURE,
            reason: reason.to_owned(),
        })?;
        self.by_write = by_write;
        for rail in self.rails.iter_mut() {
            rail.local.slot_writer = by_write.then(Box::default);
        }
        Ok(why)
    }

    /// Tells the peer of blocks that were written.
    pub(super) fn place(&mut self) {
        let Some(outgoing) = self
            .outgoing
            .as_mut()
            .filter(|outgoing| outgoing.may_place())
        else {
            return;
        };
        for rail in self.rails.iter_mut().filter(|rail| rail.is_ready()) {
            let Some(slot_writer) = &mut rail.local.slot_writer else {
                continue;
            };
            while rail.outbox.len() < PLACED_WAITING
                && let Some(InSlot { block, crc, slot }) = slot_writer.to_place()
            {
                rail.outbox.push(&Message::Placed(Placed {
                    block: outgoing.header(&block, crc),
                    slot,
                }));
                slot_writer.on_placed();
                outgoing.on_sent(rail.number, &block, crc);
            }
        }
    }

    /// Whether a block may be sent now, as far as the peer, the application and the rate allow.
    fn may_send(&self, with: &PeerContext<'_>) -> bool {
        let Some(outgoing) = &self.outgoing else {
            return false;
        };
        // What was written, and is not told of, is to be sent on credit, too.
        let has_credit = !self.by_write || outgoing.room() > self.rails.unplaced() as u64;
        let rate = &with.transfer.rate;
        !with.transfer.paused && outgoing.may_send() && has_credit && rate.may(with.now())
    }

    /// Sends the next block or pack, or word of zeros, by whichever rail has the most room. `None`:
    /// not now.
    pub(super) fn send_next(&mut self, with: &mut PeerContext<'_>) -> Option<SentNext> {
        if !self.may_send(with) {
            return None;
        }
        let depth = with.tools.config.depth as usize;
        let (Some(outgoing), Some(next), Some(rail)) = (
            self.outgoing.as_mut(),
            self.blocks.front(),
            self.rails.with_room(depth),
        ) else {
            return None;
        };
        let connection = rail.connection()?;
        let (network, port) = (&mut with.tools.network, rail.port);
        let mut header = [0; HEADER_LEN];
        let sent = match (next, &mut rail.local.slot_writer) {
            (Ready::Block(ready), None) => {
                let block = outgoing.header(&ready.block, ready.crc);
                block.encode(&mut header);
                let payload = ready.bytes.clone().into();
                network.send((port, connection), payload, &header, ready.block.index)?
            }
            (Ready::Block(ready), Some(slot_writer)) => {
                slot_writer.write(ready, |payload, window, offset, key| {
                    let write = move |endpoint: &mut DuplexEndpoint| {
                        let written = endpoint.write(payload, window.at(offset), key);
                        written.map_err(|refused| refused.kind)
                    };
                    network
                        .call(port, write)
                        .unwrap_or(Err(SendErrorKind::NoConnection))
                })
            }
            (Ready::Same(blocks), _) => {
                let crcs: Vec<_> = blocks.iter().map(|(_, crc)| (*crc).into()).collect();
                let sent = SentNext {
                    rail: rail.number,
                    blocks: 0,
                    bytes: 0,
                };
                rail.outbox
                    .push(&Message::Same(outgoing.same_header(blocks, &crcs)));
                outgoing.on_same_sent(rail.number, blocks);
                rail.pump(network);
                self.blocks.pop();
                return Some(sent);
            }
            (Ready::Pack(ready), _) => {
                let pack = outgoing.pack_header(&ready.blocks, &ready.payload);
                let first = pack.first;
                Message::Pack(pack).encode(&mut header);
                let payload = ready.payload.clone().into();
                network.send((port, connection), payload, &header, first)?
            }
            (Ready::Zeros(blocks), _) => {
                let zeros = outgoing.zeros(blocks);
                Message::Zeros(zeros).encode(&mut header);
                let payload = Payload::empty();
                network.send((port, connection), payload, &header, zeros.first)?
            }
        };
        if let Err(refused) = sent {
            rail.local.blocked = matches!(refused, SendErrorKind::WouldBlock(_));
            // Another rail may have room; that a connection is over, its own event says; and no
            // other attempt makes a block of it that can be sent.
            self.unsendable = is_unsendable(&refused).then(|| refused.to_string());
            return None;
        }
        let (blocks, len) = match next {
            Ready::Block(ready) => {
                if !self.by_write {
                    outgoing.on_sent(rail.number, &ready.block, ready.crc);
                }
                (1, u64::from(ready.block.len))
            }
            Ready::Pack(ready) => {
                outgoing.on_pack_sent(rail.number, &ready.blocks);
                let bytes = ready.blocks.iter().map(|(block, _)| u64::from(block.len));
                (ready.blocks.len() as u64, bytes.sum())
            }
            Ready::Zeros(blocks) => {
                outgoing.on_pack_sent(rail.number, blocks);
                (blocks.len() as u64, 0)
            }
            // It was said above.
            Ready::Same(_) => (0, 0),
        };
        rail.local.in_flight += 1;
        let now = with.now();
        with.transfer.rate.take(len, now);
        self.blocks.pop();
        Some(SentNext {
            rail: rail.number,
            blocks,
            bytes: len,
        })
    }

    /// How the stream is, in words.
    pub(super) fn describe_stream(&self) -> String {
        let outgoing = self.outgoing.as_ref().map(OutgoingStream::describe);
        outgoing.unwrap_or_else(|| "no stream is open".to_owned())
    }

    /// How each connection is, in words.
    pub(super) fn describe_rails(&self, now: Instant) -> Vec<String> {
        self.rails.iter().map(|rail| rail.describe(now)).collect()
    }
}
