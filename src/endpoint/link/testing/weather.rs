//! What a net does to those who use it: connections of several machines are delivered one by one,
//! completions come late and in another order, connections break, and dials are refused.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{
    Cm, ConnKey, ConnState, ControlKind, FakeLink, FakeMemory, Form, LinkCompletion, Net, Phase,
    State, completion, kind_of, lock,
};

/// What a link has reported and its endpoint is not told yet.
#[derive(Debug, Default)]
pub(super) struct Late {
    /// Completions wait here, from now on.
    pub(super) held: bool,
    pub(super) waiting: Vec<LinkCompletion>,
    /// Nobody reads any more what is reported.
    pub(super) is_gone: bool,
    /// So many dials that come are refused.
    pub(super) refuses: usize,
}

impl Net {
    /// The domain of another machine.
    pub(crate) fn machine(&self) -> Arc<FakeMemory> {
        let device = self.state().config.device;
        Arc::new(FakeMemory::new(&self.ledger, device))
    }

    /// A link of that machine, which others can connect to if it `listens`.
    pub(crate) fn link_of_machine(&self, machine: &Arc<FakeMemory>, listens: bool) -> FakeLink {
        let mut link = self.add_link(machine);
        // In the RDM form, one that dials has an endpoint that all its connections share, too.
        if listens || self.state().config.form == Form::Rdm {
            self.open_ears(&mut link);
        }
        link
    }

    /// Connections that have something to deliver.
    pub(crate) fn laden(&self) -> Vec<ConnKey> {
        let mut state = self.state();
        state.forget();
        let laden = state.live.iter().copied();
        let laden = laden.filter(|conn| !state.conns[*conn].sends.is_empty());
        laden.collect()
    }

    /// Messages so far that went to an endpoint which was gone.
    pub(crate) fn lost(&self) -> u64 {
        self.state().lost
    }

    /// Whether what a connection has to send goes to an endpoint that is gone.
    pub(crate) fn leads_nowhere(&self, conn: ConnKey) -> bool {
        self.state().leads_nowhere(conn)
    }

    /// Its sender hears that it never arrived, if it is still there.
    pub(crate) fn fail_sends(&self, conn: ConnKey) {
        let mut state = self.state();
        for sent in std::mem::take(&mut state.conns[conn].sends) {
            state.lost += 1;
            state.finish_send(conn, &sent, Some(libc::EHOSTUNREACH));
        }
    }

    /// Whether [`deliver_one`](Self::deliver_one) would move something.
    pub(crate) fn can_deliver(&self, conn: ConnKey) -> bool {
        self.state().way(conn).is_some()
    }

    /// Moves the oldest message of a connection. False: it has none, or nobody there takes it now.
    pub(crate) fn deliver_one(&self, conn: ConnKey) -> bool {
        self.state().deliver_from(conn)
    }

    /// Whether an endpoint would find something.
    pub(crate) fn has_news(&self, link: usize) -> bool {
        let state = self.state();
        let link = &state.links[link];
        let is_read = !link.late.is_gone;
        is_read && (!link.cq.is_empty() || !link.cm.is_empty())
    }

    /// Whether a link is there no more.
    pub(crate) fn is_gone(&self, link: usize) -> bool {
        self.state().links[link].late.is_gone
    }

    /// The end of a connection that dialed.
    pub(crate) fn dialing_end(&self, conn: ConnKey) -> ConnKey {
        let state = self.state();
        match (state.conns[conn].target, state.conns[conn].peer) {
            (None, Some(peer)) => peer,
            _ => conn,
        }
    }

    /// How everything lies, for whoever looks for what does not move: of each connection with
    /// something in it, its link, its phase, what is to be sent and what is posted; of each link,
    /// what is not read.
    pub(crate) fn queues(&self) -> Vec<String> {
        let state = self.state();
        let conns = state.conns.iter().enumerate();
        let conns = conns.filter(|(_, conn)| !conn.sends.is_empty() || conn.phase != Phase::Closed);
        let conns = conns.map(|(key, conn)| {
            format!(
                "connection {key} of link {} to {:?}: {:?}, {} to send, {} posted",
                conn.link,
                conn.peer,
                conn.phase,
                conn.sends.len(),
                conn.receives.len()
            )
        });
        let links = state.links.iter().enumerate().map(|(key, link)| {
            let shared = link.shared.as_ref().map(VecDeque::len);
            format!(
                "link {key}: {} completions, {} late, {} events, shared {shared:?}",
                link.cq.len(),
                link.late.waiting.len(),
                link.cm.len()
            )
        });
        links.chain(conns).collect()
    }

    /// Connections that stand, each by the end that dialed.
    pub(crate) fn standing(&self) -> Vec<ConnKey> {
        let state = self.state();
        let open = |conn: ConnKey| state.conns[conn].phase != Phase::Closed;
        let stands = |key: &ConnKey| {
            let conn = &state.conns[*key];
            conn.target.is_some() && open(*key) && conn.peer.is_some_and(open)
        };
        state.live.iter().copied().filter(stands).collect()
    }

