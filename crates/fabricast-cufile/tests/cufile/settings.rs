//! Properties, settings, parameters, and what is checked before cuFile is asked.

use fabricast_cufile::{
    BoolParameter, ControlFlags, CuFile, CuFileError, CuFileStatus, Failure, FeatureFlags,
    FileSystem, P2pFlags, SizeParameter, Slab, SlabPool, StatsLevel, StringParameter, config_file,
};

use super::fake::{Build, Fake, NEWEST, in_child};

fn field_of(error: CuFileError) -> (&'static str, &'static str) {
    match error {
        CuFileError::Value { field, unit, .. } => (field, unit),
        other => panic!("{other}"),
    }
}

#[test]
fn settings_are_checked_before_the_call() {
    let test = "settings::settings_are_checked_before_the_call";
    in_child(test, NEWEST, &[], || {
        let cufile = CuFile::get().expect("the fake");
        let direct = ("max_direct_io_size_kb", "KiB");
        for kb in [0, 60, 66, 16 * 1024 + 4, usize::MAX] {
            let error = cufile.set_max_direct_io_size_kb(kb).unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains("64 to 16384") && text.contains("KiB"),
                "{text}"
            );
            assert_eq!(field_of(error), direct);
        }
        let error = cufile.set_poll_mode(true, 3).unwrap_err();
        assert_eq!(field_of(error), ("poll_threshold_kb", "KiB"));
        let error = cufile.set_max_cache_size_kb(5).unwrap_err();
        assert_eq!(field_of(error), ("max_cache_size_kb", "KiB"));
        let error = cufile.set_max_pinned_mem_size_kb(Some(6)).unwrap_err();
        assert_eq!(field_of(error), ("max_pinned_mem_size_kb", "KiB"));
        let error = cufile.set_stats_level(StatsLevel(4)).unwrap_err();
        assert_eq!(field_of(error), ("level", ""));
        let fake = Fake::load();
        for call in [
            "cuFileDriverSetMaxDirectIOSize",
            "cuFileDriverSetPollMode",
            "cuFileDriverSetMaxCacheSize",
            "cuFileDriverSetMaxPinnedMemSize",
            "cuFileSetStatsLevel",
        ] {
            assert_eq!(fake.calls(call), 0, "{call}");
        }
        cufile.set_max_direct_io_size_kb(1024).unwrap();
        cufile.set_poll_mode(true, 8).unwrap();
        cufile.set_max_cache_size_kb(65536).unwrap();
        cufile.set_max_pinned_mem_size_kb(Some(4096)).unwrap();
        cufile.set_max_pinned_mem_size_kb(None).unwrap();
        cufile.set_max_pinned_mem_size_kb(Some(8192)).unwrap();
        let driver = cufile.driver().unwrap();
        let properties = driver.properties().unwrap();
        assert_eq!(properties.max_direct_io_size_kb, 1024);
        // As the fake has them: each field of the C struct is where it is looked for.
        assert_eq!(
            properties.features,
            FeatureFlags::BATCH_IO | FeatureFlags::STREAMS
        );
        assert_eq!(properties.max_batch_io_size, 128);
        assert_eq!(properties.max_batch_io_timeout_ms, 5000);
        assert_eq!(properties.poll_threshold_kb, 8);
        let control = ControlFlags::USE_POLL_MODE | ControlFlags::ALLOW_COMPAT_MODE;
        assert_eq!(properties.control, control);
        assert_eq!(properties.max_device_cache_size_kb, 65536);
        assert_eq!(properties.max_device_pinned_mem_size_kb, 8192);
        assert!(!properties.has_nvfs());
        // A newer library ignores it from now on, so it is not asked.
        let error = cufile.set_max_direct_io_size_kb(64).unwrap_err();
        assert!(error.to_string().contains("before the driver is opened"));
        fake.assert_clean();
    });
}

#[test]
fn older_versions_take_settings_while_open() {
    let test = "settings::older_versions_take_settings_while_open";
    in_child(test, Build::Version(1150), &[], || {
        let cufile = CuFile::get().expect("the fake");
        let error = cufile.set_max_direct_io_size_kb(64).unwrap_err();
        assert!(error.to_string().contains("while the driver is open"));
        let driver = cufile.driver().unwrap();
        cufile.set_max_direct_io_size_kb(64).unwrap();
        assert_eq!(driver.properties().unwrap().max_direct_io_size_kb, 64);
        Fake::load().assert_clean();
    });
}

