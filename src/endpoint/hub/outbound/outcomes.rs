//! The outcomes of what went out: each accepted key has one.

use super::Outbound;
use crate::buffer::Payload;
use crate::endpoint::event::ReceiveEvent;
use crate::endpoint::hub::data_op::DataOp;
use crate::endpoint::hub::event::{HubEvent, Tell};
use crate::endpoint::hub::frames::{PackedMessage, PackedMessages};
use crate::endpoint::hub::line::{Driven, Over};
use crate::endpoint::hub::long_send::LongSend;
use crate::endpoint::hub::posted::{MessageOp, OrphanedLong};
use crate::endpoint::windows::one_sided::OneSided;
use crate::endpoint::windows::window::WindowEvent;
use crate::error::{CompletionError, FabricErrno};
use crate::id::ConnectionId;

impl Outbound {
    /// A message is over that went well, as most do, and the slab has it: its connection. Told, and
    /// not counted yet.
    #[inline(always)]
    pub(in crate::endpoint::hub) fn on_plain<E: HubEvent>(
        &mut self,
        context: usize,
        events: &mut Vec<E>,
    ) -> Option<ConnectionId> {
        let mut finished = self.posted.messages.finish_in_place(context).ok()?;
        let op = match finished.op() {
            Some(MessageOp::Data(op)) if op.header.is_none() && !op.told => op,
            _ => {
                finished.keep();
                return None;
            }
        };
        let (connection, packed) = (op.connection, op.packed.take());
        let (key, payload) = self.outgoing.end(op);
        finished.clear_away();
        match packed {
            None => events.push(E::completed(connection, key, payload)),
            Some(packed) => self.tell_frame_sent(connection, packed, events),
        }
        Some(connection)
    }

    /// A frame is over that went well: tells the outcome of each message.
    fn tell_frame_sent<E: HubEvent>(
        &mut self,
        connection: ConnectionId,
        mut packed: Box<PackedMessages>,
        events: &mut Vec<E>,
    ) {
        self.account.count_frame_sent(packed.len());
        let completed = |PackedMessage { key, payload }| E::completed(connection, key, payload);
        events.extend(packed.drain(..).map(completed));
        if let Some(frames) = &mut self.frames {
            frames.recycle(packed);
        }
    }

    /// A message is over, and the provider is done with it. False: its outcome was told before.
    pub(in crate::endpoint::hub) fn on_message_over<E: HubEvent>(
        &mut self,
        mut op: DataOp,
        error: Option<CompletionError>,
        events: &mut Vec<E>,
    ) -> bool {
        let (connection, told, packed) = (op.connection, op.told, op.packed.take());
        let (key, payload) = self.outgoing.end(&mut op);
        self.account.end();
        if let Some(packed) = packed {
            // Those whose outcomes were told have their payloads since.
            for PackedMessage { key, payload } in *packed {
                self.tell_message(connection, (key, payload), error.clone(), events);
            }
            return !told;
        }
        if told {
            // Its connection is over; now its address may go, too.
            events.tell(ReceiveEvent::Released {
                connection,
                key,
                payload,
            });
            return false;
        }
        self.tell_message(connection, (key, payload), error, events);
        true
    }

    /// The outcome of a long message.
    pub(in crate::endpoint::hub) fn on_long_over<E: HubEvent>(
        &mut self,
        long: LongSend,
        error: Option<CompletionError>,
        events: &mut Vec<E>,
    ) {
        let connection = long.connection();
        let over = long.end(&mut self.outgoing);
        self.account.end();
        self.tell_message(connection, over, error, events);
    }

    /// The outcome of a long message whose connection is over.
    pub(in crate::endpoint::hub) fn on_orphan_over<E: HubEvent>(
        &mut self,
        orphan: OrphanedLong,
        error: Option<CompletionError>,
        events: &mut Vec<E>,
    ) {
        if !orphan.told {
            return self.on_long_over(*orphan.send, error, events);
        }
        let connection = orphan.send.connection();
        let (key, payload) = orphan.send.end(&mut self.outgoing);
        self.account.end();
        events.tell(ReceiveEvent::Released {
            connection,
            key,
            payload,
        });
    }

    fn tell_message<E: HubEvent>(
        &mut self,
        connection: ConnectionId,
        (key, payload): (u64, Payload),
        error: Option<CompletionError>,
        events: &mut Vec<E>,
    ) {
        self.account.count_told(error.is_some());
        events.tell(match error {
            None => ReceiveEvent::Completed {
                connection,
                key,
                payload,
            },
            Some(error) => ReceiveEvent::Failed {
                connection,
                key,
                payload,
                error,
                kept: false,
            },
        });
    }

