//! The fake libcuda: built from its C source, loaded by children of the test, steered by its `fake_cuda_…` functions. With
//! `FABRICAST_TEST_GPU=real` the same tests run over the driver of the machine.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_long, c_void};
use std::time::Duration;

use fabricast::cuda::{Device, Stream};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::alone;
use crate::c_library::compiled;

const SOURCE: &str = include_str!("fake_cuda.c");
/// Marks a child, which does what its parent only starts.
const CHILD: &str = "FABRICAST_TEST_CUDA_CHILD";
/// `real`: the driver of this machine.
const WHICH: &str = "FABRICAST_TEST_GPU";
/// How long a child may take.
const LIMIT: Duration = Duration::from_secs(120);

/// What a test runs on.
pub(crate) struct Gpu {
    pub(crate) fake: Option<Fake>,
}

impl Gpu {
    pub(crate) fn is_fake(&self) -> bool {
        self.fake.is_some()
    }

    pub(crate) fn device(&self) -> Device {
        Device::new(0).expect("there is one")
    }

    pub(crate) fn stream(&self) -> Stream {
        Stream::new(self.device()).expect("a stream")
    }

    /// Nothing was done that a real driver would not forgive.
    #[track_caller]
    pub(crate) fn check(&self) {
        if let Some(fake) = &self.fake {
            let (faults, first) = fake.faults();
            assert_eq!(faults, 0, "{first}");
        }
    }
}

/// Runs the body in a process of its own, over the fake or over the machine's driver: the test calls this first, under its own name, and
/// its child comes back to the same place. What the body asserts fails the test.
pub(crate) fn on_gpu(test: &str, env: &[(&str, &str)], body: impl FnOnce(&Gpu)) {
    let real = std::env::var(WHICH).is_ok_and(|which| which == "real");
    if alone::is_child(CHILD, test) {
        let gpu = Gpu {
            fake: (!real).then(Fake::load),
        };
        body(&gpu);
        return gpu.check();
    }
    if real {
        if let Err(why) = Device::all() {
            return println!("SKIPPED: {why}");
        }
        return run(test, &[], OsStr::new(""));
    }
    match compiled("libcuda-endpoints.so", SOURCE, &[]) {
        Ok(library) => run(test, env, library.as_os_str()),
        Err(why) => println!("SKIPPED: no fake libcuda: {why}"),
    }
}

fn run(test: &str, env: &[(&str, &str)], library: &OsStr) {
    let mut command = alone::child(CHILD, test);
    if !library.is_empty() {
        command.env("FABRICAST_CUDA", library);
    }
    for (name, value) in env {
        command.env(name, value);
    }
    let (passed, output) = alone::finish(command, LIMIT);
    assert!(passed, "the child failed:\n{output}");
    for line in output.lines().filter(|line| line.starts_with("gpu: ")) {
        println!("{line}");
    }
}

/// The fake of this child, to steer and to ask.
pub(crate) struct Fake(Library);

/// What `fake_cuda_count` counts.
#[derive(Clone, Copy)]
pub(crate) enum Count {
    /// Copies with memory of the host that is not pinned.
    Pageable = 1,
    Streams = 2,
    Events = 3,
    Allocations = 4,
}

impl Fake {
    fn load() -> Self {
        let path = std::env::var_os("FABRICAST_CUDA").expect("set by the parent");
        // SAFETY: the library is our own, and does nothing when it is loaded.
        Self(unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.expect("loads"))
    }

    fn function<T: Copy>(&self, name: &str) -> T {
        // SAFETY: each caller names the function's type as it is in the C source.
        *unsafe { self.0.get::<T>(name.as_bytes()) }.expect("in the fake")
    }

    /// How long each copy takes besides.
    pub(crate) fn delay(&self, time: Duration) {
        let us = c_long::try_from(time.as_micros()).expect("short");
        // SAFETY: the type is that of the function.
        unsafe { self.function::<unsafe extern "C" fn(c_long)>("fake_cuda_delay_us")(us) }
    }

    /// The next call of that function answers this.
    pub(crate) fn fail(&self, function: &str, code: i32) {
        type Fail = unsafe extern "C" fn(*const c_char, c_int, c_int, c_int);
        let name = CString::new(function).expect("a name");
        // SAFETY: the type is that of the function, and the text lives until the call is over.
        unsafe { self.function::<Fail>("fake_cuda_fail")(name.as_ptr(), code, 0, 1) }
    }

    /// The stream stops here until `unblock`.
    pub(crate) fn block(&self, stream: &Stream) {
        type Block = unsafe extern "C" fn(*mut c_void);
        // SAFETY: the type is that of the function, and the stream is one of the fake's.
        unsafe { self.function::<Block>("fake_cuda_block")(stream.raw()) }
    }

    pub(crate) fn unblock(&self) {
        // SAFETY: the type is that of the function.
        unsafe { self.function::<unsafe extern "C" fn()>("fake_cuda_unblock")() }
    }

    pub(crate) fn count(&self, of: Count) -> i64 {
        // SAFETY: the type is that of the function.
        unsafe {
            self.function::<unsafe extern "C" fn(c_int) -> c_long>("fake_cuda_count")(of as _)
        }
    }

    fn faults(&self) -> (i64, String) {
        type Faults = unsafe extern "C" fn(*mut *const c_char) -> c_long;
        let mut first = std::ptr::null();
        // SAFETY: the type is that of the function, which writes one pointer.
        let count = unsafe { self.function::<Faults>("fake_cuda_faults")(&raw mut first) };
        // SAFETY: a text of the fake, which stays.
        let first = unsafe { CStr::from_ptr(first) };
        (count, first.to_string_lossy().into_owned())
    }
}
