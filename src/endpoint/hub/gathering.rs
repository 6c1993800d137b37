//! `GatheredStream`: a connection on which small messages stream, and for how long the kernel may
//! gather them.
//!
//! A provider over TCP makes one segment of each message, and on the way into the peer's queue each
//! costs as much as a long one. While an earlier small segment is not acknowledged, Nagle's
//! algorithm has the kernel gather what follows, and send it together: the sender then only copies,
//! and the peer reads several at once (docs/internals/polling.md). What is gathered would wait for
//! the peer's acknowledgement, which may take 40 ms, if nobody said that it is to go. So it is done
//! on a connection only while small messages come one right after the other, and what is gathered
//! goes
//!
//! * by the poll since whose predecessor nothing was sent, and nobody sleeps before that poll;
//! * by a message that comes after a pause, or that is not small: before it is posted;
//! * by the first message behind 50 microseconds, however many more come.

use std::time::{Duration, Instant};

use super::Hub;
use super::outbound::Outbound;
use super::peer::Peer;
use crate::clock::Clock;
use crate::endpoint::hub::event::HubEvent;
use crate::endpoint::link::Link;
use crate::id::ConnectionId;

/// Messages in a row by which a stream is known.
const STREAM: u32 = 32;
/// How long they may take.
const STREAM_TIME: Duration = Duration::from_micros(16 * STREAM as u64);
/// A message that comes so long after the one before it is a lone one. One to and fro takes longer.
const LONE_AFTER: Duration = Duration::from_micros(8);
/// How long a message is held while others come.
const HOLD: Duration = Duration::from_micros(50);
/// A stream that pauses for no longer than this, for credits say, goes on where it was.
const PAUSE_MAX: Duration = Duration::from_micros(500);
/// Messages one right after the other, behind a row or a pause, that go by themselves.
const LONE: u32 = 3;

/// What is to be done before a message is posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BeforePost {
    Nothing,
    /// The kernel may gather from now on.
    Gather,
    /// What was gathered goes, and the kernel gathers what follows.
    Push,
    /// What was gathered goes, and nothing is gathered any more.
    LetGo,
}

/// Whether the kernel gathers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It does not, and there is no stream so far.
    Watching,
    Gathering,
    /// It does not, since nothing came for a moment, or the row is just complete.
    Pausing,
    /// The kernel can't be told.
    Never,
}

/// How messages follow each other on one connection.
#[derive(Debug)]
pub(super) struct GatheredStream {
    phase: Phase,
    /// In a row so far; while a stream is there, those since the last poll.
    messages: u32,
    /// When the row began; while a stream is there, when its last message came.
    at: Instant,
    /// Nothing is held that is older.
    held_from: Instant,
    /// Bytes of a small message, at most.
    limit: u64,
}

impl GatheredStream {
    pub(super) fn new(limit: u64, now: Instant) -> Self {
        Self {
            phase: Phase::Watching,
            messages: 0,
            at: now,
            held_from: now,
            limit,
        }
    }

    pub(super) fn is_gathering(&self) -> bool {
        self.phase == Phase::Gathering
    }

    /// A message of so many bytes is about to be posted.
    #[inline]
    pub(super) fn before_post(&mut self, len: u64, clock: &Clock) -> BeforePost {
        if self.phase == Phase::Watching && len <= self.limit {
            self.messages += 1;
            if self.messages < STREAM {
                return BeforePost::Nothing;
            }
        }
        self.judge(len, clock)
    }

    fn judge(&mut self, len: u64, clock: &Clock) -> BeforePost {
        match self.phase {
            Phase::Never => BeforePost::Nothing,
            _ if len > self.limit => self.watch(clock.now()),
            Phase::Watching => self.on_row(clock.now()),
            Phase::Gathering => self.go_on(clock.now()),
            Phase::Pausing => self.resume(clock.now()),
        }
    }

    /// There is no stream, or no longer.
    fn watch(&mut self, now: Instant) -> BeforePost {
        let gathered = self.is_gathering();
        (self.phase, self.messages, self.at) = (Phase::Watching, 0, now);
        match gathered {
            true => BeforePost::LetGo,
            false => BeforePost::Nothing,
        }
    }

    /// A row is complete.
    fn on_row(&mut self, now: Instant) -> BeforePost {
        if now.saturating_duration_since(self.at) > STREAM_TIME {
            return self.watch(now);
        }
        (self.phase, self.messages, self.at) = (Phase::Pausing, 0, now);
        BeforePost::Nothing
    }

    fn gather(&mut self, now: Instant) -> BeforePost {
        (self.phase, self.messages, self.at) = (Phase::Gathering, 1, now);
        self.held_from = now;
        BeforePost::Gather
    }

