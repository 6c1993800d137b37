//! One payload to several subscribers: through `PublishEndpoint`, and through a bare loop that
//! posts it once for each connection. The client publishes; the server has all subscribers, each
//! with a queue of its own, and polls them in turn.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fabricast::buffer::{HeaderSlotConfig, Payload, SharedBufferManager};
use fabricast::endpoint::{
    HeaderMode, PublishConfig, PublishEndpoint, PublishEvent, SlowPolicy, SubscribeConfig,
    SubscribeEndpoint, SubscribeEvent,
};
use fabricast::{ConnectionEvent, Domain, PeerAddr};

use crate::bare;
use crate::case::{Arrived, Case, HEADER, Header, Pacer, Sent};
use crate::clock::{Deadline, Sampler};
use crate::error::{Failure, fail};
use crate::ours;

/// What everybody subscribes to.
const TAG: u64 = 1;
/// Bytes of a publication in front of its header: length, tag and number.
const FRONT: usize = 18;

/// Publications that are not over at once: many more than frames in flight, where they are packed.
fn publications(case: &Case) -> usize {
    match case.pack {
        0 => case.depth,
        _ => 1024,
    }
}
const CONNECT: Duration = Duration::from_secs(10);

/// Counts what arrives at all subscribers; a mark counts when the last of them has it.
pub(crate) struct Sum {
    sampler: Sampler,
    subscribers: usize,
    marks: usize,
}

impl Sum {
    pub(crate) fn new(case: &Case) -> Self {
        Self {
            sampler: Sampler::new(case.limit()),
            subscribers: case.subscribers.into(),
            marks: 0,
        }
    }

    #[inline]
    pub(crate) fn on_message(&mut self, header: Header) {
        if header.is_mark() {
            self.marks += 1;
            if !self.marks.is_multiple_of(self.subscribers) {
                return;
            }
        }
        self.sampler.on_message(header);
    }

    #[inline]
    pub(crate) fn on_poll(&mut self, found: usize) -> Result<(), Failure> {
        self.sampler.on_poll(found)
    }

    #[inline]
    pub(crate) fn done(&self) -> bool {
        self.sampler.done()
    }

    pub(crate) fn arrived(&self) -> Result<Arrived, Failure> {
        self.sampler.arrived()
    }
}

// ---- subscribers --------------------------------------------------------------------------------

/// All subscribers of the server.
pub(crate) struct Subscribers {
    endpoints: Vec<SubscribeEndpoint>,
}

impl Subscribers {
    pub(crate) fn connect(case: &Case, to: SocketAddr) -> Result<Self, Failure> {
        let domain = ours::open(case)?;
        let config = SubscribeConfig::default()
            .incoming(|incoming| match case.pack {
                0 => incoming
                    .max_message((FRONT + HEADER + case.size).next_multiple_of(64))
                    .credits(case.window() as u32)
                    .slots((case.receive_depth() + 32) as u32),
                _ => incoming
                    .max_message(ours::FRAME)
                    .credits(ours::FRAMES)
                    .slots(ours::FRAMES + 2 + 16),
            })
            .connection(|c| c.max_connections(1));
        let mut endpoints = Vec::new();
        for _ in 0..case.subscribers {
            let mut endpoint = SubscribeEndpoint::open(&domain, config.clone())?;
            let publisher = endpoint.connect(to.into())?;
            endpoint
                .subscribe(publisher, TAG)
                .map_err(|error| Failure::new(error.to_string()))?;
            endpoints.push(endpoint);
        }
        Ok(Self { endpoints })
    }

    /// Receives and drops until everybody has the end mark.
    pub(crate) fn receive(&mut self, case: &Case) -> Result<Arrived, Failure> {
        let mut sum = Sum::new(case);
        let mut events = Vec::with_capacity(64);
        while !sum.done() {
            let mut found = 0;
            for endpoint in &mut self.endpoints {
                found += endpoint.poll(&mut events)?;
                for event in events.drain(..) {
                    match event {
                        SubscribeEvent::Publication { message, .. } => {
                            sum.on_message(Header::from_slice(message.header())?);
                        }
                        SubscribeEvent::Connection(_, ConnectionEvent::Disconnected(reason)) => {
                            return fail(reason.to_string());
                        }
                        _ => {}
                    }
                }
            }
            sum.on_poll(found)?;
        }
        sum.arrived()
    }
}

// ---- the publisher ------------------------------------------------------------------------------

