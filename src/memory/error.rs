//! Why memory could not be had, or not be used so.

use std::io;
use std::sync::Arc;

use super::{Purpose, RegionKind};
use crate::cuda::CudaError;
use crate::errno::{Advised, FabricErrno};

/// Why a region, or a user of a region, could not be made.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// A region of 0 bytes was asked for.
    #[error("a region has at least 1 byte")]
    Empty,
    /// The size is more than an address space holds, or the region would wrap around its end.
    #[error(
        "{asked_bytes} bytes, alone or times the slots, do not fit in the address space: less than \
         2^63 bytes do; ask for smaller or fewer slots"
    )]
    TooLarge {
        /// The size that was asked for, in bytes.
        asked_bytes: usize,
    },
    /// A setting is out of its range.
    #[error("{field} = {value}: {reason}")]
    Setting {
        /// The name of the setting.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The rule that it breaks.
        reason: &'static str,
    },
    /// The kernel would not map that much memory.
    #[error("cannot map {asked_bytes} bytes: {source}")]
    Map {
        /// The size that was asked for, in bytes, rounded up to pages.
        asked_bytes: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Huge pages were required and there are not enough of them.
    #[error(
        "cannot map {asked_bytes} bytes in huge pages of 2 MiB: {source}; reserve at least {pages} \
         of them (/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages), or do not require them"
    )]
    HugePages {
        /// The size that was asked for, in bytes, rounded up to huge pages.
        asked_bytes: usize,
        /// The number of huge pages that it takes.
        pages: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The memory could not be bound to a NUMA node.
    #[error(
        "cannot bind memory to NUMA node {node}: {source} (the nodes are in \
         /sys/devices/system/node)"
    )]
    NumaNode {
        /// The node that was asked for.
        node: u32,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel mapped the memory but has no pages for it.
    #[error("cannot populate {asked_bytes} bytes: {source}")]
    Populate {
        /// The size of the mapping, in bytes.
        asked_bytes: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The region is too small for what was to be put in it.
    #[error("the region has {have_bytes} bytes, {what} need {need_bytes}")]
    TooSmall {
        /// What was to be put in it.
        what: &'static str,
        /// What that takes, in bytes.
        need_bytes: usize,
        /// The size of the region, in bytes.
        have_bytes: usize,
    },
    /// The range is not inside of the region.
    #[error("bytes {start}..{end} are not inside a region of {len_bytes} bytes")]
    OutOfRange {
        /// The first byte.
        start: usize,
        /// The byte behind the last.
        end: usize,
        /// The size of the region, in bytes.
        len_bytes: usize,
    },
    /// The region is in use for something that forbids this.
    #[error("the region is in use for {by} and cannot also be used for {wanted}")]
    Claimed {
        /// What it is in use for.
        by: Purpose,
        /// What it was asked for.
        wanted: Purpose,
    },
    /// Access by the host was asked for, to memory that somebody else owns, or that is a device's.
    #[error(
        "{what} need a host region: others may write to an external one, and the host can't touch \
         a device's memory"
    )]
    NotHost {
        /// Who asked.
        what: &'static str,
    },
    /// CUDA is missing, or refused.
    #[error("{what}: {source}")]
    Cuda {
        /// What was asked for.
        what: &'static str,
        /// What is missing, or what CUDA answered.
        source: CudaError,
    },
    /// CUDA does not know the address, or not so many bytes from there on.
    #[error("{len} bytes at {address:#x} are not in one allocation of CUDA's")]
    NotDevice {
        /// The address.
        address: u64,
        /// How many bytes.
        len: usize,
    },
    /// A tensor can't be a region.
    #[error("tensor: {reason}")]
    Tensor {
        /// Why not.
        reason: String,
    },
    /// A region of a device's memory was asked for, and this is another.
    #[error("{what} need a region of a device's memory, this is {kind}")]
    NotDeviceRegion {
        /// Who asked.
        what: &'static str,
        /// What it is.
        kind: RegionKind,
    },
    /// `/proc/self/smaps` could not be read.
    #[error("reading /proc/self/smaps: {0}")]
    Smaps(#[source] io::Error),
}

fabricast_process::debug_as_words!(MemoryError);

/// Why memory could not be registered.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The domain already holds as many registrations as its setting allows.
    #[error(
        "this domain already holds {limit} registrations, its limit (setting `max_registrations`)"
    )]
    DomainLimit {
        /// The limit, a number of registrations.
        limit: usize,
    },
    /// The kernel would not lock that much memory.
    #[error(
        "cannot lock {asked_bytes} bytes for registration: RLIMIT_MEMLOCK is {limit_bytes} bytes \
         (raise it with `ulimit -l` or LimitMEMLOCK=)"
    )]
    MemLock {
        /// The soft limit in force, in bytes.
        limit_bytes: u64,
        /// The size of the region that was to be registered, in bytes.
        asked_bytes: u64,
    },
    /// The domain was opened by the process that this one was forked from.
    #[error(
        "this domain was opened by process {made_by}, which this process was forked from: open a \
         fabric of its own in the child"
    )]
    Forked {
        /// The process that opened it.
        made_by: u32,
    },
    /// The memory of an external region is not mapped, or no more: its owner has unmapped it before
    /// the region was gone.
    #[error(
        "an external region of {len_bytes} bytes is not mapped: its owner has to keep it until \
         `keep_alive` is dropped"
    )]
    NotMapped {
        /// The size of the region, in bytes.
        len_bytes: usize,
    },
    /// A peer's access to the memory could not be ended, nor kept to the rights that it is given:
    /// libfabric caches registrations ([`RegistrationCache`](crate::fabric::RegistrationCache)).
    #[error(
        "a peer can't be given access to memory while libfabric caches registrations, which would \
         leave it there, with all rights, when the window is taken back ({reason}): unset \
         FI_MR_CACHE_MONITOR, or start the process with FI_MR_CACHE_MAX_COUNT=0"
    )]
    Cached {
        /// Why it does.
        reason: &'static str,
    },
    /// The last deregistration still waits for operations in flight.
    #[error("this region is still being deregistered: operations that use it are in flight")]
    Closing,
    /// A device's memory can't be reached by the provider, and has to be: it was required, or the
    /// use leaves no other way.
    #[error("{kind} can't be registered for direct access: {reason}")]
    Device {
        /// What the memory is.
        kind: RegionKind,
        /// Why not, in words.
        reason: Arc<str>,
    },
    /// libfabric refused for another reason.
    #[error("{call}: {}", Advised::of(errno))]
    Fabric {
        /// The C function.
        call: &'static str,
        /// Its error.
        errno: FabricErrno,
    },
}

fabricast_process::debug_as_words!(RegisterError);
