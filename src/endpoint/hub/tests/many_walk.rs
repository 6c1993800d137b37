//! Random walks of endpoints that send, receive and dial, over the fake link, against the model in
//! `hubs`.

use std::time::Duration;

use proptest::prelude::*;

use crate::endpoint::error::SendErrorKind;
use crate::endpoint::event::{DeadlinePolicy, Packing};
use crate::endpoint::link::fake::{CloseMode, NetConfig, addr_of};
use crate::endpoint::link::{PostRefused, RmaLimits};
use crate::endpoint::testing::hubs::{HubSetup, Hubs};
use crate::endpoint::testing::rig::{FakeGate, far_future};
use crate::error::FabricErrno;
use crate::fabric::Shape;
use crate::id::ConnectionId;
use crate::in_flight::ContextKind;
use crate::protocol::connection::Form;

const HUBS: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    Dial {
        from: usize,
        to: usize,
    },
    Send {
        hub: usize,
        which: usize,
    },
    Long {
        hub: usize,
        which: usize,
    },
    Gated {
        hub: usize,
        which: usize,
    },
    Batch {
        hub: usize,
        which: usize,
        count: u64,
    },
    Gate {
        which: usize,
        fails: bool,
    },
    Poll(usize),
    /// Takes so many messages of a batch.
    Receive {
        hub: usize,
        most: usize,
    },
    Deliver(usize),
    RefuseSend {
        hub: usize,
        again: bool,
        /// The send behind the next one.
        second: bool,
    },
    Storm {
        hub: usize,
        on: bool,
    },
    FailSend {
        hub: usize,
        which: usize,
    },
    Close {
        hub: usize,
        which: usize,
        soon: bool,
    },
    CloseMode {
        hub: usize,
        silent: bool,
    },
    Drop(usize),
}

/// Which kind of message is sent.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Plain,
    Long,
    Gated,
}

fn step() -> impl Strategy<Value = Step> {
    let hub = || 0..HUBS;
    let which = || 0usize..4;
    prop_oneof![
        3 => (hub(), hub()).prop_map(|(from, to)| Step::Dial { from, to }),
        20 => (hub(), which()).prop_map(|(hub, which)| Step::Send { hub, which }),
        6 => (hub(), which()).prop_map(|(hub, which)| Step::Long { hub, which }),
        6 => (hub(), which()).prop_map(|(hub, which)| Step::Gated { hub, which }),
        4 => (hub(), which(), 1u64..4)
            .prop_map(|(hub, which, count)| Step::Batch { hub, which, count }),
        8 => (0usize..8, 0..8).prop_map(|(which, n)| Step::Gate { which, fails: n == 0 }),
        14 => hub().prop_map(Step::Poll),
        6 => (hub(), prop_oneof![0usize..4, Just(usize::MAX)])
            .prop_map(|(hub, most)| Step::Receive { hub, most }),
        20 => (1usize..6).prop_map(Step::Deliver),
        2 => (hub(), any::<bool>(), any::<bool>())
            .prop_map(|(hub, again, second)| Step::RefuseSend { hub, again, second }),
        1 => (hub(), any::<bool>()).prop_map(|(hub, on)| Step::Storm { hub, on }),
        1 => (hub(), which()).prop_map(|(hub, which)| Step::FailSend { hub, which }),
        1 => (hub(), which(), any::<bool>())
            .prop_map(|(hub, which, soon)| Step::Close { hub, which, soon }),
        1 => (hub(), any::<bool>()).prop_map(|(hub, silent)| Step::CloseMode { hub, silent }),
        1 => hub().prop_map(Step::Drop),
    ]
}

