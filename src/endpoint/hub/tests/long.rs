//! Long messages over the fake link: piece by piece, in their place, with one outcome whatever
//! happens.

use std::time::Duration;

use proptest::prelude::*;

use crate::endpoint::error::{Blocked, SendErrorKind};
use crate::endpoint::event::{ConnectionEvent, ReceiveEvent};
use crate::endpoint::link::fake::{CloseMode, FakeLink, NetConfig};
use crate::endpoint::link::{ConnKey, PostRefused, RmaLimits};
use crate::endpoint::testing::rig::{LONG_BYTES, Rig, Setup, far_future};
use crate::error::FabricErrno;
use crate::id::ConnectionId;
use crate::in_flight::ContextKind;
use crate::protocol::connection::{CloseReason, Form};
use crate::protocol::wire::{self, Control, HeaderMode, Hello, HelloKind};

/// A provider whose messages have 100 bytes, and whose pieces 64, of 2 segments: four pieces and a
/// bit.
fn setup(form: Form) -> Setup {
    let base = NetConfig::default();
    let rma = base.rma.map(|rma| RmaLimits {
        iov_limit: 2,
        max_bytes: 64,
        ordered: form == Form::Msg,
        ..rma
    });
    Setup {
        net: NetConfig {
            form,
            max_message: 100,
            rma,
            ..base
        },
        receive_slots: 32,
        long: Some((2, 4096)),
        ..Setup::default()
    }
}

const FORMS: [Form; 2] = [Form::Msg, Form::Rdm];

#[test]
fn a_long_message_comes_whole_and_in_its_place() {
    for form in FORMS {
        for contexts in [ContextKind::Opaque, ContextKind::Cells] {
            let mut setup = setup(form);
            setup.net.contexts = contexts;
            let mut rig = setup.connected();
            rig.drop_at_once = false;
            for round in 0..10 {
                let key = round * 10;
                rig.send(key).unwrap();
                rig.send_long(key + 1).unwrap();
                assert_eq!(rig.blocked(key + 2), Blocked::LongMessage);
                rig.settle();
                rig.send(key + 2).unwrap();
                rig.settle();
                let lens: Vec<_> = rig.held.iter().map(|m| m.payload().len()).collect();
                assert_eq!(lens, [8, LONG_BYTES, 8]);
                let middle = &rig.held[1].payload()[8..LONG_BYTES - 8];
                assert!(middle.iter().all(|byte| *byte == (key + 1) as u8));
                rig.held.clear();
            }
            let expected: Vec<_> = (0..10)
                .flat_map(|n| [n * 10, n * 10 + 1, n * 10 + 2])
                .collect();
            assert_eq!((&rig.received, &rig.completed), (&expected, &expected));
            assert_eq!(rig.writable, 10);
            rig.sender().begin_close(far_future());
            rig.settle();
            assert_eq!(rig.ended, Some(CloseReason::Finished));
            rig.check_all_back();
            rig.end();
        }
    }
}

#[test]
fn who_was_granted_a_slot_and_never_writes_loses_it() {
    for form in FORMS {
        let short = Duration::from_millis(1);
        let mut rig = Setup {
            long_deadline: Some(short),
            ..setup(form)
        }
        .connected();
        let free = rig.receiver().long_free();
        rig.send_long(1).unwrap();
        rig.poll_sender();
        // An offer that has no slot yet is not late; this one has one.
        rig.net.deliver(usize::MAX);
        rig.poll_receiver();
        assert_eq!(rig.receiver().long_free(), free - 1, "granted");
        rig.pass(2 * short);
        rig.poll_receiver();
        let ended = rig.said.iter().find_map(|event| match event {
            ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(reason)) => Some(*reason),
            _ => None,
        });
        assert_eq!(ended, Some(CloseReason::LongDeadline), "{form:?}");
        if form == Form::Msg {
            // Else it waits for the end of the endpoint, as the memory of a window does.
            assert_eq!(rig.receiver().long_free(), free);
        }
        rig.settle();
        assert_eq!(rig.failed.len(), 1, "{form:?}");
        rig.check_all_back();
        rig.end();
    }
}

