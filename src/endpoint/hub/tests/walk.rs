//! Random walks of both cores over the fake link, against the rig's model: which key is owed, with
//! which buffer.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::buffer::SharedBufferManager;
use crate::endpoint::error::SendErrorKind;
use crate::endpoint::event::{ConnectionEvent, DeadlinePolicy, Packing, ReceiveEvent};
use crate::endpoint::link::PostRefused;
use crate::endpoint::link::fake::{CloseMode, NetConfig};
use crate::endpoint::testing::rig::{
    FakeGate, PAYLOAD_MEMORY, Rig, Setup, far_future, pool_with_room,
};
use crate::error::FabricErrno;
use crate::fabric::Shape;
use crate::in_flight::ContextKind;
use crate::protocol::connection::Form;
use crate::protocol::wire::HeaderMode;

#[derive(Clone, Debug)]
enum Step {
    Send,
    Gated { staged: bool },
    Gate { which: usize, fails: bool },
    Batch(u64),
    PollSender,
    PollReceiver,
    Deliver(usize),
    RefuseSend(bool),
    Storm { far: bool, on: bool },
    ReceiveStorm(bool),
    FailSend,
    Flush { far: bool },
    ShutDown { far: bool },
    Hold(bool),
    DropMessage,
    Double { far: bool },
    Garbage { far: bool, context: usize },
    BreakQueue { far: bool },
    CloseMode { far: bool, silent: bool },
    CloseSender { soon: bool },
    CloseReceiver { soon: bool },
    DropSender,
    DropReceiver,
}

fn step() -> impl Strategy<Value = Step> {
    let far = any::<bool>;
    prop_oneof![
        20 => Just(Step::Send),
        6 => any::<bool>().prop_map(|staged| Step::Gated { staged }),
        8 => (0usize..8, 0..8).prop_map(|(which, n)| Step::Gate { which, fails: n == 0 }),
        4 => (1u64..5).prop_map(Step::Batch),
        10 => Just(Step::PollSender),
        10 => Just(Step::PollReceiver),
        15 => (1usize..6).prop_map(Step::Deliver),
        3 => any::<bool>().prop_map(Step::RefuseSend),
        2 => (far(), far()).prop_map(|(far, on)| Step::Storm { far, on }),
        1 => far().prop_map(Step::ReceiveStorm),
        1 => Just(Step::FailSend),
        1 => far().prop_map(|far| Step::Flush { far }),
        1 => far().prop_map(|far| Step::ShutDown { far }),
        3 => far().prop_map(Step::Hold),
        4 => Just(Step::DropMessage),
        1 => far().prop_map(|far| Step::Double { far }),
        1 => (far(), any::<usize>()).prop_map(|(far, context)| Step::Garbage { far, context }),
        1 => far().prop_map(|far| Step::BreakQueue { far }),
        1 => (far(), far()).prop_map(|(far, silent)| Step::CloseMode { far, silent }),
        1 => far().prop_map(|soon| Step::CloseSender { soon }),
        1 => far().prop_map(|soon| Step::CloseReceiver { soon }),
        1 => Just(Step::DropSender),
        1 => Just(Step::DropReceiver),
    ]
}

fn setup() -> impl Strategy<Value = Setup> {
    let flags = (
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        prop_oneof![Just(Packing::Off), Just(Packing::UpTo(60))],
        any::<bool>(),
    );
    let sizes = (1u32..6, 1u32..6, 4u32..12);
    (flags, sizes, framing()).prop_map(|(flags, (depth, headers, slots), framing)| {
        let (rdm, cells, endpoint_scope, notify, short_cq_data, packing, gathers) = flags;
        let (shape, iov_limit, header_mode, uses_more, inject_pays) = framing;
        Setup {
            net: NetConfig {
                form: if rdm { Form::Rdm } else { Form::Msg },
                contexts: if cells {
                    ContextKind::Cells
                } else {
                    ContextKind::Opaque
                },
                endpoint_scope,
                short_cq_data,
                iov_limit,
                uses_more,
                inject_pays,
                gathers_below: gathers.then_some(60),
                ..NetConfig::default()
            },
            shape: Some(shape),
            header_mode,
            // A prefix of 2 bytes and a header of 8.
            headroom: 10,
            depth,
            header_slots: headers,
            packing,
            receive_slots: slots,
            max_connections: 1,
            send_deadline: notify.then_some(Duration::from_secs(3600)),
            policy: DeadlinePolicy::Notify,
            ..Setup::default()
        }
    })
}

