//! The fake libcufile and libcuda: built from their C sources, loaded by children of the test,
//! steered by their `fake_…` functions.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::alone;
use crate::c_library::compiled;

const CUFILE: &str = include_str!("fake_cufile.c");
const CUDA: &str = include_str!("../../../../tests/common/fake_cuda.c");
/// Marks a child, which does what its parent only starts.
const CHILD: &str = "FABRICAST_TEST_CUFILE_CHILD";
/// How long a child may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Which libcufile a child gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Build {
    /// Plays this version.
    Version(u32),
    /// Lacks cuFileRead.
    WithoutRead,
}

/// The version that has everything.
pub(crate) const NEWEST: Build = Build::Version(1200);

impl Build {
    fn name(self) -> String {
        match self {
            Self::Version(version) => format!("libcufile-{version}.so"),
            Self::WithoutRead => "libcufile-without-read.so".to_owned(),
        }
    }

    fn flags(self) -> Vec<String> {
        match self {
            Self::Version(version) => vec![format!("-DFAKE_VERSION={version}")],
            Self::WithoutRead => vec!["-DFAKE_WITHOUT_READ".to_owned()],
        }
    }
}

/// Runs the body in a process of its own with the fakes in place: the test calls this first, under
/// its own name, and its child comes back to the same place. What the body asserts fails the test.
pub(crate) fn in_child(test: &str, build: Build, env: &[(&str, &str)], body: impl FnOnce()) {
    if is_child(test) {
        return body();
    }
    let fakes = cufile(build).and_then(|cufile| Ok((cufile, cuda()?)));
    let (cufile, cuda) = match fakes {
        Ok(fakes) => fakes,
        Err(why) => return println!("SKIPPED: no fake libcufile: {why}"),
    };
    let dir = tempfile::tempdir().expect("a folder");
    let mut command = child(test, dir.path());
    command
        .env("FABRICAST_CUFILE", cufile)
        .env("FABRICAST_CUDA", cuda);
    for (name, value) in env {
        command.env(name, value);
    }
    let (passed, output) = finish(command);
    assert!(passed, "the child failed:\n{output}");
}

/// This program again, with one test, in a folder of its own.
pub(crate) fn child(test: &str, dir: &Path) -> Command {
    let mut command = alone::child(CHILD, test);
    command.env("TMPDIR", dir).current_dir(dir);
    for name in ["CUFILE_ENV_PATH_JSON", "CUFILE_FORCE_COMPAT_MODE"] {
        command.env_remove(name);
    }
    command
}

/// Whether this is the child of that test.
pub(crate) fn is_child(test: &str) -> bool {
    alone::is_child(CHILD, test)
}

/// Waits for a child, and ends it when it takes too long.
pub(crate) fn finish(command: Command) -> (bool, String) {
    alone::finish(command, LIMIT)
}

pub(crate) fn cufile(build: Build) -> Result<PathBuf, String> {
    compiled(&build.name(), CUFILE, &build.flags())
}

pub(crate) fn cuda() -> Result<PathBuf, String> {
    compiled("libcuda.so", CUDA, &[])
}

/// How batches of the fake go; all 0 is well.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BatchMode {
    pub(crate) hold: c_int,
    pub(crate) max_events: c_int,
    pub(crate) time_out: c_int,
    pub(crate) repeat: c_int,
    pub(crate) stray: c_int,
    pub(crate) status: c_int,
    pub(crate) ret: c_long,
}

/// The fakes of this child, to steer and to ask.
pub(crate) struct Fake {
    cufile: Library,
    cuda: Library,
}

impl Fake {
    pub(crate) fn load() -> Self {
        Self {
            cufile: load("FABRICAST_CUFILE"),
            cuda: load("FABRICAST_CUDA"),
        }
    }

    /// The next calls of that function answer that; for those that answer a number, `extra` is
    /// errno.
    pub(crate) fn fail(&self, function: &str, answer: i64, extra: i32) {
        self.fail_times(function, answer, extra, 0, 1);
    }

    pub(crate) fn fail_times(
        &self,
        function: &str,
        answer: i64,
        extra: i32,
        skip: i32,
        times: i32,
    ) {
        type Fail = unsafe extern "C" fn(*const c_char, c_long, c_int, c_int, c_int);
        let name = CString::new(function).expect("a name");
        // SAFETY: the type is that of the function, and the text lives until the call is over.
        unsafe {
            self.cufile_function::<Fail>("fake_fail")(name.as_ptr(), answer, extra, skip, times);
        }
    }

    pub(crate) fn limit_io(&self, bytes: usize) {
        // SAFETY: the type is that of the function.
        unsafe { self.cufile_function::<unsafe extern "C" fn(usize)>("fake_limit_io")(bytes) }
    }

