//! `Session`: one stream of a receiver, over the connections that its sender makes for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::events::{EventSender, StreamEvent};
use super::receive_slots::ReceiveSlots;
use super::session_rails::SessionRails;
use super::session_report::{SessionReport, deleted_by};
use super::session_sink::{SessionSink, reason_of};
use super::session_stage::SessionStage;
use super::side::{ReceiverTools, RemotePeer};
use super::writing::{BlockBytes, BlockWriteError, CheckedSums, WriteDone, WriteOutcome};
use crate::endpoint::volatile_buffer::VolatileBuffer;
use crate::endpoint::{CloseReason, ConnectionId, Message as Arrived};
use crate::stream::incoming::{IncomingStream, MessageOutcome, PackedOutcome, Refusal};
use crate::stream::sink::{Kept, ReadBack, SinkError};
use crate::stream::wire::{BlockHeader, Features, Kind, Message, Placed};
use crate::stream::{RefusalCode, StreamError, StreamViolation};

/// Why a session is left whose sender can't write any more.
const NO_SLOTS: &str = "the slots that blocks are written into went with a connection";

/// Why a stream is left that its sender does not go on with.
const PAUSED: &str = "its sender has paused it for longer than may be (ReceiverConfig::paused_for)";

pub(super) struct Session {
    id: u64,
    name: [u8; 16],
    peer: RemotePeer,
    rails: SessionRails,
    stage: SessionStage,
    incoming: Option<IncomingStream>,
    sink: SessionSink,
    /// Where the sender writes blocks by itself.
    slots: Option<ReceiveSlots>,
    report: SessionReport,
    /// Why it was cut: what the application is told once the sink is done.
    cut: Option<StreamError>,
}

