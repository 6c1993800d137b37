//! What one side says of itself when a connection begins, and what it asks of the peer.

use std::time::Duration;

use super::fences::FenceLimits;
use crate::protocol::liveness::LivenessTimeouts;
use crate::protocol::wire::{self, HeaderMode, Hello, HelloKind, Refusal, RefusalCode};

/// How long what hangs on others of the domain may take, where nothing is said of how long a peer
/// may be silent.
pub(super) const BUSY_LIMIT: Duration = Duration::from_secs(60);

/// What this side says of itself, and how long it waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalParams {
    /// How this side frames the messages that it sends.
    pub(crate) header_mode: HeaderMode,
    /// The framing that the peer must use; `None` takes any.
    pub(crate) require_header_mode: Option<HeaderMode>,
    /// Feature bits of this side.
    pub(crate) features: u32,
    /// Those that the peer must have, too.
    pub(crate) require_features: u32,
    /// Largest whole message that this side takes, in bytes; 0 when it takes none.
    pub(crate) receive_size: u64,
    /// Data messages that this side has receive buffers for.
    pub(crate) receive_depth: u32,
    /// First grant, and window from then on; at most `receive_depth`, 0 when `receive_size` is 0.
    pub(crate) credits: u32,
    /// Which life of the endpoint this is.
    pub(crate) incarnation: u64,
    /// This side's number for the connection.
    pub(crate) connection: u64,
    /// For the whole handshake, on either side.
    pub(crate) connect_timeout: Duration,
    /// For the goodbye when the peer began it and the application has set no deadline.
    pub(crate) close_timeout: Duration,
    /// Largest receive depth of a peer that this side believes.
    pub(crate) max_credit_window: u32,
    /// How long the peer may say nothing.
    pub(crate) liveness: LivenessTimeouts,
    /// How long it may take to answer a fence.
    pub(crate) fence_timeout: Duration,
}

impl LocalParams {
    pub(super) fn hello(&self, kind: HelloKind) -> Hello {
        debug_assert!(
            self.credits <= self.receive_depth,
            "more credits than buffers"
        );
        debug_assert!(
            self.receive_size > 0 || self.credits == 0,
            "credits for messages of no size"
        );
        Hello {
            kind,
            header_mode: self.header_mode,
            version: wire::VERSION,
            oldest: wire::OLDEST,
            features: self.features,
            receive_size: self.receive_size,
            receive_depth: self.receive_depth,
            credits: self.credits,
            incarnation: self.incarnation,
            connection: self.connection,
        }
    }

    fn fence_limits(&self) -> FenceLimits {
        let busy = self.liveness.lost.unwrap_or(BUSY_LIMIT);
        FenceLimits::new(self.fence_timeout.min(busy), busy)
    }

    pub(super) fn terms(&self) -> Terms {
        Terms {
            require_header_mode: self.require_header_mode,
            max_credit_window: self.max_credit_window,
            features: self.features,
            require_features: self.require_features,
            receive_size: self.receive_size,
            connection: self.connection,
            close_timeout: self.close_timeout,
            fences: self.fence_limits(),
        }
    }
}

/// What of the [`LocalParams`] means something once the hello is made. A listener has thousands of
/// these.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    pub(super) require_header_mode: Option<HeaderMode>,
    pub(super) max_credit_window: u32,
    pub(super) features: u32,
    pub(super) require_features: u32,
    pub(super) receive_size: u64,
    pub(super) connection: u64,
    pub(super) close_timeout: Duration,
    pub(super) fences: FenceLimits,
}

impl Terms {
    /// Whether this side wants a peer with such a hello.
    pub(super) fn judge(&self, peer: &Hello) -> Result<(), Refusal> {
        let mut deepest = self.max_credit_window;
        if (self.features | peer.features) & wire::FEATURE_SHORT_MARKS != 0 {
            deepest = deepest.min(wire::SHORT_DEPTH_MAX);
        }
        if peer.receive_depth > deepest {
            let details = [peer.receive_depth.into(), deepest.into()];
            return Err(Refusal::new(RefusalCode::RECEIVE_DEPTH, details));
        }
        if peer.features & self.require_features != self.require_features {
            let details = [peer.features.into(), self.require_features.into()];
            return Err(Refusal::new(RefusalCode::FEATURES, details));
        }
        match self.require_header_mode {
            Some(asked) if asked != peer.header_mode => {
                let details = [peer.header_mode.to_detail(), asked.to_detail()];
                Err(Refusal::new(RefusalCode::HEADER_MODE, details))
            }
            _ => Ok(()),
        }
    }
}
