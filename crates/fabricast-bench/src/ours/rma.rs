//! One-sided writes and reads through `fabricast`: the server exposes a window and polls, the
//! client posts with `depth` in flight. Marks are messages.

use std::collections::VecDeque;
use std::net::SocketAddr;

use fabricast::buffer::{Buffer, RegionSlice, SharedBufferManager};
use fabricast::endpoint::{
    Access, HeaderMode, LocalWindow, ReceiveConfig, RemoteWindow, SendConfig, WindowDescriptor,
    WindowEvent,
};
use fabricast::{
    ConnectionEvent, ReceiveEndpoint, ReceiveEvent, Region, SendEndpointZeroCopy, SendEvent,
};

use super::{Receiver, Server, open};
use crate::case::{Arrived, Case, HEADER, Header, Operation, Pacer, Sent};
use crate::clock::{Deadline, Sampler};
use crate::error::{Failure, fail};

/// Payload bytes of a mark.
const MARK: usize = 8;

fn stride(case: &Case) -> usize {
    case.size.next_multiple_of(64)
}

impl Server {
    /// As `listen`, with windows.
    pub(crate) fn with_windows(case: &Case) -> Result<Self, Failure> {
        let domain = open(case)?;
        let config = ReceiveConfig::default()
            .incoming(|incoming| incoming.max_message(64).credits(4).slots(32))
            .connection(|c| c.max_connections(1).windows(1));
        let addr = SocketAddr::new(case.node.parse()?, 0);
        let endpoint = ReceiveEndpoint::listen(&domain, addr.into(), config)?;
        let addr = endpoint.local_addr();
        Ok(Self {
            domain,
            receiver: Receiver::new(endpoint),
            addr,
        })
    }

    /// Lets the client write and read until its end mark. `tell` says to it where.
    pub(crate) fn expose(
        mut self,
        case: &Case,
        tell: impl FnOnce(String) -> Result<(), Failure>,
    ) -> Result<Arrived, Failure> {
        let region = Region::host(case.depth * stride(case)).build()?;
        let slice = region.slice(0..region.len())?;
        let window = self.window(case, slice)?;
        let bytes = window.descriptor().to_bytes().map(|byte| byte.to_string());
        tell(bytes.join(" "))?;
        let mut sampler = Sampler::new(case.limit());
        while !sampler.done() {
            let found = self.receiver.poll(|header| {
                sampler.on_message(header);
                Ok(())
            })?;
            sampler.on_poll(found)?;
        }
        sampler.arrived()
    }

    /// Waits for the client, and exposes the slice to it.
    fn window(&mut self, case: &Case, slice: RegionSlice) -> Result<LocalWindow, Failure> {
        let deadline = Deadline::after(case.limit());
        let access = match case.operation {
            Operation::RmaRead => Access::READ,
            _ => Access::WRITE,
        };
        let mut events = Vec::new();
        loop {
            self.receiver.endpoint.poll(&mut events)?;
            for event in events.drain(..) {
                if let ReceiveEvent::Connection(connection, ConnectionEvent::Connected(_)) = event {
                    let exposed = self
                        .receiver
                        .endpoint
                        .windows(connection)
                        .expose(slice, access);
                    return exposed.map_err(|error| Failure::new(error.to_string()));
                }
            }
            deadline.check("a connection")?;
            std::thread::yield_now();
        }
    }
}

/// The client's end.
struct Client {
    endpoint: SendEndpointZeroCopy,
    window: RemoteWindow,
    /// Local memory, with the number of its place in the window as the key.
    free: VecDeque<(RegionSlice, u64)>,
    marks: VecDeque<Buffer>,
    stride: u64,
    events: Vec<SendEvent>,
}

impl Client {
    /// Posts an operation, or sends a mark; false when the endpoint takes none now.
    #[inline]
    fn post(&mut self, operation: Operation, header: Header) -> Result<bool, Failure> {
        if header.is_mark() {
            return self.mark(header);
        }
        let Some((slice, key)) = self.free.pop_front() else {
            return Ok(false);
        };
        let place = self.window.at(key * self.stride);
        let refused = if operation == Operation::RmaRead {
            match self.endpoint.windows().read(slice, place, key) {
                Ok(()) => return Ok(true),
                Err(refused) if refused.is_would_block() => refused.given.into_slice().ok(),
                Err(refused) => return fail(refused.to_string()),
            }
        } else {
            match self.endpoint.windows().write(slice, place, key) {
                Ok(()) => return Ok(true),
                Err(refused) if refused.is_would_block() => refused.given.into_slice().ok(),
                Err(refused) => return fail(refused.to_string()),
            }
        };
        self.free.extend(refused.map(|slice| (slice, key)));
        Ok(false)
    }

