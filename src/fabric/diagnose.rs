//! How a [`Diagnosis`] is made: the provider that was wanted, or each, is asked for again, with one
//! requirement more each time; and what is not there at all is told apart from what was misspelt.

use std::collections::BTreeSet;
use std::path::Path;

use libfabric_sys as sys;

use super::builder::requirements;
use super::info::Info;
use super::provider::{EndpointKind, PROVIDERS, provider};
use crate::Error;
use crate::error::{Diagnosis, Verdict};

impl Diagnosis {
    /// Asks again, with one requirement more each time: the provider that was wanted, or each.
    pub(super) fn new(
        library: &'static sys::Library,
        wanted_provider: Option<&str>,
        node: Option<&str>,
        interface: Option<&str>,
        kind: Option<EndpointKind>,
        errno: i32,
    ) -> Result<Self, Error> {
        let mut wanted = match wanted_provider {
            Some(name) => format!("provider {name:?}"),
            None => "any provider".to_owned(),
        };
        if let Some(node) = node {
            wanted += &format!(", node {node}");
        }
        if let Some(interface) = interface {
            wanted += &format!(", interface {interface}");
        }
        if let Some(kind) = kind {
            wanted += &format!(", {kind} endpoints");
        }
        if errno != sys::FI_ENODATA {
            wanted += &format!(": {}", library.fi_strerror(errno));
        }
        let names = names_of(library, 0);
        let judged = match wanted_provider {
            Some(wanted) => vec![wanted],
            None => names.iter().map(String::as_str).collect(),
        };
        let mut verdicts = Vec::new();
        for name in judged {
            let ruled_out_by = match absence(library, name, &names) {
                Some(why) => why,
                None => first_refusal(library, name, node, interface, kind)?,
            };
            verdicts.push(Verdict {
                provider: name.to_owned(),
                ruled_out_by,
            });
        }
        let is_usable = |name: &String| provider(name).is_some_and(|row| row.refusal().is_none());
        Ok(Self {
            wanted,
            library: sys::version_text(library.version()),
            verdicts,
            present: names.into_iter().filter(is_usable).collect(),
        })
    }
}

/// The providers that answer.
fn names_of(library: &'static sys::Library, flags: u64) -> BTreeSet<String> {
    let found = Info::find(library, None, None, flags, None).unwrap_or_default();
    let names = found.iter().map(Info::provider_name);
    names.filter(|name| !name.is_empty()).collect()
}

/// Why there is nothing of a provider on this machine; `None` where there is.
fn absence(
    library: &'static sys::Library,
    name: &str,
    present: &BTreeSet<String>,
) -> Option<String> {
    if name.is_empty() {
        return Some(
            "the provider's name is empty: leave the setting out, and the first that can be used \
             is taken"
                .to_owned(),
        );
    }
    if present.contains(name) {
        return None;
    }
    let Some(row) = provider(name) else {
        let known = PROVIDERS.iter().map(|row| row.name);
        return Some(match meant(name, known) {
            Some(meant) => format!("there is no such provider; did you mean {meant}?"),
            None => "there is no such provider".to_owned(),
        });
    };
    // All that it has to offer on any machine; but for `verbs`, which 1.17 leaves out without a
    // device.
    let listed = names_of(library, sys::FI_PROV_ATTR_ONLY);
    let is_listed = name.split(';').all(|part| listed.contains(part));
    Some(absence_of_known(row.devices.map(Path::new), is_listed))
}

/// How to learn more of a provider that says nothing.
const MORE: &str = "FI_LOG_LEVEL=info in the environment has it say why";

/// Why there is nothing of a provider that we know, whose devices the kernel lists in a directory,
/// and which the library lists or does not.
fn absence_of_known(devices: Option<&Path>, is_listed: bool) -> String {
    match (devices.and_then(lack_of_devices), is_listed) {
        (Some(lack), true) => format!("libfabric has it, but there is no device ({lack})"),
        (Some(lack), false) => format!(
            "there is no device ({lack}), for want of which libfabric leaves it out; or it was \
             built without it"
        ),
        (None, true) => format!("libfabric has it, and it offers nothing here; {MORE}"),
        (None, false) => "this libfabric was built without it".to_owned(),
    }
}

/// The kernel lists no device there.
fn lack_of_devices(directory: &Path) -> Option<String> {
    let state = match std::fs::read_dir(directory).map(|mut entries| entries.next().is_some()) {
        Ok(true) => return None,
        Ok(false) => "is empty",
        Err(_) => "is not there",
    };
    Some(format!("{} {state}", directory.display()))
}

