//! Files of a file system of the application's own: cuFile calls back for their bytes,
//! `CUfileFSOps_t`.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ptr;
use std::slice;
use std::sync::Arc;

use super::abi::{FsOps, RawRdmaInfo};
use fabricast_process::contained;

/// A file of a file system of the application's own, `CUfileFSOps_t`. Called by threads of cuFile's
/// own, several at a time. A panic becomes the error EIO.
pub trait UserspaceFs: Send + Sync + 'static {
    /// The file system's type. `None`: cuFile finds out by fstat(2). Asked for once, at the
    /// registration.
    fn fs_type(&self) -> Option<CString> {
        None
    }

    /// Addresses of RDMA devices that may be used; none means any. Asked for once, at the
    /// registration.
    fn rdma_devices(&self) -> Vec<SocketAddrV4> {
        Vec::new()
    }

    /// How good a device is for this part of the file: the greater, the better; `None`: no matter.
    fn rdma_device_priority(&self, len: usize, offset: u64, device: SocketAddrV4) -> Option<u32> {
        let _ = (len, offset, device);
        None
    }

    /// Puts bytes of the file into the memory of the request, and says how many: fewer than asked
    /// only at the end of the file.
    ///
    /// # Errors
    ///
    /// Whose errno goes to who reads; EIO where there is none.
    fn read(&self, request: &FsRequest<'_>) -> io::Result<usize>;

    /// Takes bytes out of the memory of the request, and says how many.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read).
    fn write(&self, request: &FsRequest<'_>) -> io::Result<usize>;
}

/// One read or write that cuFile asks for.
#[derive(Debug)]
#[non_exhaustive]
pub struct FsRequest<'a> {
    /// Where the bytes go or come from. It is memory of the GPU or of the host: with
    /// [`rdma`](Self::rdma), it is what that describes, else of the host.
    pub memory: *mut c_void,
    /// How many.
    pub len: usize,
    /// Where in the file.
    pub offset: u64,
    /// How a remote side reaches the memory.
    pub rdma: Option<RdmaInfo<'a>>,
}

/// How a remote side reaches memory, `cufileRDMAInfo_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaInfo<'a> {
    /// The version of the description.
    pub version: i32,
    /// The description, as cuFile writes it, without a zero byte behind it.
    pub description: &'a [u8],
}

/// What cuFile is given: the functions, and what they work on. Pinned by its box until the file is
/// deregistered.
pub(super) struct Callbacks {
    ops: FsOps,
    fs: Arc<dyn UserspaceFs>,
    fs_type: Option<CString>,
    devices: Box<[libc::sockaddr]>,
}

impl Callbacks {
    pub(super) fn new(fs: Arc<dyn UserspaceFs>) -> Box<Self> {
        let fs_type = fs.fs_type();
        let devices: Box<[_]> = fs.rdma_devices().into_iter().map(to_c).collect();
        Box::new(Self {
            ops: FsOps {
                fs_type: fs_type.is_some().then_some(fs_type_of as _),
                rdma_device_list: (!devices.is_empty()).then_some(device_list as _),
                rdma_device_priority: Some(device_priority),
                read: Some(read),
                write: Some(write),
            },
            fs,
            fs_type,
            devices,
        })
    }

    /// What cuFile calls the file.
    pub(super) fn as_handle(&self) -> *mut c_void {
        ptr::from_ref(self).cast_mut().cast()
    }

    pub(super) fn ops(&self) -> *const FsOps {
        &raw const self.ops
    }
}

/// # Safety
///
/// `handle` is from [`Callbacks::as_handle`], and its file is registered.
unsafe fn callbacks<'a>(handle: *const c_void) -> &'a Callbacks {
    // SAFETY: the caller says so, and as long as the file is registered its callbacks are neither
    // moved nor freed.
    unsafe { &*handle.cast::<Callbacks>() }
}

unsafe extern "C" fn fs_type_of(handle: *const c_void) -> *const c_char {
    // SAFETY: cuFile calls with the handle that it was given, while the file is registered.
    let callbacks = unsafe { callbacks(handle) };
    let fs_type = callbacks.fs_type.as_deref();
    fs_type.map_or(ptr::null(), CStr::as_ptr)
}

