//! Two machines over a simulated link, driven by random interleavings and checked against plain
//! counts.
//!
//! The link is lossless and in order in each direction until it is lost as a whole. A side that
//! closes with unread messages destroys what it had sent (as tcp does), so a wrong end of the
//! goodbye shows as lost data.

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;

use super::tests::params;
use super::*;
use crate::protocol::connection::fences::FENCE_MESSAGES_MAX;
use crate::protocol::credit::{CREDIT_MESSAGES_MAX, HEARTBEAT_MESSAGES_MAX};
use crate::protocol::liveness::LivenessTimeouts;
use crate::protocol::wire::{
    ByeReason, ControlBody, HELLO_LEN, SubscriptionOutcome, SubscriptionRequest,
};

#[derive(Debug, Clone, PartialEq, Eq)]
enum Packet {
    Hello([u8; HELLO_LEN]),
    Accepted([u8; HELLO_LEN]),
    Rejected([u8; HELLO_LEN]),
    Control(u32, ControlBody),
    /// A header that travels alone.
    Header,
    /// Whether its header travels in front of it.
    Data {
        after_header: bool,
    },
    Gone,
}

/// One endpoint with one connection, and what its model knows of it.
#[derive(Debug, Clone)]
pub(super) struct Side {
    local: LocalParams,
    /// An acceptor has none before the hello.
    connection: Option<Connection>,
    /// Packets on the way to this side.
    incoming: VecDeque<Packet>,
    /// Posts of this side that have not completed, in order; `None` is data.
    posts: VecDeque<Option<ControlKind>>,
    /// MSG acceptor: FI_CONNECTED lies in the event queue.
    connected_event: bool,
    established: bool,
    sent: u64,
    /// Of those, with a header in a message of its own.
    headers: u64,
    /// The header is posted, and the provider does not take the payload yet.
    half: bool,
    delivered: u64,
    reposted: u64,
    asked: u64,
    /// Subscriptions asked for, and those that were answered.
    requests: u64,
    answers: u64,
    /// Epochs that the peer was asked to pass, those that the goodbye waits for, as for a long
    /// message, and those that it has passed.
    fences: u64,
    awaited: u64,
    passed: u64,
    ended: Option<CloseReason>,
}

impl Side {
    fn new(local: LocalParams) -> Self {
        Self {
            local,
            connection: None,
            incoming: VecDeque::new(),
            posts: VecDeque::new(),
            connected_event: false,
            established: false,
            sent: 0,
            headers: 0,
            half: false,
            delivered: 0,
            reposted: 0,
            asked: 0,
            requests: 0,
            answers: 0,
            fences: 0,
            awaited: 0,
            passed: 0,
            ended: None,
        }
    }
}

/// What can happen; `usize` is the side, 0 the initiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    Deliver(usize),
    Complete(usize),
    ConnectedEvent(usize),
    Repost(usize),
    Act(usize),
    Send(usize),
    SendUndone(usize),
    /// Header and payload as two messages: the header, and that the provider does not take it; the
    /// payload.
    SendHeader(usize),
    SendHeaderUndone(usize),
    SendPayload(usize),
    /// Wants to know whether the other is alive.
    Ask(usize),
    /// Wants a subscription, or wants it no more.
    Subscribe(usize),
    /// Wants to know that what the other has begun is over.
    Fence(usize),
    Close(usize),
    CloseSoon(usize),
    Wait,
    LoseLink,
}

#[derive(Debug, Clone)]
pub(super) struct Pair {
    form: Form,
    now: Instant,
    pub(super) sides: [Side; 2],
    /// A loss, a short deadline or the passing of time excuses an end that is not `Finished`.
    disturbed: bool,
    /// Goodbyes wait for the fences of their side.
    pub(super) fences_hold: bool,
}

impl Pair {
    pub(super) fn new(form: Form, credits: [u32; 2], now: Instant) -> Self {
        Self::with(form, credits, LivenessTimeouts::ENDLESS, now)
    }

