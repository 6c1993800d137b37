//! `BlockDevice`: what a file lies on, as sysfs(5) tells it.
//!
//! ```text
//!  file ─ stat(2) ─► 259:3 ─ /sys/dev/block/259:3 ─► nvme0n1p3 (a partition)
//!                                                       └─► nvme0n1 (its disk)
//!                                                             │  queue/: limits, stat: counters
//!                                                             └─► nvme0 (its controller)
//! ```

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};

use super::open::retry;
use super::{FileHandle, FileOperation};

const SYSFS: &str = "/sys";
/// The unit of the counters of the kernel, whatever the disk's own is, in bytes.
const SECTOR: u64 = 512;

/// Why there is no [`BlockDevice`].
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BlockDeviceError {
    /// The file does not lie on one.
    #[error("{path} lies on no block device: {reason}", path = path.display())]
    None {
        /// The file, or its device by numbers.
        path: PathBuf,
        /// What it lies on instead.
        reason: String,
    },
    /// The file, or what sysfs has about its device, could not be read.
    #[error("{path}: {source}", path = path.display())]
    Os {
        /// What could not be read.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

fabricast_process::debug_as_words!(BlockDeviceError);

/// The block device that a file lies on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockDevice {
    /// Major and minor number of the device, or of the partition.
    pub major: u32,
    /// See `major`.
    pub minor: u32,
    /// The kernel's name of it, such as `nvme0n1p3` or `sda`.
    pub name: String,
    /// The whole disk: the same as `name` where it is no partition.
    pub disk: String,
    /// The NVMe controller (`nvme0`), or the NVMe subsystem where several paths lead to the disk.
    pub controller: Option<String>,
    /// What the maker calls it.
    pub model: Option<String>,
    /// The devices that it is made of, where it is an md or dm device.
    pub made_of: Vec<String>,
    /// What its queue can take.
    pub limits: QueueLimits,
    /// Where sysfs has the disk.
    directory: PathBuf,
}

/// What the queue of a disk can take (`/sys/block/DISK/queue`); nothing where the kernel does not
/// say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueLimits {
    /// The smallest unit that can be addressed, in bytes: a direct transfer is of whole ones.
    pub logical_block_size: Option<u64>,
    /// The smallest unit that is written without reading first, in bytes.
    pub physical_block_size: Option<u64>,
    /// The longest request that the kernel makes, in KiB.
    pub max_sectors_kb: Option<u64>,
    /// The longest request that the hardware takes, in KiB.
    pub max_hw_sectors_kb: Option<u64>,
    /// Pieces of memory that one request may be scattered over: of 4 KiB pages, 254 of them are
    /// less than 1 MiB.
    pub max_segments: Option<u64>,
    /// The longest of these pieces, in bytes.
    pub max_segment_size: Option<u64>,
    /// Requests that wait in the queue at most.
    pub nr_requests: Option<u64>,
    /// What is read ahead into the page cache, in KiB.
    pub read_ahead_kb: Option<u64>,
    /// Whether it turns.
    pub rotational: Option<bool>,
}

/// What a disk did since the machine was started, in all of its partitions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockCounters {
    /// Requests to read that are done.
    pub reads: u64,
    /// Reads that became part of another request.
    pub reads_merged: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Requests to write that are done.
    pub writes: u64,
    /// Writes that became part of another request.
    pub writes_merged: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Requests under way.
    pub in_flight: u64,
}

impl BlockDevice {
    /// Of the file that a path leads to; of a block device, itself.
    ///
    /// # Errors
    ///
    /// [`BlockDeviceError`].
    pub fn of_path(path: impl AsRef<Path>) -> Result<Self, BlockDeviceError> {
        let path = path.as_ref();
        // O_PATH: nothing is opened, no right is needed.
        let fd = retry(|| rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()))
            .map_err(|errno| os(path, errno.into()))?;
        Self::of_named(&fd, path)
    }

    /// Of an open file; of a block device, itself.
    ///
    /// # Errors
    ///
    /// [`BlockDeviceError`].
    pub fn of_fd(fd: impl AsFd) -> Result<Self, BlockDeviceError> {
        use std::os::fd::AsRawFd;
        let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
        Self::of_named(fd, Path::new(&path))
    }

    fn of_named(fd: impl AsFd, path: &Path) -> Result<Self, BlockDeviceError> {
        let stat = rustix::fs::fstat(&fd).map_err(|errno| os(path, errno.into()))?;
        let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
        let device = if is_device { stat.st_rdev } else { stat.st_dev };
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        match read(Path::new(SYSFS), major, minor) {
            Err(BlockDeviceError::None { .. }) => {
                // The type's sign and width differ between architectures; the numbers fit in 32
                // bits.
                let magic =
                    rustix::fs::fstatfs(&fd).map_or(0, |statfs| statfs.f_type as u64 & 0xffff_ffff);
                Err(BlockDeviceError::None {
                    path: path.to_owned(),
                    reason: on_what(magic, major, minor),
                })
            }
            other => other,
        }
    }

    /// By its numbers, as stat(2) gives them (`st_dev`).
    ///
    /// # Errors
    ///
    /// [`BlockDeviceError`].
    pub fn of_device(major: u32, minor: u32) -> Result<Self, BlockDeviceError> {
        read(Path::new(SYSFS), major, minor)
    }

    /// What has one queue to the hardware, and so one pool of threads: the controller, else the
    /// disk.
    pub fn drive(&self) -> &str {
        self.controller.as_deref().unwrap_or(&self.disk)
    }

    /// What the disk did until now.
    ///
    /// # Errors
    ///
    /// [`BlockDeviceError::Os`]: it is gone.
    pub fn counters(&self) -> Result<BlockCounters, BlockDeviceError> {
        let path = self.directory.join("stat");
        let text = fs::read_to_string(&path).map_err(|source| os(&path, source))?;
        counters(&text).ok_or_else(|| os(&path, io::ErrorKind::InvalidData.into()))
    }
}

