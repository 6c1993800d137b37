//! What every row is asked for, in the order of the table.
//!
//! One more: a file here with a `fn(&On) -> Shown`, which starts the processes that it needs, and its roles, if it has any that
//! others don't; a line in each of the two lists below. A row that can't do it answers [`Shown::Hole`], with the reason in words
//! for whoever reads the table: never by doing nothing.

mod churn;
mod killed;
mod messages;
mod mixed;
mod refusal;
mod rude;

use crate::on::On;
use crate::table::Shown;
use crate::told::Told;

/// A line of the table: its name, and what runs it; a panic is a failure.
pub(crate) type Behaviour = (&'static str, fn(&On) -> Shown);

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    ("sizes", messages::sizes),
    ("back-pressure", messages::back_pressure),
    ("refusal", refusal::refusal),
    ("nobody", refusal::nobody),
    ("two senders", messages::two_senders),
    ("rude sender", rude::rude_sender),
    ("rude receiver", rude::rude_receiver),
    ("killed receiver", killed::killed_receiver),
    ("killed sender", killed::killed_sender),
    ("restart", killed::restarted_receiver),
    ("churn", churn::churn),
];

/// What one version of the library is asked to do with another.
pub(crate) const MIXED: Behaviour = ("mixed", mixed::mixed);

/// What a process of a behaviour can be: the name that [`On::child`] is given, and what it does.
pub(crate) type Role = (&'static str, fn(&Told));

pub(crate) const ROLES: &[Role] = &[
    ("probe", crate::rows::tell_probe),
    ("receive", crate::receiver::receive),
    ("send", crate::sender::send),
    ("stall", crate::sender::stall),
    ("ask", crate::sender::ask),
];
