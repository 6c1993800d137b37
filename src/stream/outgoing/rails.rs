//! `OutgoingRails`: the connections (rails) of one stream at its sender: what was sent on each, and
//! which the peer knows to be lost.

use crate::stream::wire::RAILS_MAX;

/// One connection, as far as this stream is concerned.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OutgoingRail {
    pub(super) is_live: bool,
    is_lost: bool,
    /// Messages with blocks that were sent on it.
    pub(super) sent: u64,
    /// The last lap whose `Finish` was sent on it.
    finished: Option<u32>,
    /// On which rail the peer was told that this one is lost.
    lost_said_on: Option<u16>,
}

/// The connections of one stream, by their numbers in the session.
#[derive(Debug)]
pub(super) struct OutgoingRails {
    rails: Vec<OutgoingRail>,
    /// The rail that the stream was opened on.
    first: u16,
}

impl OutgoingRails {
    /// With the rail that the stream is opened on.
    pub(super) fn new(first: u16) -> Self {
        let mut rails = Self {
            rails: Vec::new(),
            first,
        };
        rails.add(first);
        rails
    }

    /// The rail that the stream was opened on.
    pub(super) fn first(&self) -> u16 {
        self.first
    }

    /// # Panics
    /// When there was one of this number before, or the number is none of a rail's.
    pub(super) fn add(&mut self, rail: u16) {
        assert!(rail < RAILS_MAX, "rail {rail}");
        let at = usize::from(rail);
        if self.rails.len() <= at {
            self.rails.resize(at + 1, OutgoingRail::default());
        }
        let it = &mut self.rails[at];
        assert!(
            !it.is_live && !it.is_lost,
            "the number of a rail is used once"
        );
        it.is_live = true;
    }

    /// A copy of what is known of a rail; of one that there never was, nothing.
    pub(super) fn get(&self, rail: u16) -> OutgoingRail {
        let rail = self.rails.get(usize::from(rail));
        rail.copied().unwrap_or_default()
    }

    /// A connection is gone. Whether there was one of this number.
    pub(super) fn on_lost(&mut self, rail: u16) -> bool {
        let it = self.rails.get_mut(usize::from(rail));
        let Some(it) = it else { return false };
        (it.is_live, it.is_lost) = (false, true);
        true
    }

    /// A message with blocks was sent on a rail.
    ///
    /// # Panics
    /// When there is no such rail.
    pub(super) fn on_sent(&mut self, rail: u16) {
        assert!(self.get(rail).is_live, "a block is sent on a rail");
        self.rails[usize::from(rail)].sent += 1;
    }

    /// A rail that is lost, which the peer was not told, or on a rail that is lost itself. Even if
    /// it carried nothing: the receiver may say things there, and not have heard of its end.
    pub(super) fn untold(&self) -> Option<u16> {
        let untold = self.rails.iter().position(|it| {
            let is_said = it.lost_said_on.is_some_and(|on| self.get(on).is_live);
            it.is_lost && !is_said
        });
        // There are at most `RAILS_MAX`.
        untold.map(|rail| rail as u16)
    }

    /// The peer was told on one rail that another one is lost.
    pub(super) fn on_told(&mut self, lost: u16, on: u16) {
        if let Some(it) = self.rails.get_mut(usize::from(lost)) {
            it.lost_said_on = Some(on);
        }
    }

    /// Whether the end of a lap is to be said on a rail: on each that carried blocks, or on one, if
    /// none of them is left.
    pub(super) fn finishes_on(&self, rail: u16, lap: u32) -> bool {
        let it = self.get(rail);
        if it.finished == Some(lap) {
            return false;
        }
        let mut live = self.rails.iter().filter(|rail| rail.is_live);
        let has_carried = live.any(|rail| rail.sent > 0);
        let first = self.rails.iter().position(|rail| rail.is_live);
        it.sent > 0 || !has_carried && first == Some(usize::from(rail))
    }

    /// The end of a lap was said on a rail.
    pub(super) fn on_finished(&mut self, rail: u16, lap: u32) {
        if let Some(it) = self.rails.get_mut(usize::from(rail)) {
            it.finished = Some(lap);
        }
    }

    /// How they are, in words.
    pub(super) fn describe(&self) -> String {
        let rails = self.rails.iter().enumerate().map(|(number, rail)| {
            let OutgoingRail { sent, finished, .. } = rail;
            let state = if rail.is_live { "live" } else { "gone" };
            format!("{number} {state}, {sent} sent, finished {finished:?}")
        });
        rails.collect::<Vec<_>>().join("; ")
    }
}