    fn mark(&mut self, header: Header) -> Result<bool, Failure> {
        let Some(mark) = self.marks.pop_front() else {
            return fail("a mark too many");
        };
        match self.endpoint.send_data(mark, &header.to_bytes(), 0) {
            Ok(()) => Ok(true),
            Err(refused) if refused.is_would_block() => {
                self.marks.extend(refused.given.into_buffer());
                Ok(false)
            }
            Err(refused) => fail(refused.to_string()),
        }
    }

    #[inline]
    fn poll(&mut self) -> Result<usize, Failure> {
        let found = self.endpoint.poll(&mut self.events)?;
        for event in self.events.drain(..) {
            match event {
                SendEvent::Window(WindowEvent::Written { key, payload }) => {
                    if let Ok(slice) = payload.into_slice() {
                        self.free.push_back((slice, key));
                    }
                }
                SendEvent::Window(WindowEvent::Read { key, into }) => {
                    if let Ok(slice) = into.into_slice() {
                        self.free.push_back((slice, key));
                    }
                }
                SendEvent::Window(
                    WindowEvent::WriteFailed { error, .. } | WindowEvent::ReadFailed { error, .. },
                )
                | SendEvent::Failed { error, .. } => return fail(error.to_string()),
                SendEvent::Connection(ConnectionEvent::Disconnected(reason)) => {
                    return fail(reason.to_string());
                }
                _ => {}
            }
        }
        Ok(found)
    }
}

/// Writes or reads with `depth` in flight for the time of the case.
pub(crate) fn run(
    case: &Case,
    to: SocketAddr,
    window: impl FnOnce() -> Result<String, Failure>,
    arrived: impl FnOnce() -> Result<Arrived, Failure>,
) -> Result<(Sent, Arrived), Failure> {
    let domain = open(case)?;
    // The marks come on top of the operations.
    let config = SendConfig::default().outgoing(|out| {
        out.depth(case.depth as u32 + 2)
            .header_mode(HeaderMode::Fixed(HEADER as u16))
    });
    let mut endpoint = SendEndpointZeroCopy::connect(&domain, to.into(), config)?;
    endpoint.wait_connected()?;
    let bytes: Result<Vec<u8>, _> = window()?.split(' ').map(str::parse).collect();
    let descriptor =
        WindowDescriptor::parse(&bytes?).map_err(|error| Failure::new(error.to_string()))?;
    let window = endpoint
        .windows()
        .open(&descriptor)
        .map_err(|error| Failure::new(error.to_string()))?;
    let region = Region::host(case.depth * stride(case)).build()?;
    region
        .register(&domain)
        .map_err(|error| Failure::new(error.to_string()))?;
    let pool = SharedBufferManager::allocate(2, MARK)?;
    pool.region()
        .register(&domain)
        .map_err(|error| Failure::new(error.to_string()))?;
    let mut free = VecDeque::new();
    for place in 0..case.depth {
        let start = place * stride(case);
        free.push_back((region.slice(start..start + case.size)?, place as u64));
    }
    let mut client = Client {
        endpoint,
        window,
        free,
        marks: std::iter::from_fn(|| pool.try_acquire())
            .map(|buffer| buffer.freeze(MARK))
            .collect(),
        stride: stride(case) as u64,
        events: Vec::with_capacity(64),
    };
    let mut pacer = Pacer::new(case);
    loop {
        while !client.free.is_empty() {
            let Some(header) = pacer.next() else { break };
            if header.is_end() && client.free.len() < case.depth {
                // The server leaves when it hears of the end: nothing may need it any more.
                break;
            }
            if !client.post(case.operation, header)? {
                break;
            }
            pacer.sent();
        }
        let found = client.poll()?;
        pacer.on_poll(found)?;
        if pacer.is_over() && client.free.len() == case.depth {
            return pacer.finish_with(arrived()?);
        }
    }
}