    fn go_on(&mut self, now: Instant) -> BeforePost {
        let gap = now.saturating_duration_since(self.at);
        if gap > PAUSE_MAX {
            return self.watch(now);
        }
        self.at = now;
        if gap > LONE_AFTER {
            (self.phase, self.messages) = (Phase::Pausing, 1);
            return BeforePost::LetGo;
        }
        self.messages += 1;
        if now.saturating_duration_since(self.held_from) <= HOLD {
            return BeforePost::Nothing;
        }
        self.held_from = now;
        BeforePost::Push
    }

    fn resume(&mut self, now: Instant) -> BeforePost {
        let gap = now.saturating_duration_since(self.at);
        if gap > PAUSE_MAX {
            return self.watch(now);
        }
        if gap > LONE_AFTER {
            self.messages = 0;
        }
        if self.messages >= LONE {
            return self.gather(now);
        }
        (self.messages, self.at) = (self.messages + 1, now);
        BeforePost::Nothing
    }

    /// At each poll while the kernel gathers. True: what was gathered goes now, since nothing came
    /// after it.
    pub(super) fn on_poll(&mut self) -> bool {
        if std::mem::take(&mut self.messages) > 0 || !self.is_gathering() {
            return false;
        }
        self.phase = Phase::Pausing;
        true
    }

    /// The kernel can't be told.
    pub(super) fn give_up(&mut self) {
        self.phase = Phase::Never;
    }
}

impl Outbound {
    /// Before a message of so many bytes is posted on a connection.
    #[inline(always)]
    pub(super) fn mind_stream<L: Link>(
        &mut self,
        link: &mut L,
        (id, peer): (ConnectionId, &mut Peer<L::Conn>),
        len: u64,
        clock: &Clock,
    ) {
        let Some(stream) = &mut peer.outbound.stream else {
            return;
        };
        let before = stream.before_post(len, clock);
        self.account
            .stats
            .gathered
            .messages
            .add(u64::from(stream.is_gathering()));
        if before != BeforePost::Nothing {
            self.tell_kernel(link, (id, peer), before);
        }
    }

    /// The stream of a connection begins, or is over.
    #[cold]
    fn tell_kernel<L: Link>(
        &mut self,
        link: &mut L,
        (id, peer): (ConnectionId, &mut Peer<L::Conn>),
        before: BeforePost,
    ) {
        let gather = before != BeforePost::LetGo;
        let told = match before {
            BeforePost::Push => link.push_gathered(&mut peer.link),
            _ => link.gather(&mut peer.link, gather),
        };
        if let Some(stream) = peer.outbound.stream.as_mut().filter(|_| !told) {
            stream.give_up();
        }
        let stats = &*self.account.stats;
        if before == BeforePost::Push && told {
            stats.gathered.pushed.add(1);
        } else if gather && told {
            stats.gathered.streams.add(1);
            self.gathering.push(id);
            // Who goes to sleep now has to poll first.
            self.wait.set_gathering(true);
        } else {
            self.gathering.retain(|&other| other != id);
            self.wait.set_gathering(!self.gathering.is_empty());
        }
    }

    /// No connection is polled any more.
    pub(super) fn forget_gathering(&mut self) {
        self.gathering.clear();
        self.wait.set_gathering(false);
    }
}

