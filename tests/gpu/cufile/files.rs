//! GPU memory and `FileHandle`: through cuFile, and staged through pinned memory; over the fakes
//! and over a real GPU.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::path::Path;
use std::ptr;

use fabricast::storage::cufile::{CuFile, CuFileBatch, CuFileBatchEntry, CuFileBatchEvent, Opcode};
use fabricast::storage::{
    BackEnd, BackEndChoice, CompatMode, Defaults, DeviceMemory, DirectIo, FileErrorKind,
    FileHandle, IoBuf, IoOptions, OpenOptions, Place, ThreadPool, bounce_buffers_clear,
    pinned_buffers_clear,
};

use super::fake::{Fake, NEWEST, in_child};
use super::gpu::{Gpu, Memory};
use super::suite::{KIB, SOON, folder, pattern};

const MIB: usize = 1024 * KIB;
/// Longer than two halves of what is staged, and no multiple of anything.
const LONG: usize = 9 * MIB + 12_345;

/// GPU memory that is its own owner.
struct Owner(Memory<'static>);

type Owned = DeviceMemory<Owner>;

fn owned(gpu: &'static Gpu, len: usize) -> Owned {
    let memory = gpu.alloc(len);
    let base = memory.base().addr() as u64;
    // SAFETY: the memory lives as long as its owner, and the tests touch it between the operations
    // alone.
    unsafe { DeviceMemory::new(base, 0, len, Owner(memory)) }
}

fn bytes(memory: &Owned) -> Vec<u8> {
    memory.keep().0.bytes()
}

/// Reads and writes by that back end, blocking and not, at offsets and lengths of all kinds.
fn moves(gpu: &'static Gpu, file: &FileHandle, content: &[u8], options: &IoOptions, by: BackEnd) {
    let mut memory = owned(gpu, LONG + 100);
    for (start, len, offset) in [
        (0, 64 * KIB, 0),
        (0, LONG, 0),
        (100, LONG - 1000, 1000),
        (7, 100_000, 4 * MIB - 5),
        (4096, 4 * MIB, 4 * MIB),
        (50, 1, 3),
        (0, 0, 0),
    ] {
        memory.keep().0.fill(&vec![0xEE; LONG + 100]);
        let moved = file.read_into(&mut memory, start..start + len, offset as u64, options);
        let moved = moved.expect("read");
        assert_eq!(
            (moved.bytes, moved.back_end),
            (len, by),
            "{len} at {offset}"
        );
        let now = bytes(&memory);
        assert!(now[start..start + len] == content[offset..offset + len]);
        // A page on each side: nothing else was touched.
        let before = &now[start.saturating_sub(4096)..start];
        let behind = &now[start + len..(start + len + 4096).min(now.len())];
        assert!(before.iter().chain(behind).all(|byte| *byte == 0xEE));
    }
    // Over the end of the file it is short; behind it, nothing.
    let over = LONG - 5 * MIB - 77;
    let moved = file
        .read_into(&mut memory, .., over as u64, options)
        .unwrap();
    assert_eq!(moved.bytes, 5 * MIB + 77);
    assert!(bytes(&memory)[..5 * MIB + 77] == content[over..]);
    let moved = file.read_into(&mut memory, .., LONG as u64 + 1, options);
    assert_eq!(moved.unwrap().bytes, 0);
    // By a pool's threads.
    let outcome = file.pread(memory, 10..10 + LONG, 0, options).wait();
    let mut memory = outcome.buffer;
    assert_eq!(outcome.result.unwrap().bytes, LONG);
    assert!(bytes(&memory)[10..10 + LONG] == *content);
    let news = pattern(LONG, 77);
    memory.keep().0.fill(&news);
    let moved = file.write_from(&memory, 1000..LONG, 1000, options).unwrap();
    assert_eq!((moved.bytes, moved.back_end), (LONG - 1000, by));
    let outcome = file.pwrite(memory, ..1000, 0, options).wait();
    assert_eq!(outcome.result.unwrap().bytes, 1000);
    let written = std::fs::read(file.path()).unwrap();
    assert!(written == news, "{}", file.path().display());
    memory = outcome.buffer;
    memory.keep().0.fill(content);
    let outcome = file.pwrite(memory, ..LONG, 0, options).wait();
    assert_eq!(outcome.result.unwrap().bytes, LONG);
    assert!(std::fs::read(file.path()).unwrap() == content);
}

/// Both back ends, buffered and direct; cuFile where it takes the file.
pub(crate) fn all(dir: &Path) {
    let gpu: &'static Gpu = Box::leak(Box::new(Gpu::load()));
    let content = pattern(LONG, 21);
    let path = dir.join("gpu-file");
    for (direct, task_size) in [(DirectIo::On, None), (DirectIo::Off, Some(MIB))] {
        std::fs::write(&path, &content).unwrap();
        let file = OpenOptions::new()
            .flags("r+")
            .direct(direct)
            .open(&path)
            .unwrap();
        for (choice, by) in [
            (BackEndChoice::Posix, BackEnd::Staged),
            (BackEndChoice::CuFile, BackEnd::CuFile),
        ] {
            let options = IoOptions {
                back_end: Some(choice),
                task_size,
                ..IoOptions::default()
            };
            let mut probe = owned(gpu, 16);
            match file.read_into(&mut probe, .., 0, &options) {
                Err(error) if choice == BackEndChoice::CuFile => {
                    println!("SKIPPED: {error}");
                    assert!(
                        matches!(error.kind, FileErrorKind::Unsupported { .. }),
                        "{error}"
                    );
                }
                Err(error) => panic!("{error}"),
                Ok(moved) => {
                    assert_eq!(moved.back_end, by);
                    moves(gpu, &file, &content, &options, by);
                }
            }
        }
    }
    assert!(pinned_buffers_clear() > 0);
    assert_eq!(pinned_buffers_clear(), 0);
}

#[test]
fn gpu_memory_of_files() {
    let env = [("FABRICAST_COMPAT_MODE", "OFF")];
    in_child("files::gpu_memory_of_files", NEWEST, &env, || {
        let (_dir, path) = folder();
        all(&path);
        let fake = Fake::load();
        assert!(fake.calls("cuFileRead") > 0, "cuFile was used, too");
        assert_eq!(fake.cuda_number("fake_cuda_host_live"), 0, "pinned memory");
        assert_eq!(fake.cuda_number("fake_cuda_contexts_pushed"), 0);
        fake.assert_clean();
    });
}

#[test]
fn memory_that_belongs_to_no_context() {
    let env = [
        ("FABRICAST_COMPAT_MODE", "ON"),
        ("FAKE_CUDA_NO_CONTEXT", "1"),
    ];
    in_child(
        "files::memory_that_belongs_to_no_context",
        NEWEST,
        &env,
        || {
            let (_dir, path) = folder();
            all(&path);
            let fake = Fake::load();
            assert_eq!(
                fake.number("fake_driver_opens"),
                0,
                "compatibility mode is on"
            );
            fake.assert_clean();
        },
    );
}

#[test]
fn direct_reads_take_whole_pages_where_the_settings_say_so() {
    let env = [("KVIKIO_AUTO_DIRECT_IO_READ_OVERREAD", "on")];
    in_child(
        "files::direct_reads_take_whole_pages_where_the_settings_say_so",
        NEWEST,
        &env,
        || {
            let (_dir, path) = folder();
            // All offsets and lengths, byte for byte.
            all(&path);
            let (file, mut memory) = one_file(&path, 5 * MIB + 77);
            if let Some(reason) = file.direct_refused() {
                println!("SKIPPED: how much went around the page cache: {reason}");
                return;
            }
            let options = IoOptions {
                back_end: Some(BackEndChoice::Posix),
                direct: Some(DirectIo::On),
                ..IoOptions::default()
            };
            let (start, len) = (1000, 4 * MIB + 5000);
            let mut direct = || {
                let moved = file.read_into(&mut memory, ..len, start, &options);
                moved.unwrap().direct_bytes
            };
            assert_eq!(direct(), len);
            let scope = Defaults::scoped(|settings| settings.auto_direct_io_read_overread = false);
            assert!(direct() < len, "the edges went through the page cache");
            drop(scope);
            assert_eq!(direct(), len);
        },
    );
}

/// A file of those bytes, opened, and GPU memory.
fn one_file(dir: &Path, len: usize) -> (FileHandle, Owned) {
    let gpu: &'static Gpu = Box::leak(Box::new(Gpu::load()));
    let path = dir.join("file");
    std::fs::write(&path, pattern(len, 5)).unwrap();
    (FileHandle::open(&path, "r+").unwrap(), owned(gpu, len))
}

#[test]
fn small_transfers_are_staged() {
    let env = [("FABRICAST_COMPAT_MODE", "OFF")];
    in_child("files::small_transfers_are_staged", NEWEST, &env, || {
        let (_dir, path) = folder();
        // With nvidia-fs it does not copy.
        let fake = Fake::load();
        fake.properties(128, 2);
        let (file, mut memory) = one_file(&path, 64 * KIB);
        let options = IoOptions::default();
        let mut by = |len, options| {
            let moved = file.read_into(&mut memory, ..len, 0, options).unwrap();
            assert_eq!(moved.bytes, len);
            moved.back_end
        };
        assert_eq!(by(16 * KIB - 1, &options), BackEnd::Staged);
        assert_eq!(by(16 * KIB, &options), BackEnd::CuFile);
        let options = IoOptions {
            gds_threshold: Some(64 * KIB + 1),
            ..IoOptions::default()
        };
        assert_eq!(by(64 * KIB, &options), BackEnd::Staged);
    });
}

/// As KvikIO's pread and pwrite: by the thread that calls, and no thread is woken, or even made.
#[test]
fn small_transfers_are_done_by_the_thread_that_asks_for_them() {
    let env = [("FABRICAST_COMPAT_MODE", "OFF")];
    let test = "files::small_transfers_are_done_by_the_thread_that_asks_for_them";
    in_child(test, NEWEST, &env, || {
        let (_dir, path) = folder();
        let fake = Fake::load();
        fake.properties(128, 2);
        let (file, memory) = one_file(&path, 64 * KIB);
        let content = pattern(64 * KIB, 5);
        let pool = ThreadPool::new(1, 4).unwrap();
        // What is given to its thread stays there.
        pool.pause();
        let options = IoOptions {
            pool: Some(pool.clone()),
            ..IoOptions::default()
        };
        let done = || (pool.stats().queued_operations, pool.stats().done);
        let small = 16 * KIB - 1;
        let read = file.pread(memory, ..small, 7, &options);
        assert!(read.is_done(), "the future is ready");
        let (memory, moved) = read.wait().into_result().unwrap();
        assert_eq!((moved.bytes, moved.back_end), (small, BackEnd::Staged));
        assert!(bytes(&memory)[..small] == content[7..7 + small]);
        let written = file.pwrite(memory, ..small, 40 * KIB as u64, &options);
        assert!(written.is_done());
        let (memory, moved) = written.wait().into_result().unwrap();
        assert_eq!((moved.bytes, moved.back_end), (small, BackEnd::Staged));
        assert_eq!(done(), (0, 0), "no thread of the pool had a part in it");
        let now = std::fs::read(path.join("file")).unwrap();
        assert!(now[40 * KIB..40 * KIB + small] == content[7..7 + small]);
        // And without a pool of the user's, none is made for it.
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let before = threads();
        let read = file.pread(memory, ..small, 0, &IoOptions::default());
        assert!(read.is_done());
        let memory = read.wait().buffer;
        assert_eq!(threads(), before);

        // From the threshold on it is the pool's, and so is what cuFile was asked for. Whoever
        // waits takes part, and the entry in the queue is left.
        for (queued, (len, back_end)) in [(16 * KIB, None), (small, Some(BackEndChoice::CuFile))]
            .into_iter()
            .enumerate()
        {
            let options = IoOptions {
                back_end,
                ..options.clone()
            };
            let gpu: &'static Gpu = Box::leak(Box::new(Gpu::load()));
            let read = file.pread(owned(gpu, len), .., 0, &options);
            assert!(!read.is_done(), "{len}, {back_end:?}");
            assert_eq!(done(), (queued + 1, 0));
            let (_, moved) = read.wait().into_result().unwrap();
            assert_eq!((moved.bytes, moved.back_end), (len, BackEnd::CuFile));
        }
        drop(memory);
    });
}

/// KVIKIO_BOUNCE_BUFFER_SIZE, at the start and while the program runs.
#[test]
fn staging_goes_through_memory_of_the_size_that_the_setting_asks_for() {
    let env = [
        ("FABRICAST_COMPAT_MODE", "ON"),
        ("KVIKIO_BOUNCE_BUFFER_SIZE", "1048576"),
    ];
    let test = "files::staging_goes_through_memory_of_the_size_that_the_setting_asks_for";
    in_child(test, NEWEST, &env, || {
        let (_dir, path) = folder();
        assert_eq!(bounce_buffers_clear(), 0, "and CUDA is not looked for");
        let fake = Fake::load();
        let live = || fake.cuda_number("fake_cuda_host_live");
        let (file, mut memory) = one_file(&path, LONG);
        let content = pattern(LONG, 5);
        let mut read = || {
            memory.keep().0.fill(&vec![0xEE; LONG]);
            let moved = file.read_into(&mut memory, .., 0, &IoOptions::default());
            assert_eq!(moved.unwrap().bytes, LONG);
            assert!(bytes(&memory) == content);
        };
        // Two pieces, of a quarter each.
        read();
        assert_eq!(live(), 2);
        assert_eq!(pinned_buffers_clear(), MIB / 2);
        assert_eq!(live(), 0);

        // Those of another size go, whichever it was.
        read();
        for size in [4 * MIB, 100_000, 5] {
            let scope = Defaults::scoped(|settings| settings.bounce_buffer_size = size);
            read();
            assert_eq!(live(), 2, "{size}");
            drop(scope);
        }
        let page = 4096;
        let scope = Defaults::scoped(|settings| settings.bounce_buffer_size = 100_000);
        read();
        let quarter = 25_000_usize.next_multiple_of(page);
        assert_eq!(bounce_buffers_clear(), 2 * quarter, "pinned ones, too");
        drop(scope);
        assert_eq!((live(), pinned_buffers_clear()), (0, 0));

        // None are kept beyond what all bounce buffers may take.
        let scope = Defaults::scoped(|settings| settings.bounce_pool_size = MIB / 4);
        read();
        assert_eq!(live(), 1);
        drop(scope);
        bounce_buffers_clear();
        fake.assert_clean();
    });
}

/// Batches of cuFile over a file that was opened for reading and writing: registered once.
#[test]
fn the_handle_of_cufile_is_that_of_the_file() {
    let env = [("FABRICAST_COMPAT_MODE", "OFF")];
    let test = "files::the_handle_of_cufile_is_that_of_the_file";
    in_child(test, NEWEST, &env, || {
        let (_dir, path) = folder();
        let fake = Fake::load();
        fake.properties(128, 2);
        let (mut file, mut memory) = one_file(&path, 64 * KIB);
        let handle = file.cufile_handle().expect("not in compatibility mode");
        let moved = file.read_into(&mut memory, .., 0, &IoOptions::default());
        assert_eq!(moved.unwrap().back_end, BackEnd::CuFile);
        assert!(file.cufile_handle().is_some());
        assert_eq!(fake.calls("cuFileHandleRegister"), 1, "once");
        file.close();
        assert!(file.cufile_handle().is_none(), "closed");

        // It keeps its file open.
        memory.keep().0.fill(&[0; 64 * KIB]);
        let mut batch: CuFileBatch<()> = handle.cufile().batch(1).unwrap();
        let entry = CuFileBatchEntry {
            opcode: Opcode::Read,
            handle: handle.clone(),
            base: memory.keep().0.base(),
            buffer_offset: 0,
            len: 32 * KIB,
            file_offset: 1000,
            cookie: 1,
            keep: (),
        };
        // SAFETY: the memory outlives the batch's work.
        unsafe { batch.submit(vec![entry]) }.unwrap();
        let mut events = Vec::new();
        while batch.outstanding() > 0 {
            batch.poll(1, usize::MAX, SOON, &mut events).unwrap();
        }
        let [CuFileBatchEvent::Done { result, .. }] = &events[..] else {
            panic!("{events:?}");
        };
        assert_eq!(result.as_ref().unwrap(), &(32 * KIB));
        assert!(bytes(&memory)[..32 * KIB] == pattern(64 * KIB, 5)[1000..][..32 * KIB]);

        let on = OpenOptions::new().flags("r").compat_mode(CompatMode::On);
        let on = on.open(path.join("file")).unwrap();
        assert!(on.cufile_handle().is_none(), "compatibility mode");
        drop((handle, batch, events, memory, file, on));
        fake.assert_clean();
    });
}

#[test]
fn several_files_are_first_used_at_once() {
    let env = [("FABRICAST_COMPAT_MODE", "OFF")];
    let test = "files::several_files_are_first_used_at_once";
    in_child(test, NEWEST, &env, || {
        let (_dir, path) = folder();
        let fake = Fake::load();
        fake.properties(128, 2);
        let gpu: &'static Gpu = Box::leak(Box::new(Gpu::load()));
        let start = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for number in 0..4 {
                let (path, start) = (path.join(number.to_string()), &start);
                let mut memory = owned(gpu, MIB);
                scope.spawn(move || {
                    std::fs::write(&path, pattern(MIB, number)).unwrap();
                    let file = FileHandle::open(&path, "r").unwrap();
                    start.wait();
                    // For whoever asks by hand, the same holds.
                    let driver = CuFile::get().unwrap().driver().unwrap();
                    driver.properties().unwrap();
                    let moved = file.read_into(&mut memory, .., 0, &IoOptions::default());
                    assert_eq!(moved.unwrap().back_end, BackEnd::CuFile);
                    assert!(bytes(&memory) == pattern(MIB, number));
                });
            }
        });
    });
}

