//! The same operations as a bare loop over `libfabric-sys`: what a program would write that needs
//! nothing but this speed.
//!
//! No credits, no keys, no deadlines, no states and no error handling beyond an abort. Memory is a
//! `Region`, only so that both loops have the same pages.

#![allow(unsafe_code)]

mod net;
pub(crate) mod object;
pub(crate) mod object_request;
pub(crate) mod rdm;
pub(crate) mod rma;

use std::ffi::c_void;
use std::net::SocketAddr;
use std::ptr;

use libfabric_sys as sys;

use crate::case::{Arrived, Case, HEADER, Header, Pacer, Sent};
use crate::clock::{Sampler, spin};
use crate::error::{Failure, fail};
use crate::publish::Sum;

pub(crate) use net::Server;
use net::{BATCH, Ep, Memory, Net, SLOT, check, close, connect, find, hints, post_receive};

/// Contexts of sends have this bit, those of receives have not.
const SEND: usize = 1 << 32;

/// The sending half of a connection.
struct Sender<'a> {
    ep: &'a Ep,
    headers: &'a Memory,
    payloads: &'a Memory,
    size: usize,
}

impl Sender<'_> {
    /// Header slot and payload of this index as one message; false when the provider's queue is
    /// full.
    #[inline]
    fn post(&self, index: usize, header: Header) -> Result<bool, Failure> {
        let slot = self.headers.at(index);
        // SAFETY: the slot has room for a header, and no send of this index is in flight (the
        // callers' free lists).
        unsafe { slot.cast::<[u8; HEADER]>().write(header.to_bytes()) };
        let iov = [
            libc::iovec {
                iov_base: slot.cast(),
                iov_len: HEADER,
            },
            libc::iovec {
                iov_base: self.payloads.at(index).cast(),
                iov_len: self.size,
            },
        ];
        let mut desc = [self.headers.desc, self.payloads.desc];
        // SAFETY: the endpoint is connected; the memory is registered and untouched until its
        // completion was read.
        let rc = unsafe {
            sys::fi_sendv(
                self.ep.0,
                iov.as_ptr(),
                desc.as_mut_ptr(),
                2,
                0,
                (SEND | index) as *mut c_void,
            )
        };
        match rc {
            0 => Ok(true),
            rc if rc == -(sys::FI_EAGAIN as isize) => Ok(false),
            rc => fail(format!("bare loop: fi_sendv answered {rc}")),
        }
    }
}

#[inline]
fn header_at(memory: &Memory, index: usize) -> Header {
    // SAFETY: a message with a header was received there, and the receive is not posted again yet.
    Header::from_bytes(unsafe { memory.at(index).cast::<[u8; HEADER]>().read() })
}

impl Server {
    /// Receives and drops until the end mark.
    pub(crate) fn receive(self, case: &Case) -> Result<Arrived, Failure> {
        let receives = case.receive_depth();
        let memory = Memory::new(self.net.domain, receives, HEADER + case.size)?;
        let ep = self.accept(&memory, receives)?;
        let mut sampler = Sampler::new(case.limit());
        while !sampler.done() {
            let found = self.net.completions(|index| {
                sampler.on_message(header_at(&memory, index));
                post_receive(&ep, &memory, index)
            })?;
            sampler.on_poll(found)?;
            spin(case.bare_pause_us);
        }
        sampler.arrived()
    }

    /// Sends each message back until the end mark.
    pub(crate) fn echo(self, case: &Case) -> Result<Arrived, Failure> {
        let receives = case.receive_depth();
        let memory = Memory::new(self.net.domain, receives, HEADER + case.size)?;
        let headers = Memory::new(self.net.domain, case.depth, SLOT)?;
        let payloads = Memory::new(self.net.domain, case.depth, case.size)?;
        // The client connects for its pings first.
        let ep = self.accept(&memory, receives)?;
        let second = match case.bare_connections {
            2.. => Some(self.accept(&memory, 0)?),
            _ => None,
        };
        let sender = Sender {
            ep: second.as_ref().unwrap_or(&ep),
            headers: &headers,
            payloads: &payloads,
            size: case.size,
        };
        let mut free: Vec<usize> = (0..case.depth).collect();
        let mut sampler = Sampler::new(case.limit());
        while !sampler.done() {
            let found = self.net.completions(|context| {
                if context & SEND != 0 {
                    free.push(context & !SEND);
                    return Ok(());
                }
                let header = header_at(&memory, context);
                sampler.on_message(header);
                if !header.is_end() {
                    let index = free.pop().ok_or_else(|| Failure::of("no free send"))?;
                    sender.post(index, header)?;
                }
                post_receive(&ep, &memory, context)
            })?;
            sampler.on_poll(found)?;
        }
        sampler.arrived()
    }
}

/// Subscribers, polled in turn, until each has the end mark.
pub(crate) fn receive_all(
    servers: &[Server],
    case: &Case,
    mut sum: Sum,
) -> Result<Arrived, Failure> {
    let receives = case.receive_depth();
    let mut ends = Vec::new();
    for server in servers {
        let memory = Memory::new(server.net.domain, receives, HEADER + case.size)?;
        let ep = server.accept(&memory, receives)?;
        ends.push((ep, memory, &server.net));
    }
    while !sum.done() {
        let mut found = 0;
        for (ep, memory, net) in &ends {
            found += net.completions(|index| {
                sum.on_message(header_at(memory, index));
                post_receive(ep, memory, index)
            })?;
        }
        sum.on_poll(found)?;
        spin(case.bare_pause_us);
    }
    sum.arrived()
}

