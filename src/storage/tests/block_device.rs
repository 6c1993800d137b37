use std::os::unix::fs::symlink;

use super::*;

/// A sysfs with what these tests need.
struct FakeSysfs(tempfile::TempDir);

impl FakeSysfs {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("dev/block")).unwrap();
        Self(dir)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// The device of these numbers is at this place below `devices`.
    fn device(&self, number: &str, at: &str) {
        let at = self.0.path().join("devices").join(at);
        fs::create_dir_all(&at).unwrap();
        symlink(&at, self.0.path().join("dev/block").join(number)).unwrap();
    }

    fn link(&self, from: &str, to: &str) {
        symlink(to, self.0.path().join(from)).unwrap();
    }

    fn read(&self, major: u32, minor: u32) -> Result<BlockDevice, BlockDeviceError> {
        read(self.0.path(), major, minor)
    }
}

#[test]
fn a_partition_of_an_nvme_disk_leads_to_its_disk_and_its_controller() {
    let sysfs = FakeSysfs::new();
    sysfs.device("259:3", "pci/nvme/nvme0/nvme0n1/nvme0n1p3");
    sysfs.device("259:0", "pci/nvme/nvme0/nvme0n1");
    sysfs.device("259:9", "pci/nvme/nvme0/nvme0n2");
    let disk = "devices/pci/nvme/nvme0/nvme0n1";
    sysfs.write(&format!("{disk}/nvme0n1p3/partition"), "3\n");
    sysfs.write("devices/pci/nvme/nvme0/model", "ACME Flash 3000   \n");
    sysfs.link(&format!("{disk}/device"), "../../nvme0");
    sysfs.link("devices/pci/nvme/nvme0/nvme0n2/device", "../../nvme0");
    sysfs.write(&format!("{disk}/queue/logical_block_size"), "512\n");
    sysfs.write(&format!("{disk}/queue/max_sectors_kb"), "1280\n");
    sysfs.write(&format!("{disk}/queue/max_segments"), "254\n");
    sysfs.write(&format!("{disk}/queue/rotational"), "0\n");
    sysfs.write(
        &format!("{disk}/stat"),
        " 7 1 16 9 5 2 24 9 3 9 9 0 0 0 0 0 0\n",
    );

    let found = sysfs.read(259, 3).unwrap();
    assert_eq!((&*found.name, &*found.disk), ("nvme0n1p3", "nvme0n1"));
    assert_eq!(found.controller.as_deref(), Some("nvme0"));
    assert_eq!(found.drive(), "nvme0");
    assert_eq!(found.model.as_deref(), Some("ACME Flash 3000"));
    let limits = found.limits;
    assert_eq!(limits.logical_block_size, Some(512));
    assert_eq!(
        (limits.max_sectors_kb, limits.max_segments),
        (Some(1280), Some(254))
    );
    assert_eq!(limits.rotational, Some(false));
    assert_eq!(limits.nr_requests, None, "the kernel did not say");
    let counters = found.counters().unwrap();
    assert_eq!((counters.reads, counters.read_bytes), (7, 16 * 512));
    assert_eq!((counters.writes, counters.written_bytes), (5, 24 * 512));
    assert_eq!(counters.in_flight, 3);

    let disk = sysfs.read(259, 0).unwrap();
    assert_eq!((&*disk.name, &*disk.disk), ("nvme0n1", "nvme0n1"));
    // Namespaces of one controller are one drive.
    assert_eq!(sysfs.read(259, 9).unwrap().drive(), found.drive());
}

#[test]
fn a_disk_without_controller_is_its_own_drive_and_a_raid_names_its_parts() {
    let sysfs = FakeSysfs::new();
    sysfs.device("8:17", "ata/block/sdb/sdb1");
    sysfs.write("devices/ata/block/sdb/sdb1/partition", "1");
    sysfs.device("9:0", "virtual/block/md0");
    sysfs.write("devices/virtual/block/md0/slaves/sdc", "");
    sysfs.write("devices/virtual/block/md0/slaves/sdb", "");

    let disk = sysfs.read(8, 17).unwrap();
    assert_eq!((disk.drive(), disk.controller.as_deref()), ("sdb", None));
    assert!(disk.made_of.is_empty());
    assert!(disk.counters().unwrap_err().to_string().contains("stat"));
    assert_eq!(sysfs.read(9, 0).unwrap().made_of, ["sdb", "sdc"]);
}

#[test]
fn what_is_no_block_device_says_what_it_is() {
    let error = FakeSysfs::new().read(0, 42).unwrap_err().to_string();
    assert!(
        error.contains("0:42") && error.contains("no block device"),
        "{error}"
    );
    for (magic, word) in [
        (0x0102_1994, "memory"),
        (0x794c_7630, "overlayfs"),
        (0x9123_683e, "btrfs"),
        (0x6969, "server"),
        (1, "sysfs"),
    ] {
        assert!(on_what(magic, 0, 1).contains(word));
    }
    let missing = BlockDevice::of_path("/nowhere/at all")
        .unwrap_err()
        .to_string();
    assert!(missing.starts_with("/nowhere/at all: "), "{missing}");

    let shm = Path::new("/dev/shm");
    match rustix::fs::statfs(shm) {
        Ok(statfs) if statfs.f_type == 0x0102_1994 => {
            let error = BlockDevice::of_path(shm).unwrap_err().to_string();
            assert!(
                error.contains("/dev/shm") && error.contains("memory"),
                "{error}"
            );
        }
        _ => println!("SKIPPED: no tmpfs at /dev/shm"),
    }
}

#[test]
fn the_devices_of_this_machine_are_read() {
    let Some((major, minor)) = any_of_this_machine() else {
        println!("SKIPPED: no block device here");
        return;
    };
    let found = BlockDevice::of_device(major, minor).unwrap();
    assert!(!found.name.is_empty() && found.name.starts_with(&found.disk));
    let size = found.limits.logical_block_size.unwrap();
    assert!(size.is_power_of_two() && size >= 512, "{found:?}");
    found.counters().unwrap();
}

#[test]
fn a_file_and_its_path_lie_on_the_same() {
    let file = tempfile::NamedTempFile::new().unwrap();
    match (
        BlockDevice::of_path(file.path()),
        BlockDevice::of_fd(file.as_file()),
    ) {
        (Ok(by_path), Ok(by_fd)) => assert_eq!(by_path, by_fd),
        (Err(by_path), Err(by_fd)) => {
            println!("SKIPPED: {by_path}");
            assert!(by_fd.to_string().contains("/proc/self/fd/"), "{by_fd}");
        }
        (by_path, by_fd) => panic!("{by_path:?} but {by_fd:?}"),
    }
}

#[test]
fn a_line_of_counters_that_is_none_is_refused() {
    for text in ["", "1 2 3", "a b c d e f g h i", "1 2 3 4 5 6 7 8 -9"] {
        assert_eq!(counters(text), None, "{text:?}");
    }
    let most = format!("{0} {0} {0} {0} {0} {0} {0} {0} {0}", u64::MAX);
    assert_eq!(counters(&most).unwrap().read_bytes, u64::MAX);
}

#[test]
fn names_of_threads_are_short() {
    assert_eq!(short_name("nvme0"), "nvme0");
    assert_eq!(short_name("nvme-subsys10"), "nvme-subsy");
    assert_eq!(short_name("aaaaaaaaaéé"), "aaaaaaaaa");
}
