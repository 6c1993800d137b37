//! The loaded libfabric: the functions that the shared object exports.

#![allow(unsafe_code)]

use std::env;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::fmt;
use std::mem;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Mutex, Once, OnceLock, PoisonError};

use libloading::os::unix::{Library as Object, RTLD_LOCAL, RTLD_NOW};

use crate::signals::keep_handlers;
use crate::types::{fi_fabric_attr, fi_info, fi_param, fi_type, fid, fid_fabric};
use crate::version::{NEWEST, OLDEST, version_text};

/// The environment variable that names a library to load instead of the system's: a path.
pub const FABRICAST_LIBFABRIC: &str = "FABRICAST_LIBFABRIC";

/// What is loaded where the variable is not set.
const SONAME: &str = "libfabric.so.1";

/// Most bytes of a text from `fi_tostr_r`.
const TEXT_LEN: usize = 16 * 1024;

/// The loaded library. There is one for the process, and it is never unloaded: providers leave
/// threads, exit handlers and thread-local destructors behind, and every object holds pointers into
/// it.
///
/// `dlsym` without a version gives each function's newest ABI. That fits, because `fi_info` structs
/// are only ever made by this same library, and `fi_getinfo` is told the API version.
pub struct Library {
    path: PathBuf,
    version: u32,
    functions: Functions,
    /// Providers are loaded, with all their constructors, by the first call that needs one.
    providers: Once,
}

/// The functions, by the names that the man pages know them under.
struct Functions {
    fi_version: unsafe extern "C" fn() -> u32,
    fi_getinfo: unsafe extern "C" fn(
        u32,
        *const c_char,
        *const c_char,
        u64,
        *const fi_info,
        *mut *mut fi_info,
    ) -> c_int,
    fi_freeinfo: unsafe extern "C" fn(*mut fi_info),
    fi_dupinfo: unsafe extern "C" fn(*const fi_info) -> *mut fi_info,
    fi_fabric:
        unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int,
    fi_open: unsafe extern "C" fn(
        u32,
        *const c_char,
        *mut c_void,
        usize,
        u64,
        *mut *mut fid,
        *mut c_void,
    ) -> c_int,
    fi_strerror: unsafe extern "C" fn(c_int) -> *const c_char,
    fi_tostr_r: unsafe extern "C" fn(*mut c_char, usize, *const c_void, fi_type) -> *mut c_char,
    fi_getparams: unsafe extern "C" fn(*mut *mut fi_param, *mut c_int) -> c_int,
    fi_freeparams: unsafe extern "C" fn(*mut fi_param),
}

/// Why no libfabric could be used.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The loader refused it: most often, it is not installed.
    #[error(
        "cannot load libfabric: tried {} ({reason}). Install it (Debian, Ubuntu: apt-get install \
         libfabric1; RHEL, Fedora: dnf install libfabric) or set {FABRICAST_LIBFABRIC} to the path \
         of a libfabric.so.1",
        tried.display()
    )]
    NotFound {
        /// The path or name that was tried.
        tried: PathBuf,
        /// What the loader said.
        reason: String,
    },
    /// It was loaded, but it lacks a function: it is no libfabric, or a damaged one.
    #[error(
        "{} is broken: no function {symbol} ({reason}). Is it a libfabric? Set \
         {FABRICAST_LIBFABRIC} to the path of a libfabric.so.1, or install one (Debian, Ubuntu: \
         libfabric1; RHEL, Fedora: libfabric)",
        path.display()
    )]
    Broken {
        /// The path or name that was loaded.
        path: PathBuf,
        /// The missing function.
        symbol: &'static str,
        /// What the loader said.
        reason: String,
    },
    /// It is older than [`OLDEST`].
    #[error(
        "{} is too old: it is libfabric {}, and at least {} is needed. Install a newer one or set \
         {FABRICAST_LIBFABRIC} to the path of its libfabric.so.1",
        path.display(),
        version_text(*version),
        version_text(OLDEST)
    )]
    TooOld {
        /// The path or name that was loaded.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
}

fabricast_process::debug_as_words!(LoadError);

