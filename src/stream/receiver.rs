//! `StreamReceiver`: takes streams, and gives them to sinks.

#[cfg(all(test, not(loom)))]
#[path = "receiver/testing/by_hand.rs"]
mod by_hand;
mod config;
mod events;
mod rail;
mod receive_slots;
mod session;
mod session_clock;
mod session_rails;
mod session_report;
mod session_sink;
mod session_stage;
mod side;
mod writing;

use std::sync::Arc;
use std::time::{Duration, Instant};

use self::config::{RECEIVES_BESIDE, RECEIVES_OF_WINDOWS};
use self::events::EventQueue;
use self::side::{ListeningPlace, ReceiverSide};
use self::writing::{Writers, WritersSettings};
use super::StreamError;
use super::interface::Interface;
use super::network::{NetworkThread, ThreadHandle};
use super::sender::pool;
use super::wire::HEADER_LEN;
use crate::buffer::{SharedBufferConfig, SharedBufferManager};
use crate::endpoint::duplex::DuplexConfig;
use crate::{Domain, PeerAddr, Region};

#[cfg(all(test, not(loom)))]
pub(super) use by_hand::ReceiverByHand;
pub use config::ReceiverConfig;
pub use events::{Arrival, StreamEvent};

/// Control messages in flight on a connection.
const CONTROL_SENDS: u32 = 16;

/// Receives beyond the window, for what senders say beside blocks.
const CONTROL_DEPTH: u32 = 4;

/// Takes streams from [`StreamSender`](super::StreamSender)s, checks each block, and gives it to a
/// sink.
///
/// It has one thread for its connections, or several over providers that copy
/// ([`StreamSettings::rail_threads`](super::StreamSettings::rail_threads)), and some that write. A
/// stream's sender is told that it is complete when the sink has all of it.
///
/// ```no_run
/// use std::time::Duration;
/// use fabricast::stream::{DirectorySink, ReceiverConfig, StreamEvent, StreamReceiver};
///
/// let fabric = fabricast::Fabric::builder().provider("tcp").node("10.0.0.2");
/// let domain = fabric.open()?.open_domain()?;
/// let config = ReceiverConfig::new(DirectorySink::new("/data")?);
/// let receiver = StreamReceiver::listen(&domain, "10.0.0.2:7471".parse()?, config)?;
/// while let Some(event) = receiver.next(Duration::from_secs(3600)) {
///     if let StreamEvent::Complete(stream, report) = event {
///         println!("{} files: {report}", stream.entries);
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct StreamReceiver {
    addrs: Vec<PeerAddr>,
    events: Arc<EventQueue>,
    thread: ThreadHandle<ReceiverSide>,
    /// Where blocks arrive.
    #[cfg(test)]
    pools: Vec<SharedBufferManager>,
}

impl StreamReceiver {
    /// Listens at an address of this machine, for connections of the domain's kind. Port 0 lets the
    /// system choose.
    ///
    /// # Errors
    /// [`StreamError::Setting`] for a setting out of its range, [`StreamError::Endpoint`] for what
    /// libfabric and the system answer.
    pub fn listen(
        domain: &Arc<Domain>,
        addr: PeerAddr,
        config: ReceiverConfig,
    ) -> Result<Self, StreamError> {
        Self::listen_at(&[(Arc::clone(domain), addr)], config)
    }

    /// Listens at several addresses, each of a domain of its own: one for each network interface.
    ///
    /// # Errors
    /// As [`listen`](Self::listen).
    pub fn listen_at(
        places: &[(Arc<Domain>, PeerAddr)],
        config: ReceiverConfig,
    ) -> Result<Self, StreamError> {
        let places: Vec<_> = places
            .iter()
            .map(|(domain, addr)| (Interface::from(domain), *addr))
            .collect();
        let (mut receiver, thread) = Self::prepare(&places, config, Writers::spawn)?;
        receiver.thread.spawn(thread, "stream-recv")?;
        Ok(receiver)
    }

    /// All of it but its thread.
    fn prepare(
        places: &[(Interface, PeerAddr)],
        mut config: ReceiverConfig,
        employ: impl FnOnce(WritersSettings) -> Result<Writers, crate::Error>,
    ) -> Result<(Self, NetworkThread<ReceiverSide>), StreamError> {
        config.check()?;
        let mut listening = Vec::new();
        let mut interfaces = Vec::new();
        let mut addrs = Vec::new();
        let mut slots = 0;
        let windows = windows(places, &config);
        let lanes_of = |(interface, addr): &(Interface, PeerAddr)| match addr.socket_addr() {
            Some(_) => config.stream.lanes(interface.copies()),
            None => 1,
        };
        let counts: Vec<u32> = places.iter().map(lanes_of).collect();
        config.lanes = counts.iter().sum();
        #[cfg(test)]
        let mut pools = Vec::new();
        for ((interface, addr), count) in places.iter().zip(counts) {
            let may_be_fewer = config.stream.rail_threads.is_none();
            let lanes = interface.clone().lanes(count, may_be_fewer)?;
            let mut endpoints = Vec::new();
            for (number, lane) in lanes.iter().enumerate() {
                // Huge pages may take longer than a short stream (0.3 s for 128 MiB where memory is
                // fragmented), so where the kernel copies, each comes when it is used first.
                let populate = number == 0 && !interface.copies();
                let duplex = duplex(&config, windows, populate)?;
                slots += duplex.pool.slots();
                #[cfg(test)]
                pools.push(duplex.pool.clone());
                let at = if number == 0 { *addr } else { any_port(*addr) };
                endpoints.push(lane.listen(at, &duplex)?);
            }
            interfaces.extend(lanes);
            let beside = endpoints.split_off(1);
            let first = endpoints.remove(0);
            addrs.extend(first.local_addr());
            listening.push(ListeningPlace { first, beside });
        }
        let can_write = listening.iter().all(|place| place.first.can_write(1));
        let slot_memory = match windows {
            0 => None,
            _ if !can_write => None,
            _ => {
                slots += windows as usize;
                Some(slot_pool(windows, config.stream.block_bytes)?)
            }
        };
        let events = Arc::new(EventQueue::default());
        #[cfg(test)]
        pools.extend(slot_memory.clone());
        let (memory, told) = ((slot_memory, slots), Arc::clone(&events));
        let side = ReceiverSide::new(config, &interfaces, listening, memory, told, employ)?;
        let (handle, thread) = NetworkThread::new(side);
        let receiver = Self {
            addrs,
            events,
            thread: handle,
            #[cfg(test)]
            pools,
        };
        Ok((receiver, thread))
    }

