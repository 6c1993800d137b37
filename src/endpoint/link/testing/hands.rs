//! Peers that nobody of ours drives: what they post moves piece by piece, when the test wants it,
//! and memory that they may not touch any more is watched.
//!
//! As tcp: a connection serves what its peer posts one after the other. The key of an operation is
//! looked up once, when it begins; then its bytes move in any number of pieces, whatever became of
//! the registration, until the endpoint is closed. The bytes of a read go out behind what was sent
//! before it began, and in front of what is sent later.

use super::{
    Body, CmEvent, ConnKey, ConnState, FakeLink, Level, Net, Phase, Rma, Sent, State, VecDeque,
    completion, lock,
};
use crate::endpoint::link::{Link, PEER_WROTE, RemoteRange};
use crate::memory::Access;

impl Net {
    /// A peer of ours by hand asks that listener for a connection; its link must be kept as long as
    /// the connection.
    pub(crate) fn ask_at(&self, listener: usize, hello: &[u8]) -> (FakeLink, ConnKey) {
        let link = self.link();
        let mut state = self.state();
        let conn = state.add_conn(ConnState {
            link: link.id,
            registrar: self.near.id,
            peer: None,
            target: None,
            phase: Phase::Asked,
            by_hand: true,
            gathers: false,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
        });
        let request = super::Cm::Request {
            initiator: conn,
            hello: hello.to_vec(),
        };
        state.links[listener].cm.push_back(request);
        drop(state);
        (link, conn)
    }

    /// A listener of a peer by hand, at an address of its own (`addr_of`).
    pub(crate) fn listen_by_hand(&self) -> FakeLink {
        let link = self.link();
        self.state().links[link.id].listens = true;
        link
    }

    /// A peer by hand takes a connection, if it is still asked for; its link must be kept as long
    /// as the connection.
    pub(crate) fn accept_by_hand(
        &self,
        initiator: ConnKey,
        hello: &[u8],
    ) -> Option<(FakeLink, ConnKey)> {
        let link = self.link();
        let mut state = self.state();
        let asking = &mut state.conns[initiator];
        if asking.phase != Phase::Asked {
            drop(state);
            return None;
        }
        let theirs = asking.link;
        let conn = state.add_conn(ConnState {
            link: link.id,
            registrar: self.near.id,
            peer: Some(initiator),
            target: None,
            phase: Phase::Connected,
            by_hand: true,
            gathers: false,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
        });
        let asking = &mut state.conns[initiator];
        (asking.phase, asking.peer) = (Phase::Connected, Some(conn));
        state.links[theirs].cm.push_back(super::Cm::Connected {
            conn: initiator,
            data: hello.to_vec(),
        });
        drop(state);
        Some((link, conn))
    }

    /// A peer by hand refuses, with these bytes.
    pub(crate) fn refuse_by_hand(&self, initiator: ConnKey, bytes: &[u8]) {
        self.state().refuse(initiator, bytes);
    }

    /// The operation that the endpoint at the other end began first on this peer by hand is refused
    /// by its provider, which ends the connection. False: there is none.
    pub(crate) fn deny_by_hand(&self, conn: ConnKey) -> bool {
        let mut state = self.state();
        let Some(from) = state.reachable_peer(conn) else {
            return false;
        };
        let is_own = |sent: &Sent| sent.rma.is_some() && sent.context.is_some();
        let denied = state.conns[from].sends.front().is_some_and(is_own);
        if denied {
            state.deny(from, conn);
        }
        denied
    }

    /// The other end of a connection, once it stands.
    pub(crate) fn other_end(&self, conn: ConnKey) -> Option<ConnKey> {
        self.state().conns[conn].peer
    }

    /// Whether a connection by hand has an open endpoint at its other end.
    pub(crate) fn stands(&self, conn: ConnKey) -> bool {
        self.state().reachable_peer(conn).is_some()
    }

    /// What a connection by hand has posted and what has not moved.
    pub(crate) fn queued(&self, conn: ConnKey) -> usize {
        self.state().conns[conn].sends.len()
    }