unsafe extern "C" fn device_list(
    handle: *const c_void,
    addresses: *mut *mut libc::sockaddr,
) -> c_int {
    // SAFETY: as in `fs_type_of`.
    let callbacks = unsafe { callbacks(handle) };
    if addresses.is_null() {
        return -libc::EINVAL;
    }
    let list = callbacks.devices.as_ptr().cast_mut();
    // SAFETY: not null, so a pointer of cuFile's that is to be written.
    unsafe { addresses.write(list) };
    c_int::try_from(callbacks.devices.len()).unwrap_or(c_int::MAX)
}

unsafe extern "C" fn device_priority(
    handle: *const c_void,
    _memory: *mut c_char,
    len: usize,
    offset: libc::loff_t,
    address: *const libc::sockaddr,
) -> c_int {
    // SAFETY: as in `fs_type_of`.
    let callbacks = unsafe { callbacks(handle) };
    if address.is_null() {
        return -1;
    }
    // SAFETY: not null, so an address of cuFile's, of the size of one at least.
    let device = unsafe { from_c(&*address) };
    let asked = || {
        let offset = u64::try_from(offset).ok()?;
        callbacks.fs.rdma_device_priority(len, offset, device?)
    };
    let priority = contained(asked).ok().flatten();
    priority.map_or(-1, |it| c_int::try_from(it).unwrap_or(c_int::MAX))
}

unsafe extern "C" fn read(
    handle: *const c_void,
    memory: *mut c_char,
    len: usize,
    offset: libc::loff_t,
    rdma: *const RawRdmaInfo,
) -> isize {
    // SAFETY: as in `fs_type_of`; `rdma` is null or describes the memory, for as long as this call.
    unsafe {
        serve(handle, memory.cast(), len, offset, rdma, |fs, request| {
            fs.read(request)
        })
    }
}

unsafe extern "C" fn write(
    handle: *const c_void,
    memory: *const c_char,
    len: usize,
    offset: libc::loff_t,
    rdma: *const RawRdmaInfo,
) -> isize {
    let memory = memory.cast_mut().cast();
    // SAFETY: as in `read`.
    unsafe {
        serve(handle, memory, len, offset, rdma, |fs, request| {
            fs.write(request)
        })
    }
}

