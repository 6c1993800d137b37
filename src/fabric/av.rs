//! `Av`: an address vector, which knows peers by number (`fi_av.3`).

#![allow(unsafe_code)]

use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use libfabric_sys as sys;

use super::address::AddrForm;
use super::domain::Domain;
use super::handle;
use super::info::ProviderAddress;
#[cfg(test)]
use super::info::read_provider_address;
use crate::Error;
use crate::fabric::PeerAddr;

/// A hint of how many peers there will be; address vectors grow by themselves, up to the provider's
/// limit.
const EXPECTED_PEERS: usize = 64;

/// A peer's number in the address vector that it was inserted into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FiAddr(sys::fi_addr_t);

impl FiAddr {
    /// For receives, which take messages from everybody, and for connected endpoints.
    pub(crate) const UNSPECIFIED: Self = Self(sys::FI_ADDR_UNSPEC);

    pub(crate) fn get(self) -> sys::fi_addr_t {
        self.0
    }
}

/// An address vector. Endpoints that are bound to it keep it open.
pub(crate) struct Av {
    raw: NonNull<sys::fid_av>,
    domain: Arc<Domain>,
}

// SAFETY: the domain is opened with FI_THREAD_SAFE (`builder::hints`), so any thread may call into
// it.
unsafe impl Send for Av {}
// SAFETY: as above.
unsafe impl Sync for Av {}