/// A cuFile that only copies through the host's memory is for long transfers.
#[test]
fn where_cufile_copies_it_gets_long_transfers() {
    let env = [("FABRICAST_COMPAT_MODE", "OFF")];
    let test = "files::where_cufile_copies_it_gets_long_transfers";
    in_child(test, NEWEST, &env, || {
        let (_dir, path) = folder();
        let fake = Fake::load();
        fake.properties(128, 0);
        let (file, mut memory) = one_file(&path, MIB + 1);
        let mut by = |len, back_end| {
            let options = IoOptions {
                back_end,
                ..IoOptions::default()
            };
            let moved = file.read_into(&mut memory, ..len, 0, &options).unwrap();
            assert_eq!(moved.bytes, len);
            moved.back_end
        };
        assert_eq!(by(MIB, None), BackEnd::Staged);
        assert_eq!(by(MIB + 1, None), BackEnd::CuFile);
        assert_eq!(by(1, Some(BackEndChoice::CuFile)), BackEnd::CuFile);
    });
}

#[test]
fn failures_are_told_with_what_was_done() {
    let env = [("FABRICAST_COMPAT_MODE", "OFF")];
    let test = "files::failures_are_told_with_what_was_done";
    in_child(test, NEWEST, &env, || {
        let (_dir, path) = folder();
        let (file, mut memory) = one_file(&path, 64 * KIB);
        let fake = Fake::load();
        let options = IoOptions {
            back_end: Some(BackEndChoice::CuFile),
            ..IoOptions::default()
        };
        fake.limit_io(10_000);
        // The third of several short ones fails: two are done.
        fake.fail_times("cuFileRead", -1, libc::EIO, 2, 1);
        let error = file.read_into(&mut memory, .., 0, &options).unwrap_err();
        assert_eq!((error.done, error.errno()), (20_000, Some(libc::EIO)));
        fake.fail_times("cuFileWrite", -5016, 0, 1, 1);
        let error = file.write_from(&memory, .., 0, &options).unwrap_err();
        assert_eq!(error.done, 10_000);
        assert!(matches!(error.kind, FileErrorKind::CuFile(_)), "{error}");
        // An interrupted one is made again.
        fake.fail("cuFileRead", -1, libc::EINTR);
        let moved = file.read_into(&mut memory, .., 0, &options).unwrap();
        assert_eq!(moved.bytes, 64 * KIB);
        // The GPU fails under a staged one: what was copied, nobody knows.
        let staged = IoOptions {
            back_end: Some(BackEndChoice::Posix),
            sync_default_stream: Some(false),
            ..IoOptions::default()
        };
        fake.fail_synchronize(700);
        let error = file.read_into(&mut memory, .., 0, &staged).unwrap_err();
        assert_eq!(error.done, 0);
        assert!(error.to_string().contains("ILLEGAL_ADDRESS"), "{error}");
        let error = file.write_from(&memory, .., 0, &staged).unwrap_err();
        assert_eq!(error.done, 0);
        let error = file.read_into(&mut memory, .., 0, &options).unwrap_err();
        assert!(error.to_string().contains("cuStreamQuery"), "{error}");
        fake.fail_synchronize(0);
        assert_eq!(fake.violation(), None);
    });
}

