//! Outcomes: transfers that are over, late, or lost with their endpoint, and what is told of each.

use std::time::{Duration, Instant};

use crate::endpoint::Destination;
use crate::object::server::core::ChannelCore;
use crate::object::server::engine::GenerationId;
use crate::object::server::error::{TransferError, TransferErrorKind};
use crate::object::server::event::ChannelEvent;
use crate::object::server::transfer::GivenBack;
use crate::object::{FailureKind, ObjectOperation};

impl ChannelCore {
    /// Looks at the transfers of which something changed.
    pub(super) fn settle(&mut self, now: Instant) {
        // Taken out and put back, so that it keeps its room.
        let mut over = std::mem::take(&mut self.over);
        for id in over.drain(..) {
            let Some(transfer) = self.engine.get(id) else {
                continue;
            };
            let is_over = transfer.in_flight == 0 && transfer.is_stopped();
            let peer = transfer.target.peer;
            self.rests = 0;
            self.sweep |= !self.lanes.retiring().is_empty();
            self.turns.hurry(&mut self.peers);
            if let Some(it) = self.peers.get_mut(peer) {
                it.went();
                if it.retry_at.is_some() {
                    self.turns.ready(&mut self.peers, peer);
                }
            }
            if is_over {
                self.finish(id, now);
            }
        }
        debug_assert!(self.over.is_empty(), "what is over ends nothing else");
        self.over = over;
    }

    /// A transfer is over, and nothing of it is in flight.
    fn finish(&mut self, id: usize, now: Instant) {
        let Some(transfer) = self.engine.take(id) else {
            return;
        };
        let (key, posted, told) = (transfer.key, transfer.begun > 0, transfer.told);
        let (len, peer) = (transfer.len, transfer.target.peer);
        let counted = (transfer.operation(), transfer.began);
        self.deadlines.remove(&(transfer.deadline, id));
        if let Some(it) = self.peers.get_mut(peer)
            && transfer.begun < transfer.len
        {
            it.line.retain(|waiting| *waiting != id);
        }
        let error = transfer
            .failed
            .clone()
            .map(|kind| TransferError { kind, posted });
        self.counts.leaked += u64::from(transfer.leaked);
        let broke = transfer.broke;
        let given = transfer.into_given();
        if let Some(generation) = broke {
            self.part_with(peer, generation);
        }
        self.peers.leave(peer, now);
        if told {
            self.sweep = true;
            self.counts.late -= 1;
            self.outbox.extend(returned(key, given));
            return;
        }
        let failure = error.as_ref().map(|error| FailureKind::from(&error.kind));
        let moved = if failure.is_none() { len } else { 0 };
        self.count(counted, moved, failure.map_or(Ok(()), Err));
        let event = outcome(key, given, error);
        match event {
            ChannelEvent::Written { .. } | ChannelEvent::Read { .. } => {
                self.counts.done += 1;
                self.counts.bytes += len;
            }
            _ => self.counts.failed += 1,
        }
        self.outbox.push_back(event);
    }

    /// The provider's connection to a client is over, in this endpoint: what comes next for the
    /// client goes by that of the late ones, and by a new one of theirs if it was that.
    fn part_with(&mut self, peer: u32, generation: GenerationId) {
        if self.lanes.of(true) == Some(generation) {
            self.lanes.retire(generation);
            self.sweep = true;
        }
        if let Some(it) = self.peers.get_mut(peer) {
            it.late = true;
        }
    }

    /// For statistics, when the outcome is told.
    fn count(
        &self,
        (operation, began): (ObjectOperation, Option<Instant>),
        bytes: u64,
        outcome: Result<(), FailureKind>,
    ) {
        let took = began.map_or(Duration::ZERO, |began| self.clock.since(began));
        self.parts
            .telemetry
            .on_transfer(operation, bytes, took, outcome);
    }

