//! `Diagnosis`: why no provider matched.

use std::fmt;

/// Why `fi_getinfo` found nothing that we can use.
#[derive(Clone, PartialEq, Eq)]
pub struct Diagnosis {
    /// What was asked for, in words.
    pub wanted: String,
    /// The version of the library that answered.
    pub library: String,
    /// Why not: of the provider that was asked for by its name, or of each that the library has.
    pub verdicts: Vec<Verdict>,
    /// The providers that have something to offer on this machine, and that can be used.
    pub present: Vec<String>,
}

/// One provider and what ruled it out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The provider, as libfabric spells it, or as it was asked for.
    pub provider: String,
    /// The first requirement that it does not meet.
    pub ruled_out_by: String,
}

impl Diagnosis {
    /// Each reason once, with the providers that it is of.
    fn reasons(&self) -> Vec<(Vec<&str>, &str)> {
        let mut reasons: Vec<(Vec<&str>, &str)> = Vec::new();
        for verdict in &self.verdicts {
            let (name, why) = (verdict.provider.as_str(), verdict.ruled_out_by.as_str());
            match reasons.iter_mut().find(|(_, known)| *known == why) {
                Some((names, _)) => names.push(name),
                None => reasons.push((vec![name], why)),
            }
        }
        reasons
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            wanted,
            library,
            present,
            ..
        } = self;
        for (names, why) in self.reasons() {
            match names[..] {
                [""] => {}
                _ => write!(f, "{}: ", names.join(", "))?,
            }
            let stop = if why.ends_with('?') { "" } else { ";" };
            write!(f, "{why}{stop} ")?;
        }
        match present[..] {
            [] => write!(f, "libfabric {library} has no provider here"),
            _ => write!(f, "libfabric {library} has {} here", present.join(", ")),
        }?;
        write!(f, " (asked for: {wanted})")
    }
}

impl std::error::Error for Diagnosis {}

fabricast_process::debug_as_words!(Diagnosis);
