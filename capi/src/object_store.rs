//! `CallerStore`: a store of the program's own, by a table of functions.

#![allow(unsafe_code)] // Functions of the program's are called here.

use std::ffi::{CString, c_char, c_void};
use std::fmt;
use std::sync::Arc;

use fabricast::object::{
    ListPage, ListQuery, ObjectEtag, ObjectInfo, ObjectName, ObjectStore, ObjectUpload,
    PutCondition, StoreError, StoredObject,
};

use crate::inside::inside;
use crate::object_info::fcast_object_info;
use crate::object_list::{Listing, fcast_object_list};
use crate::object_piece::{CallerObject, CallerUpload, fcast_object_piece};
use crate::object_remote::{FCAST_PUT_ABSENT, FCAST_PUT_ANY, FCAST_PUT_MATCHES};
use crate::pointer::{self, Sized0};
use crate::region::{KeepAlive, fcast_release_fn};
use crate::status::{
    FCAST_AGAIN, FCAST_BUSY, FCAST_DATA, FCAST_NO_RESOURCES, FCAST_NOT_FOUND, FCAST_OK,
    FCAST_REFUSED, FCAST_UNSUPPORTED, Failure, c_string, fcast_status, name_of,
};

/// A store of the program's own: what a service asks instead of a directory. Each function gets
/// `context` first, and answers a status:
///
/// FCAST_OK: it is done. FCAST_NOT_FOUND: there is no such object. FCAST_REFUSED: the condition of
/// a put does not hold, or the etag of a removal is another; without one, it is not allowed.
/// FCAST_UNSUPPORTED: the store does not do that. FCAST_NO_RESOURCES: no space is left.
/// FCAST_AGAIN, FCAST_BUSY: not now. FCAST_DATA: the object was changed while it was read. All
/// others: the store failed; the log says which function answered what, the client does not hear
/// it.
///
/// They are called by threads of the service, several at once, also for the same object, with
/// nothing locked; `close` and `abort` also by whatever thread answers a piece.
/// They may call this interface, but for fcast_object_service_address, _close and _release
/// (FCAST_BUSY), and must not throw. A service that ends waits for those that are at work until its
/// deadline; one that does not return by then goes on, and `release` is called when it has.
///
/// Texts that they get end with a zero and are good during the call. What they write is looked at
/// when they have answered FCAST_OK, and is checked: what can't be is a failure of the store.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_object_store_calls {
    /// sizeof(fcast_object_store_calls).
    pub size: usize,
    /// What the functions get first.
    pub context: *mut c_void,
    /// Called once, when the store is needed no more: nothing else is called afterwards. It is
    /// called where the service could not be started, too. May be NULL.
    pub release: fcast_release_fn,
    /// Says what there is under a name. May be NULL: then `open` and `close` are called for it.
    pub head: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            name: *const c_char,
            info: *mut fcast_object_info,
        ) -> fcast_status,
    >,
    /// Opens an object, and says what it is: what is read of it is of one version, whatever is put
    /// meanwhile. `*object` is what the reads of it get. Must not be NULL.
    pub open: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            name: *const c_char,
            info: *mut fcast_object_info,
            object: *mut *mut c_void,
        ) -> fcast_status,
    >,
    /// Begins to read `len` bytes of an object, from `at` on, to `data`; they lie within its size.
    /// It must not wait: FCAST_OK says that fcast_object_piece_done is called for the piece, before
    /// this returns or later, by whatever thread, and `data` is the store's until then. Else there
    /// is no piece. Several reads of an object are under way at once. Must not be NULL.
    pub read: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            object: *mut c_void,
            at: u64,
            data: *mut c_void,
            len: usize,
            piece: fcast_object_piece,
        ) -> fcast_status,
    >,
    /// An object that was opened is read no more: called once for each that was, when no piece of
    /// it is out. May be NULL.
    pub close: Option<unsafe extern "C" fn(context: *mut c_void, object: *mut c_void)>,
    /// Begins to put an object of `len` bytes, which nobody sees before `commit`. `condition`:
    /// FCAST_PUT_ANY or another, with the etag of FCAST_PUT_MATCHES, else NULL; it is judged by
    /// `commit`, and may be judged here, too. `*upload` is what the writes of it get. NULL, with
    /// `write` and `commit`: nothing can be put.
    pub begin: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            name: *const c_char,
            len: u64,
            condition: u32,
            etag: *const c_char,
            upload: *mut *mut c_void,
        ) -> fcast_status,
    >,
    /// Begins to write `len` bytes to byte `at` and what follows, which lie within the length that
    /// was said. As `read`: the bytes at `data` stay until the piece is answered. One call at a
    /// time for each upload, with several pieces under way.
    pub write: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            upload: *mut c_void,
            at: u64,
            data: *const c_void,
            len: usize,
            piece: fcast_object_piece,
        ) -> fcast_status,
    >,
    /// Puts an object in its place, all at once, if its condition holds. All bytes were written,
    /// each once; `crc64` is their CRC-64/NVME. `info` has what the library would say of it, with
    /// an etag that is made of the length and the checksum: it is left so, or is written over.
    /// Whatever is answered, the upload is over, and after a failure nothing has changed.
    pub commit: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            upload: *mut c_void,
            crc64: u64,
            info: *mut fcast_object_info,
        ) -> fcast_status,
    >,
    /// An upload is given up: called once for each that was begun and not committed, when no piece
    /// of it is out. May be NULL.
    pub abort: Option<unsafe extern "C" fn(context: *mut c_void, upload: *mut c_void)>,
    /// Calls fcast_object_list_add for the objects whose names begin with `prefix` and come behind
    /// `start_after`, in the order of the bytes of their names, until that answers
    /// FCAST_NO_RESOURCES: `limit` were taken, and there are more. NULL: nothing can be listed.
    pub list: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            prefix: *const c_char,
            start_after: *const c_char,
            limit: usize,
            into: fcast_object_list,
        ) -> fcast_status,
    >,
    /// Removes an object; where an etag is given, only the version that has it. Who reads it goes
    /// on. NULL: nothing can be removed.
    pub remove: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            name: *const c_char,
            etag: *const c_char,
        ) -> fcast_status,
    >,
    /// 1: no function ever waits, so that all are called on the threads that move bytes. 0: those
    /// that may wait, which are all but `read`, `write` and `close`, are called on threads of their
    /// own (`store_threads`).
    pub never_waits: u32,
    /// Must be 0.
    pub reserved: u32,
}

