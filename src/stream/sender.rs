//! `StreamSender`: reads sources, and sends them to one peer or many.

mod attempts;
#[cfg(all(test, not(loom)))]
#[path = "sender/testing/by_hand.rs"]
mod by_hand;
mod config;
#[cfg(all(test, not(loom)))]
#[path = "sender/tests/impostor.rs"]
mod impostor_tests;
#[cfg(all(test, not(loom)))]
#[path = "sender/tests/orders.rs"]
mod orders_tests;
mod outgoing_transfer;
mod peer;
mod peer_blocks;
mod peer_clock;
mod peer_errors;
mod peer_rails;
mod peer_session;
mod peer_stage;
mod rail;
mod rail_growth;
mod reading;
mod side;
mod slot_writer;
mod transfer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use self::reading::{ReadJob, ReadersSettings};
use self::side::{NewTransfer, SenderSide};
use self::transfer::{OutcomeGuard, Shared};
use super::interface::Interface;
use super::network::{NetworkThread, ThreadHandle};
use super::wire::HEADER_LEN;
use super::workers::{Guarded, Workers};
use super::{BlockSource, StreamError};
use crate::buffer::{SharedBufferConfig, SharedBufferManager};
use crate::endpoint::duplex::DuplexConfig;
use crate::{Domain, Region};

#[cfg(all(test, not(loom)))]
pub(super) use by_hand::SenderByHand;
pub use config::{Deletion, Peer, SendOptions, SenderConfig, SlowPeer, Transport};
pub(super) use config::{setting, time};
pub use transfer::{PeerOutcome, PeerProgress, Transfer};

/// Control messages granted to each receiver at once.
const CONTROL_DEPTH: u32 = 16;

/// Control messages in flight on a connection, beside the blocks.
const CONTROL_SENDS: u32 = 8;

/// Reads sources block by block into registered buffers, and sends each block to every peer that is
/// to have it, from the one buffer that it is in.
///
/// It has one thread for its connections, or several over providers that copy
/// ([`StreamSettings::rail_threads`](super::StreamSettings::rail_threads)), and some that read. A
/// [`Transfer`] is begun with
/// [`send`](Self::send), and goes on by itself; several share the buffers. Peers are
/// [`StreamReceiver`](super::StreamReceiver)s.
///
/// ```no_run
/// use std::time::{Duration, Instant};
/// use fabricast::stream::{FileSource, SendOptions, SenderConfig, StreamSender};
///
/// let domain = fabricast::Fabric::builder().provider("tcp").open()?.open_domain()?;
/// let sender = StreamSender::open(&domain, SenderConfig::default())?;
/// let source = FileSource::file("run1.h5")?;
/// let to: fabricast::PeerAddr = "10.0.0.2:7471".parse()?;
/// let transfer = sender.send(source, [to], SendOptions::default())?;
/// let by = Instant::now() + Duration::from_secs(600);
/// for outcome in transfer.wait(by).ok_or("not done in time")? {
///     outcome.result?;
///     println!("{}", outcome.report);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct StreamSender {
    /// Each as often as it has threads.
    interfaces: Vec<Interface>,
    /// How many were given.
    domains: usize,
    pool: SharedBufferManager,
    thread: ThreadHandle<SenderSide>,
    next: AtomicU64,
}

impl StreamSender {
    /// A sender over one domain, of either kind of connections.
    ///
    /// # Errors
    /// [`StreamError::Setting`] for a setting out of its range, [`StreamError::Endpoint`] for what
    /// libfabric and the system answer.
    pub fn open(domain: &Arc<Domain>, config: SenderConfig) -> Result<Self, StreamError> {
        Self::over(std::slice::from_ref(domain), config)
    }