impl Library {
    /// The library of this process: the one that the environment variable `FABRICAST_LIBFABRIC`
    /// names by its path, else the system's `libfabric.so.1`. Loaded by the first call; a failure
    /// is not kept, so a later call tries again.
    ///
    /// Loading runs code of that file. Who sets the environment of a process vouches for what it
    /// names, as with `LD_LIBRARY_PATH` and `LD_PRELOAD`: it is the choice of whoever starts the
    /// program, and no caller of this can make it. To name a file in code, there is
    /// [`open`](Self::open).
    ///
    /// # Errors
    ///
    /// See [`LoadError`].
    pub fn load() -> Result<&'static Self, LoadError> {
        static LOADED: OnceLock<&'static Library> = OnceLock::new();
        static LOADING: Mutex<()> = Mutex::new(());
        if let Some(&library) = LOADED.get() {
            return Ok(library);
        }
        let _one_at_a_time = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&library) = LOADED.get() {
            return Ok(library);
        }
        let named = env::var_os(FABRICAST_LIBFABRIC).filter(|path| !path.is_empty());
        let path = named.as_deref().unwrap_or_else(|| OsStr::new(SONAME));
        // SAFETY: what the system's loader finds under libfabric's name is trusted as a library
        // that is linked; what the variable names is vouched for by who set the environment (doc
        // comment).
        let library = unsafe { Self::open(path) }?;
        Ok(LOADED.get_or_init(|| library))
    }

    /// Loads the library of this path. For tests: each call leaks a table, and two libfabrics in
    /// one process may disturb each other.
    ///
    /// ```compile_fail,E0133
    /// let library = libfabric_sys::Library::open("/tmp/any-file.so");
    /// ```
    ///
    /// # Errors
    ///
    /// See [`LoadError`].
    ///
    /// # Safety
    ///
    /// * The constructors of this file, and of all that it needs, may run in this process now,
    ///   whatever other threads do.
    /// * Where it exports functions of libfabric's names, they are those of a libfabric: they have
    ///   its prototypes and do what its man pages say.
    pub unsafe fn open(path: impl AsRef<Path>) -> Result<&'static Self, LoadError> {
        let path = path.as_ref();
        // SAFETY: the caller vouches for the constructors. What libfabric's are known to break, the
        // signal handlers, is put back.
        let object = keep_handlers(|| unsafe { Object::open(Some(path), RTLD_NOW | RTLD_LOCAL) });
        let object = object.map_err(|error| LoadError::NotFound {
            tried: path.to_owned(),
            reason: error.to_string(),
        })?;
        let found = Functions::of_version(&object, path);
        // Never unloaded, not even when it is refused: its constructors may have left anything
        // behind.
        mem::forget(object);
        let (version, functions) = found?;
        Ok(Box::leak(Box::new(Self {
            path: path.to_owned(),
            version,
            functions,
            providers: Once::new(),
        })))
    }

    /// The path or name that the library was loaded by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The version of the library, `fi_version`(3). Only for reports: gate features on
    /// [`negotiated`](Self::negotiated).
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The version to ask `fi_getinfo` for, and on which every late feature depends: the older of
    /// the library's and [`NEWEST`].
    #[must_use]
    pub fn negotiated(&self) -> u32 {
        self.version.min(NEWEST)
    }

    /// Asks what there is, `fi_getinfo`(3). The answer is freed with
    /// [`fi_freeinfo`](Self::fi_freeinfo).
    ///
    /// The first call loads the providers, which may take a good part of a second.
    ///
    /// # Safety
    ///
    /// * `node` and `service` are null or texts; `info` is valid for a write.
    /// * `hints` is null or from [`allocinfo`](Self::allocinfo), `fi_dupinfo` or `fi_getinfo` of
    ///   this library.
    /// * `version` is at most [`negotiated`](Self::negotiated).
    pub unsafe fn fi_getinfo(
        &self,
        version: u32,
        node: *const c_char,
        service: *const c_char,
        flags: u64,
        hints: *const fi_info,
        info: *mut *mut fi_info,
    ) -> c_int {
        // SAFETY: the caller keeps the contract.
        let call =
            || unsafe { (self.functions.fi_getinfo)(version, node, service, flags, hints, info) };
        self.with_providers(call)
    }

    /// Frees a list of infos, `fi_freeinfo`(3).
    ///
    /// # Safety
    ///
    /// `info` is null or the head of a list from this library, and is not used again.
    pub unsafe fn fi_freeinfo(&self, info: *mut fi_info) {
        // SAFETY: the caller keeps the contract.
        unsafe { (self.functions.fi_freeinfo)(info) }
    }

    /// Copies one info, `fi_dupinfo`(3). Null when there is no memory.
    ///
    /// # Safety
    ///
    /// `info` is null or from this library.
    #[must_use]
    pub unsafe fn fi_dupinfo(&self, info: *const fi_info) -> *mut fi_info {
        // SAFETY: the caller keeps the contract.
        unsafe { (self.functions.fi_dupinfo)(info) }
    }

    /// A zeroed info with zeroed attributes, for hints: `fi_allocinfo` of fi_getinfo(3), which is
    /// `fi_dupinfo(NULL)`. Null when there is no memory. Freed with
    /// [`fi_freeinfo`](Self::fi_freeinfo).
    ///
    /// Hints have no other source: 2.x keeps data of its own beside them, and crashes with any that
    /// it did not allocate. Texts in them (`prov_name` and so on) are freed by the library, so they
    /// come from `strdup`(3).
    #[must_use]
    pub fn allocinfo(&self) -> *mut fi_info {
        // SAFETY: null asks for a zeroed info.
        unsafe { (self.functions.fi_dupinfo)(ptr::null()) }
    }

    /// Opens a fabric, `fi_fabric`(3).
    ///
    /// # Safety
    ///
    /// * `attr` is the `fabric_attr` of an info from this library; `fabric` is valid for a write.
    /// * `context` is only stored.
    pub unsafe fn fi_fabric(
        &self,
        attr: *mut fi_fabric_attr,
        fabric: *mut *mut fid_fabric,
        context: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller keeps the contract.
        unsafe { (self.functions.fi_fabric)(attr, fabric, context) }
    }

    /// Opens an object of the library itself by its name, such as `mr_cache`, fi_open(3).
    ///
    /// # Safety
    ///
    /// * `name` is a text; `attr` is null, or as long as `attr_len` and what that name takes; `fid`
    ///   is valid for a write.
    /// * `context` is only stored.
    #[allow(clippy::too_many_arguments)] // the signature of the C function
    pub unsafe fn fi_open(
        &self,
        version: u32,
        name: *const c_char,
        attr: *mut c_void,
        attr_len: usize,
        flags: u64,
        fid: *mut *mut fid,
        context: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller keeps the contract.
        unsafe { (self.functions.fi_open)(version, name, attr, attr_len, flags, fid, context) }
    }

    /// The text of an error code, positive or negated, `fi_strerror`(3).
    #[must_use]
    pub fn fi_strerror(&self, code: c_int) -> String {
        let code = code.checked_abs().unwrap_or(c_int::MAX);
        // SAFETY: takes any number.
        let text = unsafe { (self.functions.fi_strerror)(code) };
        if text.is_null() {
            return format!("error {code}");
        }
        // SAFETY: not null, so a text that stays valid until this thread asks again.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    }

    /// A text for a value, `fi_tostr`(3): `fi_tostr_r` with room for 16 KiB.
    ///
    /// # Safety
    ///
    /// `data` points to what `datatype` (one of `FI_TYPE_*`) says, from this library where it is a
    /// struct.
    #[must_use]
    pub unsafe fn fi_tostr(&self, data: *const c_void, datatype: fi_type) -> String {
        let mut text = vec![0_u8; TEXT_LEN];
        // SAFETY: the caller vouches for `data`; `text` has the length that is said, and the
        // library ends it with 0.
        let end = unsafe {
            (self.functions.fi_tostr_r)(text.as_mut_ptr().cast(), text.len(), data, datatype)
        };
        if end.is_null() {
            return String::new();
        }
        let text = CStr::from_bytes_until_nul(&text).unwrap_or(c"");
        text.to_string_lossy().into_owned()
    }

    /// The parameters that the library and its providers read from the environment, `fi_getparams`.
    /// Freed with [`fi_freeparams`](Self::fi_freeparams).
    ///
    /// # Safety
    ///
    /// Both are valid for a write.
    pub unsafe fn fi_getparams(&self, params: *mut *mut fi_param, count: *mut c_int) -> c_int {
        // SAFETY: the caller keeps the contract.
        self.with_providers(|| unsafe { (self.functions.fi_getparams)(params, count) })
    }

    /// Frees parameters.
    ///
    /// # Safety
    ///
    /// `params` is from [`fi_getparams`](Self::fi_getparams) of this library, and is not used
    /// again.
    pub unsafe fn fi_freeparams(&self, params: *mut fi_param) {
        // SAFETY: the caller keeps the contract.
        unsafe { (self.functions.fi_freeparams)(params) }
    }

    /// Makes a call that may be the first to load the providers. Their constructors, too, may
    /// replace signal handlers.
    fn with_providers(&self, call: impl Fn() -> c_int) -> c_int {
        let mut first = None;
        self.providers
            .call_once(|| first = Some(keep_handlers(&call)));
        first.unwrap_or_else(call)
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library")
            .field("path", &self.path)
            .field("version", &version_text(self.version))
            .field("negotiated", &version_text(self.negotiated()))
            .finish_non_exhaustive()
    }
}

