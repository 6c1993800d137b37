//! What endpoints do, on every provider that this machine has, over FI_EP_MSG and FI_EP_RDM:
//! `make conformance`.
//!
//! Sender and receiver are processes of their own, for a provider may crash or hang where a peer is
//! killed; a column of the table that is printed at the end is one provider of one library.
//! Behaviours run side by side: they share nothing but the cores, and what they are asked for has
//! limits that are wide enough for that. FABRICAST_ROW and FABRICAST_CASE, parts of names, run some
//! of them only; FABRICAST_JOBS is how many run at a time; FABRICAST_LIBFABRIC_2 names a second
//! library, as in `mixed`.
//!
//! What ran is kept for docs/providers.tsv: see `ran_on.rs`.
//!
//! One more behaviour: see `behaviours/mod.rs`.

mod behaviours;
#[path = "../common/mod.rs"]
mod common;
mod message;
mod on;
mod ran_on;
mod receiver;
mod rows;
mod run;
mod sender;
mod table;
mod told;

use std::time::Duration;

use behaviours::ROLES;
use common::{Watchdog, child};
use told::Told;

/// How long a process sleeps when nothing happened, if nothing wakes it: one that looks without a
/// pause takes its peer's time, above all where both are emulated.
pub(crate) const NAP: Duration = Duration::from_millis(1);

pub(crate) const NAME: &str = "every_behaviour_on_every_provider";

#[test]
fn every_behaviour_on_every_provider() {
    if let Some(name) = child::role() {
        let (_, role) = ROLES
            .iter()
            .find(|(of, _)| *of == name)
            .expect("a role of the list");
        return role(&Told::new(&child::argument()));
    }
    let _dog = Watchdog::with(NAME, Duration::from_secs(1500));
    let (lines, pairs) = run::all();
    println!("\n{}---- end of the table", table::table(&lines, &pairs));
    ran_on::write(&lines);
    let failed: Vec<_> = lines
        .iter()
        .chain(&pairs)
        .filter(|line| line.has_failed())
        .map(|line| format!("{} {}", line.provider, line.version))
        .collect();
    assert!(failed.is_empty(), "rows with failures: {failed:?}");
}