    /// A one-sided operation of a peer by hand. What it writes, and where what it reads goes, is
    /// nobody's business.
    pub(crate) fn touch_by_hand(
        &self,
        conn: ConnKey,
        access: Access,
        remote: RemoteRange,
        immediate: Option<u64>,
    ) {
        self.state().conns[conn].sends.push_back(Sent {
            body: Body::Copied(Vec::new()),
            context: None,
            data: None,
            rma: Some(Rma {
                access,
                remote,
                immediate,
                level: Level::Delivered,
                begun: None,
            }),
            kept_back: false,
        });
    }

    /// The oldest thing that a peer by hand has posted goes on: a message arrives, an operation
    /// begins, or so many of its bytes move. False: nothing moved.
    pub(crate) fn advance(&self, conn: ConnKey, bytes: usize) -> bool {
        self.state().advance(conn, bytes)
    }

    /// The oldest thing on its way to a peer by hand goes on; the message, if that is what arrived.
    pub(crate) fn hear(&self, conn: ConnKey, bytes: usize) -> Option<(Option<u64>, Vec<u8>)> {
        self.state().hear(conn, bytes)
    }

    /// From now on exactly this memory (base, bytes) is the application's, or free: a peer that
    /// touches it touches what it may not.
    pub(crate) fn set_given_back(&self, ranges: impl IntoIterator<Item = (usize, usize)>) {
        let mut ledger = lock(&self.ledger);
        ledger.freed.clear();
        ledger.freed.extend(ranges);
    }
}

impl State {
    fn advance(&mut self, conn: ConnKey, bytes: usize) -> bool {
        let Some(peer) = self.reachable_peer(conn) else {
            return false;
        };
        let Some(rma) = self.conns[conn].sends.front().map(|sent| sent.rma) else {
            return false;
        };
        let Some(rma) = rma else {
            return self.deliver_from(conn);
        };
        match rma.begun {
            None => self.begin_by_hand(conn, peer, rma),
            Some(begun) => {
                if let Some(moved) = self.move_piece(begun, &rma, bytes) {
                    self.set_moved(conn, moved);
                    return true;
                }
                self.conns[conn].sends.pop_front();
                if let Some(immediate) = rma.immediate {
                    let told = completion(PEER_WROTE, 0, Some(immediate), None);
                    let link = self.conns[peer].link;
                    self.links[link].cq.push_back(told);
                }
                true
            }
        }
    }

    /// The key is looked up. A read is answered behind what is on its way to the peer already.
    fn begin_by_hand(&mut self, conn: ConnKey, peer: ConnKey, mut rma: Rma) -> bool {
        let virt = self.config.rma.is_some_and(|rma| rma.virtual_addresses);
        let registrar = self.conns[peer].registrar;
        let found = lock(&self.ledger).resolve(&rma.remote, rma.access, registrar, virt);
        let Some(base) = found else {
            self.deny(conn, peer);
            return true;
        };
        rma.begun = Some((base, 0));
        if rma.access == Access::READ {
            let Some(mut answer) = self.conns[conn].sends.pop_front() else {
                return false;
            };
            answer.rma = Some(rma);
            self.conns[peer].sends.push_back(answer);
        } else {
            self.set_moved(conn, (base, 0));
        }
        true
    }

    fn set_moved(&mut self, conn: ConnKey, begun: (usize, usize)) {
        if let Some(Sent { rma: Some(rma), .. }) = self.conns[conn].sends.front_mut() {
            rma.begun = Some(begun);
        }
    }

