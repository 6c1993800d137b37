//! Files that are none, that can't be written, that are very long or have holes; descriptors that
//! are given.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use fabricast::storage::{
    DirectIo, FileErrorKind, FileHandle, FileOperation, IoOptions, OpenOptions,
};
use tempfile::TempDir;

fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn kind(path: &Path, flags: &str) -> FileErrorKind {
    let error = FileHandle::open(path, flags).unwrap_err();
    assert_eq!((error.operation, &*error.path), (FileOperation::Open, path));
    error.kind
}

#[test]
fn what_is_no_file_says_what_it_is() {
    let directory = directory();
    let fifo = directory.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .unwrap();
    let socket = directory.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    let all = [
        (directory.path(), "a directory"),
        (&fifo, "a FIFO"),
        (&socket, "a socket"),
        (Path::new("/dev/null"), "a character device"),
    ];
    for (path, what) in all {
        for flags in ["r", "r+", "a"] {
            // None of them waits for anybody.
            let found = kind(path, flags);
            assert_eq!(
                found,
                FileErrorKind::NotAFile { what },
                "{path:?} {flags}: {found}"
            );
        }
    }
}

#[test]
fn flags_mean_what_they_mean_to_fopen() {
    let directory = directory();
    let path = directory.path().join("file");
    let none = kind(&path, "r");
    assert_eq!(
        none,
        FileErrorKind::Os {
            errno: libc::ENOENT
        }
    );
    FileHandle::open(&path, "x")
        .unwrap()
        .write(b"12345", 0)
        .unwrap();
    let there = kind(&path, "x+");
    assert_eq!(
        there,
        FileErrorKind::Os {
            errno: libc::EEXIST
        }
    );
    let kept = FileHandle::open(&path, "a+").unwrap();
    assert_eq!(kept.nbytes().unwrap(), 5);
    let (offset, future) = kept
        .append(b"67".to_vec(), .., &IoOptions::default())
        .unwrap();
    assert_eq!(offset, 5);
    future.wait().result.unwrap();
    assert_eq!(kept.nbytes().unwrap(), 7);
    assert_eq!(std::fs::read(&path).unwrap(), b"1234567");
    assert_eq!(kept.open_flags().unwrap() & libc::O_APPEND, 0);
    let emptied = FileHandle::open(&path, "w").unwrap();
    assert_eq!(emptied.nbytes().unwrap(), 0);
    for flags in ["", "rw", "r++", "b", "+", "wx"] {
        assert!(
            matches!(kind(&path, flags), FileErrorKind::Flags { .. }),
            "{flags:?}"
        );
    }
    let nothing = OpenOptions::new().open(&path).unwrap_err();
    assert!(
        matches!(nothing.kind, FileErrorKind::Flags { .. }),
        "{nothing}"
    );
}

#[test]
fn a_handle_does_only_what_it_was_opened_for() {
    let directory = directory();
    let path = directory.path().join("file");
    let writer = FileHandle::open(&path, "w").unwrap();
    let error = writer.read(&mut [0; 4], 0).unwrap_err();
    assert_eq!(error.kind, FileErrorKind::NotOpenFor { wanted: "reading" });
    let reader = FileHandle::open(&path, "r").unwrap();
    let outcome = reader
        .pwrite(vec![1, 2, 3], .., 7, &IoOptions::default())
        .wait();
    assert_eq!(outcome.buffer, [1, 2, 3], "the buffer comes back");
    let error = outcome.result.unwrap_err();
    assert_eq!(error.kind, FileErrorKind::NotOpenFor { wanted: "writing" });
    assert_eq!((error.offset, error.len, error.done), (Some(7), Some(3), 0));
    assert!(reader.append(vec![1], .., &IoOptions::default()).is_err());
    let error = reader.read(&mut [0; 4], u64::MAX - 2).unwrap_err();
    assert_eq!(error.kind, FileErrorKind::TooLarge);
    let outcome = reader
        .pread(vec![0; 10], 3..11, 0, &IoOptions::default())
        .wait();
    let error = outcome.result.unwrap_err();
    assert!(
        matches!(
            error.kind,
            FileErrorKind::Range {
                start: 3,
                end: 11,
                buffer_len: 10
            }
        ),
        "{error}"
    );
}

#[test]
fn a_closed_handle_does_nothing_and_what_was_begun_goes_on() {
    let directory = directory();
    let path = directory.path().join("file");
    let mut file = FileHandle::open(&path, "w+").unwrap();
    let future = file.pwrite(vec![5; 1 << 20], .., 0, &IoOptions::default());
    file.close();
    assert!(file.closed() && file.fd(false).is_none() && file.alignment().is_none());
    assert_eq!(
        file.read(&mut [0; 4], 0).unwrap_err().kind,
        FileErrorKind::Closed
    );
    assert_eq!(file.nbytes().unwrap_err().kind, FileErrorKind::Closed);
    future.wait().result.unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), vec![5; 1 << 20]);
}

