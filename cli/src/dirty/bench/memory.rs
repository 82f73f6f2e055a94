// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A tracker's memory, as the kernel counts it for this process: the resident memory after every page was reported,
//! minus that before. The watched memory is resident both times.

use anyhow::{Context, Result};
use libdirty::{BackendKind, page_size};
use procfs::Current;
use procfs::process::Process;
use serde::Serialize;

use super::method::{Library, Method};
use super::region::Region;

/// The bookkeeping of a tracker. The kernel counts whole pages.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Memory {
    pub watched_pages: usize,
    pub bookkeeping_bytes: u64,
    /// The same per watched page; includes the tracker's fixed size.
    pub bits_per_page: f64,
}

/// Measure a tracker that watches the whole region, of which it reports the first `written` pages and one page
/// in each stretch that one page of the bitmap covers.
///
/// # Errors
/// When the back end does not work, or the kernel does not say.
pub fn of_back_end(kind: BackendKind, region: &mut Region, written: usize) -> Result<Memory> {
    let pages = region.pages();
    let pass = |region: &mut Region| -> Result<u64> {
        let before = resident()?;
        let mut library = Library::start(kind, region.first(pages))?;
        region.touch(written, 1);
        region.touch(pages, page_size() * 8);
        library.collect()?;
        Ok(resident()?.saturating_sub(before))
    };
    pass(region)?; // so that one-time allocations are made
    let bytes = pass(region)?;
    Ok(Memory {
        watched_pages: pages,
        bookkeeping_bytes: bytes,
        bits_per_page: bytes as f64 * 8.0 / pages as f64,
    })
}

/// Bytes resident, by a walk over the page tables: the counters of `statm` lag behind.
pub fn resident() -> Result<u64> {
    let rollup = Process::myself()?.smaps_rollup().context("reading /proc/self/smaps_rollup")?;
    let rss = rollup.memory_map_rollup.iter().find_map(|map| map.extension.map.get("Rss"));
    rss.copied().context("/proc/self/smaps_rollup has no Rss")
}

/// How many separate pages `mprotect` can open before it reaches `vm.max_map_count`.
pub fn separate_mappings() -> Result<usize> {
    let most: usize = std::fs::read_to_string("/proc/sys/vm/max_map_count")
        .context("reading vm.max_map_count")?
        .trim()
        .parse()
        .context("vm.max_map_count")?;
    Ok((most / 2).saturating_sub(1024).max(1))
}

/// Bytes that can be allocated safely: half of what is left for the host and for our control group.
///
/// # Errors
/// When the kernel does not report it.
pub fn spare() -> Result<u64> {
    let info = procfs::Meminfo::current().context("reading /proc/meminfo")?;
    let host = info.mem_available.unwrap_or(info.mem_free);
    let group = Process::myself()?.cgroups().ok().and_then(|groups| {
        let own = groups.0.iter().find(|group| group.hierarchy == 0)?;
        let mut left: Option<u64> = None;
        // The limits of all groups above apply, too.
        for path in std::path::Path::new(own.pathname.trim_start_matches('/')).ancestors() {
            let read = |name: &str| -> Option<u64> {
                let file = std::path::Path::new("/sys/fs/cgroup").join(path).join(name);
                std::fs::read_to_string(file).ok()?.trim().parse().ok()
            };
            if let (Some(most), Some(now)) = (read("memory.max"), read("memory.current")) {
                let here = most.saturating_sub(now);
                left = Some(left.map_or(here, |left| left.min(here)));
            }
        }
        left
    });
    Ok(group.map_or(host, |group| group.min(host)) / 2)
}