#[test]
fn parameters_are_set_before_the_driver_is_opened() {
    let test = "settings::parameters_are_set_before_the_driver_is_opened";
    in_child(test, NEWEST, &[], || {
        let cufile = CuFile::get().expect("the fake");
        let batch = SizeParameter::PROPERTIES_IO_BATCHSIZE;
        assert_eq!(cufile.size_parameter(batch).unwrap(), 128);
        assert_eq!(cufile.size_parameter_range(batch).unwrap(), (1, 1 << 20));
        let error = cufile.set_size_parameter(batch, 0).unwrap_err();
        assert!(error.to_string().contains("1 to 1048576"), "{error}");
        cufile.set_size_parameter(batch, 64).unwrap();
        assert_eq!(cufile.size_parameter(batch).unwrap(), 64);
        let compat = BoolParameter::PROPERTIES_ALLOW_COMPAT_MODE;
        assert!(cufile.bool_parameter(compat).unwrap());
        cufile.set_bool_parameter(compat, false).unwrap();
        assert!(!cufile.bool_parameter(compat).unwrap());
        let level = StringParameter::LOGGING_LEVEL;
        assert_eq!(cufile.string_parameter(level).unwrap(), "ERROR");
        cufile.set_string_parameter(level, "TRACE").unwrap();
        assert_eq!(cufile.string_parameter(level).unwrap(), "TRACE");
        assert_eq!(
            field_of(cufile.set_string_parameter(level, "a\0b").unwrap_err()).0,
            "parameter"
        );
        let error = cufile.bool_parameter(BoolParameter(99)).unwrap_err();
        assert_eq!(error.status(), Some(CuFileStatus(5022)));
        let driver = cufile.driver().unwrap();
        let error = cufile.set_bool_parameter(compat, true).unwrap_err();
        assert!(
            error.to_string().contains("before the driver is opened"),
            "{error}"
        );
        drop(driver);
        cufile.close_driver().unwrap();
        cufile.set_bool_parameter(compat, true).unwrap();
        Fake::load().assert_clean();
    });
}

#[test]
fn pools_of_buffers() {
    let test = "settings::pools_of_buffers";
    in_child(test, NEWEST, &[], || {
        let cufile = CuFile::get().expect("the fake");
        let slab = |size_kb, count| Slab { size_kb, count };
        for pool in [SlabPool::Posix, SlabPool::Gpu] {
            let error = cufile.slabs(pool, 2).unwrap_err();
            assert_eq!(error.status(), Some(CuFileStatus(5022)), "there are 3");
            assert_eq!(field_of(cufile.slabs(pool, 0).unwrap_err()).0, "slabs");
            for wrong in [
                [slab(4, 1), slab(4, 1)],
                [slab(8, 1), slab(4, 1)],
                [slab(4, 1), slab(6, 1)],
            ] {
                let error = cufile.set_slabs(pool, &wrong).unwrap_err();
                assert_eq!(field_of(error), ("size_kb", "KiB"));
            }
            let slabs = [slab(4, 7), slab(64, 8), slab(1024, 9)];
            cufile.set_slabs(pool, &slabs).unwrap();
            assert_eq!(cufile.slabs(pool, 3).unwrap(), slabs);
        }
        Fake::load().assert_clean();
    });
}

#[test]
fn ways_to_the_gpu() {
    let test = "settings::ways_to_the_gpu";
    in_child(test, NEWEST, &[], || {
        let cufile = CuFile::get().expect("the fake");
        let driver = cufile.driver().unwrap();
        assert_eq!(driver.p2p_flags(FileSystem::NVME).unwrap(), P2pFlags::NVFS);
        driver
            .set_p2p_flags(FileSystem::NFS, P2pFlags::PCI_P2PDMA)
            .unwrap();
        assert_eq!(
            driver.p2p_flags(FileSystem::NFS).unwrap(),
            P2pFlags::PCI_P2PDMA
        );
        let error = driver
            .set_p2p_flags(FileSystem::NFS, P2pFlags::NVFS)
            .unwrap_err();
        assert_eq!(error.status(), Some(CuFileStatus(5022)));
        assert_eq!(driver.bar_size_kb(0).unwrap(), 256 * 1024);
        let (_dir, path) = super::suite::folder();
        driver
            .export_pcie_topology(&path.join("topology.json"))
            .unwrap();
        assert_eq!(std::fs::read(path.join("topology.json")).unwrap(), b"{}\n");
        let error = driver
            .export_pcie_topology(&path.join("no/such/folder"))
            .unwrap_err();
        assert!(error.to_string().contains("no/such/folder"), "{error}");
        Fake::load().assert_clean();
    });
}

