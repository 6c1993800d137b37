//! Host memory of our own: mapped, aligned, in huge pages where there are some, on one NUMA node
//! where asked.
//!
//! Mapped, advised and unmapped through libc, never by a bare system call ([`mapping`]): caches of
//! registrations would go on using the pages that lay there before.
//!
//! A forked child has none of it (`MADV_DONTFORK`), unless that was asked for: a fork makes pages
//! copy-on-write, and on old kernels the parent's next write then moves it to new pages, while a
//! network card, a disk or a GPU goes on using those that were pinned for it.
//!
//! # Safety
//! A mapping is owned by one [`HostMapping`] from `mmap` to its drop; nothing else unmaps or remaps
//! it. In a forked child it is not dropped ([`Here`](crate::process::Here) in [`Region`]), since
//! something else may lie at its address there.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ptr::NonNull;
use std::sync::Arc;

use super::device::Pin;
use super::{MemoryError, Region, round_up};
use crate::mapping;

/// The only size of huge page that we ask for, in bytes.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// The largest alignment, in bytes: that of a huge page of 1 GiB.
const ALIGNMENT_MAX_BYTES: usize = 1 << 30;
/// Nodes that a mask for `mbind` has room for; the kernel's own limit is 1024.
const NUMA_NODES_MAX: u32 = 1024;

/// Whether to ask for huge pages. They make registration and the device's address translation
/// cheaper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HugePages {
    /// For regions of 2 MiB and more: reserved huge pages, else transparent ones, else ordinary
    /// pages. The default.
    #[default]
    Try,
    /// Reserved huge pages or an error; the region is then rounded up to 2 MiB.
    Require,
    /// For regions of 2 MiB and more: transparent ones, else ordinary pages. Leaves the reserved
    /// ones to others.
    Transparent,
    /// Ordinary pages; what the kernel makes of them by itself is its business.
    Never,
}

/// Which pages a host region was mapped with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Reserved huge pages of 2 MiB.
    Huge2M,
    /// Ordinary ones for which transparent huge pages were asked; how many became huge,
    /// [`Region::huge_bytes`] says.
    Transparent,
    /// Ordinary pages.
    Base,
}

/// Describes a host region before it is made. From [`Region::host`].
///
/// ```
/// use fabricast::memory::{HugePages, Region};
/// let region = Region::host(1 << 20).huge_pages(HugePages::Never).build()?;
/// assert_eq!(region.len(), 1 << 20);
/// # Ok::<(), fabricast::memory::MemoryError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is mapped before `build`"]
pub struct HostRegionBuilder {
    len: usize,
    huge_pages: HugePages,
    numa_node: Option<u32>,
    alignment: Option<usize>,
    populate: bool,
    pinned: bool,
    inherited: bool,
}

impl HostRegionBuilder {
    pub(super) fn new(len: usize) -> Self {
        Self {
            len,
            huge_pages: HugePages::default(),
            numa_node: None,
            alignment: None,
            populate: true,
            pinned: false,
            inherited: false,
        }
    }

    /// Whether to ask for huge pages. Default: [`HugePages::Try`].
    pub fn huge_pages(mut self, huge_pages: HugePages) -> Self {
        self.huge_pages = huge_pages;
        self
    }

    /// The NUMA node that the memory must lie on, best the one of the network card. Default:
    /// `None`, wherever the thread runs that makes it.
    pub fn numa_node(mut self, node: Option<u32>) -> Self {
        self.numa_node = node;
        self
    }

    /// The alignment of the start, in bytes: a power of two, a page to 1 GiB. Default: a page (2
    /// MiB in huge pages).
    pub fn alignment(mut self, bytes: usize) -> Self {
        self.alignment = Some(bytes);
        self
    }

    /// Whether to touch each page now, so that neither registration nor first use has to wait for
    /// the kernel. Default: true.
    pub fn populate(mut self, populate: bool) -> Self {
        self.populate = populate;
        self
    }

    /// Whether to pin the memory for CUDA (`cuMemHostRegister`), in the context that is current,
    /// else in that of device 0: copies from and to all devices are asynchronous then. Default:
    /// false.
    pub fn pinned(mut self, pinned: bool) -> Self {
        self.pinned = pinned;
        self
    }

    /// Whether a child that is forked from this process has a copy of the memory. Default: false,
    /// it has nothing there (`MADV_DONTFORK`, madvise(2)), and is ended by SIGSEGV if it looks.
    ///
    /// Without a copy, memory that is registered, or that a disk reads into, survives a fork on any
    /// kernel, and a fork costs nothing for it. With one, that holds only from Linux 5.12 on (6.5
    /// for direct I/O), and where the provider was told to be safe itself
    /// ([`ProcessSettings::fork_safe`](crate::fabric::ProcessSettings::fork_safe)). A child that
    /// only calls `_exit` or an exec, as that of [`Command`](std::process::Command) does, needs
    /// none.
    pub fn inherited(mut self, inherited: bool) -> Self {
        self.inherited = inherited;
        self
    }