    fn with(form: Form, credits: [u32; 2], liveness: LivenessTimeouts, now: Instant) -> Self {
        let local = |credits| LocalParams {
            connection: 40 + u64::from(credits),
            features: params(credits).features | wire::FEATURE_TWO_MESSAGES,
            liveness,
            ..params(credits)
        };
        let mut sides = credits.map(|credits| Side::new(local(credits)));
        sides[0].connection = Some(Connection::initiate(form, sides[0].local, now));
        Self {
            form,
            now,
            sides,
            disturbed: false,
            fences_hold: true,
        }
    }

    /// Does one thing; false when it could not happen now.
    pub(super) fn step(&mut self, op: Op) -> bool {
        let happened = match op {
            Op::Deliver(at) => self.deliver(at),
            Op::Complete(at) => self.complete(at),
            Op::ConnectedEvent(at) => self.connected_event(at),
            Op::Repost(at) => self.repost(at),
            Op::Act(at) => self.act(at),
            Op::Send(at) => self.send(at, false),
            Op::SendUndone(at) => self.send(at, true),
            Op::SendHeader(at) => self.send_header(at, false),
            Op::SendHeaderUndone(at) => self.send_header(at, true),
            Op::SendPayload(at) => self.send_payload(at),
            Op::Ask(at) => self.ask(at),
            Op::Subscribe(at) => self.subscribe(at),
            Op::Fence(at) => self.fence(at),
            Op::Close(at) => self.close(at, Duration::from_secs(3600)),
            Op::CloseSoon(at) => self.close(at, Duration::from_millis(50)),
            Op::Wait => self.wait(),
            Op::LoseLink => self.lose_link(),
        };
        self.check();
        happened
    }

    fn live(&mut self, at: usize) -> Option<&mut Connection> {
        self.sides[at]
            .connection
            .as_mut()
            .filter(|c| c.state() != State::Closed)
    }

    fn deliver(&mut self, at: usize) -> bool {
        let Some(packet) = self.sides[at].incoming.pop_front() else {
            return false;
        };
        let (now, form) = (self.now, self.form);
        let local = self.sides[at].local;
        match packet {
            Packet::Hello(data) => {
                assert!(self.sides[at].connection.is_none(), "two hellos");
                self.sides[at].connection = Some(Connection::accept(form, local, &data, now));
            }
            Packet::Control(cq_data, body) if self.sides[at].connection.is_none() => {
                assert_eq!(wire::split_cq_data(cq_data).0, ControlKind::HELLO);
                let accepted = Connection::accept(form, local, body.as_slice(), now);
                self.sides[at].connection = Some(accepted);
            }
            packet => match self.live(at) {
                Some(c) => deliver_to(c, packet, now)
                    .into_iter()
                    .for_each(|n| self.delivered(at, n)),
                None => self.answer_stray(at, &packet),
            },
        }
        true
    }

    fn delivered(&mut self, at: usize, sequence: u64) {
        self.act(at);
        let side = &mut self.sides[at];
        assert!(
            side.established,
            "data before the application heard of the connection"
        );
        assert_eq!(sequence, side.delivered, "a gap or a double");
        side.delivered += 1;
    }

    /// RDM: whoever writes to a connection that is over is told so.
    fn answer_stray(&mut self, at: usize, packet: &Packet) {
        let refusal = |kind| kind == ControlKind::REFUSAL;
        let told =
            matches!(packet, Packet::Control(word, _) if refusal(wire::split_cq_data(*word).0));
        if self.form == Form::Rdm && !told {
            let refusal = Control::Refusal(Refusal::new(RefusalCode::ABORTED, [0, 0]));
            let word = wire::cq_data(
                refusal.kind(),
                index_of(self.sides[1 - at].local.connection),
            );
            self.sides[1 - at]
                .incoming
                .push_back(Packet::Control(word, refusal.encode()));
        }
    }

    fn complete(&mut self, at: usize) -> bool {
        let Some(post) = self.sides[at].posts.pop_front() else {
            return false;
        };
        let Some(connection) = &mut self.sides[at].connection else {
            return false;
        };
        match post {
            Some(kind) => connection.on_control_done(kind),
            None => connection.on_data_done(),
        }
        true
    }

