//! `TransferPeer`: one peer of a transfer: its connections, what it has, and what waits to be sent to it.

use std::time::{Duration, Instant};

use super::attempts::Attempts;
use super::config::{Peer, Transport};
use super::outgoing_transfer::TransferState;
use super::peer_blocks::{PeerBlocks, ReadyBlock};
use super::peer_clock::PeerClock;
use super::peer_errors::{is_unsendable, is_worth_a_retry, reason_of};
use super::peer_rails::{PeerRails, RailDial};
use super::rail::SenderRail;
use super::side::SenderTools;
use super::slot_writer::InSlot;
use super::transfer::PeerOutcome;
use crate::endpoint::SendErrorKind;
use crate::endpoint::{
    CloseReason, ConnectionEvent, Message as Arrived, ReceiveEvent, WindowEvent,
};
use crate::stream::outbox::CONTROL_KEY;
use crate::stream::outgoing::OutgoingStream;
use crate::stream::report::{Stall, StreamReport};
use crate::stream::wire::{Features, HEADER_LEN, Message, Open, OpenFlags, Placed};
use crate::stream::{RefusalCode, StreamError, StreamViolation};

/// The only stream of a session: each transfer makes a session of its own with each peer.
const STREAM: u32 = 1;

/// What a receiver says in place of a stream's number when it speaks of a connection.
const NO_STREAM: u32 = 0;

/// Control messages that wait on a rail at once: a tree has a long manifest.
const WAITING: usize = 4;

/// The same for blocks that were written.
const PLACED_WAITING: usize = 64;

/// What the source does, and what a receiver does before it accepts and at the end that does not
/// say that it works, may take so many times as long as the rest.
const LONG_WORK: u32 = 10;

/// A peer that says again and again that its sink works is believed for so many times
/// `stalled_after` in which nothing moves.
const LONG_WORD: u32 = 2 * LONG_WORK;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PeerStage {
    /// The first connection is being made, or has a handshake.
    Connecting,
    /// Until the size of blocks is known.
    Ready,
    /// Until the peer has accepted, and said what it has.
    Opening,
    Sending,
    /// Finish was said.
    Finishing,
    /// Until the next attempt.
    Resting {
        until: Instant,
    },
    Over,
}

/// Who has to do something before it goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PeerWait {
    /// The peer, or the way to it: this.
    Peer(&'static str),
    /// The source, which is being read or checked.
    Source,
    /// A buffer, or a thread: those that there are hold reads which have not come back since then.
    Readers(Instant),
    /// This side: a pause, a rate, other transfers' turns.
    Own,
}

/// What a peer has of its transfer, and of the side.
pub(super) struct PeerContext<'a> {
    pub(super) transfer: &'a mut TransferState,
    pub(super) tools: &'a mut SenderTools,
}

impl PeerContext<'_> {
    /// When this turn began.
    pub(super) fn now(&self) -> Instant {
        self.tools.now()
    }
}

/// One peer of a transfer.
pub(super) struct TransferPeer {
    peer: Peer,
    number: usize,
    stage: PeerStage,
    rails: PeerRails,
    /// None until the stream is open.
    outgoing: Option<OutgoingStream>,
    /// Blocks go by RMA write.
    by_write: bool,
    /// The receiver had no window left.
    no_windows: bool,
    blocks: PeerBlocks,
    attempts: Attempts,
    clock: PeerClock,
    /// Why no endpoint will ever take the next block.
    unsendable: Option<String>,
    report: StreamReport,
    sent_bytes: u64,
}

impl TransferPeer {
    pub(super) fn new(peer: Peer, number: usize, now: Instant) -> Self {
        Self {
            peer,
            number,
            stage: PeerStage::Connecting,
            rails: PeerRails::default(),
            outgoing: None,
            by_write: false,
            no_windows: false,
            blocks: PeerBlocks::default(),
            attempts: Attempts::default(),
            clock: PeerClock::new(now),
            unsendable: None,
            report: StreamReport::default(),
            sent_bytes: 0,
        }
    }

    // ---- what the transfer asks -----------------------------------------------------------------

    pub(super) fn is_over(&self) -> bool {
        self.stage == PeerStage::Over
    }