    /// Maps the memory, zeroed.
    ///
    /// # Errors
    /// [`MemoryError`]: no bytes, too many, an alignment that is none, no memory, no huge pages
    /// where they are required, no such NUMA node; no CUDA where the memory is to be
    /// [pinned](Self::pinned).
    pub fn build(self) -> Result<Arc<Region>, MemoryError> {
        let page = rustix::param::page_size();
        let alignment = self.alignment.unwrap_or(page);
        if !alignment.is_power_of_two() || !(page..=ALIGNMENT_MAX_BYTES).contains(&alignment) {
            let reason = "must be a power of two, a page to 1 GiB";
            return Err(MemoryError::Setting {
                field: "alignment",
                value: alignment as u64,
                reason,
            });
        }
        if self.numa_node.is_some_and(|node| node >= NUMA_NODES_MAX) {
            let node = self.numa_node.unwrap_or_default();
            return Err(MemoryError::NumaNode {
                node,
                source: io::Error::from_raw_os_error(libc::EINVAL),
            });
        }
        if self.len == 0 {
            return Err(MemoryError::Empty);
        }
        if self.len > isize::MAX as usize - alignment - 2 * HUGE_PAGE_BYTES {
            return Err(MemoryError::TooLarge {
                asked_bytes: self.len,
            });
        }
        let mapping = match self.huge_pages {
            HugePages::Require => self.reserved(alignment)?,
            HugePages::Try if self.len >= HUGE_PAGE_BYTES => match self.reserved(alignment) {
                Ok(mapping) => mapping,
                // A node that does not exist will not exist for ordinary pages either.
                Err(error @ MemoryError::NumaNode { .. }) => return Err(error),
                Err(_) => self.transparent(alignment)?,
            },
            HugePages::Transparent if self.len >= HUGE_PAGE_BYTES => self.transparent(alignment)?,
            HugePages::Try | HugePages::Transparent | HugePages::Never => {
                self.ordinary(page, alignment)?
            }
        };
        // SAFETY: the mapping is the region's, which drops it behind the pin.
        let pin = self
            .pinned
            .then(|| unsafe { Pin::new(mapping.base(), mapping.len) });
        Ok(Region::from_mapping(mapping, pin.transpose()?, self.len))
    }

    fn reserved(&self, alignment: usize) -> Result<HostMapping, MemoryError> {
        let len = rounded(self.len, HUGE_PAGE_BYTES)?;
        let flags = libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
        let no_pages = |source| MemoryError::HugePages {
            asked_bytes: len,
            pages: len / HUGE_PAGE_BYTES,
            source,
        };
        let mut mapping = self
            .map(len, HUGE_PAGE_BYTES, alignment, flags)
            .map_err(no_pages)?;
        mapping.pages = Pages::Huge2M;
        mapping.bind(self.numa_node)?;
        if self.populate {
            // Never by touching: a node without huge pages would answer with SIGBUS.
            mapping.populate_by_kernel().map_err(no_pages)?;
        }
        Ok(mapping)
    }

    fn transparent(&self, alignment: usize) -> Result<HostMapping, MemoryError> {
        let len = rounded(self.len, rustix::param::page_size())?;
        let page = rustix::param::page_size();
        let mut mapping = self
            .map(len, page, alignment.max(HUGE_PAGE_BYTES), 0)
            .map_err(|source| MemoryError::Map {
                asked_bytes: len,
                source,
            })?;
        if mapping.advise(libc::MADV_HUGEPAGE).is_ok() {
            mapping.pages = Pages::Transparent;
        }
        mapping.bind(self.numa_node)?;
        mapping.populate(self.populate)?;
        Ok(mapping)
    }

    fn ordinary(&self, page: usize, alignment: usize) -> Result<HostMapping, MemoryError> {
        let len = rounded(self.len, page)?;
        let mapping = self
            .map(len, page, alignment, 0)
            .map_err(|source| MemoryError::Map {
                asked_bytes: len,
                source,
            })?;
        mapping.bind(self.numa_node)?;
        mapping.populate(self.populate)?;
        Ok(mapping)
    }
}

impl HostRegionBuilder {
    fn map(
        &self,
        len: usize,
        page: usize,
        alignment: usize,
        flags: libc::c_int,
    ) -> io::Result<HostMapping> {
        let mapping = HostMapping::new(len, page, alignment, flags)?;
        if !self.inherited {
            mapping.advise(libc::MADV_DONTFORK)?;
        }
        Ok(mapping)
    }
}

fn rounded(len: usize, to: usize) -> Result<usize, MemoryError> {
    round_up(len, to).ok_or(MemoryError::TooLarge { asked_bytes: len })
}

/// One anonymous mapping.
#[derive(Debug)]
pub(super) struct HostMapping {
    base: NonNull<u8>,
    len: usize,
    pages: Pages,
}

// SAFETY: it only owns the mapping; the address is not dereferenced after construction.
unsafe impl Send for HostMapping {}
// SAFETY: as above.
unsafe impl Sync for HostMapping {}