/// One call back. What panics or answers nonsense is EIO: nothing unwinds into C.
///
/// # Safety
///
/// `handle` as for [`callbacks`]; `rdma` is null or valid for the call, its description, too.
unsafe fn serve(
    handle: *const c_void,
    memory: *mut c_void,
    len: usize,
    offset: libc::loff_t,
    rdma: *const RawRdmaInfo,
    call: impl FnOnce(&dyn UserspaceFs, &FsRequest<'_>) -> io::Result<usize>,
) -> isize {
    // SAFETY: the caller vouches for the handle.
    let callbacks = unsafe { callbacks(handle) };
    // SAFETY: the caller vouches for it.
    let rdma = unsafe { rdma.as_ref() };
    let rdma = rdma.map(|raw| RdmaInfo {
        version: raw.version,
        // SAFETY: the caller vouches for the description.
        description: unsafe { description(raw) },
    });
    let Ok(offset) = u64::try_from(offset) else {
        return refuse(libc::EINVAL);
    };
    let request = FsRequest {
        memory,
        len,
        offset,
        rdma,
    };
    match contained(|| call(&*callbacks.fs, &request)) {
        Ok(Ok(done)) if done <= len && done <= isize::MAX as usize => done as isize,
        Ok(Err(error)) => refuse(error.raw_os_error().unwrap_or(libc::EIO)),
        Ok(Ok(_)) | Err(_) => refuse(libc::EIO),
    }
}

/// -1, and the errno that tells why: as read(2) does.
fn refuse(errno: c_int) -> isize {
    // SAFETY: the place where this thread keeps its errno is always there.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above; nobody else writes it.
    unsafe { place.write(errno) };
    -1
}

/// # Safety
///
/// The description is null, or as long as is said; it lives as long as `raw`.
unsafe fn description(raw: &RawRdmaInfo) -> &[u8] {
    let len = usize::try_from(raw.desc_len).unwrap_or(0);
    if raw.desc_str.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: not null, and the caller vouches for the length.
    let bytes = unsafe { slice::from_raw_parts(raw.desc_str.cast::<u8>(), len) };
    bytes.strip_suffix(&[0]).unwrap_or(bytes)
}

/// The bytes of an IPv4 address behind the family: port and address, both in network order.
fn to_c(address: SocketAddrV4) -> libc::sockaddr {
    let mut data = [0; 14];
    let port = address.port().to_be_bytes();
    let octets = address.ip().octets();
    for (byte, value) in data.iter_mut().zip(port.into_iter().chain(octets)) {
        *byte = value as c_char;
    }
    libc::sockaddr {
        sa_family: libc::AF_INET as libc::sa_family_t,
        sa_data: data,
    }
}

fn from_c(address: &libc::sockaddr) -> Option<SocketAddrV4> {
    if i32::from(address.sa_family) != libc::AF_INET {
        return None;
    }
    let byte = |at: usize| address.sa_data[at] as u8;
    let ip = Ipv4Addr::new(byte(2), byte(3), byte(4), byte(5));
    Some(SocketAddrV4::new(
        ip,
        u16::from_be_bytes([byte(0), byte(1)]),
    ))
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks")
            .field("fs_type", &self.fs_type)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake;

    impl UserspaceFs for Fake {
        fn fs_type(&self) -> Option<CString> {
            Some(c"ours".to_owned())
        }

        fn rdma_devices(&self) -> Vec<SocketAddrV4> {
            vec![device()]
        }

        fn rdma_device_priority(&self, _: usize, offset: u64, of: SocketAddrV4) -> Option<u32> {
            assert_eq!(of, device());
            assert!(offset != 13, "unlucky");
            Some(7)
        }

        fn read(&self, request: &FsRequest<'_>) -> io::Result<usize> {
            match request.offset {
                0 => Ok(request.len),
                1 => Ok(request.len + 1),
                2 => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
                3 => Err(io::Error::other("no errno")),
                4 => {
                    let rdma = request.rdma.expect("it was given");
                    assert_eq!((rdma.version, rdma.description), (1, &b"abc"[..]));
                    Ok(3)
                }
                _ => panic!("must not unwind into C"),
            }
        }

        fn write(&self, request: &FsRequest<'_>) -> io::Result<usize> {
            Ok(request.len / 2)
        }
    }

    fn device() -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::new(192, 168, 7, 9), 4420)
    }

    #[test]
    fn results_are_those_of_read() {
        let callbacks = Callbacks::new(Arc::new(Fake));
        let handle = callbacks.as_handle();
        let info = RawRdmaInfo {
            version: 1,
            desc_len: 4,
            desc_str: c"abc".as_ptr(),
        };
        let read_at = |offset| {
            // SAFETY: the callbacks live, and the memory is not touched.
            let done = unsafe { read(handle, ptr::null_mut(), 5, offset, &raw const info) };
            let errno = io::Error::last_os_error().raw_os_error().unwrap();
            if done < 0 { (done, errno) } else { (done, 0) }
        };
        let quiet = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let answers: Vec<_> = [0, 1, 2, 3, 4, 5, -1].into_iter().map(read_at).collect();
        std::panic::set_hook(quiet);
        assert_eq!(
            answers,
            [
                (5, 0),
                (-1, libc::EIO),
                (-1, libc::ENOSPC),
                (-1, libc::EIO),
                (3, 0),
                (-1, libc::EIO),
                (-1, libc::EINVAL),
            ]
        );
        // SAFETY: as above.
        let done = unsafe { write(handle, ptr::null(), 8, 0, ptr::null()) };
        assert_eq!(done, 4);
    }

    #[test]
    fn what_is_asked_at_registration() {
        let callbacks = Callbacks::new(Arc::new(Fake));
        let handle = callbacks.as_handle();
        // SAFETY: the callbacks live.
        let fs_type = unsafe { fs_type_of(handle) };
        // SAFETY: a text of the callbacks.
        assert_eq!(unsafe { CStr::from_ptr(fs_type) }, c"ours");
        let mut list = ptr::null_mut();
        // SAFETY: the callbacks live, and the pointer is ours.
        assert_eq!(unsafe { device_list(handle, &raw mut list) }, 1);
        // SAFETY: the list has one address.
        assert_eq!(from_c(unsafe { &*list }), Some(device()));
        // SAFETY: as above.
        let priority =
            |offset| unsafe { device_priority(handle, ptr::null_mut(), 1, offset, list) };
        assert_eq!((priority(0), priority(13)), (7, -1));
    }
}
