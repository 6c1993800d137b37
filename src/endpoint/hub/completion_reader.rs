//! `CompletionReader`: how far the completion queue of a hub was read, and what waits for that.

use super::closing::Mark;
use super::marks::Marks;
use super::{Hub, Op};
use crate::Error;
use crate::endpoint::hub::conn_table::NOBODY;
use crate::endpoint::hub::event::HubEvent;
use crate::endpoint::hub::posted::PieceOp;
use crate::endpoint::link::backlog::Backlog;
use crate::endpoint::link::{COMPLETION_BATCH, Completions, Link, LinkCompletion, PEER_WROTE};
use crate::error::CompletionError;
use crate::id::ConnectionId;
use crate::in_flight::ContextError;
use crate::protocol::connection::Form;

/// Reads a completion queue in batches.
pub(super) struct CompletionReader {
    batch: Completions,
    pub(super) backlog: Backlog,
    /// Ends of connections that wait for what lies in the queue.
    pub(super) marks: Marks<Mark>,
}

impl CompletionReader {
    /// A reader of a queue that holds completions of up to `in_flight_max` operations.
    pub(super) fn new(in_flight_max: u64) -> Self {
        Self {
            batch: Vec::with_capacity(COMPLETION_BATCH),
            backlog: Backlog::new(in_flight_max),
            marks: Marks::new(in_flight_max),
        }
    }

    /// Reads one batch: how many completions there are, and whether the queue goes on.
    #[inline(always)]
    pub(super) fn read<L: Link>(&mut self, link: &mut L) -> (usize, Result<usize, Error>) {
        let read = link.poll_completions(&mut self.batch);
        let found = self.batch.len();
        self.backlog.on_read(found);
        self.marks.on_read(found);
        (found, read)
    }

    /// What was read, to be [given back](Self::put_back) without its completions.
    #[inline]
    pub(super) fn take_batch(&mut self) -> Completions {
        std::mem::take(&mut self.batch)
    }

    #[inline]
    pub(super) fn put_back(&mut self, batch: Completions) {
        self.batch = batch;
    }
}

/// Messages of one connection that are over and went well, counted together.
#[derive(Clone, Copy)]
pub(super) struct SentInARow {
    pub(super) connection: ConnectionId,
    pub(super) count: u32,
}

impl Default for SentInARow {
    fn default() -> Self {
        Self {
            connection: NOBODY,
            count: 0,
        }
    }
}

impl<L: Link, E: HubEvent> Hub<L, E> {
    /// One batch of completions; an empty poll does little more than this.
    #[inline(always)]
    pub(super) fn read_completions(&mut self, events: &mut Vec<E>) -> usize {
        self.stats.cq_reads.add(1);
        let (found, read) = self.cq.read(&mut self.link);
        match found {
            0 => self.stats.cq_reads_empty.add(1),
            _ => self.on_batch(events),
        }
        if let Err(error) = read {
            self.on_queue_broke(&error);
        }
        found
    }

    #[cold]
    fn on_queue_broke(&mut self, error: &Error) {
        tracing::error!(%error, "the completion queue broke");
        self.fail("the completion queue broke");
    }

    /// What was read.
    #[inline(never)]
    fn on_batch(&mut self, events: &mut Vec<E>) {
        let mut completions = self.cq.take_batch();
        let sends = self.outbound.sends_messages();
        let mut sent = SentInARow::default();
        for completion in &mut completions {
            // What most of them are, where messages are sent.
            if sends
                && completion.error.is_none()
                && let Some(id) = self.outbound.on_plain(completion.context, events)
            {
                if sent.connection != id {
                    self.on_plain_sent(std::mem::take(&mut sent));
                    sent.connection = id;
                }
                sent.count += 1;
                continue;
            }
            // What the completion says of its connection comes behind them.
            if sent.count > 0 {
                self.on_plain_sent(std::mem::take(&mut sent));
            }
            self.on_completion(std::mem::take(completion), events);
        }
        self.on_plain_sent(sent);
        completions.clear();
        self.cq.put_back(completions);
    }

    #[inline(always)]
    fn on_completion(&mut self, completion: LinkCompletion, events: &mut Vec<E>) {
        let LinkCompletion {
            context,
            len,
            data,
            error,
        } = completion;
        let operates = !self.outbound.posted.one_sided.is_empty();
        if operates && error.is_none() && self.on_one_sided_done(context, events) {
            return;
        }
        match self.in_flight.finish(context) {
            // RDM form: those that all connections share.
            Ok(Op::Receive {
                connection: NOBODY,
                buffer,
            }) => self.on_shared(buffer, len, data, error, events),
            Ok(Op::Receive {
                connection: id,
                buffer,
            }) => match error {
                None => self.on_received(id, buffer, len, data, events),
                Some(error) => self.on_receive_failed(id, error.errno),
            },
            Ok(Op::ControlSend {
                connection: id,
                kind,
                ..
            }) => {
                let Some(peer) = self.peers.get_mut(id) else {
                    return self.on_orphan(id);
                };
                peer.controls.on_over();
                match error {
                    None => peer.machine.on_control_done(kind),
                    Some(error) => peer.machine.on_lost(Some(error.errno)),
                }
                self.touch(id);
            }
            Err(reason) => self.on_outbound_over(context, (reason, data), error, events),
        }
    }

    /// A completion of what this side posted for its application.
    #[inline]
    fn on_outbound_over(
        &mut self,
        context: usize,
        (reason, data): (ContextError, Option<u64>),
        error: Option<Box<CompletionError>>,
        events: &mut Vec<E>,
    ) {
        let error = error.map(|error| *error);
        let posted = &mut self.outbound.posted;
        if let Ok(op) = posted.messages.finish(context) {
            return self.on_message_over(op, error, events);
        }
        match posted.one_sided.finish(context) {
            Ok(op) => self.on_one_sided(op, error, events),
            Err(_) if context == PEER_WROTE && data.is_some() => {
                self.cq.marks.on_strange();
                self.on_peer_wrote(data, events);
            }
            Err(_) => match posted.pieces.finish(context) {
                Ok(PieceOp::OneSided(piece)) => self.on_one_sided_piece(piece, error, events),
                Ok(PieceOp::Long(piece)) => self.on_long_piece(piece, error, events),
                Err(_) => self.on_unknown(context, reason, error),
            },
        }
    }

    /// A completion that names no operation in flight.
    #[cold]
    fn on_unknown(&mut self, context: usize, reason: ContextError, error: Option<CompletionError>) {
        self.stats.unknown_completions.add(1);
        // `ofi_rxm` reports a lost connection with contexts of its own, or twice.
        if self.link.form() == Form::Rdm && error.is_some() {
            return tracing::debug!(
                context,
                ?reason,
                ?error,
                "a failure that names no operation"
            );
        }
        tracing::error!(context, ?reason, "a completion that names no operation");
        self.fail("a completion named no operation in flight");
    }
}