/// Posts each payload once for each connection, with `depth` payloads in flight, for the time of
/// the case.
pub(crate) fn publish<T>(
    case: &Case,
    to: &str,
    arrived: impl FnOnce() -> Result<T, Failure>,
) -> Result<(Sent, T), Failure> {
    let addrs: Result<Vec<SocketAddr>, _> = to.split(',').map(str::parse).collect();
    let addrs = addrs?;
    let net = Net::open(case, addrs.first().copied(), addrs.len())?;
    let headers = Memory::new(net.domain, case.depth, SLOT)?;
    let payloads = Memory::new(net.domain, case.depth, case.size)?;
    let eps: Result<Vec<_>, _> = addrs.iter().map(|&to| connect_to(&net, case, to)).collect();
    let eps = eps?;
    let sender = |ep| Sender {
        ep,
        headers: &headers,
        payloads: &payloads,
        size: case.size,
    };
    let senders: Vec<_> = eps.iter().map(sender).collect();
    let mut free: std::collections::VecDeque<usize> = (0..case.depth).collect();
    // Sends of each payload that are not over.
    let mut left = vec![0_usize; case.depth];
    let mut pacer = Pacer::new(case);
    loop {
        while let Some(&index) = free.front() {
            let Some(header) = pacer.next() else { break };
            for sender in &senders {
                if !sender.post(index, header)? {
                    return fail("the provider's queue is full");
                }
            }
            left[index] = senders.len();
            free.pop_front();
            pacer.sent();
        }
        let found = net.completions(|context| {
            let index = context & !SEND;
            left[index] -= 1;
            if left[index] == 0 {
                free.push_back(index);
            }
            Ok(())
        })?;
        pacer.on_poll(found)?;
        if pacer.is_over() && free.len() == case.depth {
            return Ok((pacer.finish(), arrived()?));
        }
    }
}

/// One of several connections, each to another place.
fn connect_to(net: &Net, case: &Case, to: SocketAddr) -> Result<Ep, Failure> {
    let info = find(net.library, case, Some(to))?;
    let connected = net.endpoint(info).and_then(|ep| {
        // SAFETY: the info is an answer of this library.
        let dest = unsafe { (*info).dest_addr };
        // SAFETY: the endpoint is open; its info names the peer's address.
        let rc = unsafe { sys::fi_connect(ep.0, dest, ptr::null(), 0) };
        check("fi_connect", rc)?;
        net.expect(sys::FI_CONNECTED)?;
        Ok(ep)
    });
    // SAFETY: it is an answer of this library, and the endpoint has its own copy.
    unsafe { net.library.fi_freeinfo(info) };
    connected
}

/// Sends with `depth` in flight for the time of the case. The connection stays open until the
/// server has `arrived`.
pub(crate) fn send<T>(
    case: &Case,
    to: SocketAddr,
    arrived: impl FnOnce() -> Result<T, Failure>,
) -> Result<(Sent, T), Failure> {
    let net = Net::open(case, Some(to), 1)?;
    let headers = Memory::new(net.domain, case.depth, SLOT)?;
    let payloads = Memory::new(net.domain, case.depth, case.size)?;
    let ep = connect(&net, &headers, 0)?;
    let sender = Sender {
        ep: &ep,
        headers: &headers,
        payloads: &payloads,
        size: case.size,
    };
    // First in, first out, so that the payloads take turns.
    let mut free: std::collections::VecDeque<usize> = (0..case.depth).collect();
    let mut pacer = Pacer::new(case);
    loop {
        while let Some(&index) = free.front() {
            let Some(header) = pacer.next() else { break };
            if !sender.post(index, header)? {
                break;
            }
            free.pop_front();
            pacer.sent();
        }
        let found = net.completions(|context| {
            free.push_back(context & !SEND);
            Ok(())
        })?;
        pacer.on_poll(found)?;
        if pacer.is_over() && free.len() == case.depth {
            return Ok((pacer.finish(), arrived()?));
        }
    }
}

/// One message to and fro at a time, for the time of the case.
pub(crate) fn ping_pong<T>(
    case: &Case,
    to: SocketAddr,
    arrived: impl FnOnce() -> Result<T, Failure>,
) -> Result<(Sent, T), Failure> {
    let net = Net::open(case, Some(to), 1)?;
    let receives = case.receive_depth();
    let memory = Memory::new(net.domain, receives, HEADER + case.size)?;
    let headers = Memory::new(net.domain, case.depth, SLOT)?;
    let payloads = Memory::new(net.domain, case.depth, case.size)?;
    let first = match case.bare_connections {
        2.. => Some(connect(&net, &memory, 0)?),
        _ => None,
    };
    let ep = connect(&net, &memory, receives)?;
    let sender = Sender {
        ep: first.as_ref().unwrap_or(&ep),
        headers: &headers,
        payloads: &payloads,
        size: case.size,
    };
    let mut free: Vec<usize> = (0..case.depth).collect();
    let mut pacer = Pacer::new(case);
    while let Some(header) = pacer.next() {
        let index = free.pop().ok_or_else(|| Failure::of("no free send"))?;
        if !sender.post(index, header)? {
            return fail("the provider's queue is full in a ping-pong");
        }
        pacer.sent();
        let mut back = header.is_end();
        while !back {
            let found = net.completions(|context| {
                if context & SEND != 0 {
                    free.push(context & !SEND);
                    return Ok(());
                }
                back = true;
                post_receive(&ep, &memory, context)
            })?;
            pacer.on_poll(found)?;
        }
        pacer.returned();
    }
    Ok((pacer.finish(), arrived()?))
}