#[test]
fn an_offer_that_nobody_answers_ends_at_the_deadline_of_sends() {
    for form in FORMS {
        let short = Duration::from_millis(5);
        let mut rig = Setup {
            send_deadline: Some(short),
            ..setup(form)
        }
        .connected();
        rig.send_long(1).unwrap();
        rig.poll_sender();
        rig.pass(2 * short);
        rig.poll_sender();
        let late = CloseReason::SendDeadline { deadline: short };
        assert_eq!(rig.ended, Some(late), "{form:?}");
        assert_eq!(rig.failed.len(), 1);
        rig.check_all_back();
        rig.settle();
        rig.end();
    }
}

#[test]
fn a_goodbye_waits_for_a_long_message() {
    for form in FORMS {
        let mut rig = setup(form).connected();
        rig.send_long(1).unwrap();
        rig.sender().begin_close(far_future());
        rig.settle();
        assert_eq!(
            (&rig.received[..], &rig.completed[..]),
            (&[1][..], &[1][..])
        );
        assert_eq!(rig.ended, Some(CloseReason::Finished));
        rig.check_all_back();
    }
}

#[test]
fn one_that_is_too_long_for_the_peer_s_pool_fails_with_the_limit() {
    for form in FORMS {
        let mut rig = Setup {
            long: Some((2, 150)),
            ..setup(form)
        }
        .connected();
        let limit = rig.receiver().long_limit().expect("it has a pool");
        assert!(limit < LONG_BYTES as u64);
        let mut events = Vec::new();
        rig.send_long(1).unwrap();
        for _ in 0..5 {
            rig.net.deliver(usize::MAX);
            rig.poll_receiver();
            rig.sender().wait().wake();
            rig.sender().poll(&mut events).unwrap();
        }
        let failed = events.iter().find_map(|event| match event {
            crate::endpoint::event::SendEvent::Failed { key: 1, error, .. } => Some(error.clone()),
            _ => None,
        });
        let error = failed.unwrap_or_else(|| panic!("{events:?}"));
        assert_eq!(error.limit_bytes, Some(limit));
        assert!(error.to_string().contains(&limit.to_string()), "{error}");
        rig.absorb(events);
        // Credit and number are back.
        for key in 10..30 {
            rig.send(key).unwrap();
            rig.settle();
            rig.held.clear();
        }
        assert_eq!(rig.received, (10..30).collect::<Vec<_>>());
    }
}

#[test]
fn without_a_pool_or_one_sided_operations_it_is_too_long() {
    let mut with = setup(Form::Msg);
    with.long = None;
    let mut rig = with.connected();
    assert!(matches!(
        rig.send_long(1),
        Err(SendErrorKind::TooLong { .. })
    ));
    let mut without = setup(Form::Msg);
    without.net.rma = None;
    let mut rig = without.connected();
    let refused = rig.send_long(1).unwrap_err();
    assert!(matches!(refused, SendErrorKind::TooLong { .. }));
    assert!(refused.to_string().contains("one-sided"), "{refused}");
}

#[test]
fn an_offer_waits_for_room() {
    for form in FORMS {
        let mut rig = Setup {
            long: Some((1, 4096)),
            ..setup(form)
        }
        .connected();
        rig.drop_at_once = false;
        rig.send_long(1).unwrap();
        rig.settle();
        rig.send_long(2).unwrap();
        rig.settle();
        assert_eq!(rig.received, [1], "the only slot is held");
        rig.held.clear();
        rig.settle();
        assert_eq!(
            (&rig.received[..], &rig.completed[..]),
            (&[1, 2][..], &[1, 2][..])
        );
        rig.held.clear();
        rig.end();
    }
}

#[test]
fn an_offer_that_waits_too_long_ends_as_any_send() {
    let mut rig = Setup {
        long: Some((1, 4096)),
        send_deadline: Some(Duration::from_millis(1)),
        ..setup(Form::Msg)
    }
    .connected();
    rig.drop_at_once = false;
    rig.send_long(1).unwrap();
    rig.settle();
    if rig.ended.is_none() {
        rig.send_long(2).unwrap();
        rig.settle();
        rig.pass(Duration::from_millis(3));
        rig.settle();
    }
    assert!(matches!(rig.ended, Some(CloseReason::SendDeadline { .. })));
    rig.check_all_back();
    rig.held.clear();
    rig.end();
}

