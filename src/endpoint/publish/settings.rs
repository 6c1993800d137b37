//! `PublishSettings`: what a publisher's core is told, once its configuration was checked.

use super::policy::SlowPolicy;
use super::table::SubscriptionLimits;
use crate::buffer::HeaderSlotManager;

/// What the layer needs to know; checked by the public configuration.
pub(crate) struct PublishSettings {
    pub(crate) publications: u32,
    pub(crate) limits: SubscriptionLimits,
    pub(crate) slow: SlowPolicy,
    pub(crate) tell_sent: bool,
    /// The ones that the core sends with.
    pub(crate) headers: HeaderSlotManager,
    /// Called with each key whose publication was not over when the endpoint was dropped.
    pub(crate) on_abandoned: Option<Box<dyn FnMut(u64) + Send>>,
}
