//! The way back to a source: what the builder has to tell it, in batches.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fabricast::buffer::SharedBufferManager;
use fabricast::endpoint::SendConfig;
use fabricast::event_loop::{EventLoop, Token};
use fabricast::{ConnectionEvent, Domain, SendEndpointZeroCopy, SendEvent};

use crate::failure::Failure;
use crate::readout::HEADER_MODE;
use crate::readout::summary::Summary;
use crate::readout::wire::{ANSWER_EVENTS_MAX, Answer, Grant, put_words};

/// Numbers that wait, at most: a source has fewer events under way.
const WAITING_MAX: usize = 1 << 16;

/// The return connection to one source.
pub(crate) struct Answers {
    endpoint: SendEndpointZeroCopy,
    pub(crate) loop_token: Token,
    /// What the source knows us by.
    token: u64,
    /// What it is granted.
    grant: Grant,
    buffers: SharedBufferManager,
    /// All sources are there: it may start. And whether it was told so.
    pub(crate) may_start: bool,
    ready: bool,
    built: Vec<u64>,
    lost: Vec<u64>,
    summary: Option<Summary>,
    closed: bool,
}

impl Answers {
    pub(crate) fn connect(
        domain: &Arc<Domain>,
        event_loop: &mut EventLoop,
        to: SocketAddr,
        token: u64,
        grant: Grant,
        buffers: &SharedBufferManager,
        patience: Duration,
    ) -> Result<Self, Failure> {
        let config = SendConfig::default()
            .outgoing(|out| out.header_mode(HEADER_MODE).deadline(Some(patience)))
            .connection(|c| {
                c.connect_timeout(patience)
                    .unresponsive_after(Some(patience / 2))
                    .lost_after(Some(patience))
            });
        let endpoint = SendEndpointZeroCopy::connect(domain, to.into(), config)?;
        Ok(Self {
            loop_token: event_loop.add_endpoint(&endpoint)?,
            endpoint,
            token,
            grant,
            buffers: buffers.clone(),
            may_start: false,
            ready: false,
            built: Vec::with_capacity(WAITING_MAX),
            lost: Vec::with_capacity(WAITING_MAX),
            summary: None,
            closed: false,
        })
    }

    pub(crate) fn built(&mut self, event: u64) {
        self.built.push(event);
    }

    pub(crate) fn lost(&mut self, event: u64) {
        self.lost.push(event);
    }

    pub(crate) fn summary(&mut self, summary: Summary) {
        self.summary = Some(summary);
    }

    /// Drives the connection, which leaves the loop when it is over.
    pub(crate) fn poll(
        &mut self,
        event_loop: &mut EventLoop,
        events: &mut Vec<SendEvent>,
    ) -> Result<(), Failure> {
        if self.closed {
            return Ok(());
        }
        if self.endpoint.poll(events)? > 0 {
            event_loop.mark_busy();
        }
        // Dropping a completed payload gives its buffer back.
        for event in events.drain(..) {
            self.closed |= matches!(
                event,
                SendEvent::Connection(ConnectionEvent::Disconnected(_))
            );
        }
        if self.closed {
            event_loop.remove(self.loop_token);
        }
        self.flush()
    }

    /// Sends what there is to tell, as far as the source takes it now; the rest goes with the next
    /// event of the endpoint.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        if self.built.len().max(self.lost.len()) > WAITING_MAX {
            return Err(Failure::new("a source does not read its answers"));
        }
        if !self.endpoint.is_connected() {
            return Ok(());
        }
        if self.may_start && !self.ready {
            self.ready = self.send(Answer::Ready(self.grant), &mut std::iter::empty());
        }
        while !self.built.is_empty() && self.send_numbers(Answer::Built) {}
        while !self.lost.is_empty() && self.send_numbers(Answer::Lost) {}
        if self.built.is_empty()
            && self.lost.is_empty()
            && let Some(summary) = self.summary.take()
            && !self.send(Answer::Summary, &mut summary.words())
        {
            self.summary = Some(summary);
        }
        Ok(())
    }

    fn send_numbers(&mut self, answer: Answer) -> bool {
        let mut numbers = std::mem::take(match answer {
            Answer::Lost => &mut self.lost,
            _ => &mut self.built,
        });
        let count = numbers.len().min(ANSWER_EVENTS_MAX);
        let sent = self.send(answer, &mut numbers[..count].iter().copied());
        if sent {
            numbers.drain(..count);
        }
        match answer {
            Answer::Lost => self.lost = numbers,
            _ => self.built = numbers,
        }
        sent
    }

    /// False: not now, or never if the connection is gone.
    fn send(&mut self, answer: Answer, words: &mut dyn Iterator<Item = u64>) -> bool {
        let Some(mut buffer) = self.buffers.try_acquire() else {
            return false;
        };
        let len = put_words(&mut buffer, words);
        let header = answer.encode(self.token, len);
        self.endpoint
            .send_data(buffer.freeze(len), &header, 0)
            .is_ok()
    }

    /// Says goodbye, when the source has.
    pub(crate) fn close(self, deadline: std::time::Instant) {
        // Whoever is still there has what was sent; who is not does not want it.
        let _ = self.endpoint.close(deadline);
    }
}