/// How the connection is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Loss {
    SenderGone,
    ReceiverGone,
    Piece,
    Closed,
    Stuck,
}

#[test]
fn a_loss_at_any_step_has_one_outcome() {
    for form in FORMS {
        for loss in [
            Loss::SenderGone,
            Loss::ReceiverGone,
            Loss::Piece,
            Loss::Closed,
            Loss::Stuck,
        ] {
            // What is stuck is leaked, with its scope, of which there are 64 for all tests.
            let each = if loss == Loss::Stuck { 8 } else { 1 };
            for steps in (0..24).step_by(each) {
                lose(form, loss, steps);
            }
        }
    }
}

fn lose(form: Form, loss: Loss, steps: usize) {
    let mut rig = setup(form).connected();
    rig.send(1).unwrap();
    rig.send_long(2).unwrap();
    for step in 0..steps {
        match step % 3 {
            0 => rig.poll_sender(),
            1 => drop(rig.net.deliver(1)),
            _ => rig.poll_receiver(),
        }
    }
    let (near, conn) = (rig.near, rig.conn);
    match loss {
        Loss::SenderGone => {
            rig.sender = None;
            rig.owed.clear();
        }
        Loss::ReceiverGone => rig.receiver = None,
        Loss::Piece => drop(rig.net.fail_send(conn, libc::EIO)),
        Loss::Closed => {
            let now = rig.now();
            rig.sender().begin_close(now);
        }
        Loss::Stuck => {
            rig.net.set_close(near, CloseMode::Fails);
            let now = rig.now();
            rig.sender().begin_close(now);
        }
    }
    for _ in 0..3 {
        rig.settle();
    }
    if loss == Loss::ReceiverGone && form == Form::Rdm && rig.sender.is_some() {
        let now = rig.now();
        rig.sender().begin_close(now);
        rig.settle();
    }
    rig.net.check();
    let what = format!("{form:?} {loss:?} after {steps}");
    assert!(rig.owed.is_empty(), "{what}: owed {:?}", rig.owed);
    if loss == Loss::Stuck {
        rig.sender = None;
        rig.net.use_stuck();
        rig.net.check();
        return;
    }
    assert!(
        rig.received.windows(2).all(|two| two[0] < two[1]),
        "{what}: {:?}",
        rig.received
    );
    rig.end();
}

/// The endpoint serves other connections, too: where a lost peer may still write is not given to
/// anybody else.
#[test]
fn over_rdm_a_long_buffer_that_is_open_is_nobody_s_any_more() {
    let mut rig = setup(Form::Rdm).connected();
    rig.send_long(1).unwrap();
    for _ in 0..2 {
        rig.poll_sender();
        rig.net.deliver(usize::MAX);
        rig.poll_receiver();
    }
    rig.net.deliver(1);
    rig.poll_sender();
    let id = rig.said.iter().find_map(|event| match event {
        ReceiveEvent::Connection(connection, ConnectionEvent::Connected(_)) => Some(*connection),
        _ => None,
    });
    assert_eq!(rig.receiver().long_free(), 1, "one is open");
    assert!(rig.net.begin_one_sided(rig.conn), "a piece is on its way");
    let now = rig.now();
    rig.receiver().begin_close(id.unwrap(), now);
    rig.poll_receiver();
    rig.poll_receiver();
    rig.net.deliver(usize::MAX);
    rig.settle();
    assert_eq!(
        rig.receiver().long_free(),
        2,
        "of these nobody could write any"
    );
    assert_eq!(
        rig.receiver().stats().quarantined,
        1,
        "it is given to nobody"
    );
    rig.end();
}

#[test]
fn lies_about_long_messages_end_the_connection() {
    let lies = [
        Control::LongDone { number: 0 },
        Control::LongGrant {
            number: 0,
            base: 0,
            key: 1,
        },
        Control::LongRefused {
            number: 0,
            limit: 1,
        },
        Control::LongOffer { number: 0, len: 0 },
    ];
    for lie in lies {
        let mut rig = setup(Form::Msg).connected();
        let body = lie.encode();
        let mark = wire::cq_data(lie.kind(), 0);
        let conn = rig.conn;
        rig.net.say(conn, Some(mark), body.as_slice());
        rig.settle();
        let violated = |event: &ReceiveEvent| {
            matches!(
                event,
                ReceiveEvent::Connection(
                    _,
                    ConnectionEvent::Disconnected(CloseReason::Violation(_))
                )
            )
        };
        assert!(rig.said.iter().any(violated), "{lie:?}: {:?}", rig.said);
    }
    // A sender is offered nothing.
    let mut rig = setup(Form::Msg).connected();
    let offer = Control::LongOffer { number: 0, len: 9 };
    let far = rig.far_conn();
    rig.net.say(
        far,
        Some(wire::cq_data(offer.kind(), 0)),
        offer.encode().as_slice(),
    );
    rig.settle();
    assert!(
        matches!(rig.ended, Some(CloseReason::Violation(_))),
        "{:?}",
        rig.ended
    );
}