impl HostMapping {
    /// Maps `len` bytes (a multiple of `page`) that start at a multiple of `alignment`: more than
    /// asked, and the ends given back.
    fn new(len: usize, page: usize, alignment: usize, flags: libc::c_int) -> io::Result<Self> {
        let spare = alignment.saturating_sub(page);
        let start = mapping::anonymous(len + spare, flags)?;
        let head = start.addr().get().next_multiple_of(alignment) - start.addr().get();
        // SAFETY: `head <= spare`, so this stays inside of the mapping.
        let base = unsafe { start.add(head) };
        // SAFETY: `head + len <= len + spare`: the end of the mapping at most.
        let end = unsafe { base.add(len) };
        for (from, bytes) in [(start, head), (end, spare - head)] {
            if bytes > 0 {
                // SAFETY: whole pages at the ends of the mapping just made; nobody knows their
                // addresses yet. On failure they stay mapped, unused.
                let _ = unsafe { mapping::unmap(from, bytes) };
            }
        }
        Ok(Self {
            base,
            len,
            pages: Pages::Base,
        })
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) fn pages(&self) -> Pages {
        self.pages
    }

    /// Binds the mapping to a NUMA node, before its pages exist.
    fn bind(&self, node: Option<u32>) -> Result<(), MemoryError> {
        let Some(node) = node else { return Ok(()) };
        let mut mask = [0u64; NUMA_NODES_MAX as usize / 64];
        mask[node as usize / 64] = 1 << (node % 64);
        // The kernel reads one bit less than it is told (mbind(2), "maxnode").
        let maxnode = u64::from(NUMA_NODES_MAX) + 1;
        // SAFETY: the mapping is ours and whole; the mask has `maxnode - 1` bits and outlives the
        // call.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base.as_ptr(),
                self.len,
                libc::MPOL_BIND,
                mask.as_ptr(),
                maxnode,
                0,
            )
        };
        if rc == 0 {
            return Ok(());
        }
        Err(MemoryError::NumaNode {
            node,
            source: io::Error::last_os_error(),
        })
    }

    fn populate(&self, populate: bool) -> Result<(), MemoryError> {
        if !populate {
            return Ok(());
        }
        match self.populate_by_kernel() {
            // Before Linux 5.14 there is no such advice.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => self.touch(),
            other => {
                return other.map_err(|source| MemoryError::Populate {
                    asked_bytes: self.len,
                    source,
                });
            }
        }
        Ok(())
    }

    fn populate_by_kernel(&self) -> io::Result<()> {
        self.advise(libc::MADV_POPULATE_WRITE)
    }

    /// Advice for all of it: one of those that change no content.
    fn advise(&self, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: the mapping is ours and whole; none of the advices that are given here changes
        // what lies in it.
        unsafe { mapping::advise(self.base, self.len, advice) }
    }

    fn touch(&self) {
        for offset in (0..self.len).step_by(rustix::param::page_size()) {
            // SAFETY: `offset < len`.
            let byte = unsafe { self.base.add(offset) };
            // SAFETY: mapped writable, and nobody else knows the mapping yet; it holds 0 already.
            unsafe { byte.write_volatile(0) };
        }
    }
}

impl Drop for HostMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, whole, and its region is gone, so nobody holds an address in
        // it.
        if let Err(error) = unsafe { mapping::unmap(self.base, self.len) } {
            tracing::error!(%error, len_bytes = self.len, "munmap: a host region leaked");
        }
    }
}

/// Bytes in huge pages of the mappings that overlap `start .. start + len`, at most `len` rounded
/// up.
pub(super) fn huge_bytes(start: usize, len: usize) -> Result<usize, MemoryError> {
    let smaps = File::open("/proc/self/smaps").map_err(MemoryError::Smaps)?;
    let bytes =
        huge_bytes_in(BufReader::new(smaps), start, start + len).map_err(MemoryError::Smaps)?;
    Ok(bytes.min(len))
}

fn huge_bytes_in(smaps: impl BufRead, start: usize, end: usize) -> io::Result<usize> {
    let mut overlaps = false;
    let mut bytes = 0;
    for line in smaps.lines() {
        let line = line?;
        if let Some((from, to)) = mapping_range(&line) {
            overlaps = from < end && start < to;
        } else if overlaps
            && (line.starts_with("AnonHugePages:") || line.starts_with("Private_Hugetlb:"))
        {
            let kib: usize = line
                .split_whitespace()
                .nth(1)
                .and_then(|number| number.parse().ok())
                .unwrap_or(0);
            bytes += kib * 1024;
        }
    }
    Ok(bytes)
}

/// The range of a mapping's first line, `7f00-7fff rw-p ...`; `None` for any other line.
fn mapping_range(line: &str) -> Option<(usize, usize)> {
    let (from, rest) = line.split_once('-')?;
    let (to, _) = rest.split_once(' ')?;
    Some((
        usize::from_str_radix(from, 16).ok()?,
        usize::from_str_radix(to, 16).ok()?,
    ))
}

#[cfg(all(test, not(loom)))]
#[path = "tests/host.rs"]
mod tests;