    fn connected_event(&mut self, at: usize) -> bool {
        if !std::mem::take(&mut self.sides[at].connected_event) {
            return false;
        }
        if let Some(connection) = self.live(at) {
            connection.on_connected(&[0xa5; 256]);
        }
        true
    }

    fn repost(&mut self, at: usize) -> bool {
        let side = &mut self.sides[at];
        if side.reposted == side.delivered {
            return false;
        }
        side.reposted += 1;
        if let Some(connection) = self.live(at) {
            connection.on_reposted(1);
        }
        true
    }

    /// Takes all actions and carries them out.
    fn act(&mut self, at: usize) -> bool {
        let mut any = false;
        while let Some(action) = self.sides[at]
            .connection
            .as_mut()
            .and_then(Connection::next_action)
        {
            assert_eq!(self.sides[at].ended, None, "{action:?} after Close");
            any = true;
            self.carry_out(at, action);
        }
        any
    }

    fn carry_out(&mut self, at: usize, action: Action) {
        let out = 1 - at;
        match action {
            Action::Connect { data } => self.sides[out].incoming.push_back(Packet::Hello(data)),
            Action::Accept { data } => {
                self.sides[out].incoming.push_back(Packet::Accepted(data));
                self.sides[at].connected_event = true;
            }
            Action::Reject { data } => self.sides[out].incoming.push_back(Packet::Rejected(data)),
            Action::SendControl { cq_data, body } => {
                let kind = wire::split_cq_data(cq_data).0;
                let data_posted = self.sides[at].posts.contains(&None) || self.sides[at].half;
                assert!(
                    kind != ControlKind::BYE || !data_posted,
                    "a bye before posted data was done"
                );
                self.sides[out]
                    .incoming
                    .push_back(Packet::Control(cq_data, body));
                self.sides[at].posts.push_back(Some(kind));
            }
            Action::Established => self.sides[at].established = true,
            Action::Unresponsive | Action::Responsive => assert!(self.sides[at].established),
            Action::PeerClosing { .. } => assert!(self.sides[at].established),
            // Their own model is in `windows`.
            Action::ReleaseWindow(_) | Action::WindowRevoked(_) => {
                panic!("{action:?} without a window")
            }
            // Theirs is in `long`.
            Action::LongOffered { .. }
            | Action::LongGranted { .. }
            | Action::LongRefused { .. } => {
                panic!("{action:?} without a long message")
            }
            Action::FencePassed { epoch } => self.on_passed(at, epoch),
            Action::SubscriptionAsked(request) => {
                assert!(self.sides[at].established);
                let (outcome, next) = (SubscriptionOutcome(request.tag as u16), !request.tag);
                let connection = self.sides[at].connection.as_mut().expect("it acts");
                connection.answer_subscription(outcome, next);
            }
            Action::SubscriptionAnswered { request, answer } => {
                let side = &mut self.sides[at];
                assert_eq!(request, request_number(side.answers), "in order");
                assert_eq!((answer.tag, answer.next), (request.tag, !request.tag));
                assert_eq!(answer.outcome, SubscriptionOutcome(request.tag as u16));
                side.answers += 1;
            }
            Action::Close(reason) => {
                self.sides[at].ended = Some(reason);
                if self.form == Form::Msg {
                    self.hang_up(at);
                }
            }
        }
    }

    fn hang_up(&mut self, at: usize) {
        let unread = std::mem::take(&mut self.sides[at].incoming);
        let out = &mut self.sides[1 - at].incoming;
        if unread.iter().any(|packet| *packet != Packet::Gone) {
            out.clear();
        }
        out.push_back(Packet::Gone);
        self.sides[at].connected_event = false;
    }

    /// The number that the next message has, if the other side has a buffer for it.
    fn next_number(&self, at: usize) -> (u64, bool) {
        let side = &self.sides[at];
        let window = u64::from(self.sides[1 - at].local.credits);
        let room = self.sides[1 - at].reposted + window - side.sent;
        (side.sent + side.headers, room > 0)
    }

