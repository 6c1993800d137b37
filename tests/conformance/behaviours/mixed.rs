//! Two versions of the library with each other.

use super::messages::sizes;
use super::refusal::refusal;
use crate::common::SOON;
use crate::on::On;
use crate::table::Shown;

/// Sizes and headers, and refusals, of one version with a receiver of another; or an error that
/// says what differs.
pub(crate) fn mixed(on: &On) -> Shown {
    if on.provider == "shm" {
        let (mut receiver, addr) = on.receiver("");
        let mut sender = on.sender("ask", &addr, "");
        let error = sender.expect("error", SOON);
        assert!(error.contains("same version of libfabric"), "{error}");
        sender.finish(SOON);
        receiver.say("drop");
        receiver.finish(SOON);
        return Shown::Hole(
            "refused, with both versions named: the two lay out their shared memory differently",
        );
    }
    sizes(on);
    refusal(on);
    Shown::Works
}
