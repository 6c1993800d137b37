//! `Session`: one stream of a receiver, over the connections that its sender makes for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::engine::{GOODBYE, Tools, Who};
use super::guest::Guest;
use super::news::{Arrival, StreamNews};
use super::writing::{Damage, Did, What, WriteDone, WriteJob};
use crate::endpoint::{CloseReason, ConnectionId, Message as Arrived};
use crate::stream::receiving::{Intake, Taken};
use crate::stream::report::{Stall, StallClock, StreamReport};
use crate::stream::sink::{BlockSink, Kept, SinkError, Stop, StreamOffer};
use crate::stream::wire::{BlockHeader, Checks, Failed, Message, OpenFlags, Reason, Refuse};
use crate::stream::{Block, RefusalCode, StreamError, StreamViolation};

/// What the sink does at the end may take so many times as long as the rest.
const LONG_WORK: u32 = 10;

/// How often a sender is told what is written.
const TOLD_EVERY: Duration = Duration::from_millis(100);

/// Blocks that may come damaged before the stream is given up.
const DAMAGED_MAX: u64 = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
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
    peer: Who,
    /// Connections, by their number in the session.
    rails: Vec<ConnectionId>,
    stage: Stage,
    intake: Option<Intake>,
    offer: Option<StreamOffer>,
    sink: Option<Arc<dyn BlockSink>>,
    /// Jobs that the sink was given and has not done.
    jobs: usize,
    stop: Stop,
    began: Instant,
    last_moved: Instant,
    told_at: Instant,
    stalls: StallClock,
    report: StreamReport,
}

