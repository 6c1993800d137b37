//! Vectors, many files, whole files, and space.

use std::io::{IoSlice, IoSliceMut};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, Instant};

use fabricast::storage::{
    AllocateMode, AtomicFile, DirectIo, FileErrorKind, FileHandle, IoOptions, OpenOptions,
    ReadRequest, ThreadPool, read_many, wait_all,
};
use tempfile::TempDir;

use super::random::{Random, at_address};

fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[test]
fn vectors_are_one_run_of_the_file() {
    let directory = directory();
    let mut random = Random::new(3);
    for direct in [DirectIo::Off, DirectIo::On] {
        let path = directory.path().join(format!("{direct:?}"));
        let file = OpenOptions::new()
            .flags("w+")
            .direct(direct)
            .open(&path)
            .unwrap();
        for _ in 0..50 {
            let count = random.of(&[0, 1, 2, 3, 1500]);
            let lens: Vec<_> = (0..count)
                .map(|_| random.of(&[0, 1, 100, 4096, 4096]))
                .collect();
            let offset = random.of(&[0, 1, 4096]);
            let mut written = vec![0; lens.iter().sum()];
            random.fill(&mut written);
            let mut rest = &written[..];
            let pieces: Vec<_> = lens
                .iter()
                .map(|len| IoSlice::new(rest.split_off(..*len).unwrap()))
                .collect();
            assert_eq!(file.writev(&pieces, offset).unwrap().bytes, written.len());
            let mut memory = vec![0; written.len() + 10];
            let mut rest = &mut memory[..];
            let mut pieces: Vec<_> = lens
                .iter()
                .rev()
                .map(|len| IoSliceMut::new(rest.split_off_mut(..*len).unwrap()))
                .collect();
            assert_eq!(
                file.readv(&mut pieces, offset).unwrap().bytes,
                written.len()
            );
            assert!(memory[..written.len()] == written);
        }
        let size = file.refresh().unwrap();
        let mut tail = [0; 100];
        let moved = file.readv(
            &mut [IoSliceMut::new(&mut [0; 10]), IoSliceMut::new(&mut tail)],
            size - 20,
        );
        assert_eq!(moved.unwrap().bytes, 20, "short at the end");
    }
}

#[test]
fn vectors_that_are_aligned_go_direct() {
    let directory = directory();
    let file = OpenOptions::new()
        .flags("w+")
        .direct(DirectIo::On)
        .open(directory.path().join("file"))
        .unwrap();
    if let Some(reason) = file.direct_refused() {
        println!("SKIPPED: {reason}");
        return;
    }
    let (buffer, range) = at_address(1 << 20, 0);
    let pieces: Vec<_> = buffer[range.clone()]
        .chunks(8192)
        .map(IoSlice::new)
        .collect();
    assert_eq!(file.writev(&pieces, 4096).unwrap().direct_bytes, 1 << 20);
    assert_eq!(
        file.writev(&pieces, 512).unwrap().direct_bytes,
        0,
        "not in whole pages"
    );
    let (mut buffer, range) = at_address(1 << 20, 0);
    let mut pieces: Vec<_> = buffer[range]
        .chunks_mut(8192)
        .map(IoSliceMut::new)
        .collect();
    assert_eq!(file.readv(&mut pieces, 4096).unwrap().direct_bytes, 1 << 20);
}

#[test]
fn many_files_more_than_the_queue_takes() {
    let directory = directory();
    let files: Vec<_> = (0..10u8)
        .map(|n| {
            let path = directory.path().join(n.to_string());
            std::fs::write(&path, vec![n; 10_000]).unwrap();
            FileHandle::open(path, "r").unwrap()
        })
        .collect();
    let options = IoOptions {
        pool: Some(ThreadPool::new(2, 4).unwrap()),
        ..IoOptions::default()
    };
    let requests = (0..200).map(|n| ReadRequest {
        file: &files[n % 10],
        offset: n as u64 * 40,
        buffer: vec![0xFF; 3000],
        range: 100..2100,
    });
    let futures = read_many(requests, &options);
    let outcomes = wait_all(futures, Instant::now() + Duration::from_secs(120));
    assert_eq!(outcomes.len(), 200);
    for (n, outcome) in outcomes.into_iter().enumerate() {
        let outcome = outcome.unwrap();
        let moved = outcome.result.unwrap().bytes;
        assert_eq!(moved, 2000);
        assert!(
            outcome.buffer[100..2100]
                .iter()
                .all(|byte| usize::from(*byte) == n % 10)
        );
    }
}

