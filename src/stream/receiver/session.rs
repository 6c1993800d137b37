//! `Session`: one stream of a receiver, over the connections that its sender makes for it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::events::{Arrival, EventSender, StreamEvent};
use super::rail::{ReceiverRail, features};
use super::receive_slots::ReceiveSlots;
use super::side::{ReceiverTools, RemotePeer};
use super::writing::{
    ArrivedBlock, BlockBytes, BlockWriteError, WriteDone, WriteJob, WriteOutcome, WriteWork,
};
use crate::buffer::BufferMut;
use crate::endpoint::landing::Landing;
use crate::endpoint::{CloseReason, ConnectionId, Message as Arrived};
use crate::stream::incoming::{self, IncomingSettings, IncomingStream, Refusal};
use crate::stream::report::{Stall, StallClock, StreamReport};
use crate::stream::sink::{BlockSink, Kept, ReadBack, SinkError, Stop, StreamOffer};
use crate::stream::wire::{
    BlockHeader, Checks, Features, Message, Open, OpenFlags, PAYLOAD_ROOM_MIN, Placed,
};
use crate::stream::workers::{Guarded, guarded};
use crate::stream::{Block, RefusalCode, StreamError, StreamViolation};

/// What the sink does may take so many times as long as what the sender does.
const LONG_WORK: u32 = 10;

/// Why a session is left whose sender can't write any more.
const NO_SLOTS: &str = "the slots that blocks are written into went with a connection";

/// Why a stream is left that its sender does not go on with.
const PAUSED: &str = "its sender has paused it for longer than may be (ReceiverConfig::paused_for)";

/// How often a sender is told that the sink works, though there is nothing new to say.
const WORD_EVERY: Duration = Duration::from_millis(200);

/// Control messages that wait on a connection at once.
const WAITING: usize = 8;

/// How often a sender is told what is written.
const TOLD_EVERY: Duration = Duration::from_millis(100);

/// Blocks that may come damaged before the stream is given up.
const DAMAGED_MAX: u64 = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionStage {
    /// Open, or the rest of the manifest, is still to come.
    Opening,
    /// The sink looks for what it has.
    Proving,
    Receiving,
    /// The sink makes everything appear.
    Finishing,
    /// The sink is told to give it up, when it has done what it was given.
    Leaving,
    Over,
}

pub(super) struct Session {
    id: u64,
    name: [u8; 16],
    peer: RemotePeer,
    /// Connections, and the number that each has in the session.
    rails: Vec<(ConnectionId, u16)>,
    /// The numbers that there were.
    numbers: BTreeSet<u16>,
    stage: SessionStage,
    incoming: Option<IncomingStream>,
    offer: Option<StreamOffer>,
    sink: Option<Guarded<dyn BlockSink>>,
    /// Memory that the sender is to write into, until the sink is open.
    memory: Vec<BufferMut>,
    /// Where the sender writes blocks by itself.
    slots: Option<ReceiveSlots>,
    /// Jobs that the sink was given and has not done.
    jobs: usize,
    stop: Stop,
    began: Instant,
    last_moved: Instant,
    /// Since when its sender has paused it, and no block has come.
    paused_since: Option<Instant>,
    told_at: Instant,
    /// When the sender was told last that the sink works.
    word_at: Instant,
    stalls: StallClock,
    report: StreamReport,
    /// Why it was cut: what the application is told once the sink is done.
    cut: Option<StreamError>,
}

