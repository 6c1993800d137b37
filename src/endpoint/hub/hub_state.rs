//! `HubState`: whether a hub goes on, closes, or has failed.

use crate::Error;
use crate::protocol::connection::CloseReason;

/// How a hub stands for good.
#[derive(Default)]
pub(super) struct HubState {
    pub(super) closing: bool,
    /// Why the endpoint failed.
    pub(super) failed: Option<&'static str>,
    /// An endpoint would not close: the slab holds operations that the provider may still touch.
    pub(super) leaked: bool,
}

impl HubState {
    /// Whether connections may be made.
    pub(super) fn may_connect(&self) -> Result<(), Error> {
        match (self.failed, self.closing) {
            (Some(reason), _) => Err(Error::EndpointFailed(reason)),
            (None, true) => Err(Error::Closed(CloseReason::ClosedLocally)),
            (None, false) => Ok(()),
        }
    }
}
