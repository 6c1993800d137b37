//! `Info`: one answer of `fi_getinfo.3`, owned, and the hints that ask for it.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;
use std::net::SocketAddr;
use std::ptr::{self, NonNull};

use libfabric_sys as sys;

use crate::Error;
use crate::fabric::PeerAddr;
use crate::fabric::address::NAME_MAX;
use crate::fabric::provider_bytes;

/// The registration modes that we implement; a provider that needs another is not offered to us.
pub(crate) const MR_MODES: i32 = sys::FI_MR_LOCAL
    | sys::FI_MR_VIRT_ADDR
    | sys::FI_MR_ALLOCATED
    | sys::FI_MR_PROV_KEY
    | sys::FI_MR_ENDPOINT;

/// One fabric interface, as `fi_getinfo` describes it. A single entry: `next` is null.
pub(crate) struct Info {
    raw: NonNull<sys::fi_info>,
    library: &'static sys::Library,
}

// SAFETY: plain memory of the library, which no thread but the owner of this value touches.
unsafe impl Send for Info {}
// SAFETY: `&Info` only reads it.
unsafe impl Sync for Info {}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: `raw` came from this library and is freed nowhere else.
        unsafe { self.library.fi_freeinfo(self.raw.as_ptr()) };
    }
}

impl Info {
    /// Empty hints.
    pub(crate) fn hints(library: &'static sys::Library) -> Result<Self, Error> {
        Self::from_raw(library, library.allocinfo())
            .ok_or_else(|| Error::fabric("fi_dupinfo", libc::ENOMEM))
    }

    /// Takes ownership of an info that the library made, if there is one.
    pub(crate) fn from_raw(library: &'static sys::Library, raw: *mut sys::fi_info) -> Option<Self> {
        NonNull::new(raw).map(|raw| Self { raw, library })
    }

    /// A copy.
    pub(crate) fn duplicate(&self) -> Result<Self, Error> {
        // SAFETY: `raw` is a valid info of this library.
        let copy = unsafe { self.library.fi_dupinfo(self.raw.as_ptr()) };
        Self::from_raw(self.library, copy).ok_or_else(|| Error::fabric("fi_dupinfo", libc::ENOMEM))
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::fi_info {
        self.raw.as_ptr()
    }

    pub(crate) fn library(&self) -> &'static sys::Library {
        self.library
    }

    fn head(&self) -> &sys::fi_info {
        // SAFETY: the struct has the same layout in every version that we accept (checked by the
        // ABI test).
        unsafe { self.raw.as_ref() }
    }

    pub(crate) fn head_mut(&mut self) -> &mut sys::fi_info {
        // SAFETY: as `head`, and `&mut self` makes it the only view.
        unsafe { self.raw.as_mut() }
    }

    pub(crate) fn caps(&self) -> u64 {
        self.head().caps
    }

    pub(crate) fn mode(&self) -> u64 {
        self.head().mode
    }

    /// The transmit attributes, copied.
    pub(crate) fn tx(&self) -> sys::fi_tx_attr {
        // SAFETY: `fi_getinfo` and `fi_dupinfo` always allocate it; its layout has not grown since
        // 1.17.
        unsafe { *self.head().tx_attr }
    }

    /// The receive attributes, copied.
    pub(crate) fn rx(&self) -> sys::fi_rx_attr {
        // SAFETY: `fi_getinfo` and `fi_dupinfo` always allocate it; its layout has not grown since
        // 1.17.
        unsafe { *self.head().rx_attr }
    }

    /// The domain attributes, copied as far as this library has them.
    pub(crate) fn domain(&self) -> sys::fi_domain_attr {
        // SAFETY: `fi_getinfo` and `fi_dupinfo` always allocate it, as long as this library's
        // version says.
        unsafe { sys::fi_domain_attr::read(self.head().domain_attr, self.library.version()) }
    }

    /// The protocol and the longest message.
    pub(crate) fn protocol(&self) -> u32 {
        // SAFETY: `fi_getinfo` and `fi_dupinfo` always allocate it; the field is at the same place
        // in every version.
        unsafe { (*self.head().ep_attr).protocol }
    }

