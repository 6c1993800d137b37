//! System calls that fail: a library in front of libc's (shim.c), a filter in the kernel, a file
//! system that is really full. Each in a process of its own.

use std::io::{IoSlice, IoSliceMut};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fabricast::storage::{
    AtomicFile, DirectIo, FileErrorKind, FileHandle, IoOptions, OpenOptions, ThreadPool,
};

use super::random::{Random, at_address};
use crate::names::full_name;

/// Set in the process that the shim is loaded into.
const INSIDE: &str = "FABRICAST_TEST_FAULTS";

/// What the shim does, see shim.c.
#[derive(Clone, Copy)]
#[repr(i32)]
pub(crate) enum Fault {
    Nothing,
    Interrupted,
    Short,
    /// From this offset on: a device has moved what lies before it.
    Bad,
    Full,
    Gone,
    Unaligned,
}

fn symbol(name: &std::ffi::CStr) -> *mut libc::c_void {
    // SAFETY: a name that ends in 0; looking it up touches nothing.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    assert!(!symbol.is_null(), "the shim is not loaded");
    symbol
}

pub(crate) fn set(fault: Fault, point: i64) {
    // SAFETY: the shim's function of that name has this type.
    let set: extern "C" fn(i32, i64) = unsafe { std::mem::transmute(symbol(c"fault_set")) };
    set(fault as i32, point);
}

/// How often the shim interfered.
fn injected() -> u64 {
    // SAFETY: as above.
    let count: extern "C" fn() -> u64 = unsafe { std::mem::transmute(symbol(c"fault_count")) };
    count()
}

fn directory() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("faulty")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .unwrap()
}

/// The shim, compiled; nothing where there is no compiler.
fn shim(directory: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/storage/file/shim.c");
    let library = directory.join("shim.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-o"]);
    let compiled = compiler
        .arg(&library)
        .arg(source)
        .arg("-ldl")
        .stdin(Stdio::null())
        .output();
    match compiled {
        Ok(output) => {
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
            Some(library)
        }
        Err(error) => {
            println!("SKIPPED: no C compiler `cc` ({error})");
            None
        }
    }
}

/// Runs the test of this path in a process of its own, with the shim or without; in there, runs
/// `test`.
pub(crate) fn inside(name: &str, with_shim: bool, test: impl FnOnce(&Path)) {
    if std::env::var_os(INSIDE).is_some() {
        test(directory().path());
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args([full_name(name), "--exact", "--nocapture"])
        .env(INSIDE, "1");
    if with_shim {
        let Some(shim) = shim(place.path()) else {
            return;
        };
        child.env("LD_PRELOAD", shim);
    }
    let output = child.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}");
    assert!(said.contains("1 passed"), "{said}\n{errors}");
    for skipped in said.lines().filter(|line| line.contains("SKIPPED: ")) {
        println!("{skipped}");
    }
}

const SIZE: usize = 1 << 20;

struct Fixture {
    path: PathBuf,
    file: FileHandle,
    options: IoOptions,
    random: Random,
}

fn fixture(directory: &Path, direct: DirectIo) -> Fixture {
    let path = directory.join(format!("{direct:?}"));
    let file = OpenOptions::new()
        .flags("w+")
        .direct(direct)
        .open(&path)
        .unwrap();
    let options = IoOptions {
        task_size: Some(65_536),
        pool: Some(ThreadPool::new(4, 64).unwrap()),
        ..IoOptions::default()
    };
    Fixture {
        path,
        file,
        options,
        random: Random::new(1),
    }
}