    /// A sender over several domains, one for each network interface: a peer's n-th address is
    /// reached by the n-th of them, unless [`Peer::by_domains`] says otherwise.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn over(domains: &[Arc<Domain>], config: SenderConfig) -> Result<Self, StreamError> {
        let interfaces: Vec<_> = domains.iter().map(Interface::from).collect();
        let (mut sender, thread) = Self::prepare(interfaces, config, reading::spawn)?;
        sender.thread.spawn(thread, "stream-send")?;
        Ok(sender)
    }

    /// All of it but its thread.
    fn prepare(
        interfaces: Vec<Interface>,
        config: SenderConfig,
        employ: impl FnOnce(ReadersSettings) -> Result<Workers<ReadJob>, crate::Error>,
    ) -> Result<(Self, NetworkThread<SenderSide>), StreamError> {
        config.check()?;
        if interfaces.is_empty() {
            let range = "at least 1";
            let name = "domains";
            return Err(StreamError::Setting {
                name,
                value: 0,
                range,
            });
        }
        let mut lanes = Vec::new();
        for interface in interfaces {
            let count = config.stream.lanes(interface.copies());
            lanes.push(interface.lanes(count, config.stream.rail_threads.is_none())?);
        }
        let (domains, interfaces) = (lanes.len(), lanes.concat());
        let pool = block_pool(&config, &interfaces)?;
        let side = SenderSide::new(config, lanes, pool.clone(), employ)?;
        let (handle, thread) = NetworkThread::new(side);
        let sender = Self {
            interfaces,
            domains,
            pool,
            thread: handle,
            next: AtomicU64::new(1),
        };
        Ok((sender, thread))
    }

    /// Registers a pool with every domain of this sender, so that a source may
    /// [lend](BlockSource::lend) buffers of it.
    ///
    /// # Errors
    /// What the registration answers.
    pub fn register(&self, pool: &SharedBufferManager) -> Result<(), StreamError> {
        for interface in &self.interfaces {
            interface.register(pool.region())?;
        }
        Ok(())
    }

    /// The buffers that blocks are read into.
    pub fn pool(&self) -> &SharedBufferManager {
        &self.pool
    }

    /// Begins to send a source to these peers. Returns at once.
    ///
    /// # Errors
    /// [`StreamError::Setting`] when there are no peers, more rails than a session may have, a
    /// domain that the sender does not have, or an option out of its range.
    pub fn send(
        &self,
        source: impl BlockSource,
        peers: impl IntoIterator<Item = impl Into<Peer>>,
        options: SendOptions,
    ) -> Result<Transfer, StreamError> {
        options.check()?;
        let peers: Vec<Peer> = peers.into_iter().map(Into::into).collect();
        setting("peers", peers.len() as u64, 1, 4096, "1 to 4096")?;
        for peer in &peers {
            let rails = peer.addrs.len() as u64 * u64::from(options.rails.unwrap_or(1));
            let most = u64::from(super::wire::RAILS_MAX);
            setting("rails", rails, 1, most, "1 to 64 connections for a peer")?;
            peer.check(self.domains)?;
        }
        options.check_source(source.left_out())?;
        let source: Guarded<dyn BlockSource> = Guarded::new(Arc::new(source));
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::new(Shared::new(&peers, source.manifest().bytes()));
        let begin = NewTransfer {
            id,
            source,
            peers,
            options,
            shared: OutcomeGuard(Arc::clone(&shared)),
        };
        let transfer = Transfer {
            id,
            shared,
            orders: Arc::clone(&self.thread.orders),
        };
        // The thread ends before this value only when its loop broke: then nobody takes the
        // promise, and the transfer is over at once.
        transfer.orders.give(move |side| side.begin(begin));
        Ok(transfer)
    }

    /// Ends it: transfers go on until the deadline, what is left then fails. Returns when its
    /// threads have ended, a little after the deadline at the latest.
    pub fn close(mut self, deadline: Instant) {
        self.thread.stop(deadline);
    }

    /// What each transfer is doing and waiting for, in words, for whoever looks for the reason why
    /// something does not go on. The words are not part of the interface. `None`: its thread did
    /// not answer within that time, or 16 earlier questions wait for it.
    pub fn describe(&self, timeout: Duration) -> Option<String> {
        self.thread.describe(timeout)
    }
}

impl Drop for StreamSender {
    /// The rude end: what is not over fails, soon, and nobody waits for that.
    fn drop(&mut self) {
        self.thread.cut();
    }
}

/// Buffers for blocks, in huge pages where there are some.
fn block_pool(
    config: &SenderConfig,
    interfaces: &[Interface],
) -> Result<SharedBufferManager, StreamError> {
    let layout = SharedBufferConfig {
        slots: Some(config.stream.buffers_of_sender(interfaces.len() as u32)),
        alignment: 4096,
        headroom: HEADER_LEN,
        ..SharedBufferConfig::new(config.stream.block_bytes as usize)
    };
    let populate = !interfaces.iter().all(Interface::copies);
    let pool = pool(layout, config.stream.pinned, populate)?;
    for interface in interfaces {
        interface.register(pool.region())?;
    }
    Ok(pool)
}

/// A pool of just as many slots as it says, in memory of its own, pinned where that is asked for.
/// `populate`: it is there at once.
pub(super) fn pool(
    layout: SharedBufferConfig,
    pinned: bool,
    populate: bool,
) -> Result<SharedBufferManager, crate::Error> {
    let bytes = layout.region_bytes(layout.slots.unwrap_or(1))?;
    let region = Region::host(bytes)
        .pinned(pinned)
        .populate(populate)
        .build()?;
    Ok(SharedBufferManager::new(region, layout)?)
}

pub(super) fn duplex(
    interface: &Interface,
    config: &SenderConfig,
    connections: u32,
) -> Result<DuplexConfig, StreamError> {
    let kind = interface.kind();
    // It exposes none, and says that it knows what they are.
    let windows = 1;
    let receives = DuplexConfig::receives(kind, CONTROL_DEPTH, windows);
    let slots = receives * connections.min(64) + 16;
    let slot = HEADER_LEN + super::wire::CONTROL_PAYLOAD_MAX;
    let pool = SharedBufferManager::allocate(slots, slot).map_err(crate::Error::from)?;
    Ok(DuplexConfig {
        header_len: HEADER_LEN as u16,
        pool,
        credits: CONTROL_DEPTH,
        depth: config.depth + CONTROL_SENDS,
        max_of_host: None,
        max_connections: connections,
        connect_timeout: config.stream.connect_timeout,
        close_timeout: Duration::from_secs(2),
        // A receiver that is busy grants nothing, and sends wait unposted: what is posted moves.
        send_deadline: config.stream.lost_after.max(Duration::from_secs(10)),
        lost_after: config.stream.lost_after,
        fence_timeout: config.stream.fence_timeout,
        windows,
        writes: config.depth * connections,
        fill_long_ways: true,
        // A stream's messages fit the buffers of both sides.
        long: None,
        clock: config.clock.clone(),
        #[cfg(test)]
        faults: config.faults.clone(),
    })
}