    /// What its addresses look like, `FI_SOCKADDR_IN` and the like.
    pub(crate) fn addr_format(&self) -> u32 {
        self.head().addr_format
    }

    pub(crate) fn max_message(&self) -> u64 {
        // SAFETY: `fi_getinfo` and `fi_dupinfo` always allocate it; the field is at the same place
        // in every version.
        unsafe { (*self.head().ep_attr).max_msg_size as u64 }
    }

    pub(crate) fn fabric_attr(&self) -> *mut sys::fi_fabric_attr {
        self.head().fabric_attr
    }

    pub(crate) fn provider_version(&self) -> u32 {
        // SAFETY: `fi_getinfo` and `fi_dupinfo` always allocate it; its layout has not grown since
        // 1.17.
        unsafe { (*self.head().fabric_attr).prov_version }
    }

    pub(crate) fn provider_name(&self) -> String {
        // SAFETY: `fi_getinfo` and `fi_dupinfo` always allocate it; its layout has not grown since
        // 1.17.
        text(unsafe { (*self.head().fabric_attr).prov_name })
    }

    pub(crate) fn domain_name(&self) -> String {
        // SAFETY: `fi_getinfo` and `fi_dupinfo` always allocate it; the field is at the same place
        // in every version.
        text(unsafe { (*self.head().domain_attr).name })
    }

    /// The local address, if it is an IP address.
    pub(crate) fn source(&self) -> Option<PeerAddr> {
        let head = self.head();
        // SAFETY: `src_addr` points to `src_addrlen` bytes, or is null.
        unsafe { read_address(head.src_addr.cast(), head.src_addrlen) }
    }

    /// The peer's address, if it is an IP address.
    pub(crate) fn destination(&self) -> Option<PeerAddr> {
        let head = self.head();
        // SAFETY: `dest_addr` points to `dest_addrlen` bytes, or is null.
        unsafe { read_address(head.dest_addr.cast(), head.dest_addrlen) }
    }

    /// The connection request that the info came with, once: whoever takes it must accept it or
    /// close it.
    pub(crate) fn handle(&self) -> *mut sys::fid {
        self.head().handle
    }

    /// Sets what a hint asks for. All of them write to attributes that `fi_dupinfo(NULL)`
    /// allocated.
    pub(crate) fn set_provider(&mut self, name: &str) -> Result<(), Error> {
        let attr = self.head().fabric_attr;
        let name = duplicate_text("provider", name)?;
        // SAFETY: allocated by the library, and freed by it with the hints (`strdup`, as it
        // expects).
        let before = unsafe { std::mem::replace(&mut (*attr).prov_name, name) };
        // SAFETY: null, or an earlier text of `strdup`'s, which the hints hold no more.
        unsafe { libc::free(before.cast()) };
        Ok(())
    }

    pub(crate) fn set_domain_name(&mut self, name: &str) -> Result<(), Error> {
        let attr = self.head().domain_attr;
        let name = duplicate_text("interface", name)?;
        // SAFETY: allocated by the library, and freed by it with the hints (`strdup`, as it
        // expects).
        let before = unsafe { std::mem::replace(&mut (*attr).name, name) };
        // SAFETY: null, or an earlier text of `strdup`'s, which the hints hold no more.
        unsafe { libc::free(before.cast()) };
        Ok(())
    }

    pub(crate) fn set_endpoint_type(&mut self, kind: sys::fi_ep_type) {
        let attr = self.head().ep_attr;
        // SAFETY: allocated by the library; the field is at the same place in every version.
        unsafe { (*attr).type_ = kind };
    }

    pub(crate) fn set_mr_mode(&mut self, mode: i32) {
        let attr = self.head().domain_attr;
        // SAFETY: allocated by the library; the field is at the same place in every version.
        unsafe { (*attr).mr_mode = mode };
    }

    pub(crate) fn set_threading(&mut self, threading: sys::fi_threading) {
        let attr = self.head().domain_attr;
        // SAFETY: allocated by the library; the field is at the same place in every version.
        unsafe { (*attr).threading = threading };
    }