fn setup() -> impl Strategy<Value = HubSetup> {
    let packing = prop_oneof![Just(Packing::Off), Just(Packing::UpTo(60))];
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let flags = (flags, packing);
    let shapes = prop_oneof![
        Just((Shape::Iov, 4)),
        Just((Shape::Headroom, 1)),
        Just((Shape::TwoMessages, 1)),
    ];
    let sizes = (1u32..4, 1u32..6, 1u32..6);
    let long = prop::option::of((1u32..3, prop_oneof![Just(150), Just(4096)]));
    let long = (any::<bool>(), long);
    let share = prop::option::of((0u32..20, 20u32..60));
    let all = (flags, shapes, sizes, long, share);
    all.prop_map(|(flags, (shape, iov_limit), sizes, long, share)| {
        let base = NetConfig::default();
        let ((rdm, cells, endpoint_scope, timed), packing) = flags;
        let (depth, headers, receive_depth) = sizes;
        HubSetup {
            net: NetConfig {
                form: if rdm { Form::Rdm } else { Form::Msg },
                contexts: if cells {
                    ContextKind::Cells
                } else {
                    ContextKind::Opaque
                },
                endpoint_scope,
                iov_limit,
                uses_more: timed,
                // Of four pieces and a bit is what is too long for it.
                max_message: 100,
                rma: base.rma.map(|rma| RmaLimits {
                    max_bytes: 64,
                    ordered: !rdm,
                    ..rma
                }),
                ..base
            },
            depth,
            header_slots: headers,
            packing,
            receive_depth,
            deadline: timed.then_some(Duration::from_secs(3600)),
            policy: DeadlinePolicy::Notify,
            max_connections: 6,
            shape: Some(shape),
            // Of one pool, all of them want more than there is.
            receive_slots: if share.is_some() { 64 } else { 100 },
            share,
            sends_long: long.0,
            long: long.1,
            ..HubSetup::default()
        }
    })
}

fn check_refusal(refused: SendErrorKind) {
    match refused {
        SendErrorKind::WouldBlock(_)
        | SendErrorKind::NoConnection
        | SendErrorKind::Closing
        | SendErrorKind::Closed(_)
        | SendErrorKind::TooLong { .. }
        | SendErrorKind::Fabric(_) => {}
        other => panic!("{other}"),
    }
}

struct Walk {
    hubs: Hubs,
    next_key: u64,
    /// For each hub: the connections that it made, and the keys that were taken.
    made: [Vec<ConnectionId>; HUBS],
    accepted: [Vec<u64>; HUBS],
    gates: Vec<FakeGate>,
}

