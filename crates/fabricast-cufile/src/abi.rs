//! The C ABI of cuFile: structs and function types, written by hand and equal in all versions from
//! 1.11 to 1.20.
//!
//! Statistics structs are not here: they grow from version to version, and are read by offset
//! (`stats.rs`).

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};
use std::mem::{offset_of, size_of};

/// `CUfileHandle_t`.
pub(crate) type RawHandle = *mut c_void;
/// `CUfileBatchHandle_t`.
pub(crate) type RawBatch = *mut c_void;
/// `CUstream`: null is the default stream.
pub(crate) type RawStream = *mut c_void;

/// `CUfileError_t`, returned by value.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) err: i32,
    pub(crate) cu_err: i32,
}

/// `CU_FILE_HANDLE_TYPE_OPAQUE_FD`.
pub(crate) const HANDLE_TYPE_FD: c_int = 1;
/// `CU_FILE_HANDLE_TYPE_USERSPACE_FS`.
pub(crate) const HANDLE_TYPE_USERSPACE_FS: c_int = 3;

/// What `CUfileDescr_t` describes: a descriptor or a pointer.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union FileOrPointer {
    pub(crate) fd: c_int,
    pub(crate) handle: *mut c_void,
}

/// `CUfileDescr_t`. All of it is zero before it is filled in.
#[repr(C)]
pub(crate) struct Descr {
    pub(crate) kind: c_int,
    pub(crate) handle: FileOrPointer,
    pub(crate) fs_ops: *const FsOps,
}

/// `cufileRDMAInfo_t`.
#[repr(C)]
pub(crate) struct RawRdmaInfo {
    pub(crate) version: c_int,
    pub(crate) desc_len: c_int,
    pub(crate) desc_str: *const c_char,
}

/// `CUfileFSOps_t`: what a file system of the application's own does. A null pointer is "not
/// given".
#[repr(C)]
pub(crate) struct FsOps {
    pub(crate) fs_type: Option<unsafe extern "C" fn(*const c_void) -> *const c_char>,
    pub(crate) rdma_device_list:
        Option<unsafe extern "C" fn(*const c_void, *mut *mut libc::sockaddr) -> c_int>,
    pub(crate) rdma_device_priority: Option<
        unsafe extern "C" fn(
            *const c_void,
            *mut c_char,
            usize,
            libc::loff_t,
            *const libc::sockaddr,
        ) -> c_int,
    >,
    pub(crate) read: Option<
        unsafe extern "C" fn(
            *const c_void,
            *mut c_char,
            usize,
            libc::loff_t,
            *const RawRdmaInfo,
        ) -> isize,
    >,
    pub(crate) write: Option<
        unsafe extern "C" fn(
            *const c_void,
            *const c_char,
            usize,
            libc::loff_t,
            *const RawRdmaInfo,
        ) -> isize,
    >,
}

/// The part of `CUfileDrvProps_t` that nvidia-fs answers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NvfsProps {
    pub(crate) major_version: c_uint,
    pub(crate) minor_version: c_uint,
    pub(crate) poll_thresh_size: usize,
    pub(crate) max_direct_io_size: usize,
    pub(crate) dstatusflags: c_uint,
    pub(crate) dcontrolflags: c_uint,
}

/// `CUfileDrvProps_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DrvProps {
    pub(crate) nvfs: NvfsProps,
    pub(crate) fflags: c_uint,
    pub(crate) max_device_cache_size: c_uint,
    pub(crate) per_buffer_cache_size: c_uint,
    pub(crate) max_device_pinned_mem_size: c_uint,
    pub(crate) max_batch_io_size: c_uint,
    pub(crate) max_batch_io_timeout_msecs: c_uint,
}

/// `CUFILE_BATCH`, the only mode of [`IoParams`].
pub(crate) const BATCH_MODE: c_int = 1;

/// `CUfileIOParams_t`: one entry of a batch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct IoParams {
    pub(crate) mode: c_int,
    pub(crate) base: *mut c_void,
    pub(crate) file_offset: i64,
    pub(crate) buffer_offset: i64,
    pub(crate) size: usize,
    pub(crate) handle: RawHandle,
    pub(crate) opcode: c_int,
    pub(crate) cookie: *mut c_void,
}