impl<L: Link, E: HubEvent> Hub<L, E> {
    /// Lets go what the kernel gathers on connections on which nothing was sent since the last
    /// poll.
    pub(super) fn let_go_gathered(&mut self) {
        let (peers, link) = (&mut self.peers, &mut self.link);
        let mut let_go = 0;
        self.outbound.gathering.retain(|&id| {
            let Some(peer) = peers.get_mut(id) else {
                return false;
            };
            let Some(stream) = &mut peer.outbound.stream else {
                return false;
            };
            if stream.on_poll() {
                let_go += 1;
                if !link.gather(&mut peer.link, false) {
                    stream.give_up();
                }
            }
            stream.is_gathering()
        });
        self.outbound.account.stats.gathered.let_go.add(let_go);
        if self.outbound.gathering.is_empty() {
            self.wait.set_gathering(false);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SMALL: u64 = 100;
    const US: Duration = Duration::from_micros(1);

    fn stream() -> (GatheredStream, Clock) {
        let clock = Clock::held();
        (GatheredStream::new(SMALL, clock.now()), clock)
    }

    /// Messages, each so long after the one before.
    fn post(stream: &mut GatheredStream, clock: &Clock, gaps: &[Duration]) -> Vec<BeforePost> {
        let mut told = Vec::new();
        for &gap in gaps {
            clock.advance(gap);
            match stream.before_post(SMALL, clock) {
                BeforePost::Nothing => {}
                before => told.push(before),
            }
        }
        told
    }

    fn gathering() -> (GatheredStream, Clock) {
        let (mut stream, clock) = stream();
        let told = post(&mut stream, &clock, &[US * 3; (STREAM + LONE) as usize]);
        assert_eq!(told, []);
        assert_eq!(post(&mut stream, &clock, &[US]), [BeforePost::Gather]);
        assert!(stream.is_gathering());
        (stream, clock)
    }

    #[test]
    fn a_stream_is_known_by_a_row_of_messages_one_right_after_the_other() {
        let (mut stream, clock) = stream();
        let row = [US * 16; STREAM as usize];
        assert_eq!(post(&mut stream, &clock, &row), []);
        let behind = [LONE_AFTER; LONE as usize];
        assert_eq!(post(&mut stream, &clock, &behind), []);
        assert_eq!(
            post(&mut stream, &clock, &[LONE_AFTER]),
            [BeforePost::Gather]
        );
    }

    #[test]
    fn messages_to_and_fro_are_no_stream_however_seldom_they_are_polled() {
        let (mut stream, clock) = stream();
        assert_eq!(post(&mut stream, &clock, &[US * 9; 10_000]), []);
    }

    #[test]
    fn a_lone_message_behind_a_stream_lets_all_go_before_it_is_posted() {
        let (mut stream, clock) = gathering();
        assert_eq!(post(&mut stream, &clock, &[LONE_AFTER]), []);
        let lone = LONE_AFTER + US;
        assert_eq!(post(&mut stream, &clock, &[lone]), [BeforePost::LetGo]);
        assert_eq!(post(&mut stream, &clock, &[US; LONE as usize - 1]), []);
        assert_eq!(post(&mut stream, &clock, &[US]), [BeforePost::Gather]);
        assert_eq!(
            post(&mut stream, &clock, &[PAUSE_MAX + US]),
            [BeforePost::LetGo]
        );
        assert_eq!(post(&mut stream, &clock, &[US; 35]), []);
        assert_eq!(post(&mut stream, &clock, &[US]), [BeforePost::Gather]);
    }

    #[test]
    fn no_message_is_held_for_longer_than_50_microseconds_while_others_come() {
        let (mut stream, clock) = gathering();
        for _ in 0..100 {
            assert_eq!(post(&mut stream, &clock, &[US * 4; 12]), []);
            assert_eq!(post(&mut stream, &clock, &[US * 4]), [BeforePost::Push]);
        }
        assert!(stream.is_gathering());
    }

    #[test]
    fn a_message_above_the_size_lets_all_go_and_none_is_counted() {
        let (mut stream, clock) = gathering();
        let before = stream.before_post(SMALL + 1, &clock);
        assert_eq!(before, BeforePost::LetGo);
        for _ in 0..10 * STREAM {
            let before = stream.before_post(SMALL + 1, &clock);
            assert_eq!(before, BeforePost::Nothing);
        }
        for _ in 0..10 {
            assert_eq!(post(&mut stream, &clock, &[US; 31]), []);
            assert_eq!(stream.before_post(SMALL + 1, &clock), BeforePost::Nothing);
        }
    }

    #[test]
    fn the_poll_after_which_nothing_was_sent_lets_go_once() {
        let (mut stream, clock) = gathering();
        assert!(!stream.on_poll(), "the row came before it");
        post(&mut stream, &clock, &[US]);
        assert!(!stream.on_poll());
        assert!(stream.on_poll());
        assert!(!stream.is_gathering());
        assert!(!stream.on_poll());
    }

    #[test]
    fn a_stream_goes_on_behind_a_short_pause_but_for_its_first_messages() {
        let (mut stream, clock) = gathering();
        assert!(!stream.on_poll() && stream.on_poll());
        assert_eq!(post(&mut stream, &clock, &[PAUSE_MAX]), []);
        assert_eq!(post(&mut stream, &clock, &[US; LONE as usize - 1]), []);
        assert_eq!(post(&mut stream, &clock, &[US]), [BeforePost::Gather]);
    }

    #[test]
    fn lone_messages_behind_a_pause_are_no_stream() {
        let (mut stream, clock) = gathering();
        assert!(!stream.on_poll() && stream.on_poll());
        let lone = LONE_AFTER + US;
        assert_eq!(post(&mut stream, &clock, &[lone; 10_000]), []);
    }

    #[test]
    fn behind_a_long_pause_there_is_no_stream() {
        let (mut stream, clock) = gathering();
        assert!(!stream.on_poll() && stream.on_poll());
        assert_eq!(post(&mut stream, &clock, &[PAUSE_MAX + US]), []);
        assert_eq!(post(&mut stream, &clock, &[US; 35]), []);
        assert_eq!(post(&mut stream, &clock, &[US]), [BeforePost::Gather]);
    }

    #[test]
    fn a_kernel_that_can_t_be_told_is_not_asked_again() {
        let (mut stream, clock) = gathering();
        stream.give_up();
        assert_eq!(post(&mut stream, &clock, &[US; 1000]), []);
        assert!(!stream.on_poll());
    }
}
