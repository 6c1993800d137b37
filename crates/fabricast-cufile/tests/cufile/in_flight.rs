//! What cuFile still works on is never freed, and what became of it is told once: streams and
//! batches.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fabricast_cufile::{
    AsyncRequest, BatchStatus, BufferFlags, BufferRegistration, CuFile, CuFileBatch,
    CuFileBatchEntry, CuFileBatchEvent, CuFileError, CuFileStatus, Failure, Handle, Opcode, Stream,
    StreamFlags, leaked,
};

use super::fake::{BatchMode, Fake, NEWEST, in_child};
use super::suite::{KIB, collect, file, folder, pattern};

const SHORT: Duration = Duration::from_millis(30);

/// Memory that its operations own a part of, and whoever holds it can look at.
#[derive(Clone, Debug)]
struct Owned(Arc<Mutex<Vec<u8>>>);

impl Owned {
    fn new(len: usize) -> Self {
        Self(Arc::new(Mutex::new(vec![0; len])))
    }

    fn base(&self) -> *mut c_void {
        self.0.lock().unwrap().as_mut_ptr().cast()
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }

    fn owners(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}

struct Rig {
    cufile: &'static CuFile,
    fake: Fake,
    handle: Handle,
    content: Vec<u8>,
    memory: Owned,
    _dir: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        let cufile = CuFile::get().expect("the fake");
        let (dir, path) = folder();
        let content = pattern(64 * KIB, 11);
        Self {
            cufile,
            fake: Fake::load(),
            handle: file(cufile, &path.join("file"), &content, 0),
            content,
            memory: Owned::new(64 * KIB),
            _dir: dir,
        }
    }

    fn stream(&self, raw: usize) -> Stream {
        // SAFETY: the fake knows streams by number alone.
        unsafe { self.cufile.stream(std::ptr::without_provenance_mut(raw)) }.expect("a stream")
    }

    fn request(&self, at: u64, behind: usize, size: usize) -> AsyncRequest {
        AsyncRequest {
            base: self.memory.base(),
            buffer_len: 64 * KIB,
            size,
            file_offset: at,
            buffer_offset: behind,
        }
    }

    /// Registers the memory.
    fn registered(&self) -> BufferRegistration {
        // SAFETY: the memory outlives the registration, which each test drops first.
        let guard = unsafe {
            self.cufile
                .register_memory(self.memory.base(), 64 * KIB, BufferFlags::empty())
        };
        guard.expect("registered")
    }

    fn batch(&self, entries: u32) -> CuFileBatch<Owned> {
        self.cufile.batch(entries).expect("set up")
    }

    fn entries(&self, count: usize) -> Vec<CuFileBatchEntry<Owned>> {
        (0..count)
            .map(|index| CuFileBatchEntry {
                opcode: Opcode::Read,
                handle: self.handle.clone(),
                base: self.memory.base(),
                buffer_offset: index * 1000,
                len: 1000,
                file_offset: (index * 1000) as u64,
                cookie: index as u64,
                keep: self.memory.clone(),
            })
            .collect()
    }

    /// Nothing is left but what was leaked.
    fn close(self, leaks: u64) {
        assert_eq!(leaked(), leaks);
        let (cufile, fake) = (self.cufile, self.fake);
        drop(self.handle);
        assert_eq!(fake.violation(), None);
        if leaks == 0 {
            assert_eq!(self.memory.owners(), 1);
            cufile.close_driver().expect("nobody uses it");
            fake.assert_clean();
        }
    }
}

