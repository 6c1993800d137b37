//! A peer that says anything at any time: bytes drive one machine, its own side's calls among them,
//! and what must hold is checked.
//!
//! The fuzz target `connection` and the tests of the protocol run it. The other side here is no
//! machine but the bytes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::errno::FabricErrno;
use crate::protocol::connection::{
    Action, Arrival, CloseReason, Connection, Form, LocalParams, State,
};
use crate::protocol::liveness::LivenessTimeouts;
use crate::protocol::wire::{
    self, ByeReason, Control, ControlKind, HELLO_LEN, HeaderMode, Hello, HelloKind,
    SubscriptionOutcome, SubscriptionRequest, WindowId,
};

/// Control messages that this side may have under way at once: those of credits, heartbeats,
/// goodbyes, windows, subscriptions, fences and of the handshake, with room.
const CONTROLS_MAX: usize = 14;

const RECEIVE_SIZE: u64 = 1024;

/// The bytes, read once; behind their end everything is 0.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let n = N.min(self.0.len());
        let (these, rest) = self.0.split_at(n);
        out[..n].copy_from_slice(these);
        self.0 = rest;
        out
    }

    fn bit(&mut self) -> bool {
        self.byte() & 1 != 0
    }

    /// A small number mostly, any at times.
    fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..=247 => u64::from(small % 12),
            _ => u64::from_le_bytes(self.take()),
        }
    }
}

