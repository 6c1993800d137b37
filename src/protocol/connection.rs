//! One connection as a state machine without I/O: what may be sent when, and how and why it ends.
//!
//! The endpoint tells it what happened (`on_...`), asks it what to do ([`Connection::next_action`])
//! and gives it the time. It serves both roles and both forms: FI_EP_MSG, where hello and answer
//! travel in the CM private data, and RDM, where they are messages.
//!
//! ```text
//! initiator: Connecting ─hello-ack─► Established ─close / peer's bye─► Closing ─both byes─► Closed
//! acceptor:  Accepting ──connected─► Established
//! any state ─loss, refusal, violation, deadline─► Closed
//! ```
//!
//! Its parts are in files of their own, each with what the connection does about it: the handshake,
//! data messages and their headers, heartbeats, goodbyes, fences, windows, long messages and
//! subscriptions.
//!
//! What the endpoint owes it:
//! - Actions are taken until `None` after each group of calls; [`Action::Close`] is the last one,
//!   for ever.
//! - Completions of one connection are handed over in the order of the completion queue.
//! - Before [`Connection::on_lost`] for an FI_SHUTDOWN, the completion queue is read to its end:
//!   the peer's goodbye may be in it.
//! - Before a message for a connection that is still `Connecting`, the event queue is read:
//!   FI_CONNECTED is already in it.
//! - A failed send of data or of a control message is an `on_lost`, after `on_data_done` for the
//!   data.

use std::time::Instant;

use crate::errno::FabricErrno;
pub(crate) use crate::protocol::close_reason::{CloseReason, Violation};
use crate::protocol::liveness::SilenceTimer;
use crate::protocol::wire::{self, Control, ControlKind, Hello, Refusal, RefusalCode, WireError};
pub(crate) use action::{Action, Arrival, Dropped, SendBlocked};
use data::Data;
use fences::Fences;
use goodbye::{Goodbye, PeerBye};
use heartbeats::Heartbeats;
use long::Long;
pub(crate) use long::{LONG_ANSWERS_MAX, LONG_MESSAGES_MAX};
pub(crate) use subscriptions::SUBSCRIPTION_MESSAGES_MAX;
use subscriptions::Subscriptions;
pub(crate) use terms::LocalParams;
use terms::Terms;
use windows::WindowAccount;
pub(crate) use windows::{WINDOW_MESSAGES_MAX, WINDOWS_MAX};

mod action;
mod data;
mod fences;
mod frames;
mod goodbye;
mod handshake;
mod headers;
mod heartbeats;
mod long;
mod subscriptions;
mod terms;
mod windows;

/// How the two sides are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// An FI_EP_MSG endpoint each; hello, answer and refusal are CM private data.
    Msg,
    /// Many connections over one FI_EP_RDM endpoint; everything is a message.
    Rdm,
}

/// Where a connection stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Initiator: the hello is under way.
    Connecting,
    /// Acceptor: the answer is under way.
    Accepting,
    /// Messages flow.
    Established,
    /// No new sends; the goodbye is under way.
    Closing,
    /// Over; the reason is known.
    Closed,
}

/// What remains to be told or sent. Each kind is pending at most once, so no queue is needed and
/// none can overflow.
#[derive(Debug, Clone, Default)]
struct Pending {
    /// Connect, Accept, Reject, or the RDM message that is their like. Boxed: it is needed once or
    /// twice, and large.
    handshake: Option<Box<Action>>,
    established: bool,
    peer_closing: bool,
    unresponsive: bool,
    responsive: bool,
    close: bool,
}

/// MSG form: the CQ data of a header that travels alone, and of the payload behind it.
const LONE_HEADER: u32 = (ControlKind::HEADER.0 as u32) << wire::INDEX_BITS;
const LONE_PAYLOAD: u32 = (ControlKind::PAYLOAD.0 as u32) << wire::INDEX_BITS;
const MSG_FRAME: u32 = (ControlKind::FRAME.0 as u32) << wire::INDEX_BITS;

