//! Every failure that a call can answer, and what it becomes.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use fabricast_cufile::{
    BufferFlags, CuFile, CuFileError, CuFileStatus, Failure, FsRequest, GpuPaths, IoVec,
    StatsLevel, UserspaceFs, leaked,
};

use super::fake::{Fake, NEWEST, in_child};
use super::suite::{KIB, Pages, file, folder, open, pattern};

/// What a call failed with, and where.
fn failure(error: &CuFileError) -> (&'static str, Failure, Option<u64>) {
    match error {
        CuFileError::Call(call) => (call.call, call.failure, call.offset),
        other => panic!("{other}"),
    }
}

fn status(code: i32) -> Failure {
    Failure::Status {
        status: CuFileStatus(code),
        cu_err: 0,
    }
}

#[test]
fn what_reads_and_writes_answer() {
    let test = "faults::what_reads_and_writes_answer";
    in_child(test, NEWEST, &[], || {
        let (cufile, fake) = (CuFile::get().expect("the fake"), Fake::load());
        let (_dir, path) = folder();
        let path = path.join("file");
        let handle = file(cufile, &path, &pattern(64 * KIB, 1), 0);
        let mut bytes = vec![0; 4096];
        let cases = [
            (-1, libc::EIO, Failure::Errno(libc::EIO)),
            (-1, libc::EINTR, Failure::Errno(libc::EINTR)),
            (-1, libc::ENOSPC, Failure::Errno(libc::ENOSPC)),
            (-1, 0, Failure::Unexplained),
            (-5, libc::ENOENT, Failure::Errno(libc::EIO)),
            (-5008, 0, status(5008)),
            (-5011, 0, status(5011)),
            (-6001, 0, status(6001)),
            (-7777, 0, status(7777)),
            (4097, 0, Failure::Nonsense(4097)),
            (i64::MIN, 0, Failure::Nonsense(i64::MIN)),
        ];
        for (answer, errno, expected) in cases {
            fake.fail("cuFileRead", answer, errno);
            let error = handle.read_host(&mut bytes, 512).unwrap_err();
            assert_eq!(failure(&error), ("cuFileRead", expected, Some(512)));
            let text = error.to_string();
            let begin = format!("cuFileRead {} at 512: ", path.display());
            assert!(text.starts_with(&begin), "{text}");
            fake.fail("cuFileWrite", answer, errno);
            let error = handle.write_host(&bytes, 513).unwrap_err();
            assert_eq!(failure(&error), ("cuFileWrite", expected, Some(513)));
            let vector = [IoVec {
                base: bytes.as_mut_ptr().cast(),
                len: bytes.len(),
            }];
            fake.fail("cuFileReadv", answer, errno);
            // SAFETY: the memory is that long, and nobody else uses it.
            let error = unsafe { handle.readv(&vector, 514) }.unwrap_err();
            assert_eq!(failure(&error), ("cuFileReadv", expected, Some(514)));
        }
        // Short counts are counts.
        fake.limit_io(1000);
        assert_eq!(handle.read_host(&mut bytes, 0).unwrap(), 1000);
        assert_eq!(handle.write_host(&bytes, 0).unwrap(), 1000);
        fake.limit_io(usize::MAX);
        fake.delay_ms(20);
        assert_eq!(handle.read_host(&mut bytes, 0).unwrap(), 4096);
        drop(handle);
        fake.assert_clean();
    });
}

