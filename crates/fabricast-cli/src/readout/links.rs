//! All builders that a source knows, and whose each event is.

use std::time::{Duration, Instant};

use fabricast::event_loop::Token;

use crate::readout::link::{Link, Stage};

/// Every builder there was, in the order they came, and the seats of those that events are shared
/// between.
pub(crate) struct Links {
    all: Vec<Link>,
    /// The builder of each seat: the nth event is that of seat n modulo their number. A builder
    /// that comes later takes the seat of one that was lost.
    seats: Vec<usize>,
}

impl Links {
    /// Builders that are there from the start, with a seat each.
    pub(crate) fn new(all: Vec<Link>) -> Self {
        let seats = (0..all.len()).collect();
        Self { all, seats }
    }

    /// A builder that comes later. Without a lost one it gets a seat more: then the source must be
    /// the only one.
    pub(crate) fn add(&mut self, link: Link) {
        let index = self.all.len();
        self.all.push(link);
        let lost = |seat: &&mut usize| self.all[**seat].is_lost();
        match self.seats.iter_mut().find(lost) {
            Some(seat) => *seat = index,
            None => self.seats.push(index),
        }
    }

    pub(crate) fn all(&self) -> &[Link] {
        &self.all
    }

    pub(crate) fn iter_mut(&mut self) -> std::slice::IterMut<'_, Link> {
        self.all.iter_mut()
    }

    pub(crate) fn position(&self, is_it: impl Fn(&Link) -> bool) -> Option<usize> {
        self.all.iter().position(is_it)
    }

    pub(crate) fn of_loop_token(&self, token: Token) -> Option<usize> {
        self.position(|link| link.loop_token == token)
    }

    pub(crate) fn all_ready(&self) -> bool {
        self.all.iter().all(Link::is_ready)
    }

    pub(crate) fn any_ready(&self) -> bool {
        self.all.iter().any(Link::is_ready)
    }

    pub(crate) fn lost(&self) -> Vec<usize> {
        let indices = 0..self.all.len();
        indices.filter(|index| self.all[*index].is_lost()).collect()
    }

    pub(crate) fn all_lost(&self) -> bool {
        self.all.iter().all(Link::is_lost)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.all.iter().any(|link| link.stage == Stage::Closing)
    }

    /// Whose the nth event is: the same answer in every source that knows of the same losses. An
    /// event stays with its builder as long as that one lives, whoever else is lost.
    pub(crate) fn assign(&self, nth: u64) -> usize {
        let seats = self.seats.len() as u64;
        let first = self.seats[(nth % seats) as usize];
        if self.all[first].is_ready() {
            return first;
        }
        let is_ready = |seat: &&usize| self.all[**seat].is_ready();
        let ready = self.seats.iter().filter(is_ready).count() as u64;
        if ready == 0 {
            return first;
        }
        let turn = (nth / seats % ready) as usize;
        let mut ready = self.seats.iter().filter(is_ready);
        ready.nth(turn).copied().unwrap_or(first)
    }

    /// From now on something is expected of each.
    pub(crate) fn expect_progress(&mut self) {
        let now = Instant::now();
        self.all
            .iter_mut()
            .for_each(|link| link.last_progress = now);
    }

    /// A builder that lives, by the library's verdict, and yet does nothing of what is expected of
    /// it, is lost as one that was killed. `ending`: its Summary is expected.
    pub(crate) fn give_up_idle(&mut self, patience: Duration, ending: bool) {
        for link in &mut self.all {
            let expected = link.unanswered > 0 || (ending && link.summary.is_none());
            if expected && !link.is_lost() && link.last_progress.elapsed() > patience {
                eprintln!(
                    "fabricast: builder {}: answered nothing for {patience:?}, {} events are \
                     unanswered",
                    link.to, link.unanswered
                );
                // Its `Disconnected` follows, after every outcome.
                link.endpoint.begin_close(Instant::now());
                link.last_progress = Instant::now();
            }
        }
    }
}

impl std::ops::Index<usize> for Links {
    type Output = Link;

    fn index(&self, index: usize) -> &Link {
        &self.all[index]
    }
}

impl std::ops::IndexMut<usize> for Links {
    fn index_mut(&mut self, index: usize) -> &mut Link {
        &mut self.all[index]
    }
}