impl Fixture {
    fn bytes(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; SIZE];
        self.random.fill(&mut bytes);
        bytes
    }

    /// Writes and reads all of it in every way, from memory that is aligned and memory that is not.
    fn all_ways(&mut self) {
        for over in [0, 16] {
            let (mut buffer, range) = at_address(SIZE, over);
            self.random.fill(&mut buffer[range.clone()]);
            let written = buffer[range.clone()].to_vec();
            self.file.write(&buffer[range.clone()], 0).unwrap();
            self.check(&written);
            self.file
                .write_parallel(&written, 0, &self.options)
                .unwrap();
            let (mut buffer, _) = self
                .file
                .pwrite(buffer, range.clone(), 5000, &self.options)
                .wait()
                .into_result()
                .unwrap();
            let mut whole = written[..5000].to_vec();
            whole.extend_from_slice(&written);
            self.check(&whole);
            buffer.fill(0);
            let read = self
                .file
                .pread(buffer, range.clone(), 5000, &self.options)
                .wait();
            let (buffer, moved) = read.into_result().unwrap();
            assert_eq!(moved.bytes, SIZE);
            assert!(buffer[range] == written);
            let (head, tail) = written.split_at(100_001);
            self.file
                .writev(&[IoSlice::new(tail), IoSlice::new(head)], 0)
                .unwrap();
            let (mut first, mut second) = (vec![0; tail.len()], vec![0; head.len()]);
            let pieces = &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
            assert_eq!(self.file.readv(pieces, 0).unwrap().bytes, SIZE);
            assert!(first == tail && second == head);
            self.file.truncate(0).unwrap();
        }
    }

    /// What is in the file, read by others.
    fn check(&self, bytes: &[u8]) {
        let there = std::fs::read(&self.path).unwrap();
        assert!(
            there == bytes,
            "{} bytes in the file, {} written",
            there.len(),
            bytes.len()
        );
    }
}

#[test]
fn a_storm_of_signals_changes_nothing() {
    inside(
        "faults::a_storm_of_signals_changes_nothing",
        true,
        |directory| {
            for direct in [DirectIo::Off, DirectIo::On] {
                let mut fixture = fixture(directory, direct);
                set(Fault::Interrupted, 0);
                fixture.all_ways();
                set(Fault::Nothing, 0);
            }
            assert!(injected() > 100, "{}", injected());
        },
    );
}

#[test]
fn short_transfers_go_on() {
    inside("faults::short_transfers_go_on", true, |directory| {
        for direct in [DirectIo::Off, DirectIo::On] {
            let mut fixture = fixture(directory, direct);
            set(Fault::Short, 0);
            for _ in 0..5 {
                fixture.all_ways();
            }
            set(Fault::Nothing, 0);
        }
        assert!(injected() > 100, "{}", injected());
    });
}

/// Where errors strike: the first byte, tasks' edges and middles, the last page.
fn points(direct: DirectIo) -> Vec<usize> {
    let mut points = vec![0, 4096, 65_536, 300 * 1024, SIZE - 4096];
    if direct == DirectIo::Off {
        points.extend([1, 65_535, 500_001, SIZE - 1]);
    }
    points
}

#[test]
fn an_error_in_the_middle_says_how_far_it_got() {
    inside(
        "faults::an_error_in_the_middle_says_how_far_it_got",
        true,
        |directory| {
            for direct in [DirectIo::Off, DirectIo::On] {
                let mut fixture = fixture(directory, direct);
                let bytes = fixture.bytes();
                fixture.file.write(&bytes, 0).unwrap();
                for point in points(direct) {
                    set(Fault::Bad, point as i64);
                    for over in [0, 16] {
                        let (buffer, range) = at_address(SIZE, over);
                        let outcome = fixture
                            .file
                            .pread(buffer, range.clone(), 0, &fixture.options)
                            .wait();
                        let error = outcome.result.unwrap_err();
                        assert_eq!(error.kind, FileErrorKind::Os { errno: libc::EIO });
                        assert_eq!(error.done, point as u64, "{error}");
                        assert_eq!((error.offset, error.len), (Some(0), Some(SIZE as u64)));
                        assert!(outcome.buffer[range][..point] == bytes[..point]);
                        let mut buffer = vec![0; SIZE];
                        let error = fixture.file.read(&mut buffer, 0).unwrap_err();
                        assert_eq!(error.done, point as u64);
                        let error = fixture
                            .file
                            .readv(&mut [IoSliceMut::new(&mut buffer)], 0)
                            .unwrap_err();
                        assert_eq!(error.done, point as u64);
                    }
                }
                set(Fault::Nothing, 0);
                // Before and behind the bad place all is well.
                set(Fault::Bad, 500_000);
                let mut part = vec![0; 100_000];
                for offset in [0, 501_000] {
                    assert_eq!(fixture.file.read(&mut part, offset).unwrap().bytes, 100_000);
                }
                set(Fault::Nothing, 0);
            }
        },
    );
}