#[test]
fn sizes_and_offsets_are_read_when_the_stream_comes() {
    let test = "in_flight::sizes_and_offsets_are_read_when_the_stream_comes";
    in_child(test, NEWEST, &[], || {
        let rig = Rig::new();
        let guard = rig.registered();
        let stream = rig.stream(0);
        // SAFETY: `keep` owns the memory.
        let operation =
            unsafe { stream.read_async(&rig.handle, rig.request(0, 0, 8192), rig.memory.clone()) };
        let operation = operation.expect("submitted");
        operation.set_size(100).unwrap();
        operation.set_file_offset(5000).unwrap();
        operation.set_buffer_offset(300).unwrap();
        for error in [
            operation.set_size(8193).unwrap_err(),
            operation.set_file_offset(u64::MAX).unwrap_err(),
            operation.set_buffer_offset(64 * KIB - 8191).unwrap_err(),
        ] {
            assert!(matches!(error, CuFileError::Value { .. }), "{error}");
        }
        assert!(!operation.is_done().unwrap());
        assert!(
            rig.memory.bytes().iter().all(|byte| *byte == 0),
            "it has not run"
        );
        let outcome = operation.check_bytes_done();
        assert_eq!(outcome.result.unwrap(), 100);
        assert!(outcome.keep.is_some());
        drop(outcome.keep);
        let bytes = rig.memory.bytes();
        assert!(bytes[300..400] == rig.content[5000..5100]);
        assert!(
            bytes[..300]
                .iter()
                .chain(&bytes[400..])
                .all(|byte| *byte == 0)
        );
        drop((stream, guard));
        rig.close(0);
    });
}

#[test]
fn what_a_stream_has_fixed_can_not_be_set() {
    let test = "in_flight::what_a_stream_has_fixed_can_not_be_set";
    in_child(test, NEWEST, &[], || {
        let rig = Rig::new();
        let guard = rig.registered();
        let stream = rig.stream(7);
        stream
            .register(StreamFlags::FIXED_SIZE | StreamFlags::PAGE_ALIGNED)
            .unwrap();
        assert!(stream.register(StreamFlags::empty()).is_err(), "twice");
        // SAFETY: `keep` owns the memory.
        let operation =
            unsafe { stream.read_async(&rig.handle, rig.request(0, 0, 4096), rig.memory.clone()) };
        let operation = operation.unwrap();
        assert!(operation.set_size(10).is_err());
        assert!(operation.set_file_offset(10).is_err());
        operation.set_file_offset(4096).unwrap();
        operation.set_buffer_offset(8192).unwrap();
        assert_eq!(operation.check_bytes_done().result.unwrap(), 4096);
        assert!(rig.memory.bytes()[8192..12288] == rig.content[4096..8192]);
        drop((stream, guard));
        assert_eq!(rig.fake.calls("cuFileStreamDeregister"), 1);
        rig.close(0);
    });
}

#[test]
fn an_operation_that_is_dropped_is_kept_until_the_stream_has_passed() {
    let test = "in_flight::an_operation_that_is_dropped_is_kept_until_the_stream_has_passed";
    in_child(test, NEWEST, &[], || {
        let rig = Rig::new();
        let stream = rig.stream(1);
        // SAFETY: `keep` owns the memory.
        let submit = |at| unsafe {
            stream.read_async(&rig.handle, rig.request(at, 0, 1000), rig.memory.clone())
        };
        drop(submit(0).unwrap());
        drop(submit(1000).unwrap());
        assert_eq!((stream.in_flight(), rig.memory.owners()), (2, 3));
        // Another stream knows nothing of this one.
        rig.stream(2).synchronize().unwrap();
        assert_eq!(rig.memory.owners(), 3);
        rig.fake.run_stream(1);
        assert_eq!(rig.memory.owners(), 3, "nobody has asked yet");
        stream.synchronize().unwrap();
        assert_eq!((stream.in_flight(), rig.memory.owners()), (0, 1));
        assert!(rig.memory.bytes()[..1000] == rig.content[1000..2000]);
        // The handle is kept, too: the file is not closed under the operation.
        let last = submit(2000).unwrap();
        let Rig {
            cufile,
            fake,
            handle,
            memory,
            ..
        } = rig;
        drop(handle);
        assert_eq!(fake.number("fake_handles_live"), 1);
        drop(last);
        assert_eq!(fake.number("fake_handles_live"), 1);
        // The stream runs out, then its last owner goes: that frees all.
        fake.run_stream(1);
        drop(stream);
        assert_eq!((memory.owners(), leaked()), (1, 0));
        cufile.close_driver().unwrap();
        fake.assert_clean();
    });
}