/// `CUfileIOEvents_t`: what became of one entry of a batch. `ret` is a signed number.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct IoEvents {
    pub(crate) cookie: *mut c_void,
    pub(crate) status: c_int,
    pub(crate) ret: usize,
}

/// `CUfileIOVec_t`, from 1.19 on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawIoVec {
    pub(crate) base: *mut c_void,
    pub(crate) len: usize,
}

const _: () = {
    assert!(size_of::<Answer>() == 8 && offset_of!(Answer, cu_err) == 4);
    assert!(size_of::<Descr>() == 24 && size_of::<FileOrPointer>() == 8);
    assert!(offset_of!(Descr, handle) == 8 && offset_of!(Descr, fs_ops) == 16);
    assert!(size_of::<RawRdmaInfo>() == 16 && offset_of!(RawRdmaInfo, desc_str) == 8);
    assert!(size_of::<FsOps>() == 40 && offset_of!(FsOps, read) == 24);
    assert!(size_of::<NvfsProps>() == 32 && offset_of!(NvfsProps, max_direct_io_size) == 16);
    assert!(size_of::<DrvProps>() == 56 && offset_of!(DrvProps, fflags) == 32);
    assert!(offset_of!(DrvProps, max_device_pinned_mem_size) == 44);
    assert!(offset_of!(DrvProps, max_batch_io_size) == 48);
    assert!(offset_of!(DrvProps, max_batch_io_timeout_msecs) == 52);
    assert!(size_of::<IoParams>() == 64 && offset_of!(IoParams, base) == 8);
    assert!(offset_of!(IoParams, file_offset) == 16 && offset_of!(IoParams, buffer_offset) == 24);
    assert!(offset_of!(IoParams, size) == 32 && offset_of!(IoParams, handle) == 40);
    assert!(offset_of!(IoParams, opcode) == 48 && offset_of!(IoParams, cookie) == 56);
    assert!(size_of::<IoEvents>() == 24 && offset_of!(IoEvents, status) == 8);
    assert!(offset_of!(IoEvents, ret) == 16);
    assert!(size_of::<RawIoVec>() == 16 && offset_of!(RawIoVec, len) == 8);
};

/// A function without arguments.
pub(crate) type Plain = unsafe extern "C" fn() -> Answer;
/// `cuFileUseCount`.
pub(crate) type UseCount = unsafe extern "C" fn() -> c_long;
/// Answers one number: `cuFileGetVersion`, `cuFileGetStatsLevel`.
pub(crate) type GetInt = unsafe extern "C" fn(*mut c_int) -> Answer;
/// `cuFileSetStatsLevel`.
pub(crate) type SetInt = unsafe extern "C" fn(c_int) -> Answer;
/// `cuFileHandleRegister`.
pub(crate) type HandleRegister = unsafe extern "C" fn(*mut RawHandle, *mut Descr) -> Answer;
/// `cuFileHandleDeregister`, which answers nothing.
pub(crate) type HandleDeregister = unsafe extern "C" fn(RawHandle);
/// `cuFileBufRegister`.
pub(crate) type BufRegister = unsafe extern "C" fn(*const c_void, usize, c_int) -> Answer;
/// `cuFileBufDeregister`.
pub(crate) type BufDeregister = unsafe extern "C" fn(*const c_void) -> Answer;
/// `cuFileRead`.
pub(crate) type Read = unsafe extern "C" fn(RawHandle, *mut c_void, usize, i64, i64) -> isize;
/// `cuFileWrite`.
pub(crate) type Write = unsafe extern "C" fn(RawHandle, *const c_void, usize, i64, i64) -> isize;
/// `cuFileReadv`, `cuFileWritev`.
pub(crate) type Vectored =
    unsafe extern "C" fn(RawHandle, *const RawIoVec, usize, i64, c_uint) -> isize;