#[test]
fn a_full_device_loses_nothing_that_was_reported() {
    inside(
        "faults::a_full_device_loses_nothing_that_was_reported",
        true,
        |directory| {
            for direct in [DirectIo::Off, DirectIo::On] {
                let mut fixture = fixture(directory, direct);
                for (round, point) in points(direct).into_iter().cycle().take(30).enumerate() {
                    let (mut buffer, range) = at_address(SIZE, [0, 16][round % 2]);
                    fixture.random.fill(&mut buffer[range.clone()]);
                    set(Fault::Full, point as i64);
                    let written = buffer[range.clone()].to_vec();
                    let error = match round % 3 {
                        0 => fixture
                            .file
                            .pwrite(buffer, range, 0, &fixture.options)
                            .wait()
                            .result
                            .unwrap_err(),
                        1 => fixture.file.write(&buffer[range], 0).unwrap_err(),
                        _ => fixture
                            .file
                            .writev(&[IoSlice::new(&buffer[range])], 0)
                            .unwrap_err(),
                    };
                    set(Fault::Nothing, 0);
                    assert_eq!(
                        error.kind,
                        FileErrorKind::Os {
                            errno: libc::ENOSPC
                        }
                    );
                    assert_eq!(error.done, point as u64, "{error}");
                    let there = std::fs::read(&fixture.path).unwrap();
                    assert!(
                        there[..point] == written[..point],
                        "what was reported is there"
                    );
                    assert_eq!(fixture.file.nbytes().unwrap(), there.len() as u64);
                    fixture.file.truncate(0).unwrap();
                }
            }
        },
    );
}

#[test]
fn a_device_that_is_gone_fails_everything_and_blocks_nothing() {
    inside(
        "faults::a_device_that_is_gone_fails_everything_and_blocks_nothing",
        true,
        |directory| {
            for direct in [DirectIo::Off, DirectIo::On] {
                let mut fixture = fixture(directory, direct);
                let bytes = fixture.bytes();
                fixture.file.write(&bytes, 0).unwrap();
                set(Fault::Gone, 0);
                let reads: Vec<_> = (0..8)
                    .map(|_| fixture.file.pread(vec![0; SIZE], .., 0, &fixture.options))
                    .collect();
                let writes: Vec<_> = (0..8)
                    .map(|_| fixture.file.pwrite(bytes.clone(), .., 0, &fixture.options))
                    .collect();
                for outcome in reads.into_iter().chain(writes).map(|future| future.wait()) {
                    let error = outcome.result.unwrap_err();
                    assert_eq!((error.errno(), error.done), (Some(libc::EIO), 0), "{error}");
                    assert_eq!(outcome.buffer.len(), SIZE, "buffers come back");
                }
                let (_, future) = fixture
                    .file
                    .append(vec![1; 10], .., &fixture.options)
                    .unwrap();
                assert!(future.wait().result.is_err());
                set(Fault::Nothing, 0);
                fixture.check(&bytes);
            }
        },
    );
}