/// The name that was meant, if one is near: the same in other letters, or with a slip or two.
fn meant<'a>(asked: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let asked = asked.to_lowercase();
    let ranked = known.map(|name| (distance(&asked, name), name));
    let (slips, nearest) = ranked.min_by_key(|(slips, _)| *slips)?;
    (slips <= 2 && slips < nearest.chars().count().min(asked.chars().count())).then_some(nearest)
}

/// Letters that are to be put in, left out or changed (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.chars().count()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.chars().enumerate() {
            let changed = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row.last().copied().unwrap_or(0)
}

/// Adds requirements until the provider gives no answer; names the last one added.
fn first_refusal(
    library: &'static sys::Library,
    name: &str,
    node: Option<&str>,
    interface: Option<&str>,
    kind: Option<EndpointKind>,
) -> Result<String, Error> {
    let Some(row) = provider(name) else {
        return Ok("it is not in this library's provider table".to_owned());
    };
    if let Some(reason) = row.refusal() {
        return Ok(reason.to_owned());
    }
    let kind = kind.unwrap_or(row.endpoints[0]);
    if !row.endpoints.contains(&kind) {
        return Ok(format!("it has no {kind} endpoints that are used here"));
    }
    if node.is_some() && row.names.is_some() {
        return Ok("its endpoints have names and no addresses: it takes no node".to_owned());
    }
    let mut hints = Info::hints(library)?;
    hints.set_provider(name)?;
    for requirement in requirements(kind) {
        (requirement.set)(&mut hints);
        let found = Info::find(library, None, None, 0, Some(&hints)).unwrap_or_default();
        // A provider's name also matches those that are layered on it.
        if !found.iter().any(|info| info.provider_name() == name) {
            return Ok(requirement.what.to_owned());
        }
    }
    if let Some(interface) = interface {
        hints.set_domain_name(interface)?;
        // Some providers ignore the hint, so their answers are looked at.
        let found = Info::find(library, None, None, 0, Some(&hints)).unwrap_or_default();
        if !found.iter().any(|info| info.domain_name() == interface) {
            return Ok(format!("no interface {interface}"));
        }
    }
    match node {
        Some(node) => Ok(format!("node {node} is no local address of it")),
        None => Ok("nothing by itself: the requirements exclude each other".to_owned()),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_near_is_meant() {
        let known = || PROVIDERS.iter().map(|row| row.name);
        for (asked, nearest) in [
            ("TCP", Some("tcp")),
            ("tpc", Some("tcp")),
            ("tcpp", Some("tcp")),
            ("Verbs", Some("verbs")),
            ("vebrs", Some("verbs")),
            ("verbs,ofi_rxm", Some("verbs;ofi_rxm")),
            ("nonsense", None),
            ("foo", None),
            ("a", None),
            ("infiniband", None),
        ] {
            assert_eq!(meant(asked, known()), nearest, "{asked}");
        }
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
    }

    #[test]
    fn devices_are_looked_for_where_the_kernel_lists_them() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("none");
        let (shown, missing_shown) = (dir.path().display(), missing.display());
        assert_eq!(
            absence_of_known(Some(dir.path()), true),
            format!("libfabric has it, but there is no device ({shown} is empty)")
        );
        let left_out = absence_of_known(Some(&missing), false);
        let begin = format!("there is no device ({missing_shown} is not there), ");
        assert!(left_out.starts_with(&begin), "{left_out}");
        std::fs::write(dir.path().join("mlx5_0"), "").unwrap();
        for devices in [None, Some(dir.path())] {
            let silent = absence_of_known(devices, true);
            assert!(silent.contains("it offers nothing here"), "{silent}");
            let lacking = absence_of_known(devices, false);
            assert_eq!(lacking, "this libfabric was built without it");
        }
    }

    #[test]
    fn equal_reasons_are_said_once() {
        let verdict = |provider: &str, why: &str| Verdict {
            provider: provider.to_owned(),
            ruled_out_by: why.to_owned(),
        };
        let mut diagnosis = Diagnosis {
            wanted: "any provider, interface eth7".to_owned(),
            library: "1.17".to_owned(),
            verdicts: vec![
                verdict("net", "no interface eth7"),
                verdict("shm", "it has none"),
                verdict("tcp", "no interface eth7"),
            ],
            present: vec!["net".to_owned(), "tcp".to_owned()],
        };
        assert_eq!(
            diagnosis.to_string(),
            "net, tcp: no interface eth7; shm: it has none; libfabric 1.17 has net, tcp here \
             (asked for: any provider, interface eth7)"
        );
        diagnosis.verdicts.clear();
        diagnosis.present.clear();
        let none = diagnosis.to_string();
        assert!(
            none.starts_with("libfabric 1.17 has no provider here"),
            "{none}"
        );
    }
}
