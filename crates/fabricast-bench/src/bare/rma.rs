//! One-sided writes and reads, bare: the server only polls, the client posts with `depth` in
//! flight. Marks are messages.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::net::SocketAddr;

use libfabric_sys as sys;

use super::{Memory, Net, SEND, SLOT, Sender, Server, connect, header_at, post_receive};
use crate::case::{Arrived, Case, HEADER, Operation, Pacer, Sent};
use crate::clock::Sampler;
use crate::error::{Failure, fail};

/// Payload bytes of a mark.
const MARK: usize = 8;
/// Receives for marks.
const MARKS: usize = 4;

impl Server {
    /// Lets the client write and read until its end mark. `tell` says to it where.
    pub(crate) fn expose(
        self,
        case: &Case,
        tell: impl FnOnce(String) -> Result<(), Failure>,
    ) -> Result<Arrived, Failure> {
        let memory = Memory::new(self.net.domain, MARKS, HEADER + MARK)?;
        let window = Memory::new(self.net.domain, case.depth, case.size)?;
        let ep = self.accept(&memory, MARKS)?;
        // SAFETY: the registration is open.
        let key = unsafe { sys::fi_mr_key(window.mr) };
        // SAFETY: the info is the net's, whose attributes were allocated with it.
        let domain = unsafe { (*self.net.info).domain_attr };
        // SAFETY: as above; the field is at the same place in every version.
        let virtual_addresses = unsafe { (*domain).mr_mode } & sys::FI_MR_VIRT_ADDR != 0;
        let base = if virtual_addresses {
            window.at(0) as u64
        } else {
            0
        };
        tell(format!("{base} {key} {}", window.stride))?;
        let mut sampler = Sampler::new(case.limit());
        while !sampler.done() {
            let found = self.net.completions(|index| {
                sampler.on_message(header_at(&memory, index));
                post_receive(&ep, &memory, index)
            })?;
            sampler.on_poll(found)?;
        }
        sampler.arrived()
    }
}

/// Where the server lets us write and read.
struct Target {
    base: u64,
    key: u64,
    stride: u64,
}

impl Target {
    fn parse(line: &str) -> Result<Self, Failure> {
        let numbers: Result<Vec<u64>, _> = line.split(' ').map(str::parse).collect();
        match numbers?[..] {
            [base, key, stride] => Ok(Self { base, key, stride }),
            _ => fail(format!("no such window: {line}")),
        }
    }
}

/// Posts the operation of this index; false when the provider's queue is full.
#[inline]
fn post(
    sender: &Sender<'_>,
    target: &Target,
    operation: Operation,
    size: usize,
    index: usize,
) -> Result<bool, Failure> {
    let iov = libc::iovec {
        iov_base: sender.payloads.at(index).cast(),
        iov_len: size,
    };
    let mut desc = sender.payloads.desc;
    let remote = sys::fi_rma_iov {
        addr: target.base + index as u64 * target.stride,
        len: size,
        key: target.key,
    };
    let msg = sys::fi_msg_rma {
        msg_iov: &raw const iov,
        desc: &raw mut desc,
        iov_count: 1,
        addr: 0,
        rma_iov: &raw const remote,
        rma_iov_count: 1,
        context: (SEND | index) as *mut c_void,
        data: 0,
    };
    let rc = if operation == Operation::RmaRead {
        // SAFETY: the endpoint is connected; the memory is registered and untouched until its
        // completion was read.
        unsafe { sys::fi_readmsg(sender.ep.0, &raw const msg, sys::FI_COMPLETION) }
    } else {
        let flags = sys::FI_COMPLETION | sys::FI_DELIVERY_COMPLETE;
        // SAFETY: as above.
        unsafe { sys::fi_writemsg(sender.ep.0, &raw const msg, flags) }
    };
    match rc {
        0 => Ok(true),
        rc if rc == -(sys::FI_EAGAIN as isize) => Ok(false),
        rc => fail(format!("bare loop: a one-sided post answered {rc}")),
    }
}

/// Writes or reads with `depth` in flight for the time of the case.
pub(crate) fn run(
    case: &Case,
    to: SocketAddr,
    window: impl FnOnce() -> Result<String, Failure>,
    arrived: impl FnOnce() -> Result<Arrived, Failure>,
) -> Result<(Sent, Arrived), Failure> {
    let net = Net::open(case, Some(to), 1)?;
    let headers = Memory::new(net.domain, case.depth, SLOT)?;
    let payloads = Memory::new(net.domain, case.depth, case.size.max(MARK))?;
    let ep = connect(&net, &headers, 0)?;
    let target = Target::parse(&window()?)?;
    let sender = Sender {
        ep: &ep,
        headers: &headers,
        payloads: &payloads,
        size: MARK,
    };
    let mut free: VecDeque<usize> = (0..case.depth).collect();
    let mut pacer = Pacer::new(case);
    loop {
        while let Some(&index) = free.front() {
            let Some(header) = pacer.next() else { break };
            if header.is_end() && free.len() < case.depth {
                // The server leaves when it hears of the end: nothing may need it any more.
                break;
            }
            let posted = if header.is_mark() {
                sender.post(index, header)?
            } else {
                post(&sender, &target, case.operation, case.size, index)?
            };
            if !posted {
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
            return pacer.finish_with(arrived()?);
        }
    }
}