#[test]
fn one_file_that_fails_leaves_the_others_alone() {
    let directory = directory();
    let path = directory.path().join("file");
    let readable = FileHandle::open(&path, "w+").unwrap();
    readable.write(&[5; 100], 0).unwrap();
    let writable = FileHandle::open(&path, "r+").unwrap();
    let not = OpenOptions::new().write(true).open(&path).unwrap();
    let request = |file| ReadRequest {
        file,
        offset: 0,
        buffer: vec![0; 100],
        range: 0..100,
    };
    let futures = read_many(
        [request(&readable), request(&not), request(&writable)],
        &IoOptions::default(),
    );
    let results: Vec<_> = futures
        .into_iter()
        .map(|future| future.wait().result)
        .collect();
    assert!(results[0].is_ok() && results[2].is_ok());
    assert!(matches!(
        results[1].as_ref().unwrap_err().kind,
        FileErrorKind::NotOpenFor { .. }
    ));
}

#[test]
fn a_whole_file_appears_at_once() {
    let directory = directory();
    let path = directory.path().join("target");
    let names = || std::fs::read_dir(directory.path()).unwrap().count();
    FileHandle::write_atomically(&path, b"first", 0o640).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"first");
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o640
    );
    let reader = FileHandle::open(&path, "r").unwrap();
    let new = AtomicFile::create(&path, 0o600).unwrap();
    new.file().write(&[7; 100_000], 100_000).unwrap();
    assert_eq!(
        (names(), std::fs::read(&path).unwrap()),
        (2, b"first".to_vec())
    );
    new.commit().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes[..100_000].iter().all(|byte| *byte == 0) && bytes[100_000..] == [7; 100_000]);
    let mut old = [0; 10];
    assert_eq!(
        reader.read(&mut old, 0).unwrap().bytes,
        5,
        "who has it open keeps it"
    );
    drop(AtomicFile::create(&path, 0o600).unwrap());
    assert_eq!(names(), 1, "not committed, not there");
    let new = AtomicFile::create(&path, 0o600).unwrap();
    assert_eq!(new.commit_new().unwrap_err().errno(), Some(libc::EEXIST));
    assert_eq!((names(), std::fs::read(&path).unwrap().len()), (1, 200_000));
    let other = directory.path().join("x".repeat(255));
    AtomicFile::create(&other, 0o600)
        .unwrap()
        .commit_new()
        .unwrap();
    assert_eq!(
        std::fs::metadata(&other).unwrap().len(),
        0,
        "the longest name that there may be"
    );
}

#[test]
fn a_whole_file_that_need_not_be_on_the_device_yet() {
    let directory = directory();
    let path = directory.path().join("target");
    let names = || -> Vec<_> {
        let listed = std::fs::read_dir(directory.path()).unwrap();
        listed.map(|entry| entry.unwrap().file_name()).collect()
    };
    let new = AtomicFile::create(&path, 0o600).unwrap();
    new.file().write(b"first", 0).unwrap();
    assert!(names().iter().all(AtomicFile::is_temporary));
    new.commit_new_unsynced().unwrap();
    let new = AtomicFile::create(&path, 0o600).unwrap();
    let error = new.commit_new_unsynced().unwrap_err();
    assert_eq!(error.errno(), Some(libc::EEXIST));
    let new = AtomicFile::create(&path, 0o600).unwrap();
    new.file().write(b"second", 0).unwrap();
    new.commit_unsynced().unwrap();
    assert_eq!(
        (names(), std::fs::read(&path).unwrap()),
        (vec!["target".into()], b"second".to_vec())
    );
    for name in [
        "",
        ".tmp",
        ".0123456789abcdef.tmp",
        "..0123456789abcdef.tmp",
        "a.0123456789abcdef.tmp",
        ".a.0123456789ABCDEF.tmp",
        ".a.0123456789abcde.tmp",
        ".a.0123456789abcdef.tmp ",
    ] {
        assert!(!AtomicFile::is_temporary(name), "{name}");
    }
    assert!(AtomicFile::is_temporary("..zarray.0123456789abcdef.tmp"));
}

