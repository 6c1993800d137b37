//! The operations through `fabricast`, as an application would write them: endpoints polled by
//! hand, default settings but for the depth and the header mode.

pub(crate) mod object;
pub(crate) mod object_request;
pub(crate) mod rma;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fabricast::buffer::{HeaderSlotConfig, Payload, SharedBufferManager};
use fabricast::endpoint::{HeaderMode, Packing, ReceiveConfig, SendConfig};
use fabricast::fabric::{EndpointKind, FabricBuilder, PeerAddr, WaitObject};
use fabricast::{
    ConnectionEvent, Domain, Fabric, ReceiveEndpoint, ReceiveEvent, SendEndpointZeroCopy, SendEvent,
};

use crate::case::{Arrived, Case, HEADER, Header, Operation, Pacer, Sent, Wait};
use crate::clock::{Deadline, Sampler};
use crate::error::{Failure, fail};

/// Receive buffers beyond those that are posted, at most: messages that were polled and not dropped
/// yet. Of long messages fewer, so that both loops receive into about as much memory: they may be
/// as fast as it fits a cache.
const HELD: usize = 32;
const HELD_BYTES: usize = 2 << 20;
/// Receives for frames, and their size: as many as may be in flight.
pub(crate) const FRAME: usize = 32 << 10;
pub(crate) const FRAMES: u32 = 64;
/// Payloads of a sender that packs: many more than frames in flight.
const PACKED: usize = 4096;
/// How long a connection may take to be made.
pub const CONNECT: Duration = Duration::from_secs(10);

pub(crate) fn builder(case: &Case) -> FabricBuilder {
    let builder = Fabric::builder()
        .provider(&case.provider)
        .endpoint_kind(match case.operation {
            operation if operation == Operation::Rdm || operation.is_object() => EndpointKind::Rdm,
            _ => EndpointKind::Msg,
        })
        .wait_object(match case.wait {
            Wait::None => WaitObject::None,
            Wait::Fd => WaitObject::Fd,
        });
    match case.local_node() {
        Some(node) => builder.node(node),
        None => builder,
    }
}

pub(crate) fn open(case: &Case) -> Result<Arc<Domain>, Failure> {
    Ok(builder(case).open()?.open_domain()?)
}

/// Whether this library has the provider of a case.
pub fn has_provider(case: &Case) -> bool {
    builder(case).open().is_ok()
}

/// What a sender packs.
pub(crate) fn packing(case: &Case) -> Packing {
    match case.pack {
        0 => Packing::Off,
        bytes => Packing::UpTo(bytes),
    }
}

/// How a receiver receives.
#[derive(Debug)]
pub struct Incoming {
    /// Bytes of the longest message.
    pub max_message: usize,
    /// Messages that the sender may have in flight.
    pub credits: u32,
    /// Receive buffers.
    pub slots: u32,
}

impl Incoming {
    /// As both loops receive.
    pub fn of(case: &Case) -> Self {
        let held = (HELD_BYTES / case.size).clamp(2, HELD);
        match case.pack {
            0 => Self {
                max_message: (HEADER + case.size).next_multiple_of(64),
                credits: case.window() as u32,
                slots: (case.receive_depth() + held) as u32,
            },
            // Receives for whole frames.
            _ => Self {
                max_message: FRAME,
                credits: FRAMES,
                slots: FRAMES + 2 + 16,
            },
        }
    }
}

/// Payloads of a sender, which take turns.
pub fn payloads(case: &Case) -> usize {
    match case.pack {
        0 => case.depth,
        _ => PACKED,
    }
}

fn listen(domain: &Arc<Domain>, case: &Case) -> Result<ReceiveEndpoint, Failure> {
    let with = Incoming::of(case);
    let config = ReceiveConfig::default()
        .incoming(|incoming| {
            incoming
                .max_message(with.max_message)
                .credits(with.credits)
                .slots(with.slots)
        })
        .connection(|c| c.max_connections(1));
    Ok(ReceiveEndpoint::listen(domain, local_addr(case)?, config)?)
}

/// Where this end listens: at its address, whose port the system chooses, or by a name of the
/// provider's.
pub(crate) fn local_addr(case: &Case) -> Result<PeerAddr, Failure> {
    Ok(match case.local_node() {
        Some(node) => SocketAddr::new(node.parse()?, 0).into(),
        None => "any".parse()?,
    })
}

/// That this end has the GPU of a case.
pub(crate) fn check_gpu(case: &Case) -> Result<(), Failure> {
    match case.gpu {
        None => Ok(()),
        Some(ordinal) => match fabricast::cuda::Device::new(ordinal) {
            Ok(_) => Ok(()),
            Err(why) => fail(format!("GPU {ordinal}: {why}")),
        },
    }
}