// SAFETY: C's layout, a `usize` first; 0 and null are values of all its fields.
unsafe impl Sized0 for fcast_object_store_calls {}

/// The table of a program, and what tells it that the table is needed no more.
pub(crate) struct StoreCaller {
    pub(crate) calls: fcast_object_store_calls,
    _release: KeepAlive,
}

// SAFETY: the pointer is not followed here, and the interface says that the functions are called on
// any thread, by several at once.
unsafe impl Send for StoreCaller {}
// SAFETY: as above.
unsafe impl Sync for StoreCaller {}

impl fmt::Debug for StoreCaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreCaller").finish_non_exhaustive()
    }
}

/// A store of the program's own.
#[derive(Debug)]
pub(crate) struct CallerStore {
    caller: Arc<StoreCaller>,
    /// Whether objects can be put and removed.
    changes: bool,
}

impl CallerStore {
    /// Takes the table; `release` is called in any case but that its size is wrong.
    ///
    /// # Safety
    ///
    /// Null, or a struct whose size field is right, and its functions may be called as it says.
    pub(crate) unsafe fn new(calls: *const fcast_object_store_calls) -> Result<Self, Failure> {
        if calls.is_null() {
            return Err(pointer::null("store"));
        }
        // SAFETY: the caller's promise.
        let calls: fcast_object_store_calls = unsafe { pointer::sized(calls, "store") }?;
        let release = KeepAlive {
            release: calls.release,
            context: calls.context,
        };
        check(&calls)?;
        let changes = true;
        Ok(Self {
            caller: Arc::new(StoreCaller {
                calls,
                _release: release,
            }),
            changes,
        })
    }

    /// The same store, of which nothing is changed.
    pub(crate) fn read_only(self) -> Self {
        let changes = false;
        Self { changes, ..self }
    }
}