/// `cuFileReadAsync`, `cuFileWriteAsync`.
pub(crate) type Async = unsafe extern "C" fn(
    RawHandle,
    *mut c_void,
    *mut usize,
    *mut i64,
    *mut i64,
    *mut isize,
    RawStream,
) -> Answer;
/// `cuFileStreamRegister`.
pub(crate) type StreamRegister = unsafe extern "C" fn(RawStream, c_uint) -> Answer;
/// `cuFileStreamDeregister`.
pub(crate) type StreamDeregister = unsafe extern "C" fn(RawStream) -> Answer;
/// `cuFileBatchIOSetUp`.
pub(crate) type BatchSetUp = unsafe extern "C" fn(*mut RawBatch, c_uint) -> Answer;
/// `cuFileBatchIOSubmit`.
pub(crate) type BatchSubmit =
    unsafe extern "C" fn(RawBatch, c_uint, *mut IoParams, c_uint) -> Answer;
/// `cuFileBatchIOGetStatus`.
pub(crate) type BatchGetStatus = unsafe extern "C" fn(
    RawBatch,
    c_uint,
    *mut c_uint,
    *mut IoEvents,
    *mut libc::timespec,
) -> Answer;
/// `cuFileBatchIOCancel`.
pub(crate) type BatchCancel = unsafe extern "C" fn(RawBatch) -> Answer;
/// `cuFileBatchIODestroy`, which answers nothing.
pub(crate) type BatchDestroy = unsafe extern "C" fn(RawBatch);
/// `cuFileDriverGetProperties`.
pub(crate) type GetProperties = unsafe extern "C" fn(*mut DrvProps) -> Answer;
/// `cuFileDriverSetPollMode`.
pub(crate) type SetPollMode = unsafe extern "C" fn(bool, usize) -> Answer;
/// `cuFileDriverSetMaxDirectIOSize` and its two sisters.
pub(crate) type SetSize = unsafe extern "C" fn(usize) -> Answer;
/// `cuFileGetParameterSizeT`.
pub(crate) type GetParameterSize = unsafe extern "C" fn(c_int, *mut usize) -> Answer;
/// `cuFileSetParameterSizeT`.
pub(crate) type SetParameterSize = unsafe extern "C" fn(c_int, usize) -> Answer;
/// `cuFileGetParameterBool`.
pub(crate) type GetParameterBool = unsafe extern "C" fn(c_int, *mut bool) -> Answer;
/// `cuFileSetParameterBool`.
pub(crate) type SetParameterBool = unsafe extern "C" fn(c_int, bool) -> Answer;
/// `cuFileGetParameterString`.
pub(crate) type GetParameterString = unsafe extern "C" fn(c_int, *mut c_char, c_int) -> Answer;
/// `cuFileSetParameterString`.
pub(crate) type SetParameterString = unsafe extern "C" fn(c_int, *const c_char) -> Answer;
/// `cuFileGetParameterMinMaxValue`.
pub(crate) type GetParameterLimits = unsafe extern "C" fn(c_int, *mut usize, *mut usize) -> Answer;
/// `cuFileGetParameterPosixPoolSlabArray` and its sister for GPU memory.
pub(crate) type GetSlabs = unsafe extern "C" fn(*mut usize, *mut usize, c_int) -> Answer;
/// `cuFileSetParameterPosixPoolSlabArray` and its sister for GPU memory.
pub(crate) type SetSlabs = unsafe extern "C" fn(*const usize, *const usize, c_int) -> Answer;
/// `cuFileGetStatsL1`, `L2`, `L3`: into memory of more than any version writes.
pub(crate) type GetStats = unsafe extern "C" fn(*mut c_void) -> Answer;
/// `cuFileGetBARSizeInKB`.
pub(crate) type GetBarSize = unsafe extern "C" fn(c_int, *mut usize) -> Answer;
/// `cuFileExportPCIeTopology`.
pub(crate) type ExportTopology = unsafe extern "C" fn(*const c_char) -> Answer;
/// `cuFileDriverGetP2PFlags`.
pub(crate) type GetP2pFlags = unsafe extern "C" fn(c_int, *mut c_int) -> Answer;
/// `cuFileDriverSetP2PFlags`.
pub(crate) type SetP2pFlags = unsafe extern "C" fn(c_int, c_int) -> Answer;
