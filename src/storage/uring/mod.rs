//! io_uring: may it be used ([`probe`]), one ring with what is in flight in it ([`ring`]).

pub(crate) mod fixed;
pub(crate) mod probe;
mod reaper;
pub(crate) mod request;
pub(crate) mod ring;