#[test]
fn a_busy_stream_that_is_dropped_leaks_what_it_works_on() {
    let test = "in_flight::a_busy_stream_that_is_dropped_leaks_what_it_works_on";
    in_child(test, NEWEST, &[], || {
        let rig = Rig::new();
        let stream = rig.stream(1);
        stream.register(StreamFlags::empty()).unwrap();
        // SAFETY: `keep` owns the memory.
        let operation =
            unsafe { stream.read_async(&rig.handle, rig.request(0, 0, 1000), rig.memory.clone()) };
        drop(operation.unwrap());
        drop(stream);
        assert_eq!(rig.memory.owners(), 2, "leaked");
        assert_eq!(rig.fake.calls("cuFileStreamDeregister"), 0, "it would wait");
        // The stream comes to it after all, and finds everything in place.
        rig.fake.run_stream(1);
        assert!(rig.memory.bytes()[..1000] == rig.content[..1000]);
        assert!(matches!(
            rig.cufile.close_driver(),
            Err(CuFileError::InUse { .. })
        ));
        rig.close(2);
    });
}

#[test]
fn a_stream_that_can_not_be_asked() {
    let test = "in_flight::a_stream_that_can_not_be_asked";
    in_child(test, NEWEST, &[], || {
        let rig = Rig::new();
        let stream = rig.stream(0);
        // SAFETY: `keep` owns the memory.
        let submit = || unsafe {
            stream.read_async(&rig.handle, rig.request(0, 0, 1000), rig.memory.clone())
        };
        let (one, two, three) = (submit().unwrap(), submit().unwrap(), submit().unwrap());
        rig.fake.fail_synchronize(700);
        let outcome = one.check_bytes_done();
        let error = outcome.result.unwrap_err();
        assert!(error.to_string().contains("ILLEGAL_ADDRESS"), "{error}");
        assert!(outcome.keep.is_none(), "it may be in use");
        assert!(two.is_done().is_err());
        let outcome = two.check_bytes_done_within(SHORT).expect("over");
        assert!(outcome.result.is_err() && outcome.keep.is_none());
        assert_eq!(rig.memory.owners(), 4);
        rig.fake.fail_synchronize(0);
        // It answers again: everything is found.
        assert_eq!(three.check_bytes_done().result.unwrap(), 1000);
        assert_eq!((stream.in_flight(), rig.memory.owners()), (0, 1));
        drop(stream);
        rig.close(0);
    });
}

#[test]
fn a_deadline_gives_the_operation_back() {
    let test = "in_flight::a_deadline_gives_the_operation_back";
    in_child(test, NEWEST, &[], || {
        let rig = Rig::new();
        let stream = rig.stream(3);
        // SAFETY: `keep` owns the memory.
        let operation =
            unsafe { stream.write_async(&rig.handle, rig.request(0, 0, 1000), rig.memory.clone()) };
        let began = Instant::now();
        let operation = operation.unwrap().check_bytes_done_within(SHORT);
        let operation = operation.expect_err("nobody runs the stream");
        assert!(began.elapsed() >= SHORT);
        rig.fake.run_stream(3);
        // As good as for ever.
        let outcome = operation.check_bytes_done_within(Duration::MAX);
        let outcome = outcome.expect("over");
        assert_eq!(outcome.result.unwrap(), 1000);
        drop((outcome.keep, stream));
        rig.close(0);
    });
}