    /// Moves the next bytes of an operation; how far it is, and `None` when it is over.
    fn move_piece(
        &self,
        (base, moved): (usize, usize),
        rma: &Rma,
        bytes: usize,
    ) -> Option<(usize, usize)> {
        let piece = bytes.min(rma.remote.len - moved);
        if piece > 0 && lock(&self.ledger).may_touch(base + moved, piece) {
            // SAFETY: that the memory is there, and nobody else's, is what the cores promise; where
            // one breaks it, the ledger has said no.
            let there = unsafe { self.load(base + moved, piece) };
            if rma.access == Access::WRITE {
                let other: Vec<u8> = there.iter().map(|byte| byte.wrapping_add(1)).collect();
                // SAFETY: as above.
                unsafe { self.store(base + moved, &other) };
            }
        }
        (moved + piece < rma.remote.len).then_some((base, moved + piece))
    }

    fn hear(&mut self, conn: ConnKey, bytes: usize) -> Option<(Option<u64>, Vec<u8>)> {
        let from = self.reachable_peer(conn)?;
        let rma = self.conns[from].sends.front()?.rma;
        if let Some(rma) = rma {
            if self.conns[from].sends.front()?.context.is_some() {
                self.serve(from, rma, bytes);
                return None;
            }
            let begun = rma.begun?;
            match self.move_piece(begun, &rma, bytes) {
                Some(moved) => self.set_moved(from, moved),
                None => drop(self.conns[from].sends.pop_front()),
            }
            return None;
        }
        let sent = self.conns[from].sends.pop_front()?;
        if let Body::Live(runs) = &sent.body {
            let mut ledger = lock(&self.ledger);
            runs.iter().for_each(|(base, len, _)| {
                ledger.may_touch(*base, *len);
            });
        }
        let heard = self.gather(from, &sent);
        self.finish_send(from, &sent, None);
        Some((sent.data, heard))
    }

    /// The peer's provider serves so many bytes of an operation that an endpoint began: what is
    /// read or filled is the endpoint's own memory, which must not be given back while that lasts.
    fn serve(&mut self, from: ConnKey, rma: Rma, bytes: usize) {
        let (_, moved) = rma.begun.unwrap_or((0, 0));
        let to = rma.remote.len.min(moved + bytes);
        self.move_own(from, rma.access, moved..to);
        if to < rma.remote.len {
            return self.set_moved(from, (0, to));
        }
        if let Some(sent) = self.conns[from].sends.pop_front() {
            self.finish_send(from, &sent, None);
        }
    }

    /// Reads, or fills, a part of the memory of the first operation of a connection.
    fn move_own(&self, conn: ConnKey, access: Access, part: std::ops::Range<usize>) {
        let Some(Sent {
            body: Body::Live(runs),
            ..
        }) = self.conns[conn].sends.front()
        else {
            return;
        };
        let mut at = 0;
        for &(start, len, desc) in runs {
            lock(&self.ledger).check("one-sided", (start, len, desc), self.conns[conn].registrar);
            let from = part.start.clamp(at, at + len);
            let to = part.end.clamp(at, at + len);
            let local = start + (from - at);
            at += len;
            if from == to || !lock(&self.ledger).may_touch(local, to - from) {
                continue;
            }
            // SAFETY: the contract of `Link::post_write` and `Link::post_read`; where a core breaks
            // it, the ledger has said no.
            let there = unsafe { self.load(local, to - from) };
            if access == Access::READ {
                let other: Vec<u8> = there.iter().map(|byte| byte.wrapping_add(1)).collect();
                // SAFETY: as above.
                unsafe { self.store(local, &other) };
            }
        }
    }
}

impl FakeLink {
    /// The next who asks this listener by hand for a connection, with its hello. It is refused by
    /// no drop.
    pub(crate) fn take_request(&mut self) -> Option<(ConnKey, Vec<u8>)> {
        loop {
            if let CmEvent::Request { mut request, .. } = self.poll_cm().ok()?? {
                request.answered = true;
                return Some((request.initiator, std::mem::take(&mut request.hello)));
            }
        }
    }

    /// Whether this peer by hand was told that its connection stands; what else it was told is
    /// forgotten.
    pub(crate) fn was_accepted(&mut self) -> bool {
        let mut accepted = false;
        while let Ok(Some(event)) = self.poll_cm() {
            accepted |= matches!(event, CmEvent::Connected { .. });
        }
        accepted
    }
}