    /// Whether blocks may be sent to it.
    pub(super) fn is_sending(&self) -> bool {
        self.stage == PeerStage::Sending
    }

    /// The longest block that it takes, once it has said so.
    pub(super) fn payload_max(&self) -> Option<u32> {
        let ready = self.rails.first().filter(|_| self.stage != PeerStage::Over);
        ready.and_then(SenderRail::payload_max)
    }

    pub(super) fn has_failed_once(&self) -> bool {
        self.attempts.has_failed()
    }

    /// Blocks that are read for it, wait for it, or are on their way to it.
    pub(super) fn held(&self) -> usize {
        self.blocks.being_read() + self.blocks.waiting() + self.rails.in_flight()
    }

    /// It takes blocks now, or has shown that it will not soon.
    pub(super) fn is_settled(&self) -> bool {
        matches!(
            self.stage,
            PeerStage::Sending | PeerStage::Finishing | PeerStage::Over
        ) || self.attempts.has_failed()
    }

    pub(super) fn first_wanted(&self, from: u64) -> Option<u64> {
        let outgoing = self.outgoing.as_ref().filter(|_| self.is_sending())?;
        outgoing.first_wanted(from)
    }

    /// A block is being read; it is among those, if the peer wants it.
    pub(super) fn assign(&mut self, index: u64) {
        if let Some(outgoing) = self
            .outgoing
            .as_mut()
            .filter(|_| self.stage == PeerStage::Sending)
            && outgoing.take(index)
        {
            self.blocks.assign(index);
        }
    }

    pub(super) fn on_read(&mut self, ready: ReadyBlock, took: Duration, hash_time: Duration) {
        self.clock.forget_source();
        if self.blocks.on_read(ready) {
            self.report.read_time += took;
            self.report.hash_time += hash_time;
        }
    }

    /// Everything was sent, and the source was not asked yet whether it is still what it was.
    pub(super) fn waits_for_check(&self) -> bool {
        self.is_sending() && self.has_sent_all()
    }

    fn has_sent_all(&self) -> bool {
        let is_idle = self.rails.in_flight() == 0 && self.rails.unplaced() == 0;
        let idle = is_idle && self.blocks.is_empty();
        idle && self
            .outgoing
            .as_ref()
            .is_some_and(|outgoing| outgoing.first_wanted(0).is_none())
    }

    /// How long it has held blocks that others wait for, and taken none.
    pub(super) fn held_up_for(&self, now: Instant) -> Duration {
        match self.is_sending() && self.held() > self.blocks.being_read() {
            true => self.clock.unmoved_for(now),
            false => Duration::ZERO,
        }
    }

    pub(super) fn tell_paused(&mut self, on: bool, now: Instant) {
        self.clock.on_moved(now);
        if let Some(outgoing) = &mut self.outgoing {
            outgoing.pause(on);
        }
    }

