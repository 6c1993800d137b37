//! The command `fabricast`, as a user runs it.

#[cfg(feature = "bench")]
mod bench;
#[cfg(feature = "bench")]
mod bench_report;
mod delete;
mod doctor;
mod far;
mod info;
mod machines;
mod metrics;
mod objects;
#[cfg(feature = "pages")]
mod pages;
#[path = "../../../../tests/common/patience.rs"]
mod patience;
mod peers;
#[path = "../../../../tests/common/provider.rs"]
#[allow(dead_code, reason = "shared with other tests, which use more of it")]
mod provider;
mod readout;
mod slurm;
mod stream;
#[cfg(feature = "charts")]
mod timeline;

use std::path::PathBuf;

use fabricast::fabric::EndpointKind;

/// The provider that it is told to use: one with connections of its own.
fn over() -> Option<&'static str> {
    let asked = provider::asked_or(EndpointKind::Msg, &["tcp"]);
    asked.into_iter().next()
}

/// The program. `None`, after a line that says why: the test can't run.
fn program() -> Option<PathBuf> {
    if over().is_none() {
        println!("SKIPPED: no provider of FABRICAST_TEST_PROVIDER has FI_EP_MSG");
        return None;
    }
    Some(env!("CARGO_BIN_EXE_fabricast").into())
}
