//! `OutgoingLap`: a lap of a stream: what is wanted is sent, and the peer is asked what it lacks.

/// The lap that a stream is in.
#[derive(Debug, Default)]
pub(super) struct OutgoingLap {
    pub(super) number: u32,
    /// The side has found the source unchanged since the last block was read.
    pub(super) may_finish: bool,
    /// The lap ends before all was sent.
    pub(super) is_cut_short: bool,
    /// `Finish` of this lap was said on some rail: nothing is sent until the peer has judged.
    pub(super) is_sealed: bool,
}

impl OutgoingLap {
    /// Whether blocks may be sent in it.
    pub(super) fn is_open(&self) -> bool {
        !self.is_cut_short && !self.is_sealed
    }

    /// Whether its end may be said.
    pub(super) fn may_end(&self) -> bool {
        self.may_finish || self.is_cut_short
    }

    /// The peer has said what it lacks: the next one begins.
    pub(super) fn begin_next(&mut self) {
        *self = Self {
            number: self.number + 1,
            ..Self::default()
        };
    }

    /// How it is, in words.
    pub(super) fn describe(&self) -> String {
        let said = |is: bool, text: &'static str| if is { text } else { "" };
        format!(
            "lap {}{}{}{}",
            self.number,
            said(self.may_finish, ", may finish"),
            said(self.is_cut_short, ", cut short"),
            said(self.is_sealed, ", sealed"),
        )
    }
}
