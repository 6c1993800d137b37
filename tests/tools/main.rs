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