/// What was given to the default stream before is in the memory, unless the call says that it need
/// not be.
#[test]
fn the_default_stream_is_waited_for() {
    let test = "files::the_default_stream_is_waited_for";
    in_child(test, NEWEST, &[("FABRICAST_COMPAT_MODE", "OFF")], || {
        let (_dir, path) = folder();
        let (file, memory) = one_file(&path, 64 * KIB);
        CuFile::get().unwrap().ensure_context(0).unwrap();
        let Place::Device { base, .. } = memory.place() else {
            panic!("of a GPU");
        };
        type Upload = unsafe extern "C" fn(u64, *const u8, usize, *mut c_void) -> c_int;
        let gpu = Gpu::load();
        let upload = gpu.function::<Upload>("cuMemcpyHtoDAsync_v2");
        let mut value = 1;
        for back_end in [BackEndChoice::CuFile, BackEndChoice::Posix] {
            for sync in [None, Some(true), Some(false)] {
                let (before, after) = (vec![value; 64 * KIB], vec![value + 1; 64 * KIB]);
                memory.keep().0.fill(&before);
                // SAFETY: both are that long, and live until the stream was waited for.
                let code = unsafe { upload(base, after.as_ptr(), after.len(), ptr::null_mut()) };
                assert_eq!(code, 0);
                let options = IoOptions {
                    back_end: Some(back_end),
                    sync_default_stream: sync,
                    ..IoOptions::default()
                };
                file.write_from(&memory, .., 0, &options).unwrap();
                let there = std::fs::read(path.join("file")).unwrap();
                let waited = sync != Some(false);
                assert!(
                    there == if waited { &after } else { &before }[..],
                    "{options:?}"
                );
                Fake::load().run_stream(0);
                value += 2;
            }
        }
    });
}

