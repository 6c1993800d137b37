//! The bare loop: a thread preads blocks into registered buffers, another sends them with fi_send;
//! the receiver posts each receive again.
//!
//! No header, no credits, no states.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender};

use libfabric_sys as sys;

use crate::case::{BareWait, Case};
use crate::error::{Failure, fail};
use crate::host::cpu_seconds;
use crate::idle::Idle;
use crate::net::{Ep, Memory, Net, Server, connect, post_receive};
use crate::peer::answer;
use crate::ring::{Filled, Slots, with_reader};
use crate::sending::{Sent, timed};

/// Contexts of sends have this bit, those of receives have not.
const SEND: usize = 1 << 32;
/// Bytes of the receiver's word that it has everything.
const WORD: usize = 8;

/// Sends the file, and waits for the receiver's word.
pub(crate) fn send(case: &Case, to: SocketAddr, path: &Path) -> Result<Sent, Failure> {
    let net = Net::open(case, Some(to), 1)?;
    let words = Memory::new(net.domain, 1, WORD)?;
    let blocks = Memory::new(net.domain, case.buffers, case.block)?;
    touch(&blocks);
    let (sent, _ep) = timed(|| {
        let file = File::open(path)?;
        let ep = connect(&net, &words, 1)?;
        // SAFETY: the memory has as many pieces, outlives the reader, and only the two threads of
        // the ring use it.
        let slots = unsafe { Slots::new(blocks.at(0), blocks.stride) };
        let sender = Sender {
            net: &net,
            ep: &ep,
            blocks: &blocks,
            case,
        };
        let blocks = case.blocks();
        with_reader(case, &file, slots, |filled, free| {
            sender.run(blocks, &filled, &free)
        })?;
        Ok(ep)
    })?;
    Ok(sent)
}

/// What the network thread has.
struct Sender<'a> {
    net: &'a Net,
    ep: &'a Ep,
    blocks: &'a Memory,
    case: &'a Case,
}

impl Sender<'_> {
    fn run(
        &self,
        blocks: usize,
        filled: &Receiver<Filled>,
        free: &SyncSender<usize>,
    ) -> Result<(), Failure> {
        let mut idle = Idle::new(self.case, self.net)?;
        let (mut posted, mut flying, mut has_all) = (0, 0, false);
        // What the provider had no room for.
        let mut next = None;
        while !has_all {
            while flying < self.case.depth && posted < blocks {
                let Some(block) = next.take().or_else(|| self.take(filled, flying)) else {
                    break;
                };
                let context = SEND | block.slot;
                if !post(self.ep, self.blocks, block.slot, block.len, context)? {
                    next = Some(block);
                    break;
                }
                posted += 1;
                flying += 1;
            }
            let found = self.net.completions(|context| {
                if context & SEND == 0 {
                    has_all = true;
                    return Ok(());
                }
                flying -= 1;
                // Nobody listens when the whole file is read.
                let _ = free.send(context & !SEND);
                Ok(())
            })?;
            idle.on_poll(found)?;
        }
        if posted < blocks {
            return fail("the receiver has more than was sent");
        }
        Ok(())
    }

    /// A block that the reader has filled. Where nothing is on its way, a loop that may sleep
    /// sleeps here.
    #[inline]
    fn take(&self, filled: &Receiver<Filled>, flying: usize) -> Option<Filled> {
        match self.case.bare_wait {
            BareWait::Fd if flying == 0 => filled.recv().ok(),
            _ => filled.try_recv().ok(),
        }
    }
}

/// Posts a send of one piece; false when the provider's queue is full.
#[inline]
fn post(
    ep: &Ep,
    memory: &Memory,
    index: usize,
    len: usize,
    context: usize,
) -> Result<bool, Failure> {
    let base = memory.at(index).cast::<c_void>();
    // SAFETY: the endpoint is connected; the piece is registered, and untouched until its
    // completion was read.
    let rc = unsafe { sys::fi_send(ep.0, base, len, memory.desc, 0, context as *mut c_void) };
    match rc {
        0 => Ok(true),
        rc if rc == -(sys::FI_EAGAIN as isize) => Ok(false),
        rc => fail(format!("bare loop: fi_send answered {rc}")),
    }
}

/// So that no page is new when it is timed.
fn touch(memory: &Memory) {
    let len = memory.region.len();
    // SAFETY: the whole region, of which nothing is in use yet.
    unsafe { memory.region.as_ptr().write_bytes(1, len) };
}

/// Receives a file's blocks, drops them, and says so; processor seconds since the connection.
pub(crate) fn receive(case: &Case) -> Result<f64, Failure> {
    let server = Server::listen(case)?;
    let net = &server.net;
    let memory = Memory::new(net.domain, case.receives, case.block)?;
    let words = Memory::new(net.domain, 1, WORD)?;
    touch(&memory);
    touch(&words);
    answer(&format!("at {}", server.addr))?;
    let ep = server.accept(&memory, case.receives)?;
    let cpu = cpu_seconds();
    let mut idle = Idle::new(case, net)?;
    let mut left = case.blocks();
    while left > 0 {
        let found = net.completions(|index| {
            left -= 1;
            post_receive(&ep, &memory, index)
        })?;
        idle.on_poll(found)?;
    }
    while !post(&ep, &words, 0, WORD, SEND)? {
        idle.on_poll(net.completions(|_| Ok(()))?)?;
    }
    let mut sent = false;
    while !sent {
        let found = net.completions(|context| {
            sent |= context & SEND != 0;
            Ok(())
        })?;
        idle.on_poll(found)?;
    }
    Ok(cpu_seconds() - cpu)
}
