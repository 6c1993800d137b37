//! Processes that a demo starts.

use crate::failure::Failure;

/// The demo's children end with it, even when it is killed.
pub(crate) fn end_with_parent(child: bool) -> Result<(), Failure> {
    if child {
        let signal = Some(rustix::process::Signal::KILL);
        rustix::process::set_parent_process_death_signal(signal)
            .map_err(|error| Failure::os("prctl", &error.into()))?;
    }
    Ok(())
}
