//! The same bytes as objects by their tokens, bare: one-sided writes and reads over an endpoint
//! without connections (FI_EP_RDM), into a window whose key stands.

use std::collections::VecDeque;
use std::ffi::c_int;

use libfabric_sys as sys;

use super::rdm::{Node, taken};
use super::{Memory, check};
use crate::case::{Arrived, Case, Operation, Sent, Wait};
use crate::control::Control;
use crate::error::{Failure, fail};
use crate::object::{self, Mover};

/// How long the lending end sleeps at most.
const LONGEST_MS: c_int = 100;

/// Where the other end may write and read: its name, and the key of its memory.
pub(super) fn describe(node: &Node, memory: &Memory) -> Result<String, Failure> {
    // SAFETY: the registration is open.
    let key = unsafe { sys::fi_mr_key(memory.mr) };
    // SAFETY: the info is the node's, whose attributes were allocated with it.
    let domain = unsafe { (*node.info).domain_attr };
    // SAFETY: as above; the field is at the same place in every version.
    let virtual_addresses = unsafe { (*domain).mr_mode } & sys::FI_MR_VIRT_ADDR != 0;
    let base = match virtual_addresses {
        true => memory.at(0) as u64,
        false => 0,
    };
    Ok(format!("{} {base} {key} {}", node.name()?, memory.stride))
}

/// A window of another process.
pub(super) struct Target {
    pub(super) peer: sys::fi_addr_t,
    base: u64,
    key: u64,
    stride: u64,
}

impl Target {
    pub(super) fn parse(node: &Node, line: &str) -> Result<Self, Failure> {
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            [name, base, key, stride] => Ok(Self {
                peer: node.insert(name)?,
                base: base.parse()?,
                key: key.parse()?,
                stride: stride.parse()?,
            }),
            _ => fail(format!("no such window: {line}")),
        }
    }
}

/// Posts the operation of this index, with this number as its context; false when the provider
/// takes none now.
#[inline]
pub(super) fn post(
    node: &Node,
    (local, target): (&Memory, &Target),
    case: &Case,
    index: usize,
    context: usize,
) -> Result<bool, Failure> {
    let iov = libc::iovec {
        iov_base: local.at(index).cast(),
        iov_len: case.size,
    };
    let mut desc = local.desc;
    let remote = sys::fi_rma_iov {
        addr: target.base + index as u64 * target.stride,
        len: case.size,
        key: target.key,
    };
    let msg = sys::fi_msg_rma {
        msg_iov: &raw const iov,
        desc: &raw mut desc,
        iov_count: 1,
        addr: target.peer,
        rma_iov: &raw const remote,
        rma_iov_count: 1,
        context: node.context(context),
        data: 0,
    };
    if case.operation == Operation::ObjectPut {
        // SAFETY: the peer is in the vector; memory and cell are untouched until the completion was
        // read.
        let rc = unsafe { sys::fi_readmsg(node.ep, &raw const msg, sys::FI_COMPLETION) };
        return taken("fi_readmsg", rc);
    }
    let flags = sys::FI_COMPLETION | sys::FI_DELIVERY_COMPLETE;
    // SAFETY: as above.
    let rc = unsafe { sys::fi_writemsg(node.ep, &raw const msg, flags) };
    taken("fi_writemsg", rc)
}

/// Sleeps until there may be something to do, where the queue has a descriptor.
fn sleep(node: &Node, fd: c_int) {
    let mut fids = [node.cq.cast::<sys::fid>()];
    // SAFETY: fabric and queue are open.
    let may = unsafe { sys::fi_trywait(node.fabric, fids.as_mut_ptr(), 1) };
    if may != 0 {
        return;
    }
    let mut watched = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, which is writable; what fails here is interrupted.
    unsafe { libc::poll(&raw mut watched, 1, LONGEST_MS) };
}

fn wait_fd(node: &Node) -> Result<c_int, Failure> {
    let mut fd: c_int = -1;
    // SAFETY: the queue is open, and was opened with a descriptor; the result is writable.
    let rc = unsafe { sys::fi_getwait_fd(node.cq.cast(), &raw mut fd) };
    check("fi_control", rc)?;
    Ok(fd)
}

/// Lends memory until the other end is done with it.
pub(crate) fn lend(case: &Case, control: &mut Control) -> Result<Arrived, Failure> {
    let node = Node::open(case, case.depth)?;
    let window = Memory::new(node.domain, case.depth, case.size)?;
    control.say(&format!("ready {}", describe(&node, &window)?))?;
    let fd = match case.wait {
        Wait::Fd => Some(wait_fd(&node)?),
        Wait::None => None,
    };
    object::serve(case, control, || {
        let found = node.completions(|_| Ok(()))?;
        if let Some(fd) = fd {
            sleep(&node, fd);
        }
        Ok(found)
    })
}

/// The end that writes and reads.
struct Loop<'a> {
    node: &'a Node,
    local: &'a Memory,
    target: &'a Target,
    case: &'a Case,
    free: VecDeque<usize>,
}

impl Mover for Loop<'_> {
    #[inline]
    fn free(&self) -> usize {
        self.free.len()
    }

    #[inline]
    fn post(&mut self) -> Result<bool, Failure> {
        let Some(&index) = self.free.front() else {
            return Ok(false);
        };
        let posted = post(
            self.node,
            (self.local, self.target),
            self.case,
            index,
            index,
        )?;
        if posted {
            self.free.pop_front();
        }
        Ok(posted)
    }

    #[inline]
    fn poll(&mut self) -> Result<usize, Failure> {
        let free = &mut self.free;
        self.node.completions(|index| {
            free.push_back(index);
            Ok(())
        })
    }
}

/// Writes or reads with `depth` in flight for the time of the case.
pub(crate) fn run(
    case: &Case,
    to: &str,
    control: &mut Control,
) -> Result<(Sent, Arrived), Failure> {
    let node = Node::open(case, case.depth)?;
    let local = Memory::new(node.domain, case.depth, case.size)?;
    let target = Target::parse(&node, to)?;
    let mut bare = Loop {
        node: &node,
        local: &local,
        target: &target,
        case,
        free: (0..case.depth).collect(),
    };
    object::drive(case, &mut bare, control)
}