#[test]
fn what_an_operation_in_a_stream_answers() {
    let test = "in_flight::what_an_operation_in_a_stream_answers";
    in_child(test, NEWEST, &[], || {
        let rig = Rig::new();
        let stream = rig.stream(0);
        // SAFETY: `keep` owns the memory.
        let submit =
            |request| unsafe { stream.read_async(&rig.handle, request, rig.memory.clone()) };
        let status = |code| Failure::Status {
            status: CuFileStatus(code),
            cu_err: 0,
        };
        for (answer, expected) in [
            (-1, Failure::Unexplained),
            (-5, Failure::Errno(libc::EIO)),
            (-5022, status(5022)),
            (5000, Failure::Nonsense(5000)),
        ] {
            rig.fake.fail("stream", answer, 0);
            let error = submit(rig.request(77, 0, 1000)).unwrap().check_bytes_done();
            let CuFileError::Call(call) = error.result.unwrap_err() else {
                panic!("a call failed");
            };
            assert_eq!((call.failure, call.offset), (expected, Some(77)));
        }
        for (name, code) in [("cuFileReadAsync", 5038), ("cuFileReadAsync", 5011)] {
            rig.fake.fail(name, code, 0);
            let error = submit(rig.request(0, 0, 1000)).unwrap_err();
            assert_eq!(error.status(), Some(CuFileStatus(code as i32)));
            assert_eq!((stream.in_flight(), rig.memory.owners()), (0, 1));
        }
        for (behind, size) in [(0, 64 * KIB + 1), (1, 64 * KIB), (usize::MAX, 2)] {
            let error = submit(rig.request(0, behind, size)).unwrap_err();
            assert!(matches!(error, CuFileError::Value { .. }), "{error}");
        }
        drop(stream);
        rig.close(0);
    });
}

#[test]
fn a_stream_holds_so_many_and_no_more() {
    let test = "in_flight::a_stream_holds_so_many_and_no_more";
    in_child(test, NEWEST, &[], || {
        let rig = Rig::new();
        let stream = rig.stream(5);
        // SAFETY: `keep` owns the memory.
        let submit =
            || unsafe { stream.read_async(&rig.handle, rig.request(0, 0, 8), rig.memory.clone()) };
        for _ in 0..4096 {
            drop(submit().expect("room"));
        }
        let error = submit().unwrap_err();
        assert!(
            matches!(error, CuFileError::Full { limit: 4096, .. }),
            "{error}"
        );
        // Once they have run, a submission finds room by itself.
        rig.fake.run_stream(5);
        let operation = submit().expect("room");
        assert_eq!(stream.in_flight(), 1);
        assert_eq!(operation.check_bytes_done().result.unwrap(), 8);
        drop(stream);
        rig.close(0);
    });
}

/// Cookies and results, in order of the cookies.
fn done(events: Vec<CuFileBatchEvent<Owned>>) -> Vec<(u64, BatchStatus, Result<usize, Failure>)> {
    let mut done: Vec<_> = events
        .into_iter()
        .map(|event| match event {
            CuFileBatchEvent::Done {
                cookie,
                status,
                result,
                ..
            } => {
                let result = result.map_err(|error| match error {
                    CuFileError::Call(call) => call.failure,
                    other => panic!("{other}"),
                });
                (cookie, status, result)
            }
            other => panic!("{other:?}"),
        })
        .collect();
    done.sort_by_key(|(cookie, ..)| *cookie);
    done
}

#[test]
fn a_batch_in_parts() {
    let test = "in_flight::a_batch_in_parts";
    in_child(test, NEWEST, &[], || {
        let rig = Rig::new();
        let mut batch = rig.batch(8);
        rig.fake.batch(BatchMode {
            max_events: 3,
            ..BatchMode::default()
        });
        // SAFETY: `keep` owns the memory.
        unsafe { batch.submit(rig.entries(8)) }.unwrap();
        let mut events = Vec::new();
        let count = batch.poll(1, usize::MAX, SHORT, &mut events).unwrap();
        assert_eq!((count, events.len(), batch.outstanding()), (3, 3, 5));
        // Three places are free again, in the middle of the batch.
        // SAFETY: as above.
        let refused = unsafe { batch.submit(rig.entries(4)) }.unwrap_err();
        assert!(matches!(refused.error, CuFileError::Full { limit: 8, .. }));
        assert_eq!(refused.entries.len(), 4);
        drop(refused);
        // SAFETY: as above.
        unsafe { batch.submit(rig.entries(3)) }.unwrap();
        events.extend(collect(&mut batch, 8));
        let done = done(events);
        assert_eq!(done.len(), 11);
        assert!(
            done.iter()
                .all(|it| (it.1, &it.2) == (BatchStatus::COMPLETE, &Ok(1000)))
        );
        assert!(rig.memory.bytes()[..8000] == rig.content[..8000]);
        assert_eq!(
            batch.poll(1, usize::MAX, SHORT, &mut Vec::new()).unwrap(),
            0
        );
        batch.destroy().unwrap();
        rig.close(0);
    });
}