    fn send(&mut self, at: usize, undo: bool) -> bool {
        let (expected, room) = self.next_number(at);
        if self.sides[at].half {
            return false;
        }
        let Some(connection) = self.live(at) else {
            return false;
        };
        let Ok(number) = connection.on_data_posted() else {
            return false;
        };
        assert_eq!(number, expected);
        assert!(room, "a credit for a buffer that does not exist");
        if undo {
            connection.on_post_undone();
            return true;
        }
        self.sides[at].sent += 1;
        self.post(at, None);
        self.say(
            at,
            Packet::Data {
                after_header: false,
            },
        );
        true
    }

    fn post(&mut self, at: usize, kind: Option<ControlKind>) {
        self.sides[at].posts.push_back(kind);
    }

    fn say(&mut self, at: usize, packet: Packet) {
        self.sides[1 - at].incoming.push_back(packet);
    }

    fn send_header(&mut self, at: usize, undo: bool) -> bool {
        let (expected, room) = self.next_number(at);
        if self.sides[at].half {
            return false;
        }
        let Some(connection) = self.live(at) else {
            return false;
        };
        let Ok(number) = connection.on_pair_posted() else {
            return false;
        };
        assert_eq!(number, expected);
        assert!(room, "a credit for buffers that do not exist");
        if undo {
            connection.on_pair_undone();
            return true;
        }
        let side = &mut self.sides[at];
        (side.sent, side.headers, side.half) = (side.sent + 1, side.headers + 1, true);
        self.post(at, Some(ControlKind::HEADER));
        self.say(at, Packet::Header);
        true
    }

    /// Whatever else happened meanwhile; but for the end of the connection.
    fn send_payload(&mut self, at: usize) -> bool {
        if !std::mem::take(&mut self.sides[at].half) || self.live(at).is_none() {
            return false;
        }
        self.post(at, None);
        self.say(at, Packet::Data { after_header: true });
        true
    }

    fn ask(&mut self, at: usize) -> bool {
        let Some(connection) = self.live(at).filter(|c| !c.heartbeats.ask) else {
            return false;
        };
        connection.heartbeats.ask = true;
        self.sides[at].asked += 1;
        true
    }

    fn subscribe(&mut self, at: usize) -> bool {
        let request = request_number(self.sides[at].requests);
        let Some(connection) = self.live(at) else {
            return false;
        };
        if !connection.ask_subscription(request) {
            return false;
        }
        assert_eq!(at, 0, "the acceptor publishes");
        self.sides[at].requests += 1;
        true
    }

    fn fence(&mut self, at: usize) -> bool {
        let (now, epoch) = (self.now, self.sides[at].fences + 1);
        let holds = self.fences_hold;
        let Some(connection) = self.live(at) else {
            return false;
        };
        if connection.goodbye.is_said() {
            return false;
        }
        connection.fence(epoch, !epoch, now);
        connection.hold_goodbye(holds);
        self.sides[at].fences = epoch;
        if holds {
            self.sides[at].awaited = epoch;
        }
        true
    }

    fn on_passed(&mut self, at: usize, epoch: u64) {
        let side = &mut self.sides[at];
        assert!(
            side.passed < epoch && epoch <= side.fences,
            "passed unasked"
        );
        side.passed = epoch;
        let connection = side.connection.as_mut().expect("it acts");
        connection.hold_goodbye(epoch < side.awaited);
    }

    fn close(&mut self, at: usize, within: Duration) -> bool {
        let deadline = self.now + within;
        // A close in the middle of the handshake ends it, which the other side sees as a loss.
        let Some(connection) = self.live(at) else {
            return false;
        };
        let in_handshake = matches!(connection.state(), State::Connecting | State::Accepting);
        connection.close(ByeReason::DONE, deadline);
        self.disturbed |= in_handshake || within < Duration::from_secs(1);
        true
    }

    fn wait(&mut self) -> bool {
        self.now += Duration::from_millis(700);
        self.disturbed = true;
        self.tick();
        true
    }