/// The client's publisher, which the subscribers connect to.
pub(crate) struct Publisher {
    domain: Arc<Domain>,
    endpoint: PublishEndpoint,
    events: Vec<PublishEvent>,
    payloads: VecDeque<Payload>,
    pub(crate) addr: SocketAddr,
}

impl Publisher {
    pub(crate) fn listen(case: &Case) -> Result<Self, Failure> {
        let domain = ours::open(case)?;
        let depth = case.depth as u32;
        let all = publications(case) as u32;
        let config = PublishConfig::default()
            .publications(all)
            // Everybody gets everything, as from the bare loop.
            .slow(SlowPolicy::Disconnect {
                queue: all,
                after: case.limit(),
            })
            .outgoing(|out| {
                out.depth(depth)
                    .packing(ours::packing(case))
                    .gather(case.gather)
                    .header_mode(HeaderMode::Fixed(HEADER as u16))
                    .headers(HeaderSlotConfig {
                        slots: all,
                        slot_size: 64,
                    })
            })
            .connection(|c| c.max_connections(case.subscribers.into()));
        let addr: PeerAddr = SocketAddr::new(case.node.parse()?, 0).into();
        let endpoint = PublishEndpoint::listen(&domain, addr, config)?;
        let addr = endpoint.local_addr().socket_addr();
        Ok(Self {
            domain,
            endpoint,
            events: Vec::with_capacity(64),
            payloads: VecDeque::new(),
            addr: addr.ok_or_else(|| Failure::of("the publisher has no IP address"))?,
        })
    }

    fn poll(&mut self) -> Result<usize, Failure> {
        let found = self.endpoint.poll(&mut self.events)?;
        for event in self.events.drain(..) {
            match event {
                PublishEvent::Published {
                    payload, outcomes, ..
                } => {
                    if !outcomes.all_sent() {
                        return fail(format!("not everybody got a publication: {outcomes:?}"));
                    }
                    self.payloads.push_back(payload);
                }
                PublishEvent::Connection(_, ConnectionEvent::Disconnected(reason)) => {
                    return fail(reason.to_string());
                }
                _ => {}
            }
        }
        Ok(found)
    }

    /// Publishes; false when the endpoint takes nothing now.
    #[inline]
    fn publish(&mut self, header: Header) -> Result<bool, Failure> {
        let Some(payload) = self.payloads.pop_front() else {
            return Ok(false);
        };
        match self.endpoint.publish(TAG, payload, &header.to_bytes(), 0) {
            Ok(_) => Ok(true),
            Err(refused) if refused.is_would_block() => {
                self.payloads.push_front(refused.given);
                Ok(false)
            }
            Err(refused) => fail(refused.to_string()),
        }
    }

    /// Publishes with `depth` publications not over for the time of the case.
    pub(crate) fn run<T>(
        mut self,
        case: &Case,
        arrived: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<(Sent, T), Failure> {
        let pool = SharedBufferManager::allocate(publications(case) as u32, case.size)?;
        pool.region().register(&self.domain)?;
        let taken = std::iter::from_fn(|| pool.try_acquire());
        self.payloads = taken
            .map(|buffer| buffer.freeze(case.size).into())
            .collect();
        let deadline = Deadline::after(CONNECT);
        while self.endpoint.subscribers(TAG) < case.subscribers.into() {
            self.poll()?;
            deadline.check("the subscribers")?;
            std::thread::yield_now();
        }
        let mut pacer = Pacer::new(case);
        loop {
            while !self.payloads.is_empty() {
                let Some(header) = pacer.next() else { break };
                if !self.publish(header)? {
                    break;
                }
                pacer.sent();
            }
            let found = self.poll()?;
            pacer.on_poll(found)?;
            if pacer.is_over() && self.payloads.len() == publications(case) {
                return Ok((pacer.finish(), arrived()?));
            }
        }
    }
}

// ---- bare ---------------------------------------------------------------------------------------

/// Listeners, one for each subscriber, whose addresses are separated by commas.
pub(crate) struct BareSubscribers(Vec<bare::Server>);

impl BareSubscribers {
    pub(crate) fn listen(case: &Case) -> Result<Self, Failure> {
        let servers: Result<_, _> = (0..case.subscribers)
            .map(|_| bare::Server::listen(case))
            .collect();
        Ok(Self(servers?))
    }

    pub(crate) fn addrs(&self) -> String {
        let addrs: Vec<_> = self
            .0
            .iter()
            .map(|server| server.addr.to_string())
            .collect();
        addrs.join(",")
    }

    pub(crate) fn receive(self, case: &Case) -> Result<Arrived, Failure> {
        bare::receive_all(&self.0, case, Sum::new(case))
    }
}