/// One connection. See the module's description.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Connection {
    form: Form,
    local: Terms,
    state: State,
    /// Sends may be posted: FI_CONNECTED was seen (MSG) or the handshake is done (RDM).
    transmit: bool,
    peer: Option<Hello>,
    data: Data,
    goodbye: Goodbye,
    /// Runs until this side may transmit.
    handshake_deadline: Option<Instant>,
    /// From the first time on that one side speaks of a window.
    windows: Option<Box<WindowAccount>>,
    long: Option<Box<Long>>,
    /// From the first one on.
    fences: Option<Box<Fences>>,
    /// From the first message about one on.
    subscriptions: Option<Box<Subscriptions>>,
    silence: Option<SilenceTimer>,
    heartbeats: Heartbeats,
    pending: Pending,
    /// Boxed: a listener has thousands of connections, and few of them are over.
    reason: Option<Box<CloseReason>>,
}

impl Connection {
    fn new(form: Form, local: LocalParams, state: State, now: Instant) -> Self {
        Self {
            form,
            local: local.terms(),
            state,
            transmit: false,
            peer: None,
            data: Data::new(local.credits),
            goodbye: Goodbye::NONE,
            handshake_deadline: Some(now + local.connect_timeout),
            windows: None,
            long: None,
            fences: None,
            subscriptions: None,
            silence: SilenceTimer::new(local.liveness, now),
            heartbeats: Heartbeats::default(),
            pending: Pending::default(),
            reason: None,
        }
    }

    /// Tells data from control messages, by the CQ data that came with a message; `None`: neither.
    /// Then the peer broke the protocol (MSG form), or the message is for a connection that is
    /// over, or for nobody (RDM form): it is dropped.
    #[inline]
    pub(crate) fn on_message(&mut self, cq_data: Option<u64>) -> Option<Arrival> {
        match (self.form, cq_data.map(u32::try_from)) {
            (Form::Msg, None) => Some(Arrival::Data),
            (Form::Msg, Some(Ok(LONE_HEADER))) => Some(Arrival::Header),
            (Form::Msg, Some(Ok(LONE_PAYLOAD))) => Some(Arrival::Payload),
            (Form::Msg, Some(Ok(MSG_FRAME))) => Some(Arrival::Frame),
            (Form::Msg, Some(Ok(cq_data))) => Some(Arrival::Control(cq_data)),
            (Form::Rdm, Some(Ok(cq_data))) => self.on_rdm_message(cq_data),
            // Anybody can send to an endpoint that is not connected.
            (Form::Rdm, None | Some(Err(_))) => None,
            (Form::Msg, Some(Err(_))) => {
                self.violate(WireError::Field {
                    name: "cq_data",
                    value: cq_data.unwrap_or_default(),
                });
                None
            }
        }
    }

    fn on_rdm_message(&mut self, cq_data: u32) -> Option<Arrival> {
        let (kind, index) = wire::split_cq_data(cq_data);
        let arrival = match kind {
            ControlKind::DATA => Arrival::Data,
            ControlKind::HEADER => Arrival::Header,
            ControlKind::PAYLOAD => Arrival::Payload,
            ControlKind::FRAME => Arrival::Frame,
            _ => Arrival::Control(cq_data),
        };
        (index == self.own_index()).then_some(arrival)
    }

    /// A message with CQ data arrived that is not RDM data.
    pub(crate) fn on_control(&mut self, cq_data: u32, body: &[u8], now: Instant) {
        if self.state == State::Closed {
            return;
        }
        let (kind, index) = wire::split_cq_data(cq_data);
        if index != self.own_index() {
            return self.violate(wrong_index(index));
        }
        self.hear();
        match Control::parse(kind, body) {
            Ok(Control::Refusal(refusal)) => self.on_refusal(refusal),
            Ok(Control::Hello(hello)) => self.on_hello(hello),
            Ok(Control::Credit { granted }) => self.on_credit(granted),
            Ok(Control::Heartbeat { number, answer }) => {
                self.on_heartbeat(number, answer, now);
                self.on_counts(body);
            }
            Ok(Control::Bye {
                last_sequence,
                reason,
            }) => {
                self.on_bye(
                    PeerBye {
                        last_sequence,
                        reason,
                    },
                    now,
                );
            }
            Ok(window @ (Control::Revoke { .. } | Control::RevokeAck { .. })) => {
                self.on_window_message(window);
            }
            Ok(Control::Fence { nonce }) => self.on_fence(nonce),
            Ok(Control::Fenced { nonce }) => self.on_fenced(nonce, now),
            Ok(control @ (Control::Subscription { .. } | Control::SubscriptionAnswer { .. })) => {
                self.on_subscription_message(control)
            }
            Ok(
                control @ (Control::LongOffer { .. }
                | Control::LongGrant { .. }
                | Control::LongDone { .. }
                | Control::LongRefused { .. }),
            ) => self.on_long_message(control),
            Err(error) => self.violate(error),
        }
    }

