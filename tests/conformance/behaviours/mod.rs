//! What every row is asked for, in the order of the table.
//!
//! One more: a file here with a `fn(&On) -> Shown`, which starts the processes that it needs, and
//! its roles, if it has any that others don't; a line in each of the two lists below. A row that
//! can't do it answers [`Shown::Hole`], with the reason in words for whoever reads the table: never
//! by doing nothing.

mod asynchronous;
mod churn;
mod coalesced;
mod connectionless;
mod header;
mod killed;
mod liveness;
mod long;
mod messages;
mod mixed;
mod objects;
mod one_sided;
mod publish;
mod reconnect;
mod refusal;
mod rude;
mod shapes;
mod shared_pool;
mod slow_peer;

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
    ("headers", header::headers),
    ("long messages", long::long_messages),
    ("headroom", shapes::headroom),
    ("two messages", shapes::two_messages),
    ("shared pool", shared_pool::shared_pool),
    ("slow peer", slow_peer::slow_peer),
    ("liveness", liveness::liveness),
    ("reconnect", reconnect::reconnect),
    ("coalesced", coalesced::coalesced),
    ("flush interval", coalesced::flush_interval),
    ("async", asynchronous::one_round_trip),
    ("connectionless", connectionless::all_to_all),
    ("peer killed", connectionless::one_is_killed),
    ("long to all", connectionless::long_to_all),
    ("write", one_sided::write),
    ("read", one_sided::read),
    ("write with data", one_sided::write_with_data),
    ("receiver's own", one_sided::receiver_writes_and_reads),
    ("revoke", one_sided::revoke),
    ("objects", objects::objects),
    ("old tokens", objects::old_tokens),
    ("many tokens", objects::many_tokens),
    ("stopped client", objects::stopped_client),
    ("token of nobody", objects::nobodys_token),
    ("publish", publish::publish),
    ("long publications", publish::long_publications),
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
    ("framed receive", header::receive),
    ("framed send", header::send),
    ("too long", long::send_too_long),
    ("close", slow_peer::close),
    ("watch", liveness::watch),
    ("cut", reconnect::cut),
    ("send again", reconnect::send_again),
    ("unpack", coalesced::unpack),
    ("pack", coalesced::pack),
    ("one message", coalesced::one_message),
    ("async receive", asynchronous::receive),
    ("async send", asynchronous::send),
    ("exchange", connectionless::exchange),
    ("own", one_sided::own),
    ("use", one_sided::use_it),
    ("object client", objects::client),
    ("object server", objects::server),
    ("publish", publish::publisher),
    ("subscribe", publish::subscriber),
];
