//! Loads real libraries, and things that are none. FABRICAST_LIBFABRIC chooses the library under
//! test.

#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a sequence of C calls has one contract"
)]

use libfabric_sys::library::FABRICAST_LIBFABRIC;
use libfabric_sys::*;
use std::env;
use std::ffi::{CStr, CString, OsStr, OsString, c_int};
use std::fs;
use std::io::{self, Write};
use std::mem;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

/// Tells a test that it runs in a child process, and what it works on there.
const CHILD: &str = "FABRICAST_TEST_CHILD";

/// Most time that a child may take.
const CHILD_DEADLINE: Duration = Duration::from_secs(60);

/// Says something that a passing test shows, too.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "library: {text}");
}

/// The library that the environment names. An empty name is none.
fn named() -> Option<OsString> {
    env::var_os(FABRICAST_LIBFABRIC).filter(|name| !name.is_empty())
}

/// The library under test; none, loudly, where the system has none and none was named.
fn library() -> Option<&'static Library> {
    match Library::load() {
        Ok(library) => Some(library),
        Err(error @ LoadError::NotFound { .. }) if named().is_none() => {
            say(&format!("SKIPPED: {error}"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A directory that goes away.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("the temporary directory is writable");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Left-overs do no harm: the directory belongs to the build.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs one test of this file again, alone in a process of its own, and fails if it fails.
fn run_as_child(test: &str, work: &OsStr, library: Option<&OsStr>) {
    let mut command = Command::new(env::current_exe().expect("the test has a path"));
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, work);
    if let Some(library) = library {
        command.env(FABRICAST_LIBFABRIC, library);
    }
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the test runs");
    let output = wait(child);
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(
        output.status.success(),
        "{test} in a child: {:?}\n{out}\n{err}",
        output.status
    );
    assert!(
        out.contains("1 passed"),
        "{test} did not run in the child:\n{out}"
    );
    for line in err.lines().filter(|line| line.starts_with("library: ")) {
        say(line.trim_start_matches("library: "));
    }
}

/// The output of a child, which prints little, within the deadline.
fn wait(mut child: Child) -> Output {
    let deadline = Instant::now() + CHILD_DEADLINE;
    while child.try_wait().expect("it is our child").is_none() {
        if Instant::now() > deadline {
            child.kill().expect("it is our child");
            break;
        }
        thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("it is our child")
}

#[test]
fn the_library_is_new_enough_and_negotiates() {
    let Some(library) = library() else { return };
    say(&format!("{library:?}"));
    assert!(library.version() >= OLDEST);
    assert!(library.negotiated() <= NEWEST);
    assert_eq!(library.negotiated(), library.version().min(NEWEST));
    assert!(
        ptr::eq(library, Library::load().expect("it was loaded")),
        "loaded twice"
    );
    if let Some(named) = named() {
        assert_eq!(library.path().as_os_str(), named);
    }
}

#[test]
fn a_wrong_path_names_what_was_tried_and_how_to_install() {
    // SAFETY: there is nothing to load.
    let error = unsafe { Library::open("/nowhere/libfabric.so.1") };
    let error = error.expect_err("there is no such file");
    assert!(matches!(error, LoadError::NotFound { .. }), "{error:?}");
    let text = error.to_string();
    for part in [
        "tried /nowhere/libfabric.so.1",
        "No such file",
        "apt-get install libfabric1",
        "dnf install libfabric",
        FABRICAST_LIBFABRIC,
    ] {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

#[test]
fn a_file_that_is_no_library_gives_the_reason() {
    let scratch = Scratch::new("no-library");
    let path = scratch.0.join("libfabric.so.1");
    fs::write(&path, "not a library").expect("the directory is writable");
    // SAFETY: the loader refuses it before anything of it runs.
    let error = unsafe { Library::open(&path) };
    let error = error.expect_err("it is text").to_string();
    assert!(
        error.contains(path.to_str().expect("a plain path")),
        "{error}"
    );
    assert!(
        error.contains("too short") || error.contains("ELF"),
        "{error}"
    );
}

#[test]
fn another_library_is_broken_and_the_symbol_is_named() {
    // SAFETY: the C library is loaded already, and exports none of the names.
    let error = unsafe { Library::open("libc.so.6") }.expect_err("it is the C library");
    let LoadError::Broken { symbol, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(*symbol, "fi_version");
    let text = error.to_string();
    assert!(
        text.contains("libc.so.6 is broken: no function fi_version"),
        "{text}"
    );
}

/// Builds a library from C text; none, loudly, without a compiler.
fn fake(scratch: &Scratch, text: &str) -> Option<PathBuf> {
    let [c_file, path] = ["fake.c", "libfake.so"].map(|name| scratch.0.join(name));
    fs::write(&c_file, text).expect("the directory is writable");
    let mut compile = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    let output = compile
        .args(["-shared", "-fPIC", "-w", "-o"])
        .arg(&path)
        .arg(&c_file)
        .output();
    let Ok(output) = output else {
        say("SKIPPED: no C compiler");
        return None;
    };
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(path)
}

/// C text of libfabric 1.`minor` with all functions that are looked for, but `without`.
fn fake_functions(minor: u32, without: &str) -> String {
    let names = "fi_getinfo fi_freeinfo fi_dupinfo fi_fabric fi_open fi_strerror fi_tostr_r \
        fi_getparams fi_freeparams";
    let define = |name: &str| format!("void {name}(void) {{}}\n");
    let functions: String = names
        .split(' ')
        .filter(|&name| name != without)
        .map(define)
        .collect();
    format!("unsigned fi_version(void) {{ return 1 << 16 | {minor}; }}\n{functions}")
}

#[test]
fn an_old_library_is_refused_with_both_versions() {
    let scratch = Scratch::new("old");
    let Some(path) = fake(&scratch, &fake_functions(9, "fi_open")) else {
        return;
    };
    // SAFETY: it has no constructors, and its one function that is called is a libfabric's.
    let error = unsafe { Library::open(&path) }.expect_err("it is too old");
    assert_eq!(
        error,
        LoadError::TooOld {
            path,
            version: fi_version_make(1, 9)
        }
    );
    let text = error.to_string();
    assert!(
        text.contains("it is libfabric 1.9, and at least 1.17 is needed"),
        "{text}"
    );
}

#[test]
fn a_damaged_library_names_the_missing_function() {
    let scratch = Scratch::new("damaged");
    let Some(path) = fake(&scratch, &fake_functions(17, "fi_tostr_r")) else {
        return;
    };
    // SAFETY: it has no constructors, and its one function that is called is a libfabric's.
    let error = unsafe { Library::open(&path) }.expect_err("it lacks a function");
    assert!(
        matches!(
            error,
            LoadError::Broken {
                symbol: "fi_tostr_r",
                ..
            }
        ),
        "{error:?}"
    );
}

/// The file that the library under test was loaded from.
fn loaded_file() -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").expect("Linux has it");
    let file = maps
        .split_whitespace()
        .find(|word| word.starts_with('/') && word.contains("/libfabric.so"));
    PathBuf::from(file.expect("the library is mapped"))
}

#[test]
fn a_failure_is_not_kept() {
    let name = "a_failure_is_not_kept";
    if let Some(real) = env::var_os(CHILD) {
        let link = PathBuf::from(env::var_os(FABRICAST_LIBFABRIC).expect("the parent set it"));
        let error = Library::load().expect_err("there is no such file yet");
        assert!(
            matches!(&error, LoadError::NotFound { tried, .. } if *tried == link),
            "{error:?}"
        );
        std::os::unix::fs::symlink(real, &link).expect("the directory is writable");
        assert_eq!(Library::load().expect("now there is").path(), link);
        return;
    }
    if library().is_none() {
        return;
    }
    let scratch = Scratch::new("kept");
    let link = scratch.0.join("libfabric.so.1");
    run_as_child(name, loaded_file().as_os_str(), Some(link.as_os_str()));
}

/// A flag that the C library adds to every handler that was ever set.
const SA_RESTORER: c_int = 0x0400_0000;

/// The handler and flags of each signal.
fn handlers() -> Vec<(usize, c_int)> {
    let handler = |signal| {
        // SAFETY: a struct of integers is valid when zeroed.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        // SAFETY: asks only, and `action` is valid for a write.
        unsafe { libc::sigaction(signal, ptr::null(), &mut action) };
        (action.sa_sigaction, action.sa_flags & !SA_RESTORER)
    };
    (1..=64).map(handler).collect()
}

extern "C" fn ignore(_: c_int) {}

#[test]
fn signal_handlers_survive() {
    let name = "signal_handlers_survive";
    match env::var_os(CHILD).as_deref().map(OsStr::as_encoded_bytes) {
        Some(b"guarded") => {
            let ours = ignore as extern "C" fn(c_int) as libc::sighandler_t;
            // SAFETY: the handler does nothing.
            unsafe { libc::signal(libc::SIGTERM, ours) };
            let before = handlers();
            assert_eq!(before[libc::SIGTERM as usize - 1].0, ours);
            let library = Library::load().expect("the parent loaded it");
            assert_eq!(handlers(), before, "after dlopen");
            let info = tcp_info(library, FI_EP_MSG);
            assert_eq!(handlers(), before, "after the first fi_getinfo");
            // SAFETY: from this library, and not used again.
            unsafe { library.fi_freeinfo(info) };
        }
        // The control: does this library touch them at all?
        Some(_) => {
            let before = handlers();
            let path = env::var_os(CHILD).expect("it is set");
            // SAFETY: the library under test, trusted as one that is linked.
            let object = unsafe { libloading::Library::new(path) }.expect("the parent loaded it");
            mem::forget(object);
            let after = handlers();
            let changed: Vec<_> = (0..64)
                .filter(|&i| before[i] != after[i])
                .map(|i| i + 1)
                .collect();
            if changed.is_empty() {
                say("SKIPPED: signal handlers: this library replaces none by itself");
            } else {
                say(&format!(
                    "unguarded, this library replaces the handlers of signals {changed:?}"
                ));
            }
            assert!(
                changed
                    .iter()
                    .all(|&signal| signal != libc::SIGKILL as usize)
            );
        }
        None => {
            if library().is_some() {
                run_as_child(name, OsStr::new("guarded"), None);
                run_as_child(name, loaded_file().as_os_str(), None);
            }
        }
    }
}

/// The infos of the provider `tcp` on 127.0.0.1.
fn tcp_info(library: &Library, ep_type: u32) -> *mut fi_info {
    let hints = library.allocinfo();
    assert!(!hints.is_null());
    let provider = CString::new("tcp").expect("no zero inside");
    // SAFETY: a fresh info of this library has all attributes; both fields are in every version.
    unsafe {
        (*hints).caps = FI_MSG;
        (*(*hints).ep_attr).type_ = ep_type;
        (*(*hints).domain_attr).threading = FI_THREAD_SAFE;
        (*(*hints).domain_attr).mr_mode =
            FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
        (*(*hints).fabric_attr).prov_name = libc::strdup(provider.as_ptr());
    }
    let node = CString::new("127.0.0.1").expect("no zero inside");
    let mut info = ptr::null_mut();
    // SAFETY: texts, hints of this library, and a place to write to.
    let rc = unsafe {
        let flags = FI_SOURCE | FI_NUMERICHOST;
        library.fi_getinfo(
            library.negotiated(),
            node.as_ptr(),
            ptr::null(),
            flags,
            hints,
            &mut info,
        )
    };
    // SAFETY: from this library, and not used again.
    unsafe { library.fi_freeinfo(hints) };
    assert_eq!(rc, 0, "fi_getinfo: {}", library.fi_strerror(rc));
    assert!(!info.is_null());
    info
}

#[test]
fn getinfo_finds_tcp_on_the_loopback() {
    let Some(library) = library() else { return };
    let info = tcp_info(library, FI_EP_MSG);
    // SAFETY: the info is valid until it is freed below.
    let fabric = unsafe { *(*info).fabric_attr };
    assert_eq!(fabric.api_version, library.negotiated());
    // SAFETY: a provider has a name.
    assert_eq!(unsafe { CStr::from_ptr(fabric.prov_name) }, c"tcp");
    // SAFETY: as above; the library is at least of the negotiated version.
    let domain = unsafe { fi_domain_attr::read((*info).domain_attr, library.negotiated()) };
    assert!(
        domain.mr_key_size > 0 && domain.cq_data_size > 0,
        "{domain:?}"
    );
    // SAFETY: as above.
    let text = unsafe { library.fi_tostr(info.cast(), FI_TYPE_INFO) };
    assert!(
        text.contains("FI_EP_MSG") && text.contains("127.0.0.1"),
        "{text}"
    );
    // SAFETY: from this library, and not used again.
    unsafe { library.fi_freeinfo(info) };
}

/// Whether a call succeeded.
fn ok(library: &Library, what: &str, rc: c_int) {
    assert_eq!(rc, 0, "{what}: {}", library.fi_strerror(rc));
}

/// Closes an object that is not used again.
fn close<T>(library: &Library, what: &str, object: *mut T) {
    // SAFETY: the callers hand in open objects, children first.
    ok(library, what, unsafe { fi_close(object.cast()) });
}

/// The objects of a listener, closed in the order of the fields.
struct Listener {
    pep: *mut fid_pep,
    mr: *mut fid_mr,
    cq: *mut fid_cq,
    domain: *mut fid_domain,
    eq: *mut fid_eq,
    fabric: *mut fid_fabric,
}

impl Listener {
    fn open(library: &Library, info: *mut fi_info, memory: &mut [u8]) -> Self {
        // SAFETY: a struct of pointers is valid when zeroed.
        let mut all: Self = unsafe { mem::zeroed() };
        let none = ptr::null_mut();
        // SAFETY: every argument is from this library or a valid place; attributes are zeroed and
        // filled in.
        unsafe {
            let attr = (*info).fabric_attr;
            ok(
                library,
                "fi_fabric",
                library.fi_fabric(attr, &mut all.fabric, none),
            );
            ok(
                library,
                "fi_domain",
                fi_domain(all.fabric, info, &mut all.domain, none),
            );
            let mut attr: fi_eq_attr = mem::zeroed();
            attr.wait_obj = FI_WAIT_FD;
            ok(
                library,
                "fi_eq_open",
                fi_eq_open(all.fabric, &mut attr, &mut all.eq, none),
            );
            let mut attr: fi_cq_attr = mem::zeroed();
            attr.format = FI_CQ_FORMAT_DATA;
            attr.wait_obj = FI_WAIT_FD;
            ok(
                library,
                "fi_cq_open",
                fi_cq_open(all.domain, &mut attr, &mut all.cq, none),
            );
            let (buf, len) = (memory.as_mut_ptr().cast(), memory.len());
            let rc = fi_mr_reg(
                all.domain,
                buf,
                len,
                FI_SEND | FI_RECV,
                0,
                7,
                0,
                &mut all.mr,
                none,
            );
            ok(library, "fi_mr_reg", rc);
            ok(
                library,
                "fi_passive_ep",
                fi_passive_ep(all.fabric, info, &mut all.pep, none),
            );
            ok(
                library,
                "fi_pep_bind",
                fi_pep_bind(all.pep, all.eq.cast(), 0),
            );
            ok(library, "fi_listen", fi_listen(all.pep));
        }
        all
    }

    fn close(self, library: &Library) {
        close(library, "pep", self.pep);
        close(library, "mr", self.mr);
        close(library, "cq", self.cq);
        close(library, "domain", self.domain);
        close(library, "eq", self.eq);
        close(library, "fabric", self.fabric);
    }
}

#[test]
fn objects_open_and_close_through_their_tables() {
    let Some(library) = library() else { return };
    let info = tcp_info(library, FI_EP_MSG);
    let mut memory = vec![0_u8; 4096];
    let listener = Listener::open(library, info, &mut memory);
    // SAFETY: a struct of integers is valid when zeroed.
    let mut address: libc::sockaddr_in = unsafe { mem::zeroed() };
    let mut len = size_of_val(&address);
    let place = (&raw mut address).cast();
    // SAFETY: the endpoint is open, and the address has the length that is said.
    ok(library, "fi_getname", unsafe {
        fi_getname(listener.pep.cast(), place, &mut len)
    });
    assert_eq!(c_int::from(address.sin_family), libc::AF_INET);
    assert_ne!(address.sin_port, 0, "it listens on a port");
    let mut fd = -1;
    // SAFETY: the queue was opened with a file descriptor.
    ok(library, "fi_getwait_fd", unsafe {
        fi_getwait_fd(listener.eq.cast(), &mut fd)
    });
    assert!(fd >= 0);
    let mut queues: [*mut fid; 2] = [listener.eq.cast(), listener.cq.cast()];
    // SAFETY: both queues are open and have file descriptors.
    ok(library, "fi_trywait", unsafe {
        fi_trywait(listener.fabric, queues.as_mut_ptr(), 2)
    });
    let again = -(FI_EAGAIN as isize);
    let mut entries = [const { mem::MaybeUninit::<fi_cq_data_entry>::zeroed() }; 4];
    // SAFETY: the queue is open and has this format.
    let read = unsafe { fi_cq_read(listener.cq, entries.as_mut_ptr().cast(), 4) };
    assert_eq!(read, again);
    let mut failure = CqErrEntryBuf::zeroed();
    // SAFETY: the queue is open, and the buffer has room.
    let read = unsafe { fi_cq_readerr(listener.cq, failure.as_mut_ptr(), 0) };
    assert_eq!(read, again);
    assert_eq!(failure.entry.src_addr, FI_ADDR_NOTAVAIL);
    listener.close(library);
    // SAFETY: from this library, and not used again.
    unsafe { library.fi_freeinfo(info) };
}

#[test]
fn errors_have_texts() {
    let Some(library) = library() else { return };
    let text = library.fi_strerror(-FI_ETRUNC);
    assert!(text.to_lowercase().contains("trunc"), "{text}");
    assert_eq!(text, library.fi_strerror(FI_ETRUNC));
    assert!(!library.fi_strerror(c_int::MIN).is_empty());
}

#[test]
fn parameters_are_listed() {
    let Some(library) = library() else { return };
    let (mut params, mut count) = (ptr::null_mut(), 0);
    // SAFETY: both are valid for a write.
    let rc = unsafe { library.fi_getparams(&mut params, &mut count) };
    ok(library, "fi_getparams", rc);
    let count = usize::try_from(count).expect("a count");
    // SAFETY: the library made `count` parameters.
    let all = unsafe { std::slice::from_raw_parts(params, count) };
    let name = |param: &fi_param| {
        // SAFETY: each parameter has a name, which lives as long as the list.
        unsafe { CStr::from_ptr(param.name) }
            .to_string_lossy()
            .into_owned()
    };
    let names: Vec<String> = all.iter().map(name).collect();
    assert!(names.iter().any(|name| name == "FI_PROVIDER"), "{names:?}");
    // SAFETY: from this library, and not used again.
    unsafe { library.fi_freeparams(params) };
}
