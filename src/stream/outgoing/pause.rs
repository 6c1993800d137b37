//! `PauseNotice`: whether a stream is paused, and whether its peer knows.

/// What the peer is to be told of pauses.
#[derive(Debug, Default)]
pub(super) struct PauseNotice {
    pub(super) is_paused: bool,
    is_said: bool,
    /// The peer is told once more whether it is paused, so that it hears that this side works.
    pub(super) is_sign_of_life_due: bool,
}

impl PauseNotice {
    /// What the peer is to be told now, if anything.
    pub(super) fn due(&self) -> Option<bool> {
        let is_due = self.is_paused != self.is_said || self.is_sign_of_life_due;
        is_due.then_some(self.is_paused)
    }

    pub(super) fn on_said(&mut self, on: bool) {
        self.is_said = on;
        self.is_sign_of_life_due = false;
    }
}
