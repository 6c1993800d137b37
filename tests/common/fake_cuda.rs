//! The fake CUDA driver (`fake_cuda.c`), and tests that run over it and, where there is a GPU, over
//! the real one.
//!
//! A driver is loaded once in a process and never again, so each test that needs one runs in a
//! child process. In the fake, nobody reaches a device's memory by its address, and work in streams
//! takes its time on a thread.
//!
//! * `FABRICAST_TEST_GPU=real`: [`on_a_gpu`] runs over the driver of the machine, and says
//!   `SKIPPED` where there is no device.
//! * `FABRICAST_TEST_FAKES`: a folder with the fake as `libfake_cuda.so`, for a machine without a C
//!   compiler.

#![allow(unsafe_code, dead_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use fabricast_cuda::{Device, Stream};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::alone;
use super::c_library::compiled;

const SOURCE: &str = include_str!("fake_cuda.c");
/// Marks a child, which does what its parent only starts.
const CHILD: &str = "FABRICAST_TEST_CUDA_CHILD";
/// How long a child may take.
const LIMIT: Duration = Duration::from_secs(120);

/// Whether the real driver is asked for.
pub(crate) fn wants_real() -> bool {
    std::env::var("FABRICAST_TEST_GPU").is_ok_and(|which| which == "real")
}

/// Runs the body over the driver of the machine where that is asked for, else over the fake; in a
/// process of its own: the test calls this first, under its own name, and its child comes back to
/// the same place. What the body asserts fails the test.
pub(crate) fn on_a_gpu(test: &str, env: &[(&str, &str)], body: impl FnOnce()) {
    if !wants_real() {
        return over_the_fake(test, env, body);
    }
    if is_child(test) {
        return match Device::all() {
            Ok(_) => body(),
            Err(why) => println!("SKIPPED: {why}"),
        };
    }
    run(test, child(test));
}

/// Whether there is a second device; says `SKIPPED` where there is none.
pub(crate) fn has_two_devices() -> bool {
    let count = Device::all().map_or(0, |all| all.len());
    if count < 2 {
        println!("SKIPPED: it takes two GPUs, and this machine has {count}");
    }
    count >= 2
}

/// Runs the body over the fake.
pub(crate) fn over_the_fake(test: &str, env: &[(&str, &str)], body: impl FnOnce()) {
    if is_child(test) {
        body();
        return Fake::load().assert_clean();
    }
    let fake = match library() {
        Ok(path) => path,
        Err(why) => return println!("SKIPPED: no fake CUDA driver: {why}"),
    };
    let mut command = child(test);
    command
        .env("FABRICAST_CUDA", fake)
        .env("FAKE_CUDA_THREADS", "1")
        .env("FAKE_CUDA_PROTECTED", "1")
        // A libcufile of this machine would open its own driver, which knows no memory of the fake.
        .env("FABRICAST_CUFILE", "/nowhere/libcufile.so.0");
    for (name, value) in env {
        command.env(name, value);
    }
    run(test, command);
}

/// Runs the body in a child with that environment and whatever driver it leads to.
pub(crate) fn in_child(test: &str, env: &[(&str, &str)], body: impl FnOnce()) {
    if is_child(test) {
        return body();
    }
    let mut command = child(test);
    command.envs(env.iter().copied());
    run(test, command);
}

pub(crate) fn is_child(test: &str) -> bool {
    alone::is_child(CHILD, test)
}

/// This program again, with one test.
pub(crate) fn child(test: &str) -> Command {
    alone::child(CHILD, test)
}

fn run(test: &str, command: Command) {
    let (passed, output) = alone::finish(command, LIMIT);
    assert!(passed, "the child of {test} failed:\n{output}");
    // The first line of a child has the test's name in front.
    for line in output.lines() {
        if let Some(at) = line.find("SKIPPED").or_else(|| line.find("| ")) {
            println!("{}", &line[at..]);
        }
    }
}

/// The fake: the prebuilt one, or made by `cc` once for each state of its source.
pub(crate) fn library() -> Result<PathBuf, String> {
    compiled("libfake_cuda.so", SOURCE, &[])
}

