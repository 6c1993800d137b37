//! Small messages in buffers: through `SendEndpointBuffered`, and through a bare TCP connection
//! with a plain loop of the same format.
//!
//! A message's tag says whether it is data or a mark. Both sides look at the clock once a buffer,
//! and both receivers look at each message's tag, status and length.

#![allow(unsafe_code)]

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use fabricast::coalesce::Format;
use fabricast::endpoint::{BufferedConfig, PushError, ReceiveConfig};
use fabricast::{
    BufferedEvent, ConnectionEvent, ReceiveEndpoint, ReceiveEvent, SendEndpointBuffered,
};

use crate::case::{Arrived, Case, Header, Pacer, Sent};
use crate::clock::Sampler;
use crate::control::accept;
use crate::error::{Failure, fail};
use crate::ours;

/// Bytes of the compact format's header.
const FRONT: usize = 16;
/// The bit that says that a tag follows.
const TAG: u32 = 1 << 23;
/// Messages that are sent alone, to see how long they take to leave.
pub const LONE: usize = 200;
/// Buffers that are filled between two polls, which take what completed.
pub const POLL_EVERY: usize = 8;
const PATIENCE: Duration = Duration::from_secs(20);

/// Messages of a size that fit a buffer behind each other.
pub fn per_buffer(case: &Case) -> usize {
    ((case.buffer - FRONT) / (4 + case.size)).max(1)
}

// ---- through the library ------------------------------------------------------------------------

/// A listener with its address.
pub(crate) struct Server {
    endpoint: ReceiveEndpoint,
    pub(crate) addr: SocketAddr,
}

impl Server {
    pub(crate) fn listen(case: &Case) -> Result<Self, Failure> {
        let domain = ours::open(case)?;
        let network = case.of_buffers();
        let config = ReceiveConfig::default()
            .incoming(|incoming| {
                incoming
                    .max_message(case.buffer)
                    .credits(network.window() as u32)
                    .slots((network.receive_depth() + 32) as u32)
            })
            .connection(|c| c.max_connections(1));
        let addr = SocketAddr::new(case.node.parse()?, 0);
        let endpoint = ReceiveEndpoint::listen(&domain, addr.into(), config)?;
        let addr = endpoint.local_addr().socket_addr();
        let addr = addr.ok_or_else(|| Failure::of("the listener has no IP address"))?;
        Ok(Self { endpoint, addr })
    }

    /// Takes buffers apart until the end mark.
    pub(crate) fn receive(mut self, case: &Case) -> Result<Arrived, Failure> {
        let mut sampler = Sampler::new(case.limit());
        let mut events = Vec::with_capacity(64);
        while !sampler.done() {
            let found = self.endpoint.poll(&mut events)?;
            for event in events.drain(..) {
                match event {
                    ReceiveEvent::Message(message) => {
                        for small in message.coalesced(Format::Compact) {
                            let small = small?;
                            black_box((small.status, small.bytes.len()));
                            sampler.on_message(Header::from_tag(small.tag));
                        }
                    }
                    ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(reason)) => {
                        return fail(reason.to_string());
                    }
                    _ => {}
                }
            }
            sampler.on_poll(found)?;
        }
        sampler.arrived()
    }
}

struct Sender {
    endpoint: SendEndpointBuffered,
    events: Vec<BufferedEvent>,
    confirmed: u64,
}

impl Sender {
    /// Pushes a message; polls while it can't be taken.
    #[inline]
    fn push(&mut self, tag: u64, bytes: &[u8], pacer: &mut Pacer) -> Result<(), Failure> {
        loop {
            match self.endpoint.push(tag, 0, bytes) {
                Ok(_) => return Ok(()),
                Err(PushError::WouldBlock(_)) => self.poll(pacer)?,
                Err(refused) => return fail(refused.to_string()),
            }
        }
    }

    #[inline]
    fn poll(&mut self, pacer: &mut Pacer) -> Result<(), Failure> {
        let found = self.endpoint.poll(&mut self.events)?;
        for event in self.events.drain(..) {
            match event {
                BufferedEvent::Completed { carried, .. } => self.confirmed += carried.messages(),
                BufferedEvent::Failed { error, .. } => return fail(error.to_string()),
                BufferedEvent::Connection(ConnectionEvent::Disconnected(reason)) => {
                    return fail(reason.to_string());
                }
                _ => {}
            }
        }
        pacer.on_poll(found)
    }

    /// One message at a time, nothing else: from its push until it is confirmed as sent.
    fn lone(&mut self, bytes: &[u8], pacer: &mut Pacer) -> Result<Vec<u32>, Failure> {
        let mut times = Vec::with_capacity(LONE);
        for _ in 0..LONE {
            let (before, pushed) = (self.confirmed, Instant::now());
            self.push(0, bytes, pacer)?;
            while self.confirmed == before {
                self.poll(pacer)?;
            }
            times.push(u32::try_from(pushed.elapsed().as_nanos()).unwrap_or(u32::MAX));
        }
        Ok(times)
    }
}