fn check(calls: &fcast_object_store_calls) -> Result<(), Failure> {
    let needed = |is_there: bool, text: &'static str| match is_there {
        true => Ok(()),
        false => Err(Failure::invalid(text)),
    };
    needed(calls.open.is_some(), "store: open is null")?;
    needed(calls.read.is_some(), "store: read is null")?;
    let puts = calls.write.is_some() && calls.commit.is_some();
    let text = "store: begin is there, and write or commit is null";
    needed(calls.begin.is_none() || puts, text)?;
    needed(calls.reserved == 0, "store: reserved is not 0")
}

/// What the status of a function means, but for FCAST_OK.
#[cold]
pub(crate) fn store_error(function: &str, status: fcast_status) -> StoreError {
    match status {
        FCAST_NOT_FOUND => StoreError::NotFound,
        FCAST_REFUSED | FCAST_UNSUPPORTED => StoreError::Denied,
        FCAST_NO_RESOURCES => StoreError::NoSpace,
        FCAST_AGAIN | FCAST_BUSY => StoreError::Busy,
        FCAST_DATA => StoreError::Changed,
        status => {
            let name = name_of(status).to_string_lossy();
            StoreError::Failed(format!("its {function} answered {status} ({name})"))
        }
    }
}

/// What a function has written, checked.
fn info_of(function: &str, info: &fcast_object_info) -> Result<ObjectInfo, StoreError> {
    info.parse()
        .map_err(|text| StoreError::Failed(format!("its {function} said: {text}")))
}

impl StoreCaller {
    pub(crate) fn head(&self, name: &CString) -> Result<ObjectInfo, StoreError> {
        let Some(head) = self.calls.head else {
            let (info, object) = self.open(name)?;
            self.close(object);
            return Ok(info);
        };
        let mut info = fcast_object_info::blank();
        let context = self.calls.context;
        let status = inside(|| {
            // SAFETY: the program has promised that it may be called so; the name ends with a zero,
            // and the place is there during the call.
            unsafe { head(context, name.as_ptr(), &raw mut info) }
        });
        match status {
            FCAST_OK => info_of("head", &info),
            status => Err(store_error("head", status)),
        }
    }

    /// What it is, and what the store calls it, which is to be closed.
    fn open(&self, name: &CString) -> Result<(ObjectInfo, *mut c_void), StoreError> {
        let open = self.calls.open.ok_or(StoreError::Denied)?;
        let (mut info, mut object) = (fcast_object_info::blank(), std::ptr::null_mut());
        let context = self.calls.context;
        let status = inside(|| {
            // SAFETY: as in `head`, of both places.
            unsafe { open(context, name.as_ptr(), &raw mut info, &raw mut object) }
        });
        if status != FCAST_OK {
            return Err(store_error("open", status));
        }
        match info_of("open", &info) {
            Ok(info) => Ok((info, object)),
            Err(error) => {
                self.close(object);
                Err(error)
            }
        }
    }

    pub(crate) fn close(&self, object: *mut c_void) {
        if let Some(close) = self.calls.close {
            let context = self.calls.context;
            // SAFETY: `open` gave the object, which nobody uses any more; else as in `head`.
            inside(|| unsafe { close(context, object) });
        }
    }

    fn begin(
        &self,
        name: &CString,
        size: u64,
        condition: &PutCondition,
    ) -> Result<*mut c_void, fcast_status> {
        let begin = self.calls.begin.ok_or(FCAST_UNSUPPORTED)?;
        let (code, etag) = match condition {
            PutCondition::Any => (FCAST_PUT_ANY, None),
            PutCondition::Absent => (FCAST_PUT_ABSENT, None),
            PutCondition::Matches(etag) => (FCAST_PUT_MATCHES, Some(etag)),
        };
        let etag = etag.map(|etag| c_string(etag.as_str()));
        let etag = etag.as_ref().map_or(std::ptr::null(), |etag| etag.as_ptr());
        let mut upload = std::ptr::null_mut();
        let context = self.calls.context;
        let status = inside(|| {
            // SAFETY: as in `head`; the etag is null, or ends with a zero.
            unsafe { begin(context, name.as_ptr(), size, code, etag, &raw mut upload) }
        });
        match status {
            FCAST_OK => Ok(upload),
            status => Err(status),
        }
    }