/// One machine, and what its model knows of it.
struct World {
    machine: Connection,
    form: Form,
    now: Instant,
    /// Control messages of this side that have not completed.
    controls: VecDeque<ControlKind>,
    posted: u64,
    /// Data messages that came and whose buffers are not posted again.
    held: u64,
    received: u64,
    /// What this side granted so far.
    granted: u64,
    established: bool,
    windows: Vec<(WindowId, Window)>,
    /// Epochs asked for, and passed.
    fences: (u64, u64),
    closed: Option<CloseReason>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Window {
    Exposed,
    Revoked,
    Released,
}

/// Runs the bytes.
///
/// # Panics
///
/// When the machine breaks a promise.
pub(crate) fn exercise(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut world = World::new(&mut input);
    world.act();
    while !input.0.is_empty() {
        world.step(&mut input);
        world.act();
    }
    world.end();
}

fn local(input: &mut Input<'_>) -> LocalParams {
    let flags = input.byte();
    let credits = u32::from(input.byte() % 6);
    LocalParams {
        header_mode: HeaderMode::Prefixed,
        require_header_mode: (flags & 64 != 0).then_some(HeaderMode::Raw),
        // Each subset of those that there are, but for long messages.
        features: u32::from(flags & 0b11_0111),
        require_features: 0,
        receive_size: if credits == 0 { 0 } else { RECEIVE_SIZE },
        receive_depth: credits,
        credits,
        incarnation: 7,
        connection: 5,
        connect_timeout: Duration::from_secs(1),
        close_timeout: Duration::from_secs(1),
        max_credit_window: 4096,
        fence_timeout: Duration::from_secs(2),
        liveness: match flags & 128 != 0 {
            true => LivenessTimeouts {
                unresponsive: Some(Duration::from_millis(300)),
                lost: Some(Duration::from_millis(900)),
            },
            false => LivenessTimeouts {
                unresponsive: None,
                lost: None,
            },
        },
    }
}

/// A hello of the peer: its own bytes, or one that can be understood.
fn hello(input: &mut Input<'_>, kind: HelloKind) -> [u8; HELLO_LEN] {
    if input.byte().is_multiple_of(8) {
        return input.take();
    }
    let flags = input.byte();
    let depth = u32::from(input.byte() % 8);
    let hello = Hello {
        kind,
        header_mode: HeaderMode::Raw,
        version: wire::VERSION,
        oldest: wire::OLDEST,
        features: u32::from(flags & 0b11_0111),
        receive_size: if depth == 0 { 0 } else { RECEIVE_SIZE },
        receive_depth: depth,
        credits: depth.min(u32::from(flags >> 6)),
        incarnation: 9,
        connection: 3,
    };
    hello.encode()
}

impl World {
    fn new(input: &mut Input<'_>) -> Self {
        let now = Instant::now();
        let roles = input.byte();
        let form = match roles & 1 {
            0 => Form::Msg,
            _ => Form::Rdm,
        };
        let params = local(input);
        let machine = match roles & 2 {
            0 => Connection::initiate(form, params, now),
            _ => {
                let hello = hello(input, HelloKind::Hello);
                Connection::accept(form, params, &hello, now)
            }
        };
        Self {
            machine,
            form,
            now,
            controls: VecDeque::new(),
            posted: 0,
            held: 0,
            received: 0,
            granted: params.credits.into(),
            established: false,
            windows: Vec::new(),
            fences: (0, 0),
            closed: None,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 25 {
            0..=5 => self.control(input),
            6 | 7 => self.data(input),
            8 => self.machine.on_connected(&hello(input, HelloKind::Ack)),
            9 if input.byte().is_multiple_of(8) => {
                let data: [u8; HELLO_LEN] = input.take();
                self.machine.on_refused(FabricErrno::new(111), &data);
            }
            10 => self.send(input.bit()),
            11 if self.posted > 0 => {
                self.posted -= 1;
                self.machine.on_data_done();
            }
            12 | 13 => {
                if let Some(kind) = self.controls.pop_front() {
                    self.machine.on_control_done(kind);
                }
            }
            14 if self.held > 0 => {
                let n = 1 + u64::from(input.byte()) % self.held;
                self.held -= n;
                self.machine.on_reposted(n);
            }
            15 => self.wait(input),
            16 if input.byte().is_multiple_of(4) => {
                let within = Duration::from_millis(self.small(input) * 100);
                self.machine.close(ByeReason::DONE, self.now + within);
            }
            17 => self.expose(),
            18 => self.revoke(input),
            19 => self.one_sided(input),
            20 => {
                let request = SubscriptionRequest {
                    tag: input.number(),
                    on: input.bit(),
                };
                self.machine.ask_subscription(request);
            }
            21 if input.byte().is_multiple_of(16) => self.machine.on_lost(None),
            22 => self.machine.on_bytes(),
            24 => {
                self.fences.0 += 1;
                self.machine.fence(self.fences.0, input.number(), self.now);
            }
            23 if input.byte().is_multiple_of(16) => self.machine.abort(CloseReason::ClosedLocally),
            _ => {}
        }
    }

    fn small(&self, input: &mut Input<'_>) -> u64 {
        u64::from(input.byte() % 16)
    }

    /// A message with CQ data, mostly of a kind that there is and for this connection.
    fn control(&mut self, input: &mut Input<'_>) {
        const KINDS: [u8; 16] = [1, 1, 1, 2, 3, 3, 4, 5, 6, 14, 15, 13, 16, 17, 18, 32];
        let (how, kind) = (input.byte(), input.byte());
        let kind = match how % 16 {
            0 => kind,
            _ => KINDS[usize::from(kind % 16)],
        };
        let kind = ControlKind(kind);
        let index = match (how & 16 != 0, self.form) {
            (true, _) => u32::from_le_bytes(input.take()),
            (false, Form::Msg) => 0,
            (false, Form::Rdm) => 5,
        };
        let body = self.body(kind, input);
        let cq_data = wire::cq_data(kind, index);
        match self.machine.on_message(Some(cq_data.into())) {
            Some(Arrival::Control(cq_data)) => self.machine.on_control(cq_data, &body, self.now),
            Some(Arrival::Data) => self.arrived(body.len() as u64),
            _ => {}
        }
    }

    fn body(&self, kind: ControlKind, input: &mut Input<'_>) -> Vec<u8> {
        let how = input.byte();
        if how.is_multiple_of(8) {
            let body: [u8; 64] = input.take();
            return body[..usize::from(how % 65)].to_vec();
        }
        let number = input.number();
        match kind {
            ControlKind::CREDIT => Control::Credit { granted: number },
            ControlKind::BYE => Control::Bye {
                last_sequence: number,
                reason: ByeReason::DONE,
            },
            ControlKind::HEARTBEAT => Control::Heartbeat {
                number,
                answer: input.bit(),
            },
            ControlKind::REVOKE => Control::Revoke { window: number },
            ControlKind::REVOKE_ACK => Control::RevokeAck { window: number },
            ControlKind::FENCE => Control::Fence { nonce: number },
            ControlKind::FENCED => Control::Fenced { nonce: number },
            ControlKind::HELLO => return hello(input, HelloKind::Hello).to_vec(),
            ControlKind::HELLO_ACK => return hello(input, HelloKind::Ack).to_vec(),
            _ => return input.take::<48>().to_vec(),
        }
        .encode()
        .as_slice()
        .to_vec()
    }

    fn data(&mut self, input: &mut Input<'_>) {
        let len = match input.byte() % 16 {
            0 => RECEIVE_SIZE + 1,
            n => u64::from(n),
        };
        let mark = match self.form {
            Form::Msg => None,
            Form::Rdm => Some(u64::from(wire::mark(input.bit(), ControlKind::DATA, 5))),
        };
        if self.machine.on_message(mark).is_some() {
            self.arrived(len);
        }
    }

    fn arrived(&mut self, len: u64) {
        let stood = self.machine.state();
        if let Ok(number) = self.machine.on_data(len) {
            assert_eq!(number, self.received, "a gap or a double");
            assert!(stood != State::Closed, "data of a connection that is over");
            self.received += 1;
            self.held += 1;
            assert!(self.received <= self.granted, "more than was granted");
        }
    }

    fn send(&mut self, undo: bool) {
        let may = self.machine.may_send();
        let posted = self.machine.on_data_posted();
        assert_eq!(may.err(), posted.err(), "asked and answered");
        if posted.is_ok() {
            assert!(self.established, "sends before it stands");
            if undo {
                self.machine.on_post_undone();
            } else {
                self.posted += 1;
            }
        }
    }

    fn wait(&mut self, input: &mut Input<'_>) {
        self.now += Duration::from_millis(self.small(input) * 40);
        self.machine.tick(self.now);
        if input.bit() {
            self.machine.postpone(self.now);
        }
    }

    fn expose(&mut self) {
        if let Some(window) = self.machine.expose_window() {
            assert!(self.windows.iter().all(|(other, _)| *other != window));
            self.windows.push((window, Window::Exposed));
        }
    }

    fn revoke(&mut self, input: &mut Input<'_>) {
        let at = usize::from(input.byte());
        let deadline = Some(self.now + Duration::from_secs(1));
        if self.windows.is_empty() {
            return;
        }
        let at = at % self.windows.len();
        let (window, state) = &mut self.windows[at];
        if *state == Window::Exposed {
            *state = Window::Revoked;
            self.machine.revoke_window(*window, deadline);
        }
    }

    /// An operation of this side on a window of the peer, done at once, or one of the peer's that
    /// says so.
    fn one_sided(&mut self, input: &mut Input<'_>) {
        if input.bit() {
            if let Ok(number) = self.machine.on_peer_wrote() {
                assert_eq!(number, self.received);
                self.received += 1;
                self.held += 1;
            }
            return;
        }
        let (window, immediate) = (WindowId(input.number()), input.bit());
        if self.machine.has_windows() && self.machine.on_window_posted(immediate).is_ok() {
            match input.bit() {
                true => self.machine.on_window_undone(immediate),
                false => self.machine.on_window_done(window),
            }
        }
    }

    /// Carries out what the machine asks for.
    fn act(&mut self) {
        let mut actions = 0;
        while let Some(action) = self.machine.next_action() {
            actions += 1;
            assert!(actions < 100, "it asks without an end");
            assert!(self.closed.is_none(), "{action:?} after Close");
            self.carry_out(action);
        }
        assert!(self.controls.len() <= CONTROLS_MAX, "{:?}", self.controls);
        if self.closed.is_some() {
            assert_eq!(self.machine.state(), State::Closed);
            assert!(self.machine.may_send().is_err());
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::SendControl { cq_data, body } => self.sent(cq_data, body.as_slice()),
            Action::Established => {
                assert!(!std::mem::replace(&mut self.established, true), "once");
            }
            Action::PeerClosing { .. } | Action::Unresponsive | Action::Responsive => {
                assert!(self.established, "{action:?} before it stands");
            }
            Action::FencePassed { epoch } => {
                assert!(
                    self.fences.1 < epoch && epoch <= self.fences.0,
                    "passed unasked"
                );
                self.fences.1 = epoch;
            }
            Action::ReleaseWindow(window) => {
                let at = self.windows.iter_mut().find(|(id, _)| *id == window);
                let (_, state) = at.expect("a window of ours");
                assert_eq!(*state, Window::Revoked, "released unasked, or twice");
                *state = Window::Released;
            }
            Action::WindowRevoked(window) => self.machine.window_in_use(window, 0),
            Action::SubscriptionAsked(request) => {
                let outcome = SubscriptionOutcome(request.tag as u16);
                self.machine.answer_subscription(outcome, 1);
            }
            Action::LongOffered { .. }
            | Action::LongGranted { .. }
            | Action::LongRefused { .. } => {
                panic!("{action:?}, and nobody offered to take long messages")
            }
            Action::Close(reason) => self.closed = Some(reason),
            Action::Connect { .. }
            | Action::Accept { .. }
            | Action::Reject { .. }
            | Action::SubscriptionAnswered { .. } => {}
        }
    }

    fn sent(&mut self, cq_data: u32, body: &[u8]) {
        let (kind, _) = wire::split_cq_data(cq_data);
        match Control::parse(kind, body).expect("what we say is understood") {
            Control::Credit { granted } => {
                assert!(granted >= self.granted, "a grant that goes backwards");
                self.granted = granted;
            }
            Control::Bye { .. } => assert_eq!(self.posted, 0, "a bye before posted data was done"),
            _ => {}
        }
        self.controls.push_back(kind);
    }

    /// Whatever came before: it ends, once, with a reason.
    fn end(&mut self) {
        self.machine.on_lost(None);
        self.act();
        let reason = self.closed.expect("it is over");
        assert_eq!(self.machine.close_reason(), Some(reason));
        assert!(!reason.to_string().is_empty());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(crate::soak::cases(1500, 40000))]

        #[test]
        fn a_peer_that_says_anything_breaks_nothing_but_its_connection(
            bytes in prop::collection::vec(any::<u8>(), 0..600),
        ) {
            exercise(&bytes);
        }
    }
}
