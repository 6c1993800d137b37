//! `IncomingRails`: the connections (rails) of one stream: what arrived on each, and on which of
//! them the sender is told things.

use crate::stream::StreamViolation;
use crate::stream::wire::RAILS_MAX;

/// One connection, as far as this stream is concerned.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct IncomingRail {
    /// Messages with blocks that arrived on it.
    pub(super) arrived: u64,
    /// Messages that were sent on it and will never arrive.
    lost: u64,
    /// Messages that were sent on it up to the end of the lap, as the sender says.
    pub(super) said: u64,
    pub(super) finished: Option<u32>,
    pub(super) is_lost: bool,
}

/// The connections of one stream, by their numbers in the session.
#[derive(Debug)]
pub(super) struct IncomingRails {
    rails: Vec<IncomingRail>,
    /// The rail that the sender is told things on.
    control: Option<u16>,
    /// Rails that are gone here and that the sender has not said to be lost, and whether it was
    /// told on the control rail.
    gone: Vec<(u16, bool)>,
}

impl IncomingRails {
    pub(super) fn new(control: u16) -> Self {
        Self {
            rails: Vec::new(),
            control: Some(control),
            gone: Vec::new(),
        }
    }

    /// A copy of what is known of a rail; of one that carried nothing, nothing.
    pub(super) fn get(&self, rail: u16) -> IncomingRail {
        let rail = self.rails.get(usize::from(rail));
        rail.copied().unwrap_or_default()
    }

    /// # Errors
    /// [`StreamViolation::Count`] for a number that no rail has.
    pub(super) fn get_mut(&mut self, rail: u16) -> Result<&mut IncomingRail, StreamViolation> {
        if rail >= RAILS_MAX {
            let (what, value) = ("the number of a connection", rail.into());
            return Err(StreamViolation::Count { what, value });
        }
        let at = usize::from(rail);
        if self.rails.len() <= at {
            self.rails.resize(at + 1, IncomingRail::default());
        }
        Ok(&mut self.rails[at])
    }

    /// The sender says how many messages it has sent on a rail: how many of them are newly known to
    /// be lost.
    ///
    /// # Errors
    /// [`StreamViolation::Count`] where it said more before.
    pub(super) fn settle(&mut self, rail: u16, said: u64) -> Result<u64, StreamViolation> {
        let it = self.get_mut(rail)?;
        if said < it.said {
            let what = "the number of blocks that were sent on a connection";
            return Err(StreamViolation::Count { what, value: said });
        }
        it.said = said;
        let lost = said.saturating_sub(it.arrived + it.lost);
        it.lost += lost;
        Ok(lost)
    }

    /// The sender has lost a rail, and knows that it is gone.
    ///
    /// # Errors
    /// As [`get_mut`](Self::get_mut).
    pub(super) fn on_lost(&mut self, rail: u16) -> Result<(), StreamViolation> {
        self.get_mut(rail)?.is_lost = true;
        self.gone.retain(|(gone, _)| *gone != rail);
        Ok(())
    }

    /// Messages that were sent on all rails up to the end of the lap, as the sender says.
    pub(super) fn said(&self) -> u64 {
        self.rails.iter().map(|rail| rail.said).sum()
    }

    /// Whether the sender has said the end of a lap on each rail that carried anything.
    pub(super) fn have_finished(&self, lap: u32) -> bool {
        self.rails
            .iter()
            .all(|rail| rail.is_lost || rail.said + rail.arrived == 0 || rail.finished == Some(lap))
    }

    /// The rail that the sender is told things on; None: the last one is gone.
    pub(super) fn control(&self) -> Option<u16> {
        self.control
    }

    /// The rail that the sender is told things on from now on, if the last one is gone.
    pub(super) fn set_control(&mut self, rail: u16) {
        self.control.get_or_insert(rail);
    }

    /// Whether it was the rail that the sender is told things on. It has none then, and what was
    /// said there is said again.
    pub(super) fn lose_control(&mut self, rail: u16) -> bool {
        if self.control != Some(rail) {
            return false;
        }
        self.control = None;
        for (_, is_said) in &mut self.gone {
            *is_said = false;
        }
        true
    }

    /// The sender is to hear that a rail is gone, unless it said so itself.
    pub(super) fn tell_gone(&mut self, rail: u16) {
        let is_known = self.get(rail).is_lost || self.gone.iter().any(|(gone, _)| *gone == rail);
        if !is_known {
            self.gone.push((rail, false));
        }
    }

    /// A rail that is gone, which the sender was not told.
    pub(super) fn untold(&self) -> Option<u16> {
        let untold = self.gone.iter().find(|(_, is_said)| !is_said);
        untold.map(|(rail, _)| *rail)
    }

    /// The sender was told that a rail is gone.
    pub(super) fn on_told(&mut self, rail: u16) {
        let told = self.gone.iter_mut().find(|(gone, _)| *gone == rail);
        if let Some((_, is_said)) = told {
            *is_said = true;
        }
    }

    /// How they are, in words.
    pub(super) fn describe(&self) -> String {
        let rails = self.rails.iter().enumerate().map(|(number, rail)| {
            let IncomingRail {
                arrived,
                said,
                finished,
                ..
            } = rail;
            format!("{number}: {arrived} arrived of {said} said, finished {finished:?}")
        });
        rails.collect::<Vec<_>>().join("; ")
    }
}
