//! `TransferPeer`: one peer of a transfer: its session, how far it is, its attempts and its end.

use std::time::{Duration, Instant};

use super::attempts::{Attempts, AttemptsLimit};
use super::config::{Deletion, Peer};
use super::outgoing_transfer::TransferState;
use super::peer_blocks::Ready;
use super::peer_clock::PeerClock;
use super::peer_errors::{is_busy, is_unsendable, is_worth_a_retry};
use super::peer_rails::RailDial;
use super::peer_session::PeerSession;
use super::peer_stage::{PeerStage, PeerWait};
use super::rail::SenderRail;
use super::rail_growth::{RailGrowth, RailRedial};
use super::side::SenderTools;
use super::transfer::PeerOutcome;
use crate::endpoint::{
    CloseReason, ConnectionEvent, Message as Arrived, ReceiveEvent, SendErrorKind,
};
use crate::stream::meter::StreamMeter;
use crate::stream::outbox::CONTROL_KEY;
use crate::stream::outgoing::OutgoingStream;
use crate::stream::report::StreamReport;
use crate::stream::timeline::TimelineRecorder;
use crate::stream::wire::{Features, Message, OpenFlags, RAILS_MAX};
use crate::stream::{RefusalCode, StreamError, StreamViolation};

/// What a receiver says in place of a stream's number when it speaks of a connection.
const NO_STREAM: u32 = 0;

/// What the source does, and what a receiver does before it accepts and at the end that does not
/// say that it works, may take so many times as long as the rest.
const LONG_WORK: u32 = 10;

/// A peer that says again and again that its sink works is believed for so many times
/// `stalled_after` in which nothing moves.
const LONG_WORD: u32 = 2 * LONG_WORK;

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
    session: PeerSession,
    /// The receiver had no window left.
    no_windows: bool,
    attempts: Attempts,
    clock: PeerClock,
    growth: RailGrowth,
    redial: RailRedial,
    report: StreamReport,
    sent_bytes: u64,
    meter: StreamMeter,
}