    /// An operation is over, and has its outcome.
    pub(in crate::endpoint::hub) fn on_operation_over<E: HubEvent>(
        &mut self,
        op: OneSided,
        error: Option<CompletionError>,
        events: &mut Vec<E>,
    ) {
        self.count_over(error.is_some());
        events.tell(told(op.connection, op.finish(error)));
    }

    /// The provider is done with one, and it has its outcome.
    pub(in crate::endpoint::hub) fn count_over(&mut self, failed: bool) {
        self.account.end();
        self.account.count_told(failed);
    }

    /// An operation whose outcome was told before is over.
    pub(in crate::endpoint::hub) fn on_told_over(&mut self, op: &mut OneSided) {
        self.outgoing.end_one_sided(op);
        self.account.end();
    }

    /// RDM form: the connection is over, and the provider keeps what was posted on it. That stays
    /// in the slab, and the outcomes are told now.
    pub(in crate::endpoint::hub) fn tell_kept<E: HubEvent>(
        &mut self,
        id: ConnectionId,
        events: &mut Vec<E>,
    ) {
        let message = "the connection is over; the provider still has what was given";
        let error = CompletionError {
            provider_message: message.to_owned(),
            ..CompletionError::new(libc::ECANCELED)
        };
        self.tell_posted(id, (&error, true), events);
    }

    /// The connection's endpoint would not close: what was posted is leaked. How many posts.
    pub(in crate::endpoint::hub) fn tell_leaked<E: HubEvent>(
        &mut self,
        id: ConnectionId,
        errno: FabricErrno,
        events: &mut Vec<E>,
    ) -> u64 {
        let error = CompletionError {
            provider_message: "fi_close refused; what was given is leaked".to_owned(),
            ..CompletionError::new(errno.get())
        };
        self.leak_leases();
        self.tell_posted(id, (&error, false), events)
    }

    /// The outcomes of what stays in the slab. How many.
    fn tell_posted<E: HubEvent>(
        &mut self,
        id: ConnectionId,
        (error, kept): (&CompletionError, bool),
        events: &mut Vec<E>,
    ) -> u64 {
        let mut messages = Vec::new();
        for op in self.posted.messages.iter_mut() {
            if let MessageOp::Data(op) = op
                && op.connection == id
                && !std::mem::replace(&mut op.told, true)
            {
                let sequence = op.sequence;
                match &mut op.packed {
                    None => messages.push((sequence, op.key, None)),
                    // The provider has the copies only.
                    Some(packed) => {
                        let packed = packed.drain(..);
                        messages.extend(packed.map(|one| (sequence, one.key, Some(one.payload))));
                    }
                }
            }
        }
        // Stable: those of a frame have one number.
        messages.sort_by_key(|(sequence, ..)| *sequence);
        // Nothing was sent behind it.
        for orphan in &mut self.posted.orphans {
            if orphan.send.connection() == id && !std::mem::replace(&mut orphan.told, true) {
                messages.push((u64::MAX, orphan.send.key, None));
            }
        }
        let mut operations = Vec::new();
        for op in self.posted.one_sided.iter_mut() {
            if op.connection == id && !std::mem::replace(&mut op.told, true) {
                operations.push((op.sequence, op.key, op.is_write()));
            }
        }
        operations.sort_unstable();
        let count = messages.len() + operations.len();
        let copied = CompletionError {
            provider_message: "the connection is over; what was given was copied".to_owned(),
            ..error.clone()
        };
        for (_, key, payload) in messages {
            self.account.count_told(true);
            let error = if payload.is_some() { &copied } else { error };
            events.tell(ReceiveEvent::Failed {
                connection: id,
                key,
                kept: kept && payload.is_none(),
                payload: payload.unwrap_or_default(),
                error: error.clone(),
            });
        }
        for (_, key, write) in operations {
            self.account.count_told(true);
            events.tell(told(id, OneSided::leaked(key, write, error.clone())));
        }
        count as u64
    }

    /// Tells what ended in a line.
    pub(in crate::endpoint::hub) fn tell_driven<E: HubEvent>(
        &mut self,
        driven: Driven,
        events: &mut Vec<E>,
    ) {
        for (op, error) in driven.unposted {
            self.on_message_over(op, Some(error), events);
        }
        self.tell_over(driven.over, events);
    }

    /// Tells the operations that ended in a line.
    pub(in crate::endpoint::hub) fn tell_over<E: HubEvent>(
        &mut self,
        over: Vec<Over>,
        events: &mut Vec<E>,
    ) {
        for Over { op, error } in over {
            self.on_operation_over(op, error, events);
        }
    }
}

pub(in crate::endpoint::hub) fn told(connection: ConnectionId, event: WindowEvent) -> ReceiveEvent {
    ReceiveEvent::Window { connection, event }
}
