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

use std::time::{Duration, Instant};

use crate::errno::FabricErrno;
pub(crate) use crate::protocol::close_reason::{CloseReason, Violation};
use crate::protocol::credit::{ReceiveCredits, SendCredits};
use crate::protocol::liveness::{Patience, Silence, Verdict};
use crate::protocol::wire::{
    self, ByeReason, Control, ControlBody, ControlKind, Counts, HELLO_LEN, HeaderMode, Hello,
    HelloKind, Refusal, RefusalCode, SubscriptionAnswer, SubscriptionOutcome, SubscriptionRequest,
    WindowId, WireError,
};
pub(crate) use fences::FENCE_MESSAGES_MAX;
use fences::Fences;
use headers::Headers;
pub(crate) use long::{LONG_ANSWERS_MAX, LONG_MESSAGES_MAX};
use long::{Long, LongAction};
pub(crate) use subscriptions::SUBSCRIPTION_MESSAGES_MAX;
use subscriptions::{SubscriptionAction, Subscriptions};
pub(crate) use windows::{WINDOW_MESSAGES_MAX, WINDOWS_MAX};
use windows::{WindowAccount, WindowAction};

mod fences;
mod headers;
mod long;
mod subscriptions;
mod windows;

/// How the two sides are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// An FI_EP_MSG endpoint each; hello, answer and refusal are CM private data.
    Msg,
    /// Many connections over one FI_EP_RDM endpoint; everything is a message.
    Rdm,
}

/// What this side says of itself, and how long it waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalParams {
    /// How this side frames the messages that it sends.
    pub(crate) header_mode: HeaderMode,
    /// The framing that the peer must use; `None` takes any.
    pub(crate) require_header_mode: Option<HeaderMode>,
    /// Feature bits of this side.
    pub(crate) features: u32,
    /// Those that the peer must have, too.
    pub(crate) require_features: u32,
    /// Largest whole message that this side takes, in bytes; 0 when it takes none.
    pub(crate) receive_size: u64,
    /// Data messages that this side has receive buffers for.
    pub(crate) receive_depth: u32,
    /// First grant, and window from then on; at most `receive_depth`, 0 when `receive_size` is 0.
    pub(crate) credits: u32,
    /// Which life of the endpoint this is.
    pub(crate) incarnation: u64,
    /// This side's number for the connection.
    pub(crate) connection: u64,
    /// For the whole handshake, on either side.
    pub(crate) connect_timeout: Duration,
    /// For the goodbye when the peer began it and the application has set no deadline.
    pub(crate) close_timeout: Duration,
    /// Largest receive depth of a peer that this side believes.
    pub(crate) max_credit_window: u32,
    /// How long the peer may say nothing.
    pub(crate) patience: Patience,
}

impl LocalParams {
    fn hello(&self, kind: HelloKind) -> Hello {
        debug_assert!(
            self.credits <= self.receive_depth,
            "more credits than buffers"
        );
        debug_assert!(
            self.receive_size > 0 || self.credits == 0,
            "credits for messages of no size"
        );
        Hello {
            kind,
            header_mode: self.header_mode,
            version: wire::VERSION,
            oldest: wire::OLDEST,
            features: self.features,
            receive_size: self.receive_size,
            receive_depth: self.receive_depth,
            credits: self.credits,
            incarnation: self.incarnation,
            connection: self.connection,
        }
    }

    fn terms(&self) -> Terms {
        Terms {
            require_header_mode: self.require_header_mode,
            max_credit_window: self.max_credit_window,
            features: self.features,
            require_features: self.require_features,
            receive_size: self.receive_size,
            connection: self.connection,
            close_timeout: self.close_timeout,
            fence_limit: self.patience.lost.unwrap_or(FENCE_LIMIT),
        }
    }
}

/// What of the [`LocalParams`] means something once the hello is made. A listener has thousands of
/// these.
#[derive(Debug, Clone, Copy)]
struct Terms {
    require_header_mode: Option<HeaderMode>,
    max_credit_window: u32,
    features: u32,
    require_features: u32,
    receive_size: u64,
    connection: u64,
    close_timeout: Duration,
    fence_limit: Duration,
}

impl Terms {
    /// Whether this side wants a peer with such a hello.
    fn judge(&self, peer: &Hello) -> Result<(), Refusal> {
        let mut deepest = self.max_credit_window;
        if (self.features | peer.features) & wire::FEATURE_SHORT_MARKS != 0 {
            deepest = deepest.min(wire::SHORT_DEPTH_MAX);
        }
        if peer.receive_depth > deepest {
            let details = [peer.receive_depth.into(), deepest.into()];
            return Err(Refusal::new(RefusalCode::RECEIVE_DEPTH, details));
        }
        if peer.features & self.require_features != self.require_features {
            let details = [peer.features.into(), self.require_features.into()];
            return Err(Refusal::new(RefusalCode::FEATURES, details));
        }
        match self.require_header_mode {
            Some(asked) if asked != peer.header_mode => {
                let details = [peer.header_mode.to_detail(), asked.to_detail()];
                Err(Refusal::new(RefusalCode::HEADER_MODE, details))
            }
            _ => Ok(()),
        }
    }
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

/// Why a data message can't be posted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendBlocked {
    /// Not yet: a transmit now would crash inside the provider.
    NotConnected,
    /// The peer has granted no room.
    NoCredit,
    /// A long message is under way.
    Long,
    /// One of the two sides is saying goodbye.
    Closing,
    /// Over.
    Closed,
}

/// What a message is that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Data: for `on_data`.
    Data,
    /// The header of the message behind it: for `on_header`.
    Header,
    /// The payload of the header in front of it: for `on_payload`.
    Payload,
    /// With this CQ data: for `on_control`.
    Control(u32),
}