    /// Puts into the outboxes what the peer is to hear, as far as there is room.
    fn speak(&mut self, transfer: &TransferState) {
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

    // ---- connections ----------------------------------------------------------------------------

    /// Begins a session: its first rail.
    pub(super) fn connect(&mut self, with: &mut PeerContext<'_>) {
        self.stage = PeerStage::Connecting;
        self.rails.begin_session();
        self.clock.on_moved(with.now());
        if let Err(error) = self.dial(with) {
            self.on_lost(error, with);
        }
    }

    /// How many rails a session has.
    fn wanted_rails(&self, transfer: &TransferState) -> u16 {
        let addrs = u16::try_from(self.peer.addrs.len()).unwrap_or(u16::MAX);
        addrs.saturating_mul(transfer.options.rails)
    }

    /// Starts the next rail.
    fn dial(&mut self, with: &mut PeerContext<'_>) -> Result<(), StreamError> {
        let dial = RailDial {
            transfer: with.transfer.id,
            peer: self.number,
            to: &self.peer,
            wanted: self.wanted_rails(with.transfer),
            by_write: self.by_write,
        };
        self.rails.dial(&dial, with.tools)
    }

    /// The session is over: its connections are left, and what was on the way is to be sent anew.
    fn leave_rails(&mut self, politely: bool, tools: &mut SenderTools) {
        self.rails.leave(politely, tools);
        self.outgoing = None;
        self.by_write = false;
        self.blocks.clear();
    }

    /// The last connection is gone, or can't be made: another attempt, or the end.
    fn on_lost(&mut self, error: StreamError, with: &mut PeerContext<'_>) {
        self.attempts.on_failed();
        let busy = matches!(
            error,
            StreamError::Refused {
                code: RefusalCode::BUSY,
                ..
            }
        );
        self.no_windows |= self.by_write && busy;
        // A peer that was told why hears it before the end.
        let is_told = matches!(error, StreamError::Stalled { .. });
        self.leave_rails(is_told, with.tools);
        let most = with.transfer.options.reconnects;
        let Some(wait) = self.attempts.next(most, is_worth_a_retry(&error)) else {
            return self.end(Err(error), with);
        };
        self.report.reconnects += 1;
        let (peer, attempt) = (&self.peer, self.attempts.failures());
        tracing::debug!(%peer, %error, attempt, "a stream connects again");
        self.stage = PeerStage::Resting {
            until: with.now() + wait,
        };
    }

    /// This side gives it up: the peer is told.
    pub(super) fn give_up(&mut self, error: StreamError, with: &mut PeerContext<'_>) {
        if self.is_over() {
            return;
        }
        self.tell_why(&error, with);
        self.end(Err(error), with);
    }

    fn tell_why(&mut self, error: &StreamError, with: &mut PeerContext<'_>) {
        if let Some(outgoing) = &mut self.outgoing {
            let (code, text) = reason_of(error);
            outgoing.give_up(code, &text);
            self.speak(with.transfer);
            for rail in self.rails.iter_mut() {
                rail.pump(&mut with.tools.network);
            }
        }
    }

    /// Its connections end, and nothing else is done.
    pub(super) fn break_off(&mut self, tools: &mut SenderTools) {
        self.leave_rails(false, tools);
        self.stage = PeerStage::Over;
    }

    fn end(&mut self, result: Result<(), StreamError>, with: &mut PeerContext<'_>) {
        if self.is_over() {
            return;
        }
        self.clock.close(&mut self.report, with.now());
        self.report.path = with.tools.path(&*with.transfer.source);
        self.report.io = with.tools.io_stats(&*with.transfer.source);
        self.report.sent_bytes = self.sent_bytes;
        self.report.bytes = match result {
            Ok(()) => with.transfer.shared.total(),
            Err(_) => self.attempts.most_written(),
        };
        let shared = &with.transfer.shared;
        shared.tell(self.number, self.report.bytes, self.sent_bytes);
        self.leave_rails(true, with.tools);
        self.stage = PeerStage::Over;
        let outcome = PeerOutcome {
            peer: self.peer.clone(),
            result,
            report: self.report.clone(),
        };
        with.transfer.shared.end(self.number, outcome);
    }

    // ---- events ---------------------------------------------------------------------------------

    pub(super) fn on_event(
        &mut self,
        rail: usize,
        event: ReceiveEvent,
        with: &mut PeerContext<'_>,
    ) {
        match event {
            ReceiveEvent::Connection(_, ConnectionEvent::Connected(_)) => {
                self.rails[rail].on_connected()
            }
            ReceiveEvent::Message(message) => {
                if let Err(error) = self.on_message(rail, &message, with) {
                    match self.rails[rail].is_ready() {
                        true => self.on_refused(error, with),
                        false => self.on_rail_failed(rail, error, with),
                    }
                }
            }
            ReceiveEvent::Completed { key, .. } if key != CONTROL_KEY => {
                self.rails[rail].local.in_flight -= 1;
                self.clock.on_moved(with.now());
            }
            ReceiveEvent::Window { event, .. } => self.on_window_event(rail, event, with.now()),
            ReceiveEvent::Failed { key, .. } if key != CONTROL_KEY => {
                // Whether it arrived is not known; the peer says what it lacks.
                self.rails[rail].local.in_flight -= 1;
            }
            ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(reason)) => {
                self.lose_rail(rail, false, StreamError::Lost(reason), with);
            }
            _ => {}
        }
    }

