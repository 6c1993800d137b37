//! `Liar`: a peer that is no library of ours but a program over libfabric, which says what a test
//! wants when a test wants it.
//!
//! What it does by itself is in [`Manners`], and all of that can be switched off.

use std::collections::VecDeque;
use std::sync::Arc;

use fabricast::{Domain, PeerAddr};

use crate::common::raw::{RawCompletion, RawEnd, RawEvent, RawRemote};
use crate::wire::{self, Control, Target};

/// Receives that are posted at all times, and their bytes.
const RECEIVES: usize = 32;
const RECEIVE_BYTES: usize = 1024;

/// What a liar answers by itself, as an honest peer would.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manners {
    pub(crate) heartbeats: bool,
    pub(crate) revocations: bool,
    pub(crate) fences: bool,
}

impl Manners {
    pub(crate) fn good() -> Self {
        Self {
            heartbeats: true,
            revocations: true,
            fences: true,
        }
    }
}

/// How it reaches its victim.
#[derive(Debug)]
enum Way {
    /// Over a connection of the provider's.
    Connection,
    /// By its number, and under an index there that it hears of with the answer to its hello, which
    /// waits here for the provider to take it.
    Number {
        number: u64,
        index: u32,
        hello: Option<Vec<u8>>,
    },
}

/// One endpoint with its queues, in a domain that the library opened.
#[derive(Debug)]
pub(crate) struct Liar {
    end: RawEnd,
    way: Way,
    /// Its first read, and what it brought when it was over.
    read: Option<usize>,
    bytes_read: Vec<u8>,
    pub(crate) manners: Manners,
    /// What the victim said and the liar did not answer.
    pub(crate) heard: VecDeque<Control>,
    /// Operations that are over.
    pub(crate) done: usize,
    pub(crate) failed: usize,
    pub(crate) connected: bool,
    /// The connection is gone, or never came to be.
    pub(crate) over: bool,
    questions: u64,
}

impl Liar {
    /// Starts to connect over tcp, with these bytes as private data.
    pub(crate) fn connect(domain: &Arc<Domain>, to: PeerAddr, private: &[u8]) -> Self {
        let liar = Self::new(RawEnd::connected(domain, to), Way::Connection);
        liar.end.connect(to, private);
        liar
    }

    /// Says hello to an endpoint without connections, from one over this provider: these bytes, and
    /// where it is.
    pub(crate) fn say_hello(
        domain: &Arc<Domain>,
        provider: &str,
        to: PeerAddr,
        hello: &[u8],
    ) -> Self {
        let end = RawEnd::connectionless(domain, provider);
        let mut hello = hello.to_vec();
        hello.extend(wire::speaker(end.addr()));
        let way = Way::Number {
            number: end.number_of(to),
            index: 0,
            hello: Some(hello),
        };
        Self::new(end, way)
    }

    fn new(mut end: RawEnd, way: Way) -> Self {
        end.receive(RECEIVES, RECEIVE_BYTES);
        Self {
            end,
            way,
            read: None,
            bytes_read: Vec::new(),
            manners: Manners::good(),
            heard: VecDeque::new(),
            done: 0,
            failed: 0,
            connected: false,
            over: false,
            questions: 0,
        }
    }

    fn number(&self) -> u64 {
        match self.way {
            Way::Connection => 0,
            Way::Number { number, .. } => number,
        }
    }

    // ---- what it says ---------------------------------------------------------------------------

    /// Posts a message, if the provider takes it; only when connected, or the provider crashes.
    pub(crate) fn try_send(&mut self, bytes: &[u8], data: Option<u64>) -> bool {
        assert!(self.connected, "posts nothing before it is connected");
        !self.over && self.end.send(self.number(), bytes, data)
    }

    /// Says something; what the provider refuses is lost, as the connection is then.
    pub(crate) fn say(&mut self, control: Control) {
        self.try_say(control);
    }

    pub(crate) fn try_say(&mut self, control: Control) -> bool {
        let index = match self.way {
            Way::Connection => 0,
            Way::Number { index, .. } => index,
        };
        let data = wire::mark(control.kind) | u64::from(index);
        self.try_send(&control.encode(), Some(data))
    }

    /// Asks for a sign of life: its answer says that the victim has read everything before.
    pub(crate) fn ask_for_life(&mut self) -> u64 {
        self.questions += 1;
        self.say(Control::new(wire::HEARTBEAT).value(self.questions));
        self.questions
    }