    fn tick(&mut self) {
        let now = self.now;
        for side in &mut self.sides {
            if let Some(connection) = &mut side.connection {
                connection.tick(now);
                assert!(
                    connection.next_deadline().is_none_or(|at| at > now),
                    "a deadline that stays"
                );
            }
        }
    }

    fn lose_link(&mut self) -> bool {
        self.disturbed = true;
        for side in &mut self.sides {
            side.incoming.clear();
            side.connected_event = false;
            if let Some(connection) = &mut side.connection {
                connection.on_lost(Some(FabricErrno::new(104)));
                connection.on_lost(None);
            }
        }
        true
    }

    fn check(&self) {
        for (side, peer) in [
            (&self.sides[0], &self.sides[1]),
            (&self.sides[1], &self.sides[0]),
        ] {
            let data = side
                .incoming
                .iter()
                .filter(|p| matches!(p, Packet::Data { .. }))
                .count() as u64;
            let headers = side.incoming.iter().filter(|p| **p == Packet::Header);
            let headers = headers.count() as u64;
            let held = side.delivered - side.reposted;
            assert!(
                data + held <= u64::from(side.local.credits),
                "more data than buffers"
            );
            assert!(
                data + headers + 2 * held <= 2 * u64::from(side.local.credits),
                "more messages than receives"
            );
            assert!(side.delivered <= peer.sent);
            let unread = |kind| {
                let of_kind = |p: &&Packet| {
                    matches!(p, Packet::Control(word, _)
                        if wire::split_cq_data(*word).0 == kind)
                };
                side.incoming.iter().filter(of_kind).count()
            };
            assert!(unread(ControlKind::CREDIT) < CREDIT_MESSAGES_MAX);
            assert!(unread(ControlKind::HEARTBEAT) <= HEARTBEAT_MESSAGES_MAX);
            let requests = unread(ControlKind::SUBSCRIBE) + unread(ControlKind::UNSUBSCRIBE);
            assert!(requests + unread(ControlKind::SUBSCRIPTION) <= SUBSCRIPTION_MESSAGES_MAX);
            assert!(unread(ControlKind::FENCE) + unread(ControlKind::FENCED) <= FENCE_MESSAGES_MAX);
            assert!(side.answers <= side.requests && side.requests <= side.answers + 1);
            match side.ended {
                Some(CloseReason::Finished) => {
                    assert_eq!(side.delivered, peer.sent, "finished, not all there");
                    assert!(side.passed >= side.awaited, "finished, and not all is over");
                }
                Some(CloseReason::Violation(v)) => panic!("honest peers, and yet: {v}"),
                Some(CloseReason::PeerTruncated { .. } | CloseReason::RefusedPeer(_)) => {
                    panic!("{:?}", side.ended);
                }
                _ => {}
            }
        }
    }

    /// Lets everything happen that can happen by itself.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let mut any = false;
            for at in [0, 1] {
                for op in [
                    Op::Act(at),
                    Op::ConnectedEvent(at),
                    Op::Deliver(at),
                    Op::Complete(at),
                    Op::SendPayload(at),
                    Op::Repost(at),
                ] {
                    any |= self.step(op);
                }
            }
            if !any {
                return;
            }
        }
        panic!("no end: {self:?}");
    }

    /// Closes both sides and runs to the end, in bounded steps.
    fn finish(&mut self) {
        self.settle();
        for at in [0, 1] {
            self.close(at, Duration::from_secs(3600));
        }
        self.settle();
        for _ in 0..50 {
            let next = self
                .sides
                .iter()
                .filter_map(|s| s.connection.as_ref()?.next_deadline())
                .min();
            let Some(next) = next else { break };
            assert!(
                self.disturbed,
                "only a deadline ends an undisturbed pair: {self:?}"
            );
            self.now = next;
            self.tick();
            self.settle();
        }
        self.assert_over();
    }

    pub(super) fn assert_over(&self) {
        for side in self.sides.iter().filter(|side| side.connection.is_some()) {
            assert!(side.ended.is_some(), "never closed: {self:?}");
            if !self.disturbed {
                assert_eq!(side.ended, Some(CloseReason::Finished), "{self:?}");
            }
        }
        if self
            .sides
            .iter()
            .all(|side| side.ended == Some(CloseReason::Finished))
        {
            assert_eq!(self.sides[0].sent, self.sides[1].delivered);
            assert_eq!(self.sides[1].sent, self.sides[0].delivered);
        }
    }

    pub(super) fn both_established(&self) -> bool {
        self.sides.iter().all(|side| side.established)
    }

    /// Everything that decides what can happen next.
    pub(super) fn fingerprint(&self) -> String {
        format!("{:?}", self.sides)
    }

    pub(super) fn sent(&self, at: usize) -> u64 {
        self.sides[at].sent
    }

    pub(super) fn asked(&self, at: usize) -> u64 {
        self.sides[at].asked
    }

    pub(super) fn fences(&self, at: usize) -> u64 {
        self.sides[at].fences
    }

    pub(super) fn requests(&self, at: usize) -> u64 {
        self.sides[at].requests
    }
}