    fn on_window_event(&mut self, rail: usize, event: WindowEvent, now: Instant) {
        let rail = &mut self.rails[rail];
        let Some(slot_writer) = &mut rail.local.slot_writer else {
            return;
        };
        match event {
            WindowEvent::Written { key, .. } => {
                slot_writer.on_written(key);
                rail.local.in_flight -= 1;
                self.clock.on_moved(now);
            }
            // The end of the connection follows, and what becomes of the block.
            WindowEvent::WriteFailed { .. } => rail.local.in_flight -= 1,
            _ => {}
        }
    }

    /// The peer does not take it, or does not keep to the protocol.
    fn on_refused(&mut self, error: StreamError, with: &mut PeerContext<'_>) {
        match is_worth_a_retry(&error) {
            true => self.on_lost(error, with),
            false => self.give_up(error, with),
        }
    }

    /// A handshake was not to be: the peer is told, where there is something to tell.
    fn on_rail_failed(&mut self, rail: usize, error: StreamError, with: &mut PeerContext<'_>) {
        self.rails[rail].pump(&mut with.tools.network);
        self.lose_rail(rail, true, error, with);
    }

    /// One connection is left, and others that are ready go on without it: what was on the way
    /// there may have arrived, and the receiver says what it lacks.
    fn lose_rail(
        &mut self,
        rail: usize,
        politely: bool,
        error: StreamError,
        with: &mut PeerContext<'_>,
    ) {
        let was_ready = with.tools.leave(&mut self.rails[rail], politely);
        if !self.rails.any_ready() {
            return self.on_refused(error, with);
        }
        tracing::warn!(%error, peer = %self.peer, "a stream goes on with a rail less");
        let lost = &mut self.rails[rail];
        if let Some(outgoing) = self.outgoing.as_mut().filter(|_| was_ready) {
            self.report.rails_lost += 1;
            lost.local.in_flight = 0;
            let unplaced = lost
                .local
                .slot_writer
                .as_mut()
                .map(|slot_writer| slot_writer.lose());
            for block in unplaced.into_iter().flatten() {
                outgoing.give_back(block);
            }
            outgoing.on_rail_lost(lost.number);
        }
    }

    /// The receiver has lost one of the connections, which this side may not have heard of: what it
    /// says of it comes by another one.
    fn on_rail_gone(&mut self, number: u16, with: &mut PeerContext<'_>) -> Result<(), StreamError> {
        let Some(rail) = self.rails.iter().position(|it| it.number == number) else {
            let (what, value) = ("the number of a connection", number.into());
            return Err(StreamViolation::Count { what, value }.into());
        };
        if !self.rails[rail].is_gone() {
            let error = StreamError::Lost(CloseReason::PeerLost { errno: None });
            self.lose_rail(rail, false, error, with);
        }
        Ok(())
    }

    fn on_message(
        &mut self,
        rail: usize,
        arrived: &Arrived,
        with: &mut PeerContext<'_>,
    ) -> Result<(), StreamError> {
        self.rails[rail].last_heard = with.now();
        if !self.rails[rail].is_ready() {
            return self.on_handshake(rail, arrived, with);
        }
        let message = Message::parse(arrived.header(), arrived.payload());
        let message = message.map_err(StreamViolation::from)?;
        if let Message::Refuse(refuse) = &message
            && refuse.stream == NO_STREAM
        {
            // It is this connection that is not taken: its session may have ended there while its
            // handshake was under way.
            self.on_rail_failed(rail, refuse.into(), with);
            return Ok(());
        }
        if let Message::RailLost(lost) = &message
            && self.rails[rail].can(Features::RAIL_GONE)
        {
            return self.on_rail_gone(lost.rail, with);
        }
        let Some(outgoing) = &mut self.outgoing else {
            let kind = message.kind().0;
            let state = "no stream is open";
            return Err(StreamViolation::Unexpected { kind, state }.into());
        };
        let advances = outgoing.advances();
        outgoing.on_message(&message)?;
        match &message {
            _ if outgoing.advances() > advances => self.clock.on_moved(with.now()),
            Message::Written(_) => self.clock.on_sign_of_life(with.now()),
            // What says nothing new is no movement: a peer that answers questions may stand still,
            // too.
            _ => {}
        }
        if matches!(message, Message::Window(_) | Message::Freed(_)) {
            return self.on_slots(rail, &message, with);
        }
        if self.stage == PeerStage::Opening && outgoing.is_accepted() {
            self.stage = PeerStage::Sending;
            (_, self.report.resumed_bytes) = outgoing.had();
            self.more_rails(with);
        }
        self.after_message(with)
    }