#[test]
fn without_pinned_memory() {
    let env = [
        ("FABRICAST_COMPAT_MODE", "ON"),
        ("FAKE_CUDA_NO_PINNED", "1"),
    ];
    in_child("files::without_pinned_memory", NEWEST, &env, || {
        let (_dir, path) = folder();
        let (file, mut memory) = one_file(&path, 64 * KIB);
        let error = file.read_into(&mut memory, .., 0, &IoOptions::default());
        let error = error.unwrap_err();
        assert!(error.to_string().contains("cuMemHostAlloc"), "{error}");
    });
}

#[test]
fn without_a_gpu_the_reason_is_told() {
    let env = [("FAKE_CUDA_DEVICES", "0"), ("FAKE_OPEN_HANGS", "1")];
    in_child(
        "files::without_a_gpu_the_reason_is_told",
        NEWEST,
        &env,
        || {
            let (_dir, path) = folder();
            std::fs::write(path.join("file"), [1; 100]).unwrap();
            let file = FileHandle::open(path.join("file"), "r").unwrap();
            let mut host = vec![0; 100];
            let options = IoOptions::default();
            assert_eq!(
                file.read_into(&mut host, .., 0, &options).unwrap().bytes,
                100
            );
            // SAFETY: it is refused before anybody looks at the memory.
            let mut memory = unsafe { DeviceMemory::new(4096, 0, 100, ()) };
            let error = file.read_into(&mut memory, .., 0, &options).unwrap_err();
            assert!(
                error.to_string().contains("there is no CUDA device"),
                "{error}"
            );
        },
    );
}