    /// This side's number for the connection, as its hello says.
    pub(crate) fn local_connection(&self) -> u64 {
        self.local.connection
    }

    /// The send of a control message completed.
    pub(crate) fn on_control_done(&mut self, kind: ControlKind) {
        match kind {
            ControlKind::CREDIT => self.data.on_credit_sent(),
            ControlKind::FENCE | ControlKind::FENCED => self.fences().on_sent(kind),
            ControlKind::LONG_DONE => self.long().on_done_sent(),
            ControlKind::HEARTBEAT => self.heartbeats.on_sent(),
            ControlKind::BYE => self.on_bye_done(),
            ControlKind::HELLO_ACK if self.state == State::Accepting => {
                self.become_established(true)
            }
            _ => {}
        }
    }

    /// The transport is gone: FI_SHUTDOWN (`None`) or the first failed operation. Again and in any
    /// order is fine.
    pub(crate) fn on_lost(&mut self, errno: Option<FabricErrno>) {
        if self.goodbye.on_lost() {
            return self.finish_if_done();
        }
        self.end(match (self.state, errno) {
            (State::Connecting, Some(errno)) => CloseReason::ConnectFailed(errno),
            _ => CloseReason::PeerLost { errno },
        });
    }

    /// The rude end, decided by this side: `Close` is the next action.
    pub(crate) fn abort(&mut self, reason: CloseReason) {
        self.end(reason);
    }

    /// Lets deadlines pass.
    pub(crate) fn tick(&mut self, now: Instant) {
        let passed = |deadline: Option<Instant>| deadline.is_some_and(|at| at <= now);
        if passed(self.goodbye.deadline()) {
            self.end(CloseReason::ClosedByDeadline);
        } else if passed(self.window_deadline()) {
            self.end(CloseReason::RevokeDeadline);
        } else if passed(self.long_deadline()) {
            self.end(CloseReason::LongDeadline);
        } else if passed(self.handshake_deadline) {
            self.end(match self.state {
                State::Connecting => CloseReason::ConnectTimedOut,
                _ => CloseReason::HandshakeTimedOut,
            });
        } else {
            self.look_at_fence(now, None);
            if self.state != State::Closed {
                self.judge_silence(now);
            }
        }
    }