    /// A message came on a connection whose handshake is not over.
    fn on_handshake(
        &mut self,
        rail: usize,
        arrived: &Arrived,
        with: &mut PeerContext<'_>,
    ) -> Result<(), StreamError> {
        self.clock.on_moved(with.now());
        if let Some(agreed) = self.rails[rail].on_handshake(arrived, with.now())? {
            match &mut self.outgoing {
                Some(outgoing) => outgoing.add_rail(agreed.rail),
                None => self.stage = PeerStage::Ready,
            }
        }
        Ok(())
    }

    /// What is said of slots to write into, on the rail whose slots they are.
    fn on_slots(
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
        let (Some(endpoint), Some(plan)) =
            (with.tools.network.endpoint(rail.port), &with.transfer.plan)
        else {
            return Ok(());
        };
        match message {
            Message::Window(window) => {
                let block_bytes = plan.blocks.block_bytes();
                slot_writer.on_window(window, block_bytes, (endpoint, connection))
            }
            Message::Freed(freed) => Ok(slot_writer.on_freed(freed.slot)?),
            _ => Ok(()),
        }
    }

    /// The others, now that the receiver knows the session.
    fn more_rails(&mut self, with: &mut PeerContext<'_>) {
        for _ in self.rails.dialed()..self.wanted_rails(with.transfer) {
            if let Err(error) = self.dial(with) {
                tracing::warn!(%error, peer = %self.peer, "a rail of a stream could not be made");
                break;
            }
        }
    }

    fn after_message(&mut self, with: &mut PeerContext<'_>) -> Result<(), StreamError> {
        let written = self.written_bytes();
        let shared = &with.transfer.shared;
        shared.tell(self.number, written, self.sent_bytes);
        self.attempts.on_written(written);
        let Some(outgoing) = &self.outgoing else {
            return Ok(());
        };
        self.report.damaged = outgoing.damaged();
        match outgoing.outcome() {
            Some(Ok(complete)) => {
                self.report.blake3 = complete.blake3;
                self.report.blake3_compared = complete.blake3.is_some() && outgoing.has_blake3();
                self.end(Ok(()), with);
            }
            Some(Err(error)) => {
                let error = error.clone();
                return Err(error.with_this_side(|| self.describe_wait(with.transfer, with.now())));
            }
            // Something is missing: another lap.
            None if self.stage == PeerStage::Finishing && !outgoing.is_finishing() => {
                self.stage = PeerStage::Sending;
            }
            None => {}
        }
        Ok(())
    }

    /// Bytes that the peer's sink has.
    fn written_bytes(&self) -> u64 {
        let written = self.outgoing.as_ref().map(OutgoingStream::written);
        written.map_or(0, |(_, bytes)| bytes)
    }

    // ---- time -----------------------------------------------------------------------------------

    pub(super) fn on_time(&mut self, with: &mut PeerContext<'_>) {
        let now = with.now();
        for rail in 0..self.rails.len() {
            if let Some(error) = self.rails[rail].on_time(now) {
                self.on_rail_failed(rail, error, with);
                break;
            }
        }
        let silent = self.clock.silent_for(now);
        let may_ask = self.clock.may_ask(now);
        if may_ask && self.outgoing.as_mut().is_some_and(OutgoingStream::inquire) {
            self.clock.on_asked(now);
        }
        match self.stage {
            PeerStage::Resting { until } if now >= until => self.connect(with),
            PeerStage::Resting { .. } | PeerStage::Over => {}
            // The endpoint has its own timeout; this is that of the handshake behind it.
            PeerStage::Connecting if silent > 2 * with.tools.config.connect_timeout => {
                let what = "the handshake";
                self.on_lost(StreamError::Deadline { what }, with);
            }
            PeerStage::Connecting => {}
            PeerStage::Ready | PeerStage::Opening | PeerStage::Sending | PeerStage::Finishing => {
                self.watch(silent, with);
            }
        }
    }

