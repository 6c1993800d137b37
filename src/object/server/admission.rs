//! What is asked of a transfer before anything is taken for it. A token's words are a client's, and
//! are not trusted.

use std::time::Instant;

use crate::endpoint::PeerAddr;
use crate::fabric::check_peer;
use crate::object::RdmaToken;
use crate::object::server::core::ChannelCore;
use crate::object::server::error::TransferErrorKind;
use crate::object::server::transfer::TransferTarget;
use crate::object::server::{ClientNetworks, ServerParts};

/// A place in a client's window that may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Admitted {
    pub(super) peer: PeerAddr,
    addr: u64,
    rkey: u64,
}

impl Admitted {
    /// The same, without its client.
    pub(super) fn target(&self) -> TransferTarget {
        TransferTarget {
            peer: 0,
            addr: self.addr,
            rkey: self.rkey,
        }
    }
}

impl ServerParts {
    /// Whether a token may come from somebody at this address. What the token says besides is
    /// looked at when bytes are moved.
    pub(super) fn check_asker(
        &self,
        networks: &ClientNetworks,
        token: &RdmaToken,
        asker: Option<&PeerAddr>,
    ) -> Result<(), TransferErrorKind> {
        check_network(networks, &name_in(self, token)?, asker)
    }
}

impl ChannelCore {
    /// Whether `len` bytes at `at` of the token's window may be moved until then.
    pub(super) fn admit(
        &self,
        token: &RdmaToken,
        at: u64,
        len: u64,
        deadline: Instant,
    ) -> Result<Admitted, TransferErrorKind> {
        let owner = self.parts.domain.fabric().owner();
        owner.check().map_err(TransferErrorKind::Forked)?;
        let peer = name_in(&self.parts, token)?;
        let (addr, rkey) = place(&self.parts, token, at, len)?;
        let min = self.parts.config.min_budget;
        let left = deadline.saturating_duration_since(self.clock.now());
        if left < min || left.is_zero() {
            return Err(TransferErrorKind::Budget { left, min });
        }
        if self.engine.is_full() {
            let depth = self.parts.config.depth;
            return Err(TransferErrorKind::Full { depth });
        }
        if !self.peers.has_room(&peer) {
            let limit = self.parts.config.peers;
            return Err(TransferErrorKind::PeersInUse { limit });
        }
        // What may ask the system comes last, and once for each client that is here.
        if self.peers.find(&peer).is_none() {
            self.check_stranger(&peer)?;
        }
        Ok(Admitted { peer, addr, rkey })
    }

    /// Whether this server talks to whoever is there.
    fn check_stranger(&self, peer: &PeerAddr) -> Result<(), TransferErrorKind> {
        check_network(&self.parts.config.networks(), peer, None)?;
        let refused = |reason: String| TransferErrorKind::Peer {
            address: *peer,
            reason: reason.into(),
        };
        if self.parts.names.has(peer) {
            return Err(refused("it is this server".to_owned()));
        }
        check_peer(&self.engine.local(), peer).map_err(|error| refused(error.to_string()))
    }
}

/// Whether a client may be there.
fn check_network(
    networks: &ClientNetworks,
    client: &PeerAddr,
    asker: Option<&PeerAddr>,
) -> Result<(), TransferErrorKind> {
    match networks.has(client, asker) {
        true => Ok(()),
        false => Err(TransferErrorKind::Network {
            address: *client,
            networks: networks.to_string().into(),
        }),
    }
}

/// Who the token says that its client is.
fn name_in(parts: &ServerParts, token: &RdmaToken) -> Result<PeerAddr, TransferErrorKind> {
    let fabric = parts.domain.fabric();
    let server = fabric.provider().name;
    if token.provider() != server {
        return Err(TransferErrorKind::Provider {
            token: token.provider().into(),
            server,
        });
    }
    let format = fabric.info().addr_format();
    let peer = PeerAddr::from_provider_bytes(format, token.name());
    peer.ok_or_else(|| TransferErrorKind::Name {
        bytes: token.name().len(),
        provider: server,
    })
}

/// Where that is, and the key.
fn place(
    parts: &ServerParts,
    token: &RdmaToken,
    at: u64,
    len: u64,
) -> Result<(u64, u64), TransferErrorKind> {
    if len == 0 {
        return Err(TransferErrorKind::Empty);
    }
    let key_bytes = parts.rma.key_bytes;
    if key_bytes < size_of::<u64>() && token.key() >> (8 * key_bytes) != 0 {
        return Err(TransferErrorKind::Key { key_bytes });
    }
    let inside = at.checked_add(len).is_some_and(|end| end <= token.len());
    let addr = token.base().checked_add(at).filter(|_| inside);
    // The last byte has an address, too.
    let addr = addr.filter(|addr| addr.checked_add(len - 1).is_some());
    addr.map(|addr| (addr, token.key()))
        .ok_or(TransferErrorKind::OutOfRange {
            at,
            len,
            window_len: token.len(),
        })
}