#[test]
fn a_batch_by_as_many_outcomes_as_were_asked_for() {
    let test = "in_flight::a_batch_by_as_many_outcomes_as_were_asked_for";
    in_child(test, NEWEST, &[], || {
        let rig = Rig::new();
        let mut batch = rig.batch(8);
        // SAFETY: `keep` owns the memory.
        unsafe { batch.submit(rig.entries(8)) }.unwrap();
        let mut events = Vec::new();
        assert_eq!(batch.poll(1, 0, SHORT, &mut events).unwrap(), 0);
        // All are over; those that were not asked for are told later.
        for (min, max, left) in [(1, 3, 5), (9, 2, 3), (0, 1, 2), (1, 100, 0)] {
            let before = batch.outstanding();
            let count = batch.poll(min, max, SHORT, &mut events).unwrap();
            assert_eq!((count, batch.outstanding()), (before - left, left));
        }
        let cookies: Vec<u64> = done(events).iter().map(|it| it.0).collect();
        assert_eq!(cookies, [0, 1, 2, 3, 4, 5, 6, 7]);
        batch.destroy().unwrap();
        rig.close(0);
    });
}

#[test]
fn a_wait_for_a_batch_has_a_deadline() {
    let test = "in_flight::a_wait_for_a_batch_has_a_deadline";
    in_child(test, NEWEST, &[], || {
        let rig = Rig::new();
        let mut batch = rig.batch(2);
        rig.fake.batch(BatchMode {
            hold: 2,
            ..BatchMode::default()
        });
        // SAFETY: `keep` owns the memory.
        unsafe { batch.submit(rig.entries(2)) }.unwrap();
        let began = Instant::now();
        assert_eq!(
            batch.poll(9, usize::MAX, SHORT, &mut Vec::new()).unwrap(),
            0
        );
        assert!(began.elapsed() >= SHORT);
        // Held until cuFile reports them: after the cancel, too.
        batch.cancel().unwrap();
        assert_eq!((batch.outstanding(), rig.memory.owners()), (2, 3));
        let mut batch = batch.destroy().expect_err("two are outstanding");
        let canceled = BatchStatus::CANCELED;
        let failure = Failure::Errno(libc::ECANCELED);
        let events = collect(&mut batch, 2);
        assert_eq!(
            done(events),
            [(0, canceled, Err(failure)), (1, canceled, Err(failure))]
        );
        drop(batch);
        assert_eq!(rig.fake.calls("cuFileBatchIODestroy"), 1);
        rig.close(0);
    });
}

#[test]
fn a_timed_out_entry_is_kept_until_it_is_reported_over() {
    let test = "in_flight::a_timed_out_entry_is_kept_until_it_is_reported_over";
    in_child(test, NEWEST, &[], || {
        let rig = Rig::new();
        let mut batch = rig.batch(2);
        rig.fake.batch(BatchMode {
            time_out: 1,
            ..BatchMode::default()
        });
        // SAFETY: `keep` owns the memory.
        unsafe { batch.submit(rig.entries(1)) }.unwrap();
        let events = collect(&mut batch, 1);
        assert!(
            matches!(events[..], [CuFileBatchEvent::TimedOut { cookie: 0 }]),
            "{events:?}"
        );
        assert_eq!((batch.outstanding(), rig.memory.owners()), (1, 2));
        let events = collect(&mut batch, 1);
        assert!(
            matches!(events[..], [CuFileBatchEvent::Released { cookie: 0, .. }]),
            "{events:?}"
        );
        drop(events);
        assert_eq!((batch.outstanding(), rig.memory.owners()), (0, 1));
        drop(batch);
        rig.close(0);
    });
}