/// How header and payload become one message, and whether posts are joined and injected.
fn framing() -> impl Strategy<Value = (Shape, usize, HeaderMode, bool, bool)> {
    let shape = prop_oneof![
        Just((Shape::Iov, 4)),
        Just((Shape::Headroom, 1)),
        Just((Shape::TwoMessages, 1)),
        Just((Shape::TwoMessages, 4)),
    ];
    let mode = prop_oneof![
        Just(HeaderMode::Prefixed),
        Just(HeaderMode::Fixed(8)),
        Just(HeaderMode::Raw),
    ];
    let framing = (shape, mode, any::<bool>(), any::<bool>());
    framing.prop_map(|((shape, limit), mode, more, pays)| (shape, limit, mode, more, pays))
}

struct Walk {
    rig: Rig,
    next_key: u64,
    accepted: Vec<u64>,
    staging: SharedBufferManager,
    gates: Vec<FakeGate>,
}

impl Walk {
    fn new(setup: Setup) -> Self {
        let rig = setup.rig();
        let staging = pool_with_room(&rig.net, PAYLOAD_MEMORY + 1, 4, 10);
        staging.region().register_with(rig.net.near()).unwrap();
        Self {
            rig,
            next_key: 0,
            accepted: Vec::new(),
            staging,
            gates: Vec::new(),
        }
    }

    fn end_of(&self, far: bool) -> usize {
        if far { self.rig.far } else { self.rig.near }
    }

    fn take(&mut self, step: &Step) {
        self.rig.pass(STEP);
        let now = self.rig.now();
        let rig = &mut self.rig;
        match *step {
            Step::Send => self.send(),
            Step::Gated { staged } => self.send_gated(staged),
            Step::Gate { which, fails } => {
                if let Some(gate) = self.gates.get(which) {
                    if fails {
                        gate.fail();
                    } else {
                        gate.open();
                    }
                }
                self.gates.retain(|gate| !gate.is_settled());
            }
            Step::Batch(n) => self.send_batch(n),
            Step::PollSender => rig.poll_sender(),
            Step::PollReceiver => rig.poll_receiver(),
            Step::Deliver(n) => drop(rig.net.deliver(n)),
            Step::RefuseSend(again) => rig.net.refuse_sends(rig.near, &[refused(again)]),
            Step::Storm { far, on } => {
                let link = self.end_of(far);
                self.rig
                    .net
                    .refuse_all_sends(link, on.then_some(PostRefused::Again));
            }
            Step::ReceiveStorm(on) => {
                rig.net
                    .refuse_all_receives(rig.far, on.then_some(PostRefused::Again));
            }
            Step::FailSend => drop(rig.net.fail_send(rig.conn, libc::EIO)),
            Step::Flush { far } => {
                if let Some(conn) = self.conn(far) {
                    self.rig.net.flush(conn, libc::ECONNRESET);
                }
            }
            Step::ShutDown { far } => {
                if let Some(conn) = self.conn(far) {
                    self.rig.net.shut_down(conn);
                }
            }
            Step::Hold(on) => rig.drop_at_once = !on,
            Step::DropMessage => drop(rig.held.pop()),
            Step::Double { far } => {
                let link = self.end_of(far);
                self.rig.net.double(link, 1);
            }
            Step::Garbage { far, context } => {
                let link = self.end_of(far);
                self.rig.net.inject(link, context, None);
            }
            Step::BreakQueue { far } => {
                let link = self.end_of(far);
                self.rig.net.break_cq(link, libc::EOVERFLOW);
            }
            Step::CloseMode { far, silent } => {
                let mode = if silent {
                    CloseMode::Silent
                } else {
                    CloseMode::Reports
                };
                let link = self.end_of(far);
                self.rig.net.set_close(link, mode);
            }
            Step::CloseSender { soon } => {
                if let Some(sender) = &mut rig.sender {
                    sender.begin_close(deadline(soon, now));
                }
            }
            Step::CloseReceiver { soon } => self.close_receiver(soon),
            Step::DropSender => rig.sender = None,
            Step::DropReceiver => rig.receiver = None,
        }
    }

