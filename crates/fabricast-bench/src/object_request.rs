//! What both loops with requests for objects have in common: one request at a time, by the client.

use crate::case::{Arrived, Case, Pacer, Sent};
use crate::clock::Sampler;
use crate::control::Control;
use crate::error::Failure;
use crate::object::{finish, mark};

/// Asks for one object after the other, for the time of the case. `ask` returns when the object is
/// there.
pub(crate) fn drive(
    case: &Case,
    control: &mut Control,
    mut ask: impl FnMut(&mut Pacer) -> Result<(), Failure>,
) -> Result<(Sent, Arrived), Failure> {
    let mut pacer = Pacer::new(case);
    let mut sampler = Sampler::new(case.limit());
    while let Some(header) = pacer.next() {
        if header.is_mark() {
            mark(control, header.is_end())?;
            sampler.on_message(header);
            pacer.sent();
            continue;
        }
        ask(&mut pacer)?;
        pacer.returned();
        pacer.sent();
    }
    finish(case, pacer, &sampler, control)
}