    pub(crate) fn delay_ms(&self, ms: c_int) {
        // SAFETY: the type is that of the function.
        unsafe { self.cufile_function::<unsafe extern "C" fn(c_int)>("fake_delay")(ms) }
    }

    /// Whether operations of streams and batches say that they have moved everything, where the
    /// file ends before.
    pub(crate) fn overstate(&self, on: bool) {
        // SAFETY: the type is that of the function.
        unsafe { self.cufile_function::<unsafe extern "C" fn(c_int)>("fake_overstate")(on.into()) }
    }

    pub(crate) fn gpu_direct(&self, on: bool) {
        // SAFETY: the type is that of the function.
        unsafe { self.cufile_function::<unsafe extern "C" fn(c_int)>("fake_gpu_direct")(on.into()) }
    }

    pub(crate) fn properties(&self, batch: c_uint, nvfs_major: c_uint) {
        type Set = unsafe extern "C" fn(c_uint, c_uint);
        // SAFETY: the type is that of the function.
        unsafe { self.cufile_function::<Set>("fake_properties")(batch, nvfs_major) }
    }

    pub(crate) fn batch(&self, mode: BatchMode) {
        type Set = unsafe extern "C" fn(c_int, c_int, c_int, c_int, c_int, c_int, c_long);
        let BatchMode {
            hold,
            max_events,
            time_out,
            repeat,
            stray,
            status,
            ret,
        } = mode;
        let set = self.cufile_function::<Set>("fake_batch");
        // SAFETY: the type is that of the function.
        unsafe { set(hold, max_events, time_out, repeat, stray, status, ret) }
    }

    pub(crate) fn calls(&self, function: &str) -> i32 {
        type Calls = unsafe extern "C" fn(*const c_char) -> c_int;
        let name = CString::new(function).expect("a name");
        // SAFETY: the type is that of the function, and the text lives until the call is over.
        unsafe { self.cufile_function::<Calls>("fake_calls")(name.as_ptr()) }
    }

    pub(crate) fn number(&self, function: &str) -> i32 {
        // SAFETY: all that are asked for by name take nothing and answer an int.
        unsafe { self.cufile_function::<unsafe extern "C" fn() -> c_int>(function)() }
    }

    /// What the fake found wrong with a call, if anything.
    pub(crate) fn violation(&self) -> Option<String> {
        type Violation = unsafe extern "C" fn() -> *const c_char;
        // SAFETY: the type is that of the function.
        let text = unsafe { self.cufile_function::<Violation>("fake_violation")() };
        // SAFETY: a text of the fake's own.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        (!text.is_empty()).then(|| text.into_owned())
    }

    /// Nothing was wrong, and nothing is left. A thread that told the outcome of an operation may
    /// still hold its file for a moment.
    pub(crate) fn assert_clean(&self) {
        let by = Instant::now() + Duration::from_secs(60);
        let is_left = |what| self.number(what) != 0;
        while ["fake_handles_live", "fake_buffers_live"]
            .into_iter()
            .any(is_left)
            && Instant::now() < by
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(self.violation(), None);
        assert_eq!(self.number("fake_handles_live"), 0, "handles");
        assert_eq!(self.number("fake_buffers_live"), 0, "registrations");
    }

    /// Lets the stream run.
    pub(crate) fn run_stream(&self, stream: usize) {
        let stream = std::ptr::without_provenance_mut::<c_void>(stream);
        type Run = unsafe extern "C" fn(*mut c_void);
        // SAFETY: the type is that of the function.
        let run = unsafe { *self.cuda.get::<Run>(b"fake_cuda_run").expect("there") };
        // SAFETY: any stream may be asked for.
        unsafe { run(stream) }
    }

    pub(crate) fn fail_synchronize(&self, code: c_int) {
        type Set = unsafe extern "C" fn(c_int);
        // SAFETY: the type is that of the function.
        let set = unsafe {
            *self
                .cuda
                .get::<Set>(b"fake_cuda_fail_synchronize")
                .expect("there")
        };
        // SAFETY: takes a number.
        unsafe { set(code) }
    }

    /// A number of the fake CUDA driver's.
    pub(crate) fn cuda_number(&self, function: &str) -> i32 {
        type Number = unsafe extern "C" fn() -> c_int;
        // SAFETY: all that are asked for by name take nothing and answer an int.
        let number = unsafe { *self.cuda.get::<Number>(function.as_bytes()).expect("there") };
        // SAFETY: as above.
        unsafe { number() }
    }

    fn cufile_function<F: Copy>(&self, name: &str) -> F {
        // SAFETY: whoever asks knows the type of the function.
        *unsafe { self.cufile.get::<F>(name.as_bytes()) }.expect("there")
    }
}

/// The same library as fabricast loads: the same path is the same object.
fn load(variable: &str) -> Library {
    let path = std::env::var_os(variable).expect("set by the parent");
    // SAFETY: our own library, without constructors.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.expect("loads")
}