#[test]
fn a_direct_transfer_that_is_refused_goes_through_the_page_cache() {
    inside(
        "faults::a_direct_transfer_that_is_refused_goes_through_the_page_cache",
        true,
        |directory| {
            let mut fixture = fixture(directory, DirectIo::On);
            if let Some(reason) = fixture.file.direct_refused() {
                println!("SKIPPED: {reason}");
                return;
            }
            set(Fault::Unaligned, 0);
            fixture.all_ways();
            let reason = fixture.file.direct_refused().expect("it was refused");
            assert!(reason.contains("direct write"), "{reason}");
            // For good: the next one does not even try.
            let before = injected();
            fixture.all_ways();
            assert_eq!(injected(), before);
            set(Fault::Nothing, 0);
        },
    );
}

#[test]
fn an_atomic_write_that_fails_leaves_what_was_there() {
    inside(
        "faults::an_atomic_write_that_fails_leaves_what_was_there",
        true,
        |directory| {
            let path = directory.join("target");
            FileHandle::write_atomically(&path, b"old", 0o644).unwrap();
            for point in [0, 4096, 500_000 / 4096 * 4096] {
                set(Fault::Full, point);
                let error = FileHandle::write_atomically(&path, &vec![9; SIZE], 0o644).unwrap_err();
                assert_eq!(
                    error.kind,
                    FileErrorKind::Os {
                        errno: libc::ENOSPC
                    }
                );
                assert_eq!(&*error.path, path, "{error}");
                assert_eq!(std::fs::read(&path).unwrap(), b"old");
                let names = std::fs::read_dir(directory).unwrap().count();
                assert_eq!(names, 1, "nothing is left behind");
            }
            set(Fault::Nothing, 0);
        },
    );
}

/// Lets system calls of this thread, and of those that it makes, fail: `openat` with O_DIRECT as on
/// a file system without, `fsync` as on a broken device.
fn filter_system_calls(with_fsync: bool) {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const BITS: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let statement = |code, k| libc::sock_filter {
        code,
        jt: 0,
        jf: 0,
        k,
    };
    let jump = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let fsync = if with_fsync {
        libc::SYS_fsync as u32
    } else {
        u32::MAX
    };
    let filter = [
        statement(LOAD, 0),
        jump(EQUAL, fsync, 5, 0),
        jump(EQUAL, libc::SYS_openat as u32, 0, 2),
        // The low half of the third argument, the flags.
        statement(LOAD, 16 + 2 * 8),
        jump(BITS, libc::O_DIRECT as u32, 1, 0),
        statement(RETURN, libc::SECCOMP_RET_ALLOW),
        statement(RETURN, libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32),
        statement(RETURN, libc::SECCOMP_RET_ERRNO | libc::EIO as u32),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: plain numbers.
    let rc = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(rc, 0);
    // SAFETY: the program and its filter outlive the call.
    let rc = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        )
    };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_file_system_without_direct_io_is_used_through_the_page_cache() {
    if !cfg!(target_endian = "little") {
        println!("SKIPPED: the filter looks at the low half of an argument");
        return;
    }
    inside(
        "faults::a_file_system_without_direct_io_is_used_through_the_page_cache",
        false,
        |directory| {
            filter_system_calls(false);
            let mut fixture = fixture(directory, DirectIo::On);
            let reason = fixture.file.direct_refused().expect("it can't be");
            assert!(reason.contains("O_DIRECT"), "{reason}");
            assert!(fixture.file.fd(true).is_none());
            fixture.all_ways();
            let moved = fixture.file.write(&vec![1; SIZE], 0).unwrap();
            assert_eq!((moved.direct_bytes, moved.buffered_bytes()), (0, SIZE));
        },
    );
}

