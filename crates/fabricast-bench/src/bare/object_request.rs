//! The same bare: a message of a token's length, a one-sided write, and an answer, all over one
//! endpoint without connections, with a key that stands.

use libfabric_sys as sys;

use super::object::{Target, describe, post};
use super::rdm::Node;
use super::{Memory, SLOT};
use crate::case::{Arrived, Case, HEADER, Header, Pacer, Sent};
use crate::control::Control;
use crate::error::{Failure, fail};
use crate::object;
use crate::object_request;

/// Bytes of a request behind its header, about as many as a token's text has.
const REQUEST: usize = 112;
/// Receives; sends take turns among as many; then comes the write.
const MESSAGES: usize = 8;
const WRITE: usize = 2 * MESSAGES;

/// An end that takes and sends messages.
struct Messages<'a> {
    node: &'a Node,
    received: Memory,
    headers: Memory,
    payloads: Memory,
    next: usize,
}

impl<'a> Messages<'a> {
    fn new(node: &'a Node) -> Result<Self, Failure> {
        let received = Memory::new(node.domain, MESSAGES, HEADER + REQUEST)?;
        for index in 0..MESSAGES {
            if !node.receive(&received, index)? {
                return fail("bare loop: no room for receives");
            }
        }
        Ok(Self {
            node,
            received,
            headers: Memory::new(node.domain, WRITE, SLOT)?,
            payloads: Memory::new(node.domain, WRITE, REQUEST)?,
            next: 0,
        })
    }

    fn send(&mut self, to: sys::fi_addr_t, size: usize) -> Result<bool, Failure> {
        let index = MESSAGES + self.next % MESSAGES;
        let memory = (&self.headers, &self.payloads);
        let sent = self
            .node
            .send(to, memory, size, index, Header::from_tag(0))?;
        self.next += usize::from(sent);
        Ok(sent)
    }
}

/// What is to be done next for a request.
#[derive(Default)]
struct Due {
    write: bool,
    answer: bool,
}

/// Answers requests until the client is done.
pub(crate) fn answer(case: &Case, control: &mut Control) -> Result<Arrived, Failure> {
    let node = Node::open(case, WRITE + 1)?;
    let mut messages = Messages::new(&node)?;
    let object = Memory::new(node.domain, 1, case.size)?;
    control.say(&format!("ready {}", node.name()?))?;
    let back = control.expect("back", object::patience(case))?;
    let target = Target::parse(&node, &back)?;
    let mut due = Due::default();
    object::serve(case, control, || {
        let found = node.completions(|index| {
            due.answer |= index == WRITE;
            if index < MESSAGES {
                due.write = true;
                return match node.receive(&messages.received, index)? {
                    true => Ok(()),
                    false => fail("bare loop: no room to post a receive again"),
                };
            }
            Ok(())
        })?;
        if due.write {
            due.write = !post(&node, (&object, &target), case, 0, WRITE)?;
        }
        if due.answer {
            due.answer = !messages.send(target.peer, 1)?;
        }
        Ok(found)
    })
}

/// One request at a time, for the time of the case.
pub(crate) fn run(
    case: &Case,
    to: &str,
    control: &mut Control,
) -> Result<(Sent, Arrived), Failure> {
    let node = Node::open(case, WRITE + 1)?;
    let mut messages = Messages::new(&node)?;
    let window = Memory::new(node.domain, 1, case.size)?;
    control.say(&format!("back {}", describe(&node, &window)?))?;
    let server = node.insert(to)?;
    object_request::drive(case, control, |pacer: &mut Pacer| {
        while !messages.send(server, REQUEST)? {
            node.completions(|_| Ok(()))?;
            pacer.on_poll(0)?;
        }
        let mut back = false;
        while !back {
            let found = node.completions(|index| {
                if index >= MESSAGES {
                    return Ok(());
                }
                back = true;
                match node.receive(&messages.received, index)? {
                    true => Ok(()),
                    false => fail("bare loop: no room to post a receive again"),
                }
            })?;
            pacer.on_poll(found)?;
        }
        Ok(())
    })
}
