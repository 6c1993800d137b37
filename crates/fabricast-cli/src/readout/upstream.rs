//! One source, as a builder sees it: what came from it, and the way back.

use std::net::SocketAddr;

use fabricast::endpoint::{CloseReason, ConnectionId, ConnectionInfo};
use fabricast::metrics::Latencies;

use crate::readout::answers::Answers;
use crate::readout::summary::Summary;
use crate::readout::wire::{Hello, Volume};

/// One source.
pub(crate) struct Upstream {
    pub(crate) connection: ConnectionId,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) hello: Option<Hello>,
    pub(crate) answers: Option<Answers>,
    pub(crate) received: Volume,
    /// Its fragments that are kept, of events that are not complete.
    pub(crate) held: u32,
    pub(crate) last_event: u64,
    pub(crate) built: u64,
    pub(crate) lost: u64,
    pub(crate) duplicates: u64,
    pub(crate) order_errors: u64,
    pub(crate) content_errors: u64,
    /// What the source says it has sent.
    pub(crate) sent: Option<Volume>,
    pub(crate) closed: Option<CloseReason>,
}

impl Upstream {
    pub(crate) fn new(connection: ConnectionId, info: &ConnectionInfo) -> Self {
        Self {
            connection,
            address: info.peer.and_then(|peer| peer.socket_addr()),
            hello: None,
            answers: None,
            received: Volume::default(),
            held: 0,
            last_event: 0,
            built: 0,
            lost: 0,
            duplicates: 0,
            order_errors: 0,
            content_errors: 0,
            sent: None,
            closed: None,
        }
    }

    /// What was counted of it; the others are the whole builder's.
    pub(crate) fn summary(&self) -> Summary {
        Summary {
            received: self.received,
            built: self.built,
            lost: self.lost,
            duplicates: self.duplicates,
            order_errors: self.order_errors,
            content_errors: self.content_errors,
            timed: 0,
            timed_ns: 0,
            cpu_ns: 0,
            allocations: 0,
            latency: Latencies::default(),
        }
    }

    pub(crate) fn errors(&self) -> u64 {
        self.order_errors + self.content_errors + self.duplicates
    }

    pub(crate) fn name(&self) -> String {
        match self.address {
            Some(address) => format!("source {address}"),
            None => "a source".to_owned(),
        }
    }

    pub(crate) fn detectors(&self) -> u32 {
        self.hello.map_or(0, |hello| hello.detectors.into())
    }

    /// What was wrong with it, if anything was.
    pub(crate) fn complaint(&self) -> Option<String> {
        let name = self.name();
        let Some(sent) = self.sent else {
            let reason = self
                .closed
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default();
            return Some(format!("{name} was lost: {reason}"));
        };
        if sent != self.received {
            return Some(format!(
                "{name} sent {} fragments, {} bytes; {} fragments, {} bytes came",
                sent.fragments, sent.bytes, self.received.fragments, self.received.bytes
            ));
        }
        let errors = self.errors();
        (errors > 0)
            .then(|| format!("{name}: {errors} fragments were wrong, out of order or came twice"))
    }
}