    /// What it waits for, now.
    fn wait(&self, transfer: &TransferState, now: Instant) -> PeerWait {
        let (unplaced, in_flight) = (self.rails.unplaced(), self.rails.in_flight());
        match self.stage {
            PeerStage::Ready => PeerWait::Peer("the peers' handshakes"),
            PeerStage::Opening => PeerWait::Peer("the peer to accept the stream"),
            PeerStage::Finishing => {
                PeerWait::Peer("the peer to say that all is there, or what is missing")
            }
            PeerStage::Sending if transfer.paused => PeerWait::Own,
            PeerStage::Sending if in_flight > 0 => {
                PeerWait::Peer("the network to take the blocks in flight")
            }
            PeerStage::Sending if unplaced > 0 => {
                PeerWait::Peer("room to tell of blocks that were written")
            }
            PeerStage::Sending if self.blocks.waiting() == 0 => match self.blocks.is_empty() {
                // Its turn, a buffer, or the check of the source.
                true if !self.waits_for_check() => transfer
                    .reads_since
                    .map_or(PeerWait::Own, PeerWait::Readers),
                _ => PeerWait::Source,
            },
            PeerStage::Sending if !transfer.rate.may(now) => PeerWait::Own,
            PeerStage::Sending if self.by_write && !self.rails.any_slot() => {
                PeerWait::Peer("a slot to write into (window, freed)")
            }
            PeerStage::Sending => PeerWait::Peer("blocks to be granted (credit)"),
            PeerStage::Connecting | PeerStage::Resting { .. } | PeerStage::Over => PeerWait::Own,
        }
    }

    /// What it waits for and how it stands, for an error.
    fn describe_wait(&self, transfer: &TransferState, now: Instant) -> String {
        let what = match self.wait(transfer, now) {
            PeerWait::Peer(what) => what,
            PeerWait::Source => "its source",
            PeerWait::Readers(_) => "a buffer to read into: what is being read does not come back",
            PeerWait::Own => "its turn, a limit or the end of a pause",
        };
        let outgoing = self.outgoing.as_ref().map(OutgoingStream::describe);
        let rails: Vec<_> = self.rails.iter().map(|rail| rail.describe(now)).collect();
        let outgoing = outgoing.unwrap_or_else(|| "no stream is open".to_owned());
        let rails = rails.join("; ");
        format!("the sender waited for {what} ({outgoing}; {rails})")
    }

    /// Ends what does not move any more: this side, the peer and the source each have their time.
    fn watch(&mut self, silent: Duration, with: &mut PeerContext<'_>) {
        let now = with.now();
        let stalled = with.transfer.options.stalled_after;
        let wait = self.wait(with.transfer, now);
        match wait {
            PeerWait::Own => self.clock.forget_source(),
            PeerWait::Source | PeerWait::Readers(_) => {
                let since = match wait {
                    PeerWait::Readers(since) => since,
                    _ => self.clock.source_since(now),
                };
                let after = now.saturating_duration_since(since);
                if after > stalled.saturating_mul(LONG_WORK) {
                    let waits = self.describe_wait(with.transfer, now);
                    return self.give_up(StreamError::Stalled { after, waits }, with);
                }
            }
            PeerWait::Peer(_) => {
                self.clock.forget_source();
                let is_told = self.rails.iter().any(|rail| rail.can(Features::WORKING));
                let is_long =
                    matches!(self.stage, PeerStage::Opening | PeerStage::Finishing) && !is_told;
                let limit = if is_long {
                    stalled.saturating_mul(LONG_WORK)
                } else {
                    stalled
                };
                // A peer ends by its own limit long before its word has counted for so long.
                let unmoved = self.clock.unmoved_for(now);
                let is_held = unmoved > stalled.saturating_mul(LONG_WORD);
                if silent > limit || is_held {
                    self.on_stalled(silent.max(unmoved), with);
                }
                return;
            }
        }
        // It is not the peer that is waited for, and it hears so.
        self.clock.on_moved(now);
        if self.clock.take_sign_of_life(now)
            && let Some(outgoing) = &mut self.outgoing
        {
            outgoing.want_sign_of_life();
        }
    }

