//! How a connection begins: hello, answer or refusal, and from when on messages flow.

use std::time::Instant;

use super::{Action, CloseReason, Connection, Form, LocalParams, State, Violation, send_control};
use crate::errno::FabricErrno;
use crate::protocol::wire::{Control, ControlKind, Hello, HelloKind, Refusal, WireError};

impl Connection {
    /// The side that connects. Its first action sends the hello.
    pub(crate) fn initiate(form: Form, local: LocalParams, now: Instant) -> Self {
        let mut this = Self::new(form, local, State::Connecting, now);
        let hello = local.hello(HelloKind::Hello);
        this.pending.handshake = Some(Box::new(match form {
            Form::Msg => Action::Connect {
                data: hello.encode(),
            },
            Form::Rdm => this.control(&Control::Hello(hello)),
        }));
        this
    }

    /// The side that was connected to. Its first action answers the hello: acceptance, or refusal
    /// and `Close`.
    pub(crate) fn accept(form: Form, local: LocalParams, peer_hello: &[u8], now: Instant) -> Self {
        let mut this = Self::new(form, local, State::Accepting, now);
        match Hello::parse(peer_hello).and_then(|hello| expect(hello, HelloKind::Hello)) {
            Ok(hello) => {
                this.set_peer(hello);
                this.answer(&local.hello(HelloKind::Ack));
                if let Err(refusal) = this.local.judge(&hello) {
                    // Takes the place of the answer.
                    this.end(CloseReason::RefusedPeer(refusal));
                }
            }
            Err(error) => {
                let refusal = Refusal::of_wire_error(&error);
                let answer = match form {
                    Form::Msg => Some(Action::Reject {
                        data: refusal.encode(),
                    }),
                    Form::Rdm => Hello::peek_connection(peer_hello)
                        .map(|peer| send_control(&Control::Refusal(refusal), peer)),
                };
                this.pending.handshake = answer.map(Box::new);
                this.close_with(CloseReason::RefusedPeer(refusal));
            }
        }
        this
    }

    fn answer(&mut self, ack: &Hello) {
        self.pending.handshake = Some(Box::new(match self.form {
            Form::Msg => Action::Accept { data: ack.encode() },
            Form::Rdm => self.control(&Control::Hello(*ack)),
        }));
    }

    /// MSG form: the event queue said FI_CONNECTED. `data` is the private data of an initiator's
    /// event; an acceptor's means nothing.
    pub(crate) fn on_connected(&mut self, data: &[u8]) {
        match self.state {
            State::Connecting => self.on_hello_ack(Hello::parse(data)),
            // An acceptor may have been established by the first message already; only now may it
            // transmit.
            State::Accepting | State::Established | State::Closing => self.become_established(true),
            State::Closed => {}
        }
    }

    /// MSG form: the event queue gave an error for `fi_connect`, with the private data of the
    /// refusal if there was one.
    pub(crate) fn on_refused(&mut self, errno: FabricErrno, data: &[u8]) {
        if self.state != State::Connecting {
            return self.on_lost(Some(errno));
        }
        self.end(match Refusal::parse(data) {
            Ok(refusal) => CloseReason::Refused(refusal),
            Err(_) => CloseReason::ConnectFailed(errno),
        });
    }

    pub(super) fn on_hello(&mut self, hello: Hello) {
        match (hello.kind, self.state, self.form) {
            (HelloKind::Ack, State::Connecting, Form::Rdm) => self.on_hello_ack(Ok(hello)),
            _ => self.violate(Violation::OutOfTurn("a hello where none is due")),
        }
    }

    fn on_hello_ack(&mut self, answer: Result<Hello, WireError>) {
        match answer.and_then(|hello| expect(hello, HelloKind::Ack)) {
            Ok(hello) => {
                self.set_peer(hello);
                match self.local.judge(&hello) {
                    Ok(()) => self.become_established(true),
                    Err(refusal) => self.end(CloseReason::RefusedPeer(refusal)),
                }
            }
            Err(error) => self.violate(error),
        }
    }

    pub(super) fn on_refusal(&mut self, refusal: Refusal) {
        match (self.form, self.state) {
            (Form::Msg, _) => self.violate(Violation::OutOfTurn("a refusal as a message")),
            (Form::Rdm, State::Connecting) => self.end(CloseReason::Refused(refusal)),
            (Form::Rdm, _) => self.end(CloseReason::PeerAborted(refusal)),
        }
    }

    pub(super) fn become_established(&mut self, transmit: bool) {
        if matches!(self.state, State::Connecting | State::Accepting) {
            self.state = State::Established;
            self.pending.established = true;
        }
        if transmit {
            self.transmit = true;
            self.handshake_deadline = None;
        }
    }

    fn set_peer(&mut self, hello: Hello) {
        self.peer = Some(hello);
        self.data.set_peer(&hello);
    }

    /// Something arrived that only an established peer sends. Over MSG an acceptor may see it
    /// before FI_CONNECTED, since completion queue and event queue are two queues; and in the RDM
    /// form before it hears that its answer was sent.
    #[inline]
    pub(super) fn on_arrival(&mut self, too_early: &'static str) {
        match self.state {
            State::Accepting if self.pending.handshake.is_none() => {
                self.become_established(self.form == Form::Rdm);
            }
            State::Accepting | State::Connecting => self.violate(Violation::OutOfTurn(too_early)),
            State::Established | State::Closing | State::Closed => {}
        }
    }

    /// A control message came that only an established peer sends, which has not said goodbye, and
    /// only where both sides know what it is (`known`): whether it is to be looked at. `early` and
    /// `late` name it where it came too soon, and after the goodbye.
    pub(super) fn takes(
        &mut self,
        kind: ControlKind,
        known: bool,
        [early, late]: [&'static str; 2],
    ) -> bool {
        if !known {
            self.violate(WireError::Kind(kind.0));
            return false;
        }
        self.on_arrival(early);
        if self.state != State::Closed && self.goodbye.is_heard() {
            self.violate(Violation::OutOfTurn(late));
        }
        self.state != State::Closed
    }
}

fn expect(hello: Hello, kind: HelloKind) -> Result<Hello, WireError> {
    if hello.kind == kind {
        return Ok(hello);
    }
    Err(WireError::Kind(hello.encode()[4]))
}
