//! What a loop tells its handler, and what it counts.

use rustix::event::epoll::EventFlags;

use super::table::Token;
use crate::error::Error;

bitflags::bitflags! {
    /// What a descriptor of the user is watched for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Interest: u8 {
        /// There is something to read, or the peer closed its side.
        const READ = 1;
        /// There is room to write.
        const WRITE = 2;
    }
}

bitflags::bitflags! {
    /// What a descriptor is ready for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Readiness: u8 {
        /// There is something to read, or the end.
        const READ = 1;
        /// There is room to write.
        const WRITE = 2;
        /// The other side closed, wholly or for writing.
        const HANGUP = 4;
        /// The descriptor has an error; reported whatever the interest.
        const ERROR = 8;
    }
}

/// Something for the handler to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoopEvent {
    /// Poll this endpoint. It may turn out to have nothing.
    Endpoint(Token),
    /// A descriptor is ready. Level-triggered: it comes again each round until it is read or
    /// written.
    Fd {
        /// The descriptor's token.
        token: Token,
        /// What it is ready for.
        readiness: Readiness,
    },
    /// A timer is due.
    Timer(Token),
    /// Somebody called [`LoopSignal::fire`](super::LoopSignal::fire) of this signal, once or
    /// several times.
    Signal(Token),
    /// Somebody called [`Waker::wake`](super::Waker::wake), once or several times.
    Woken,
}

/// Counters of a loop since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoopStats {
    /// Rounds, those that spun included.
    pub rounds: u64,
    /// Rounds that slept in the kernel.
    pub sleeps: u64,
    /// Sleeps that a descriptor ended before their time was over.
    pub wakes: u64,
    /// Wakes after which there was nothing to deliver.
    pub spurious: u64,
    /// Nanoseconds that it slept.
    pub slept_ns: u64,
}

impl Interest {
    pub(super) fn epoll_flags(self) -> Result<EventFlags, Error> {
        let mut flags = EventFlags::empty();
        if self.contains(Self::READ) {
            flags |= EventFlags::IN | EventFlags::RDHUP;
        }
        if self.contains(Self::WRITE) {
            flags |= EventFlags::OUT;
        }
        if flags.is_empty() {
            return Err(Error::Config {
                field: "interest",
                value: format!("{self:?}"),
                reason: "must be READ, WRITE or both",
            });
        }
        Ok(flags)
    }
}

impl Readiness {
    pub(super) fn of(flags: EventFlags) -> Self {
        let pairs = [
            (EventFlags::IN, Self::READ),
            (EventFlags::OUT, Self::WRITE),
            (EventFlags::RDHUP | EventFlags::HUP, Self::HANGUP),
            (EventFlags::ERR, Self::ERROR),
        ];
        let set = pairs
            .into_iter()
            .filter(|(flag, _)| flags.intersects(*flag));
        set.fold(Self::empty(), |all, (_, one)| all | one)
    }
}
