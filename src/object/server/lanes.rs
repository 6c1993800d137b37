//! `ChannelLanes`: which endpoints take new transfers, and which only finish theirs. Pure.
//!
//! A late transfer can't be taken back from a provider, but by closing its endpoint. So the
//! endpoint takes nothing new any more (it *retires*), what is in flight there goes on, and it is
//! closed when only late transfers are left. Clients that were late share a lane of their own, so
//! that those who never were keep their endpoint, and with it their connections. A client whose
//! connection ended by a transfer that its card refused is treated so, too, over providers that
//! make none anew: what comes next for it goes by another endpoint.

use crate::object::server::engine::GenerationId;

/// Lanes: of clients that were never late, and of those that were.
const LANES: usize = 2;

/// See the module.
#[derive(Debug)]
pub(super) struct ChannelLanes {
    current: [Option<GenerationId>; LANES],
    /// One that should retire, and can't yet.
    overdue: [bool; LANES],
    retiring: Vec<GenerationId>,
    max_retiring: u32,
}

impl ChannelLanes {
    pub(super) fn new(max_retiring: u32) -> Self {
        Self {
            current: [None; LANES],
            overdue: [false; LANES],
            retiring: Vec::new(),
            max_retiring,
        }
    }

    /// Where transfers of a client go; none yet.
    pub(super) fn of(&self, late: bool) -> Option<GenerationId> {
        self.current[usize::from(late)]
    }

    pub(super) fn set(&mut self, late: bool, generation: GenerationId) {
        self.current[usize::from(late)] = Some(generation);
        self.overdue[usize::from(late)] = false;
    }

    /// A transfer is late there. Where as many retire as may, it waits with those that it is among.
    pub(super) fn retire(&mut self, generation: GenerationId) {
        let Some(lane) = self.current.iter().position(|it| *it == Some(generation)) else {
            return;
        };
        self.overdue[lane] = self.retiring.len() >= self.max_retiring as usize;
        if !self.overdue[lane] {
            self.current[lane] = None;
            self.retiring.push(generation);
        }
    }

    /// Those that should have retired, and may now.
    pub(super) fn overdue(&self) -> impl Iterator<Item = GenerationId> {
        let has_room = self.retiring.len() < self.max_retiring as usize;
        let lanes = self.current.into_iter().zip(self.overdue);
        lanes.filter_map(move |(it, overdue)| it.filter(|_| overdue && has_room))
    }

    /// Nothing late is there any more.
    pub(super) fn keep(&mut self, generation: GenerationId) {
        if let Some(lane) = self.current.iter().position(|it| *it == Some(generation)) {
            self.overdue[lane] = false;
        }
    }

    pub(super) fn retiring(&self) -> &[GenerationId] {
        &self.retiring
    }

    /// It is closed.
    pub(super) fn remove(&mut self, generation: GenerationId) {
        self.retiring.retain(|it| *it != generation);
        for lane in 0..LANES {
            if self.current[lane] == Some(generation) {
                (self.current[lane], self.overdue[lane]) = (None, false);
            }
        }
    }
}
