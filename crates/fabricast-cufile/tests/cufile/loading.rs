//! Loading: what is missing, what is broken, and what is never called without a device.

use fabricast_cufile::{CuFile, CuFileError, Unavailable, Version};

use super::fake::{Build, Fake, NEWEST, in_child};

#[test]
fn without_a_device_the_driver_is_never_opened() {
    let test = "loading::without_a_device_the_driver_is_never_opened";
    let env = [("FAKE_CUDA_DEVICES", "0"), ("FAKE_OPEN_HANGS", "1")];
    in_child(test, NEWEST, &env, || {
        for _ in 0..3 {
            assert_eq!(CuFile::get().err(), Some(Unavailable::NoDevice));
        }
        let capabilities = CuFile::installed().expect("the library itself is there");
        assert_eq!(capabilities.version, Version::from_code(1200));
        let fake = Fake::load();
        assert_eq!(fake.number("fake_driver_opens"), 0);
        fake.assert_clean();
    });
}

#[test]
fn a_cuda_driver_that_does_not_start() {
    let test = "loading::a_cuda_driver_that_does_not_start";
    let env = [("FAKE_CUDA_INIT", "700"), ("FAKE_OPEN_HANGS", "1")];
    in_child(test, NEWEST, &env, || {
        let why = CuFile::get().expect_err("cuInit fails");
        assert_eq!(why, Unavailable::CudaInit { code: 700 });
        let text = why.to_string();
        assert!(text.contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "{text}");
        assert_eq!(Fake::load().number("fake_driver_opens"), 0);
    });
}

#[test]
fn cuinit_that_finds_no_device() {
    let test = "loading::cuinit_that_finds_no_device";
    in_child(test, NEWEST, &[("FAKE_CUDA_INIT", "100")], || {
        assert_eq!(CuFile::get().err(), Some(Unavailable::NoDevice));
    });
}

#[test]
fn libraries_that_are_not_there_are_named() {
    let test = "loading::libraries_that_are_not_there_are_named";
    let env = [("FABRICAST_CUFILE", "/nowhere/libcufile.so.0")];
    in_child(test, NEWEST, &env, || {
        let why = CuFile::get().expect_err("there is none");
        let Unavailable::Library { tried } = &why else {
            panic!("{why}");
        };
        assert_eq!(tried.len(), 1);
        let text = why.to_string();
        assert!(text.contains("/nowhere/libcufile.so.0: "), "{text}");
        assert!(text.contains("FABRICAST_CUFILE"), "{text}");
        assert_eq!(CuFile::installed().err(), Some(why));
    });
}

#[test]
#[allow(unsafe_code)]
fn a_library_that_is_not_there_is_not_looked_for_again() {
    let test = "loading::a_library_that_is_not_there_is_not_looked_for_again";
    in_child(test, NEWEST, &[], || {
        let (_dir, path) = super::suite::folder();
        let (there, later) = (
            std::env::var_os("FABRICAST_CUFILE").unwrap(),
            path.join("libcufile.so.0"),
        );
        // SAFETY: no other thread of this process looks at the environment: its harness waits.
        unsafe { std::env::set_var("FABRICAST_CUFILE", &later) };
        let why = CuFile::get().expect_err("there is none");
        std::fs::copy(&there, &later).unwrap();
        assert_eq!(CuFile::get().err(), Some(why), "said again");
        // SAFETY: as above.
        unsafe { std::env::set_var("FABRICAST_CUFILE", &there) };
        let cufile = CuFile::get().expect("another one is named");
        assert_eq!(cufile.path(), there);
    });
}

#[test]
fn a_cuda_driver_that_is_not_there_is_named() {
    let test = "loading::a_cuda_driver_that_is_not_there_is_named";
    let env = [("FABRICAST_CUDA", "/nowhere/libcuda.so.1")];
    in_child(test, NEWEST, &env, || {
        let why = CuFile::get().expect_err("there is none");
        assert!(matches!(why, Unavailable::Cuda { .. }), "{why}");
        let text = why.to_string();
        assert!(text.contains("/nowhere/libcuda.so.1"), "{text}");
    });
}

#[test]
fn a_library_without_a_function_that_all_have() {
    let test = "loading::a_library_without_a_function_that_all_have";
    in_child(test, Build::WithoutRead, &[], || {
        let why = CuFile::get().expect_err("it is broken");
        let Unavailable::Broken { symbol, path, .. } = &why else {
            panic!("{why}");
        };
        assert_eq!(*symbol, "cuFileRead");
        assert!(path.ends_with("libcufile-without-read.so"), "{path:?}");
    });
}