impl Functions {
    /// The version of a library, and its functions. An old one lacks some of them, and its age is
    /// the reason that is told.
    fn of_version(object: &Object, path: &Path) -> Result<(u32, Self), LoadError> {
        let found = Self::find(object, path);
        let fi_version = match &found {
            Ok(functions) => functions.fi_version,
            // SAFETY: the type is that of the function.
            Err(_) => unsafe { find(object, path, "fi_version") }?,
        };
        // SAFETY: takes nothing and returns a constant.
        let version = unsafe { fi_version() };
        if version < OLDEST {
            return Err(LoadError::TooOld {
                path: path.to_owned(),
                version,
            });
        }
        Ok((version, found?))
    }

    /// Looks every function up. Each field's type is that of the C prototype; the ABI test compares
    /// them.
    fn find(object: &Object, path: &Path) -> Result<Self, LoadError> {
        Ok(Self {
            // SAFETY: the type of the field is that of the function.
            fi_version: unsafe { find(object, path, "fi_version") }?,
            // SAFETY: the type of the field is that of the function.
            fi_getinfo: unsafe { find(object, path, "fi_getinfo") }?,
            // SAFETY: the type of the field is that of the function.
            fi_freeinfo: unsafe { find(object, path, "fi_freeinfo") }?,
            // SAFETY: the type of the field is that of the function.
            fi_dupinfo: unsafe { find(object, path, "fi_dupinfo") }?,
            // SAFETY: the type of the field is that of the function.
            fi_fabric: unsafe { find(object, path, "fi_fabric") }?,
            // SAFETY: the type of the field is that of the function.
            fi_open: unsafe { find(object, path, "fi_open") }?,
            // SAFETY: the type of the field is that of the function.
            fi_strerror: unsafe { find(object, path, "fi_strerror") }?,
            // SAFETY: the type of the field is that of the function.
            fi_tostr_r: unsafe { find(object, path, "fi_tostr_r") }?,
            // SAFETY: the type of the field is that of the function.
            fi_getparams: unsafe { find(object, path, "fi_getparams") }?,
            // SAFETY: the type of the field is that of the function.
            fi_freeparams: unsafe { find(object, path, "fi_freeparams") }?,
        })
    }
}

/// Looks one function up.
///
/// # Safety
///
/// `F` is the type of the function of that name.
unsafe fn find<F: Copy>(
    object: &Object,
    path: &Path,
    symbol: &'static str,
) -> Result<F, LoadError> {
    // SAFETY: the caller vouches for the type.
    match unsafe { object.get::<F>(symbol.as_bytes()) } {
        Ok(function) => Ok(*function),
        Err(error) => Err(LoadError::Broken {
            path: path.to_owned(),
            symbol,
            reason: error.to_string(),
        }),
    }
}

// Any thread may load the library, use it and report why it could not.
const _: () = {
    const fn shared<T: Send + Sync>(_: Option<&T>) {}
    shared::<Library>(None);
    shared::<LoadError>(None);
};
