// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory of the judged process, read without the help of libdirty.
//!
//! Content comes through `/proc/PID/mem`, whatever the protection. Private anonymous pages that
//! `/proc/PID/pagemap` shows to be empty are taken as zeros without being read: reading would map pages there, and a
//! judge must not change what it judges.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use libdirty::{PageRange, page_size};
use procfs::process::{MMPermissions, MMapPath, Process};

use crate::shadow::Content;

/// The files of one process.
#[derive(Debug)]
pub struct Memory {
    process: Process,
    mem: File,
    pagemap: File,
}

/// A mapping, as far as the judge needs to know it.
#[derive(Debug, Clone, Copy)]
pub struct Mapping {
    /// Where.
    pub range: PageRange,
    /// Not shared with other processes.
    pub is_private: bool,
    /// Private, and of no file.
    pub is_private_anonymous: bool,
}

const FRAME: u64 = (1 << 55) - 1;
const PRESENT_OR_SWAPPED: u64 = 3 << 62;
const BATCH: usize = 256; // pages read at once

impl Memory {
    /// Open the files of process `pid`.
    ///
    /// # Errors
    /// When the process is not there or not ours to read.
    pub fn open(pid: i32) -> io::Result<Self> {
        let process = Process::new(pid).map_err(io::Error::other)?;
        Ok(Memory {
            process,
            mem: File::open(format!("/proc/{pid}/mem"))?,
            pagemap: File::open(format!("/proc/{pid}/pagemap"))?,
        })
    }

    /// Every mapping, in order of addresses.
    ///
    /// # Errors
    /// When `/proc/PID/maps` cannot be read.
    pub fn mappings(&self) -> io::Result<Vec<Mapping>> {
        let maps = self.process.maps().map_err(io::Error::other)?;
        Ok(maps
            .iter()
            .filter_map(|map| {
                let (start, end) =
                    (usize::try_from(map.address.0).ok()?, usize::try_from(map.address.1).ok()?);
                let private = map.perms.contains(MMPermissions::PRIVATE);
                let is_private_anonymous = private && map.inode == 0 && map.pathname != MMapPath::Vvar;
                let range = PageRange::new(start, end).ok()?;
                Some(Mapping { range, is_private: private, is_private_anonymous })
            })
            .collect())
    }

    /// Whether every thread of the process is stopped.
    ///
    /// # Errors
    /// When the threads cannot be listed.
    pub fn is_stopped(&self) -> io::Result<bool> {
        let is_running = |task: Result<procfs::process::Task, _>| {
            let state = task.and_then(|task| task.stat()).map(|stat| stat.state);
            !matches!(state, Ok('T' | 't' | 'Z' | 'X') | Err(procfs::ProcError::NotFound(_)))
        };
        Ok(!self.process.tasks().map_err(io::Error::other)?.any(is_running))
    }

    /// Whether somebody has stopped the process by a signal; not whether a tracer holds it for a moment.
    ///
    /// # Errors
    /// When its state cannot be read.
    pub fn is_stopped_by_a_signal(&self) -> io::Result<bool> {
        Ok(self.process.stat().map_err(io::Error::other)?.state == 'T')
    }