#[test]
fn reports_that_come_twice_or_from_nowhere() {
    let test = "in_flight::reports_that_come_twice_or_from_nowhere";
    in_child(test, NEWEST, &[], || {
        let rig = Rig::new();
        let mut batch = rig.batch(8);
        rig.fake.batch(BatchMode {
            repeat: 2,
            stray: 1,
            ..BatchMode::default()
        });
        // SAFETY: `keep` owns the memory.
        unsafe { batch.submit(rig.entries(4)) }.unwrap();
        let events = collect(&mut batch, 4);
        assert_eq!(
            done(events).iter().map(|it| it.0).collect::<Vec<_>>(),
            [0, 1, 2, 3]
        );
        assert_eq!((batch.outstanding(), batch.strays()), (0, 3));
        drop(batch);
        rig.close(0);
    });
}

/// A subscriber of `tracing` that panics at each event.
struct Panics;

impl tracing::Subscriber for Panics {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        panic!("the log is gone");
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_subscriber_that_panics_frees_nothing_that_cufile_may_use() {
    let test = "in_flight::a_subscriber_that_panics_frees_nothing_that_cufile_may_use";
    in_child(test, NEWEST, &[], || {
        let rig = Rig::new();
        let mut batch = rig.batch(8);
        rig.fake.batch(BatchMode {
            hold: 1,
            ..BatchMode::default()
        });
        // SAFETY: `keep` owns the memory.
        unsafe { batch.submit(rig.entries(3)) }.unwrap();
        let dispatch = tracing::Dispatch::new(Panics);
        let drop_it = || tracing::dispatcher::with_default(&dispatch, || drop(batch));
        let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(drop_it));
        assert!(dropped.is_err(), "it was told, and panicked");
        assert_eq!(rig.memory.owners(), 4, "three entries keep it for ever");
        rig.close(3);
    });
}

#[test]
fn what_an_entry_answers() {
    let test = "in_flight::what_an_entry_answers";
    in_child(test, NEWEST, &[], || {
        let rig = Rig::new();
        let mut batch = rig.batch(1);
        let status = |code| Failure::Status {
            status: CuFileStatus(code),
            cu_err: 0,
        };
        for (bits, ret, expected) in [
            (0x10, 1000, Ok(1000)),
            (0x10, 10, Ok(10)),
            (0x10, 1001, Err(Failure::Nonsense(1001))),
            (0x10, -5, Err(Failure::Errno(libc::EIO))),
            (0x40, -5030, Err(status(5030))),
            (0x40, -1, Err(Failure::Unexplained)),
            (0x40, 0, Err(Failure::Unexplained)),
            (0x04, -5022, Err(status(5022))),
            (0x08, 0, Err(Failure::Errno(libc::ECANCELED))),
            (0x140, -28, Err(Failure::Errno(libc::ENOSPC))),
        ] {
            rig.fake.batch(BatchMode {
                status: bits,
                ret,
                ..BatchMode::default()
            });
            // SAFETY: `keep` owns the memory.
            unsafe { batch.submit(rig.entries(1)) }.unwrap();
            let done = done(collect(&mut batch, 1));
            assert_eq!(done, [(0, BatchStatus::from_bits_retain(bits), expected)]);
        }
        drop(batch);
        rig.close(0);
    });
}

#[test]
fn a_batch_that_is_refused() {
    let test = "in_flight::a_batch_that_is_refused";
    in_child(test, NEWEST, &[], || {
        let rig = Rig::new();
        for entries in [0, 129] {
            let error = rig.cufile.batch::<()>(entries).unwrap_err();
            assert!(error.to_string().contains("1 to 128"), "{error}");
        }
        rig.fake.properties(16, 0);
        let error = rig.cufile.batch::<()>(17).unwrap_err();
        assert!(error.to_string().contains("1 to 16"), "{error}");
        rig.fake.fail("cuFileBatchIOSetUp", 5039, 0);
        let error = rig.cufile.batch::<()>(1).unwrap_err();
        assert_eq!(error.status(), Some(CuFileStatus(5039)));
        let mut batch = rig.batch(4);
        // SAFETY: there is nothing.
        assert!(unsafe { batch.submit(Vec::new()) }.is_err());
        let mut far = rig.entries(1);
        far[0].file_offset = u64::MAX;
        // SAFETY: it is refused before anybody looks at the memory.
        let refused = unsafe { batch.submit(far) }.unwrap_err();
        assert!(matches!(refused.error, CuFileError::Value { .. }));
        drop(refused);
        // Nothing was taken: the entries come back.
        for code in [5022, 5027, 5037] {
            rig.fake.fail("cuFileBatchIOSubmit", code, 0);
            // SAFETY: `keep` owns the memory.
            let refused = unsafe { batch.submit(rig.entries(2)) }.unwrap_err();
            assert_eq!(refused.entries.len(), 2);
            assert_eq!(batch.outstanding(), 0);
        }
        rig.fake.fail("cuFileBatchIOGetStatus", 5041, 0);
        // SAFETY: `keep` owns the memory.
        unsafe { batch.submit(rig.entries(2)) }.unwrap();
        let error = batch
            .poll(1, usize::MAX, SHORT, &mut Vec::new())
            .unwrap_err();
        assert_eq!(error.status(), Some(CuFileStatus(5041)));
        assert_eq!(done(collect(&mut batch, 2)).len(), 2);
        rig.fake.fail("cuFileBatchIOCancel", 5042, 0);
        assert!(batch.cancel().is_err());
        drop(batch);
        rig.close(0);
    });
}