impl Session {
    pub(super) fn new(id: u64, name: [u8; 16], peer: RemotePeer, now: Instant) -> Self {
        Self {
            id,
            name,
            peer,
            rails: Vec::new(),
            numbers: BTreeSet::new(),
            stage: SessionStage::Opening,
            incoming: None,
            offer: None,
            sink: None,
            memory: Vec::new(),
            slots: None,
            jobs: 0,
            stop: Stop::default(),
            began: now,
            last_moved: now,
            paused_since: None,
            told_at: now,
            word_at: now,
            stalls: StallClock::new(now),
            report: StreamReport::default(),
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
        self.rails.iter().map(|(rail, _)| *rail)
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
        let offer = self.offer.as_ref();
        self.stage != SessionStage::Over && offer.is_some_and(|offer| offer.identity.key == key)
    }

    pub(super) fn silent_for(&self, now: Instant) -> Duration {
        match self.stage {
            // It is this side that works.
            SessionStage::Proving | SessionStage::Finishing => Duration::ZERO,
            _ => now.saturating_duration_since(self.last_moved),
        }
    }

    /// Why there can be no connection of this number, if so.
    pub(super) fn refuses_rail(&self, number: u16) -> Option<(RefusalCode, &'static str)> {
        if self.numbers.contains(&number) {
            let text = "there is or was a connection of this number in the session";
            return Some((RefusalCode::ALREADY, text));
        }
        let is_over = matches!(self.stage, SessionStage::Leaving | SessionStage::Over);
        is_over.then_some((RefusalCode::LOST, "the session is over"))
    }

    pub(super) fn on_rail(
        &mut self,
        connection: ConnectionId,
        number: u16,
        tools: &mut ReceiverTools,
    ) {
        self.rails.push((connection, number));
        self.numbers.insert(number);
        self.grant_slots((connection, number), tools);
    }

    /// Bytes of memory that its account takes.
    pub(super) fn memory(&self) -> u64 {
        self.incoming.as_ref().map_or(0, IncomingStream::memory)
    }

    /// One of its connections that are there.
    fn any_rail<'a>(&self, tools: &'a mut ReceiverTools) -> Option<&'a mut ReceiverRail> {
        let there = self.rails().find(|rail| tools.rails.contains_key(rail))?;
        tools.rails.get_mut(&there)
    }

    /// Its connection of this number, if that is there.
    fn rail<'a>(&self, number: u16, tools: &'a mut ReceiverTools) -> Option<&'a mut ReceiverRail> {
        let (rail, _) = self.rails.iter().find(|(_, it)| *it == number)?;
        tools.rails.get_mut(rail)
    }

    /// Puts into the outbox what the sender is to hear, unless that is still full of the last.
    fn say(&mut self, tools: &mut ReceiverTools) {
        let home = self
            .incoming
            .as_ref()
            .and_then(IncomingStream::control_rail);
        let home = home.or_else(|| self.any_rail(tools).map(|rail| rail.number));
        let Some(home) = home else { return };
        let rail = self.rail(home, tools);
        let Some(incoming) = &mut self.incoming else {
            return;
        };
        incoming.set_control_rail(home);
        let Some(rail) = rail else { return };
        // The last word is not put off: the connection is closed behind it.
        while (rail.outbox.len() < WAITING || incoming.outcome().is_some())
            && let Some(message) = incoming.next_control()
        {
            rail.outbox.push(&message);
            incoming.on_control_sent();
        }
    }

    /// What becomes of it when its account says that it is over, and it did not end well.
    fn look(&mut self, tools: &mut ReceiverTools) {
        if matches!(self.stage, SessionStage::Leaving | SessionStage::Over) {
            return;
        }
        let outcome = self.incoming.as_ref().and_then(IncomingStream::outcome);
        let Some(Err(error)) = outcome else { return };
        let error = error.clone().with_this_side(|| self.describe_wait());
        self.say(tools);
        self.say_goodbye(tools);
        match (self.stage, &error) {
            (SessionStage::Opening, StreamError::GivenUp { code, reason }) => {
                tools.events.refused(self.peer, *code, reason);
                self.stage = SessionStage::Over;
            }
            _ => self.leave(error, tools),
        }
    }

    /// A stream begins, if it is one that is taken.
    fn open(
        &mut self,
        rail: u16,
        open: &Open,
        memory_left: u64,
        tools: &ReceiverTools,
    ) -> Result<(), Refusal> {
        let config = &tools.config;
        let by_write = open.flags.contains(OpenFlags::BY_WRITE);
        let memory = match tools.slot_pool.as_ref().filter(|_| by_write) {
            Some(pool) => ReceiveSlots::take(pool, config.window),
            None => Vec::new(),
        };
        let settings = IncomingSettings {
            limits: config.limits,
            memory_left,
            features: features(tools.slot_pool.is_some()),
            payload_max: config.block_bytes.max(PAYLOAD_ROOM_MIN),
            window: config.window.into(),
            slots: memory.len() as u32,
        };
        self.incoming = Some(IncomingStream::new(rail, *open, settings)?);
        self.memory = memory;
        Ok(())
    }

    // ---- the beginning --------------------------------------------------------------------------

    pub(super) fn on_message(
        &mut self,
        rail: u16,
        message: &Message<'_>,
        memory_left: u64,
        tools: &mut ReceiverTools,
    ) -> Result<(), StreamViolation> {
        self.last_moved = tools.now();
        if matches!(self.stage, SessionStage::Leaving | SessionStage::Over) {
            return Ok(());
        }
        match (message, &mut self.incoming) {
            (Message::Open(open), None) => {
                if let Err(refusal) = self.open(rail, open, memory_left, tools) {
                    self.refuse(open.stream, &refusal, tools);
                    return Ok(());
                }
            }
            (Message::Placed(placed), Some(_)) => self.on_placed(rail, placed, tools)?,
            (_, Some(incoming)) => {
                if let incoming::MessageOutcome::CloseRail(lost) =
                    incoming.on_message(rail, message)?
                {
                    self.close_rail(lost, tools);
                }
                if matches!(message, Message::Pause(_)) {
                    // Going on for a moment, and sending nothing, is no end of a pause.
                    self.paused_since.get_or_insert_with(|| tools.now());
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

    /// The sender has lost this connection: whatever still came on it was sent again.
    fn close_rail(&self, lost: u16, tools: &mut ReceiverTools) {
        if let Some(rail) = self.rail(lost, tools)
            && let (port, Some(connection)) = (rail.port, rail.connection())
        {
            tools.network.abort_connection(port, connection);
        }
    }

    /// The manifest is whole: the sink is asked what it has.
    fn prove(&mut self, tools: &mut ReceiverTools) {
        let Some(incoming) = &self.incoming else {
            return;
        };
        let open = *incoming.open();
        let has = |flag| open.flags.contains(flag);
        let offer = StreamOffer {
            identity: open.identity,
            manifest: Arc::clone(incoming.manifest()),
            plan: Arc::clone(incoming.plan()),
            crc32c: has(OpenFlags::CRC32C),
            blake3: has(OpenFlags::BLAKE3),
            sync: has(OpenFlags::SYNC),
            read_back: has(OpenFlags::READ_BACK),
            restart: has(OpenFlags::RESTART),
        };
        let made = guarded(|| tools.config.sink.make(&offer));
        match made.unwrap_or_else(|text| Err(SinkError::Other(text))) {
            Ok(sink) => {
                self.sink = Some(Guarded::new(sink.into()));
                self.offer = Some(offer.clone());
                self.stage = SessionStage::Proving;
                let memory = std::mem::take(&mut self.memory);
                self.give(WriteWork::Open(offer, self.stop.clone(), memory), tools);
            }
            Err(error) => {
                let (code, text) = told(&error);
                let refusal = Refusal::new(code, text);
                self.refuse(open.stream, &refusal, tools);
            }
        }
    }

    fn give(&mut self, what: WriteWork, tools: &ReceiverTools) {
        if let Some(sink) = &self.sink {
            self.jobs += 1;
            tools.give(WriteJob {
                session: self.id,
                sink: sink.clone(),
                what,
            });
        }
    }

    /// The stream is not taken: its sender is told why, and left.
    pub(super) fn refuse(&mut self, stream: u32, refusal: &Refusal, tools: &mut ReceiverTools) {
        match &mut self.incoming {
            Some(incoming) => {
                incoming.refuse(refusal.clone());
                self.say(tools);
            }
            None => self.tell(&refusal.message(stream), tools),
        }
        let (code, text) = (refusal.code, &refusal.reason);
        tools.events.refused(self.peer, code, text);
        self.stage = SessionStage::Over;
        self.say_goodbye(tools);
    }

    /// Where there is no account that would.
    fn tell(&self, message: &Message<'_>, tools: &mut ReceiverTools) {
        if let Some(rail) = self.any_rail(tools) {
            rail.outbox.push(message);
        }
    }

    fn say_goodbye(&self, tools: &mut ReceiverTools) {
        for (connection, _) in &self.rails {
            if let Some(rail) = tools.rails.get_mut(connection) {
                rail.leave(&tools.network);
            }
        }
    }

    // ---- blocks ---------------------------------------------------------------------------------

    pub(super) fn on_block(
        &mut self,
        rail: u16,
        header: &BlockHeader,
        arrived: Arrived,
        tools: &mut ReceiverTools,
    ) -> Result<(), StreamViolation> {
        self.last_moved = tools.now();
        if self.stage != SessionStage::Receiving {
            let state = "no block is expected";
            return match self.stage {
                SessionStage::Leaving | SessionStage::Over => Ok(()),
                _ => Err(StreamViolation::Unexpected { kind: 5, state }),
            };
        }
        let Some(incoming) = &mut self.incoming else {
            return Ok(());
        };
        match incoming.on_message(rail, &Message::Block(*header))? {
            incoming::MessageOutcome::Block(block) => {
                self.paused_since = incoming.is_paused().then_some(tools.now());
                let arriving =
                    arriving(incoming, (block, header.crc), BlockBytes::Message(arrived));
                self.give(WriteWork::Write(arriving), tools);
            }
            incoming::MessageOutcome::Twice => self.report.doubled += 1,
            _ => {}
        }
        self.look(tools);
        Ok(())
    }

    // ---- blocks that the sender wrote by itself -------------------------------------------------

    /// Lets the sender write slots by one of its connections: as many as its share.
    fn grant_slots(
        &mut self,
        (connection, number): (ConnectionId, u16),
        tools: &mut ReceiverTools,
    ) {
        let (Some(slots), Some(incoming)) = (&mut self.slots, &self.incoming) else {
            return;
        };
        let Some(rail) = tools.rails.get_mut(&connection) else {
            return;
        };
        let Some(endpoint) = tools.network.endpoint(rail.port) else {
            return;
        };
        let grant = (number, incoming.open().stream, slots.share(rail.rails()));
        if let Err(error) = slots.grant(grant, (endpoint, connection), &mut rail.outbox) {
            tracing::warn!(%error, "a stream's sender gets fewer slots to write into");
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
        let landing = slots.on_placed(rail, placed.slot)?;
        match incoming.on_message(rail, &message)? {
            incoming::MessageOutcome::Block(block) => {
                self.paused_since = incoming.is_paused().then_some(tools.now());
                slots.keep(block.index, rail, placed.slot);
                let bytes = BlockBytes::Slot(landing);
                let arriving = arriving(incoming, (block, placed.block.crc), bytes);
                self.give(WriteWork::Write(arriving), tools);
            }
            incoming::MessageOutcome::Twice => {
                self.report.doubled += 1;
                let freed = slots.free(rail, placed.slot, incoming.open().stream);
                self.tell_freed(freed, tools);
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
            self.tell_freed(freed, tools);
        }
    }

    fn tell_freed(&self, freed: Option<(u16, Message<'static>)>, tools: &mut ReceiverTools) {
        if let Some((number, message)) = freed
            && let Some(rail) = self.rail(number, tools)
        {
            rail.outbox.push(&message);
        }
    }

    // ---- what the sink did ----------------------------------------------------------------------

    pub(super) fn on_done(&mut self, done: WriteDone, tools: &mut ReceiverTools) {
        self.jobs -= 1;
        self.last_moved = self.last_moved.max(tools.now());
        if let WriteOutcome::Written(block, _) = &done.did {
            self.free_slot(block.index, tools);
        }
        let failed = match done.did {
            WriteOutcome::Abandoned => {
                self.stage = SessionStage::Over;
                self.tell_cut(&mut tools.events);
                self.say_goodbye(tools);
                return;
            }
            WriteOutcome::Finished(finished)
                if matches!(self.stage, SessionStage::Leaving | SessionStage::Over) =>
            {
                self.count_placed(&finished);
                None
            }
            _ if matches!(self.stage, SessionStage::Leaving | SessionStage::Over) => None,
            WriteOutcome::Opened(Ok(kept), memory) => {
                self.accept(kept, memory, tools);
                None
            }
            WriteOutcome::Opened(Err(error), _) => {
                let stream = self
                    .incoming
                    .as_ref()
                    .map_or(0, |incoming| incoming.open().stream);
                let (code, text) = told(&error);
                self.sink = None;
                let refusal = Refusal::new(code, text);
                return self.refuse(stream, &refusal, tools);
            }
            WriteOutcome::Written(block, Ok(sums)) => {
                self.report.write_time += done.took;
                self.report.hash_time += sums.hash_time;
                if let Some(incoming) = &mut self.incoming {
                    incoming.on_written(&block, sums.crc, sums.hash);
                }
                None
            }
            WriteOutcome::Written(block, Err(BlockWriteError::Crc(found))) => {
                self.on_damaged(block, found);
                None
            }
            WriteOutcome::Written(block, Err(BlockWriteError::Sink(error))) => {
                Some((error, Some(block.index)))
            }
            WriteOutcome::Finished(Ok(read_back)) => {
                self.count_placed(&Ok(read_back));
                self.complete(read_back, tools);
                None
            }
            WriteOutcome::Finished(Err(error)) => {
                self.count_placed(&Err(error.clone()));
                Some((error, None))
            }
        };
        if let Some((error, block)) = failed {
            let (code, text) = told(&error);
            let reason = StreamError::GivenUp {
                code,
                reason: text.clone(),
            };
            self.fail((code, &text), block, reason, tools);
        }
        self.look(tools);
        self.advance(tools);
    }

    /// What is under its names, however the stream ends.
    fn count_placed(&mut self, finished: &Result<ReadBack, SinkError>) {
        let entries = self.offer.as_ref().map_or(0, |it| it.manifest.len());
        self.report.placed = match finished {
            Ok(_) => entries as u64,
            Err(SinkError::Placed { placed, .. }) => *placed,
            Err(_) => 0,
        };
    }

    fn on_damaged(&mut self, block: Block, found: u32) {
        self.report.damaged += 1;
        if let Some(incoming) = &mut self.incoming {
            incoming.on_damaged(&block, found);
            if self.report.damaged > DAMAGED_MAX {
                let text = "blocks came damaged again and again";
                incoming.fail(RefusalCode::DAMAGED, Some(block.index), text);
            }
        }
    }

    fn accept(&mut self, kept: Kept, memory: Vec<Arc<Landing>>, tools: &mut ReceiverTools) {
        let Some(incoming) = &mut self.incoming else {
            return;
        };
        let (have, bytes, digest, content) = kept.into_parts();
        incoming.accept_counted((have, bytes), digest, content);
        self.report.resumed_bytes = incoming.bytes();
        self.stage = SessionStage::Receiving;
        if !memory.is_empty() {
            self.slots = Some(ReceiveSlots::new(memory));
            for rail in self.rails.clone() {
                self.grant_slots(rail, tools);
            }
            if self.slots.as_ref().is_some_and(ReceiveSlots::has_none) {
                let text = "no window could be opened to its sender";
                let code = RefusalCode::FEATURE;
                let error = StreamError::GivenUp {
                    code,
                    reason: text.to_owned(),
                };
                return self.fail((code, text), None, error, tools);
            }
        }
        let arrival = self.arrival();
        tools.events.tell(StreamEvent::Began(arrival));
        self.advance(tools);
    }

    fn arrival(&self) -> Arrival {
        let offer = self.offer.as_ref();
        Arrival {
            session: self.id,
            peer: self.peer,
            identity: offer.map(|offer| offer.identity).unwrap_or_default(),
            entries: offer.map_or(0, |offer| offer.manifest.len() as u64),
            bytes: offer.map_or(0, |offer| offer.manifest.bytes()),
            manifest: offer.map(|offer| Arc::clone(&offer.manifest)),
        }
    }

    /// What follows from what came and what was done.
    fn advance(&mut self, tools: &mut ReceiverTools) {
        let Some(incoming) = &self.incoming else {
            return;
        };
        match self.stage {
            SessionStage::Opening if incoming.is_announced() => self.prove(tools),
            SessionStage::Receiving if incoming.is_whole() && self.jobs == 0 => {
                self.stage = SessionStage::Finishing;
                self.give(WriteWork::Finish(self.stop.clone()), tools);
            }
            SessionStage::Leaving if self.jobs == 0 => self.give(WriteWork::Abandon, tools),
            _ => {}
        }
    }

    fn complete(&mut self, read_back: ReadBack, tools: &mut ReceiverTools) {
        let (Some(incoming), Some(offer)) = (&mut self.incoming, &self.offer) else {
            return;
        };
        let mut checks = Checks::empty();
        checks.set(Checks::CRC32C, offer.crc32c);
        checks.set(Checks::SYNC, offer.sync);
        checks.set(Checks::READ_BACK, offer.read_back);
        self.report.blake3 = incoming.complete(checks).blake3;
        self.report.blake3_compared = incoming.is_blake3_compared();
        self.report.transport = match self.slots {
            Some(_) => "RMA writes, each block copied once out of its slot".to_owned(),
            None => "messages".to_owned(),
        };
        self.report.bytes = offer.manifest.bytes();
        self.report.blocks = offer.plan.blocks();
        self.report.read_back = read_back;
        self.close_report(tools);
        let report = self.report.clone();
        tools
            .events
            .tell(StreamEvent::Complete(self.arrival(), report));
        self.sink = None;
        self.stage = SessionStage::Over;
        self.say(tools);
        self.say_goodbye(tools);
    }

    fn close_report(&mut self, tools: &ReceiverTools) {
        let now = tools.now();
        self.report.path = tools.path(self.sink.as_deref());
        self.report.io = tools.io_stats(self.sink.as_deref());
        self.stalls.turn(Stall::None, now);
        self.report.stalls = self.stalls.totals();
        self.report.took = now - self.began;
    }

    // ---- the end that nobody wished for ---------------------------------------------------------

    /// The stream is given up: its sender is told why.
    pub(super) fn fail(
        &mut self,
        (code, text): (RefusalCode, &str),
        block: Option<u64>,
        error: StreamError,
        tools: &mut ReceiverTools,
    ) {
        if matches!(self.stage, SessionStage::Leaving | SessionStage::Over) {
            return;
        }
        match &mut self.incoming {
            Some(incoming) => {
                incoming.fail(code, block, text);
                self.say(tools);
            }
            None => self.tell(&Refusal::new(code, text).message(0), tools),
        }
        self.say_goodbye(tools);
        self.leave(error, tools);
    }

    /// Nothing more is taken; the sink gives it up when it has done what it was given.
    fn leave(&mut self, error: StreamError, tools: &mut ReceiverTools) {
        self.stop.set();
        self.close_report(tools);
        self.report.bytes = self.incoming.as_ref().map_or(0, IncomingStream::bytes);
        if self.offer.is_some() {
            self.cut = Some(error);
        }
        self.stage = match self.sink {
            Some(_) => SessionStage::Leaving,
            None => SessionStage::Over,
        };
        match self.stage {
            SessionStage::Leaving if self.jobs == 0 => self.give(WriteWork::Abandon, tools),
            SessionStage::Leaving => {}
            _ => self.tell_cut(&mut tools.events),
        }
    }

    /// Not before the sink has put down what it keeps: whoever hears of it may look for that, or go
    /// on with it.
    pub(super) fn tell_cut(&mut self, events: &mut EventSender) {
        if let Some(error) = self.cut.take() {
            events.tell(StreamEvent::Cut(self.arrival(), error, self.report.clone()));
        }
    }

    pub(super) fn on_rail_gone(
        &mut self,
        connection: ConnectionId,
        reason: CloseReason,
        tools: &mut ReceiverTools,
    ) {
        let gone = self.rails.iter().find(|(rail, _)| *rail == connection);
        if let (Some((_, number)), Some(incoming)) = (gone, &mut self.incoming) {
            incoming.on_rail_gone(*number);
            let mut others = self
                .rails
                .iter()
                .filter_map(|(rail, _)| tools.rails.get(rail));
            if others.any(|rail| rail.can(Features::RAIL_GONE)) {
                incoming.tell_rail_gone(*number);
            }
            if let Some(slots) = &mut self.slots {
                slots.on_rail_gone(*number);
            }
        }
        self.rails.retain(|(rail, _)| *rail != connection);
        let others = self.rails().any(|rail| tools.rails.contains_key(&rail));
        if !others && !matches!(self.stage, SessionStage::Leaving | SessionStage::Over) {
            self.leave(StreamError::Lost(reason), tools);
        }
    }

    pub(super) fn on_time(&mut self, tools: &mut ReceiverTools) {
        let silent = tools.now().saturating_duration_since(self.last_moved);
        let config = &tools.config;
        let paused = self
            .incoming
            .as_ref()
            .is_some_and(IncomingStream::is_paused);
        let limit = match self.stage {
            SessionStage::Opening => config.handshake_timeout.max(config.stalled_after),
            // A pause has a limit of its own.
            SessionStage::Receiving if paused => Duration::MAX,
            SessionStage::Receiving if self.jobs == 0 => config.stalled_after,
            // It is the sink that works: it has its time, and the sender hears of it.
            SessionStage::Receiving | SessionStage::Proving | SessionStage::Finishing => {
                config.stalled_after.saturating_mul(LONG_WORK)
            }
            SessionStage::Leaving | SessionStage::Over => return,
        };
        if self.is_paused_too_long(paused, tools) {
            let error = StreamError::Deadline { what: PAUSED };
            self.fail((RefusalCode::STALLED, PAUSED), None, error, tools);
        } else if self.has_lost_its_slots() {
            // Its sender begins another session, which has slots of its own, as if it had lost its
            // last connection.
            let (code, reason) = (RefusalCode::LOST, NO_SLOTS.to_owned());
            let error = StreamError::GivenUp { code, reason };
            self.fail((code, NO_SLOTS), None, error, tools);
        } else if silent > limit {
            let waits = self.describe_wait();
            let code = match self.jobs {
                0 => RefusalCode::STALLED,
                _ => RefusalCode::SINK,
            };
            let told = waits.clone();
            let error = StreamError::Stalled {
                after: silent,
                waits,
            };
            self.fail((code, &told), None, error, tools);
        }
        let stall = match self.stage {
            SessionStage::Receiving if self.jobs == 0 => Stall::Wire,
            SessionStage::Finishing => Stall::Sink,
            _ => Stall::None,
        };
        self.stalls.turn(stall, tools.now());
    }

    /// Whether blocks are missing, and no connection that is left has a slot for them. The memory
    /// of those that were lost is free again when nobody can reach it any more, which may be never:
    /// it is not waited for.
    fn has_lost_its_slots(&self) -> bool {
        let has_none = self.slots.as_ref().is_some_and(ReceiveSlots::has_none);
        let incoming = self.incoming.as_ref().filter(|_| has_none);
        let is_idle = self.stage == SessionStage::Receiving && self.jobs == 0;
        is_idle && incoming.is_some_and(|incoming| !incoming.have().is_full())
    }

    fn is_paused_too_long(&self, paused: bool, tools: &ReceiverTools) -> bool {
        let since = self.paused_since;
        let since = since.filter(|_| paused && self.stage == SessionStage::Receiving);
        since.is_some_and(|since| {
            tools.now().saturating_duration_since(since) > tools.config.paused_for
        })
    }

    /// What it waits for and how it stands, for an error.
    fn describe_wait(&self) -> String {
        let what = match self.stage {
            SessionStage::Opening => "the sender to open the stream",
            _ if self.jobs > 0 => "its sink",
            _ => "blocks, or the sender to say that it has sent all",
        };
        let incoming = self.incoming.as_ref().map(IncomingStream::describe);
        let incoming = incoming.unwrap_or_else(|| "no stream is open".to_owned());
        format!("the receiver waited for {what} ({incoming})")
    }

    /// How it is, in words.
    pub(super) fn describe(&self, now: Instant) -> String {
        let silent = now.saturating_duration_since(self.last_moved);
        let incoming = self.incoming.as_ref().map(IncomingStream::describe);
        format!(
            "session {}: {:?}, nothing moved for {silent:.1?}; {} jobs of its sink; rails {:?}; {}",
            self.id,
            self.stage,
            self.jobs,
            self.rails
                .iter()
                .map(|(_, number)| *number)
                .collect::<Vec<_>>(),
            incoming.unwrap_or_else(|| "no stream".to_owned()),
        )
    }

    /// Tells the sender what it is to hear.
    pub(super) fn speak(&mut self, tools: &mut ReceiverTools) {
        let now = tools.now();
        let Some(incoming) = &mut self.incoming else {
            return;
        };
        if !matches!(
            self.stage,
            SessionStage::Proving | SessionStage::Receiving | SessionStage::Finishing
        ) {
            return;
        }
        if self.jobs > 0 && now.saturating_duration_since(self.word_at) >= WORD_EVERY {
            self.word_at = now;
            incoming.want_sign_of_life();
        }
        if now.saturating_duration_since(self.told_at) >= TOLD_EVERY {
            self.told_at = now;
            incoming.want_progress();
        }
        self.say(tools);
    }

    // ---- the receiver ends ----------------------------------------------------------------------

    /// The threads that write have ended: what they did last.
    pub(super) fn on_last(&mut self, done: WriteDone) {
        self.jobs -= 1;
        match done.did {
            WriteOutcome::Abandoned => self.stage = SessionStage::Over,
            WriteOutcome::Finished(finished) => self.count_placed(&finished),
            _ => {}
        }
    }

    /// No thread is left that would tell the sink.
    pub(super) fn abandon_now(&self) {
        if let Some(sink) = self
            .sink
            .as_ref()
            .filter(|_| self.stage != SessionStage::Over)
            && let Err(text) = guarded(|| sink.abandon())
        {
            tracing::warn!(%text, "a sink panicked");
        }
    }
}

/// What is to be done with a block.
fn arriving(
    incoming: &IncomingStream,
    (block, crc): (Block, u32),
    bytes: BlockBytes,
) -> ArrivedBlock {
    let flags = incoming.open().flags;
    let hashed = flags.contains(OpenFlags::BLAKE3);
    ArrivedBlock {
        block,
        crc: flags.contains(OpenFlags::CRC32C).then_some(crc),
        hashed: hashed.then(|| Arc::clone(incoming.plan())),
        bytes,
    }
}

/// What a sender is told of a sink's error.
fn told(error: &SinkError) -> (RefusalCode, String) {
    let cause = match error {
        SinkError::Placed { error, .. } => error,
        error => error,
    };
    let code = match cause {
        SinkError::SourceChanged => RefusalCode::SOURCE_CHANGED,
        SinkError::Busy => RefusalCode::ALREADY,
        SinkError::TooLarge { .. } => RefusalCode::SPACE,
        SinkError::Os { errno, .. } if [libc::ENOSPC, libc::EDQUOT].contains(errno) => {
            RefusalCode::SPACE
        }
        SinkError::Stopped => RefusalCode::CLOSING,
        _ => RefusalCode::SINK,
    };
    (code, error.to_string())
}
