//! `Run`: where the conformance suite ran a provider, and what came of it.

use std::fmt;

use super::provider::EndpointKind;

/// One line of docs/providers.tsv: a provider that ran the conformance suite (`make conformance`).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Run {
    /// The provider, as `fi_getinfo` spells it.
    pub provider: String,
    /// What connections were made of.
    pub endpoint: EndpointKind,
    /// Bytes of CQ data that were used.
    pub cq_data: usize,
    /// The version of libfabric.
    pub library: String,
    /// The release of the kernel.
    pub kernel: String,
    /// The network interface or card, as the provider spells it, and its driver or `virtual` where
    /// it is a card.
    pub device: String,
    /// The day, as 2026-11-22.
    pub date: String,
    /// How many behaviours were as they should be.
    pub shown: usize,
    /// Those that can't apply: they ask for what the provider, or this kind of endpoint, does not
    /// have.
    pub cannot: Vec<String>,
    /// Those that fail, for a known reason of the provider's own.
    pub fails: Vec<String>,
}

/// The names of the fields, which are the first line.
const HEADS: [&str; 10] = [
    "provider", "endpoint", "cq_data", "library", "kernel", "device", "date", "shown", "cannot",
    "fails",
];

impl Run {
    /// All that are known, in the order of the file.
    pub fn all() -> impl Iterator<Item = Self> {
        const FILE: &str = include_str!("../../docs/providers.tsv");
        FILE.lines().filter_map(Self::parse)
    }

    /// The line of a file, with tabs between its fields; `None` for one that is not of that form,
    /// as the first.
    pub fn parse(line: &str) -> Option<Self> {
        let fields: Vec<_> = line.split('\t').collect();
        let [
            provider,
            endpoint,
            cq_data,
            library,
            kernel,
            device,
            date,
            shown,
            cannot,
            fails,
        ] = fields.try_into().ok()?;
        Some(Self {
            provider: provider.to_owned(),
            endpoint: [EndpointKind::Msg, EndpointKind::Rdm]
                .into_iter()
                .find(|kind| kind.to_string() == endpoint)?,
            cq_data: cq_data.parse().ok()?,
            library: library.to_owned(),
            kernel: kernel.to_owned(),
            device: device.to_owned(),
            date: date.to_owned(),
            shown: shown.parse().ok()?,
            cannot: names(cannot),
            fails: names(fails),
        })
    }

    /// The first line of a file.
    pub fn heads() -> String {
        HEADS.join("\t")
    }

    /// How many behaviours it was asked for.
    pub fn asked(&self) -> usize {
        self.shown + self.cannot.len() + self.fails.len()
    }

    /// What [`parse`](Self::parse) reads.
    pub fn to_line(&self) -> String {
        let Self {
            provider,
            endpoint,
            cq_data,
            library,
            kernel,
            device,
            date,
            shown,
            cannot,
            fails,
        } = self;
        let (cannot, fails) = (cannot.join(", "), fails.join(", "));
        format!(
            "{provider}\t{endpoint}\t{cq_data}\t{library}\t\
             {kernel}\t{device}\t{date}\t{shown}\t{cannot}\t{fails}"
        )
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            endpoint,
            library,
            kernel,
            device,
            date,
            shown,
            ..
        } = self;
        write!(
            f,
            "{endpoint}, libfabric {library}, Linux {kernel}, {device}, {date}: {shown} of {} \
             behaviours",
            self.asked()
        )?;
        for (what, which) in [("can't apply", &self.cannot), ("fails", &self.fails)] {
            if !which.is_empty() {
                write!(f, "; {what}: {}", which.join(", "))?;
            }
        }
        Ok(())
    }
}

fn names(list: &str) -> Vec<String> {
    let names = list.split(", ").filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::PROVIDERS;

    #[test]
    fn a_line_is_what_was_written() {
        let run = Run {
            provider: "verbs".to_owned(),
            endpoint: EndpointKind::Msg,
            cq_data: 4,
            library: "1.17".to_owned(),
            kernel: "6.1.0".to_owned(),
            device: "rxe0 (virtual)".to_owned(),
            date: "2026-11-22".to_owned(),
            shown: 28,
            cannot: vec!["peer killed".to_owned(), "write with data".to_owned()],
            fails: vec!["restart".to_owned()],
        };
        assert_eq!(Run::parse(&run.to_line()).as_ref(), Some(&run));
        let whole = Run {
            cannot: Vec::new(),
            fails: Vec::new(),
            ..run.clone()
        };
        assert_eq!(Run::parse(&whole.to_line()), Some(whole));
        assert_eq!(Run::parse(&Run::heads()), None);
        assert_eq!(
            run.to_string(),
            "FI_EP_MSG, libfabric 1.17, Linux 6.1.0, rxe0 (virtual), 2026-11-22: 28 of 31 \
             behaviours; can't apply: peer killed, write with data; fails: restart"
        );
    }

    #[test]
    fn what_ran_is_in_the_table_of_providers() {
        for run in Run::all() {
            let row = PROVIDERS.iter().find(|row| row.name == run.provider);
            let row = row.unwrap_or_else(|| panic!("{}", run.provider));
            assert!(row.endpoints.contains(&run.endpoint), "{run}");
            assert!(row.refused.is_none() && run.shown > 0, "{run}");
        }
    }
}