#[derive(Clone, Copy, Debug)]
enum Move {
    Send,
    SendLong,
    Deliver(usize),
    Poll(bool),
    Release,
    Refuse(bool),
    Close,
}

fn any_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        4 => Just(Move::Send),
        4 => Just(Move::SendLong),
        6 => (1_usize..4).prop_map(Move::Deliver),
        8 => any::<bool>().prop_map(Move::Poll),
        3 => Just(Move::Release),
        1 => any::<bool>().prop_map(Move::Refuse),
        1 => prop_oneof![12 => Just(Move::Send), 1 => Just(Move::Close)],
    ]
}

fn walk(rig: &mut Rig, step: Move, next: &mut u64) {
    match step {
        Move::Send | Move::SendLong if rig.payloads.free_count() == 0 => {}
        Move::Send => *next += u64::from(rig.send(*next).is_ok()),
        Move::SendLong => *next += u64::from(rig.send_long(*next).is_ok()),
        Move::Deliver(n) => drop(rig.net.deliver(n)),
        Move::Poll(true) => rig.poll_sender(),
        Move::Poll(false) => rig.poll_receiver(),
        Move::Release => drop(std::mem::take(&mut rig.held)),
        Move::Refuse(far) => {
            let link = if far { rig.far } else { rig.near };
            rig.net.refuse_sends(link, &[PostRefused::Again]);
        }
        Move::Close => rig.sender().begin_close(far_future()),
    }
    rig.check();
}

proptest! {
    #![proptest_config(crate::soak::cases(100, 3000))]

    /// Short and long messages in any order, with refused posts in between: all arrive, once, in
    /// their order.
    #[test]
    fn short_and_long_messages_keep_their_order(
        rdm in any::<bool>(),
        steps in prop::collection::vec(any_move(), 0..150),
    ) {
        let mut rig = setup(if rdm { Form::Rdm } else { Form::Msg }).connected();
        let mut next = 1;
        for step in steps {
            walk(&mut rig, step, &mut next);
        }
        // Refused control messages make pauses that look like the end.
        for _ in 0..20 {
            rig.held.clear();
            rig.settle();
        }
        prop_assert_eq!(&rig.received, &(1..next).collect::<Vec<_>>());
        prop_assert_eq!(rig.completed.len() as u64, next - 1);
        prop_assert!(rig.failed.is_empty());
        rig.check_all_back();
        rig.end();
    }
}

/// A piece that the provider refuses for good ends the connection.
#[test]
fn a_piece_that_is_refused_ends_the_connection() {
    let mut rig = setup(Form::Msg).connected();
    rig.send_long(1).unwrap();
    rig.poll_sender();
    rig.net.deliver(usize::MAX);
    rig.poll_receiver();
    rig.poll_receiver();
    rig.net.deliver(usize::MAX);
    let near = rig.near;
    let errno = FabricErrno::new(libc::EINVAL);
    rig.net.refuse_sends(near, &[PostRefused::Errno(errno)]);
    rig.poll_sender();
    rig.settle();
    assert!(
        matches!(rig.ended, Some(CloseReason::PeerLost { .. })),
        "{:?}",
        rig.ended
    );
    assert_eq!(rig.failed.len(), 1);
    rig.check_all_back();
}

