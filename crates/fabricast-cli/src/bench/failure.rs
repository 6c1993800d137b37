//! Failures of the bench as those of a command, with their exit codes.

use fabricast_bench::error::Kind;

use crate::failure::{End, Failure};

impl From<fabricast_bench::error::Failure> for Failure {
    fn from(failure: fabricast_bench::error::Failure) -> Self {
        let end = match failure.kind() {
            Kind::Failed => End::Failed,
            Kind::Usage => End::Usage,
            Kind::Unreachable => End::Unreachable,
            Kind::Refused => End::Refused,
        };
        Self::of(failure).ends(end)
    }
}
