//! `StreamNews`: what a receiver tells its application.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};

use super::engine::Who;
use crate::PeerAddr;
use crate::stream::{Manifest, RefusalCode, StreamError, StreamIdentity, StreamReport};

/// Which stream something is about.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Arrival {
    /// A number of this receiver's own: another one for each attempt.
    pub session: u64,
    /// Where it comes from, where the provider tells.
    pub peer: Option<PeerAddr>,
    /// Where it goes, and what it is.
    pub identity: StreamIdentity,
    /// Its files and directories.
    pub manifest: Arc<Manifest>,
}

/// What happened at a [`StreamReceiver`](super::StreamReceiver).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum StreamNews {
    /// A stream was accepted.
    Began(Arrival),
    /// A stream is complete: the sink has it, checked, and as its sender asked on the device.
    Complete(Arrival, StreamReport),
    /// A stream was cut, cancelled or failed. What the sink kept, a later stream may go on from. Nothing of it is under its name, unless
    /// it was cut while the sink finished: [`StreamReport::placed`] says how many files and directories are.
    Cut(Arrival, StreamError, StreamReport),
    /// A connection or a stream was not taken.
    Refused {
        /// Where it comes from, where the provider tells.
        peer: Option<PeerAddr>,
        /// Why, as its sender was told.
        code: RefusalCode,
        /// The same in words; may be empty.
        reason: String,
    },
}

/// The way to the application.
pub(super) struct News {
    way: SyncSender<StreamNews>,
    /// News that nobody fetched, and that were thrown away.
    missed: u64,
}

impl News {
    pub(super) fn new(way: SyncSender<StreamNews>) -> Self {
        Self { way, missed: 0 }
    }

    pub(super) fn tell(&mut self, news: StreamNews) {
        // Without a listener the queue fills up, and streams go on.
        if let Err(TrySendError::Full(_)) = self.way.try_send(news) {
            self.missed += 1;
            if self.missed == 1 {
                tracing::warn!(
                    "nobody fetches the news of a stream receiver: the latest are thrown away"
                );
            }
        }
    }

    pub(super) fn refused(&mut self, peer: Who, code: RefusalCode, reason: &str) {
        let reason = reason.to_owned();
        self.tell(StreamNews::Refused { peer, code, reason });
    }
}
