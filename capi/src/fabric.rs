//! Fabrics and domains.

#![allow(unsafe_code)] // Functions that C calls.

use std::ffi::c_char;

use fabricast::Fabric;
use fabricast::fabric::{EndpointKind, WaitObject};
use fabricast::memory::DevicePaths;

use crate::call::call;
use crate::handle::{DOMAINS, FABRICS};
use crate::pointer::{self, Out, Sized0};
use crate::status::{Failure, fcast_status};

/// A fabric: a provider of libfabric's that was opened. Any thread may use it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_fabric {
    /// Its number; 0: none.
    pub id: u64,
}

/// A domain: what memory is registered with, and endpoints are opened in. Any thread may use it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_domain {
    /// Its number; 0: none.
    pub id: u64,
}

/// Connections are made of what the provider has: connected endpoints before FI_EP_RDM.
pub const FCAST_KIND_ANY: u32 = 0;
/// Connected endpoints (FI_EP_MSG).
pub const FCAST_KIND_MSG: u32 = 1;
/// Reliable datagrams (FI_EP_RDM), over which connections are this library's own.
pub const FCAST_KIND_RDM: u32 = 2;

/// How a fabric is opened. All zeros but the size are the defaults.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_fabric_settings {
    /// sizeof(fcast_fabric_settings).
    pub size: usize,
    /// The provider as libfabric spells it ("tcp", "verbs", ..); NULL: the first that can be used.
    pub provider: *const c_char,
    /// The local address or host name, which chooses the interface; NULL: the first one.
    pub node: *const c_char,
    /// The interface or device ("eth0", "mlx5_0"); NULL: any.
    pub interface: *const c_char,
    /// FCAST_KIND_ANY, FCAST_KIND_MSG or FCAST_KIND_RDM. Both ends must have the same.
    pub kind: u32,
    /// 1: no descriptor is signalled for completions, which is faster for those who only spin.
    pub no_wait_object: u32,
    /// The most registrations of each domain, 1 to 1,048,576; 0: 1,024.
    pub max_registrations: u32,
    /// 1: GPU memory is always copied through memory of the host.
    pub stage_device_memory: u32,
}

// SAFETY: C's layout, a `usize` first; null and 0 are values of all its fields.
unsafe impl Sized0 for fcast_fabric_settings {}

/// Loads libfabric, finds a provider and opens it. The words of a failure say which providers there
/// are and what ruled each of them out.
///
/// FCAST_UNSUPPORTED: no libfabric, or no provider that does it. FCAST_INVALID: a setting, or an
/// address that is not of this machine. Any thread.
///
/// # Safety
///
/// `settings`: NULL, or a struct whose size field is right and whose texts end with a zero;
/// `fabric`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_fabric_open(
    settings: *const fcast_fabric_settings,
    fabric: *mut fcast_fabric,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(fabric, "fabric") }?;
        // SAFETY: the caller's promise.
        let settings = unsafe { pointer::sized(settings, "settings") }?;
        // SAFETY: the caller's promise.
        let opened = unsafe { builder(&settings) }?.open()?;
        let id = FABRICS.insert(opened)?;
        out.set(fcast_fabric { id });
        Ok(())
    })
}

/// # Safety
///
/// The texts are null, or end with a zero.
unsafe fn builder(
    settings: &fcast_fabric_settings,
) -> Result<fabricast::fabric::FabricBuilder, Failure> {
    let mut builder = Fabric::builder();
    // SAFETY: the caller's promise.
    if let Some(provider) = unsafe { pointer::text(settings.provider, "provider") }? {
        builder = builder.provider(provider);
    }
    // SAFETY: the caller's promise.
    if let Some(node) = unsafe { pointer::text(settings.node, "node") }? {
        builder = builder.node(node);
    }
    // SAFETY: the caller's promise.
    if let Some(interface) = unsafe { pointer::text(settings.interface, "interface") }? {
        builder = builder.interface(interface);
    }
    builder = match settings.kind {
        FCAST_KIND_ANY => builder,
        FCAST_KIND_MSG => builder.endpoint_kind(EndpointKind::Msg),
        FCAST_KIND_RDM => builder.endpoint_kind(EndpointKind::Rdm),
        other => {
            return Err(Failure::invalid(format!(
                "kind = {other}: it must be 0 to 2"
            )));
        }
    };
    if settings.no_wait_object != 0 {
        builder = builder.wait_object(WaitObject::None);
    }
    if settings.max_registrations != 0 {
        builder = builder.max_registrations(settings.max_registrations as usize);
    }
    if settings.stage_device_memory != 0 {
        builder = builder.device_memory(DevicePaths::Off);
    }
    Ok(builder)
}

/// Writes what is known of a fabric as text, which ends with a zero: libfabric's version, provider,
/// device, limits. `*len`: the bytes that it needs, the zero included; what does not go into
/// `capacity` is cut. Any thread.
///
/// # Safety
///
/// `text`: NULL, or `capacity` writable bytes; `len`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_fabric_report(
    fabric: fcast_fabric,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> fcast_status {
    call(|| {
        let report = FABRICS.share(fabric.id)?.report().to_string();
        // SAFETY: the caller's promise.
        unsafe { pointer::write_text(&report, text, capacity, len) }
    })
}

/// Gives a fabric back. It is closed when the last domain that was opened in it is.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_fabric_release(fabric: fcast_fabric) -> fcast_status {
    call(|| FABRICS.release(fabric.id))
}

/// Opens a domain in a fabric. Any thread.
///
/// # Safety
///
/// `domain`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_domain_open(
    fabric: fcast_fabric,
    domain: *mut fcast_domain,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(domain, "domain") }?;
        let opened = FABRICS.share(fabric.id)?.open_domain()?;
        let id = DOMAINS.insert(opened)?;
        out.set(fcast_domain { id });
        Ok(())
    })
}

/// Gives a domain back. It is closed when the last endpoint and registration in it is gone.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_domain_release(domain: fcast_domain) -> fcast_status {
    call(|| DOMAINS.release(domain.id))
}
