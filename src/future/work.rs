//! `Work`: an operation of a future before it is posted, and what it gives back.

use std::time::Instant;

use smallvec::SmallVec;

use super::error::SendFailure;
use super::waiters::Ticket;
use crate::Error;
use crate::buffer::Payload;
use crate::endpoint::{
    CloseReason, ConnectionInfo, Destination, Refused, RemoteWindow, SendErrorKind, SendEvent,
    WindowPlace,
};
use crate::stats::SendStats;

/// What the engine drives: a send endpoint, in the tests one over a link that is no network.
pub(crate) trait Sender: Send + 'static {
    fn send_data(
        &mut self,
        payload: Payload,
        header: &[u8],
        key: u64,
    ) -> Result<(), Refused<Payload>>;
    fn write(
        &mut self,
        payload: Payload,
        place: WindowPlace<'_>,
        data: Option<u32>,
        key: u64,
    ) -> Result<(), Refused<Payload>>;
    fn read(
        &mut self,
        into: Destination,
        place: WindowPlace<'_>,
        key: u64,
    ) -> Result<(), Refused<Destination>>;
    fn poll(&mut self, events: &mut Vec<SendEvent>) -> Result<(), Error>;
    fn begin_close(&mut self, deadline: Instant);
    /// As long as the connection stands.
    fn info(&self) -> Option<ConnectionInfo>;
    fn close_reason(&self) -> Option<CloseReason>;
    /// What whoever waited for the connection is told of its end.
    fn error_of_end(&self, reason: CloseReason) -> Error;
    fn stats(&self) -> SendStats;
}

/// The header of a send that is not posted yet.
pub(crate) type Header = SmallVec<[u8; 64]>;

/// An operation before it is posted; its future owns it.
#[derive(Debug)]
pub(crate) struct Unposted {
    pub(crate) work: Work,
    pub(crate) ticket: Option<Ticket>,
}

/// What an operation does, with what it was given, until that is posted.
#[derive(Debug)]
pub(crate) enum Work {
    Send {
        payload: Payload,
        header: Header,
    },
    Write {
        payload: Payload,
        window: RemoteWindow,
        offset: u64,
        data: Option<u32>,
    },
    Read {
        into: Option<Destination>,
        window: RemoteWindow,
        offset: u64,
    },
}

impl Work {
    /// Posts it; refused, it has everything as before.
    pub(super) fn post<S: Sender>(
        &mut self,
        sender: &mut S,
        key: u64,
    ) -> Result<(), SendErrorKind> {
        match self {
            Self::Send { payload, header } => {
                let sent = sender.send_data(std::mem::take(payload), header, key);
                sent.map_err(|refused| {
                    *payload = refused.given;
                    refused.kind
                })
            }
            Self::Write {
                payload,
                window,
                offset,
                data,
            } => {
                let given = std::mem::take(payload);
                let posted = sender.write(given, window.at(*offset), *data, key);
                posted.map_err(|refused| {
                    *payload = refused.given;
                    refused.kind
                })
            }
            Self::Read {
                into,
                window,
                offset,
            } => {
                let Some(given) = into.take() else {
                    unreachable!("it is posted once");
                };
                let posted = sender.read(given, window.at(*offset), key);
                posted.map_err(|refused| {
                    *into = Some(refused.given);
                    refused.kind
                })
            }
        }
    }

    /// What it was given.
    pub(super) fn take_back(&mut self) -> Back {
        match self {
            Self::Send { payload, .. } | Self::Write { payload, .. } => {
                Back::Payload(std::mem::take(payload))
            }
            Self::Read { into, .. } => into.take().map_or(Back::Nothing, Back::Into),
        }
    }
}

/// What an operation gives back when it is over.
#[derive(Debug)]
pub(crate) enum Back {
    Payload(Payload),
    Into(Destination),
    /// It was leaked, or is with an endpoint that is gone.
    Nothing,
}

/// What became of an operation.
pub(crate) type Outcome = Result<Back, (Back, SendFailure)>;

pub(super) fn back_of(outcome: Outcome) -> Back {
    outcome.unwrap_or_else(|(back, _)| back)
}