/// A send endpoint with its payloads, which take turns.
struct Sender {
    endpoint: SendEndpointZeroCopy,
    payloads: VecDeque<Payload>,
    all: usize,
    /// Half of them.
    low: usize,
    events: Vec<SendEvent>,
}

impl Sender {
    fn connect(domain: &Arc<Domain>, case: &Case, to: PeerAddr) -> Result<Self, Failure> {
        let pool = SharedBufferManager::allocate(payloads(case) as u32, case.size)?;
        pool.region().register(domain)?;
        let payloads: VecDeque<_> = std::iter::from_fn(|| pool.try_acquire())
            .map(|buffer| buffer.freeze(case.size).into())
            .collect();
        let config = SendConfig::default().outgoing(|out| {
            out.depth(case.depth as u32)
                .packing(packing(case))
                .gather(case.gather)
                .header_mode(HeaderMode::Fixed(HEADER as u16))
                .headers(HeaderSlotConfig {
                    slots: case.depth as u32,
                    slot_size: 64,
                })
        });
        Ok(Self {
            endpoint: SendEndpointZeroCopy::connect(domain, to, config)?,
            low: payloads.len() / 2,
            all: payloads.len(),
            payloads,
            events: Vec::with_capacity(64),
        })
    }

    /// Sends a message; false when the endpoint takes none now.
    #[inline]
    fn post(&mut self, header: Header) -> Result<bool, Failure> {
        let Some(payload) = self.payloads.pop_front() else {
            return Ok(false);
        };
        match self.endpoint.send_data(payload, &header.to_bytes(), 0) {
            Ok(()) => Ok(true),
            Err(refused) if refused.is_would_block() => {
                self.payloads.push_front(refused.given);
                Ok(false)
            }
            Err(refused) => fail(refused.to_string()),
        }
    }

    /// In a ping-pong: takes what completed when half of the payloads are out, so that most round
    /// trips poll one endpoint only.
    #[inline]
    fn poll_if_low(&mut self) -> Result<(), Failure> {
        if self.payloads.len() <= self.low {
            self.poll()?;
        }
        Ok(())
    }

    /// Takes what completed; how many events.
    #[inline]
    fn poll(&mut self) -> Result<usize, Failure> {
        let found = self.endpoint.poll(&mut self.events)?;
        for event in self.events.drain(..) {
            match event {
                SendEvent::Completed { payload, .. } => self.payloads.push_back(payload),
                SendEvent::Failed { error, .. } => return fail(error.to_string()),
                SendEvent::Connection(ConnectionEvent::Disconnected(reason)) => {
                    return fail(reason.to_string());
                }
                _ => {}
            }
        }
        Ok(found)
    }
}

/// What a message handler says to the poll loop.
struct Receiver {
    endpoint: ReceiveEndpoint,
    events: Vec<ReceiveEvent>,
}

impl Receiver {
    fn new(endpoint: ReceiveEndpoint) -> Self {
        Self {
            endpoint,
            events: Vec::with_capacity(64),
        }
    }

    /// Hands each message's header to `each` and drops the message; how many events.
    #[inline]
    fn poll(
        &mut self,
        mut each: impl FnMut(Header) -> Result<(), Failure>,
    ) -> Result<usize, Failure> {
        let found = self.endpoint.poll(&mut self.events)?;
        for event in self.events.drain(..) {
            match event {
                ReceiveEvent::Message(message) => each(Header::from_slice(message.header())?)?,
                ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(reason)) => {
                    return fail(reason.to_string());
                }
                _ => {}
            }
        }
        Ok(found)
    }

    /// The same without an event for each message.
    #[inline]
    fn receive(&mut self, mut each: impl FnMut(Header)) -> Result<usize, Failure> {
        let mut found = 0;
        for message in self.endpoint.receive(&mut self.events)? {
            each(Header::from_slice(message.header())?);
            found += 1;
        }
        for event in self.events.drain(..) {
            if let ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(reason)) = event {
                return fail(reason.to_string());
            }
            found += 1;
        }
        Ok(found)
    }
}

/// A listener with its address.
pub(crate) struct Server {
    domain: Arc<Domain>,
    receiver: Receiver,
    pub(crate) addr: PeerAddr,
}

impl Server {
    pub(crate) fn listen(case: &Case) -> Result<Self, Failure> {
        let domain = open(case)?;
        let endpoint = listen(&domain, case)?;
        let addr = endpoint.local_addr();
        Ok(Self {
            domain,
            receiver: Receiver::new(endpoint),
            addr,
        })
    }