#[test]
fn permissions_are_errors_with_numbers() {
    let directory = directory();
    let path = directory.path().join("file");
    OpenOptions::new()
        .flags("w")
        .mode(0o400)
        .open(&path)
        .unwrap();
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o400);
    if rustix::process::geteuid().is_root() {
        println!("SKIPPED: files that may not be opened, as root may open all of them");
        return;
    }
    assert_eq!(
        kind(&path, "r+"),
        FileErrorKind::Os {
            errno: libc::EACCES
        }
    );
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o500);
    std::fs::set_permissions(directory.path(), readable).unwrap();
    let new = kind(&directory.path().join("new"), "w");
    assert_eq!(
        new,
        FileErrorKind::Os {
            errno: libc::EACCES
        }
    );
}

#[test]
fn offsets_beyond_4_gib_and_holes() {
    let directory = directory();
    let path = directory.path().join("sparse");
    let file = FileHandle::open(&path, "w+").unwrap();
    let far = (5 << 30) + 4096;
    let written: Vec<u8> = (0..100_000).map(|n| (n % 251) as u8).collect();
    for direct in [DirectIo::Off, DirectIo::On] {
        let options = IoOptions {
            direct: Some(direct),
            task_size: Some(8192),
            ..IoOptions::default()
        };
        let outcome = file.pwrite(written.clone(), .., far, &options).wait();
        outcome.result.unwrap();
        assert_eq!(file.nbytes().unwrap(), far + 100_000);
        let (buffer, moved) = file
            .pread(vec![1; 200_000], .., far - 50_000, &options)
            .wait()
            .into_result()
            .unwrap();
        assert_eq!(moved.bytes, 150_000, "up to the end");
        assert!(
            buffer[..50_000].iter().all(|byte| *byte == 0),
            "a hole reads as zeros"
        );
        assert!(buffer[50_000..150_000] == written);
        // Around the page cache, the kernel may fill what was asked for behind the end with zeros,
        // depending on how the memory lies.
        let behind = &buffer[150_000..];
        let is_kept = behind.iter().all(|byte| *byte == 1);
        let may_be_zero = direct == DirectIo::On && behind.iter().all(|byte| *byte <= 1);
        assert!(
            is_kept || may_be_zero,
            "behind the end: {direct:?}, {moved:?}"
        );
    }
    let mut rest = [9; 10];
    assert_eq!(
        file.read(&mut rest, 10 << 30).unwrap().bytes,
        0,
        "behind the end"
    );
}

#[test]
fn descriptors_that_are_given() {
    let directory = directory();
    let path = directory.path().join("file");
    std::fs::write(&path, b"some bytes").unwrap();
    let open = |flags: i32| -> OwnedFd {
        let mut options = File::options();
        options.read(true).write(true).custom_flags(flags);
        options.open(&path).unwrap().into()
    };
    for flags in [0, libc::O_NONBLOCK, libc::O_NOFOLLOW] {
        let file = OpenOptions::new().from_fd(open(flags)).unwrap();
        let mut bytes = [0; 20];
        assert_eq!(file.read(&mut bytes, 5).unwrap().bytes, 5);
        assert_eq!(&bytes[..5], b"bytes");
        assert_eq!(file.path(), path);
        file.write(b"some", 0).unwrap();
    }
    let error = OpenOptions::new()
        .from_fd(open(libc::O_APPEND))
        .unwrap_err();
    assert!(
        matches!(
            error.kind,
            FileErrorKind::DescriptorFlag {
                flag: "O_APPEND",
                ..
            }
        ),
        "{error}"
    );
    let error = OpenOptions::new()
        .from_fd(File::open(directory.path()).unwrap().into())
        .unwrap_err();
    assert_eq!(
        error.kind,
        FileErrorKind::NotAFile {
            what: "a directory"
        }
    );
    let read_only = OpenOptions::new()
        .from_fd(File::open(&path).unwrap().into())
        .unwrap();
    let error = read_only.write(b"x", 0).unwrap_err();
    assert_eq!(error.kind, FileErrorKind::NotOpenFor { wanted: "writing" });
    let (reader, _writer) = std::io::pipe().unwrap();
    let error = OpenOptions::new().from_fd(reader.into()).unwrap_err();
    assert_eq!(error.kind, FileErrorKind::NotAFile { what: "a FIFO" });
}

#[test]
fn a_direct_descriptor_that_is_given_is_used_for_direct_transfers_only() {
    let directory = directory();
    let path = directory.path().join("file");
    std::fs::write(&path, vec![3; 10_000]).unwrap();
    let given = File::options()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path);
    let Ok(given) = given else {
        println!("SKIPPED: no O_DIRECT on {}", directory.path().display());
        return;
    };
    let file = OpenOptions::new().from_fd(given.into()).unwrap();
    let mut bytes = [0; 1003];
    // Not aligned at all: would be EINVAL with O_DIRECT.
    assert_eq!(file.read(&mut bytes[..], 17).unwrap().bytes, 1003);
    assert_eq!(file.open_flags().unwrap() & libc::O_DIRECT, 0);
}

