//! Endpoints over the fake link, with a model of what they owe; liars that fuzzing plays.

#[cfg(all(test, not(loom)))]
pub(crate) mod documented_settings;
#[cfg(all(test, not(loom)))]
pub(crate) mod hubs;
#[cfg(all(any(test, fuzzing), not(loom)))]
pub(crate) mod liars;
#[cfg(all(test, not(loom)))]
pub(crate) mod rig;
