// SPDX-License-Identifier: Apache-2.0 OR MIT
//! userfaultfd asynchronous write protection: a collect is one `PAGEMAP_SCAN`.
//!
//! The buffer holds as many regions as there can be (every other page), and is touched beforehand.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, ensure};
use libdirty::PageRange;
use linux_raw_sys::general::{
    PAGE_IS_WRITTEN, PM_SCAN_CHECK_WPASYNC, PM_SCAN_WP_MATCHING, UFFD_FEATURE_WP_ASYNC,
    UFFD_FEATURE_WP_UNPOPULATED, page_region, pm_scan_arg,
};

use super::uffd::Uffd;
use crate::dirty::bench::method::Method;

const PAGEMAP_SCAN: libc::Ioctl = libc::_IOWR::<pm_scan_arg>(b'f' as u32, 16);

pub(super) struct Twin {
    uffd: Uffd,
    range: PageRange,
    pagemap: File,
    regions: Vec<page_region>,
    found: usize,
}

impl Twin {
    pub(super) fn start(range: PageRange) -> Result<Self> {
        let pagemap = File::open("/proc/self/pagemap").context("opening /proc/self/pagemap")?;
        let none = page_region { start: 1, end: 1, categories: 0 };
        let regions = vec![none; range.pages() / 2 + 1];
        let uffd = Uffd::open(UFFD_FEATURE_WP_ASYNC | UFFD_FEATURE_WP_UNPOPULATED)?;
        uffd.register(range)?;
        uffd.protect(range, true).context("UFFDIO_WRITEPROTECT")?;
        Ok(Twin { uffd, range, pagemap, regions, found: 0 })
    }
}

impl Method for Twin {
    fn collect(&mut self) -> Result<()> {
        let mut arg = pm_scan_arg {
            size: size_of::<pm_scan_arg>() as u64,
            flags: (PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC).into(),
            start: self.range.start() as u64,
            end: self.range.end() as u64,
            walk_end: 0,
            vec: self.regions.as_mut_ptr() as u64,
            vec_len: self.regions.len() as u64,
            max_pages: 0,
            category_inverted: 0,
            category_mask: PAGE_IS_WRITTEN.into(),
            category_anyof_mask: 0,
            return_mask: PAGE_IS_WRITTEN.into(),
        };
        // SAFETY: the kernel writes `arg` and at most `vec_len` regions, all of them initialised already.
        let count = unsafe { libc::ioctl(self.pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut arg) };
        self.found =
            usize::try_from(count).map_err(|_| io::Error::last_os_error()).context("PAGEMAP_SCAN")?;
        // Not `walk_end`: after more than 512 regions Linux 6.18 leaves too low a value there.
        ensure!(self.found < self.regions.len(), "PAGEMAP_SCAN filled its buffer");
        Ok(())
    }

    fn reported(&self) -> Vec<PageRange> {
        let range = |region: &page_region| PageRange::new(region.start as usize, region.end as usize);
        self.regions[..self.found].iter().map(|region| range(region).expect("whole pages")).collect()
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        self.uffd.unregister(self.range);
    }
}