#[test]
fn what_can_not_be_counted_is_not_called() {
    let test = "faults::what_can_not_be_counted_is_not_called";
    in_child(test, NEWEST, &[], || {
        let (cufile, fake) = (CuFile::get().expect("the fake"), Fake::load());
        let (_dir, path) = folder();
        let handle = file(cufile, &path.join("file"), &[1; 100], 0);
        let mut byte = 0_u8;
        let base = (&raw mut byte).cast();
        for (behind, len, at) in [
            (0, 1, u64::MAX),
            (0, 1, i64::MAX as u64),
            (0, isize::MAX as usize + 1, 0),
            (usize::MAX, 1, 0),
        ] {
            // SAFETY: it is refused before anybody looks at the memory.
            let error = unsafe { handle.read(base, behind, len, at) }.unwrap_err();
            assert!(matches!(error, CuFileError::Value { .. }), "{error}");
        }
        let vector = IoVec { base, len: 0 };
        // SAFETY: no byte is asked for.
        let error = unsafe { handle.readv(&[vector; 1025], 0) }.unwrap_err();
        assert!(error.to_string().contains("at most 1024"), "{error}");
        // SAFETY: no byte is asked for.
        assert_eq!(unsafe { handle.readv(&[vector; 3], 0) }.unwrap(), 0);
        assert_eq!(fake.calls("cuFileRead") + fake.calls("cuFileReadv"), 0);
        for (base, len) in [(std::ptr::null_mut(), 8), (base, 0), (base, usize::MAX)] {
            // SAFETY: as above.
            let error = unsafe { cufile.register_memory(base, len, BufferFlags::RDMA) };
            assert!(matches!(error, Err(CuFileError::Value { .. })), "{error:?}");
        }
        drop(handle);
        fake.assert_clean();
    });
}

#[test]
fn registrations_that_are_refused() {
    let test = "faults::registrations_that_are_refused";
    in_child(test, NEWEST, &[], || {
        let (cufile, fake) = (CuFile::get().expect("the fake"), Fake::load());
        let (_dir, path) = folder();
        let path = path.join("file");
        std::fs::write(&path, [0; 100]).unwrap();
        // Flags are looked at before the driver is opened.
        let error = cufile.register(open(&path, libc::O_APPEND)).unwrap_err();
        assert!(error.to_string().contains("O_APPEND"), "{error}");
        assert_eq!(fake.number("fake_driver_opens"), 0);
        for code in [5008, 5018, 5019, 5025, 5027, 5031] {
            fake.fail("cuFileHandleRegister", code, 0);
            let error = cufile.register(open(&path, 0)).unwrap_err();
            assert_eq!(error.status(), Some(CuFileStatus(code as i32)));
            let text = error.to_string();
            assert!(text.contains(&path.display().to_string()), "{text}");
            assert_eq!(text.contains("udev"), code == 5027, "{text}");
        }
        // The same descriptor twice; a clone of the handle is the way.
        let shared = open(&path, 0);
        let handle = cufile.register(Arc::clone(&shared)).unwrap();
        let error = cufile.register(Arc::clone(&shared)).unwrap_err();
        assert_eq!(error.status(), Some(CuFileStatus(5028)));
        assert!(Arc::ptr_eq(handle.file().unwrap(), &shared));
        let clone = handle.clone();
        drop(handle);
        drop(shared);
        assert_eq!(clone.read_host(&mut [0; 10], 0).unwrap(), 10);
        drop(clone);
        let mut memory = Pages::new(8192);
        fake.fail("cuFileBufRegister", 5011, 700);
        // SAFETY: the memory outlives the registration.
        let error = unsafe { cufile.register_memory(memory.base(), 8192, BufferFlags::RDMA) };
        assert!(error.unwrap_err().to_string().contains("ILLEGAL_ADDRESS"));
        // SAFETY: as above.
        let guard = unsafe { cufile.register_memory(memory.base(), 8192, BufferFlags::all()) };
        let guard = guard.unwrap();
        // SAFETY: as above.
        let twice = unsafe { cufile.register_memory(memory.base(), 4096, BufferFlags::empty()) };
        assert_eq!(twice.unwrap_err().status(), Some(CuFileStatus(5023)));
        assert_eq!((guard.len(), leaked()), (8192, 0));
        drop(guard);
        fake.assert_clean();
        // A deregistration that fails in a drop is counted.
        // SAFETY: as above.
        let guard = unsafe { cufile.register_memory(memory.base(), 8192, BufferFlags::empty()) };
        fake.fail("cuFileBufDeregister", 5024, 0);
        drop(guard.unwrap());
        assert_eq!(leaked(), 1);
        assert_eq!(fake.violation(), None);
    });
}