impl Session {
    pub(super) fn new(
        id: u64,
        name: [u8; 16],
        peer: RemotePeer,
        has_timeline: bool,
        now: Instant,
    ) -> Self {
        Self {
            id,
            name,
            peer,
            rails: SessionRails::default(),
            stage: SessionStage::Opening,
            incoming: None,
            sink: SessionSink::new(id),
            slots: None,
            report: SessionReport::new(has_timeline, now),
            cut: None,
        }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn name(&self) -> [u8; 16] {
        self.name
    }

    pub(super) fn rails(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.rails.connections()
    }

    pub(super) fn is_over(&self) -> bool {
        self.stage == SessionStage::Over
    }

    /// Whether an Open is what comes next.
    pub(super) fn awaits_open(&self) -> bool {
        self.stage == SessionStage::Opening && self.incoming.is_none()
    }

    /// Whether its sink keeps something under a key now.
    pub(super) fn writes(&self, key: [u8; 16]) -> bool {
        let offer = self.sink.offer();
        self.stage != SessionStage::Over && offer.is_some_and(|offer| offer.identity.key == key)
    }

    pub(super) fn silent_for(&self, now: Instant) -> Duration {
        match self.stage.is_of_sink() {
            // It is this side that works.
            true => Duration::ZERO,
            false => self.report.clock.silent_for(now),
        }
    }

    /// Why there can be no connection of this number, if so.
    pub(super) fn refuses_rail(&self, number: u16) -> Option<(RefusalCode, &'static str)> {
        self.rails.refuses(number, self.stage.is_ending())
    }

    pub(super) fn on_rail(
        &mut self,
        connection: ConnectionId,
        number: u16,
        tools: &mut ReceiverTools,
    ) {
        self.rails.add(connection, number);
        self.grant_slots((connection, number), tools);
    }

    /// Bytes of memory that its stream's state takes.
    pub(super) fn memory(&self) -> u64 {
        self.incoming.as_ref().map_or(0, IncomingStream::memory)
    }

    /// Puts into the outbox what the sender is to hear, unless that is still full of the last.
    fn say(&mut self, tools: &mut ReceiverTools) {
        if let Some(incoming) = &mut self.incoming {
            self.rails.say(incoming, &mut tools.rails);
        }
    }

    /// Leaves a stream whose protocol is over, and did not end well.
    fn look(&mut self, tools: &mut ReceiverTools) {
        if self.stage.is_ending() {
            return;
        }
        let outcome = self.incoming.as_ref().and_then(IncomingStream::outcome);
        let Some(Err(error)) = outcome else { return };
        let error = error.clone().with_this_side(|| self.describe_wait());
        self.say(tools);
        self.rails.leave(tools);
        match (self.stage, &error) {
            (SessionStage::Opening, StreamError::GivenUp { code, reason }) => {
                tools.events.refused(self.peer, *code, reason);
                self.stage = SessionStage::Over;
            }
            _ => self.leave(error, tools),
        }
    }

    pub(super) fn on_message(
        &mut self,
        rail: u16,
        message: &Message<'_>,
        memory_left: u64,
        tools: &mut ReceiverTools,
    ) -> Result<(), StreamViolation> {
        self.report.clock.on_moved(tools.now());
        if self.stage.is_ending() {
            return Ok(());
        }
        match (message, &mut self.incoming) {
            (Message::Open(open), None) => match tools.open_stream(rail, open, memory_left) {
                Ok((incoming, memory)) => {
                    self.incoming = Some(incoming);
                    self.report.begin(tools);
                    self.sink.set_memory(memory);
                }
                Err(refusal) => {
                    self.refuse(open.stream, &refusal, tools);
                    return Ok(());
                }
            },
            (Message::Placed(placed), Some(_)) => self.on_placed(rail, placed, tools)?,
            (Message::Same(_), Some(_)) => self.on_same(rail, message, tools)?,
            (_, Some(incoming)) => {
                if let MessageOutcome::CloseRail(lost) = incoming.on_message(rail, message)? {
                    self.rails.abort(lost, tools);
                }
                if matches!(message, Message::Pause(_)) {
                    self.report.clock.on_pause(tools.now());
                }
                self.look(tools);
            }
            (_, None) => {
                let kind = message.kind().0;
                let state = "no stream is open";
                return Err(StreamViolation::Unexpected { kind, state });
            }
        }
        self.advance(tools);
        Ok(())
    }

    /// The manifest is whole: the sink is asked what it has.
    fn prove(&mut self, tools: &mut ReceiverTools) {
        let Some(incoming) = &self.incoming else {
            return;
        };
        match self.sink.open(incoming, tools) {
            Ok(()) => self.stage = SessionStage::Proving,
            Err(error) => self.refuse_by_sink(&error, tools),
        }
    }

    /// The stream is not taken, since the sink does not take it.
    fn refuse_by_sink(&mut self, error: &SinkError, tools: &mut ReceiverTools) {
        let stream = self.incoming.as_ref().map_or(0, |it| it.open().stream);
        let (code, text) = reason_of(error);
        self.sink.close();
        self.refuse(stream, &Refusal::new(code, text), tools);
    }

    /// The stream is not taken: its sender is told why, and left.
    pub(super) fn refuse(&mut self, stream: u32, refusal: &Refusal, tools: &mut ReceiverTools) {
        match &mut self.incoming {
            Some(incoming) => {
                incoming.refuse(refusal.clone());
                self.say(tools);
            }
            None => self.rails.tell(&refusal.message(stream), &mut tools.rails),
        }
        let (code, text) = (refusal.code, &refusal.reason);
        tools.events.refused(self.peer, code, text);
        self.stage = SessionStage::Over;
        self.rails.leave(tools);
    }

    pub(super) fn on_block(
        &mut self,
        rail: u16,
        header: &BlockHeader,
        arrived: Arrived,
        tools: &mut ReceiverTools,
    ) -> Result<(), StreamViolation> {
        self.report.clock.on_moved(tools.now());
        if !self.expects_blocks(Kind::BLOCK)? {
            return Ok(());
        }
        let Some(incoming) = &mut self.incoming else {
            return Ok(());
        };
        match incoming.on_message(rail, &Message::Block(*header))? {
            MessageOutcome::Block(block) => {
                self.report
                    .clock
                    .on_block(incoming.is_paused(), tools.now());
                let bytes = BlockBytes::Message(arrived);
                self.sink.write(incoming, (block, header.crc), bytes, tools);
            }
            MessageOutcome::Twice => self.report.on_doubled(1),
            _ => {}
        }
        self.look(tools);
        Ok(())
    }

    /// Whether blocks are taken now, in messages of this kind; else they are what was under way.
    ///
    /// # Errors
    /// There is no stream yet that could have blocks.
    fn expects_blocks(&self, kind: Kind) -> Result<bool, StreamViolation> {
        let (kind, state) = (kind.0, "no block is expected");
        match self.stage {
            SessionStage::Receiving => Ok(true),
            SessionStage::Leaving | SessionStage::Over => Ok(false),
            _ => Err(StreamViolation::Unexpected { kind, state }),
        }
    }

    /// Several blocks came as one message.
    pub(super) fn on_pack(
        &mut self,
        rail: u16,
        arrived: Arrived,
        tools: &mut ReceiverTools,
    ) -> Result<(), StreamViolation> {
        self.report.clock.on_moved(tools.now());
        if !self.expects_blocks(Kind::PACK)? {
            return Ok(());
        }
        let Some(incoming) = &mut self.incoming else {
            return Ok(());
        };
        let message = Message::parse(arrived.header(), arrived.payload())?;
        let (came, len) = match &message {
            Message::Pack(pack) => (pack.crcs.len() as u64, pack.len as usize),
            _ => (0, 0),
        };
        match incoming.on_message(rail, &message)? {
            MessageOutcome::Pack(blocks) => {
                self.report
                    .clock
                    .on_block(incoming.is_paused(), tools.now());
                self.report.on_doubled(came - blocks.len() as u64);
                let bytes_at = arrived.payload().len() - len;
                self.sink
                    .write_all(incoming, blocks, (arrived, bytes_at), tools);
            }
            MessageOutcome::Twice => self.report.on_doubled(came),
            _ => {}
        }
        self.look(tools);
        Ok(())
    }

    /// Blocks are said to be zeros.
    pub(super) fn on_zeros(
        &mut self,
        rail: u16,
        arrived: Arrived,
        tools: &mut ReceiverTools,
    ) -> Result<(), StreamViolation> {
        self.report.clock.on_moved(tools.now());
        if !self.expects_blocks(Kind::ZEROS)? {
            return Ok(());
        }
        let Some(incoming) = &mut self.incoming else {
            return Ok(());
        };
        let message = Message::parse(arrived.header(), arrived.payload())?;
        let came = match &message {
            Message::Zeros(zeros) => zeros.blocks.into(),
            _ => 0,
        };
        match incoming.on_message(rail, &message)? {
            MessageOutcome::Zeros(blocks) => {
                self.report
                    .clock
                    .on_block(incoming.is_paused(), tools.now());
                self.report.on_doubled(came - blocks.len() as u64);
                self.sink.write_zeros(incoming, blocks, arrived, tools);
            }
            MessageOutcome::Twice => self.report.on_doubled(came),
            _ => {}
        }
        self.look(tools);
        Ok(())
    }

    /// Blocks are those of files that are here.
    fn on_same(
        &mut self,
        rail: u16,
        message: &Message<'_>,
        tools: &mut ReceiverTools,
    ) -> Result<(), StreamViolation> {
        if !self.expects_blocks(Kind::SAME)? {
            return Ok(());
        }
        let Some(incoming) = &mut self.incoming else {
            return Ok(());
        };
        match incoming.on_message(rail, message)? {
            MessageOutcome::Same(blocks) => {
                self.report
                    .clock
                    .on_block(incoming.is_paused(), tools.now());
                self.sink.keep(blocks, tools);
            }
            MessageOutcome::Twice => self.report.on_doubled(1),
            _ => {}
        }
        self.look(tools);
        Ok(())
    }

    fn grant_slots(&mut self, rail: (ConnectionId, u16), tools: &mut ReceiverTools) {
        if let (Some(slots), Some(incoming)) = (&mut self.slots, &self.incoming) {
            slots.grant_share(rail, incoming.open().stream, tools);
        }
    }

    fn on_placed(
        &mut self,
        rail: u16,
        placed: &Placed,
        tools: &mut ReceiverTools,
    ) -> Result<(), StreamViolation> {
        let Some(incoming) = &mut self.incoming else {
            return Ok(());
        };
        let message = Message::Placed(*placed);
        let Some(slots) = &mut self.slots else {
            // It says why that has no place here.
            return incoming.on_message(rail, &message).map(drop);
        };
        let slot_memory = slots.on_placed(rail, placed.slot)?;
        match incoming.on_message(rail, &message)? {
            MessageOutcome::Block(block) => {
                self.report
                    .clock
                    .on_block(incoming.is_paused(), tools.now());
                slots.keep(block.index, rail, placed.slot);
                let (crc, bytes) = (placed.block.crc, BlockBytes::Slot(slot_memory));
                self.sink.write(incoming, (block, crc), bytes, tools);
            }
            MessageOutcome::Twice => {
                self.report.on_doubled(1);
                let freed = slots.free(rail, placed.slot, incoming.open().stream);
                self.rails.tell_on(freed, &mut tools.rails);
            }
            _ => {}
        }
        self.look(tools);
        Ok(())
    }

    /// The slot that a block was in may be written again.
    fn free_slot(&mut self, block: u64, tools: &mut ReceiverTools) {
        if let (Some(slots), Some(incoming)) = (&mut self.slots, &self.incoming) {
            let freed = slots.on_done(block, incoming.open().stream);
            self.rails.tell_on(freed, &mut tools.rails);
        }
    }

    pub(super) fn on_done(&mut self, done: WriteDone, tools: &mut ReceiverTools) {
        self.sink.on_done();
        self.report.clock.on_moved(tools.now());
        if let WriteOutcome::Written(block, _) = &done.did {
            self.free_slot(block.index, tools);
        }
        match done.did {
            WriteOutcome::Abandoned => {
                self.stage = SessionStage::Over;
                self.tell_cut(&mut tools.events);
                return self.rails.leave(tools);
            }
            WriteOutcome::Finished(finished) => self.on_finished(finished, tools),
            _ if self.stage.is_ending() => {}
            WriteOutcome::Opened(Ok(kept), memory) => self.accept(kept, memory, tools),
            WriteOutcome::Opened(Err(error), _) => return self.refuse_by_sink(&error, tools),
            WriteOutcome::Written(block, Ok(sums)) => {
                let (bytes, now) = (u64::from(block.len), tools.now());
                self.report
                    .on_written(bytes, done.took, sums.hash_time, now);
                if let Some(incoming) = &mut self.incoming {
                    incoming.on_written(&block, sums.crc, sums.hash);
                }
            }
            WriteOutcome::Written(block, Err(BlockWriteError::Crc(found))) => {
                if let Some(incoming) = &mut self.incoming {
                    incoming.on_damaged(&block, found);
                    self.report.on_damaged(incoming, &block);
                }
            }
            WriteOutcome::WrittenAll(Ok(done_all)) => {
                self.on_pack_written(&done_all, done.took, tools.now())
            }
            WriteOutcome::Kept(Ok(kept)) => {
                self.report.on_kept(&kept);
                self.on_pack_written(&kept, done.took, tools.now());
            }
            WriteOutcome::WrittenAll(Err(error)) | WriteOutcome::Kept(Err(error)) => {
                self.on_sink_failed(&error, None, tools);
            }
            WriteOutcome::Written(block, Err(BlockWriteError::Sink(error))) => {
                self.on_sink_failed(&error, Some(block.index), tools);
            }
        }
        self.look(tools);
        self.advance(tools);
    }

    /// The blocks of a pack are written, or came damaged.
    fn on_pack_written(&mut self, done: &[CheckedSums], took: Duration, now: Instant) {
        let Some(incoming) = &mut self.incoming else {
            return;
        };
        let outcomes = done.iter().map(|(block, outcome)| match outcome {
            Ok(sums) => (*block, PackedOutcome::Written(sums.crc, sums.hash)),
            Err(found) => (*block, PackedOutcome::Damaged(*found)),
        });
        incoming.on_pack_done(&outcomes.collect::<Vec<_>>());
        let (mut bytes, mut hash_time) = (0, Duration::ZERO);
        for (block, outcome) in done {
            match outcome {
                Ok(sums) => {
                    bytes += u64::from(block.len);
                    hash_time += sums.hash_time;
                }
                Err(_) => self.report.on_damaged(incoming, block),
            }
        }
        self.report.on_written(bytes, took, hash_time, now);
    }

    /// The sink has made everything appear, or has not.
    fn on_finished(&mut self, finished: Result<ReadBack, SinkError>, tools: &mut ReceiverTools) {
        self.report.count_placed(self.sink.offer(), &finished);
        match finished {
            _ if self.stage.is_ending() => {}
            Ok(read_back) => self.complete(read_back, tools),
            Err(error) => self.on_sink_failed(&error, None, tools),
        }
    }

    /// The stream is given up because of its sink.
    fn on_sink_failed(&mut self, error: &SinkError, block: Option<u64>, tools: &mut ReceiverTools) {
        let (code, text) = reason_of(error);
        self.give_up(code, &text, block, tools);
    }

    fn accept(&mut self, kept: Kept, memory: Vec<Arc<VolatileBuffer>>, tools: &mut ReceiverTools) {
        let Some(incoming) = &mut self.incoming else {
            return;
        };
        let had = kept.into_content();
        self.report.on_had((had.bytes, had.unchanged));
        incoming.accept_counted(had);
        self.stage = SessionStage::Receiving;
        if !memory.is_empty() {
            self.slots = Some(ReceiveSlots::new(memory));
            for rail in self.rails.numbered() {
                self.grant_slots(rail, tools);
            }
            if self.slots.as_ref().is_some_and(ReceiveSlots::has_none) {
                let text = "no window could be opened to its sender";
                return self.give_up(RefusalCode::FEATURE, text, None, tools);
            }
        }
        let arrival = self.sink.arrival(self.peer);
        tools.events.tell(StreamEvent::Began(arrival));
        self.advance(tools);
    }

    /// What follows from what came and what was done.
    fn advance(&mut self, tools: &mut ReceiverTools) {
        let Some(incoming) = &self.incoming else {
            return;
        };
        match self.stage {
            SessionStage::Opening if incoming.is_announced() => self.prove(tools),
            SessionStage::Receiving if incoming.is_whole() && self.sink.is_idle() => {
                self.stage = SessionStage::Finishing;
                self.sink.finish(tools);
            }
            SessionStage::Leaving if self.sink.is_idle() => self.sink.abandon(tools),
            _ => {}
        }
    }

    fn complete(&mut self, read_back: ReadBack, tools: &mut ReceiverTools) {
        let (Some(incoming), Some(offer)) = (&mut self.incoming, self.sink.offer()) else {
            return;
        };
        // Without being asked for it, it says that it has removed nothing.
        let deleted = if offer.delete {
            deleted_by(self.sink.get())
        } else {
            0
        };
        let did = (read_back, deleted);
        self.report
            .complete(incoming, offer, self.slots.is_some(), did);
        self.report.close(self.sink.get(), tools, true);
        let report = self.report.get().clone();
        tools
            .events
            .tell(StreamEvent::Complete(self.sink.arrival(self.peer), report));
        self.sink.close();
        self.stage = SessionStage::Over;
        self.say(tools);
        self.rails.leave(tools);
    }

    /// The stream is given up by this side, for a reason that its sender is told.
    fn give_up(
        &mut self,
        code: RefusalCode,
        text: &str,
        block: Option<u64>,
        tools: &mut ReceiverTools,
    ) {
        let reason = text.to_owned();
        let error = StreamError::GivenUp { code, reason };
        self.fail((code, text), block, error, tools);
    }

    /// The stream is given up: its sender is told why.
    pub(super) fn fail(
        &mut self,
        (code, text): (RefusalCode, &str),
        block: Option<u64>,
        error: StreamError,
        tools: &mut ReceiverTools,
    ) {
        if self.stage.is_ending() {
            return;
        }
        match &mut self.incoming {
            Some(incoming) => {
                incoming.fail(code, block, text);
                self.say(tools);
            }
            None => {
                let refusal = Refusal::new(code, text);
                self.rails.tell(&refusal.message(0), &mut tools.rails);
            }
        }
        self.rails.leave(tools);
        self.leave(error, tools);
    }

    /// Nothing more is taken; the sink gives it up when it has done what it was given.
    fn leave(&mut self, error: StreamError, tools: &mut ReceiverTools) {
        self.sink.stop();
        let bytes = self.incoming.as_ref().map_or(0, IncomingStream::bytes);
        self.report.cut(bytes);
        self.report.close(self.sink.get(), tools, false);
        if self.sink.offer().is_some() {
            self.cut = Some(error);
        }
        if self.sink.get().is_none() {
            self.stage = SessionStage::Over;
            return self.tell_cut(&mut tools.events);
        }
        self.stage = SessionStage::Leaving;
        if self.sink.is_idle() {
            self.sink.abandon(tools);
        }
    }

    /// Not before the sink has put down what it keeps: whoever hears of it may look for that, or go
    /// on with it.
    pub(super) fn tell_cut(&mut self, events: &mut EventSender) {
        if let Some(error) = self.cut.take() {
            let report = self.report.get().clone();
            events.tell(StreamEvent::Cut(
                self.sink.arrival(self.peer),
                error,
                report,
            ));
        }
    }

    pub(super) fn on_rail_gone(
        &mut self,
        connection: ConnectionId,
        reason: CloseReason,
        tools: &mut ReceiverTools,
    ) {
        let gone = self.rails.number_of(connection);
        if let (Some(number), Some(incoming)) = (gone, &mut self.incoming) {
            incoming.on_rail_gone(number);
            if self.rails.any_can(Features::RAIL_GONE, &tools.rails) {
                incoming.tell_rail_gone(number);
            }
            if let Some(slots) = &mut self.slots {
                slots.on_rail_gone(number);
            }
        }
        self.rails.remove(connection);
        let others = self.rails.is_any_there(&tools.rails);
        if !others && !self.stage.is_ending() {
            self.leave(StreamError::Lost(reason), tools);
        }
    }

    pub(super) fn on_time(&mut self, tools: &mut ReceiverTools) {
        if self.stage.is_ending() {
            return;
        }
        let silent = self.report.clock.silent_for(tools.now());
        let incoming = self.incoming.as_ref();
        let paused = incoming.is_some_and(IncomingStream::is_paused);
        let sink_works = !self.sink.is_idle();
        let limit = self.stage.limit(&tools.config, paused, sink_works);
        let paused_for = self.report.clock.paused_for(tools.now());
        let is_paused = paused && self.stage == SessionStage::Receiving;
        if is_paused && paused_for > tools.config.paused_for {
            let error = StreamError::Deadline { what: PAUSED };
            self.fail((RefusalCode::STALLED, PAUSED), None, error, tools);
        } else if self.has_lost_its_slots() {
            // Its sender begins another session, which has slots of its own, as if it had lost its
            // last connection.
            self.give_up(RefusalCode::LOST, NO_SLOTS, None, tools);
        } else if limit.is_some_and(|limit| silent > limit) {
            let waits = self.describe_wait();
            let code = match sink_works {
                true => RefusalCode::SINK,
                false => RefusalCode::STALLED,
            };
            let told = waits.clone();
            let error = StreamError::Stalled {
                after: silent,
                waits,
            };
            self.fail((code, &told), None, error, tools);
        }
        let stall = self.stage.stall(!self.sink.is_idle());
        self.report.clock.wait_for(stall, tools.now());
        self.report.count();
    }

    /// Whether blocks are missing, and no connection that is left has a slot for them. The memory
    /// of those that were lost is free again when nobody can reach it any more, which may be never:
    /// it is not waited for.
    fn has_lost_its_slots(&self) -> bool {
        let has_none = self.slots.as_ref().is_some_and(ReceiveSlots::has_none);
        let incoming = self.incoming.as_ref().filter(|_| has_none);
        let is_idle = self.stage == SessionStage::Receiving && self.sink.is_idle();
        is_idle && incoming.is_some_and(|incoming| !incoming.have().is_full())
    }

    /// The session's state and what it waits for, for an error.
    fn describe_wait(&self) -> String {
        let what = self.stage.waits_for(!self.sink.is_idle());
        format!(
            "the receiver waited for {what} ({})",
            self.describe_stream()
        )
    }

    fn describe_stream(&self) -> String {
        let incoming = self.incoming.as_ref().map(IncomingStream::describe);
        incoming.unwrap_or_else(|| "no stream is open".to_owned())
    }

    /// How it is, in words.
    pub(super) fn describe(&self, now: Instant) -> String {
        let silent = self.report.clock.silent_for(now);
        format!(
            "session {}: {:?}, nothing moved for {silent:.1?}; {} jobs of its sink; rails {:?}; {}",
            self.id,
            self.stage,
            self.sink.jobs(),
            self.rails.numbers(),
            self.describe_stream(),
        )
    }

    /// Tells the sender what it is to hear.
    pub(super) fn speak(&mut self, tools: &mut ReceiverTools) {
        if self.stage == SessionStage::Opening || self.stage.is_ending() {
            return;
        }
        if let Some(incoming) = &mut self.incoming {
            let sink_works = !self.sink.is_idle();
            self.report.clock.remind(incoming, sink_works, tools.now());
        }
        self.say(tools);
    }

    /// The threads that write have ended: what they did last.
    pub(super) fn on_last(&mut self, done: WriteDone) {
        self.sink.on_done();
        match done.did {
            WriteOutcome::Abandoned => self.stage = SessionStage::Over,
            WriteOutcome::Finished(finished) => {
                self.report.count_placed(self.sink.offer(), &finished);
            }
            _ => {}
        }
    }

    /// No thread is left that would tell the sink.
    pub(super) fn abandon_now(&self) {
        if self.stage != SessionStage::Over {
            self.sink.abandon_now();
        }
    }
}