#[test]
fn a_submission_of_which_nobody_knows_is_held() {
    let test = "in_flight::a_submission_of_which_nobody_knows_is_held";
    in_child(test, NEWEST, &[], || {
        let rig = Rig::new();
        let mut batch = rig.batch(4);
        rig.fake.fail("cuFileBatchIOSubmit", 5040, 0);
        // SAFETY: `keep` owns the memory.
        let refused = unsafe { batch.submit(rig.entries(2)) }.unwrap_err();
        assert!(refused.entries.is_empty());
        assert_eq!((batch.outstanding(), rig.memory.owners()), (2, 3));
        drop(batch);
        assert_eq!(rig.memory.owners(), 3, "leaked");
        assert_eq!(rig.fake.calls("cuFileBatchIODestroy"), 0);
        rig.close(2);
    });
}

#[test]
fn memory_that_is_not_registered_has_one_offset() {
    let test = "in_flight::memory_that_is_not_registered_has_one_offset";
    in_child(test, NEWEST, &[], || {
        let rig = Rig::new();
        let stream = rig.stream(0);
        let wanted = rig.request(5000, 300, 1000);
        // SAFETY: `keep` owns the memory.
        let operation = unsafe { stream.read_async(&rig.handle, wanted, rig.memory.clone()) };
        let operation = operation.expect("submitted");
        let error = operation.set_buffer_offset(0).unwrap_err();
        assert!(error.to_string().contains("not registered"), "{error}");
        operation.set_size(900).unwrap();
        assert_eq!(operation.check_bytes_done().result.unwrap(), 900);
        assert!(rig.memory.bytes()[300..1200] == rig.content[5000..5900]);
        drop(stream);
        rig.close(0);
    });
}

/// As cuFile 1.15 does with O_DIRECT.
#[test]
fn more_than_the_file_has_is_not_believed() {
    let test = "in_flight::more_than_the_file_has_is_not_believed";
    in_child(test, NEWEST, &[], || {
        let rig = Rig::new();
        rig.fake.overstate(true);
        let stream = rig.stream(0);
        let end = 64 * KIB as u64;
        for (offset, expected) in [(end - 10, 10), (end, 0), (end + 10, 0), (0, 1000)] {
            let wanted = rig.request(offset, 0, 1000);
            // SAFETY: `keep` owns the memory.
            let operation = unsafe { stream.read_async(&rig.handle, wanted, rig.memory.clone()) };
            let outcome = operation.expect("submitted").check_bytes_done();
            assert_eq!(outcome.result.unwrap(), expected, "at {offset}");
        }
        let mut batch = rig.batch(1);
        let mut entries = rig.entries(1);
        entries[0].file_offset = end - 7;
        // SAFETY: `keep` owns the memory.
        unsafe { batch.submit(entries) }.unwrap();
        let events = done(collect(&mut batch, 1));
        assert_eq!(events, [(0, BatchStatus::COMPLETE, Ok(7))]);
        drop((stream, batch));
        rig.close(0);
    });
}