fn request_number(number: u64) -> SubscriptionRequest {
    SubscriptionRequest {
        tag: number,
        on: number.is_multiple_of(2),
    }
}

/// Hands one packet to a live machine; the number of a data message that was taken.
fn deliver_to(c: &mut Connection, packet: Packet, now: Instant) -> Option<u64> {
    match packet {
        Packet::Accepted(data) => c.on_connected(&data),
        Packet::Rejected(data) => c.on_refused(FabricErrno::new(111), &data),
        Packet::Control(cq_data, body) => c.on_control(cq_data, body.as_slice(), now),
        Packet::Header => drop(c.on_header(8)),
        Packet::Data { after_header } => {
            return if after_header {
                c.on_payload(100).ok()
            } else {
                c.on_data(100).ok()
            };
        }
        Packet::Gone => c.on_lost(None),
        Packet::Hello(_) => unreachable!("a hello makes a machine"),
    }
    None
}

fn any_op() -> impl Strategy<Value = Op> {
    let side = 0..2_usize;
    prop_oneof![
        12 => side.clone().prop_map(Op::Deliver),
        10 => side.clone().prop_map(Op::Complete),
        3 => side.clone().prop_map(Op::ConnectedEvent),
        8 => side.clone().prop_map(Op::Repost),
        12 => side.clone().prop_map(Op::Act),
        14 => side.clone().prop_map(Op::Send),
        2 => side.clone().prop_map(Op::SendUndone),
        7 => side.clone().prop_map(Op::SendHeader),
        1 => side.clone().prop_map(Op::SendHeaderUndone),
        7 => side.clone().prop_map(Op::SendPayload),
        2 => side.clone().prop_map(Op::Ask),
        4 => side.clone().prop_map(Op::Subscribe),
        3 => side.clone().prop_map(Op::Fence),
        1 => side.prop_map(Op::Close),
    ]
}

fn any_disturbance() -> impl Strategy<Value = Option<(usize, Op)>> {
    let op = prop_oneof![
        Just(Op::LoseLink),
        Just(Op::Wait),
        (0..2_usize).prop_map(Op::CloseSoon),
    ];
    prop::option::of((0..200_usize, op))
}

fn any_form() -> impl Strategy<Value = Form> {
    prop_oneof![Just(Form::Msg), Just(Form::Rdm)]
}

proptest! {
    #![proptest_config(crate::soak::cases(150, 5000))]
    #[test]
    fn two_machines_keep_their_promises(
        form in any_form(),
        credits in [0_u32..20, 0_u32..20],
        mut ops in prop::collection::vec(any_op(), 0..300),
        disturbance in any_disturbance(),
        established_first in any::<bool>(),
        impatient in any::<bool>(),
    ) {
        let after = |millis| impatient.then_some(Duration::from_millis(millis));
        let liveness = LivenessTimeouts { unresponsive: after(200), lost: after(600) };
        let mut pair = Pair::with(form, credits, liveness, Instant::now());
        if established_first {
            pair.settle();
            prop_assert!(pair.both_established());
        }
        if let Some((at, op)) = disturbance {
            ops.insert(at.min(ops.len()), op);
        }
        for op in ops {
            pair.step(op);
        }
        pair.finish();
    }
}