    /// Receives and drops until the end mark.
    pub(crate) fn receive(&mut self, case: &Case) -> Result<Arrived, Failure> {
        let mut sampler = Sampler::new(case.limit());
        while !sampler.done() {
            let found = self.receiver.receive(|header| sampler.on_message(header))?;
            sampler.on_poll(found)?;
        }
        sampler.arrived()
    }

    /// Sends each message back until the end mark.
    pub(crate) fn echo(mut self, case: &Case, to: SocketAddr) -> Result<Arrived, Failure> {
        let mut sender = Sender::connect(&self.domain, case, to.into())?;
        let mut sampler = Sampler::new(case.limit());
        // The client may be ready first: what it sends meanwhile is not lost.
        for header in connect_both(&mut sender, &mut self.receiver)? {
            sampler.on_message(header);
            if !sender.post(header)? {
                return fail("a reply was refused");
            }
        }
        while !sampler.done() {
            let mut replied = false;
            let found = self.receiver.poll(|header| {
                sampler.on_message(header);
                replied = true;
                if !header.is_end() && !sender.post(header)? {
                    return fail("a reply was refused");
                }
                Ok(())
            })?;
            if replied {
                sender.poll_if_low()?;
            }
            sampler.on_poll(found)?;
        }
        sampler.arrived()
    }
}

/// Polls both endpoints until the sender's connection and the receiver's stand; what arrived
/// meanwhile.
fn connect_both(sender: &mut Sender, receiver: &mut Receiver) -> Result<Vec<Header>, Failure> {
    let mut early = Vec::new();
    let deadline = Deadline::after(CONNECT);
    while !sender.endpoint.is_connected() || receiver.endpoint.connections() == 0 {
        sender.poll()?;
        receiver.poll(|header| {
            early.push(header);
            Ok(())
        })?;
        deadline.check("a connection")?;
        std::thread::yield_now();
    }
    Ok(early)
}

/// Sends with `depth` in flight for the time of the case. The connection stays open until the
/// server has `arrived`.
pub(crate) fn send<T>(
    case: &Case,
    to: PeerAddr,
    arrived: impl FnOnce() -> Result<T, Failure>,
) -> Result<(Sent, T), Failure> {
    let domain = open(case)?;
    let mut sender = Sender::connect(&domain, case, to)?;
    sender.endpoint.wait_connected()?;
    let mut pacer = Pacer::new(case);
    loop {
        while !sender.payloads.is_empty() {
            let Some(header) = pacer.next() else { break };
            if !sender.post(header)? {
                break;
            }
            pacer.sent();
        }
        let found = sender.poll()?;
        pacer.on_poll(found)?;
        if pacer.is_over() && sender.payloads.len() == sender.all {
            return Ok((pacer.finish(), arrived()?));
        }
    }
}

/// The client's half of a ping-pong: it listens too, for the replies.
pub(crate) struct PingPong {
    domain: Arc<Domain>,
    receiver: Receiver,
    pub(crate) addr: SocketAddr,
}

impl PingPong {
    pub(crate) fn listen(case: &Case) -> Result<Self, Failure> {
        let Server {
            domain,
            receiver,
            addr,
        } = Server::listen(case)?;
        let addr = addr.socket_addr();
        let addr = addr.ok_or_else(|| Failure::of("the listener has no IP address"))?;
        Ok(Self {
            domain,
            receiver,
            addr,
        })
    }

    /// One message to and fro at a time, for the time of the case.
    pub(crate) fn run<T>(
        mut self,
        case: &Case,
        to: SocketAddr,
        arrived: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<(Sent, T), Failure> {
        let mut sender = Sender::connect(&self.domain, case, to.into())?;
        connect_both(&mut sender, &mut self.receiver)?;
        let mut pacer = Pacer::new(case);
        while let Some(header) = pacer.next() {
            if !sender.post(header)? {
                return fail("a ping was refused");
            }
            pacer.sent();
            sender.poll_if_low()?;
            let mut back = header.is_end();
            while !back {
                let found = self.receiver.poll(|_| {
                    back = true;
                    Ok(())
                })?;
                pacer.on_poll(found)?;
            }
            pacer.returned();
        }
        Ok((pacer.finish(), arrived()?))
    }
}

/// What the library says of the provider, for the report.
pub fn describe(case: &Case) -> Result<(String, String, String), Failure> {
    let fabric = builder(case).open()?;
    let report = fabric.report();
    Ok((report.provider, report.library, report.shape.to_string()))
}