#[test]
fn a_sync_that_fails_is_told_and_commits_nothing() {
    inside(
        "faults::a_sync_that_fails_is_told_and_commits_nothing",
        false,
        |directory| {
            let path = directory.join("target");
            std::fs::write(&path, b"old").unwrap();
            let file = FileHandle::open(&path, "r+").unwrap();
            let new = AtomicFile::create(&path, 0o644).unwrap();
            new.file().write(b"new", 0).unwrap();
            filter_system_calls(true);
            assert_eq!(file.sync_all().unwrap_err().errno(), Some(libc::EIO));
            file.sync_data().unwrap();
            let error = new.commit().unwrap_err();
            assert_eq!((error.errno(), &*error.path), (Some(libc::EIO), &*path));
            assert_eq!(std::fs::read(&path).unwrap(), b"old");
            assert_eq!(std::fs::read_dir(directory).unwrap().count(), 1);
        },
    );
}

/// A small file system of its own, on a loop device; unmounted and detached when it is dropped.
struct Mounted {
    point: PathBuf,
    device: String,
    _place: tempfile::TempDir,
}

fn command(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Err(format!(
        "{program}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    ))
}

impl Mounted {
    fn new(bytes: u64) -> Result<Self, String> {
        let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let image = place.path().join("image");
        let file = std::fs::File::create(&image).unwrap();
        file.set_len(bytes).unwrap();
        let image = image.to_str().unwrap();
        command(
            "mkfs.ext4",
            &["-q", "-F", "-m", "0", "-O", "^has_journal", image],
        )?;
        let device = command("losetup", &["--find", "--show", image])?;
        let point = place.path().join("mounted");
        std::fs::create_dir(&point).unwrap();
        let mounted = command("mount", &[&device, point.to_str().unwrap()]);
        if let Err(error) = mounted {
            let _ = command("losetup", &["--detach", &device]);
            return Err(error);
        }
        Ok(Self {
            point,
            device,
            _place: place,
        })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A thread of a pool may have the file open for a moment after its last operation's outcome
        // was taken.
        let mut unmounted = Err(String::new());
        for _ in 0..100 {
            unmounted = command("umount", &[self.point.to_str().unwrap()]).map(drop);
            if unmounted.is_ok() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let detached = command("losetup", &["--detach", &self.device]).map(drop);
        for error in [unmounted, detached].into_iter().filter_map(Result::err) {
            // Not in an unwinding test: there it would hide why.
            assert!(std::thread::panicking(), "left behind: {error}");
        }
    }
}

#[test]
fn a_file_system_that_is_really_full() {
    let mounted = match Mounted::new(4 << 20) {
        Ok(mounted) => mounted,
        Err(reason) => {
            println!("SKIPPED: no file system of its own, {reason}");
            return;
        }
    };
    for direct in [DirectIo::Off, DirectIo::On] {
        let mut fixture = fixture(&mounted.point, direct);
        for over in [0, 16] {
            let (mut buffer, range) = at_address(8 << 20, over);
            fixture.random.fill(&mut buffer[range.clone()]);
            let written = buffer[range.clone()].to_vec();
            // In order, or the free space is used up behind a hole.
            let error = fixture.file.write(&buffer[range.clone()], 0).unwrap_err();
            assert_eq!(error.errno(), Some(libc::ENOSPC), "{error}");
            // Of one direct write that does not fit as a whole, ext4 says nothing.
            assert!(direct == DirectIo::On || error.done > 1 << 20, "{error}");
            let there = std::fs::read(&fixture.path).unwrap();
            assert!(there.len() as u64 >= error.done);
            assert!(there[..error.done as usize] == written[..error.done as usize]);
            fixture.file.truncate(0).unwrap();
            let outcome = fixture
                .file
                .pwrite(buffer, range, 0, &fixture.options)
                .wait();
            let error = outcome.result.unwrap_err();
            assert_eq!(error.errno(), Some(libc::ENOSPC), "{error}");
            let there = std::fs::read(&fixture.path).unwrap();
            assert!(there[..error.done as usize] == written[..error.done as usize]);
            fixture.file.truncate(0).unwrap();
        }
        let error = fixture
            .file
            .allocate(0..64 << 20, Default::default())
            .unwrap_err();
        assert_eq!(error.errno(), Some(libc::ENOSPC));
        drop(fixture);
    }
}