    /// Nothing moves though the peer is there: it is told what is waited for, and another attempt
    /// is made, if there is one left.
    fn on_stalled(&mut self, after: Duration, with: &mut PeerContext<'_>) {
        let waits = self.describe_wait(with.transfer, with.now());
        tracing::warn!(peer = %self.peer, ?after, %waits, "a stream stands still");
        let error = StreamError::Stalled { after, waits };
        self.tell_why(&error, with);
        self.on_lost(error, with);
    }

    // ---- sending --------------------------------------------------------------------------------

    pub(super) fn pump(&mut self, with: &mut PeerContext<'_>) -> bool {
        if self.stage == PeerStage::Ready
            && with.transfer.plan.is_some()
            && let Err(error) = self.open(with)
        {
            self.give_up(error, with);
        }
        if self.by_write {
            self.place();
        }
        let mut any = self.begin_finish(with.transfer);
        self.speak(with.transfer);
        for rail in self.rails.iter_mut() {
            rail.local.blocked = false;
            rail.pump(&mut with.tools.network);
        }
        while self.is_sending() && self.send_next(with) {
            any = true;
        }
        if any && let Err(error) = self.after_message(with) {
            self.on_refused(error, with);
        }
        if let Some(reason) = self.unsendable.take() {
            let code = RefusalCode::SOURCE;
            self.give_up(StreamError::GivenUp { code, reason }, with);
        }
        self.account(with.transfer, with.now());
        any
    }

    /// Everything was sent, and the source is still what it was: that is said next.
    fn begin_finish(&mut self, transfer: &TransferState) -> bool {
        if !self.waits_for_check() || !transfer.checked {
            return false;
        }
        let Some(outgoing) = &mut self.outgoing else {
            return false;
        };
        if let Some(hash) = transfer.blake3() {
            outgoing.set_blake3(hash);
        }
        outgoing.allow_finish();
        self.stage = PeerStage::Finishing;
        true
    }

    fn open(&mut self, with: &mut PeerContext<'_>) -> Result<(), StreamError> {
        let Some(plan) = &with.transfer.plan else {
            return Ok(());
        };
        let options = &with.transfer.options;
        self.choose_transport(options.transport, plan.blocks.block_bytes(), with.tools)?;
        let mut flags = OpenFlags::empty();
        flags.set(OpenFlags::CRC32C, options.crc32c);
        flags.set(OpenFlags::BLAKE3, options.blake3);
        flags.set(OpenFlags::BY_WRITE, self.by_write);
        flags.set(OpenFlags::SYNC, options.sync);
        flags.set(OpenFlags::READ_BACK, options.read_back);
        // Only once: what the receiver has from this transfer, it keeps.
        flags.set(OpenFlags::RESTART, options.restart && self.sent_bytes == 0);
        let manifest = with.transfer.source.manifest();
        let open = Open {
            stream: STREAM,
            flags,
            block_bytes: plan.blocks.block_bytes(),
            entries: manifest.len() as u64,
            manifest_bytes: manifest.encoded_len(),
            bytes: manifest.bytes(),
            blocks: plan.blocks.blocks(),
            identity: plan.identity,
        };
        let home = self.rails.first().map_or(0, |rail| rail.number);
        let mut outgoing = OutgoingStream::new(open, plan.blocks.clone(), home);
        outgoing.pause(with.transfer.paused);
        self.outgoing = Some(outgoing);
        self.stage = PeerStage::Opening;
        Ok(())
    }