    /// Puts an upload, which is over, in its place.
    pub(crate) fn commit(
        &self,
        upload: *mut c_void,
        size: u64,
        crc64: u64,
    ) -> Result<Result<ObjectInfo, StoreError>, fcast_status> {
        let commit = self.calls.commit.ok_or(FCAST_UNSUPPORTED)?;
        let mut info = fcast_object_info::of_content(size, crc64);
        let context = self.calls.context;
        let status = inside(|| {
            // SAFETY: `begin` gave the upload, which nobody uses any more; else as in `head`.
            unsafe { commit(context, upload, crc64, &raw mut info) }
        });
        match status {
            FCAST_OK => Ok(info_of("commit", &info)),
            status => Err(status),
        }
    }

    pub(crate) fn abort(&self, upload: *mut c_void) {
        if let Some(abort) = self.calls.abort {
            let context = self.calls.context;
            // SAFETY: as in `commit`.
            inside(|| unsafe { abort(context, upload) });
        }
    }

    /// Why a put or a removal was not done, whose condition is this one.
    #[cold]
    pub(crate) fn refused(
        &self,
        function: &str,
        status: fcast_status,
        name: &CString,
        condition: &PutCondition,
    ) -> StoreError {
        match (status, condition) {
            (FCAST_REFUSED, PutCondition::Absent) => StoreError::Exists,
            (FCAST_REFUSED, PutCondition::Matches(_)) => StoreError::EtagMismatch {
                found: self.head(name).ok().map(|info| info.etag),
            },
            _ => store_error(function, status),
        }
    }
}

impl ObjectStore for CallerStore {
    fn head(&self, name: &ObjectName) -> Result<ObjectInfo, StoreError> {
        self.caller.head(&c_string(name.as_str()))
    }

    fn open(&self, name: &ObjectName) -> Result<Arc<dyn StoredObject>, StoreError> {
        let (info, object) = self.caller.open(&c_string(name.as_str()))?;
        Ok(Arc::new(CallerObject::new(&self.caller, object, info)))
    }

    fn begin(
        &self,
        name: &ObjectName,
        size: u64,
        condition: &PutCondition,
    ) -> Result<Box<dyn ObjectUpload>, StoreError> {
        if !self.changes {
            return Err(StoreError::Denied);
        }
        let name = c_string(name.as_str());
        match self.caller.begin(&name, size, condition) {
            Ok(upload) => {
                let upload =
                    CallerUpload::new(&self.caller, upload, (name, size, condition.clone()));
                Ok(Box::new(upload))
            }
            Err(status) => Err(self.caller.refused("begin", status, &name, condition)),
        }
    }

    fn list(&self, query: &ListQuery) -> Result<ListPage, StoreError> {
        let list = self.caller.calls.list.ok_or(StoreError::Denied)?;
        let prefix = c_string(query.prefix.as_str());
        let start_after = c_string(query.start_after.as_str());
        let (context, limit) = (self.caller.calls.context, query.limit);
        Listing::run(query, |into| {
            let (prefix, start_after) = (prefix.as_ptr(), start_after.as_ptr());
            // SAFETY: as in `head`, of both texts.
            inside(|| unsafe { list(context, prefix, start_after, limit, into) })
        })
    }

    fn delete(&self, name: &ObjectName, etag: Option<&ObjectEtag>) -> Result<(), StoreError> {
        let remove = self.caller.calls.remove.filter(|_| self.changes);
        let remove = remove.ok_or(StoreError::Denied)?;
        let name = c_string(name.as_str());
        let text = etag.map(|etag| c_string(etag.as_str()));
        let text = text.as_ref().map_or(std::ptr::null(), |etag| etag.as_ptr());
        let context = self.caller.calls.context;
        // SAFETY: as in `head`; the etag is null, or ends with a zero.
        let status = inside(|| unsafe { remove(context, name.as_ptr(), text) });
        if status == FCAST_OK {
            return Ok(());
        }
        let condition = etag
            .cloned()
            .map_or(PutCondition::Any, PutCondition::Matches);
        Err(self.caller.refused("remove", status, &name, &condition))
    }

    fn may_block(&self) -> bool {
        self.caller.calls.never_waits == 0
    }
}
