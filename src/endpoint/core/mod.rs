//! What a [`hub`](super::hub) is made of, and the endpoint that makes one connection and sends over
//! it (`send`), over any link.

#[cfg(all(test, not(loom)))]
mod bounds_tests;
pub(crate) mod conn_table;
pub(crate) mod control;
pub(crate) mod deadlines;
#[cfg(all(test, not(loom)))]
mod device_tests;
#[cfg(all(test, not(loom)))]
mod documented_tests;
#[cfg(all(test, not(loom)))]
mod future_tests;
#[cfg(all(test, not(loom)))]
mod gate_tests;
#[cfg(all(test, not(loom)))]
mod hub_long_tests;
#[cfg(all(test, not(loom)))]
mod hub_tests;
#[cfg(all(test, not(loom)))]
mod hub_walk_tests;
#[cfg(all(test, not(loom)))]
pub(crate) mod hubs;
pub(crate) mod in_flight_max;
pub(crate) mod jiffies;
#[cfg(all(any(test, fuzzing), not(loom)))]
pub(crate) mod liars;
pub(crate) mod line;
pub(crate) mod long_send;
#[cfg(all(test, not(loom)))]
mod long_tests;
pub(crate) mod marks;
pub(crate) mod outgoing;
pub(crate) mod pair;
pub(crate) mod posted;
#[cfg(all(test, not(loom)))]
mod receive_scale_tests;
#[cfg(all(test, not(loom)))]
mod receive_tests;
pub(crate) mod recent_lease;
pub(crate) mod reconnect;
#[cfg(all(test, not(loom)))]
pub(crate) mod rig;
pub(crate) mod scoped;
pub(crate) mod send;
#[cfg(all(test, not(loom)))]
mod send_tests;
#[cfg(all(test, not(loom)))]
mod shape_tests;
pub(crate) mod shared_receives;
#[cfg(all(test, not(loom)))]
mod walk_tests;
