// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much memory a tracker takes, as the kernel counts it for this process: what is resident once every page
//! was reported, less what was before. The watched memory is resident both times.

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
    /// The same, a watched page; holds what a tracker takes for itself, whatever it watches.
    pub bits_per_page: f64,
}

/// Measure a tracker that watches the whole region, of which it reports the first `written` pages and one page
/// in each stretch that a page of a bitmap stands for.
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
    pass(region)?; // what the first of its kind allocates for good
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

/// How many pages, none next to another, `mprotect` can open before `vm.max_map_count` stops it.
pub fn separate_mappings() -> Result<usize> {
    let most: usize = std::fs::read_to_string("/proc/sys/vm/max_map_count")
        .context("reading vm.max_map_count")?
        .trim()
        .parse()
        .context("vm.max_map_count")?;
    Ok((most / 2).saturating_sub(1024).max(1))
}

/// Bytes that can be taken without harm: half of what the host, and the control group we are in, has left.
///
/// # Errors
/// When the kernel does not say.
pub fn spare() -> Result<u64> {
    let info = procfs::Meminfo::current().context("reading /proc/meminfo")?;
    let host = info.mem_available.unwrap_or(info.mem_free);
    let group = Process::myself()?.cgroups().ok().and_then(|groups| {
        let own = groups.0.iter().find(|group| group.hierarchy == 0)?;
        let mut left: Option<u64> = None;
        // A limit of any group above holds too.
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