#[test]
fn an_old_library_has_what_all_have() {
    let test = "loading::an_old_library_has_what_all_have";
    in_child(test, Build::Version(1000), &[], || {
        let cufile = CuFile::get().expect("the fake");
        let capabilities = cufile.capabilities();
        assert_eq!(capabilities.version, Version::UNKNOWN);
        let groups = [
            capabilities.use_count,
            capabilities.settings,
            capabilities.vectored,
            capabilities.streams,
            capabilities.batches,
            capabilities.parameters,
            capabilities.statistics,
            capabilities.bar_size,
            capabilities.p2p_flags,
        ];
        assert_eq!(groups, [false; 9]);
        let (_dir, path) = super::suite::folder();
        let content = super::suite::pattern(10_000, 1);
        let handle = super::suite::file(cufile, &path.join("file"), &content, 0);
        let mut bytes = vec![0; 10_000];
        assert_eq!(handle.read_host(&mut bytes, 0).unwrap(), 10_000);
        assert!(bytes == content);
        let error = cufile.batch::<()>(1).expect_err("there are none");
        let text = error.to_string();
        assert!(text.contains("cuFileBatchIOSetUp"), "{text}");
        assert!(text.contains("of unknown version"), "{text}");
        let error = cufile.driver().unwrap().properties().unwrap_err();
        assert!(matches!(error, CuFileError::Lacks { .. }), "{error}");
        assert_eq!(cufile.use_count(), None);
        drop(handle);
        cufile.close_driver().expect("by the old name");
        let fake = Fake::load();
        assert_eq!(fake.calls("cuFileDriverClose"), 1);
        fake.assert_clean();
    });
}

/// Streams, parameters, statistics, vectors: as the documents date them.
fn groups_of(version: u32) -> [bool; 4] {
    [
        version >= 1070,
        version >= 1140,
        version >= 1150,
        version >= 1190,
    ]
}

fn assert_groups(test: &str, version: u32) {
    in_child(test, Build::Version(version), &[], || {
        let it = CuFile::get().expect("the fake").capabilities();
        let groups = [it.streams, it.parameters, it.statistics, it.vectored];
        assert_eq!(groups, groups_of(version));
        assert_eq!(it.version.code(), version as i32);
    });
}

#[test]
fn groups_of_1_7() {
    assert_groups("loading::groups_of_1_7", 1070);
}

#[test]
fn groups_of_1_14() {
    assert_groups("loading::groups_of_1_14", 1140);
}

#[test]
fn a_version_that_can_not_be_asked_for_has_no_statistics() {
    let test = "loading::a_version_that_can_not_be_asked_for_has_no_statistics";
    in_child(test, NEWEST, &[], || {
        // Before anything else: the version is asked for once.
        let fake = Fake::load();
        fake.fail("cuFileGetVersion", 5005, 0);
        let cufile = CuFile::get().expect("the fake");
        assert_eq!(cufile.version(), Version::UNKNOWN);
        let error = cufile.driver().unwrap().stats_l1().unwrap_err();
        assert!(matches!(error, CuFileError::Lacks { .. }), "{error}");
    });
}

#[test]
fn a_forked_child_does_not_touch_it() {
    let test = "loading::a_forked_child_does_not_touch_it";
    in_child(test, NEWEST, &[], || {
        let cufile = CuFile::get().expect("the fake");
        let (_dir, path) = super::suite::folder();
        let handle = super::suite::file(cufile, &path.join("file"), &[7; 10], 0);
        let fake = Fake::load();
        let code = in_fork(|| {
            let refused = matches!(CuFile::get(), Err(Unavailable::Forked { .. }));
            let read = handle.read_host(&mut [0; 10], 0);
            let unread = matches!(
                read,
                Err(CuFileError::Unavailable(Unavailable::Forked { .. }))
            );
            drop(handle.clone());
            let untouched = fake.number("fake_handles_live") == 1 && fake.calls("cuFileRead") == 0;
            i32::from(!refused) | i32::from(!unread) << 1 | i32::from(!untouched) << 2
        });
        assert_eq!(code, 0, "what went wrong, by bits");
        assert_eq!(handle.read_host(&mut [0; 10], 0).unwrap(), 10);
        drop(handle);
        fake.assert_clean();
    });
}

/// What a forked process answers.
#[allow(unsafe_code)]
fn in_fork(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child reads and allocates a little, in a process whose other threads hold no
    // lock: its harness waits.
    match unsafe { libc::fork() } {
        0 => {
            let code = child();
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(code) }
        }
        pid => {
            assert!(pid > 0, "fork");
            let mut status = 0;
            // SAFETY: our own child; `status` is writable.
            let rc = unsafe { libc::waitpid(pid, &raw mut status, 0) };
            assert_eq!(rc, pid);
            assert!(libc::WIFEXITED(status), "status {status:#x}");
            libc::WEXITSTATUS(status)
        }
    }
}