    /// Decides whether blocks of this session go by message or by RMA write.
    fn choose_transport(
        &mut self,
        wanted: Transport,
        block_bytes: u32,
        tools: &mut SenderTools,
    ) -> Result<(), StreamError> {
        let Some(first) = self.rails.first() else {
            return Ok(());
        };
        let (able, favoured) = tools.writes(first.port, block_bytes);
        let may = wanted == Transport::Write || !self.no_windows;
        let offered = able && may && first.can(Features::BY_WRITE);
        let chosen = wanted.choose(offered, favoured);
        let (by_write, why) = chosen.map_err(|reason| StreamError::GivenUp {
            code: RefusalCode::FEATURE,
            reason: reason.to_owned(),
        })?;
        self.by_write = by_write;
        self.report.transport = why.to_owned();
        for rail in self.rails.iter_mut() {
            rail.local.slot_writer = by_write.then(Box::default);
        }
        Ok(())
    }

    /// Tells the peer of blocks that were written.
    fn place(&mut self) {
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

    /// Sends the next block, by whichever rail has the most room. False: not now.
    fn send_next(&mut self, with: &mut PeerContext<'_>) -> bool {
        if !self.may_send(with) {
            return false;
        }
        let depth = with.tools.config.depth as usize;
        let (Some(outgoing), Some(next), Some(rail)) = (
            self.outgoing.as_mut(),
            self.blocks.front(),
            self.rails.with_room(depth),
        ) else {
            return false;
        };
        let (Some(connection), Some(endpoint)) =
            (rail.connection(), with.tools.network.endpoint(rail.port))
        else {
            return false;
        };
        let (block, crc) = (next.block, next.crc);
        let sent = match &mut rail.local.slot_writer {
            None => {
                let mut header = [0; HEADER_LEN];
                outgoing.header(&block, crc).encode(&mut header);
                let payload = next.bytes.clone().into();
                let sent = endpoint.send(connection, payload, &header, block.index);
                sent.map_err(|refused| refused.kind)
            }
            Some(slot_writer) => slot_writer.write(endpoint, next),
        };
        if let Err(refused) = sent {
            rail.local.blocked = matches!(refused, SendErrorKind::WouldBlock(_));
            // Another rail may have room; that a connection is over, its own event says; and no
            // other attempt makes a block of it that can be sent.
            self.unsendable = is_unsendable(&refused).then(|| refused.to_string());
            return false;
        }
        if !self.by_write {
            outgoing.on_sent(rail.number, &block, crc);
        }
        rail.local.in_flight += 1;
        let len = u64::from(block.len);
        let now = with.now();
        with.transfer.rate.take(len, now);
        self.sent_bytes += len;
        self.report.blocks += 1;
        self.blocks.pop();
        true
    }

    /// How it is, in words.
    pub(super) fn describe(&self, now: Instant) -> String {
        let silent = self.clock.unmoved_for(now);
        let outgoing = self.outgoing.as_ref().map(OutgoingStream::describe);
        let mut lines = vec![format!(
            "  peer {}: {:?}, nothing moved for {silent:.1?}; {} blocks being read, {} wait to be \
             sent; {} failures; {}",
            self.peer,
            self.stage,
            self.blocks.being_read(),
            self.blocks.waiting(),
            self.attempts.failures(),
            outgoing.unwrap_or_else(|| "no stream".to_owned()),
        )];
        lines.extend(
            self.rails
                .iter()
                .map(|rail| format!("    {}", rail.describe(now))),
        );
        lines.join("\n")
    }

    /// What it waits for, from now on.
    fn account(&mut self, transfer: &TransferState, now: Instant) {
        let in_flight = self.rails.in_flight();
        let has_slot = !self.by_write || self.rails.any_slot();
        let may = has_slot && self.outgoing.as_ref().is_some_and(OutgoingStream::may_send);
        let stall = match self.stage {
            PeerStage::Sending if transfer.paused || !transfer.rate.may(now) => Stall::Limit,
            PeerStage::Sending if self.blocks.waiting() == 0 && in_flight == 0 => Stall::Disk,
            PeerStage::Sending if self.blocks.waiting() == 0 => Stall::None,
            PeerStage::Sending if !may && in_flight == 0 => Stall::Sink,
            PeerStage::Sending if !may => Stall::Credits,
            PeerStage::Sending => Stall::Wire,
            PeerStage::Finishing | PeerStage::Opening => Stall::Sink,
            _ => Stall::None,
        };
        self.clock.wait_for(stall, now);
    }
}