impl TransferPeer {
    pub(super) fn new(
        peer: Peer,
        number: usize,
        has_timeline: bool,
        now: Instant,
        meter: StreamMeter,
    ) -> Self {
        let timeline = has_timeline.then(|| TimelineRecorder::new(peer.addrs.len(), now));
        let report = StreamReport {
            address_bytes: vec![0; peer.addrs.len()],
            ..StreamReport::default()
        };
        Self {
            peer,
            number,
            stage: PeerStage::Connecting,
            session: PeerSession::default(),
            no_windows: false,
            attempts: Attempts::new(now),
            clock: PeerClock::new(timeline, now),
            growth: RailGrowth::default(),
            redial: RailRedial::default(),
            report,
            sent_bytes: 0,
            meter,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.stage == PeerStage::Over
    }

    /// Whether blocks may be sent to it.
    pub(super) fn is_sending(&self) -> bool {
        self.stage == PeerStage::Sending
    }

    /// The longest block that it takes, once it has said so.
    pub(super) fn payload_max(&self) -> Option<u32> {
        let ready = self
            .session
            .rails
            .first()
            .filter(|_| self.stage != PeerStage::Over);
        ready.and_then(SenderRail::payload_max)
    }

    pub(super) fn has_failed_once(&self) -> bool {
        self.attempts.has_failed()
    }

    /// Blocks that are read for it, wait for it, or are on their way to it.
    pub(super) fn held(&self) -> usize {
        self.session.held()
    }

    /// It takes blocks now, or has shown that it will not soon.
    pub(super) fn is_settled(&self) -> bool {
        matches!(
            self.stage,
            PeerStage::Sending | PeerStage::Finishing | PeerStage::Over
        ) || self.attempts.has_failed()
    }

    pub(super) fn first_wanted(&self, from: u64) -> Option<u64> {
        let outgoing = self.session.outgoing.as_ref()?;
        outgoing.first_wanted(from).filter(|_| self.is_sending())
    }

    /// Whether it is to have this block, and nobody has begun to read it.
    pub(super) fn wants(&self, index: u64) -> bool {
        let outgoing = self.session.outgoing.as_ref();
        self.is_sending() && outgoing.is_some_and(|outgoing| outgoing.wants(index))
    }

    /// Whether it may have a block already, in a file of the same name.
    pub(super) fn compares(&self, index: u64) -> bool {
        let outgoing = self.session.outgoing.as_ref();
        outgoing.is_some_and(|outgoing| outgoing.compares(index))
    }

    /// Whether blocks may be sent to it several in one message.
    pub(super) fn takes_packs(&self) -> bool {
        self.is_sending() && self.session.takes_packs()
    }

    /// Whether it takes word of blocks that are zeros.
    pub(super) fn takes_zeros(&self) -> bool {
        self.is_sending() && self.session.takes_zeros()
    }

    /// Blocks are being read at once, so many from this one on; they are its, if it wants them all.
    pub(super) fn assign(&mut self, first: u64, blocks: usize) {
        if self.is_sending() {
            self.session.assign(first, blocks);
        }
    }

    pub(super) fn on_read(
        &mut self,
        ready: Ready,
        took: Duration,
        hash_time: Duration,
        now: Instant,
    ) {
        self.clock.forget_source();
        if self.session.on_read(ready) {
            self.report.read_time += took;
            self.report.hash_time += hash_time;
            self.clock.on_read(took, hash_time, now);
        }
    }

    /// Everything was sent, and the source was not asked yet whether it is still what it was.
    pub(super) fn waits_for_check(&self) -> bool {
        self.is_sending() && self.session.has_sent_all()
    }

    /// How long it has held blocks that others wait for, and taken none.
    pub(super) fn held_up_for(&self, now: Instant) -> Duration {
        match self.is_sending() && self.held() > self.session.blocks.being_read() {
            true => self.clock.unmoved_for(now),
            false => Duration::ZERO,
        }
    }

    pub(super) fn tell_paused(&mut self, on: bool, now: Instant) {
        self.clock.on_moved(now);
        if let Some(outgoing) = &mut self.session.outgoing {
            outgoing.pause(on);
        }
    }

    /// Begins a session: its first rail.
    pub(super) fn connect(&mut self, with: &mut PeerContext<'_>) {
        self.stage = PeerStage::Connecting;
        self.session.rails.begin_session();
        self.growth = RailGrowth::default();
        self.redial = RailRedial::default();
        self.clock.on_moved(with.now());
        if let Err(error) = self.dial(with) {
            self.on_lost(error, with);
        }
    }

    fn addrs(&self) -> u16 {
        u16::try_from(self.peer.addrs.len()).unwrap_or(u16::MAX)
    }

    /// How many rails a session has at most, as far as this side knows.
    fn wanted_rails(&self, with: &PeerContext<'_>) -> u16 {
        let lanes = u16::try_from(with.tools.lanes()).unwrap_or(u16::MAX);
        let each = with.transfer.options.rails.unwrap_or(lanes);
        self.addrs().saturating_mul(each).min(RAILS_MAX)
    }

    /// Starts the next rail.
    fn dial(&mut self, with: &mut PeerContext<'_>) -> Result<(), StreamError> {
        let dial = RailDial {
            transfer: with.transfer.id,
            peer: self.number,
            to: &self.peer,
            wanted: self.wanted_rails(with),
            by_write: self.session.by_write,
        };
        self.session.rails.dial(&dial, with.tools)
    }

    /// The last connection is gone, or can't be made: another attempt, or the end.
    fn on_lost(&mut self, error: StreamError, with: &mut PeerContext<'_>) {
        self.attempts.on_failed();
        self.no_windows |= self.session.by_write && is_busy(&error);
        // A peer that was told why hears it before the end.
        let is_told = matches!(error, StreamError::Stalled { .. });
        self.session.leave(is_told, with.tools);
        let limit = AttemptsLimit {
            most: with.transfer.options.reconnects,
            retry_for: with.transfer.options.retry_for,
            first_within: with.tools.config.stream.connect_timeout,
        };
        let is_worth_it = is_worth_a_retry(&error);
        let Some(wait) = self.attempts.next(&limit, is_worth_it, with.now()) else {
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
        self.session.tell_why(&error, with);
        self.end(Err(error), with);
    }

    /// Its connections end, and nothing else is done.
    pub(super) fn break_off(&mut self, tools: &mut SenderTools) {
        self.session.leave(false, tools);
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
        self.meter
            .tell(&self.report, self.sent_bytes, &self.report.stalls);
        self.meter.end(result.is_ok());
        let shared = &with.transfer.shared;
        shared.tell(self.number, self.report.bytes, self.sent_bytes);
        self.session.leave(true, with.tools);
        self.stage = PeerStage::Over;
        let outcome = PeerOutcome {
            peer: self.peer.clone(),
            result,
            report: self.report.clone(),
        };
        with.transfer.shared.end(self.number, outcome);
    }

    pub(super) fn on_event(
        &mut self,
        rail: usize,
        event: ReceiveEvent,
        with: &mut PeerContext<'_>,
    ) {
        match event {
            ReceiveEvent::Connection(_, ConnectionEvent::Connected(_)) => {
                self.session.rails[rail].on_connected()
            }
            ReceiveEvent::Message(message) => {
                if let Err(error) = self.on_message(rail, &message, with) {
                    match self.session.rails[rail].is_ready() {
                        true => self.on_refused(error, with),
                        false => self.on_rail_failed(rail, error, with),
                    }
                }
            }
            ReceiveEvent::Completed { key, .. } if key != CONTROL_KEY => {
                self.session.rails[rail].local.in_flight -= 1;
                self.clock.on_moved(with.now());
            }
            ReceiveEvent::Window { event, .. } => {
                let has_moved = self.session.on_window_event(rail, event);
                if has_moved {
                    self.clock.on_moved(with.now());
                }
            }
            ReceiveEvent::Failed { key, .. } if key != CONTROL_KEY => {
                // Whether it arrived is not known; the peer says what it lacks.
                self.session.rails[rail].local.in_flight -= 1;
            }
            ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(reason)) => {
                self.lose_rail(rail, false, StreamError::Lost(reason), with);
            }
            _ => {}
        }
    }

    /// A block that had been given to a rail is not on its way.
    pub(super) fn on_unsent(&mut self, rail: usize, kind: &SendErrorKind) {
        let local = &mut self.session.rails[rail].local;
        local.in_flight = local.in_flight.saturating_sub(1);
        // Of a connection that is over, its own event says so.
        if is_unsendable(kind) {
            self.session.unsendable = Some(kind.to_string());
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
        self.session.rails[rail].pump(&mut with.tools.network);
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
        let was_ready = with.tools.leave(&mut self.session.rails[rail], politely);
        if !self.session.rails.any_ready() {
            return self.on_refused(error, with);
        }
        // A receiver that has all says so on one rail and leaves each: the word may come last.
        let is_over = matches!(error, StreamError::Lost(CloseReason::Finished))
            && self.stage == PeerStage::Finishing;
        if !is_over {
            tracing::warn!(%error, peer = %self.peer, "a stream goes on with a rail less");
        }
        if was_ready && self.session.on_rail_lost(rail) && !is_over {
            self.report.rails_lost += 1;
        }
        if !was_ready {
            self.redial.on_refused(with.now());
        }
    }

    /// The receiver has lost one of the connections, which this side may not have heard of: what it
    /// says of it comes by another one.
    fn on_rail_gone(&mut self, number: u16, with: &mut PeerContext<'_>) -> Result<(), StreamError> {
        let rail = self.session.rails.find(number)?;
        if !self.session.rails[rail].is_gone() {
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
        self.session.rails[rail].last_heard = with.now();
        if !self.session.rails[rail].is_ready() {
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
            && self.session.rails[rail].can(Features::RAIL_GONE)
        {
            return self.on_rail_gone(lost.rail, with);
        }
        let Some(outgoing) = &mut self.session.outgoing else {
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
            return self.session.on_slots(rail, &message, with);
        }
        if self.stage == PeerStage::Opening && outgoing.is_accepted() {
            self.stage = PeerStage::Sending;
            (_, self.report.resumed_bytes) = outgoing.had();
            self.report.unchanged = outgoing.unchanged();
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
        if let Some(agreed) = self.session.rails[rail].on_handshake(arrived, with.now())? {
            self.attempts.on_answered();
            match &mut self.session.outgoing {
                Some(outgoing) => outgoing.add_rail(agreed.rail),
                None => self.stage = PeerStage::Ready,
            }
        }
        Ok(())
    }

    /// The others, now that the receiver knows the session.
    fn more_rails(&mut self, with: &mut PeerContext<'_>) {
        let each = with.transfer.options.rails.unwrap_or(1);
        self.dial_up_to(self.addrs().saturating_mul(each), with);
    }

    /// Further ones, if more seem to pay.
    fn grow(&mut self, with: &mut PeerContext<'_>) {
        let rails = &self.session.rails;
        if with.transfer.options.rails.is_some() || !rails.are_ready() {
            return;
        }
        let most = with.tools.lanes().min(rails.lanes());
        let most = u16::try_from(most).unwrap_or(u16::MAX);
        let each = rails.dialed() / self.addrs().max(1);
        let more = self.growth.more(each, most, self.sent_bytes, with.now());
        if more > 0 {
            self.dial_up_to(self.addrs().saturating_mul(each + more), with);
        }
    }

    fn dial_up_to(&mut self, rails: u16, with: &mut PeerContext<'_>) {
        for _ in self.session.rails.dialed()..rails.min(RAILS_MAX) {
            if let Err(error) = self.dial(with) {
                tracing::warn!(%error, peer = %self.peer, "a rail of a stream could not be made");
                break;
            }
        }
    }

    fn after_message(&mut self, with: &mut PeerContext<'_>) -> Result<(), StreamError> {
        let written = self.session.written_bytes();
        let shared = &with.transfer.shared;
        shared.tell(self.number, written, self.sent_bytes);
        self.attempts.on_written(written);
        let Some(outgoing) = &self.session.outgoing else {
            return Ok(());
        };
        self.report.damaged = outgoing.damaged();
        self.report.equal_bytes = outgoing.equal_bytes();
        match outgoing.outcome() {
            Some(Ok(complete)) => {
                self.report.blake3 = complete.blake3;
                self.report.deleted = outgoing.deleted();
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

    pub(super) fn on_time(&mut self, with: &mut PeerContext<'_>) {
        let now = with.now();
        for rail in 0..self.session.rails.len() {
            if let Some(error) = self.session.rails[rail].on_time(now) {
                self.on_rail_failed(rail, error, with);
                break;
            }
        }
        if self.is_sending() {
            let rails = self
                .session
                .rails
                .dialed()
                .saturating_add(self.redial.due(now));
            self.dial_up_to(rails, with);
        }
        let silent = self.clock.silent_for(now);
        let may_ask = self.clock.may_ask(now);
        if may_ask && self.session.inquire() {
            self.clock.on_asked(now);
        }
        match self.stage {
            PeerStage::Resting { until } if now >= until => self.connect(with),
            PeerStage::Resting { .. } | PeerStage::Over => {}
            // The endpoint has its own timeout; this is that of the handshake behind it.
            PeerStage::Connecting if silent > 2 * with.tools.config.stream.connect_timeout => {
                let what = "the handshake";
                self.on_lost(StreamError::Deadline { what }, with);
            }
            PeerStage::Connecting => {}
            PeerStage::Ready | PeerStage::Opening | PeerStage::Sending | PeerStage::Finishing => {
                self.watch(silent, with);
            }
        }
    }

    /// What it waits for and how it stands, for an error.
    fn describe_wait(&self, transfer: &TransferState, now: Instant) -> String {
        let what = self.stage.wait(&self.session, transfer, now).text();
        let rails = self.session.describe_rails(now).join("; ");
        let stream = self.session.describe_stream();
        format!("the sender waited for {what} ({stream}; {rails})")
    }

    /// Ends what does not move any more: this side, the peer and the source each have their time.
    fn watch(&mut self, silent: Duration, with: &mut PeerContext<'_>) {
        let now = with.now();
        let stalled = with.transfer.options.stalled_after;
        let wait = self.stage.wait(&self.session, with.transfer, now);
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
                let limit = match self.session.may_take_long(self.stage) {
                    true => stalled.saturating_mul(LONG_WORK),
                    false => stalled,
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
            && let Some(outgoing) = &mut self.session.outgoing
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
        self.session.tell_why(&error, with);
        self.on_lost(error, with);
    }

    pub(super) fn pump(&mut self, with: &mut PeerContext<'_>) -> bool {
        if self.stage == PeerStage::Ready
            && with.transfer.plan.is_some()
            && let Err(error) = self.open(with)
        {
            self.give_up(error, with);
        }
        if self.session.by_write {
            self.session.place();
        }
        let mut any = self.begin_finish(with.transfer);
        self.session.speak(with.transfer);
        for rail in self.session.rails.iter_mut() {
            rail.local.blocked = false;
            rail.pump(&mut with.tools.network);
        }
        while self.is_sending()
            && let Some(sent) = self.session.send_next(with)
        {
            self.sent_bytes += sent.bytes;
            self.report.blocks += sent.blocks;
            let address = usize::from(sent.rail) % self.peer.addrs.len();
            self.report.address_bytes[address] += sent.bytes;
            self.clock.on_sent(sent.bytes, address, with.now());
            any = true;
        }
        if any && self.is_sending() {
            self.grow(with);
        }
        if any && let Err(error) = self.after_message(with) {
            self.on_refused(error, with);
        }
        if let Some(reason) = self.session.unsendable.take() {
            let code = RefusalCode::SOURCE;
            self.give_up(StreamError::GivenUp { code, reason }, with);
        }
        let now = with.now();
        let stall = self.stage.stall(&self.session, with.transfer, now);
        self.clock.wait_for(stall, now);
        if !self.is_over() {
            self.meter
                .tell(&self.report, self.sent_bytes, &self.clock.stalls());
        }
        any
    }

    /// Everything was sent, and the source is still what it was: that is said next.
    fn begin_finish(&mut self, transfer: &TransferState) -> bool {
        if !self.waits_for_check() || !transfer.checked {
            return false;
        }
        self.session.allow_finish(transfer.blake3());
        self.stage = PeerStage::Finishing;
        true
    }

    fn open(&mut self, with: &mut PeerContext<'_>) -> Result<(), StreamError> {
        let Some(plan) = &with.transfer.plan else {
            return Ok(());
        };
        let links = plan.links;
        if links > 0 && !self.session.rails.first_can(Features::LINKS) {
            let reason = format!(
                "{links} of the entries are symbolic links, and the receiver takes none: leave \
                 them out (FileSourceBuilder::links, fabricast send --links skip), or have \
                 them followed"
            );
            let code = RefusalCode::FEATURE;
            return Err(StreamError::GivenUp { code, reason });
        }
        let has_owners = with.transfer.source.manifest().has_owners();
        if has_owners && !self.session.rails.first_can(Features::OWNERS) {
            let reason = "the receiver does not take the owners of files: where it may, start it \
                          with fabricast recv --owners (DirectorySink::owners); or send without \
                          --owners (FileSourceBuilder::owners)";
            let (code, reason) = (RefusalCode::FEATURE, reason.to_owned());
            return Err(StreamError::GivenUp { code, reason });
        }
        let has_attributes = with.transfer.source.manifest().has_attributes();
        if has_attributes && !self.session.rails.first_can(Features::ATTRIBUTES) {
            let reason = "the receiver does not take extended attributes: where it may, start it \
                          with fabricast recv --xattrs (DirectorySink::attributes); or send \
                          without --xattrs (FileSourceBuilder::attributes)";
            let (code, reason) = (RefusalCode::FEATURE, reason.to_owned());
            return Err(StreamError::GivenUp { code, reason });
        }
        let options = &with.transfer.options;
        let deletes = options.delete != Deletion::None;
        if deletes && !self.session.rails.first_can(Features::DELETE) {
            let reason = "the receiver does not let senders have anything removed: where it may, \
                          start it with fabricast recv --allow-delete \
                          (DirectorySink::allow_delete); or send without --delete \
                          (SendOptions::delete)";
            let (code, reason) = (RefusalCode::FEATURE, reason.to_owned());
            return Err(StreamError::GivenUp { code, reason });
        }
        let wanted = (options.transport, self.no_windows);
        let block_bytes = plan.blocks.block_bytes();
        let session = &mut self.session;
        let why = session.choose_transport(wanted, block_bytes, with.tools)?;
        self.report.transport = why.to_owned();
        // Only once: what the receiver has from this transfer, it keeps.
        let restart = options.restart && self.sent_bytes == 0;
        let mut open = with.transfer.open(plan, session.by_write, restart);
        let skips = options.skip_unchanged && session.rails.first_can(Features::SKIP_UNCHANGED);
        open.flags.set(OpenFlags::SKIP_UNCHANGED, skips);
        let compares = skips && options.compare_content;
        let compares = compares && session.rails.first_can(Features::COMPARE);
        open.flags.set(OpenFlags::COMPARE, compares);
        let says_sparse = plan.sparse && session.rails.first_can(Features::SPARSE);
        open.flags.set(OpenFlags::SPARSE, says_sparse);
        open.flags.set(OpenFlags::DELETE, deletes);
        open.flags.set(OpenFlags::OWNERS, has_owners);
        let home = self.session.rails.first().map_or(0, |rail| rail.number);
        let mut outgoing = OutgoingStream::new(open, plan.blocks.clone(), home);
        outgoing.pause(with.transfer.paused);
        self.session.outgoing = Some(outgoing);
        self.stage = PeerStage::Opening;
        Ok(())
    }

    /// How it is, in words.
    pub(super) fn describe(&self, now: Instant) -> String {
        let silent = self.clock.unmoved_for(now);
        let mut lines = vec![format!(
            "  peer {}: {:?}, nothing moved for {silent:.1?}; {} blocks being read, {} wait to be \
             sent; {} failures; {}",
            self.peer,
            self.stage,
            self.session.blocks.being_read(),
            self.session.blocks.waiting(),
            self.attempts.failures(),
            self.session.describe_stream(),
        )];
        let rails = self.session.describe_rails(now);
        lines.extend(rails.into_iter().map(|rail| format!("    {rail}")));
        lines.join("\n")
    }
}
