//! io_uring: may it be used ([`probe`]), one ring with what is in flight in it ([`ring`]), a
//! transfer through it ([`engine`]).

pub(crate) mod engine;
mod entry;
pub(crate) mod fixed;
pub(crate) mod flight;
pub(crate) mod probe;
mod reaper;
pub(crate) mod request;
pub(crate) mod ring;

/// Why this process can't use io_uring, in words; `None` when it can. Whether it is wanted, the
/// setting `io_uring` says.
pub fn io_uring_refused() -> Option<&'static str> {
    probe::probe().err().map(probe::NoRing::as_str)
}

/// Transfers whose memory was leaked since this process started, because the kernel never gave it
/// back: rings that were dropped, on devices that no longer answer.
pub fn io_uring_leaked() -> u64 {
    reaper::leaked()
}