    /// The far end exists when the request was accepted.
    fn conn(&self, far: bool) -> Option<usize> {
        if !far {
            return Some(self.rig.conn);
        }
        self.rig.connected.then(|| self.rig.far_conn())
    }

    fn send(&mut self) {
        let key = self.next_key;
        if self.rig.sender.is_none() || self.rig.payloads.free_count() == 0 {
            return;
        }
        self.next_key += 1;
        match self.rig.send(key) {
            Ok(()) => self.accepted.push(key),
            Err(
                SendErrorKind::WouldBlock(_)
                | SendErrorKind::Closing
                | SendErrorKind::Closed(_)
                | SendErrorKind::Fabric(_),
            ) => {}
            Err(other) => panic!("{other}"),
        }
    }

    fn send_gated(&mut self, staged: bool) {
        let free = match staged {
            true => self
                .staging
                .free_count()
                .min(self.rig.payloads.free_count()),
            false => self.rig.payloads.free_count(),
        };
        if self.rig.sender.is_none() || free == 0 {
            return;
        }
        let key = self.next_key;
        self.next_key += 1;
        match self.rig.send_gated(key, staged.then_some(&self.staging)) {
            Ok(gate) => {
                self.accepted.push(key);
                self.gates.push(gate);
            }
            Err(
                SendErrorKind::WouldBlock(_)
                | SendErrorKind::Closing
                | SendErrorKind::Closed(_)
                | SendErrorKind::Fabric(_),
            ) => {}
            Err(other) => panic!("{other}"),
        }
    }

    fn send_batch(&mut self, count: u64) {
        let free = self.rig.payloads.free_count() as u64;
        if self.rig.sender.is_none() || free < count {
            return;
        }
        let keys = self.next_key..self.next_key + count;
        self.next_key += count;
        let (sent, refused) = self.rig.send_batch(keys.clone());
        self.accepted.extend(keys.take(sent));
        match refused {
            None => assert_eq!(sent as u64, count),
            Some(
                SendErrorKind::WouldBlock(_)
                | SendErrorKind::Closing
                | SendErrorKind::Closed(_)
                | SendErrorKind::Fabric(_),
            ) => {}
            Some(other) => panic!("{other}"),
        }
    }

    fn close_receiver(&mut self, soon: bool) {
        let now = self.rig.now();
        let rig = &mut self.rig;
        let connected = rig.said.iter().find_map(|event| match event {
            ReceiveEvent::Connection(id, ConnectionEvent::Connected(_)) => Some(*id),
            _ => None,
        });
        if let (Some(receiver), Some(id)) = (&mut rig.receiver, connected) {
            receiver.begin_close(id, deadline(soon, now));
        }
    }

    /// Every key that was accepted came back once, or was handed to the drop; nothing is left out.
    fn end(mut self) {
        if let Some(sender) = &mut self.rig.sender {
            sender.begin_close(self.rig.setup.clock.now());
            self.rig.poll_sender();
            assert!(self.rig.ended.is_some(), "closed, but not told so");
            assert!(self.rig.abandoned.lock().unwrap().is_empty());
        }
        let mut back: Vec<_> = self.rig.completed.clone();
        back.extend(self.rig.failed.iter().map(|(key, _)| *key));
        back.extend(self.rig.abandoned.lock().unwrap().iter());
        back.sort_unstable();
        assert_eq!(back, self.accepted);
        let in_order = self.rig.received.windows(2).all(|pair| pair[0] < pair[1]);
        assert!(in_order, "{:?}", self.rig.received);
        self.rig.end();
        assert_eq!(self.staging.free_count(), self.staging.slots());
    }
}

fn refused(again: bool) -> PostRefused {
    if again {
        PostRefused::Again
    } else {
        PostRefused::Errno(FabricErrno::new(libc::EINVAL))
    }
}

/// The time that passes with each step.
const STEP: Duration = Duration::from_micros(100);

fn deadline(soon: bool, now: Instant) -> Instant {
    if soon { now } else { far_future() }
}

proptest! {
    #![proptest_config(crate::soak::cases(100, 3000))]

    #[test]
    fn no_walk_loses_a_key_or_a_buffer(
        setup in setup(),
        connect in any::<bool>(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut walk = Walk::new(setup);
        if connect {
            walk.rig.settle();
        }
        for step in &steps {
            walk.take(step);
        }
        walk.end();
    }
}