    pub(crate) fn set_progress(&mut self, progress: sys::fi_progress) {
        let attr = self.head().domain_attr;
        // SAFETY: allocated by the library; the field is at the same place in every version.
        unsafe { (*attr).control_progress = progress };
        // SAFETY: allocated by the library; the field is at the same place in every version.
        unsafe { (*attr).data_progress = progress };
    }

    /// Messages to one peer arrive in the order in which they were sent.
    pub(crate) fn set_message_order(&mut self) {
        let (tx_attr, rx_attr) = (self.head().tx_attr, self.head().rx_attr);
        // SAFETY: allocated by the library; the field is at the same place in every version.
        unsafe { (*tx_attr).msg_order = sys::FI_ORDER_SAS };
        // SAFETY: allocated by the library; the field is at the same place in every version.
        unsafe { (*rx_attr).msg_order = sys::FI_ORDER_SAS };
    }

    /// Bytes of CQ data that each message can carry.
    pub(crate) fn set_cq_data_size(&mut self, bytes: usize) {
        let attr = self.head().domain_attr;
        // SAFETY: allocated by the library; the field is at the same place in every version.
        unsafe { (*attr).cq_data_size = bytes };
    }

    pub(crate) fn set_queue_sizes(&mut self, tx: usize, rx: usize) {
        let (tx_attr, rx_attr) = (self.head().tx_attr, self.head().rx_attr);
        // SAFETY: allocated by the library; the field is at the same place in every version.
        unsafe { (*tx_attr).size = tx };
        // SAFETY: allocated by the library; the field is at the same place in every version.
        unsafe { (*rx_attr).size = rx };
    }

    pub(crate) fn set_iov_limit(&mut self, limit: usize) {
        let attr = self.head().tx_attr;
        // SAFETY: allocated by the library; the field is at the same place in every version.
        unsafe { (*attr).iov_limit = limit };
    }

    pub(crate) fn set_traffic_class(&mut self, class: u32) {
        let attr = self.head().tx_attr;
        // SAFETY: allocated by the library; the field is at the same place in every version.
        unsafe { (*attr).tclass = class };
    }

    /// Names the peer that an endpoint of this info is to connect to.
    pub(crate) fn set_destination(&mut self, peer: SocketAddr) -> Result<(), Error> {
        let (copy, len) = duplicate_address(peer)?;
        let head = self.head_mut();
        let before = std::mem::replace(&mut head.dest_addr, copy);
        head.dest_addrlen = len;
        // SAFETY: the library allocated it with malloc(3), or it is ours, or null; nothing refers
        // to it any more.
        unsafe { libc::free(before) };
        Ok(())
    }