/// It is not whole, though the pieces behind that one are there before the connection is over.
#[test]
fn a_piece_that_fails_is_the_end_of_its_message() {
    for form in FORMS {
        let mut rig = setup(form).connected();
        rig.send_long(1).unwrap();
        rig.poll_sender();
        rig.net.deliver(usize::MAX);
        rig.poll_receiver();
        rig.poll_receiver();
        rig.net.deliver(usize::MAX);
        rig.poll_sender();
        let conn = rig.conn;
        assert_eq!(rig.net.sends_of(conn).len(), 4, "all its pieces");
        assert!(rig.net.fail_send(conn, libc::EIO));
        rig.net.deliver(usize::MAX);
        rig.poll_sender();
        assert_eq!(rig.failed.len(), 1, "{form:?}");
        assert!(rig.completed.is_empty());
        assert!(matches!(rig.ended, Some(CloseReason::PeerLost { .. })));
        rig.check_all_back();
        rig.settle();
        assert!(rig.received.is_empty());
        rig.end();
    }
}

/// The receiver grants the sender's message memory, and a liar with another connection has half of
/// a write into that under way.
fn write_half_of_a_long_message(rig: &mut Rig, liar: ConnKey) {
    rig.send_long(1).unwrap();
    while rig.net.last_key().is_none() {
        rig.net.deliver_of(&[rig.conn, rig.far_conn()]);
        rig.poll_receiver();
        rig.poll_sender();
    }
    let key = rig.net.last_key().expect("granted");
    rig.net.bury_by_hand(liar, 100, key, 8);
    assert!(rig.net.begin_one_sided(liar), "half of it is there");
}

/// Somebody writes into it when its sender says that it is whole, over another connection: it is
/// nobody's before that is over. What comes behind it stays behind it, and the goodbye waits for
/// both.
#[test]
fn a_long_message_is_handed_out_when_nobody_writes_into_it_any_more() {
    for lost in [false, true] {
        let mut rig = setup(Form::Msg).connected();
        let (_link, second) = rig.net.ask(&LIAR.encode());
        rig.poll_receiver();
        rig.poll_receiver();
        write_half_of_a_long_message(&mut rig, second);
        let mut sent = false;
        for _ in 0..20 {
            rig.net.deliver_of(&[rig.conn, rig.far_conn()]);
            rig.poll_receiver();
            rig.poll_sender();
            if !sent && rig.send(2).is_ok() {
                sent = true;
                rig.sender().begin_close(far_future());
            }
        }
        assert_eq!(rig.completed, [1, 2]);
        assert!(
            rig.received.is_empty(),
            "handed out while somebody writes into it"
        );
        assert_eq!(rig.ended, None, "a goodbye before that");
        if lost {
            rig.sender = None;
            rig.poll_receiver();
            rig.poll_receiver();
            assert!(
                rig.received.is_empty(),
                "its connection is over, the other is not"
            );
        }
        // The rest of the write.
        rig.net.deliver_of(&[second]);
        rig.net.check();
        rig.net.shut_down(rig.net.peer_of(second));
        if lost {
            rig.poll_receiver();
            rig.poll_receiver();
            assert!(rig.received.is_empty(), "of a connection that is over");
        } else {
            rig.settle();
            assert_eq!(rig.received, [1, 2], "in their order");
            assert_eq!(rig.ended, Some(CloseReason::Finished));
        }
        assert_eq!(rig.receiver().long_free(), 2, "memory is kept for nothing");
        rig.net.check();
    }
}

/// What becomes of the liar of `Stayer`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Liar {
    Leaves,
    Stays,
    /// And nothing is free that the message could be copied to.
    StaysWithoutSlots,
    /// Until the receiver closes all, with a deadline.
    IsClosed,
    /// Until the receiver is dropped.
    IsDropped,
}

/// A receiver with a message that is whole and a connection that is over, and a liar who has half
/// a write under way into that message. The receiver has said its goodbye to the liar, so that it
/// can't be asked whether it is done.
struct Stayer {
    rig: Rig,
    liar: ConnKey,
    first: ConnectionId,
    _link: FakeLink,
}

