// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Soft-dirty: read the entries of `/proc/self/pagemap`, then write `4` into `/proc/self/clear_refs`.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use libdirty::{PageRange, page_size};

use super::bits::Runs;
use crate::dirty::bench::method::Method;

const SOFT_DIRTY: u64 = 1 << 55;
/// Entries read at a time, 512 KiB: few calls, and it stays in the cache.
const AT_ONCE: usize = 1 << 16;

pub(super) struct Twin {
    range: PageRange,
    pagemap: File,
    clear_refs: File,
    entries: Vec<u8>,
    runs: Runs,
}

impl Twin {
    pub(super) fn start(range: PageRange) -> Result<Self> {
        let mut twin = Twin {
            range,
            pagemap: File::open("/proc/self/pagemap").context("opening /proc/self/pagemap")?,
            clear_refs: File::options()
                .write(true)
                .open("/proc/self/clear_refs")
                .context("opening /proc/self/clear_refs")?,
            entries: vec![0; AT_ONCE.min(range.pages()) * 8],
            runs: Runs::default(),
        };
        twin.clear()?;
        Ok(twin)
    }

    fn clear(&mut self) -> Result<()> {
        self.clear_refs.write_all(b"4").context("writing /proc/self/clear_refs")
    }
}

impl Method for Twin {
    fn collect(&mut self) -> Result<()> {
        self.runs.clear();
        let (first, end) = (self.range.start() / page_size(), self.range.end() / page_size());
        for at in (first..end).step_by(AT_ONCE) {
            let bytes = &mut self.entries[..AT_ONCE.min(end - at) * 8];
            self.pagemap.read_exact_at(bytes, at as u64 * 8).context("reading /proc/self/pagemap")?;
            for (page, entry) in bytes.chunks_exact(8).enumerate() {
                let entry = u64::from_ne_bytes(entry.try_into().expect("eight bytes"));
                if entry & SOFT_DIRTY != 0 {
                    self.runs.push((at + page) * page_size(), (at + page + 1) * page_size());
                }
            }
        }
        self.clear()
    }

    fn reported(&self) -> Vec<PageRange> {
        self.runs.ranges()
    }
}