impl Walk {
    /// One of the connections of a hub, whoever made it.
    fn connection(&self, hub: usize, which: usize) -> Option<ConnectionId> {
        let mut all = self.made[hub].clone();
        all.extend(&self.hubs.hubs[hub].connected);
        all.sort_unstable();
        all.dedup();
        all.get(which % all.len().max(1)).copied()
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Dial { from, to } => self.dial(from, to),
            Step::Send { hub, which } => self.send(hub, which, Kind::Plain),
            Step::Long { hub, which } => self.send(hub, which, Kind::Long),
            Step::Gated { hub, which } => self.send(hub, which, Kind::Gated),
            Step::Batch { hub, which, count } => self.send_batch(hub, which, count),
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
            Step::Poll(hub) => self.hubs.hubs[hub].poll(),
            Step::Receive { hub, most } => _ = self.hubs.hubs[hub].receive(most, 3),
            Step::Deliver(n) => drop(self.hubs.net.deliver(n)),
            Step::RefuseSend { hub, again, second } => {
                let link = self.hubs.hubs[hub].link;
                let refused = if again {
                    PostRefused::Again
                } else {
                    PostRefused::Errno(FabricErrno::new(libc::EINVAL))
                };
                match second {
                    true => self.hubs.net.refuse_second_send_with(link, refused),
                    false => self.hubs.net.refuse_sends(link, &[refused]),
                }
            }
            Step::Storm { hub, on } => {
                let link = self.hubs.hubs[hub].link;
                let refused = on.then_some(PostRefused::Again);
                self.hubs.net.refuse_all_sends(link, refused);
            }
            Step::FailSend { hub, which } => {
                let link = self.hubs.hubs[hub].link;
                let pairs = self.hubs.net.pairs();
                let its = |(key, _): &&(usize, usize)| self.hubs.net.link_of(*key) == link;
                let its: Vec<_> = pairs.iter().filter(its).collect();
                if let Some((conn, _)) = its.get(which % its.len().max(1)) {
                    self.hubs.net.fail_send(*conn, libc::EIO);
                }
            }
            Step::Close { hub, which, soon } => {
                let id = self.connection(hub, which);
                if let (Some(id), Some(core)) = (id, &mut self.hubs.hubs[hub].core) {
                    let now = core.clock().now();
                    core.begin_close(id, if soon { now } else { far_future() });
                }
            }
            Step::CloseMode { hub, silent } => {
                let mode = if silent {
                    CloseMode::Silent
                } else {
                    CloseMode::Reports
                };
                self.hubs.net.set_close(self.hubs.hubs[hub].link, mode);
            }
            Step::Drop(hub) => self.hubs.hubs[hub].drop_core(),
        }
        self.hubs.net.check();
    }

    fn dial(&mut self, from: usize, to: usize) {
        let addr = addr_of(self.hubs.hubs[to].link);
        if from == to {
            return;
        }
        if let Some(core) = &mut self.hubs.hubs[from].core
            && let Ok(id) = core.dial(&addr)
        {
            self.made[from].push(id);
        }
    }

    fn send(&mut self, hub: usize, which: usize, kind: Kind) {
        let Some(id) = self.connection(hub, which) else {
            return;
        };
        let of = &mut self.hubs.hubs[hub];
        if of.core.is_none() || of.payloads.free_count() == 0 {
            return;
        }
        self.next_key += 1;
        let sent = match kind {
            Kind::Gated => of.send_gated(id, self.next_key).map(Some),
            Kind::Plain => of.send(id, self.next_key).map(|()| None),
            Kind::Long => of.send_long(id, self.next_key).map(|()| None),
        };
        if let Ok(gate) = &sent {
            self.gates.extend(gate.clone());
        }
        match sent.map(drop) {
            Ok(()) => self.accepted[hub].push(self.next_key),
            Err(refused) => check_refusal(refused),
        }
    }

    fn send_batch(&mut self, hub: usize, which: usize, count: u64) {
        let Some(id) = self.connection(hub, which) else {
            return;
        };
        let of = &mut self.hubs.hubs[hub];
        if of.core.is_none() || of.payloads.free_count() < count as usize {
            return;
        }
        let first = self.next_key + 1;
        self.next_key += count;
        let (sent, refused) = of.send_batch(id, first..first + count);
        self.accepted[hub].extend(first..first + sent as u64);
        if let Some(refused) = refused {
            check_refusal(refused);
        }
    }

    /// Every key that was accepted came back once, or was handed to the drop; nothing is left out.
    fn end(mut self) {
        for (hub, accepted) in self.hubs.hubs.iter_mut().zip(&self.accepted) {
            if hub.core.is_some() {
                hub.close();
                hub.check_all_back();
                assert!(hub.abandoned.lock().unwrap().is_empty());
            }
            let mut back = hub.completed.clone();
            back.extend(&hub.failed);
            back.extend(hub.abandoned.lock().unwrap().iter().map(|(_, key)| *key));
            back.sort_unstable();
            assert_eq!(back, *accepted);
        }
        self.hubs.end();
    }
}

proptest! {
    #![proptest_config(crate::soak::cases(100, 3000))]

    #[test]
    fn no_walk_of_hubs_loses_a_key_or_a_buffer(
        setup in setup(),
        star in any::<bool>(),
        steps in prop::collection::vec(step(), 1..160),
    ) {
        let hubs = Hubs::new(&setup, HUBS);
        let (made, accepted) = Default::default();
        let mut walk = Walk { hubs, next_key: 0, made, accepted, gates: Vec::new() };
        if star {
            walk.dial(0, 1);
            walk.dial(0, 2);
            walk.hubs.settle();
        }
        for step in &steps {
            setup.clock.advance(Duration::from_micros(100));
            walk.take(step);
        }
        walk.end();
    }
}