    /// KiB of `range` that are in huge pages, by `/proc/PID/smaps`.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn huge_kib(&self, range: PageRange) -> io::Result<u64> {
        let maps = self.process.smaps().map_err(io::Error::other)?;
        let within = maps
            .iter()
            .filter(|map| (map.address.0 as usize) < range.end() && range.start() < map.address.1 as usize);
        Ok(within.filter_map(|map| map.extension.map.get("AnonHugePages")).sum::<u64>() / 1024)
    }

    /// Pages of `range` that are swapped out, by `/proc/PID/smaps`.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn swapped_pages(&self, range: PageRange) -> io::Result<usize> {
        let maps = self.process.smaps().map_err(io::Error::other)?;
        let within = maps
            .iter()
            .filter(|map| (map.address.0 as usize) < range.end() && range.start() < map.address.1 as usize);
        let bytes: u64 = within.filter_map(|map| map.extension.map.get("Swap")).sum();
        Ok(bytes as usize / page_size())
    }

    /// How many different page frames the present pages of `range` lie in, and how many pages that are; only root can
    /// see frame numbers.
    ///
    /// # Errors
    /// When pagemap cannot be read, or shows no frame numbers.
    pub fn frames(&self, range: PageRange) -> io::Result<(usize, usize)> {
        let mut entries = vec![0; range.pages() * 8];
        self.pagemap.read_exact_at(&mut entries, (range.start() / page_size() * 8) as u64)?;
        let entries =
            entries.chunks_exact(8).map(|entry| u64::from_ne_bytes(entry.try_into().expect("eight bytes")));
        let frames: Vec<u64> = entries.filter(|entry| entry >> 63 != 0).map(|entry| entry & FRAME).collect();
        if frames.contains(&0) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok((frames.iter().collect::<HashSet<_>>().len(), frames.len()))
    }

    /// Show `each` the pages of `range` that are mapped, in order.
    ///
    /// # Errors
    /// When pagemap cannot be read.
    pub fn visit(
        &self,
        range: PageRange,
        mappings: &[Mapping],
        mut each: impl FnMut(usize, Content<'_>),
    ) -> io::Result<()> {
        let first = mappings.partition_point(|mapping| mapping.range.end() <= range.start());
        // Most ranges are a few pages, of many: no larger buffer is cleared for them.
        let mut bytes = vec![0; BATCH.min(range.pages()) * page_size()];
        for mapping in mappings[first..].iter().take_while(|mapping| mapping.range.start() < range.end()) {
            let Some(part) = mapping.range.intersection(range) else { continue };
            let mut at = part.start();
            while at < part.end() {
                let pages = BATCH.min((part.end() - at) / page_size());
                if mapping.is_private_anonymous {
                    self.visit_filled(at, pages, &mut bytes, &mut each)?;
                } else {
                    self.visit_all(at, pages, &mut bytes, &mut each);
                }
                at += pages * page_size();
            }
        }
        Ok(())
    }

    fn visit_filled(
        &self,
        start: usize,
        pages: usize,
        bytes: &mut [u8],
        each: &mut impl FnMut(usize, Content<'_>),
    ) -> io::Result<()> {
        let mut entries = [0; BATCH * 8];
        self.pagemap.read_exact_at(&mut entries[..pages * 8], (start / page_size() * 8) as u64)?;
        let is_filled = |page: usize| {
            let entry = entries[page * 8..(page + 1) * 8].try_into().expect("eight bytes");
            u64::from_ne_bytes(entry) & PRESENT_OR_SWAPPED != 0
        };
        let mut page = 0;
        while page < pages {
            let end = (page..pages).find(|next| is_filled(*next) != is_filled(page)).unwrap_or(pages);
            let at = start + page * page_size();
            if is_filled(page) {
                self.visit_all(at, end - page, bytes, each);
            } else {
                for offset in 0..end - page {
                    each(at + offset * page_size(), Content::Zero);
                }
            }
            page = end;
        }
        Ok(())
    }

    /// Pages that cannot be read (beyond the end of a file, gone since) are left out.
    fn visit_all(
        &self,
        start: usize,
        pages: usize,
        bytes: &mut [u8],
        each: &mut impl FnMut(usize, Content<'_>),
    ) {
        let bytes = &mut bytes[..pages * page_size()];
        let is_whole = self.mem.read_exact_at(bytes, start as u64).is_ok();
        for (page, content) in bytes.chunks_exact_mut(page_size()).enumerate() {
            let at = start + page * page_size();
            if is_whole || self.mem.read_exact_at(content, at as u64).is_ok() {
                each(at, Content::Bytes(content));
            }
        }
    }
}