    /// A connection breaks: what was posted on either side fails, and both hear of it. In the RDM
    /// form, where nobody hears of an end, what was posted fails.
    pub(crate) fn cut(&self, conn: ConnKey) {
        let mut state = self.state();
        let form = state.config.form;
        let ends: Vec<_> = std::iter::once(conn)
            .chain(state.conns[conn].peer)
            .collect();
        for end in ends {
            match form {
                Form::Msg if state.conns[end].phase != Phase::Connected => continue,
                Form::Msg => {
                    state.flush(end, libc::ECONNRESET);
                    let link = state.conns[end].link;
                    state.links[link].cm.push_back(Cm::Shutdown { conn: end });
                }
                Form::Rdm => {
                    let sends = std::mem::take(&mut state.conns[end].sends);
                    for sent in &sends {
                        state.finish_send(end, sent, Some(libc::EHOSTUNREACH));
                    }
                }
            }
        }
    }

    /// RDM form: messages of one end that have not arrived are lost, and it is told that they were
    /// sent: so it is where a provider's own connection breaks and is made anew, and the kernel had
    /// them. One-sided operations wait for the other end, and fail.
    pub(crate) fn lose(&self, end: ConnKey) {
        let mut state = self.state();
        let sends = std::mem::take(&mut state.conns[end].sends);
        for sent in &sends {
            let errno = sent.rma.map(|_| libc::EHOSTUNREACH);
            state.finish_send(end, sent, errno);
        }
    }

    /// The next dials to this link come to nothing: they are refused, or, in the RDM form, never
    /// heard.
    pub(crate) fn refuse_dials(&self, link: usize, dials: usize) {
        self.state().links[link].late.refuses = dials;
    }

    /// From now on what is sent is reported when [`report_late`](Self::report_late) says so; or no
    /// more.
    pub(crate) fn hold_reports(&self, link: usize, on: bool) {
        self.state().links[link].late.held = on;
    }

    /// Reports that wait.
    pub(crate) fn held_reports(&self, link: usize) -> usize {
        self.state().links[link].late.waiting.len()
    }

    /// One that waits is read next, whichever.
    pub(crate) fn report_late(&self, link: usize, which: usize) {
        let mut state = self.state();
        let link = &mut state.links[link];
        if which < link.late.waiting.len() {
            let completion = link.late.waiting.swap_remove(which);
            link.cq.push_back(completion);
        }
    }

    /// Registrations that are open, but for those of this machine: the first bytes of their memory.
    pub(crate) fn open_of(&self, machine: &FakeMemory) -> usize {
        let ledger = lock(&self.ledger);
        let its = ledger.mrs.values().filter(|mr| mr.registrar == machine.id);
        its.count()
    }
}

impl State {
    /// Connections that are closed and have nothing to send are looked at no more.
    fn forget(&mut self) {
        let conns = &self.conns;
        let is_live = |conn: &ConnState| conn.phase != Phase::Closed || !conn.sends.is_empty();
        self.live.retain(|conn| is_live(&conns[*conn]));
    }

    fn says_hello(&self, conn: ConnKey) -> bool {
        let front = self.conns[conn].sends.front();
        let kind = front.and_then(|sent| sent.data).map(kind_of);
        kind == Some(ControlKind::HELLO)
    }

    /// Whether nothing is ever received at the other end.
    fn leads_nowhere(&self, conn: ConnKey) -> bool {
        let state = &self.conns[conn];
        let there = match state.peer {
            Some(peer) if self.conns[peer].phase != Phase::Closed => return false,
            Some(peer) => Some(self.conns[peer].link),
            // A listener that does not know it ignores what is not a hello.
            None => state.target.filter(|_| self.says_hello(conn)),
        };
        there.is_none_or(|link| self.links[link].shared.is_none())
    }

    /// Reports that something was sent, or puts that off.
    pub(super) fn report_sent(&mut self, link: usize, context: usize, errno: Option<i32>) {
        let done = completion(context, 0, None, errno);
        match self.links[link].late.held {
            true => {
                self.touch_cell(context);
                self.links[link].late.waiting.push(done);
            }
            false => self.report(link, done),
        }
    }

    /// What was put off lies in the queue when an endpoint is closed: there is nothing to hear of
    /// it later.
    pub(super) fn catch_up(&mut self, link: usize) {
        let link = &mut self.links[link];
        link.cq.extend(link.late.waiting.drain(..));
    }

    /// Whether a dial to this link is one of those that come to nothing.
    pub(super) fn turns_away(&mut self, link: usize) -> bool {
        let refuses = &mut self.links[link].late.refuses;
        let away = *refuses > 0;
        *refuses = refuses.saturating_sub(1);
        away
    }
}
