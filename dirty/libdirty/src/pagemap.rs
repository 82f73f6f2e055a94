// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `/proc/PID/pagemap`: an entry for each page, and the `PAGEMAP_SCAN` ioctl (Linux 6.7).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;

use linux_raw_sys::general::{page_region, pm_scan_arg};

use crate::extent::{PageRange, page_size};

/// The kernel's entry for one page (Documentation/admin-guide/mm/pagemap.rst).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Entry(pub u64);

impl Entry {
    const SOFT_DIRTY: u64 = 1 << 55;
    const EXCLUSIVE: u64 = 1 << 56;
    const UFFD_WP: u64 = 1 << 57;
    const FILE: u64 = 1 << 61;
    const SWAP: u64 = 1 << 62;
    const PRESENT: u64 = 1 << 63;

    /// Written since soft-dirty was cleared.
    #[must_use]
    pub fn is_soft_dirty(self) -> bool {
        self.0 & Self::SOFT_DIRTY != 0
    }

    /// Mapped by this process only.
    #[must_use]
    pub fn is_exclusive(self) -> bool {
        self.0 & Self::EXCLUSIVE != 0
    }

    /// Write-protected by a userfaultfd.
    #[must_use]
    pub fn is_write_protected(self) -> bool {
        self.0 & Self::UFFD_WP != 0
    }

    /// Of a file or shared memory.
    #[must_use]
    pub fn is_file(self) -> bool {
        self.0 & Self::FILE != 0
    }

    /// In memory.
    #[must_use]
    pub fn is_present(self) -> bool {
        self.0 & Self::PRESENT != 0
    }

    /// Swapped out, being moved, or a write-protection marker of a userfaultfd on an empty page.
    #[must_use]
    pub fn is_swapped(self) -> bool {
        self.0 & Self::SWAP != 0
    }

    /// An empty page that a userfaultfd write-protects. Users without CAP_SYS_ADMIN are not shown the difference to one
    /// that is swapped out: for them it is none.
    #[must_use]
    pub fn is_marker(self) -> bool {
        /// The kind of swap entry (SWP_PTE_MARKER): the highest of 32.
        const KIND: u64 = 31;
        self.is_swapped() && self.is_write_protected() && self.0 & KIND == KIND
    }

    /// Neither in memory nor swapped out.
    #[must_use]
    pub fn is_none(self) -> bool {
        self.0 & (Self::PRESENT | Self::SWAP) == 0
    }

    /// With the soft-dirty bit as given.
    #[must_use]
    pub fn with_soft_dirty(self, set: bool) -> Self {
        Entry(if set { self.0 | Self::SOFT_DIRTY } else { self.0 & !Self::SOFT_DIRTY })
    }
}

/// Read the entries of `range` into `entries`, which is made as long as the range has pages.
///
/// # Errors
/// Those of `pread(2)`; a short read (the end of user space, or the memory is gone) is `UnexpectedEof`.
pub(crate) fn read(pagemap: &File, range: PageRange, entries: &mut Vec<Entry>) -> io::Result<()> {
    entries.clear();
    entries.resize(range.pages(), Entry::default());
    read_into(pagemap, range.start(), entries)
}

/// Read the entries of the pages from `start` on. Allocates nothing.
pub(crate) fn read_into(pagemap: &File, start: usize, entries: &mut [Entry]) -> io::Result<()> {
    // SAFETY: an Entry is a transparent u64: any eight bytes make one, and it has no padding.
    let bytes =
        unsafe { std::slice::from_raw_parts_mut(entries.as_mut_ptr().cast::<u8>(), size_of_val(entries)) };
    pagemap.read_exact_at(bytes, (start / page_size() * size_of::<Entry>()) as u64)
}

/// What a `PAGEMAP_SCAN` looks for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scan {
    /// Pages must have all of these `PAGE_IS_*` ...
    pub all: u32,
    /// ... and, unless it is 0, one of these.
    pub any: u32,
    /// Report these as well: pages that differ in them are in different runs.
    pub report: u32,
    /// Write-protect what is found, in the same step; fails where no userfaultfd watches asynchronously.
    pub protect: bool,
}

impl Scan {
    /// Entries that are not empty, written or not.
    pub(crate) const CONTENT: Scan = Scan {
        all: 0,
        any: linux_raw_sys::general::PAGE_IS_PRESENT | linux_raw_sys::general::PAGE_IS_SWAPPED,
        report: 0,
        protect: false,
    };
}