#[test]
fn a_file_that_was_unlinked_keeps_its_descriptors() {
    let directory = directory();
    let unnamed = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .open(directory.path());
    let Ok(unnamed) = unnamed else {
        println!("SKIPPED: no O_TMPFILE on {}", directory.path().display());
        return;
    };
    let number = unnamed.as_raw_fd();
    let file = OpenOptions::new()
        .direct(DirectIo::On)
        .from_fd(unnamed.into())
        .unwrap();
    assert_eq!(file.fd(false), Some(number));
    file.write(&vec![8; 100_000], 0).unwrap();
    let mut bytes = vec![0; 100_000];
    assert_eq!(file.read(&mut bytes, 0).unwrap().bytes, 100_000);
    assert!(bytes.iter().all(|byte| *byte == 8));
}

#[test]
fn a_child_that_was_forked_is_told() {
    let directory = directory();
    let file = FileHandle::open(directory.path().join("file"), "w+").unwrap();
    // SAFETY: the child calls what takes no lock of ours, and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let told = matches!(file.read(&mut [0; 1], 0), Err(error)
            if matches!(error.kind, FileErrorKind::Forked { .. }));
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(i32::from(!told)) };
    }
    let mut status = 0;
    // SAFETY: our own child; `status` is writable.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid);
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        "status {status:#x}"
    );
    file.write(b"still the parent's", 0).unwrap();
}

#[test]
fn growth_and_truncation_while_reading_give_short_reads_and_no_errors() {
    let directory = directory();
    let path = directory.path().join("file");
    let size = 1 << 20;
    std::fs::write(&path, vec![1; size]).unwrap();
    let other = File::options().write(true).open(&path).unwrap();
    for direct in [DirectIo::Off, DirectIo::On] {
        let file = OpenOptions::new()
            .flags("r")
            .direct(direct)
            .open(&path)
            .unwrap();
        let options = IoOptions {
            task_size: Some(4096),
            ..IoOptions::default()
        };
        std::thread::scope(|scope| {
            let changes = scope.spawn(|| {
                for round in 0..60 {
                    let len = if round % 2 == 0 {
                        size / 2 + round * 1000
                    } else {
                        size
                    };
                    other.set_len(len as u64).unwrap();
                    std::thread::yield_now();
                }
            });
            let mut buffer = vec![7; size + 10_000];
            while !changes.is_finished() {
                let (back, moved) = file
                    .pread(buffer, .., 0, &options)
                    .wait()
                    .into_result()
                    .unwrap();
                assert!(moved.bytes >= size / 2 && moved.bytes <= size, "{moved:?}");
                assert!(
                    back[..moved.bytes].iter().all(|byte| *byte <= 1),
                    "bytes that never were there"
                );
                buffer = back;
                buffer.fill(7);
            }
        });
    }
}

/// The umask is the process's: in a process of its own, which changes nobody else's.
#[test]
fn a_file_that_is_made_has_its_mode_less_the_umask() {
    use std::os::unix::fs::PermissionsExt;
    let directory = directory();
    let mode_of = |path: &std::path::Path| {
        let metadata = std::fs::metadata(path).unwrap();
        metadata.permissions().mode() & 0o7777
    };
    let at = |name: &str| directory.path().join(name);
    let paths = ["default", "open", "narrow", "there"].map(at);
    std::fs::write(&paths[3], b"").unwrap();
    std::fs::set_permissions(&paths[3], std::fs::Permissions::from_mode(0o601)).unwrap();
    // SAFETY: the child makes files, which takes no lock of another thread's, and leaves by
    // `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: changes a number of the child's.
        unsafe { libc::umask(0o022) };
        let made = [
            FileHandle::open(&paths[0], "w").is_ok(),
            OpenOptions::new()
                .flags("x+")
                .mode(0o777)
                .open(&paths[1])
                .is_ok(),
            OpenOptions::new()
                .flags("a")
                .mode(0o640)
                .open(&paths[2])
                .is_ok(),
            OpenOptions::new()
                .flags("w")
                .mode(0o777)
                .open(&paths[3])
                .is_ok(),
        ];
        let code = i32::from(made != [true; 4]);
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: our own child; `status` is writable.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!((waited, status), (pid, 0));
    let modes = paths.each_ref().map(|path| mode_of(path));
    // The last one was there before.
    assert_eq!(modes, [0o644, 0o755, 0o640, 0o601], "{modes:?}");
}

#[test]
fn a_directory_is_no_file_with_offsets() {
    let directory = directory();
    let flags = libc::O_DIRECTORY;
    let fd = File::options()
        .read(true)
        .custom_flags(flags)
        .open(directory.path());
    let given = OpenOptions::new().from_fd(fd.unwrap().into()).unwrap_err();
    let FileErrorKind::DescriptorFlag { flag, .. } = given.kind else {
        panic!("{given}");
    };
    assert_eq!(flag, "O_DIRECTORY");
    let opened = FileHandle::open(directory.path(), "r").unwrap_err();
    let FileErrorKind::NotAFile { what } = opened.kind else {
        panic!("{opened}");
    };
    assert_eq!(what, "a directory");
}
