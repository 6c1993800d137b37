//! Registrations of what a message is made of, held until it is over.

use std::sync::Arc;

use crate::buffer::{LeaseError, Leases, Payload};
use crate::endpoint::error::SendErrorKind;
use crate::endpoint::hub::control::HeldDescriptor;
use crate::endpoint::hub::data_op::Run;
use crate::endpoint::hub::scoped::ScopedRegistrations;
use crate::endpoint::link::LinkConn;
use crate::endpoint::link::iov::IovList;
use crate::memory::Region;

/// Keeps a region's registration open for longer than one payload; where the provider scopes
/// registrations to endpoints, it is made. `None`: it is not registered here.
#[cold]
pub(crate) fn hold_region<C: LinkConn>(
    region: &Arc<Region>,
    conn: Option<&C>,
    scoped: &mut ScopedRegistrations,
) -> Result<HeldDescriptor, Option<SendErrorKind>> {
    if let Some(registrar) = conn.and_then(LinkConn::registrar)
        && scoped.misses(region)
    {
        let registered = scoped.register(region, registrar);
        registered.map_err(|error| Some(error.into()))?;
    }
    HeldDescriptor::lease(region, scoped.scope()).ok_or(None)
}

/// The error for a segment whose region is not registered with this domain.
#[cold]
pub(crate) fn not_here(region: &Region, segment: usize) -> SendErrorKind {
    match region.is_registered_anywhere() {
        true => SendErrorKind::ForeignBuffer { segment },
        false => SendErrorKind::NotRegistered { segment },
    }
}

/// A lease for each segment.
#[inline(never)]
pub(crate) fn lease_each<C: LinkConn>(
    payload: &Payload,
    conn: Option<&C>,
    scoped: &mut ScopedRegistrations,
    iov: &mut IovList,
) -> Result<Leases, SendErrorKind> {
    let header_len = iov.len();
    loop {
        let scope = scoped.scope();
        match payload.lease(scope, &mut |base, len, desc| iov.push(base, len, desc)) {
            Ok(leases) => return Ok(leases),
            Err(error) => {
                iov.truncate(header_len);
                // Each round registers one region more, or gives up.
                register_here(payload, error, conn, scoped)?;
            }
        }
    }
}

/// Leases any number of segments; those without a byte are left out.
pub(super) fn lease_runs<C: LinkConn>(
    payload: &Payload,
    conn: Option<&C>,
    scoped: &mut ScopedRegistrations,
    runs: &mut Vec<Run>,
) -> Result<Leases, SendErrorKind> {
    let header_len = runs.len();
    loop {
        let scope = scoped.scope();
        let mut push = |base, len, desc| {
            if len > 0 {
                runs.push(Run {
                    base,
                    len,
                    desc,
                    device: None,
                });
            }
        };
        match payload.lease(scope, &mut push) {
            Ok(leases) => return Ok(leases),
            Err(error) => {
                runs.truncate(header_len);
                register_here(payload, error, conn, scoped)?;
            }
        }
    }
}

/// Where the provider scopes registrations to endpoints: registers a region that this endpoint
/// meets for the first time. Everywhere else, says what is wrong.
#[cold]
fn register_here<C: LinkConn>(
    payload: &Payload,
    error: LeaseError,
    conn: Option<&C>,
    scoped: &mut ScopedRegistrations,
) -> Result<(), SendErrorKind> {
    if payload.is_gated() {
        // It waits: what is sent of it is leased by itself, by whoever sends it later.
        return Err(SendErrorKind::NotRegistered { segment: 0 });
    }
    let (segment, kind) = match error {
        LeaseError::ForeignBuffer { segment } => {
            (segment, SendErrorKind::ForeignBuffer { segment })
        }
        LeaseError::NotRegistered { segment } => {
            (segment, SendErrorKind::NotRegistered { segment })
        }
        LeaseError::Staged { segment } => return Err(SendErrorKind::NotStaged { segment }),
    };
    let region = payload
        .parts()
        .get(segment)
        .and_then(|segment| segment.plain_region().map(Arc::clone));
    let registrar = conn.and_then(LinkConn::registrar);
    match (region, registrar) {
        (Some(region), Some(registrar)) if scoped.misses(&region) => {
            scoped.register(&region, registrar)?;
            Ok(())
        }
        _ => Err(kind),
    }
}