#[test]
fn which_way_the_bytes_went() {
    let test = "faults::which_way_the_bytes_went";
    in_child(test, NEWEST, &[], || {
        let (cufile, fake) = (CuFile::get().expect("the fake"), Fake::load());
        let (_dir, path) = folder();
        let handle = file(cufile, &path.join("file"), &[1; 100], 0);
        let driver = cufile.driver().unwrap();
        let error = driver.stats_l3().unwrap_err();
        assert_eq!(error.status(), Some(CuFileStatus(5022)), "no level is set");
        cufile.set_stats_level(StatsLevel::VERBOSE).unwrap();
        driver.start_stats().unwrap();
        for direct in [true, false] {
            driver.reset_stats().unwrap();
            fake.gpu_direct(direct);
            let before = driver.stats_l3().unwrap();
            handle.read_host(&mut [0; 64], 0).unwrap();
            let between = GpuPaths::between(&before, &driver.stats_l3().unwrap());
            assert_eq!(between.reads.gpu_direct(), Some(direct));
            assert_eq!(between.writes.gpu_direct(), None);
        }
        let gpu = driver.stats_l3().unwrap().gpus[0];
        assert_eq!((&gpu.uuid, gpu.reg_bytes), (b"GPU-FAKE-0123456", 31));
        assert_eq!(driver.stats_l1().unwrap().writev_lat_sum_us, 78);
        drop(handle);
        fake.assert_clean();
    });
}

/// A file that exists only here.
struct Made;

impl UserspaceFs for Made {
    fn fs_type(&self) -> Option<CString> {
        Some(c"made".to_owned())
    }

    fn rdma_devices(&self) -> Vec<SocketAddrV4> {
        vec![SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1)]
    }

    fn read(&self, request: &FsRequest<'_>) -> io::Result<usize> {
        let rdma = request.rdma.expect("the fake gives one");
        assert_eq!((rdma.version, rdma.description), (1, &b"token"[..]));
        assert!(request.offset < 1000, "behind the end");
        // SAFETY: the memory is that long and of the host, and the fake waits for us.
        unsafe { request.memory.cast::<u8>().write_bytes(7, request.len) };
        Ok(request.len)
    }

    fn write(&self, _: &FsRequest<'_>) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(libc::EROFS))
    }
}

#[test]
fn a_file_system_of_our_own() {
    let test = "faults::a_file_system_of_our_own";
    in_child(test, NEWEST, &[], || {
        let (cufile, fake) = (CuFile::get().expect("the fake"), Fake::load());
        let made: Arc<dyn UserspaceFs> = Arc::new(Made);
        let handle = cufile
            .register_userspace("made:/one", Arc::clone(&made))
            .unwrap();
        let mut bytes = [0; 100];
        assert_eq!(handle.read_host(&mut bytes, 1).unwrap(), 100);
        assert_eq!(bytes, [7; 100]);
        let error = handle.write_host(&bytes, 2).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("cuFileWrite made:/one at 2: "), "{text}");
        assert_eq!(error.errno(), Some(libc::EROFS));
        // What panics there is an error here.
        let error = handle.read_host(&mut bytes, 1000).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EIO));
        assert!(handle.file().is_none());
        drop(handle);
        assert_eq!(Arc::strong_count(&made), 1);
        fake.assert_clean();
    });
}

#[test]
fn from_many_threads() {
    let test = "faults::from_many_threads";
    in_child(test, NEWEST, &[], || {
        let fake = Fake::load();
        let (_dir, path) = folder();
        let content = pattern(256 * KIB, 3);
        std::fs::write(path.join("file"), &content).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8_usize {
                let (path, content) = (&path, &content);
                scope.spawn(move || {
                    let cufile = CuFile::get().expect("the fake");
                    let handle = cufile.register(open(&path.join("file"), 0)).unwrap();
                    let mut bytes = vec![0; 4096];
                    for round in 0..50 {
                        let at = (thread * 37 + round * 911) % (252 * KIB);
                        assert_eq!(handle.read_host(&mut bytes, at as u64).unwrap(), 4096);
                        assert!(bytes == content[at..at + 4096]);
                    }
                });
            }
        });
        assert_eq!(fake.number("fake_driver_opens"), 1);
        CuFile::get().unwrap().close_driver().unwrap();
        fake.assert_clean();
    });
}