#[test]
fn the_driver_is_closed_once_nobody_uses_it() {
    let test = "settings::the_driver_is_closed_once_nobody_uses_it";
    in_child(test, NEWEST, &[], || {
        let cufile = CuFile::get().expect("the fake");
        let fake = Fake::load();
        cufile.close_driver().expect("it is not open");
        assert_eq!(fake.calls("cuFileDriverClose_v2"), 0);
        let (driver, batch) = (cufile.driver().unwrap(), cufile.batch::<()>(1).unwrap());
        let in_use = |users| assert_eq!(cufile.close_driver(), Err(CuFileError::InUse { users }));
        in_use(2);
        drop(driver);
        in_use(1);
        drop(batch);
        cufile.close_driver().unwrap();
        assert_eq!(fake.number("fake_driver_is_open"), 0);
        // A failure leaves it open, for another try.
        let driver = cufile.driver().unwrap();
        drop(driver);
        fake.fail("cuFileDriverClose_v2", 5006, 0);
        let error = cufile.close_driver().unwrap_err();
        assert_eq!(error.status(), Some(CuFileStatus(5006)));
        assert!(cufile.is_driver_open());
        cufile.close_driver().unwrap();
        assert_eq!(fake.number("fake_driver_opens"), 2);
        fake.assert_clean();
    });
}

#[test]
fn a_driver_that_somebody_else_opened_is_not_closed() {
    let test = "settings::a_driver_that_somebody_else_opened_is_not_closed";
    in_child(test, NEWEST, &[], || {
        let cufile = CuFile::get().expect("the fake");
        let fake = Fake::load();
        fake.fail("cuFileDriverOpen", 5026, 0);
        drop(cufile.driver().expect("it is open"));
        cufile.close_driver().unwrap();
        assert_eq!(fake.calls("cuFileDriverClose_v2"), 0);
    });
}

#[test]
fn a_driver_that_does_not_open() {
    let test = "settings::a_driver_that_does_not_open";
    in_child(test, NEWEST, &[], || {
        let cufile = CuFile::get().expect("the fake");
        let fake = Fake::load();
        for (err, cu_err) in [(5001, 0), (5004, 0), (5011, 700), (5033, 0), (5555, 0)] {
            fake.fail("cuFileDriverOpen", err, cu_err);
            let error = cufile.driver().unwrap_err();
            let CuFileError::Call(call) = &error else {
                panic!("{error}");
            };
            let status = CuFileStatus(err as i32);
            assert_eq!(call.failure, Failure::Status { status, cu_err });
            let text = error.to_string();
            assert!(text.starts_with("cuFileDriverOpen: "), "{text}");
            if cu_err != 0 {
                assert!(text.contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "{text}");
            }
            assert!(!cufile.is_driver_open());
        }
        drop(cufile.driver().expect("a later try"));
        fake.assert_clean();
    });
}

#[test]
fn the_key_that_forces_compatibility_mode_is_named() {
    let test = "settings::the_key_that_forces_compatibility_mode_is_named";
    let env = [
        ("CUFILE_ENV_PATH_JSON", "cufile.json"),
        ("CUFILE_FORCE_COMPAT_MODE", "true"),
    ];
    in_child(test, NEWEST, &env, || {
        let error = config_file::compat_settings().unwrap_err();
        assert!(error.to_string().starts_with("cufile.json: "), "{error}");
        std::fs::write(
            "cufile.json",
            "{ // ours\n\"properties\": {\"force_compat_mode\": true}}",
        )
        .unwrap();
        let settings = config_file::compat_settings().unwrap();
        let said: Vec<_> = settings.iter().map(ToString::to_string).collect();
        let forced = "all of cuFile's operations go through compatibility mode";
        assert_eq!(
            said,
            [
                format!("environment: CUFILE_FORCE_COMPAT_MODE = true: {forced}"),
                format!("cufile.json: properties.force_compat_mode = true: {forced}"),
            ]
        );
    });
}