    /// When `tick` has something to do; `None` when nothing is timed.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let look = match &self.silence {
            Some(silence) if self.listens() => silence.next_look(),
            _ => None,
        };
        let windows = self.window_deadline();
        let others = [look, windows, self.fence_deadline(), self.long_deadline()];
        [self.handshake_deadline, self.goodbye.deadline()]
            .into_iter()
            .chain(others)
            .flatten()
            .min()
    }

    /// The next thing to do, in the only order that makes sense; `None` when there is nothing for
    /// now.
    pub(crate) fn next_action(&mut self) -> Option<Action> {
        if let Some(action) = self.next_urgent() {
            return Some(action);
        }
        if self.state == State::Closed {
            return None;
        }
        // Before a goodbye: what it says of windows is said before it.
        self.next_fence()
            .or_else(|| self.next_window())
            .or_else(|| self.next_subscription())
            .or_else(|| self.next_long())
            .or_else(|| self.next_control())
    }

    /// The next thing that does not wait until the last control message is sent: the handshake,
    /// what the application is to hear, and the end.
    pub(crate) fn next_urgent(&mut self) -> Option<Action> {
        if let Some(action) = self.pending.handshake.take() {
            return Some(*action);
        }
        if std::mem::take(&mut self.pending.established) {
            return Some(Action::Established);
        }
        if std::mem::take(&mut self.pending.unresponsive) {
            return Some(Action::Unresponsive);
        }
        if std::mem::take(&mut self.pending.responsive) {
            return Some(Action::Responsive);
        }
        let closing = std::mem::take(&mut self.pending.peer_closing);
        if let Some(reason) = self.goodbye.peer_reason().filter(|_| closing) {
            return Some(Action::PeerClosing { reason });
        }
        let closed = std::mem::take(&mut self.pending.close);
        self.close_reason().filter(|_| closed).map(Action::Close)
    }

    fn next_control(&mut self) -> Option<Action> {
        if !self.transmit || self.goodbye.is_said() {
            return None;
        }
        if let Some(heartbeat) = self.next_heartbeat() {
            return Some(heartbeat);
        }
        if !self.goodbye.is_heard()
            && let Some(credit) = self.data.next_credit()
        {
            return Some(self.control(&credit));
        }
        if self.is_to_say_goodbye() && !self.has_open_fence() {
            let bye = self.goodbye.say(self.data.send.used());
            return Some(self.control(&bye));
        }
        None
    }

    /// Where the connection stands.
    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// What the peer said of itself, once it has.
    pub(crate) fn peer(&self) -> Option<&Hello> {
        self.peer.as_ref()
    }

    /// The wire version that both speak.
    #[cfg(test)]
    pub(crate) fn version(&self) -> Option<u16> {
        self.peer.map(|peer| peer.version.min(wire::VERSION))
    }

    /// The features that both have.
    #[cfg(test)]
    pub(crate) fn features(&self) -> u32 {
        self.peer
            .map_or(0, |peer| peer.features & self.local.features)
    }

    /// Why it is over, once it is.
    pub(crate) fn close_reason(&self) -> Option<CloseReason> {
        self.reason.as_deref().copied()
    }

    /// The endpoint, or this machine, saw the peer break the protocol.
    pub(crate) fn violate(&mut self, violation: impl Into<Violation>) {
        self.end(CloseReason::Violation(violation.into()));
    }

    /// Ends the connection, telling the peer where the form has a way to; the first reason counts.
    fn end(&mut self, reason: CloseReason) {
        if self.state == State::Closed {
            return;
        }
        let refusal = match reason {
            CloseReason::RefusedPeer(refusal) => refusal,
            CloseReason::ClosedLocally => Refusal::new(RefusalCode::CLOSING, [0, 0]),
            _ => Refusal::new(RefusalCode::ABORTED, [0, 0]),
        };
        let last = match self.form {
            // Each connection request ends in accept or reject, else the provider keeps its file
            // descriptor for ever.
            Form::Msg if self.state == State::Accepting && self.pending.handshake.is_some() => {
                Some(Action::Reject {
                    data: refusal.encode(),
                })
            }
            Form::Rdm if self.peer.is_some() && !knows(reason) => {
                Some(self.control(&Control::Refusal(refusal)))
            }
            Form::Msg | Form::Rdm => None,
        };
        self.pending.handshake = last.map(Box::new);
        self.close_with(reason);
    }

    fn close_with(&mut self, reason: CloseReason) {
        self.state = State::Closed;
        self.transmit = false;
        self.handshake_deadline = None;
        self.goodbye.end();
        // Whatever is heard from now on is no news.
        self.silence = None;
        self.reason = Some(Box::new(reason));
        self.pending.close = true;
    }

    /// Under which index the peer addresses this side.
    fn own_index(&self) -> u32 {
        match self.form {
            Form::Msg => 0,
            Form::Rdm => index_of(self.local.connection),
        }
    }

    fn control(&self, control: &Control) -> Action {
        match (self.form, self.peer) {
            (Form::Rdm, Some(peer)) => send_control(control, peer.connection),
            _ => send_control(control, 0),
        }
    }
}

/// The peer knows already, or can't be told.
fn knows(reason: CloseReason) -> bool {
    matches!(
        reason,
        CloseReason::Finished
            | CloseReason::PeerTruncated { .. }
            | CloseReason::Refused(_)
            | CloseReason::PeerAborted(_)
            | CloseReason::PeerLost { .. }
    )
}

fn wrong_index(index: u32) -> WireError {
    WireError::Field {
        name: "connection index",
        value: index.into(),
    }
}

fn index_of(connection: u64) -> u32 {
    connection as u32 & wire::INDEX_MASK
}

fn send_control(control: &Control, peer: u64) -> Action {
    Action::SendControl {
        cq_data: wire::cq_data(control.kind(), index_of(peer)),
        body: control.encode(),
    }
}

#[cfg(test)]
#[path = "connection/tests/explore.rs"]
mod explore;
#[cfg(test)]
#[path = "connection/tests/frames.rs"]
mod frames_tests;
#[cfg(test)]
#[path = "connection/tests/headers.rs"]
mod headers_tests;
#[cfg(test)]
#[path = "connection/tests/simulation.rs"]
mod simulation;
#[cfg(test)]
mod tests;
