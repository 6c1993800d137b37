//! The examples that are tools, as a user runs them; the table of what ran where, which a tool
//! writes; and the names and numbers of the documents.

mod documents;
mod object_http;
#[path = "../common/patience.rs"]
mod patience;
#[path = "../common/provider.rs"]
#[allow(dead_code, reason = "shared with other tests, which use more of it")]
mod provider;
mod providers;

use std::path::PathBuf;

use fabricast::fabric::EndpointKind;

/// The provider that the tools are told to use: one with connections of its own.
fn over() -> Option<&'static str> {
    let asked = provider::asked_or(EndpointKind::Msg, &["tcp"]);
    asked.into_iter().next()
}

/// Where cargo puts examples: beside the directory of the tests. `None`, after a line that says
/// why: the test can't run.
fn example(name: &str) -> Option<PathBuf> {
    if over().is_none() {
        println!("SKIPPED: no provider of FABRICAST_TEST_PROVIDER has FI_EP_MSG");
        return None;
    }
    let tests = std::env::current_exe().ok()?;
    let program = tests.parent()?.parent()?.join("examples").join(name);
    if program.exists() {
        return Some(program);
    }
    let path = program.display();
    println!("SKIPPED: {path} is not built (cargo build --example {name})");
    None
}