    /// As `fi_getinfo` does for an address of this machine.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn set_source(&mut self, addr: SocketAddr) -> Result<(), Error> {
        let (copy, len) = duplicate_address(addr)?;
        let head = self.head_mut();
        let before = std::mem::replace(&mut head.src_addr, copy);
        head.src_addrlen = len;
        // SAFETY: as above.
        unsafe { libc::free(before) };
        Ok(())
    }

    /// The local address of a provider whose addresses are texts.
    pub(crate) fn set_source_name(&mut self, name: &str) -> Result<(), Error> {
        let copy = duplicate_text("source", name)?;
        let head = self.head_mut();
        let before = std::mem::replace(&mut head.src_addr, copy.cast());
        head.src_addrlen = name.len() + 1;
        // SAFETY: the library allocated it with malloc(3), or it is ours, or null; nothing refers
        // to it any more.
        unsafe { libc::free(before) };
        Ok(())
    }

    /// The same without addresses and interface, to be asked for with others.
    pub(crate) fn without_addresses(mut self) -> Self {
        let head = self.head_mut();
        let (source, destination) = (head.src_addr, head.dest_addr);
        (head.src_addr, head.src_addrlen) = (ptr::null_mut(), 0);
        (head.dest_addr, head.dest_addrlen) = (ptr::null_mut(), 0);
        let attr = head.domain_attr;
        // SAFETY: allocated by the library; the field is at the same place in every version.
        let name = unsafe { std::mem::replace(&mut (*attr).name, ptr::null_mut()) };
        for owned in [source, destination, name.cast()] {
            // SAFETY: the library allocates these with malloc(3) and frees them with the info, from
            // which they were just taken; freeing null is nothing.
            unsafe { libc::free(owned) };
        }
        self
    }

    /// `fi_getinfo.3`: what matches, in the library's order. An empty answer is `-FI_ENODATA`
    /// there.
    pub(crate) fn find(
        library: &'static sys::Library,
        node: Option<&str>,
        service: Option<&str>,
        flags: u64,
        hints: Option<&Self>,
    ) -> Result<Vec<Self>, i32> {
        let node = node
            .map(CString::new)
            .transpose()
            .map_err(|_| libc::EINVAL)?;
        let service = service
            .map(CString::new)
            .transpose()
            .map_err(|_| libc::EINVAL)?;
        super::process_settings::close();
        let mut list = ptr::null_mut();
        // SAFETY: the texts and the hints outlive the call; the hints are of this library; `list`
        // is writable.
        let rc = unsafe {
            library.fi_getinfo(
                library.negotiated(),
                node.as_ref().map_or(ptr::null(), |text| text.as_ptr()),
                service.as_ref().map_or(ptr::null(), |text| text.as_ptr()),
                flags,
                hints.map_or(ptr::null(), |hints| hints.as_ptr().cast_const()),
                &raw mut list,
            )
        };
        if rc != 0 {
            return Err(rc.saturating_abs());
        }
        let Some(list) = Self::from_raw(library, list) else {
            return Err(libc::ENODATA);
        };
        Ok(list.split())
    }

    /// Copies each entry of a list on its own, and frees the list.
    fn split(self) -> Vec<Self> {
        let mut found = Vec::new();
        let mut entry = self.raw.as_ptr();
        while !entry.is_null() {
            // SAFETY: `entry` is an entry of the list that `self` keeps alive.
            let copy = unsafe { self.library.fi_dupinfo(entry) };
            found.extend(Self::from_raw(self.library, copy));
            // SAFETY: as above.
            entry = unsafe { (*entry).next };
        }
        found
    }
}

impl fmt::Debug for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Info")
            .field("provider", &self.provider_name())
            .field("domain", &self.domain_name())
            .field("source", &self.source())
            .finish_non_exhaustive()
    }
}

fn text(raw: *const c_char) -> String {
    if raw.is_null() {
        return String::new();
    }
    // SAFETY: the library's texts end with 0 and live as long as their info, which the caller
    // holds.
    unsafe { CStr::from_ptr(raw) }
        .to_string_lossy()
        .into_owned()
}

/// A text that the library may free.
fn duplicate_text(field: &'static str, value: &str) -> Result<*mut c_char, Error> {
    let value = CString::new(value).map_err(|_| Error::Config {
        field,
        value: value.to_owned(),
        reason: "holds a 0 byte",
    })?;
    // SAFETY: a text that ends with 0.
    let copy = unsafe { libc::strdup(value.as_ptr()) };
    if copy.is_null() {
        Err(Error::fabric("strdup", libc::ENOMEM))
    } else {
        Ok(copy)
    }
}

/// A `sockaddr` that the library may free, and its bytes.
fn duplicate_address(addr: SocketAddr) -> Result<(*mut c_void, usize), Error> {
    let address = provider_bytes::socket_bytes(addr);
    let len = address.len();
    // SAFETY: a call for memory; the library frees it with the info by free(3).
    let copy = unsafe { libc::malloc(len) };
    if copy.is_null() {
        return Err(Error::fabric("malloc", libc::ENOMEM));
    }
    // SAFETY: both have `len` bytes, and the copy was just made.
    unsafe {
        copy.cast::<u8>()
            .copy_from_nonoverlapping(address.as_ptr(), len);
    }
    Ok((copy, len))
}

/// Reads a `sockaddr`, if it is an IP address and whole.
///
/// # Safety
///
/// `addr` is null or points to `len` readable bytes.
pub(crate) unsafe fn read_address(addr: *const u8, len: usize) -> Option<PeerAddr> {
    if addr.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    provider_bytes::read_socket(unsafe { std::slice::from_raw_parts(addr, len) })
}

