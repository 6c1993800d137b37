//! `Diagnosis`: why no provider matched, for each provider that exists.

use std::fmt;

/// Why `fi_getinfo` found nothing that we can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnosis {
    /// What was asked for, in words.
    pub wanted: String,
    /// The version of the library that answered.
    pub library: String,
    /// Each provider of the library, and the first thing that ruled it out.
    pub verdicts: Vec<Verdict>,
}

/// One provider and what ruled it out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The provider, as libfabric spells it.
    pub provider: String,
    /// The first requirement that it does not meet.
    pub ruled_out_by: String,
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no provider of libfabric {} matches ({})",
            self.library, self.wanted
        )?;
        for Verdict {
            provider,
            ruled_out_by,
        } in &self.verdicts
        {
            write!(f, "; {provider}: {ruled_out_by}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnosis {}
