//! What objects need of a fabric, on either side.

use crate::Error;
use crate::fabric::{EndpointKind, Fabric, RmaLimits};

/// What one-sided operations can do there.
///
/// # Errors
/// [`Error::Unsupported`]: the fabric, or its provider, lacks what tokens stand on.
pub(super) fn one_sided(fabric: &Fabric) -> Result<RmaLimits, Error> {
    let lacks = |need| Error::Unsupported {
        provider: fabric.info().provider_name(),
        need,
    };
    if fabric.endpoint_kind() != EndpointKind::Rdm {
        return Err(lacks(
            "was opened for connected endpoints, and tokens name endpoints without connections: \
             open the fabric with `FabricBuilder::endpoint_kind(EndpointKind::Rdm)`",
        ));
    }
    if fabric.provider().memory.endpoint_scope {
        return Err(lacks(
            "registers memory for one endpoint alone, and memory of objects outlives endpoints",
        ));
    }
    let rma = fabric.rma();
    let rma = rma.ok_or_else(|| lacks("has no one-sided operations here (FI_RMA)"))?;
    Ok(*rma)
}
