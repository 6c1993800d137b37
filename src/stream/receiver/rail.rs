//! What a receiver keeps with each of its connections: whose it is.

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter, Result};

use super::config::SinkTakes;
use super::side::RemotePeer;
use crate::endpoint::ConnectionId;
use crate::stream::rail::Rail;
use crate::stream::wire::Features;

/// What a receiver can do, with windows or without, and what its sinks take.
pub(super) fn features(windows: bool, takes: SinkTakes) -> Features {
    let mut features = Features::all();
    features.set(Features::BY_WRITE, windows);
    features.set(Features::LINKS, takes.links);
    features.set(Features::DELETE, takes.deletions);
    features.set(Features::OWNERS, takes.owners);
    features.set(Features::ATTRIBUTES, takes.attributes);
    features
}

/// The session that a connection belongs to.
#[derive(Debug)]
pub(super) struct RailOwner {
    pub(super) peer: RemotePeer,
    /// Once the handshake is over.
    pub(super) session: Option<u64>,
}

/// One connection of a receiver.
pub(super) type ReceiverRail = Rail<RailOwner>;

/// By connection, and in their order: who is served when does not depend on how a table hashes.
pub(super) type Rails = BTreeMap<ConnectionId, ReceiverRail>;

impl ReceiverRail {
    /// Connections that its sender wants for the session.
    pub(super) fn rails(&self) -> u16 {
        self.agreed().map_or(1, |agreed| agreed.rails)
    }
}

impl Display for RailOwner {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.session {
            Some(session) => write!(f, ", of session {session}"),
            None => Ok(()),
        }
    }
}