/// A folder where the loader finds the fake as `libcuda.so`, for `LD_LIBRARY_PATH`: cudarc loads it
/// by that name.
#[cfg(feature = "cudarc")]
pub(crate) fn folder_for_cudarc() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    if let Ok(fake) = library() {
        std::os::unix::fs::symlink(fake, folder.path().join("libcuda.so")).expect("linked");
    }
    folder
}

/// The fake of this child, to steer and to ask; or the functions of the real driver.
pub(crate) struct Fake {
    library: Library,
}

impl Fake {
    pub(crate) fn load() -> Self {
        let path = std::env::var_os("FABRICAST_CUDA").unwrap_or_else(|| "libcuda.so.1".into());
        // SAFETY: the library that this process uses already: the same path is the same object.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        Self {
            library: library.expect("loads"),
        }
    }

    /// Every copy and fill from now on begins so long after what is before it in its stream.
    /// Nothing happens over a real driver.
    pub(crate) fn delay(&self, delay: Duration) {
        if let Some(set) = self.get::<unsafe extern "C" fn(c_int)>("fake_cuda_delay") {
            // SAFETY: the type is that of the function.
            unsafe { set(c_int::try_from(delay.as_micros()).expect("short")) }
        }
    }

    /// Waiting for a stream answers that from now on; 0: no longer.
    pub(crate) fn fail_synchronize(&self, code: c_int) {
        if let Some(set) = self.get::<unsafe extern "C" fn(c_int)>("fake_cuda_fail_synchronize") {
            // SAFETY: the type is that of the function.
            unsafe { set(code) }
        }
    }

    /// The next call of that function of the driver answers this.
    pub(crate) fn fail(&self, function: &str, code: c_int) {
        self.fail_after(function, code, 0);
    }

    /// The same of the call behind so many others.
    pub(crate) fn fail_after(&self, function: &str, code: c_int, skip: c_int) {
        type Fail = unsafe extern "C" fn(*const c_char, c_int, c_int, c_int);
        let name = CString::new(function).expect("a name");
        let set = self.get::<Fail>("fake_cuda_fail").expect("in the fake");
        // SAFETY: the type is that of the function, and the text lives until the call is over.
        unsafe { set(name.as_ptr(), code, skip, 1) }
    }

    /// The stream stops here until `unblock`.
    pub(crate) fn block(&self, stream: &Stream) {
        type Block = unsafe extern "C" fn(*mut c_void);
        let block = self.get::<Block>("fake_cuda_block").expect("in the fake");
        // SAFETY: the type is that of the function, and the stream is one of the fake's.
        unsafe { block(stream.raw()) }
    }

    /// All streams go on.
    pub(crate) fn unblock(&self) {
        type Unblock = unsafe extern "C" fn();
        let unblock = self.get::<Unblock>("fake_cuda_unblock");
        // SAFETY: the type is that of the function.
        unsafe { unblock.expect("in the fake")() }
    }

    /// A number of the fake's; `None` over a real driver.
    pub(crate) fn number(&self, name: &str) -> Option<i32> {
        let get = self.get::<unsafe extern "C" fn() -> c_int>(name)?;
        // SAFETY: all that are asked for by name take nothing and answer an int.
        Some(unsafe { get() })
    }

    /// Nothing was done that must not be, and nothing is left.
    pub(crate) fn assert_clean(&self) {
        self.assert_innocent();
        for left in [
            "fake_cuda_device_live",
            "fake_cuda_registered_live",
            "fake_cuda_streams_live",
            "fake_cuda_events_live",
            "fake_cuda_contexts_pushed",
        ] {
            assert!(matches!(self.number(left), None | Some(0)), "{left}");
        }
    }

    /// Nothing was done that must not be.
    pub(crate) fn assert_innocent(&self) {
        if let Some(get) =
            self.get::<unsafe extern "C" fn() -> *const c_char>("fake_cuda_violation")
        {
            // SAFETY: the type is that of the function.
            let text = unsafe { get() };
            // SAFETY: a text of the fake's own.
            let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
            assert_eq!(text, "", "what the fake found wrong");
        }
    }

    /// A function by its name, of a type that the caller knows.
    pub(crate) fn get<F: Copy>(&self, name: &str) -> Option<F> {
        // SAFETY: whoever asks knows the type of the function.
        unsafe { self.library.get::<F>(name.as_bytes()) }
            .ok()
            .map(|function| *function)
    }
}