/// Lone messages first, then buffers full of them for the time of the case.
pub(crate) fn send<T>(
    case: &Case,
    to: SocketAddr,
    arrived: impl FnOnce() -> Result<T, Failure>,
) -> Result<(Sent, T), Failure> {
    let domain = ours::open(case)?;
    let config = BufferedConfig::default()
        .buffer_size(case.buffer)
        .buffers(case.depth as u32 + 16)
        .flush_interval(Some(Duration::from_micros(case.flush_us)))
        .outgoing(|out| out.depth(case.depth as u32));
    let mut sender = Sender {
        endpoint: SendEndpointBuffered::connect(&domain, to.into(), config)?,
        events: Vec::with_capacity(64),
        confirmed: 0,
    };
    sender.endpoint.wait_connected()?;
    let (bytes, batch) = (vec![7; case.size], per_buffer(case));
    let mut pacer = Pacer::new(case);
    let lone = sender.lone(&bytes, &mut pacer)?;
    let mut buffers = 0;
    while let Some(header) = pacer.next() {
        if header.is_mark() {
            sender.push(header.to_tag(), &bytes, &mut pacer)?;
            sender.endpoint.flush();
        } else {
            for _ in 0..batch {
                sender.push(header.to_tag(), &bytes, &mut pacer)?;
            }
        }
        pacer.sent();
        buffers += 1;
        // `push` sends what is full. A poll for each buffer would cost a system call; a `send` of
        // whole buffers polls less, too.
        if buffers % POLL_EVERY == 0 {
            sender.poll(&mut pacer)?;
        }
    }
    while sender.endpoint.stats().pending > 0 {
        sender.poll(&mut pacer)?;
    }
    let mut sent = pacer.finish();
    sent.half_ns = lone;
    Ok((sent, arrived()?))
}

// ---- a bare socket ------------------------------------------------------------------------------

/// A listening socket with its address.
pub(crate) struct BareServer {
    listener: TcpListener,
    pub(crate) addr: SocketAddr,
}

impl BareServer {
    pub(crate) fn listen(case: &Case) -> Result<Self, Failure> {
        let listener = TcpListener::bind((case.node.as_str(), 0))?;
        let addr = listener.local_addr()?;
        Ok(Self { listener, addr })
    }

    /// Reads the stream, and takes each whole buffer apart.
    pub(crate) fn receive(self, case: &Case) -> Result<Arrived, Failure> {
        let mut stream = accept(&self.listener, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut sampler = Sampler::new(case.limit());
        let mut room = vec![0_u8; 4 * case.buffer];
        let mut have = 0;
        while !sampler.done() {
            let read = stream.read(&mut room[have..])?;
            if read == 0 {
                return fail("the socket ended before the end mark");
            }
            have += read;
            let mut at = 0;
            while have - at >= FRONT {
                let len = word(&room[at + 12..]) as usize;
                if len < FRONT || len > case.buffer {
                    return fail("not a buffer of ours");
                }
                if have - at < len {
                    break;
                }
                parse(&room[at..at + len], &mut sampler);
                at += len;
            }
            room.copy_within(at..have, 0);
            have -= at;
            sampler.on_poll(1)?;
        }
        sampler.arrived()
    }
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// A plain loop over a buffer that is trusted as far as memory is safe.
#[inline]
fn parse(buffer: &[u8], sampler: &mut Sampler) {
    let (mut rest, mut tag) = (&buffer[FRONT..], 0);
    while rest.len() >= 4 {
        let word = word(rest);
        let mut head = 4;
        if word & TAG != 0 && rest.len() >= 12 {
            tag = u64::from(self::word(&rest[4..])) | u64::from(self::word(&rest[8..])) << 32;
            head = 12;
        }
        let (len, status) = ((word & (TAG - 1)) as usize, word >> 24);
        let Some(behind) = rest.get(head + len..) else {
            return;
        };
        black_box((status, len));
        sampler.on_message(Header::from_tag(tag));
        rest = behind;
    }
}

/// Packs by hand and writes whole buffers.
pub(crate) fn bare_send<T>(
    case: &Case,
    to: SocketAddr,
    arrived: impl FnOnce() -> Result<T, Failure>,
) -> Result<(Sent, T), Failure> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (bytes, batch) = (vec![7_u8; case.size], per_buffer(case));
    let mut out = vec![0_u8; case.buffer + 64];
    let mut pacer = Pacer::new(case);
    while let Some(header) = pacer.next() {
        let count = if header.is_mark() { 1 } else { batch };
        let len = pack(&mut out, header.to_tag(), &bytes, count);
        stream.write_all(&out[..len])?;
        pacer.sent();
        pacer.on_poll(1)?;
    }
    Ok((pacer.finish(), arrived()?))
}

/// So many equal messages behind a header, as C would: no check of anything.
#[inline]
fn pack(out: &mut [u8], tag: u64, bytes: &[u8], count: usize) -> usize {
    let need = FRONT + 8 + count * (4 + bytes.len());
    assert!(need <= out.len(), "{need} of {} bytes", out.len());
    let base = out.as_mut_ptr();
    let (mut at, mut before) = (FRONT, 0);
    for _ in 0..count {
        let flag = if tag == before { 0 } else { TAG };
        let word = bytes.len() as u32 | flag;
        // SAFETY: `need` bytes lie in `out`, the header, one tag, and words and bytes of `count`
        // messages.
        unsafe {
            base.wrapping_add(at)
                .cast::<u32>()
                .write_unaligned(word.to_le())
        };
        at += 4;
        if flag != 0 {
            // SAFETY: as above.
            unsafe {
                base.wrapping_add(at)
                    .cast::<u64>()
                    .write_unaligned(tag.to_le())
            };
            at += 8;
            before = tag;
        }
        // SAFETY: as above; the two do not overlap.
        unsafe {
            base.wrapping_add(at)
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        at += bytes.len();
    }
    out[..8].copy_from_slice(b"FbCo\x01\0\0\0");
    out[8..12].copy_from_slice(&(count as u32).to_le_bytes());
    out[12..16].copy_from_slice(&(at as u32).to_le_bytes());
    at
}