#[test]
fn a_whole_file_that_can_not_be_says_so_by_its_own_name() {
    let directory = directory();
    let missing = directory.path().join("missing/target");
    let error = FileHandle::write_atomically(&missing, b"x", 0o600).unwrap_err();
    assert_eq!(
        (error.errno(), &*error.path),
        (Some(libc::ENOENT), &*missing)
    );
    let error = FileHandle::write_atomically(directory.path(), b"x", 0o600).unwrap_err();
    assert!(
        matches!(
            error.errno(),
            Some(libc::EISDIR | libc::EEXIST | libc::ENOTEMPTY)
        ),
        "{error}"
    );
    assert!(FileHandle::write_atomically("/", b"x", 0o600).is_err());
    assert!(FileHandle::write_atomically("..", b"x", 0o600).is_err());
    let link = directory.path().join("link");
    symlink("target", &link).unwrap();
    FileHandle::write_atomically(&link, b"x", 0o600).unwrap();
    assert!(
        !std::fs::symlink_metadata(&link).unwrap().is_symlink(),
        "replaced, not followed"
    );
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn space_is_reserved_given_back_and_cut() {
    let directory = directory();
    let path = directory.path().join("file");
    let file = FileHandle::open(&path, "w+").unwrap();
    match file.allocate(0..1 << 20, AllocateMode::Extend) {
        Err(error) if matches!(error.kind, FileErrorKind::Unsupported { .. }) => {
            println!("SKIPPED: {error}");
            return;
        }
        other => other.unwrap(),
    }
    let blocks = || std::fs::metadata(&path).unwrap().blocks() * 512;
    assert_eq!(file.nbytes().unwrap(), 1 << 20);
    assert!(blocks() >= 1 << 20);
    file.write(&[3; 1 << 20], 0).unwrap();
    file.allocate(65_536..131_072, AllocateMode::PunchHole)
        .unwrap();
    assert_eq!(file.nbytes().unwrap(), 1 << 20);
    let mut bytes = vec![1; 1 << 20];
    file.read(&mut bytes, 0).unwrap();
    assert!(bytes[65_536..131_072].iter().all(|byte| *byte == 0));
    assert!(
        bytes[..65_536]
            .iter()
            .chain(&bytes[131_072..])
            .all(|byte| *byte == 3)
    );
    file.allocate(2 << 20..3 << 20, AllocateMode::KeepSize)
        .unwrap();
    assert_eq!(file.nbytes().unwrap(), 1 << 20);
    file.allocate(0..4096, AllocateMode::Zero).unwrap();
    file.truncate(100).unwrap();
    assert_eq!(file.nbytes().unwrap(), 100);
    assert_eq!(std::fs::read(&path).unwrap(), [0; 100]);
    let (offset, future) = file.append(vec![1; 5], .., &IoOptions::default()).unwrap();
    assert_eq!(offset, 100, "behind the new end");
    future.wait().result.unwrap();
    file.truncate(5 << 30).unwrap();
    assert_eq!(file.nbytes().unwrap(), 5 << 30);
    file.sync_all().unwrap();
    file.sync_data().unwrap();
    file.allocate(10..10, AllocateMode::Extend).unwrap();
    let error = file.truncate(u64::MAX).unwrap_err();
    assert_eq!(error.kind, FileErrorKind::TooLarge);
    let reader = FileHandle::open(&path, "r").unwrap();
    for error in [
        reader.truncate(0),
        reader.allocate(0..1, AllocateMode::Extend),
    ] {
        assert!(matches!(
            error.unwrap_err().kind,
            FileErrorKind::NotOpenFor { .. }
        ));
    }
}