/// One side sleeps until there is something to do, as an endpoint does; the other is stopped from
/// `stop` on for as long as `pause`. What the first one was told, and when.
fn watch_one_that_stops(
    stop: Duration,
    pause: Duration,
    liveness: LivenessTimeouts,
) -> Vec<(Duration, Action)> {
    let start = Instant::now();
    let mut pair = Pair::with(Form::Msg, [1, 1], liveness, start);
    pair.settle();
    let mut told = Vec::new();
    for millis in 0..6000 {
        pair.now = start + Duration::from_millis(millis);
        let at = pair.now - start;
        let stopped = (stop..stop + pause).contains(&at);
        for side in if stopped { vec![0] } else { vec![0, 1] } {
            let mut woken = false;
            while pair.deliver(side) || pair.complete(side) {
                woken = true;
            }
            let now = pair.now;
            let Some(c) = &mut pair.sides[side].connection else {
                continue;
            };
            // An endpoint that is woken looks at the clock.
            if woken || c.next_deadline().is_some_and(|due| due <= now) {
                c.tick(now);
            }
            while let Some(action) = pair.sides[side]
                .connection
                .as_mut()
                .and_then(Connection::next_action)
            {
                if side == 0 && !matches!(action, Action::SendControl { .. }) {
                    told.push((at, action));
                }
                pair.carry_out(side, action);
            }
        }
        pair.check();
    }
    told
}

#[test]
fn a_busy_peer_is_told_of_and_kept_and_a_stopped_one_is_lost() {
    let (t1, t2) = (Duration::from_millis(300), Duration::from_millis(1500));
    let liveness = LivenessTimeouts {
        unresponsive: Some(t1),
        lost: Some(t2),
    };
    let stop = Duration::from_millis(1234);
    // Heartbeats alone keep both sides happy.
    assert_eq!(watch_one_that_stops(stop, Duration::ZERO, liveness), []);
    let told = watch_one_that_stops(stop, 3 * t1, liveness);
    let [(at, Action::Unresponsive), (back, Action::Responsive)] = told[..] else {
        panic!("{told:?}");
    };
    // SilenceTimer began up to a third before it stopped, with its last word.
    assert!(stop + t1 - t1 / 3 <= at && at <= stop + t1, "{at:?}");
    assert!(
        back >= stop + 3 * t1 && back <= stop + 3 * t1 + Duration::from_millis(2),
        "{back:?}"
    );
    let told = watch_one_that_stops(stop, Duration::from_secs(60), liveness);
    let lost = Action::Close(CloseReason::PeerSilent { silence: t2 });
    assert_eq!((told[0].1, told[1].1), (Action::Unresponsive, lost));
    assert!(
        stop + t2 - t1 / 3 <= told[1].0 && told[1].0 <= stop + t2,
        "{told:?}"
    );
}

#[test]
fn the_simulation_moves_data_both_ways() {
    for form in [Form::Msg, Form::Rdm] {
        let mut pair = Pair::new(form, [5, 2], Instant::now());
        for _ in 0..50 {
            pair.settle();
            pair.step(Op::Send(0));
            pair.step(Op::Send(1));
        }
        pair.finish();
        assert_eq!((pair.sent(0), pair.sent(1)), (50, 50));
    }
}

#[test]
fn the_simulation_answers_subscriptions() {
    for form in [Form::Msg, Form::Rdm] {
        let mut pair = Pair::new(form, [5, 2], Instant::now());
        for _ in 0..20 {
            pair.settle();
            pair.step(Op::Subscribe(0));
            pair.step(Op::Subscribe(1));
            pair.step(Op::Send(1));
        }
        pair.finish();
        let [subscriber, publisher] = &pair.sides;
        assert!(subscriber.answers >= 19, "{}", subscriber.answers);
        assert_eq!((publisher.requests, publisher.sent), (0, 20));
    }
}