    /// Where it listens, with the real ports.
    pub fn local_addrs(&self) -> &[PeerAddr] {
        &self.addrs
    }

    /// Where it listens first, with the real port.
    ///
    /// # Panics
    /// Never: there is one at least.
    pub fn local_addr(&self) -> PeerAddr {
        self.addrs[0]
    }

    #[cfg(test)]
    pub(super) fn pools(&self) -> &[SharedBufferManager] {
        &self.pools
    }

    /// What happened next; `None`: nothing within that time, or the receiver has ended.
    pub fn next(&self, timeout: Duration) -> Option<StreamEvent> {
        self.events.next(timeout)
    }

    /// Takes no new streams, waits for those that are under way until the deadline, and cuts what
    /// is left then. Returns when its threads have ended, with the events that nobody fetched.
    pub fn close(mut self, deadline: Instant) -> Vec<StreamEvent> {
        self.thread.stop(deadline);
        self.events.take_all()
    }

    /// What each stream is doing and waiting for, in words, for whoever looks for the reason why
    /// something does not go on. The words are not part of the interface. `None`: its thread did
    /// not answer within that time, or 16 earlier questions wait for it.
    pub fn describe(&self, timeout: Duration) -> Option<String> {
        self.thread.describe(timeout)
    }
}

impl Drop for StreamReceiver {
    /// The rude end: what is not over is cut, soon, and nobody waits for that.
    fn drop(&mut self) {
        self.thread.cut();
    }
}

/// Slots that senders may write into: as the setting says, or, where it says nothing, none unless
/// the provider is better at that.
fn windows(places: &[(Interface, PeerAddr)], config: &ReceiverConfig) -> u32 {
    let mut interfaces = places.iter().map(|(interface, _)| interface);
    let favoured = interfaces.all(Interface::favours_writes);
    config.rma_slots.unwrap_or_else(|| match favoured {
        true => config.stream.buffers_of_receiver(),
        false => 0,
    })
}

/// Memory that senders write into; it takes some when a stream first uses it.
fn slot_pool(slots: u32, block_bytes: u32) -> Result<SharedBufferManager, StreamError> {
    let config = SharedBufferConfig {
        slots: Some(slots),
        alignment: 4096,
        ..SharedBufferConfig::new(block_bytes as usize)
    };
    let bytes = config.region_bytes(slots).map_err(crate::Error::from)?;
    let region = Region::host(bytes).populate(false).build();
    let region = region.map_err(crate::Error::from)?;
    Ok(SharedBufferManager::new(region, config).map_err(crate::Error::from)?)
}

/// Blocks from so many bytes on lie at multiples of 4,096 bytes, so that direct I/O writes them
/// without a copy. It costs a sixteenth of their memory at most.
const ALIGNED_FROM: u32 = 64 * 1024;

/// The same address with a port that the system chooses.
fn any_port(addr: PeerAddr) -> PeerAddr {
    let at = addr.socket_addr().map(|mut at| {
        at.set_port(0);
        at.into()
    });
    at.unwrap_or(addr)
}

/// `populate`: its memory is there at once, and not when it is used first.
fn duplex(
    config: &ReceiverConfig,
    windows: u32,
    populate: bool,
) -> Result<DuplexConfig, StreamError> {
    let beside = match windows {
        0 => RECEIVES_BESIDE,
        _ => RECEIVES_BESIDE + RECEIVES_OF_WINDOWS,
    };
    let slots = config.stream.buffers_of_receiver() + beside * config.stream.connections;
    let slot = config.stream.block_bytes as usize + HEADER_LEN;
    let mut layout = SharedBufferConfig {
        slots: Some(slots),
        ..SharedBufferConfig::new(slot)
    };
    if config.stream.block_bytes >= ALIGNED_FROM {
        (layout.front, layout.alignment) = (HEADER_LEN, 4096);
    }
    let pool = pool(layout, config.stream.pinned, populate)?;
    Ok(DuplexConfig {
        header_len: HEADER_LEN as u16,
        pool,
        credits: config.window() + CONTROL_DEPTH,
        depth: CONTROL_SENDS,
        max_of_host: None,
        max_connections: config.stream.connections,
        connect_timeout: config.stream.connect_timeout,
        close_timeout: Duration::from_secs(2),
        send_deadline: config.stream.lost_after.max(Duration::from_secs(10)),
        lost_after: config.stream.lost_after,
        fence_timeout: config.stream.fence_timeout,
        windows,
        writes: 0,
        fill_long_ways: false,
        // A stream's messages fit the buffers of both sides.
        long: None,
        clock: config.clock.clone(),
        #[cfg(test)]
        faults: None,
    })
}

#[cfg(all(test, not(loom)))]
mod tests;