impl Session {
    pub(super) fn new(id: u64, name: [u8; 16], peer: Who, now: Instant) -> Self {
        Self {
            id,
            name,
            peer,
            rails: Vec::new(),
            stage: Stage::Opening,
            intake: None,
            offer: None,
            sink: None,
            jobs: 0,
            stop: Stop::default(),
            began: now,
            last_moved: now,
            told_at: now,
            stalls: StallClock::new(now),
            report: StreamReport::default(),
        }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn name(&self) -> [u8; 16] {
        self.name
    }

    pub(super) fn rails(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.rails.iter().copied()
    }

    pub(super) fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Whether its sink keeps something under a key now.
    pub(super) fn writes(&self, key: [u8; 16]) -> bool {
        let offer = self.offer.as_ref();
        self.stage != Stage::Over && offer.is_some_and(|offer| offer.identity.key == key)
    }

    pub(super) fn silent_for(&self, now: Instant) -> Duration {
        match self.stage {
            // It is this side that works.
            Stage::Proving | Stage::Finishing => Duration::ZERO,
            _ => now.saturating_duration_since(self.last_moved),
        }
    }

    pub(super) fn on_rail(&mut self, connection: ConnectionId) {
        self.rails.push(connection);
    }

    fn say(&self, message: &Message<'_>, guests: &mut HashMap<ConnectionId, Guest>) {
        let rail = self.rails.iter().find(|rail| guests.contains_key(rail));
        if let Some(guest) = rail.and_then(|rail| guests.get_mut(rail)) {
            guest.outbox.push(message);
        }
    }

    // ---- the beginning -------------------------------------------------------------------------------------------

    pub(super) fn on_message(
        &mut self,
        rail: u16,
        message: &Message<'_>,
        guests: &mut HashMap<ConnectionId, Guest>,
        tools: &mut Tools,
    ) -> Result<(), StreamViolation> {
        self.last_moved = tools.now;
        if matches!(self.stage, Stage::Leaving | Stage::Over) {
            return Ok(());
        }
        if let Message::Cancel(cancel) = message {
            let error = StreamError::Failed {
                code: cancel.code,
                block: None,
                reason: cancel.reason.to_string(),
            };
            self.leave(error, tools);
            return Ok(());
        }
        match (message, &mut self.intake) {
            (Message::Open(open), None) => match Intake::new(*open, &tools.config.limits) {
                Ok(intake) => self.intake = Some(intake),
                Err((code, text)) => {
                    self.refuse(open.stream, code, &text, guests, tools);
                    return Ok(());
                }
            },
            (Message::Manifest(part), Some(intake)) => intake.on_manifest(part)?,
            (_, Some(intake)) => intake.on_message(rail, message)?,
            (_, None) => {
                let kind = message.kind().0;
                let state = "no stream is open";
                return Err(StreamViolation::Unexpected { kind, state });
            }
        }
        self.advance(guests, tools);
        Ok(())
    }

    /// The manifest is whole: the sink is asked what it has.
    fn prove(&mut self, guests: &mut HashMap<ConnectionId, Guest>, tools: &mut Tools) {
        let Some(intake) = &self.intake else { return };
        let open = *intake.open();
        let has = |flag| open.flags.contains(flag);
        let offer = StreamOffer {
            identity: open.identity,
            manifest: intake.manifest(),
            plan: intake.plan(),
            crc32c: has(OpenFlags::CRC32C),
            sync: has(OpenFlags::SYNC),
            read_back: has(OpenFlags::READ_BACK),
            restart: has(OpenFlags::RESTART),
        };
        match tools.config.sink.make(&offer) {
            Ok(sink) => {
                self.sink = Some(sink.into());
                self.offer = Some(offer.clone());
                self.stage = Stage::Proving;
                self.give(What::Open(offer, self.stop.clone()), tools);
            }
            Err(error) => {
                let (code, text) = told(&error);
                self.refuse(open.stream, code, &text, guests, tools);
            }
        }
    }

    fn give(&mut self, what: What, tools: &Tools) {
        if let Some(sink) = &self.sink {
            self.jobs += 1;
            tools.give(WriteJob {
                session: self.id,
                sink: Arc::clone(sink),
                what,
            });
        }
    }

    /// The stream is not taken: its sender is told why, and left.
    pub(super) fn refuse(
        &mut self,
        stream: u32,
        code: RefusalCode,
        text: &str,
        guests: &mut HashMap<ConnectionId, Guest>,
        tools: &mut Tools,
    ) {
        let refuse = Message::Refuse(Refuse {
            stream,
            code,
            details: [0, 0],
            reason: Reason::new(text),
        });
        self.say(&refuse, guests);
        tools.news.refused(self.peer, code, text);
        self.stage = Stage::Over;
        self.say_goodbye(guests, tools.now);
    }

    fn say_goodbye(&self, guests: &mut HashMap<ConnectionId, Guest>, now: Instant) {
        for rail in &self.rails {
            if let Some(guest) = guests.get_mut(rail) {
                guest.leave_by = Some(now + GOODBYE);
            }
        }
    }

    // ---- blocks --------------------------------------------------------------------------------------------------

    pub(super) fn on_block(
        &mut self,
        rail: u16,
        header: &BlockHeader,
        arrived: Arrived,
        tools: &mut Tools,
    ) -> Result<(), StreamViolation> {
        self.last_moved = tools.now;
        if self.stage != Stage::Receiving {
            let state = "no block is expected";
            return match self.stage {
                Stage::Leaving | Stage::Over => Ok(()),
                _ => Err(StreamViolation::Unexpected { kind: 5, state }),
            };
        }
        let Some(intake) = &mut self.intake else {
            return Ok(());
        };
        match intake.on_block(rail, header)? {
            Taken::New(block) => {
                let crc = intake.has_crc().then_some(header.crc);
                self.give(What::Write(block, crc, arrived), tools);
            }
            Taken::Twice => self.report.doubled += 1,
        }
        Ok(())
    }

    // ---- what the sink did ---------------------------------------------------------------------------------------

    pub(super) fn on_done(
        &mut self,
        done: WriteDone,
        guests: &mut HashMap<ConnectionId, Guest>,
        tools: &mut Tools,
    ) {
        self.jobs -= 1;
        self.last_moved = self.last_moved.max(tools.now);
        let failed = match done.did {
            Did::Abandoned => {
                self.stage = Stage::Over;
                self.say_goodbye(guests, tools.now);
                return;
            }
            _ if matches!(self.stage, Stage::Leaving | Stage::Over) => None,
            Did::Opened(Ok(kept)) => {
                self.accept(&kept, guests, tools);
                None
            }
            Did::Opened(Err(error)) => {
                let stream = self
                    .intake
                    .as_ref()
                    .map_or(0, |intake| intake.open().stream);
                let (code, text) = told(&error);
                self.sink = None;
                return self.refuse(stream, code, &text, guests, tools);
            }
            Did::Written(block, Ok(crc)) => {
                self.report.write_time += done.took;
                if let Some(intake) = &mut self.intake {
                    intake.on_written(block.index, crc);
                }
                None
            }
            Did::Written(block, Err(Damage::Crc(found))) => self.on_damaged(block, found),
            Did::Written(block, Err(Damage::Sink(error))) => Some((error, Some(block.index))),
            Did::Finished(Ok(read_back)) => {
                self.complete(read_back, guests, tools);
                None
            }
            Did::Finished(Err(error)) => Some((error, None)),
        };
        if let Some((error, block)) = failed {
            let (code, text) = told(&error);
            let reason = StreamError::GivenUp {
                code,
                reason: text.clone(),
            };
            self.fail((code, &text), block, reason, guests, tools);
        }
        self.advance(guests, tools);
    }

    fn on_damaged(&mut self, block: Block, found: u32) -> Option<(SinkError, Option<u64>)> {
        self.report.damaged += 1;
        let intake = self.intake.as_mut()?;
        intake.on_damaged(block.index, found);
        (self.report.damaged > DAMAGED_MAX).then(|| {
            let text = "blocks came damaged again and again".to_owned();
            (SinkError::Other(text), Some(block.index))
        })
    }

    fn accept(
        &mut self,
        kept: &Kept,
        guests: &mut HashMap<ConnectionId, Guest>,
        tools: &mut Tools,
    ) {
        let Some(intake) = &mut self.intake else {
            return;
        };
        intake.accept(&kept.blocks, tools.config.window);
        self.report.resumed_bytes = intake.written_bytes();
        self.stage = Stage::Receiving;
        let arrival = self.arrival();
        tools.news.tell(StreamNews::Began(arrival));
        self.advance(guests, tools);
    }

    fn arrival(&self) -> Arrival {
        let offer = self.offer.as_ref();
        Arrival {
            session: self.id,
            peer: self.peer,
            identity: offer.map(|offer| offer.identity).unwrap_or_default(),
            manifest: offer
                .map(|offer| Arc::clone(&offer.manifest))
                .unwrap_or_default(),
        }
    }

    /// What follows from what came and what was done.
    fn advance(&mut self, guests: &mut HashMap<ConnectionId, Guest>, tools: &mut Tools) {
        let Some(intake) = &self.intake else { return };
        match self.stage {
            Stage::Opening if intake.is_described() => self.prove(guests, tools),
            Stage::Receiving if intake.is_whole() && self.jobs == 0 => {
                self.stage = Stage::Finishing;
                self.give(What::Finish(self.stop.clone()), tools);
            }
            Stage::Leaving if self.jobs == 0 => self.give(What::Abandon, tools),
            _ => {}
        }
    }

    fn complete(
        &mut self,
        read_back: u64,
        guests: &mut HashMap<ConnectionId, Guest>,
        tools: &mut Tools,
    ) {
        let (Some(intake), Some(offer)) = (&self.intake, &self.offer) else {
            return;
        };
        let mut checks = Checks::empty();
        checks.set(Checks::CRC32C, offer.crc32c);
        checks.set(Checks::SYNC, offer.sync);
        checks.set(Checks::READ_BACK, offer.read_back);
        let complete = intake.complete(checks);
        self.say(&Message::Complete(complete), guests);
        self.report.bytes = offer.manifest.bytes();
        self.report.blocks = offer.plan.blocks();
        self.report.read_back_bytes = read_back;
        self.close_report(tools.now);
        let report = self.report.clone();
        tools
            .news
            .tell(StreamNews::Complete(self.arrival(), report));
        self.sink = None;
        self.stage = Stage::Over;
        self.say_goodbye(guests, tools.now);
    }

    fn close_report(&mut self, now: Instant) {
        self.stalls.turn(Stall::None, now);
        self.report.stalls = self.stalls.totals();
        self.report.took = now - self.began;
    }

    // ---- the end that nobody wished for --------------------------------------------------------------------------

    /// The stream is given up: its sender is told why.
    pub(super) fn fail(
        &mut self,
        (code, text): (RefusalCode, &str),
        block: Option<u64>,
        error: StreamError,
        guests: &mut HashMap<ConnectionId, Guest>,
        tools: &mut Tools,
    ) {
        if matches!(self.stage, Stage::Leaving | Stage::Over) {
            return;
        }
        let stream = self.intake.as_ref().map(|intake| intake.open().stream);
        let message = match stream {
            Some(stream) if !matches!(self.stage, Stage::Opening | Stage::Proving) => {
                Message::Failed(Failed {
                    stream,
                    code,
                    block,
                    reason: Reason::new(text),
                })
            }
            stream => Message::Refuse(Refuse {
                stream: stream.unwrap_or(0),
                code,
                details: [0, 0],
                reason: Reason::new(text),
            }),
        };
        self.say(&message, guests);
        self.say_goodbye(guests, tools.now);
        self.leave(error, tools);
    }

    /// Nothing more is taken; the sink gives it up when it has done what it was given.
    fn leave(&mut self, error: StreamError, tools: &mut Tools) {
        self.stop.set();
        self.close_report(tools.now);
        self.report.bytes = self.intake.as_ref().map_or(0, Intake::written_bytes);
        if self.offer.is_some() {
            let cut = StreamNews::Cut(self.arrival(), error, self.report.clone());
            tools.news.tell(cut);
        }
        self.stage = match self.sink {
            Some(_) => Stage::Leaving,
            None => Stage::Over,
        };
        if self.stage == Stage::Leaving && self.jobs == 0 {
            self.give(What::Abandon, tools);
        }
    }

    pub(super) fn on_rail_gone(
        &mut self,
        connection: ConnectionId,
        reason: CloseReason,
        guests: &mut HashMap<ConnectionId, Guest>,
        tools: &mut Tools,
    ) {
        self.rails.retain(|rail| *rail != connection);
        let others = self.rails.iter().any(|rail| guests.contains_key(rail));
        if !others && !matches!(self.stage, Stage::Leaving | Stage::Over) {
            self.leave(StreamError::Lost(reason), tools);
        }
    }

    pub(super) fn on_time(&mut self, guests: &mut HashMap<ConnectionId, Guest>, tools: &mut Tools) {
        let silent = tools.now.saturating_duration_since(self.last_moved);
        let config = &tools.config;
        let paused = self.intake.as_ref().is_some_and(Intake::is_paused);
        let limit = match self.stage {
            Stage::Opening => config.handshake_timeout.max(config.stalled_after),
            Stage::Receiving if paused => return,
            Stage::Receiving => config.stalled_after,
            Stage::Proving | Stage::Finishing => config.stalled_after * LONG_WORK,
            Stage::Leaving | Stage::Over => return,
        };
        if silent > limit {
            let what = "nothing came of the stream";
            let error = StreamError::Deadline { what };
            self.fail((RefusalCode::STALLED, what), None, error, guests, tools);
        }
        let stall = match self.stage {
            Stage::Receiving if self.jobs == 0 => Stall::Wire,
            Stage::Finishing => Stall::Sink,
            _ => Stall::None,
        };
        self.stalls.turn(stall, tools.now);
    }

    /// Puts into the outbox what the sender is to hear, unless that is still full of the last.
    pub(super) fn speak(&mut self, guests: &mut HashMap<ConnectionId, Guest>, now: Instant) {
        let Some(intake) = &mut self.intake else {
            return;
        };
        if !matches!(self.stage, Stage::Receiving | Stage::Finishing) {
            return;
        }
        let rail = self.rails.iter().find(|rail| guests.contains_key(rail));
        let Some(guest) = rail.and_then(|rail| guests.get_mut(rail)) else {
            return;
        };
        let progress = now.saturating_duration_since(self.told_at) >= TOLD_EVERY;
        if progress {
            self.told_at = now;
        }
        while guest.outbox.len() < 8 {
            if !intake.say_next(progress, &mut guest.outbox) {
                break;
            }
        }
    }

    // ---- the receiver ends ---------------------------------------------------------------------------------------

    /// The threads that write have ended: what they did last.
    pub(super) fn on_last(&mut self, done: WriteDone) {
        self.jobs -= 1;
        if matches!(done.did, Did::Abandoned) {
            self.stage = Stage::Over;
        }
    }

    /// No thread is left that would tell the sink.
    pub(super) fn abandon_now(&self) {
        if let Some(sink) = self.sink.as_ref().filter(|_| self.stage != Stage::Over) {
            sink.abandon();
        }
    }
}

/// What a sender is told of a sink's error.
fn told(error: &SinkError) -> (RefusalCode, String) {
    let code = match error {
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