impl FileHandle {
    /// The block device that the file lies on; of a block device, itself.
    ///
    /// # Errors
    ///
    /// [`BlockDeviceError`]; [`BlockDeviceError::Os`] with EBADF for a handle that is closed.
    pub fn block_device(&self) -> Result<BlockDevice, BlockDeviceError> {
        match self.file(FileOperation::Stat) {
            Ok(file) => BlockDevice::of_named(file.buffered(), self.path()),
            Err(_) => Err(os(self.path(), io::Error::from_raw_os_error(libc::EBADF))),
        }
    }
}

fn os(path: &Path, source: io::Error) -> BlockDeviceError {
    BlockDeviceError::Os {
        path: path.to_owned(),
        source,
    }
}

/// Reads what a sysfs has about a device.
fn read(sysfs: &Path, major: u32, minor: u32) -> Result<BlockDevice, BlockDeviceError> {
    let link = sysfs.join(format!("dev/block/{major}:{minor}"));
    let directory = match fs::canonicalize(&link) {
        Ok(directory) => directory,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(BlockDeviceError::None {
                path: PathBuf::from(format!("device {major}:{minor}")),
                reason: on_what(0, major, minor),
            });
        }
        Err(source) => return Err(os(&link, source)),
    };
    let name = file_name(&directory);
    let disk = match directory.parent() {
        Some(parent) if directory.join("partition").exists() => parent.to_owned(),
        _ => directory,
    };
    Ok(BlockDevice {
        major,
        minor,
        name,
        disk: file_name(&disk),
        controller: controller(&disk),
        model: text(&disk.join("device/model")),
        made_of: made_of(&disk),
        limits: limits(&disk.join("queue")),
        directory: disk,
    })
}

/// What an NVMe disk hangs on.
fn controller(disk: &Path) -> Option<String> {
    if !file_name(disk).starts_with("nvme") {
        return None;
    }
    fs::canonicalize(disk.join("device"))
        .ok()
        .map(|device| file_name(&device))
}

fn made_of(disk: &Path) -> Vec<String> {
    let entries = fs::read_dir(disk.join("slaves")).into_iter().flatten();
    let mut names: Vec<_> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names
}

fn limits(queue: &Path) -> QueueLimits {
    let number = |name: &str| -> Option<u64> { text(&queue.join(name))?.parse().ok() };
    QueueLimits {
        logical_block_size: number("logical_block_size"),
        physical_block_size: number("physical_block_size"),
        max_sectors_kb: number("max_sectors_kb"),
        max_hw_sectors_kb: number("max_hw_sectors_kb"),
        max_segments: number("max_segments"),
        max_segment_size: number("max_segment_size"),
        nr_requests: number("nr_requests"),
        read_ahead_kb: number("read_ahead_kb"),
        rotational: number("rotational").map(|turns| turns != 0),
    }
}

/// From the line in `stat` (the kernel's Documentation/block/stat.rst).
fn counters(text: &str) -> Option<BlockCounters> {
    let numbers: Vec<u64> = text
        .split_ascii_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()
        .ok()?;
    let [
        reads,
        reads_merged,
        read_sectors,
        _,
        writes,
        writes_merged,
        written,
        _,
        in_flight,
        ..,
    ] = numbers[..]
    else {
        return None;
    };
    Some(BlockCounters {
        reads,
        reads_merged,
        read_bytes: read_sectors.saturating_mul(SECTOR),
        writes,
        writes_merged,
        written_bytes: written.saturating_mul(SECTOR),
        in_flight,
    })
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}

/// A file of one line; nothing where it can't be read, or is empty.
fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// What a file lies on when it is no block device, by the number that statfs(2) gives for the file
/// system.
fn on_what(magic: u64, major: u32, minor: u32) -> String {
    let what = match magic {
        0x0102_1994 | 0x8584_58f6 => "it lies in memory (tmpfs or ramfs)",
        0x794c_7630 => "overlayfs, which does not say in which of its layers a file lies",
        0x9123_683e => "btrfs, which may span several disks and has device numbers of its own",
        0x2fc1_2fc1 => "zfs, which may span several disks and has device numbers of its own",
        0x6969 | 0xff53_4d42 | 0xfe53_4d42 | 0x00c3_6400 | 0x0bd0_0bd0 | 0x0102_1997 => {
            "it lies on a server (nfs, smb, ceph, lustre or 9p)"
        }
        0x6573_5546 => "fuse: a process answers for it",
        _ => "sysfs has no block device of this number",
    };
    format!("{what} (device {major}:{minor})")
}

/// At most as much of a drive's name as fits into the name of its threads.
pub(super) fn short_name(drive: &str) -> &str {
    let mut end = drive.len().min(10);
    while !drive.is_char_boundary(end) {
        end -= 1;
    }
    &drive[..end]
}

/// One that this machine has, for tests.
#[cfg(all(test, not(loom)))]
pub(super) fn any_of_this_machine() -> Option<(u32, u32)> {
    let entries = fs::read_dir(Path::new(SYSFS).join("dev/block")).ok()?;
    let mut devices: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            let (major, minor) = name.split_once(':')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        })
        .collect();
    devices.sort_unstable();
    devices.pop()
}

#[cfg(all(test, not(loom)))]
#[path = "tests/block_device.rs"]
mod tests;