    /// Transfers whose deadline passed: told now, whatever the provider still has of them.
    pub(super) fn cut_off(&mut self, now: Instant) {
        while let Some((_, id)) = self.deadlines.first().copied().filter(|it| it.0 <= now) {
            self.deadlines.pop_first();
            let Some(transfer) = self.engine.get(id) else {
                continue;
            };
            self.counts.cut_off += 1;
            if transfer.in_flight == 0 {
                self.engine.fail(id, TransferErrorKind::Deadline);
                self.finish(id, now);
                continue;
            }
            let (peer, kind) = (transfer.target.peer, transfer.failed.clone());
            let counted = (transfer.operation(), transfer.began);
            let told = (transfer.key, transfer.is_write());
            self.count(counted, 0, Err(FailureKind::Deadline));
            self.tell_late(id, told, kind.unwrap_or(TransferErrorKind::Deadline));
            if let Some(it) = self.peers.get_mut(peer) {
                it.late = true;
            }
        }
    }

    fn tell_late(&mut self, id: usize, (key, write): (u64, bool), kind: TransferErrorKind) {
        self.engine.tell(id);
        for generation in self.engine.holders(id) {
            self.lanes.retire(generation);
        }
        self.sweep = true;
        self.counts.failed += 1;
        self.counts.late += 1;
        let error = TransferError { kind, posted: true };
        let given = match write {
            true => GivenBack::Write(None),
            false => GivenBack::Read(None),
        };
        self.outbox.push_back(outcome(key, given, Some(error)));
    }

    /// Closes what retires and has late transfers only.
    pub(super) fn sweep(&mut self, now: Instant) {
        while std::mem::take(&mut self.sweep) {
            for generation in self.lanes.overdue().collect::<Vec<_>>() {
                match self.engine.holds(generation, true) {
                    true => self.lanes.retire(generation),
                    false => self.lanes.keep(generation),
                }
            }
            for generation in self.lanes.retiring().to_vec() {
                if !self.engine.holds(generation, false) {
                    self.give_up(generation);
                    self.sweep = true;
                }
            }
            self.settle(now);
        }
    }

    /// Closes an endpoint: what is in flight there is over.
    pub(super) fn give_up(&mut self, generation: GenerationId) {
        let reset = TransferErrorKind::Reset;
        self.engine.close(generation, &reset, &mut self.over);
        self.lanes.remove(generation);
        self.counts.resets += 1;
    }
}

/// What becomes known of a transfer.
fn outcome(key: u64, given: GivenBack, error: Option<TransferError>) -> ChannelEvent {
    match (given, error) {
        (GivenBack::Write(Some(payload)), None) => ChannelEvent::Written { key, payload },
        (GivenBack::Read(Some(into)), None) => seen(key, into),
        (GivenBack::Write(payload), error) => ChannelEvent::WriteFailed {
            key,
            payload,
            error: error.unwrap_or_else(lost),
        },
        (GivenBack::Read(into), error) => ChannelEvent::ReadFailed {
            key,
            into,
            error: error.unwrap_or_else(lost),
        },
    }
}

/// The bytes are there; in a device's memory they are made visible.
fn seen(key: u64, into: Destination) -> ChannelEvent {
    match into.unseen() {
        None => ChannelEvent::Read { key, into },
        Some(error) => ChannelEvent::ReadFailed {
            key,
            into: Some(into),
            error: TransferError {
                kind: TransferErrorKind::Completion(error),
                posted: true,
            },
        },
    }
}

fn lost() -> TransferError {
    TransferError {
        kind: TransferErrorKind::Reset,
        posted: true,
    }
}

fn returned(key: u64, given: GivenBack) -> Option<ChannelEvent> {
    match given {
        GivenBack::Write(payload) => {
            payload.map(|payload| ChannelEvent::WriteReturned { key, payload })
        }
        GivenBack::Read(into) => into.map(|into| ChannelEvent::ReadReturned { key, into }),
    }
}