    /// Whether the victim has answered that question.
    pub(crate) fn is_answered(&self, question: u64) -> bool {
        let answer = Control::new(wire::HEARTBEAT).code(1).value(question);
        self.heard.contains(&answer)
    }

    /// Takes what was heard of this kind, the oldest first.
    pub(crate) fn take(&mut self, kind: u8) -> Option<Control> {
        let at = self.heard.iter().position(|heard| heard.kind == kind)?;
        self.heard.remove(at)
    }

    /// Writes these bytes, whoever's key it is; `immediate`: and tells the victim's queue.
    pub(crate) fn write(&mut self, to: Target, bytes: Vec<u8>, immediate: Option<u64>) -> bool {
        assert!(self.connected, "posts nothing before it is connected");
        let number = self.number();
        !self.over
            && self
                .end
                .write(number, remote(to), bytes, immediate)
                .is_some()
    }

    /// Reads all of it; the bytes are [`bytes_read`](Self::bytes_read).
    pub(crate) fn read(&mut self, from: Target) {
        assert!(self.connected, "posts nothing before it is connected");
        assert_eq!(self.read, None, "one read");
        self.read = self.end.read(self.number(), remote(from));
        assert!(self.read.is_some(), "posted");
    }

    /// What the read brought so far.
    pub(crate) fn bytes_read(&self) -> &[u8] {
        let posted = self.read.and_then(|read| self.end.memory_of(read));
        posted.unwrap_or(&self.bytes_read)
    }

    /// Goes away without a word.
    pub(crate) fn hang_up(&mut self) {
        if matches!(self.way, Way::Connection) {
            self.end.shut_down();
        }
        self.over = true;
    }

    // ---- what it hears --------------------------------------------------------------------------

    /// Drives the endpoint, and takes what came.
    pub(crate) fn poll(&mut self) {
        self.send_hello();
        while let Some(completion) = self.end.completion() {
            match completion {
                RawCompletion::Received(n, len, data) => self.on_received(n, len, data),
                RawCompletion::Done(context, memory) => {
                    self.done += 1;
                    if self.read == Some(context) {
                        self.bytes_read = memory.unwrap_or_default();
                    }
                }
                RawCompletion::Failed => self.failed += 1,
                RawCompletion::NotReceived => {}
            }
        }
        if !matches!(self.way, Way::Connection) {
            return;
        }
        while let Some(event) = self.end.event() {
            match event {
                RawEvent::Connected => self.connected = true,
                RawEvent::Shutdown | RawEvent::Refused { .. } => self.over = true,
            }
        }
    }

    /// As soon as the provider takes it.
    fn send_hello(&mut self) {
        if let Way::Number { number, hello, .. } = &mut self.way
            && let Some(bytes) = hello
            && self.end.send(*number, bytes, Some(wire::mark(wire::HELLO)))
        {
            *hello = None;
        }
    }

    fn on_received(&mut self, n: usize, len: usize, data: Option<u64>) {
        let bytes = self.end.received(n, len);
        self.end.receive_again(n);
        let Some(data) = data else { return };
        match &mut self.way {
            Way::Connection => self.on_control(Control::parse(data, &bytes)),
            Way::Number { index, .. } => {
                assert_eq!(
                    wire::index_of(data),
                    wire::INDEX,
                    "the index that it asked for"
                );
                match wire::kind_of(data) {
                    wire::HELLO_ACK => {
                        *index = wire::connection_of(&bytes);
                        self.connected = true;
                    }
                    wire::REFUSAL => self.over = true,
                    kind => self.on_control(Control::parse(wire::mark(kind), &bytes)),
                }
            }
        }
    }

    fn on_control(&mut self, control: Control) {
        let Manners {
            heartbeats,
            revocations,
            fences,
        } = self.manners;
        match control.kind {
            wire::HEARTBEAT if heartbeats && control.code == 0 => self.say(control.code(1)),
            wire::REVOKE if revocations => {
                self.say(Control::new(wire::REVOKE_ACK).value(control.value));
            }
            wire::FENCE if fences => self.say(wire::fenced(control)),
            _ => self.heard.push_back(control),
        }
    }
}

fn remote(target: Target) -> RawRemote {
    RawRemote {
        addr: target.base,
        len: target.len,
        key: target.key,
    }
}
