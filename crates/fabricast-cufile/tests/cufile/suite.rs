//! What works over the real library and over the fake: files, host and GPU memory, streams,
//! batches, statistics.
//!
//! Each step asserts what came into the file or the memory, byte by byte.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast_cufile::{
    AsyncRequest, BufferFlags, CuFile, CuFileBatch, CuFileBatchEntry, CuFileBatchEvent,
    CuFileError, CuFileStatus, GpuPaths, Handle, IoVec, Opcode, StatsLevel, StreamFlags,
};

use super::gpu::Gpu;
pub(crate) use crate::pattern::pattern;

pub(crate) const KIB: usize = 1024;
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A file with these bytes, and the handle of another descriptor of it.
pub(crate) fn file(cufile: &'static CuFile, at: &Path, bytes: &[u8], flags: i32) -> Handle {
    std::fs::write(at, bytes).expect("written");
    cufile.register(open(at, flags)).expect("registered")
}

pub(crate) fn open(at: &Path, flags: i32) -> Arc<OwnedFd> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(at)
        .expect("opened");
    Arc::new(file.into())
}

/// Host memory that begins at a page, as O_DIRECT asks for.
pub(crate) struct Pages {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Pages {
    pub(crate) fn new(len: usize) -> Self {
        let bytes = vec![0_u8; len + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        Self { bytes, start, len }
    }

    pub(crate) fn of(content: &[u8]) -> Self {
        let mut pages = Self::new(content.len());
        pages.bytes_mut().copy_from_slice(content);
        pages
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }

    pub(crate) fn base(&mut self) -> *mut c_void {
        self.bytes_mut().as_mut_ptr().cast()
    }
}

/// Why cuFile knows no file here: the udev database says nothing of the disk.
pub(crate) fn refused(cufile: &'static CuFile, dir: &Path) -> Option<String> {
    let at = dir.join("probe");
    std::fs::write(&at, b"probe").expect("written");
    let error = cufile.register(open(&at, 0)).err()?;
    assert_eq!(
        error.status(),
        Some(CuFileStatus::HANDLE_NOT_REGISTERED),
        "{error}"
    );
    Some(error.to_string())
}

/// Everything, in files of that folder.
pub(crate) fn all(cufile: &'static CuFile, dir: &Path) {
    let gpu = Gpu::load();
    cufile.ensure_context(0).expect("a context");
    properties(cufile);
    for (name, flags) in [("buffered", 0), ("direct", libc::O_DIRECT)] {
        host_memory(cufile, &dir.join(format!("host-{name}")), flags);
        gpu_memory(cufile, &gpu, &dir.join(format!("gpu-{name}")), flags);
    }
    without_context(cufile, &dir.join("no-context"));
    vectored(cufile, &dir.join("vectored"));
    streams(cufile, &gpu, &dir.join("streams"));
    batches(cufile, &gpu, &dir.join("batches"));
    statistics(cufile, &gpu, &dir.join("statistics"));
    reopening(cufile, &dir.join("reopening"));
}

fn properties(cufile: &'static CuFile) {
    let driver = cufile.driver().expect("opens");
    println!("{cufile:?}");
    let properties = driver.properties().expect("properties");
    println!("{properties:?}");
    assert!(properties.max_direct_io_size_kb >= 64, "{properties:?}");
    assert!(properties.max_batch_io_size >= 1, "{properties:?}");
    assert!(cufile.use_count().is_some_and(|count| count >= 1));
    if cufile.capabilities().bar_size {
        println!("BAR of GPU 0: {:?} KiB", driver.bar_size_kb(0));
    }
    assert!(cufile.is_driver_open());
    match cufile.close_driver() {
        Err(CuFileError::InUse { users: 1 }) => {}
        other => panic!("closed under its user: {other:?}"),
    }
}

fn host_memory(cufile: &'static CuFile, at: &Path, flags: i32) {
    let content = pattern(1024 * KIB + 100, 1);
    let handle = file(cufile, at, &content, flags);
    let mut pages = Pages::new(1024 * KIB);
    assert_eq!(handle.read_host(pages.bytes_mut(), 0).unwrap(), 1024 * KIB);
    assert_eq!(pages.bytes(), &content[..1024 * KIB]);
    // Neither memory nor offset nor length is a multiple of anything.
    let mut odd = vec![0; 70_001];
    assert_eq!(handle.read_host(&mut odd[1..], 4097).unwrap(), 70_000);
    assert_eq!(odd[1..], content[4097..74_097]);
    // The end of the file makes it short; behind it there is nothing.
    let end = 1024 * KIB as u64;
    assert_eq!(handle.read_host(&mut odd, end).unwrap(), 100);
    assert_eq!(odd[..100], content[1024 * KIB..]);
    assert_eq!(handle.read_host(&mut odd, end + 200).unwrap(), 0);
    assert_eq!(handle.read_host(&mut [], 0).unwrap(), 0);
    let news = Pages::of(&pattern(256 * KIB, 2));
    assert_eq!(handle.write_host(news.bytes(), 4096).unwrap(), 256 * KIB);
    assert_eq!(handle.write_host(&news.bytes()[..777], 7).unwrap(), 777);
    let mut expected = content;
    expected[4096..4096 + 256 * KIB].copy_from_slice(news.bytes());
    expected[7..7 + 777].copy_from_slice(&news.bytes()[..777]);
    drop(handle);
    assert!(std::fs::read(at).unwrap() == expected, "{}", at.display());
}

/// A thread in which no CUDA context is current can use host memory.
fn without_context(cufile: &'static CuFile, at: &Path) {
    let at = at.to_owned();
    let thread = std::thread::spawn(move || host_memory(cufile, &at, libc::O_DIRECT));
    thread.join().expect("without a context");
}

fn gpu_memory(cufile: &'static CuFile, gpu: &Gpu, at: &Path, flags: i32) {
    let content = pattern(512 * KIB + 10, 3);
    let handle = file(cufile, at, &content, flags);
    let memory = gpu.alloc(1024 * KIB);
    for registered in [false, true] {
        memory.fill(&vec![0; memory.len()]);
        // SAFETY: the memory outlives the registration.
        let registration = registered.then(|| unsafe {
            cufile
                .register_memory(memory.base(), memory.len(), BufferFlags::empty())
                .expect("registered")
        });
        // SAFETY: the ranges are in the memory, which nobody else uses.
        let done = unsafe { handle.read(memory.base(), 8192, 512 * KIB, 0) };
        assert_eq!(done.unwrap(), 512 * KIB);
        // SAFETY: as above.
        let done = unsafe { handle.read(memory.base(), 600 * KIB, 100 * KIB, 512 * KIB as u64) };
        assert_eq!(done.unwrap(), 10, "the end of the file");
        let bytes = memory.bytes();
        assert!(bytes[8192..8192 + 512 * KIB] == content[..512 * KIB]);
        assert!(bytes[600 * KIB..600 * KIB + 10] == content[512 * KIB..]);
        assert!(bytes[..8192].iter().all(|byte| *byte == 0));
        if let Some(registration) = registration {
            assert_eq!(registration.base(), memory.base());
            registration.deregister().expect("deregistered");
        }
    }
    // SAFETY: as above.
    let done = unsafe { handle.write(memory.base(), 8192, 128 * KIB, 64 * KIB as u64) };
    assert_eq!(done.unwrap(), 128 * KIB);
    let mut expected = content.clone();
    expected[64 * KIB..192 * KIB].copy_from_slice(&content[..128 * KIB]);
    drop(handle);
    assert!(std::fs::read(at).unwrap() == expected, "{}", at.display());
}

fn vectored(cufile: &'static CuFile, at: &Path) {
    let content = pattern(64 * KIB, 4);
    let handle = file(cufile, at, &content, 0);
    let (mut one, mut two) = (Pages::new(16 * KIB), Pages::new(32 * KIB));
    let vectors = [
        IoVec {
            base: one.base(),
            len: 16 * KIB,
        },
        IoVec {
            base: std::ptr::null_mut(),
            len: 0,
        },
        IoVec {
            base: two.base(),
            len: 32 * KIB,
        },
    ];
    // SAFETY: both are that long, and nobody else uses them.
    let read = unsafe { handle.readv(&vectors, 4096) };
    if !cufile.capabilities().vectored {
        let error = read.expect_err("there is no cuFileReadv");
        assert!(matches!(error, CuFileError::Lacks { .. }), "{error}");
        println!("PARTLY SKIPPED: vectored: {error}");
        return;
    }
    assert_eq!(read.unwrap(), 48 * KIB);
    assert!(one.bytes() == &content[4096..20 * KIB]);
    assert!(two.bytes() == &content[20 * KIB..52 * KIB]);
    // SAFETY: as above.
    let written = unsafe { handle.writev(&vectors, 0) };
    assert_eq!(written.unwrap(), 48 * KIB);
    let now = std::fs::read(at).unwrap();
    assert!(now[..48 * KIB] == content[4096..52 * KIB]);
    assert!(now[52 * KIB..] == content[52 * KIB..]);
}

fn request(base: *mut c_void, len: usize, at: u64, behind: usize, size: usize) -> AsyncRequest {
    AsyncRequest {
        base,
        buffer_len: len,
        size,
        file_offset: at,
        buffer_offset: behind,
    }
}

fn streams(cufile: &'static CuFile, gpu: &Gpu, at: &Path) {
    let content = pattern(256 * KIB + 5, 5);
    let handle = file(cufile, at, &content, libc::O_DIRECT);
    let raw = gpu.stream();
    let memory = gpu.alloc(512 * KIB);
    for flags in [None, Some(StreamFlags::empty()), Some(StreamFlags::all())] {
        // SAFETY: the stream is destroyed at the end, when nobody uses it.
        let stream = unsafe { cufile.stream(raw) }.expect("a stream");
        if let Some(flags) = flags {
            stream.register(flags).expect("registered");
        }
        memory.fill(&vec![0; memory.len()]);
        let wanted = request(memory.base(), memory.len(), 4096, 8192, 128 * KIB);
        // SAFETY: the memory outlives the operation, which is waited for.
        let operation = unsafe { stream.read_async(&handle, wanted, "kept") }.expect("submitted");
        let outcome = operation.check_bytes_done_within(SOON).expect("in time");
        assert_eq!(outcome.result.unwrap(), 128 * KIB);
        assert_eq!(outcome.keep, Some("kept"));
        assert!(memory.bytes()[8192..8192 + 128 * KIB] == content[4096..4096 + 128 * KIB]);
        // Back into the file, from the same memory, in the order of the stream.
        let wanted = request(memory.base(), memory.len(), 64 * KIB as u64, 8192, 64 * KIB);
        // SAFETY: as above.
        let write = unsafe { stream.write_async(&handle, wanted, ()) }.expect("submitted");
        let again = request(
            memory.base(),
            memory.len(),
            64 * KIB as u64,
            256 * KIB,
            64 * KIB,
        );
        // SAFETY: as above; the ranges are others.
        let read = unsafe { stream.read_async(&handle, again, ()) }.expect("submitted");
        assert_eq!(stream.in_flight(), 2);
        assert_eq!(read.check_bytes_done().result.unwrap(), 64 * KIB);
        assert_eq!(write.check_bytes_done().result.unwrap(), 64 * KIB);
        let bytes = memory.bytes();
        assert!(bytes[256 * KIB..320 * KIB] == content[4096..4096 + 64 * KIB]);
        assert_eq!(stream.in_flight(), 0);
        // The end of the file.
        if flags != Some(StreamFlags::all()) {
            let wanted = request(memory.base(), memory.len(), 256 * KIB as u64, 0, 64 * KIB);
            // SAFETY: as above.
            let end = unsafe { stream.read_async(&handle, wanted, ()) }.expect("submitted");
            assert_eq!(end.check_bytes_done().result.unwrap(), 5);
        }
        // Dropped without a look: freed when the stream has passed.
        let wanted = request(memory.base(), memory.len(), 0, 0, 4096);
        let kept = Arc::new(());
        // SAFETY: as above: the stream is synchronised below.
        drop(unsafe { stream.read_async(&handle, wanted, Arc::clone(&kept)) }.expect("submitted"));
        stream.synchronize().expect("synchronised");
        assert_eq!((stream.in_flight(), Arc::strong_count(&kept)), (0, 1));
        stream.deregister().expect("deregistered");
        std::fs::write(at, &content).unwrap();
    }
    gpu.destroy(raw);
}

/// Polls until so many are over.
pub(crate) fn collect<K>(batch: &mut CuFileBatch<K>, count: usize) -> Vec<CuFileBatchEvent<K>> {
    let (mut events, until) = (Vec::new(), Instant::now() + SOON);
    while events.len() < count {
        assert!(Instant::now() < until, "{} of {count} events", events.len());
        let min = count - events.len();
        batch
            .poll(min, usize::MAX, Duration::from_millis(200), &mut events)
            .expect("polled");
    }
    events
}

fn batches(cufile: &'static CuFile, gpu: &Gpu, at: &Path) {
    let content = pattern(256 * KIB, 6);
    let handle = file(cufile, at, &content, libc::O_DIRECT);
    let mut batch: CuFileBatch<usize> = cufile.batch(8).expect("set up");
    let memory = gpu.alloc(256 * KIB);
    let mut host = Pages::new(256 * KIB);
    for (base, registered) in [
        (memory.base(), false),
        (host.base(), false),
        (memory.base(), true),
    ] {
        if registered {
            assert!(
                memory.bytes() == content,
                "GPU memory that is not registered"
            );
            memory.fill(&vec![0; memory.len()]);
        }
        // SAFETY: the memory outlives the registration.
        let register =
            || unsafe { cufile.register_memory(base, memory.len(), BufferFlags::empty()) };
        let _guard = registered.then(|| register().expect("registered"));
        // Twice: a batch is used again when its entries are over.
        for _ in 0..2 {
            let part = 32 * KIB;
            let entries = (0..8).map(|index| CuFileBatchEntry {
                opcode: Opcode::Read,
                handle: handle.clone(),
                base,
                buffer_offset: index * part,
                len: part,
                file_offset: (index * part) as u64,
                cookie: 100 + index as u64,
                keep: index,
            });
            // SAFETY: the parts are apart, in memory that outlives the batch's work.
            unsafe { batch.submit(entries.collect()) }.expect("submitted");
            assert_eq!(batch.outstanding(), 8);
            let mut seen = Vec::new();
            for event in collect(&mut batch, 8) {
                let CuFileBatchEvent::Done {
                    cookie,
                    result,
                    keep,
                    ..
                } = event
                else {
                    panic!("{event:?}");
                };
                assert_eq!(result.expect("read"), part);
                assert_eq!(cookie, 100 + keep as u64);
                seen.push(keep);
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..8).collect::<Vec<_>>());
        }
    }
    assert!(memory.bytes() == content, "GPU memory");
    assert!(host.bytes() == content, "host memory");
    let write = CuFileBatchEntry {
        opcode: Opcode::Write,
        handle: handle.clone(),
        base: memory.base(),
        buffer_offset: 0,
        len: 64 * KIB,
        file_offset: 128 * KIB as u64,
        cookie: 7,
        keep: 0,
    };
    // SAFETY: as above.
    unsafe { batch.submit(vec![write]) }.expect("submitted");
    let events = collect(&mut batch, 1);
    assert!(matches!(
        &events[..],
        [CuFileBatchEvent::Done { cookie: 7, result: Ok(n), .. }] if *n == 64 * KIB
    ));
    assert_eq!(batch.strays(), 0);
    batch.destroy().expect("nothing is left");
    drop(handle);
    let now = std::fs::read(at).unwrap();
    assert!(now[128 * KIB..192 * KIB] == content[..64 * KIB]);
}

fn statistics(cufile: &'static CuFile, gpu: &Gpu, at: &Path) {
    if !cufile.capabilities().statistics {
        println!(
            "PARTLY SKIPPED: statistics: {:?} has none",
            cufile.version()
        );
        return;
    }
    cufile.set_stats_level(StatsLevel::VERBOSE).expect("level");
    assert_eq!(cufile.stats_level().unwrap(), StatsLevel::VERBOSE);
    let driver = cufile.driver().expect("open");
    driver.start_stats().expect("started");
    let content = pattern(1024 * KIB, 8);
    let handle = file(cufile, at, &content, libc::O_DIRECT);
    let memory = gpu.alloc(1024 * KIB);
    let before = driver.stats_l3().expect("statistics");
    for _ in 0..4 {
        // SAFETY: the range is in the memory, which nobody else uses.
        let done = unsafe { handle.read(memory.base(), 0, 1024 * KIB, 0) };
        assert_eq!(done.unwrap(), 1024 * KIB);
    }
    let after = driver.stats_l3().expect("statistics");
    println!("{:?}", after.detailed.basic);
    let paths = GpuPaths::between(&before, &after);
    println!("{paths:?}: GPU-direct: {:?}", paths.reads.gpu_direct());
    let (first, then) = (&before.detailed.basic, &after.detailed.basic);
    // 1.15 counts each of them twice.
    let reads = then.read_ops.ok - first.read_ops.ok;
    assert!(reads == 4 || reads == 8, "{reads} reads");
    assert_eq!(then.read_bytes - first.read_bytes, 4 * 1024 * KIB as u64);
    let level1 = driver.stats_l1().expect("statistics");
    assert_eq!(level1.read_bytes, then.read_bytes);
    let level2 = driver.stats_l2().expect("statistics");
    assert_eq!(level2.read_size_kb_hist, after.detailed.read_size_kb_hist);
    assert!(!after.gpus.is_empty());
    driver.reset_stats().expect("reset");
    driver.stop_stats().expect("stopped");
}

fn reopening(cufile: &'static CuFile, at: &Path) {
    cufile.close_driver().expect("nobody uses it");
    assert!(!cufile.is_driver_open());
    let content = pattern(4096, 9);
    let handle = file(cufile, at, &content, 0);
    let mut bytes = vec![0; 4096];
    assert_eq!(handle.read_host(&mut bytes, 0).unwrap(), 4096);
    assert!(bytes == content);
    drop(handle);
    cufile.close_driver().expect("nobody uses it");
}

/// Where the files of a test go: a folder of the test's own, or one of the disk that is to be
/// tested.
pub(crate) fn folder() -> (tempfile::TempDir, PathBuf) {
    let dir = match std::env::var_os("FABRICAST_TEST_DIR") {
        Some(at) => tempfile::tempdir_in(at),
        None => tempfile::tempdir(),
    };
    let dir = dir.expect("a folder");
    let path = dir.path().to_owned();
    (dir, path)
}