/// Reads an address in a provider's own format, if it is whole and not longer than we keep.
///
/// # Safety
///
/// `addr` is null or points to `len` readable bytes.
pub(crate) unsafe fn read_provider_address(
    format: u32,
    addr: *const u8,
    len: usize,
) -> Option<PeerAddr> {
    if addr.is_null() {
        return None;
    }
    match format {
        sys::FI_SOCKADDR | sys::FI_SOCKADDR_IN | sys::FI_SOCKADDR_IN6 | sys::FI_FORMAT_UNSPEC => {
            // SAFETY: the caller's promise.
            unsafe { read_address(addr, len) }
        }
        _ => {
            // SAFETY: the caller's promise.
            let bytes = unsafe { std::slice::from_raw_parts(addr, len) };
            match format {
                sys::FI_ADDR_STR => PeerAddr::from_text(bytes.split(|&byte| byte == 0).next()?),
                _ => PeerAddr::from_raw(bytes),
            }
        }
    }
}

/// An address as the provider wants it: a `sockaddr`, a text that ends with 0, or bytes.
pub(crate) struct ProviderAddress {
    storage: libc::sockaddr_storage,
}

impl ProviderAddress {
    /// `None` for "any", which is no address.
    pub(crate) fn new(addr: &PeerAddr) -> Option<Self> {
        addr.to_provider_bytes().map(|bytes| Self::of(&bytes))
    }

    /// Of an IP address.
    pub(crate) fn socket(addr: SocketAddr) -> Self {
        Self::of(&provider_bytes::socket_bytes(addr))
    }

    fn of(bytes: &[u8]) -> Self {
        // SAFETY: a struct of integers is valid when zeroed.
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        assert!(bytes.len() <= size_of_val(&storage));
        // SAFETY: the storage has room for so many bytes, as was just compared, and any bytes are
        // valid in it; what is borrowed overlaps nothing that is new.
        unsafe {
            (&raw mut storage)
                .cast::<u8>()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        Self { storage }
    }

    pub(crate) fn as_ptr(&self) -> *const libc::sockaddr_storage {
        &raw const self.storage
    }
}

const _: () = assert!(NAME_MAX < size_of::<libc::sockaddr_storage>());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_sockaddr() {
        for (text, len) in [
            ("127.0.0.1:7471", size_of::<libc::sockaddr_in>()),
            ("[fe80::1]:80", size_of::<libc::sockaddr_in6>()),
        ] {
            let addr: PeerAddr = text.parse().unwrap();
            let raw = ProviderAddress::new(&addr).unwrap();
            // SAFETY: `len` bytes of the storage were written.
            let back = unsafe { read_address(raw.as_ptr().cast(), len) };
            assert_eq!(back, Some(addr));
            // SAFETY: one byte less is readable, too.
            let short = unsafe { read_address(raw.as_ptr().cast(), len - 1) };
            assert_eq!(short, None, "a cut address is no address");
        }
    }

    #[test]
    fn an_info_names_the_peer_that_it_was_told_last() {
        let Ok(library) = sys::Library::load() else {
            return println!("SKIPPED: there is no libfabric");
        };
        let mut info = Info::hints(library).unwrap();
        for text in ["127.0.0.1:7471", "[fe80::1%3]:80", "10.0.2.15:1"] {
            let peer: PeerAddr = text.parse().unwrap();
            info.set_destination(peer.socket_addr().unwrap()).unwrap();
            assert_eq!(
                info.destination().unwrap().to_string(),
                text.replace("%3", "")
            );
            let copy = info.duplicate().unwrap();
            assert_eq!(copy.destination(), info.destination());
        }
    }

    #[test]
    fn addresses_of_other_kinds_survive_the_provider_form() {
        for (text, format, len) in [
            ("fi_shm://12:0:3", sys::FI_ADDR_STR, 16),
            ("hex:00fe07", sys::FI_ADDR_EFA, 3),
        ] {
            let addr: PeerAddr = text.parse().unwrap();
            let raw = ProviderAddress::new(&addr).unwrap();
            // SAFETY: `len` bytes of the storage were written.
            let back = unsafe { read_provider_address(format, raw.as_ptr().cast(), len) };
            assert_eq!(back, Some(addr));
        }
        assert!(ProviderAddress::new(&PeerAddr::any()).is_none());
    }
}