/// A message that must be dropped: the connection was over, or is over because of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dropped;

/// What the endpoint is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// MSG form: `fi_connect` with this private data.
    Connect { data: [u8; HELLO_LEN] },
    /// MSG form: `fi_accept` with this private data.
    Accept { data: [u8; HELLO_LEN] },
    /// MSG form: `fi_reject` with this private data; `Close` follows.
    Reject { data: [u8; HELLO_LEN] },
    /// Send this body with this CQ data, then call `on_control_done`.
    SendControl { cq_data: u32, body: ControlBody },
    /// Tell the application: messages can arrive and, as soon as `may_send` agrees, be sent.
    Established,
    /// Tell the application: nothing was heard from the peer for a while.
    Unresponsive,
    /// Tell the application: something came from the peer again.
    Responsive,
    /// Tell the application: the peer has said goodbye; nothing more comes, nothing more can be
    /// sent.
    PeerClosing { reason: ByeReason },
    /// The peer does not use a window of this side any more, it says: close its registration.
    ReleaseWindow(WindowId),
    /// Everything that the peer began before this epoch did is over.
    FencePassed { epoch: u64 },
    /// The peer has revoked a window of its own: tell the application, and the machine how many
    /// operations use it (`window_in_use`).
    WindowRevoked(WindowId),
    /// A subscriber asks: say what it is answered (`answer_subscription`).
    SubscriptionAsked(SubscriptionRequest),
    /// The publisher's answer to the request of `ask_subscription`; the next one may be made.
    SubscriptionAnswered {
        request: SubscriptionRequest,
        answer: SubscriptionAnswer,
    },
    /// A long message was offered: give it a destination (`grant_long`) or refuse it
    /// (`refuse_long`), now or later.
    LongOffered { len: u64 },
    /// The destination of this side's long message.
    LongGranted { base: u64, key: u64 },
    /// This side's long message is not taken: it is over. The limit, if that is why.
    LongRefused { limit: Option<u64> },
    /// Close the transport now. The last action, exactly once.
    Close(CloseReason),
}