impl Stayer {
    /// `receiver_closes`: after the grant, so that the message is whole behind its goodbye.
    fn new(receiver_closes: bool) -> Self {
        let mut rig = setup(Form::Msg).connected();
        let (_link, liar) = rig.net.ask(&LIAR.encode());
        rig.poll_receiver();
        rig.poll_receiver();
        let connected = rig.said.iter().filter_map(|event| match event {
            ReceiveEvent::Connection(id, ConnectionEvent::Connected(_)) => Some(*id),
            _ => None,
        });
        let [first, second] = connected.collect::<Vec<_>>()[..] else {
            panic!("{:?}", rig.said);
        };
        rig.said.clear();
        write_half_of_a_long_message(&mut rig, liar);
        let late = rig.now() + Duration::from_secs(3600);
        rig.receiver().begin_close(second, late);
        if receiver_closes {
            rig.receiver().begin_close(first, late);
        }
        rig.poll_receiver();
        let mut sent = receiver_closes;
        for _ in 0..20 {
            rig.net.deliver_of(&[rig.conn, rig.far_conn()]);
            rig.poll_receiver();
            if rig.ended.is_none() {
                rig.poll_sender();
            }
            if !sent && rig.send(2).is_ok() {
                sent = true;
                rig.sender().begin_close(late);
            }
        }
        let finished = Some(CloseReason::Finished);
        assert_eq!(rig.ended, finished, "one that stays keeps the sender");
        Self {
            rig,
            liar,
            first,
            _link,
        }
    }

    /// Why the connection of the message is over, if that is told.
    fn reason(&self) -> Option<CloseReason> {
        self.rig.said.iter().find_map(|event| match event {
            ReceiveEvent::Connection(id, ConnectionEvent::Disconnected(reason))
                if *id == self.first =>
            {
                Some(*reason)
            }
            _ => None,
        })
    }

    fn poll(&mut self) {
        for _ in 0..3 {
            self.rig.poll_receiver();
        }
    }

    /// The rest of its write, and its end.
    fn leave(&mut self) {
        self.rig.net.deliver_of(&[self.liar]);
        self.rig.net.check();
        let its = self.rig.net.peer_of(self.liar);
        self.rig.net.shut_down(its);
        self.poll();
    }
}

/// Else both would wait for each other, where both ends are in one domain.
#[test]
fn a_goodbye_does_not_wait_for_who_can_not_be_asked_and_its_message_does() {
    let limit = Duration::from_secs(60);
    for receiver_closes in [false, true] {
        for liar in [
            Liar::Leaves,
            Liar::Stays,
            Liar::StaysWithoutSlots,
            Liar::IsClosed,
            Liar::IsDropped,
        ] {
            let mut it = Stayer::new(receiver_closes);
            let messages = if receiver_closes { &[1][..] } else { &[1, 2] };
            it.poll();
            assert!(it.rig.received.is_empty(), "while somebody writes into it");
            assert_eq!(it.reason(), None, "before its messages");
            assert_eq!(it.rig.receiver().connections(), 2);
            let told = it.rig.receiver().close_reason(it.first);
            assert_eq!(told, Some(CloseReason::Finished));
            match liar {
                Liar::Leaves => {
                    it.leave();
                    assert_eq!(it.rig.received, messages, "in their order");
                    assert_eq!(it.reason(), Some(CloseReason::Finished));
                    assert_eq!(it.rig.receiver().long_free(), 2);
                }
                Liar::Stays => {
                    it.rig.pass(Duration::from_millis(9));
                    it.poll();
                    assert_eq!(it.reason(), None);
                    it.rig.pass(Duration::from_millis(1));
                    it.poll();
                    assert_eq!(
                        it.rig.received, messages,
                        "a copy of the first, in their order"
                    );
                    assert_eq!(it.reason(), Some(CloseReason::Finished));
                    assert_eq!(
                        it.rig.receiver().stats().late_copied,
                        10 + LONG_BYTES as u64
                    );
                    assert_eq!(it.rig.receiver().long_free(), 1, "it is still written");
                    it.leave();
                    assert_eq!(it.rig.receiver().long_free(), 2);
                }
                Liar::StaysWithoutSlots => {
                    let taken = it.rig.receiver().take_long_slot().expect("free");
                    it.rig.pass(limit - Duration::from_secs(1));
                    it.poll();
                    assert_eq!(it.reason(), None);
                    it.rig.pass(Duration::from_secs(2));
                    it.poll();
                    assert_eq!(it.reason(), Some(CloseReason::FenceDeadline { limit }));
                    assert!(it.rig.received.is_empty());
                    drop(taken);
                    assert_eq!(it.rig.receiver().long_free(), 1, "it is still written");
                    it.leave();
                    assert_eq!(it.rig.receiver().long_free(), 2);
                    assert!(it.rig.received.is_empty(), "of a connection that is over");
                }
                Liar::IsClosed => {
                    let soon = it.rig.now() + Duration::from_secs(1);
                    it.rig.receiver().begin_close_all(soon);
                    it.poll();
                    assert_eq!(it.reason(), None);
                    it.rig.pass(Duration::from_secs(2));
                    it.poll();
                    // With the liar's end nobody is left who could write.
                    assert_eq!(it.rig.received, messages);
                    assert_eq!(it.reason(), Some(CloseReason::Finished));
                    assert_eq!(it.rig.receiver().connections(), 0);
                }
                Liar::IsDropped => {
                    it.rig.receiver = None;
                    assert!(it.rig.received.is_empty());
                }
            }
            let ends = |event: &&ReceiveEvent| {
                matches!(event, ReceiveEvent::Connection(id, ConnectionEvent::Disconnected(_))
                    if *id == it.first)
            };
            let told = it.rig.said.iter().filter(ends).count();
            assert_eq!(told, usize::from(liar != Liar::IsDropped), "told once");
            it.rig.net.check();
            it.rig.end();
        }
    }
}