const PAGEMAP_SCAN: libc::Ioctl = libc::_IOWR::<pm_scan_arg>(b'f' as u32, 16);

/// Buffer of a scan: regions that one system call returns at most.
pub struct Regions(Vec<page_region>);

impl Regions {
    /// Room for `count` regions, of 24 bytes each.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Regions(Vec::with_capacity(count))
    }
}

impl Default for Regions {
    /// 4,096 regions are 96 KiB: few calls, and it stays in the cache.
    fn default() -> Self {
        Regions::new(4096)
    }
}

impl std::fmt::Debug for Regions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Regions({})", self.0.capacity())
    }
}

/// Scan `range`: `found` gets each run of pages, in order, with those of the categories `all` and `report` that it has.
///
/// Each page is found once at most. But a scan that protects may go back a little, as the kernel does, and find pages
/// again: what it protects must be reported.
///
/// # Errors
/// The kernel's: `EPERM` where a part is not watched asynchronously and `protect` is set, `ENOTTY` before Linux 6.7.
/// `found` does not get the pages that the failed system call protected.
pub fn scan(
    pagemap: impl AsFd,
    range: PageRange,
    what: Scan,
    regions: &mut Regions,
    mut found: impl FnMut(PageRange, u32),
) -> io::Result<()> {
    use linux_raw_sys::general::{PM_SCAN_CHECK_WPASYNC, PM_SCAN_WP_MATCHING};

    let mut at = range.start();
    let mut seen = at;
    while at < range.end() {
        let flags = if what.protect { PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC } else { 0 };
        let mut arg = pm_scan_arg {
            size: size_of::<pm_scan_arg>() as u64,
            flags: flags.into(),
            start: at as u64,
            end: range.end() as u64,
            walk_end: 0,
            vec: regions.0.as_mut_ptr() as u64,
            vec_len: regions.0.capacity() as u64,
            max_pages: 0,
            category_inverted: 0,
            category_mask: what.all.into(),
            category_anyof_mask: what.any.into(),
            return_mask: (what.all | what.report).into(),
        };
        // SAFETY: the kernel writes at most `vec_len` regions into the vector's spare capacity, and `arg`.
        let count = unsafe { libc::ioctl(pagemap.as_fd().as_raw_fd(), PAGEMAP_SCAN, &raw mut arg) };
        if count < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has filled that many.
        unsafe { regions.0.set_len(count as usize) };
        for region in regions.0.drain(..) {
            let (mut start, end) = (region.start as usize, region.end as usize);
            if !what.protect {
                // What was passed as empty stays so for this scan: its caller has acted on that.
                start = start.max(seen);
                seen = end.max(seen);
            }
            if start < end {
                found(PageRange::trusted(start, end), region.categories as u32);
            }
        }
        let next = arg.walk_end as usize;
        if next <= at {
            return Err(io::Error::other("PAGEMAP_SCAN made no progress"));
        }
        at = next;
    }
    Ok(())
}

/// Whether a userfaultfd watches all that is mapped of `range`, and asynchronously. Looks at mappings only: those
/// that are watched are left out, and at one that is not the scan ends with EPERM.
pub(crate) fn is_watched(pagemap: &File, range: PageRange) -> bool {
    use linux_raw_sys::general::{PAGE_IS_WPALLOWED, PM_SCAN_CHECK_WPASYNC};

    let mut arg = pm_scan_arg {
        size: size_of::<pm_scan_arg>() as u64,
        flags: PM_SCAN_CHECK_WPASYNC.into(),
        start: range.start() as u64,
        end: range.end() as u64,
        walk_end: 0,
        vec: 0,
        vec_len: 0,
        max_pages: 0,
        category_inverted: PAGE_IS_WPALLOWED.into(),
        category_mask: PAGE_IS_WPALLOWED.into(),
        category_anyof_mask: 0,
        return_mask: 0,
    };
    // SAFETY: the kernel writes `arg` alone.
    unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut arg) == 0 }
}

/// Whether the kernel has `PAGEMAP_SCAN`, found by asking for one page.
pub(crate) fn can_scan(pagemap: &File) -> bool {
    let page = std::ptr::from_ref(&PAGEMAP_SCAN) as usize & !(page_size() - 1);
    let one = PageRange::trusted(page, page + page_size());
    let present = Scan { all: linux_raw_sys::general::PAGE_IS_PRESENT, ..Scan::default() };
    scan(pagemap, one, present, &mut Regions::new(1), |_, _| ()).is_ok()
}
