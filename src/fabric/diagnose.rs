//! How a [`Diagnosis`] is made: each provider is asked for again, with one requirement more each
//! time.

use std::collections::BTreeSet;

use libfabric_sys as sys;

use super::builder::requirements;
use super::info::Info;
use super::provider::{EndpointKind, provider};
use crate::Error;
use crate::error::{Diagnosis, Verdict};

impl Diagnosis {
    /// Asks again, provider by provider, with one requirement more each time.
    pub(super) fn new(
        library: &'static sys::Library,
        wanted_provider: Option<&str>,
        node: Option<&str>,
        interface: Option<&str>,
        kind: Option<EndpointKind>,
        errno: i32,
    ) -> Result<Self, Error> {
        let mut wanted = format!("provider {}", wanted_provider.unwrap_or("any"));
        if let Some(node) = node {
            wanted += &format!(", node {node}");
        }
        if let Some(interface) = interface {
            wanted += &format!(", interface {interface}");
        }
        if let Some(kind) = kind {
            wanted += &format!(", {kind} endpoints");
        }
        wanted += &format!(": {}", library.fi_strerror(errno));
        let names: BTreeSet<String> = Info::find(library, None, None, 0, None)
            .unwrap_or_default()
            .iter()
            .map(Info::provider_name)
            .filter(|name| !name.is_empty())
            .collect();
        let mut verdicts = Vec::new();
        for name in names {
            let ruled_out_by = match wanted_provider {
                Some(wanted) if wanted != name => format!("the provider setting asks for {wanted}"),
                _ => first_refusal(library, &name, node, interface, kind)?,
            };
            verdicts.push(Verdict {
                provider: name,
                ruled_out_by,
            });
        }
        Ok(Self {
            wanted,
            library: sys::version_text(library.version()),
            verdicts,
        })
    }
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