impl Av {
    pub(crate) fn open(domain: &Arc<Domain>) -> Result<Self, Error> {
        let mut attr = sys::fi_av_attr {
            type_: sys::FI_AV_TABLE,
            rx_ctx_bits: 0,
            count: EXPECTED_PEERS,
            ep_per_node: 0,
            name: ptr::null(),
            map_addr: ptr::null_mut(),
            flags: 0,
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the domain is open, `attr` and `raw` are writable.
        let rc = unsafe {
            sys::fi_av_open(
                domain.as_ptr(),
                &raw mut attr,
                &raw mut raw,
                ptr::null_mut(),
            )
        };
        let raw = NonNull::new(raw)
            .filter(|_| rc == 0)
            .ok_or_else(|| Error::fabric("fi_av_open", rc))?;
        Ok(Self {
            raw,
            domain: Arc::clone(domain),
        })
    }

    pub(crate) fn fid(&self) -> *mut sys::fid {
        self.raw.as_ptr().cast()
    }

    /// Takes a peer in. An address of a form that the provider does not use is refused: it would
    /// read past its end.
    pub(crate) fn insert(&self, peer: &PeerAddr) -> Result<FiAddr, Error> {
        let bad = |reason: &str| Error::Address {
            address: peer.to_string(),
            reason: reason.to_owned(),
        };
        let format = self.domain.fabric().info().addr_format();
        let address = ProviderAddress::new(peer)
            .filter(|_| fits(format, peer))
            .ok_or_else(|| bad("is not of the form that this provider's addresses have"))?;
        let mut found = sys::FI_ADDR_NOTAVAIL;
        // SAFETY: the vector is open; one address of the provider's format lies there, and `found`
        // has room for its number.
        let inserted = unsafe {
            sys::fi_av_insert(
                self.raw.as_ptr(),
                address.as_ptr().cast(),
                1,
                &raw mut found,
                0,
                ptr::null_mut(),
            )
        };
        match inserted {
            1 if found != sys::FI_ADDR_NOTAVAIL => Ok(FiAddr(found)),
            code if code < 0 => Err(Error::fabric("fi_av_insert", code)),
            _ => Err(bad("the provider does not take it, or not one more")),
        }
    }

    /// Lets a peer go. Nothing may be outstanding to it.
    pub(crate) fn remove(&self, peer: FiAddr) {
        let mut number = peer.0;
        // SAFETY: the vector is open; the number is one that it gave, and its one owner gives it
        // back.
        let rc = unsafe { sys::fi_av_remove(self.raw.as_ptr(), &raw mut number, 1, 0) };
        if rc != 0 {
            tracing::debug!(errno = rc, "fi_av_remove refused; the address stays");
        }
    }

    /// The address that a number stands for.
    #[cfg(test)]
    pub(crate) fn lookup(&self, peer: FiAddr) -> Option<PeerAddr> {
        let mut room = [0u8; 256];
        let mut len = room.len();
        // SAFETY: the vector is open; the room has that length.
        let rc = unsafe {
            sys::fi_av_lookup(
                self.raw.as_ptr(),
                peer.0,
                room.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        let format = self.domain.fabric().info().addr_format();
        // SAFETY: `len`, bounded by the room, bytes can be read.
        let address = unsafe { read_provider_address(format, room.as_ptr(), len.min(room.len())) };
        address.filter(|_| rc == 0)
    }
}

/// Whether an address has the provider's form.
pub(crate) fn fits(format: u32, peer: &PeerAddr) -> bool {
    match (format, peer.form()) {
        (_, AddrForm::Any) => false,
        (sys::FI_SOCKADDR_IN, AddrForm::Socket(addr)) => addr.is_ipv4(),
        (sys::FI_SOCKADDR_IN6, AddrForm::Socket(addr)) => addr.is_ipv6(),
        (sys::FI_SOCKADDR | sys::FI_FORMAT_UNSPEC, AddrForm::Socket(_)) => true,
        (sys::FI_ADDR_STR, AddrForm::Text(_)) => true,
        (
            sys::FI_SOCKADDR | sys::FI_SOCKADDR_IN | sys::FI_SOCKADDR_IN6 | sys::FI_ADDR_STR,
            AddrForm::Raw(_),
        ) => false,
        (_, AddrForm::Raw(_)) => true,
        (_, AddrForm::Socket(_) | AddrForm::Text(_)) => false,
    }
}

impl Drop for Av {
    fn drop(&mut self) {
        // SAFETY: the endpoints bound to it hold it by `Arc`, so none is left; the domain is still
        // held.
        let _ = unsafe { handle::close("av", self.domain.fabric().owner(), self.fid()) };
    }
}

impl fmt::Debug for Av {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Av")
            .field("domain", &self.domain)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_providers_form_go_in() {
        let [v4, v6, text, raw, any] =
            ["127.0.0.1:1", "[::1]:1", "fi_shm://1:0:0", "hex:01", "any"]
                .map(|text| text.parse::<PeerAddr>().unwrap());
        for (format, good) in [
            (sys::FI_SOCKADDR_IN, &[v4][..]),
            (sys::FI_SOCKADDR_IN6, &[v6]),
            (sys::FI_SOCKADDR, &[v4, v6]),
            (sys::FI_ADDR_STR, &[text]),
            (sys::FI_ADDR_EFA, &[raw]),
        ] {
            for addr in [v4, v6, text, raw, any] {
                assert_eq!(fits(format, &addr), good.contains(&addr), "{format} {addr}");
            }
        }
    }

    #[test]
    fn a_peer_goes_in_is_found_and_goes() {
        let fabric = crate::Fabric::builder()
            .provider("sockets")
            .node("127.0.0.1")
            .open();
        let domain = match fabric.and_then(|fabric| fabric.open_domain()) {
            Ok(domain) => domain,
            Err(error) => return println!("SKIPPED: {error}"),
        };
        let av = Av::open(&domain).unwrap();
        let [one, two, text] = ["127.0.0.1:4001", "127.0.0.1:4002", "fi_shm://1:0:0"]
            .map(|text| text.parse::<PeerAddr>().unwrap());
        let (a, b) = (av.insert(&one).unwrap(), av.insert(&two).unwrap());
        assert_ne!(a, b);
        assert_eq!((av.lookup(a), av.lookup(b)), (Some(one), Some(two)));
        av.remove(a);
        assert_eq!(av.lookup(b), Some(two));
        let error = av.insert(&text).unwrap_err().to_string();
        assert!(error.contains("fi_shm://1:0:0"), "{error}");
    }
}