#[derive(Debug, Clone, Copy)]
struct PeerBye {
    last_sequence: u64,
    reason: ByeReason,
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

/// Heartbeats: one question of each side at a time, until it is answered.
#[derive(Debug, Clone, Copy, Default)]
struct Heartbeats {
    /// Questions of this side so far; the last one has this number.
    asked: u64,
    unanswered: bool,
    /// One is to be asked as soon as there is none unanswered.
    ask: bool,
    /// Questions of the peer so far.
    heard: u64,
    /// The last of them waits for its answer.
    answer: bool,
    /// Handed to the endpoint, and its send has not completed.
    under_way: u8,
    /// The peer's questions so far, each with its pause, last until then.
    paused_until: Option<Instant>,
}

impl Heartbeats {
    /// Whether the peer asks as seldom as silence makes anybody ask, a few that were held up and
    /// come at once apart.
    fn is_seldom(&mut self, now: Instant) -> bool {
        let since = self.paused_until.map_or(now, |until| until.max(now));
        let until = since + HEARTBEAT_PAUSE;
        self.paused_until = Some(until);
        until <= now + HEARTBEAT_PAUSE * HEARTBEATS_AT_ONCE
    }
}

/// MSG form: the CQ data of a header that travels alone, and of the payload behind it.
const LONE_HEADER: u32 = (ControlKind::HEADER.0 as u32) << wire::INDEX_BITS;
const LONE_PAYLOAD: u32 = (ControlKind::PAYLOAD.0 as u32) << wire::INDEX_BITS;

/// How long a peer may take to answer a fence, where nothing is said of how long it may be silent.
const FENCE_LIMIT: Duration = Duration::from_secs(60);

/// How much later it is judged where this side has not looked for a while.
const SECOND_LOOK: Duration = Duration::from_millis(100);

/// A question and an answer.
const HEARTBEATS_UNDER_WAY_MAX: u8 = 2;

/// Between two questions of a peer, on average. A third of the shortest limit of silence (10 ms)
/// lies between those of a peer of ours, since each of them was answered.
const HEARTBEAT_PAUSE: Duration = Duration::from_millis(1);

/// Questions without a pause, at most: a side that was held up may read several at once.
const HEARTBEATS_AT_ONCE: u32 = 64;

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
    send: SendCredits,
    receive: ReceiveCredits,
    /// Data messages posted and not yet completed.
    posted: u64,
    /// Numbered messages up to this one were done with when nothing was posted, modulo 2^32.
    settled: u32,
    bye_reason: ByeReason,
    /// Our bye was handed to the endpoint / its send completed.
    bye_sent: bool,
    bye_done: bool,
    peer_bye: Option<PeerBye>,
    /// A credit message was handed to the endpoint and its send has not completed.
    credit_under_way: bool,
    /// Runs until this side may transmit.
    handshake_deadline: Option<Instant>,
    close_deadline: Option<Instant>,
    headers: Headers,
    /// From the first time on that one side speaks of a window.
    windows: Option<Box<WindowAccount>>,
    long: Option<Box<Long>>,
    /// From the first one on.
    fences: Option<Box<Fences>>,
    /// Long messages that came are not handed out yet: no goodbye before.
    held: bool,
    /// The long message of this number is whole, and was not handed out yet.
    long_whole: Option<u64>,
    /// From the first message about one on.
    subscriptions: Option<Box<Subscriptions>>,
    /// The close deadline came from the application.
    own_close: bool,
    silence: Option<Silence>,
    heartbeats: Heartbeats,
    pending: Pending,
    /// Boxed: a listener has thousands of connections, and few of them are over.
    reason: Option<Box<CloseReason>>,
}

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

    fn new(form: Form, local: LocalParams, state: State, now: Instant) -> Self {
        Self {
            form,
            local: local.terms(),
            state,
            transmit: false,
            peer: None,
            send: SendCredits::new(0, 0),
            receive: ReceiveCredits::new(local.credits),
            posted: 0,
            settled: 0,
            bye_reason: ByeReason::DONE,
            bye_sent: false,
            bye_done: false,
            peer_bye: None,
            credit_under_way: false,
            handshake_deadline: Some(now + local.connect_timeout),
            close_deadline: None,
            headers: Headers::default(),
            windows: None,
            long: None,
            fences: None,
            held: false,
            long_whole: None,
            subscriptions: None,
            own_close: false,
            silence: Silence::new(local.patience, now),
            heartbeats: Heartbeats::default(),
            pending: Pending::default(),
            reason: None,
        }
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

    /// Tells data from control messages, by the CQ data that came with a message; `None`: neither.
    /// Then the peer broke the protocol (MSG form), or the message is for a connection that is
    /// over, or for nobody (RDM form): it is dropped.
    #[inline]
    pub(crate) fn on_message(&mut self, cq_data: Option<u64>) -> Option<Arrival> {
        match (self.form, cq_data.map(u32::try_from)) {
            (Form::Msg, None) => Some(Arrival::Data),
            (Form::Msg, Some(Ok(LONE_HEADER))) => Some(Arrival::Header),
            (Form::Msg, Some(Ok(LONE_PAYLOAD))) => Some(Arrival::Payload),
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
            _ => Arrival::Control(cq_data),
        };
        (index == self.own_index()).then_some(arrival)
    }

    /// The CQ data that each data message to the peer carries; none where the endpoint itself is
    /// the connection.
    #[inline]
    pub(crate) fn data_mark(&self) -> Option<u32> {
        match (self.form, &self.peer) {
            (Form::Rdm, Some(peer)) => Some(wire::mark(
                self.has_short_marks(),
                ControlKind::DATA,
                index_of(peer.connection),
            )),
            _ => None,
        }
    }

    /// Data messages carry short marks: one of the two providers has no room for long ones.
    #[inline]
    pub(crate) fn has_short_marks(&self) -> bool {
        let peer = self.peer.as_ref().map_or(0, |peer| peer.features);
        (self.local.features | peer) & wire::FEATURE_SHORT_MARKS != 0
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

    fn on_window_message(&mut self, control: Control) {
        if !self.has_windows() {
            return self.violate(WireError::Kind(control.kind().0));
        }
        self.on_arrival("a window message before the connection was established");
        if self.state == State::Closed {
            return;
        }
        if self.peer_bye.is_some() {
            return self.violate(Violation::OutOfTurn("a window message after its goodbye"));
        }
        let taken = match control {
            Control::Revoke { window } => self.windows().on_revoke(WindowId(window)),
            Control::RevokeAck { window } => self.windows().on_ack(WindowId(window)),
            _ => Ok(()),
        };
        if let Err(violation) = taken {
            self.violate(violation);
        }
    }

    fn on_fence(&mut self, nonce: u64) {
        self.on_arrival("a fence before the connection was established");
        if self.state == State::Closed {
            return;
        }
        if self.peer_bye.is_some() {
            return self.violate(Violation::OutOfTurn("a fence after its goodbye"));
        }
        if let Err(violation) = self.fences().on_question(nonce) {
            self.violate(violation);
        }
    }

    /// Also after its goodbye: until this side says its own, it answers.
    fn on_fenced(&mut self, nonce: u64, now: Instant) {
        self.on_arrival("a fence before the connection was established");
        let limit = self.local.fence_limit;
        if self.state != State::Closed
            && let Err(violation) = self.fences().on_answer(nonce, now, limit)
        {
            self.violate(violation);
        }
    }

    fn fences(&mut self) -> &mut Fences {
        self.fences.get_or_insert_default()
    }

    /// The peer is asked to pass an epoch: what it begins from now on is not meant. `nonce` is
    /// random. [`Action::FencePassed`] is the answer, or the connection ends.
    pub(crate) fn fence(&mut self, epoch: u64, nonce: u64, now: Instant) {
        if self.state != State::Closed {
            let limit = self.local.fence_limit;
            self.fences().ask(epoch, nonce, now, limit);
        }
    }

    /// Long messages that came wait for a fence: this side's goodbye waits for them.
    pub(crate) fn hold_goodbye(&mut self, held: bool) {
        self.held = held;
    }

    fn windows(&mut self) -> &mut WindowAccount {
        self.windows.get_or_insert_default()
    }

    fn on_subscription_message(&mut self, control: Control) {
        if !self.has_subscriptions() {
            return self.violate(WireError::Kind(control.kind().0));
        }
        self.on_arrival("a subscription before the connection was established");
        if self.state == State::Closed {
            return;
        }
        if self.peer_bye.is_some() {
            return self.violate(Violation::OutOfTurn("a subscription after its goodbye"));
        }
        let taken = match control {
            Control::Subscription { number, request } if self.publishes() => {
                self.subscriptions().on_request(number, request)
            }
            Control::SubscriptionAnswer { number, answer } => {
                self.subscriptions().on_answer(number, answer)
            }
            _ => Err(Violation::OutOfTurn(
                "a subscription at a side that does not publish",
            )),
        };
        if let Err(violation) = taken {
            self.violate(violation);
        }
    }

    fn on_long_message(&mut self, control: Control) {
        if !self.has_long_messages() {
            return self.violate(WireError::Kind(control.kind().0));
        }
        self.on_arrival("a long message before the connection was established");
        if self.state == State::Closed {
            return;
        }
        if self.peer_bye.is_some() {
            return self.violate(Violation::OutOfTurn("a long message after its goodbye"));
        }
        let takes = self.local.receive_size > 0;
        match self.long().on_control(control) {
            Ok(_) if matches!(control, Control::LongOffer { .. }) && !takes => {
                self.violate(Violation::OutOfTurn("a long message where none are taken"));
            }
            Ok(whole) => self.long_whole = self.long_whole.or(whole),
            Err(violation) => self.violate(violation),
        }
    }

    fn long(&mut self) -> &mut Long {
        self.long.get_or_insert_default()
    }

    /// Both sides know what long messages are: one to send some, the other to take them.
    pub(crate) fn has_long_messages(&self) -> bool {
        self.peer
            .is_some_and(|peer| peer.features & self.local.features & wire::FEATURE_LONG != 0)
    }

    /// The peer may be offered long messages: it takes messages, and does not say that those are
    /// none of them.
    pub(crate) fn may_offer_long(&self) -> bool {
        let takes = |peer: &Hello| {
            peer.receive_size > 0 && peer.features & wire::FEATURE_TAKES_NO_LONG == 0
        };
        self.has_long_messages() && self.peer.as_ref().is_some_and(takes)
    }

    /// A message of so many bytes is to be sent piece by piece: takes its credit. Its end is told
    /// by [`Action::LongRefused`], or by this side (`long_written`).
    ///
    /// # Errors
    ///
    /// As [`Connection::may_send`]; then nothing changes.
    pub(crate) fn offer_long(&mut self, len: u64) -> Result<(), SendBlocked> {
        let number = self.on_data_posted()?;
        self.long().offer(number, len);
        Ok(())
    }

    /// Whether pieces of this side's long message may be posted: its credit is taken, so it goes on
    /// while a goodbye waits for it.
    pub(crate) fn may_write_long(&self) -> bool {
        self.transmit && matches!(self.state, State::Established | State::Closing)
    }

    /// All of this side's long message is in the peer's memory.
    pub(crate) fn long_written(&mut self) {
        self.long().written();
        self.on_data_done();
    }

    /// Where the peer is to write what [`Action::LongOffered`] told of.
    pub(crate) fn grant_long(&mut self, base: u64, key: u64) {
        self.long().grant(base, key);
    }

    /// Until when the message must be whole that was granted; the connection ends where it is not.
    pub(crate) fn bound_long(&mut self, deadline: Option<Instant>) {
        self.long().bound(deadline);
    }

    /// That is not taken; up to `limit` bytes are.
    pub(crate) fn refuse_long(&mut self, limit: u64) {
        self.long().refuse(limit);
    }

    /// Whether the peer may be writing a long message.
    pub(crate) fn is_long_open(&self) -> bool {
        self.long.as_ref().is_some_and(|long| long.is_open())
    }

    /// The number of the long message that has become whole: to be asked for behind each control
    /// message.
    pub(crate) fn take_whole_long(&mut self) -> Option<u64> {
        self.long_whole.take()
    }

    fn next_long(&mut self) -> Option<Action> {
        let may_send = self.transmit && !self.bye_sent;
        let goodbye = self.peer_bye.is_some();
        Some(match self.long.as_mut()?.next_action(may_send, goodbye)? {
            LongAction::Send(control) => self.control(&control),
            LongAction::Offered { len } => Action::LongOffered { len },
            LongAction::Granted { base, key } => Action::LongGranted { base, key },
            LongAction::Refused { limit } => {
                // Nothing was sent behind it.
                self.on_post_undone();
                Action::LongRefused { limit }
            }
        })
    }

    /// Both sides know what subscriptions are.
    fn has_subscriptions(&self) -> bool {
        self.peer
            .is_some_and(|peer| peer.features & self.local.features & wire::FEATURE_PUBLISH != 0)
    }

    fn subscriptions(&mut self) -> &mut Subscriptions {
        self.subscriptions.get_or_insert_default()
    }

    /// The acceptor does.
    fn publishes(&self) -> bool {
        self.peer.is_some_and(|peer| peer.kind == HelloKind::Hello)
    }

    /// Whether `ask_subscription` would take a request.
    pub(crate) fn may_ask_subscription(&self) -> bool {
        self.state == State::Established
            && self.has_subscriptions()
            && !self.publishes()
            && self.subscriptions.as_ref().is_none_or(|all| all.may_ask())
    }

    /// A subscriber's request; false: not now, since the last one has no answer yet, or there is
    /// nobody to ask.
    pub(crate) fn ask_subscription(&mut self, request: SubscriptionRequest) -> bool {
        self.may_ask_subscription() && self.subscriptions().ask(request)
    }

    /// What the publisher says to [`Action::SubscriptionAsked`]. `next` is the number of the tag's
    /// next publication.
    pub(crate) fn answer_subscription(&mut self, outcome: SubscriptionOutcome, next: u64) {
        self.subscriptions().give(outcome, next);
    }

    /// Both sides know what windows are.
    pub(crate) fn has_windows(&self) -> bool {
        self.peer
            .is_some_and(|peer| peer.features & self.local.features & wire::FEATURE_WINDOWS != 0)
    }

    /// This side's number for the connection, as its hello says.
    pub(crate) fn local_connection(&self) -> u64 {
        self.local.connection
    }

    /// The number of a new window of this side; `None` when the connection does not stand, or the
    /// peer does not know windows.
    pub(crate) fn expose_window(&mut self) -> Option<WindowId> {
        (self.state == State::Established && self.has_windows()).then(|| self.windows().expose())
    }

    /// Asks the peer not to use a window any more, once for each window; the connection ends where
    /// it does not agree in time.
    pub(crate) fn revoke_window(&mut self, window: WindowId, deadline: Option<Instant>) {
        self.windows().revoke(window, deadline);
    }

    /// Whether the peer has revoked a window of its own.
    pub(crate) fn is_window_revoked(&self, window: WindowId) -> bool {
        let windows = self.windows.as_ref();
        windows.is_some_and(|windows| windows.is_revoked(window))
    }

    /// The answer to [`Action::WindowRevoked`].
    pub(crate) fn window_in_use(&mut self, window: WindowId, operations: u32) {
        self.windows().in_use(window, operations);
    }

    /// Whether a one-sided operation without immediate data can be posted; one with them is like a
    /// data message (`may_send`).
    ///
    /// # Errors
    ///
    /// What stands in the way.
    #[inline]
    pub(crate) fn may_use_window(&self) -> Result<(), SendBlocked> {
        match self.may_send() {
            Err(SendBlocked::NoCredit | SendBlocked::Long) => Ok(()),
            answer => answer,
        }
    }

    /// A one-sided operation is about to be posted; with immediate data it uses a credit, as a data
    /// message.
    ///
    /// # Errors
    ///
    /// What stands in the way; then nothing changes.
    #[inline]
    pub(crate) fn on_window_posted(&mut self, immediate: bool) -> Result<(), SendBlocked> {
        if immediate {
            self.on_data_posted()?;
            self.windows().on_immediate_posted();
            return Ok(());
        }
        self.may_use_window()?;
        self.posted += 1;
        Ok(())
    }

    /// The provider did not take the operation of the last `on_window_posted`.
    pub(crate) fn on_window_undone(&mut self, immediate: bool) {
        if immediate {
            self.on_immediate_undone();
        }
        self.on_data_done();
    }

    /// Immediate data that were counted will not be posted: their credit is free again.
    pub(crate) fn on_immediate_undone(&mut self) {
        self.send.undo();
        self.windows().on_immediate_undone();
    }

    /// A one-sided operation completed, or failed.
    #[inline]
    pub(crate) fn on_window_done(&mut self, window: WindowId) {
        if let Some(windows) = &mut self.windows {
            windows.on_operation_done(window);
        }
        self.on_data_done();
    }

    /// The peer wrote to a window of this side, with immediate data. Gives its number among the
    /// data messages, counted from 0.
    ///
    /// # Errors
    ///
    /// [`Dropped`]: it must not reach the application.
    pub(crate) fn on_peer_wrote(&mut self) -> Result<u64, Dropped> {
        self.on_counted(0, u64::MAX)
    }

    /// One data message of `len` bytes arrived. Gives its number, counted from 0.
    ///
    /// # Errors
    ///
    /// [`Dropped`]: the message must not reach the application.
    #[inline]
    pub(crate) fn on_data(&mut self, len: u64) -> Result<u64, Dropped> {
        if self.headers.waiting.is_some() {
            self.violate(Violation::OutOfTurn("data where a payload is due"));
            return Err(Dropped);
        }
        self.on_counted(len, self.local.receive_size)
    }

    /// A long message is handed out. Gives its number, counted from 0.
    ///
    /// # Errors
    ///
    /// [`Dropped`]: it must not reach the application.
    pub(crate) fn on_long_data(&mut self) -> Result<u64, Dropped> {
        if self.headers.waiting.is_some() {
            self.violate(Violation::OutOfTurn(
                "a long message where a payload is due",
            ));
            return Err(Dropped);
        }
        self.on_counted(0, u64::MAX)
    }

    /// Something arrived that uses a credit.
    fn on_counted(&mut self, len: u64, limit: u64) -> Result<u64, Dropped> {
        self.on_arrival("data before the connection was established");
        if self.state == State::Closed {
            return Err(Dropped);
        }
        self.hear();
        let sequence = self.receive.received();
        let found: Result<(), Violation> = if self.peer_bye.is_some() {
            Err(Violation::OutOfTurn("data after its goodbye"))
        } else if len > limit {
            Err(Violation::TooLong {
                len_bytes: len,
                limit_bytes: limit,
            })
        } else {
            self.receive.on_received().map_err(Violation::from)
        };
        found.map(|()| sequence).map_err(|violation| {
            self.violate(violation);
            Dropped
        })
    }

    /// Whether a data message can be posted.
    ///
    /// # Errors
    ///
    /// What stands in the way.
    #[inline]
    pub(crate) fn may_send(&self) -> Result<(), SendBlocked> {
        match self.state {
            State::Closed => Err(SendBlocked::Closed),
            State::Closing => Err(SendBlocked::Closing),
            State::Connecting | State::Accepting => Err(SendBlocked::NotConnected),
            State::Established if !self.transmit => Err(SendBlocked::NotConnected),
            State::Established if self.long.as_ref().is_some_and(|long| long.is_sending()) => {
                Err(SendBlocked::Long)
            }
            State::Established if self.send.available() == 0 => Err(SendBlocked::NoCredit),
            State::Established => Ok(()),
        }
    }

    /// A data message is about to be posted: takes its credit and gives its number, counted from 0,
    /// writes with immediate data left out and headers that travel alone counted.
    ///
    /// # Errors
    ///
    /// As [`Connection::may_send`]; then nothing changes.
    #[inline]
    pub(crate) fn on_data_posted(&mut self) -> Result<u64, SendBlocked> {
        self.may_send()?;
        let number = self.send.used() + u64::from(self.headers.sent);
        let taken = self.send.take();
        debug_assert!(taken, "may_send saw a credit");
        self.posted += 1;
        let immediates = self
            .windows
            .as_ref()
            .map_or(0, |windows| windows.immediates());
        Ok(number - immediates)
    }

    /// The provider did not take the message of the last `on_data_posted` (-FI_EAGAIN).
    pub(crate) fn on_post_undone(&mut self) {
        self.send.undo();
        self.on_data_done();
    }

    /// A posted data message completed, or failed.
    #[inline]
    pub(crate) fn on_data_done(&mut self) {
        debug_assert!(self.posted > 0, "more completions than posts");
        self.posted = self.posted.saturating_sub(1);
    }

    /// `n` receive buffers that had held data messages are posted again.
    pub(crate) fn on_reposted(&mut self, n: u64) {
        self.receive.on_reposted(n);
    }

    /// The send of a control message completed.
    pub(crate) fn on_control_done(&mut self, kind: ControlKind) {
        match kind {
            ControlKind::CREDIT => self.credit_under_way = false,
            ControlKind::FENCE | ControlKind::FENCED => self.fences().on_sent(kind),
            ControlKind::LONG_DONE => self.long().on_done_sent(),
            ControlKind::HEARTBEAT => {
                let under_way = &mut self.heartbeats.under_way;
                debug_assert!(*under_way > 0, "more completions than heartbeats");
                *under_way = under_way.saturating_sub(1);
            }
            ControlKind::BYE => {
                self.bye_done = true;
                self.finish_if_done();
            }
            ControlKind::HELLO_ACK if self.state == State::Accepting => {
                self.become_established(true)
            }
            _ => {}
        }
    }

    /// The transport is gone: FI_SHUTDOWN (`None`) or the first failed operation. Again and in any
    /// order is fine.
    pub(crate) fn on_lost(&mut self, errno: Option<FabricErrno>) {
        if self.peer_bye.is_some() && self.bye_sent {
            // The peer leaves when it has our bye, maybe before we hear that ours was sent.
            self.bye_done = true;
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

    /// The polite end: no new sends, our bye when all posted data is done, then the peer's bye,
    /// then `Close`; at the deadline `Close` in any case. Called again, the earlier deadline
    /// counts.
    pub(crate) fn close(&mut self, reason: ByeReason, deadline: Instant) {
        match self.state {
            State::Closed => return,
            State::Connecting | State::Accepting => return self.end(CloseReason::ClosedLocally),
            State::Established => self.bye_reason = reason,
            State::Closing => {}
        }
        self.state = State::Closing;
        self.close_deadline = match self.close_deadline {
            Some(earlier) if self.own_close => Some(earlier.min(deadline)),
            _ => Some(deadline),
        };
        self.own_close = true;
    }

    /// Lets deadlines pass.
    pub(crate) fn tick(&mut self, now: Instant) {
        let passed = |deadline: Option<Instant>| deadline.is_some_and(|at| at <= now);
        if passed(self.close_deadline) {
            self.end(CloseReason::ClosedByDeadline);
        } else if passed(self.window_deadline()) {
            self.end(CloseReason::RevokeDeadline);
        } else if passed(self.long_deadline()) {
            self.end(CloseReason::LongDeadline);
        } else if passed(self.fence_deadline()) {
            let limit = self.local.fence_limit;
            self.end(CloseReason::FenceDeadline { limit });
        } else if passed(self.handshake_deadline) {
            self.end(match self.state {
                State::Connecting => CloseReason::ConnectTimedOut,
                _ => CloseReason::HandshakeTimedOut,
            });
        } else {
            self.judge_silence(now);
        }
    }

    /// Whether silence of the peer means anything now: nobody has said goodbye. Whatever the peer's
    /// hello offers.
    fn listens(&self) -> bool {
        self.transmit && !self.bye_sent && self.peer_bye.is_none()
    }

    /// Whether the peer can be asked for a sign of life; where it can't, only what it says by
    /// itself counts.
    fn answers_heartbeats(&self) -> bool {
        let features = self.peer.map_or(0, |peer| peer.features) & self.local.features;
        features & wire::FEATURE_HEARTBEAT != 0
    }

    fn judge_silence(&mut self, now: Instant) {
        if !self.listens() {
            return;
        }
        while let Some(verdict) = self.silence.as_mut().and_then(|silence| silence.look(now)) {
            match verdict {
                Verdict::Ask => self.heartbeats.ask = self.answers_heartbeats(),
                Verdict::Unresponsive => self.pending.unresponsive = true,
                Verdict::Lost { silence } => {
                    return self.end(CloseReason::PeerSilent { silence });
                }
            }
        }
    }

    /// Something came from the peer; when, the next [`Connection::tick`] says.
    #[inline]
    fn hear(&mut self) {
        if let Some(silence) = &mut self.silence
            && silence.hear()
        {
            self.pending.responsive = true;
        }
        // What is still to be asked has its answer.
        self.heartbeats.ask = false;
    }

    /// Since when nothing was heard from the peer, where that means something.
    pub(crate) fn silent_since(&self) -> Option<Instant> {
        self.silence
            .filter(|_| self.listens())
            .map(|silence| silence.since())
    }

    /// What the peer said may lie in a queue that is behind: its silence is not judged yet.
    pub(crate) fn postpone(&mut self, now: Instant) {
        if let Some(silence) = &mut self.silence {
            silence.postpone(now);
        }
        if let Some(fences) = &mut self.fences {
            fences.postpone(now + SECOND_LOOK);
        }
    }

    /// Bytes came from the peer that are no whole message yet.
    pub(crate) fn on_bytes(&mut self) {
        self.hear();
    }

    /// When `tick` has something to do; `None` when nothing is timed.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let look = match &self.silence {
            Some(silence) if self.listens() => silence.next_look(),
            _ => None,
        };
        let windows = self.window_deadline();
        let others = [look, windows, self.fence_deadline(), self.long_deadline()];
        [self.handshake_deadline, self.close_deadline]
            .into_iter()
            .chain(others)
            .flatten()
            .min()
    }

    fn long_deadline(&self) -> Option<Instant> {
        let long = self.long.as_ref();
        long.filter(|_| self.state != State::Closed)?.deadline()
    }

    /// Who waits for the goodbye waits for that.
    fn fence_deadline(&self) -> Option<Instant> {
        let asks = self.transmit && !self.bye_sent;
        self.fences.as_ref().filter(|_| asks)?.deadline()
    }

    fn window_deadline(&self) -> Option<Instant> {
        self.windows.as_ref()?.next_deadline()
    }

    /// The next thing to do, in the only order that makes sense; `None` when there is nothing for
    /// now.
    pub(crate) fn next_action(&mut self) -> Option<Action> {
        if let Some(news) = self.next_news() {
            return Some(news);
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

    /// The same while a control message waits to be sent: the handshake, what the application is to
    /// hear, and the end.
    pub(crate) fn next_news(&mut self) -> Option<Action> {
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
        if let (true, Some(bye)) = (
            std::mem::take(&mut self.pending.peer_closing),
            self.peer_bye,
        ) {
            return Some(Action::PeerClosing { reason: bye.reason });
        }
        let closed = std::mem::take(&mut self.pending.close);
        self.close_reason().filter(|_| closed).map(Action::Close)
    }

    fn next_fence(&mut self) -> Option<Action> {
        let (transmit, may_ask) = (self.transmit, !self.bye_sent);
        let fences = self.fences.as_mut()?;
        if let Some(epoch) = fences.take_passed() {
            return Some(Action::FencePassed { epoch });
        }
        let control = transmit.then(|| fences.next(may_ask))??;
        Some(self.control(&control))
    }

    fn next_subscription(&mut self) -> Option<Action> {
        let may_send = self.transmit && !self.bye_sent && self.peer_bye.is_none();
        let subscriptions = self.subscriptions.as_mut()?;
        Some(match subscriptions.next_action(may_send)? {
            SubscriptionAction::Send(control) => self.control(&control),
            SubscriptionAction::Asked(request) => Action::SubscriptionAsked(request),
            SubscriptionAction::Answered(request, answer) => {
                Action::SubscriptionAnswered { request, answer }
            }
        })
    }

    fn next_window(&mut self) -> Option<Action> {
        let may_send = self.transmit && !self.bye_sent && self.peer_bye.is_none();
        Some(match self.windows.as_mut()?.next_action(may_send)? {
            WindowAction::Send(control) => self.control(&control),
            WindowAction::Release(window) => Action::ReleaseWindow(window),
            WindowAction::Revoked(window) => Action::WindowRevoked(window),
        })
    }

    fn next_control(&mut self) -> Option<Action> {
        if !self.transmit || self.bye_sent {
            return None;
        }
        if let Some(heartbeat) = self.next_heartbeat() {
            return Some(self.beat(&heartbeat));
        }
        if self.peer_bye.is_none()
            && !self.credit_under_way
            && let Some(granted) = self.receive.take_grant()
        {
            self.credit_under_way = true;
            return Some(self.control(&Control::Credit { granted }));
        }
        if self.state == State::Closing && self.posted == 0 && !self.held {
            self.bye_sent = true;
            let bye = Control::Bye {
                last_sequence: self.send.used(),
                reason: self.bye_reason,
            };
            return Some(self.control(&bye));
        }
        None
    }

    /// In the RDM form it says what was sent and granted, too: a provider that makes its own
    /// connection anew loses messages, and nobody is told.
    fn beat(&mut self, heartbeat: &Control) -> Action {
        if self.posted == 0 {
            let immediates = self.windows.as_ref().map_or(0, |it| it.immediates());
            let numbered = (self.send.used() - immediates) as u32;
            self.settled = numbered.wrapping_add(self.headers.sent);
        }
        let counts = Counts {
            sent: self.settled,
            granted: match self.credit_under_way {
                true => 0,
                false => self.receive.granted(),
            },
        };
        match (self.control(heartbeat), self.form) {
            (Action::SendControl { cq_data, body }, Form::Rdm) => Action::SendControl {
                cq_data,
                body: body.with_counts(counts),
            },
            (beat, _) => beat,
        }
    }

    /// A message of the peer's was sent, it says, and has not come although it has had its time.
    pub(crate) fn on_message_lost(&mut self, waited: Duration) {
        if self.listens() {
            self.end(CloseReason::MessageLost { waited });
        }
    }

    /// An answer, or a question when the last one was answered.
    fn next_heartbeat(&mut self) -> Option<Control> {
        let beats = &mut self.heartbeats;
        if self.peer_bye.is_some() || beats.under_way == HEARTBEATS_UNDER_WAY_MAX {
            return None;
        }
        let heartbeat = if std::mem::take(&mut beats.answer) {
            Control::Heartbeat {
                number: beats.heard,
                answer: true,
            }
        } else if beats.ask && !beats.unanswered {
            (beats.ask, beats.unanswered) = (false, true);
            beats.asked += 1;
            Control::Heartbeat {
                number: beats.asked,
                answer: false,
            }
        } else {
            return None;
        };
        beats.under_way += 1;
        Some(heartbeat)
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

    /// Largest whole message that the peer takes, in bytes.
    #[inline]
    pub(crate) fn peer_receive_size(&self) -> u64 {
        self.peer.map_or(0, |peer| peer.receive_size)
    }

    /// Data messages that the peer has room for now.
    pub(crate) fn credits(&self) -> u64 {
        self.send.available()
    }

    /// Data messages posted since the connection began.
    #[inline]
    pub(crate) fn sent(&self) -> u64 {
        self.send.used()
    }

    /// Data messages received since the connection began.
    pub(crate) fn received(&self) -> u64 {
        self.receive.received()
    }

    /// Data messages posted and not completed.
    #[cfg(test)]
    pub(crate) fn posted(&self) -> u64 {
        self.posted
    }

    /// Why it is over, once it is.
    pub(crate) fn close_reason(&self) -> Option<CloseReason> {
        self.reason.as_deref().copied()
    }

    fn on_hello(&mut self, hello: Hello) {
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

    fn on_refusal(&mut self, refusal: Refusal) {
        match (self.form, self.state) {
            (Form::Msg, _) => self.violate(Violation::OutOfTurn("a refusal as a message")),
            (Form::Rdm, State::Connecting) => self.end(CloseReason::Refused(refusal)),
            (Form::Rdm, _) => self.end(CloseReason::PeerAborted(refusal)),
        }
    }

    fn on_credit(&mut self, granted: u64) {
        self.on_arrival("credit before the connection was established");
        if self.peer_bye.is_some() {
            return self.violate(Violation::OutOfTurn("credit after its goodbye"));
        }
        if self.state != State::Closed
            && let Err(error) = self.send.grant(granted)
        {
            self.violate(error);
        }
    }

    fn on_heartbeat(&mut self, number: u64, answer: bool, now: Instant) {
        self.on_arrival("a heartbeat before the connection was established");
        if self.state == State::Closed {
            return;
        }
        let beats = &mut self.heartbeats;
        let wrong = if self.local.features & wire::FEATURE_HEARTBEAT == 0 {
            Some("a heartbeat that nobody offered to answer")
        } else if self.peer_bye.is_some() {
            Some("a heartbeat after its goodbye")
        } else if answer {
            let due = std::mem::take(&mut beats.unanswered) && number == beats.asked;
            (!due).then_some("an answer to a heartbeat that was not sent")
        } else {
            beats.heard += 1;
            let early = std::mem::replace(&mut beats.answer, true);
            if early || number != beats.heard {
                Some("a heartbeat before the last one was answered")
            } else {
                (!beats.is_seldom(now)).then_some("heartbeats without a pause")
            }
        };
        if let Some(what) = wrong {
            self.violate(Violation::OutOfTurn(what));
        }
    }

    /// A grant that was lost is said again beside a heartbeat; what is not above the last one is
    /// none.
    fn on_counts(&mut self, body: &[u8]) {
        let counts = Counts::parse(body).filter(|_| self.form == Form::Rdm);
        if let Some(Counts { granted, .. }) = counts
            && self.state != State::Closed
            && granted > self.send.granted()
            && let Err(error) = self.send.grant(granted)
        {
            self.violate(error);
        }
    }

    fn on_bye(&mut self, bye: PeerBye, now: Instant) {
        self.on_arrival("a goodbye before the connection was established");
        if self.state == State::Closed {
            return;
        }
        if self.peer_bye.is_some() {
            return self.violate(Violation::OutOfTurn("a second goodbye"));
        }
        if self.headers.waiting.is_some() {
            return self.violate(Violation::OutOfTurn("a goodbye where a payload is due"));
        }
        let received = self.receive.received();
        if bye.last_sequence < received {
            return self.violate(Violation::Count {
                claimed: bye.last_sequence,
                received,
            });
        }
        if self.is_long_open() {
            return self.violate(Violation::OutOfTurn(
                "a goodbye in the middle of a long message",
            ));
        }
        self.peer_bye = Some(bye);
        if self.state == State::Established {
            self.state = State::Closing;
            self.bye_reason = ByeReason::ANSWER;
            self.close_deadline = Some(now + self.local.close_timeout);
            self.pending.peer_closing = true;
        }
        self.finish_if_done();
    }

    /// Something arrived that only an established peer sends. Over MSG an acceptor may see it
    /// before FI_CONNECTED, since completion queue and event queue are two queues; and in the RDM
    /// form before it hears that its answer was sent.
    fn on_arrival(&mut self, too_early: &'static str) {
        match self.state {
            State::Accepting if self.pending.handshake.is_none() => {
                self.become_established(self.form == Form::Rdm);
            }
            State::Accepting | State::Connecting => self.violate(Violation::OutOfTurn(too_early)),
            State::Established | State::Closing | State::Closed => {}
        }
    }

    fn become_established(&mut self, transmit: bool) {
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
        self.send = SendCredits::new(hello.credits, hello.receive_depth);
    }

    fn finish_if_done(&mut self) {
        let Some(bye) = self.peer_bye else { return };
        if !self.bye_done {
            return;
        }
        let (expected, received) = (bye.last_sequence, self.receive.received());
        self.end(if expected == received {
            CloseReason::Finished
        } else {
            CloseReason::PeerTruncated { expected, received }
        });
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
        self.close_deadline = None;
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

fn expect(hello: Hello, kind: HelloKind) -> Result<Hello, WireError> {
    if hello.kind == kind {
        return Ok(hello);
    }
    Err(WireError::Kind(hello.encode()[4]))
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
#[path = "connection/tests/headers.rs"]
mod headers_tests;
#[cfg(test)]
#[path = "connection/tests/simulation.rs"]
mod simulation;
#[cfg(test)]
mod tests;
