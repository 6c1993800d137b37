//! Senders and receivers: how they are opened.

#![allow(unsafe_code)] // Functions that C calls.

use std::collections::VecDeque;
use std::ffi::c_char;

use fabricast::endpoint::{ReceiveConfig, SendConfig};
use fabricast::{ReceiveEndpoint, SendEndpointZeroCopy};

use crate::call::call;
use crate::endpoint::{address, fcast_endpoint, open};
use crate::fabric::fcast_domain;
use crate::face::Face;
use crate::handle::DOMAINS;
use crate::pointer::{self, Out};
use crate::settings::fcast_settings;
use crate::settings_of::Whose;
use crate::status::fcast_status;

/// Starts to connect a sender to a receiver at an address such as "192.0.2.1:7000". Returns at
/// once: FCAST_EVENT_CONNECTED or FCAST_EVENT_DISCONNECTED follows. Any thread.
///
/// FCAST_INVALID: a setting, or the address. FCAST_NO_RESOURCES: memory, descriptors, or
/// registrations.
///
/// # Safety
///
/// `peer`: NULL, or a text that ends with a zero; `settings`: NULL, or a struct whose size field is
/// right; `endpoint`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_sender_open(
    domain: fcast_domain,
    peer: *const c_char,
    settings: *const fcast_settings,
    endpoint: *mut fcast_endpoint,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(endpoint, "endpoint") }?;
        // SAFETY: the caller's promise.
        let settings: fcast_settings = unsafe { pointer::sized(settings, "settings") }?;
        // SAFETY: the caller's promise.
        let peer = unsafe { address(peer, "peer") }?;
        settings.refuse_others(Whose::Sender)?;
        let domain = DOMAINS.share(domain.id)?.clone();
        let (outgoing, region) = settings.outgoing(Whose::Sender)?;
        let config = SendConfig::default()
            .connection(|of| settings.connection(of))
            .outgoing(|_| outgoing);
        let sender = SendEndpointZeroCopy::connect(&domain, peer, config)?;
        let face = Face::Send(Box::new(sender), VecDeque::new());
        open(out, face, region)
    })
}

/// Listens at an address of this machine, such as "127.0.0.1:0"; port 0 lets the system choose, and
/// fcast_endpoint_address says which one it is. Any thread.
///
/// # Safety
///
/// As fcast_sender_open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_receiver_open(
    domain: fcast_domain,
    local: *const c_char,
    settings: *const fcast_settings,
    endpoint: *mut fcast_endpoint,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(endpoint, "endpoint") }?;
        // SAFETY: the caller's promise.
        let settings: fcast_settings = unsafe { pointer::sized(settings, "settings") }?;
        // SAFETY: the caller's promise.
        let local = unsafe { address(local, "local") }?;
        settings.refuse_others(Whose::Receiver)?;
        let domain = DOMAINS.share(domain.id)?.clone();
        let (outgoing, _) = settings.outgoing(Whose::Receiver)?;
        let incoming = settings.incoming()?;
        let config = ReceiveConfig::default()
            .connection(|of| settings.connection(of))
            .outgoing(|_| outgoing)
            .incoming(|_| incoming);
        let receiver = ReceiveEndpoint::listen(&domain, local, config)?;
        let face = Face::Receive(Box::new(receiver), VecDeque::new());
        open(out, face, None)
    })
}
