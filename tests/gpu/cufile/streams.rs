//! `FileHandle` in the order of a stream: by cuFile, and at once where there is none.

#![allow(unsafe_code)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast::storage::cufile::{BufferFlags, CuFile, Stream};
use fabricast::storage::{BackEnd, DeviceMemory, FileErrorKind, FileHandle, StreamFuture};

use super::fake::{Fake, NEWEST, in_child};
use super::gpu::{Gpu, Memory};
use super::suite::{KIB, folder, pattern};

const LEN: usize = 64 * KIB;
const SHORT: Duration = Duration::from_millis(30);
const OFF: [(&str, &str); 1] = [("FABRICAST_COMPAT_MODE", "OFF")];

/// GPU memory, and a mark that says whether it still lives.
struct Kept(Memory<'static>, #[expect(dead_code)] Arc<()>);

type Owned = DeviceMemory<Kept>;

struct Rig {
    file: FileHandle,
    fake: Fake,
    gpu: &'static Gpu,
    content: Vec<u8>,
    alive: Arc<()>,
}

impl Rig {
    fn new(dir: &Path) -> Self {
        let (path, content) = (dir.join("file"), pattern(LEN, 5));
        std::fs::write(&path, &content).unwrap();
        Self {
            file: FileHandle::open(&path, "r+").unwrap(),
            fake: Fake::load(),
            gpu: Box::leak(Box::new(Gpu::load())),
            content,
            alive: Arc::new(()),
        }
    }

    fn memory(&self) -> Owned {
        let memory = self.gpu.alloc(LEN);
        let base = memory.base().addr() as u64;
        let keep = Kept(memory, Arc::clone(&self.alive));
        // SAFETY: the memory lives as long as its owner, and the tests touch it between the
        // operations alone.
        unsafe { DeviceMemory::new(base, 0, LEN, keep) }
    }

    /// Buffers that were not freed.
    fn alive(&self) -> usize {
        Arc::strong_count(&self.alive) - 1
    }

    /// All is freed.
    fn close(mut self) {
        self.file.close();
        assert_eq!(self.alive(), 0);
        self.fake.assert_clean();
        assert_eq!(self.fake.cuda_number("fake_cuda_contexts_pushed"), 0);
    }
}

fn stream(raw: usize) -> Stream {
    let cufile = CuFile::get().expect("the fake");
    // SAFETY: the fake knows streams by number alone.
    unsafe { cufile.stream(std::ptr::without_provenance_mut(raw)) }.expect("a stream")
}

fn bytes(memory: &Owned) -> Vec<u8> {
    memory.keep().0.bytes()
}

/// The buffer, and the bytes that were moved by that back end.
fn over(future: StreamFuture<Owned>, by: BackEnd) -> (Owned, usize) {
    let outcome = future.check_bytes_done();
    let moved = outcome.result.expect("done");
    assert_eq!(moved.back_end, by);
    (outcome.buffer.expect("comes back"), moved.bytes)
}

#[test]
fn in_the_order_of_a_stream() {
    in_child("streams::in_the_order_of_a_stream", NEWEST, &OFF, || {
        let (_dir, path) = folder();
        let (rig, stream) = (Rig::new(&path), stream(7));
        let file = &rig.file;
        let read = file.read_async(rig.memory(), 100..1100, 5000, Some(&stream));
        assert!(read.is_asynchronous() && !read.is_done().unwrap());
        let began = Instant::now();
        let read = read
            .check_bytes_done_within(SHORT)
            .err()
            .expect("in flight");
        assert!(began.elapsed() >= SHORT, "nobody runs the stream");
        rig.fake.run_stream(7);
        assert!(read.is_done().unwrap());
        let outcome = read.check_bytes_done_within(SHORT).expect("over");
        let moved = outcome.result.unwrap();
        assert_eq!((moved.bytes, moved.back_end), (1000, BackEnd::CuFile));
        let memory = outcome.buffer.unwrap();
        assert!(bytes(&memory)[100..1100] == rig.content[5000..6000]);

        // Values that are set later, in memory that is registered.
        let cufile = CuFile::get().unwrap();
        let base = memory.keep().0.base();
        // SAFETY: the memory outlives the registration.
        let guard = unsafe { cufile.register_memory(base, LEN, BufferFlags::empty()) }.unwrap();
        let read = file.read_async(memory, ..1000, 0, Some(&stream));
        assert!(read.set_size(1001).is_err() && read.set_buffer_offset(LEN).is_err());
        read.set_size(500).unwrap();
        read.set_file_offset(9000).unwrap();
        read.set_buffer_offset(2000).unwrap();
        let (memory, moved) = over(read, BackEnd::CuFile);
        assert_eq!(moved, 500);
        assert!(bytes(&memory)[2000..2500] == rig.content[9000..9500]);
        drop(guard);

        // Over the end of the file it is short; a write goes on when the handle is closed.
        let (memory, moved) = over(
            file.read_async(memory, .., LEN as u64 - 10, Some(&stream)),
            BackEnd::CuFile,
        );
        assert_eq!(moved, 10);
        memory.keep().0.fill(&[3; LEN]);
        let mut rig = rig;
        let write = rig.file.write_async(memory, 10..20, 1000, Some(&stream));
        assert_eq!(rig.file.stats().read.operations(), 3);
        assert_eq!(rig.file.stats().write.operations(), 0, "it is not over");
        rig.file.close();
        let (memory, moved) = over(write, BackEnd::CuFile);
        assert_eq!(moved, 10);
        let written = std::fs::read(path.join("file")).unwrap();
        assert_eq!(written[1000..1010], [3; 10]);
        drop((memory, stream));
        rig.close();
    });
}

#[test]
fn dropped_in_flight() {
    in_child("streams::dropped_in_flight", NEWEST, &OFF, || {
        let (_dir, path) = folder();
        let (rig, stream) = (Rig::new(&path), stream(7));
        drop(rig.file.read_async(rig.memory(), .., 0, Some(&stream)));
        assert_eq!((rig.alive(), stream.in_flight()), (1, 1));
        stream.synchronize().unwrap();
        assert_eq!((rig.alive(), stream.in_flight()), (0, 0));
        drop(stream);
        rig.close();
    });
}

#[test]
fn what_is_refused_and_what_fails() {
    let test = "streams::what_is_refused_and_what_fails";
    in_child(test, NEWEST, &OFF, || {
        let (_dir, path) = folder();
        let (rig, stream) = (Rig::new(&path), stream(7));
        let on = Some(&stream);
        let refused = |future: StreamFuture<Owned>| {
            assert!(!future.is_asynchronous() && future.is_done().unwrap());
            assert!(future.set_size(1).is_err());
            let outcome = future.check_bytes_done();
            drop(outcome.buffer.expect("comes back"));
            outcome.result.unwrap_err()
        };
        let error = refused(rig.file.read_async(rig.memory(), 1..LEN + 1, 0, on));
        assert!(matches!(error.kind, FileErrorKind::Range { .. }), "{error}");
        let error = refused(rig.file.read_async(rig.memory(), .., u64::MAX - 5, on));
        assert_eq!(error.kind, FileErrorKind::TooLarge);
        let reader = FileHandle::open(rig.file.path(), "r").unwrap();
        let error = refused(reader.write_async(rig.memory(), .., 0, on));
        assert!(matches!(error.kind, FileErrorKind::NotOpenFor { .. }));
        let mut closed = reader;
        closed.close();
        let error = refused(closed.read_async(rig.memory(), .., 0, on));
        assert_eq!(error.kind, FileErrorKind::Closed);
        // cuFile takes none of it.
        rig.fake.fail("cuFileReadAsync", 5038, 0);
        let error = refused(rig.file.read_async(rig.memory(), ..100, 77, on));
        assert!(matches!(error.kind, FileErrorKind::CuFile(_)), "{error}");
        assert_eq!((error.offset, error.len), (Some(77), Some(100)));
        // It fails in the stream.
        rig.fake.fail("stream", -5, 0);
        let outcome = rig.file.read_async(rig.memory(), ..100, 78, on);
        let outcome = outcome.check_bytes_done();
        let error = outcome.result.unwrap_err();
        assert_eq!((error.errno(), error.offset), (Some(libc::EIO), Some(78)));
        assert_eq!(&*error.path, rig.file.path());
        drop((outcome.buffer.expect("comes back"), stream));
        rig.close();
    });
}

#[test]
fn at_once_without_cufile() {
    let env = [("FABRICAST_COMPAT_MODE", "ON")];
    in_child("streams::at_once_without_cufile", NEWEST, &env, || {
        let (_dir, path) = folder();
        let (rig, stream) = (Rig::new(&path), stream(7));
        assert!(rig.file.is_compat_mode_preferred_for_async());
        assert!(rig.file.compat_reason().contains("asked for"));
        for on in [Some(&stream), None] {
            let read = rig.file.read_async(rig.memory(), 5..1005, 2000, on);
            assert!(!read.is_asynchronous() && read.set_file_offset(0).is_err());
            let (memory, moved) = over(read, BackEnd::Staged);
            assert_eq!(moved, 1000);
            assert!(bytes(&memory)[5..1005] == rig.content[2000..3000]);
            let write = rig.file.write_async(memory, 5..10, 0, on);
            assert_eq!(over(write, BackEnd::Staged).1, 5);
        }
        let outcome = rig.file.read_async(vec![0; 5], .., 0, Some(&stream));
        let outcome = outcome.check_bytes_done();
        assert_eq!(outcome.result.unwrap().bytes, 5);
        assert!(outcome.buffer.unwrap() == rig.content[2000..2005]);
        assert_eq!(rig.fake.calls("cuFileReadAsync"), 0);
        // The stream is waited for before: where that fails, nothing is read.
        rig.fake.fail_synchronize(700);
        let outcome = rig.file.read_async(rig.memory(), .., 0, Some(&stream));
        let outcome = outcome.check_bytes_done();
        let error = outcome.result.unwrap_err();
        assert!(error.to_string().contains("ILLEGAL_ADDRESS"), "{error}");
        drop(outcome.buffer.expect("comes back"));
        rig.fake.fail_synchronize(0);
        drop(stream);
        rig.close();
    });
}

#[test]
fn compatibility_mode_for_streams_alone() {
    let test = "streams::compatibility_mode_for_streams_alone";
    let env = [("FABRICAST_COMPAT_MODE", "AUTO")];
    in_child(test, NEWEST, &env, || {
        let (_dir, path) = folder();
        let (rig, stream) = (Rig::new(&path), stream(7));
        if !rig.file.is_compat_mode_preferred_for_async() {
            return println!("SKIPPED: there is a cufile.json here");
        }
        let reason = rig.file.compat_reason();
        // Where the rest of the machine will do, it is for the missing cufile.json, and cuFile
        // still moves the bytes.
        let by = match rig.file.is_compat_mode_preferred() {
            true => BackEnd::Staged,
            false => {
                assert!(reason.contains("stream-ordered"), "{reason}");
                BackEnd::CuFile
            }
        };
        let read = rig.file.read_async(rig.memory(), .., 0, Some(&stream));
        assert!(!read.is_asynchronous());
        let (memory, moved) = over(read, by);
        assert_eq!(moved, LEN);
        assert!(bytes(&memory) == rig.content);
        assert_eq!(rig.fake.calls("cuFileReadAsync"), 0);
        drop((memory, stream));
        rig.close();
    });
}