/// The endpoint of the one that stays would not close: its peer may write for ever.
#[test]
fn what_an_endpoint_that_never_closes_may_write_is_copied_or_not_handed_out() {
    for copied in [false, true] {
        let mut it = Stayer::new(false);
        let far = it.rig.far;
        it.rig.net.set_close(far, CloseMode::Fails);
        let taken = it.rig.receiver().take_long_slot().filter(|_| !copied);
        it.leave();
        assert!(it.rig.received.is_empty());
        let soon = it.rig.now() + Duration::from_secs(1);
        it.rig.receiver().begin_close_all(soon);
        it.rig.pass(Duration::from_secs(2));
        it.poll();
        let (reason, messages) = match copied {
            false => (CloseReason::ClosedByDeadline, &[][..]),
            true => (CloseReason::Finished, &[1, 2][..]),
        };
        assert_eq!(it.reason(), Some(reason));
        assert_eq!(it.rig.received, messages);
        drop(taken);
        it.rig.net.check();
    }
}

#[test]
fn a_hub_that_fails_tells_the_end_of_connections_that_wait_for_others() {
    let mut it = Stayer::new(false);
    let far = it.rig.far;
    // Else it would have nobody to wait for.
    it.rig.net.set_close(far, CloseMode::Fails);
    it.rig.net.break_cq(far, libc::EIO);
    it.poll();
    let Some(CloseReason::EndpointFailed(_)) = it.reason() else {
        panic!("{:?}", it.reason());
    };
    assert!(it.rig.received.is_empty());
    assert_eq!(it.rig.receiver().connections(), 0);
    it.rig.net.check();
}

/// Where nothing fences a sender, what is handed out is a copy.
#[test]
fn over_rdm_a_long_message_is_copied_out_of_a_buffer_of_its_connection() {
    let mut rig = setup(Form::Rdm).connected();
    rig.drop_at_once = false;
    rig.send_long(1).unwrap();
    rig.settle();
    let key = rig.net.last_key().expect("it stays open");
    // The sender goes on writing where it wrote before.
    rig.net.bury_by_hand(rig.conn, 10, key, LONG_BYTES);
    rig.net.deliver(usize::MAX);
    assert!(
        rig.held[0].payload()[8..LONG_BYTES - 8]
            .iter()
            .all(|byte| *byte == 1)
    );
    assert_eq!(rig.receiver().stats().long_copied, 10 + LONG_BYTES as u64);
    rig.held.clear();
    for key in 2..6 {
        rig.send_long(key).unwrap();
        rig.settle();
        rig.held.clear();
    }
    assert_eq!(rig.received, [1, 2, 3, 4, 5]);
    assert_eq!(rig.receiver().long_free(), 2);
    rig.end();
}

const LIAR: Hello = Hello {
    kind: HelloKind::Hello,
    header_mode: HeaderMode::Raw,
    version: wire::VERSION,
    oldest: wire::OLDEST,
    features: 0,
    receive_size: 0,
    receive_depth: 0,
    credits: 0,
    incarnation: 1,
    connection: 9,
};
