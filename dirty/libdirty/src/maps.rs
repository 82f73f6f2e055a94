// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is mapped where in the tracked process.
//!
//! `PROCMAP_QUERY` (Linux 6.11) answers for a range alone; elsewhere `/proc/PID/maps` is read whole.
//! Both give the same [`Mapping`]s, and a test holds them against each other.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsRawFd;

use linux_raw_sys::general::{procmap_query, procmap_query_flags};
use procfs::FromBufRead;
use procfs::process::{MMPermissions, MMapPath, MemoryMaps};

use crate::descriptor::Descriptor;
use crate::error::Error;
use crate::extent::{PageRange, page_size};
use crate::own;

/// What backs a mapping: two mappings of the same object show the same memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Object {
    /// Anonymous memory of the process.
    Anonymous,
    /// A file (shared anonymous memory is one, too); `bias` is its offset minus the address.
    File { device: (u32, u32), inode: u64, bias: u64 },
}

/// The memory that a mapping shows. If it is equal at two moments, the program may have written it, but has not
/// replaced it; or it has replaced it by new memory of the same kind, which each back end finds out by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) object: Object,
    pub(crate) shared: bool,
}

impl Memory {
    /// Private anonymous memory: what nothing but this process can change.
    pub(crate) fn is_private_anonymous(self) -> bool {
        !self.shared && self.object == Object::Anonymous
    }
}

/// A run of pages with one memory behind it and one protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) range: PageRange,
    pub(crate) memory: Memory,
    /// `PROT_*` bits.
    pub(crate) protection: i32,
    /// Bytes of its pages, of which none can be looked at in part; `None` where the kernel does not say.
    pub(crate) page_size: Option<usize>,
}

/// Why the mappings could not be read.
#[derive(Debug)]
pub(crate) enum Unreadable {
    /// The memory that was tracked is gone: the process ended or called `execve`.
    Gone,
    /// Something else.
    Failed(Error),
}

/// Reads the mappings of one process.
#[derive(Debug)]
pub(crate) struct Maps {
    /// `/proc/PID/maps`.
    file: Descriptor<File>,
    pid: i32,
    /// Of the calling process.
    own: bool,
    /// `PROCMAP_QUERY` is there.
    query: bool,
    /// The kernel's own pages (`[vvar]`, `[vdso]`), which the program cannot change: left out as long as they exist and
    /// are not writable.
    special: Vec<PageRange>,
}

const PROCMAP_QUERY: libc::Ioctl = libc::_IOWR::<procmap_query>(b'f' as u32, 17);

impl Maps {
    /// `file` is `/proc/PID/maps` of process `pid`, which may be the `own`.
    pub(crate) fn new(file: Descriptor<File>, pid: i32, own: bool) -> Self {
        let answer = query_next(&file, 0);
        Maps {
            query: !matches!(answer, Err(error) if error.raw_os_error() == Some(libc::ENOTTY)),
            special: special(&file),
            file,
            pid,
            own,
        }
    }

    /// Whether its descriptor is still its own.
    pub(crate) fn is_intact(&self) -> bool {
        self.file.is_intact()
    }

    /// The mappings within `ranges` (sorted), clipped to them, in order of addresses, each as the kernel has it.
    /// Of the own process, what libdirty keeps for itself is left out.
    pub(crate) fn within(&self, ranges: &[PageRange]) -> Result<Vec<Mapping>, Unreadable> {
        let mut found = Vec::new();
        if self.query {
            for range in ranges {
                self.query_range(*range, &mut found)?;
            }
            if found.is_empty() {
                // Nothing mapped in the ranges, or nothing at all?
                match query_next(&self.file, 0) {
                    Ok(Some(_)) => {}
                    Ok(None) => return Err(Unreadable::Gone),
                    Err(error) => return Err(self.unreadable(error)),
                }
            }
        } else {
            let all = read_all(&self.file).map_err(|error| self.unreadable(error))?;
            if all.is_empty() {
                return Err(Unreadable::Gone);
            }
            for range in ranges {
                let from = all.partition_point(|mapping| mapping.range.end() <= range.start());
                for mapping in all[from..].iter().take_while(|mapping| mapping.range.start() < range.end()) {
                    push(&mut found, *mapping, *range);
                }
            }
        }
        found.retain(|mapping| {
            mapping.protection & libc::PROT_WRITE != 0
                || mapping.memory.object != Object::Anonymous
                || !self.special.iter().any(|special| special.contains(mapping.range))
        });
        if let (true, Some(first), Some(last)) = (self.own, found.first(), found.last()) {
            let around = PageRange::trusted(first.range.start(), last.range.end());
            found = without_kept(found, &own::kept(around));
        }
        Ok(found)
    }

    /// Every mapping in the text, but without paths: the target chooses the names, and the parser must not fail on any.
    pub(crate) fn text(&self) -> io::Result<MemoryMaps> {
        read_text(&self.file)
    }

    fn query_range(&self, range: PageRange, found: &mut Vec<Mapping>) -> Result<(), Unreadable> {
        let mut at = range.start();
        while at < range.end() {
            match query_next(&self.file, at) {
                Ok(Some(mapping)) if mapping.range.start() < range.end() => {
                    push(found, mapping, range);
                    at = mapping.range.end();
                }
                Ok(_) => break,
                Err(error) => return Err(self.unreadable(error)),
            }
        }
        Ok(())
    }

    fn unreadable(&self, error: io::Error) -> Unreadable {
        if error.raw_os_error() == Some(libc::ESRCH) {
            return Unreadable::Gone;
        }
        Unreadable::Failed(Error::system(format!("reading /proc/{}/maps", self.pid), error))
    }
}

fn push(found: &mut Vec<Mapping>, mapping: Mapping, within: PageRange) {
    // The mappings are not read atomically: one may have grown over another that was read before.
    let from = found.last().map_or(within.start(), |last| last.range.end().max(within.start()));
    if from >= within.end() {
        return;
    }
    let Some(range) = mapping.range.intersection(PageRange::trusted(from, within.end())) else { return };
    found.push(Mapping { range, ..mapping });
}

fn without_kept(found: Vec<Mapping>, kept: &[PageRange]) -> Vec<Mapping> {
    let mut left = Vec::with_capacity(found.len());
    for mapping in found {
        let first = kept.partition_point(|range| range.end() <= mapping.range.start());
        let holes = kept[first..].iter().take_while(|range| range.start() < mapping.range.end());
        left.extend(
            mapping.range.without(holes.copied()).into_iter().map(|range| Mapping { range, ..mapping }),
        );
    }
    left
}

fn object(inode: u64, device: (u32, u32), offset: u64, start: usize) -> Object {
    if inode == 0 && device == (0, 0) {
        return Object::Anonymous;
    }
    Object::File { device, inode, bias: offset.wrapping_sub(start as u64) }
}

fn protection(read: bool, write: bool, execute: bool) -> i32 {
    let bit = |set, bit| if set { bit } else { 0 };
    bit(read, libc::PROT_READ) | bit(write, libc::PROT_WRITE) | bit(execute, libc::PROT_EXEC)
}

/// The mapping at `address` or the next one above it.
fn query_next(maps: &File, address: usize) -> io::Result<Option<Mapping>> {
    // SAFETY: the struct is plain numbers, for which zero is a value.
    let mut query: procmap_query = unsafe { std::mem::zeroed() };
    query.size = size_of::<procmap_query>() as u64;
    query.query_flags = procmap_query_flags::PROCMAP_QUERY_COVERING_OR_NEXT_VMA as u64;
    query.query_addr = address as u64;
    // SAFETY: the ioctl reads and writes the struct, whose size it is given; no name or build id is asked for.
    let done = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) };
    if done < 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ENOENT) { Ok(None) } else { Err(error) };
    }
    let flag = |flag: procmap_query_flags| query.vma_flags & flag as u64 != 0;
    let (start, end) = (query.vma_start as usize, query.vma_end as usize);
    if start >= PageRange::everything().end() {
        return Ok(None); // [vsyscall] is no user memory
    }
    Ok(Some(Mapping {
        range: PageRange::trusted(start, end),
        memory: Memory {
            object: object(query.inode, (query.dev_major, query.dev_minor), query.vma_offset, start),
            shared: flag(procmap_query_flags::PROCMAP_QUERY_VMA_SHARED),
        },
        protection: protection(
            flag(procmap_query_flags::PROCMAP_QUERY_VMA_READABLE),
            flag(procmap_query_flags::PROCMAP_QUERY_VMA_WRITABLE),
            flag(procmap_query_flags::PROCMAP_QUERY_VMA_EXECUTABLE),
        ),
        page_size: usize::try_from(query.vma_page_size).ok().filter(|size| size.is_power_of_two()),
    }))
}

/// See [`Maps::text`].
fn read_text(mut maps: &File) -> io::Result<MemoryMaps> {
    maps.rewind()?;
    // Read first: the parser does not pass on the error of a failed read, which shows that the process is gone.
    let mut text = Vec::new();
    maps.read_to_end(&mut text)?;
    let mut pathless = String::with_capacity(text.len());
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let end = line.iter().position(|byte| *byte == b'/').unwrap_or(line.len());
        pathless.push_str(&String::from_utf8_lossy(&line[..end]));
        pathless.push('\n');
    }
    MemoryMaps::from_buf_read(pathless.as_bytes()).map_err(io::Error::other)
}

/// The kernel's own pages in the process, `[vvar]`, `[vdso]` and their kin.
fn special(maps: &File) -> Vec<PageRange> {
    let is_special = |path: &MMapPath| match path {
        MMapPath::Vdso | MMapPath::Vvar => true,
        MMapPath::Other(name) => name.starts_with("vvar"),
        _ => false,
    };
    // Where they cannot be read they are mappings like any other.
    let Ok(parsed) = read_text(maps) else { return Vec::new() };
    let special = parsed.iter().filter(|map| is_special(&map.pathname));
    special.map(|map| PageRange::trusted(map.address.0 as usize, map.address.1 as usize)).collect()
}

/// Every mapping, from the text.
fn read_all(maps: &File) -> io::Result<Vec<Mapping>> {
    Ok(read_text(maps)?
        .iter()
        .filter(|map| (map.address.0 as usize) < PageRange::everything().end())
        .map(|map| {
            let (start, end) = (map.address.0 as usize, map.address.1 as usize);
            let device = (map.dev.0.cast_unsigned(), map.dev.1.cast_unsigned());
            Mapping {
                range: PageRange::trusted(start, end),
                memory: Memory {
                    object: object(map.inode, device, map.offset, start),
                    shared: map.perms.contains(MMPermissions::SHARED),
                },
                protection: protection(
                    map.perms.contains(MMPermissions::READ),
                    map.perms.contains(MMPermissions::WRITE),
                    map.perms.contains(MMPermissions::EXECUTE),
                ),
                // Huge pages set aside look like a file's on a device without a driver, as do other files.
                page_size: (map.inode == 0 || device.0 != 0).then(page_size),
            }
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_and_the_text_agree() {
        let own = || {
            let file = File::open("/proc/self/maps").unwrap();
            Maps::new(Descriptor::new(file).unwrap(), std::process::id().cast_signed(), true)
        };
        let query = own();
        if !query.query {
            return; // this kernel has the text alone
        }
        let text = Maps { query: false, special: Vec::new(), ..own() };
        // Memory that this test does not change while it reads: its program and its stack.
        let code = the_query_and_the_text_agree as *const () as usize;
        let stack = &raw const text as usize;
        for address in [code, stack] {
            let own = query_next(&query.file, address).unwrap().unwrap();
            let mut seen = [&query, &text].map(|maps| maps.within(&[own.range]).unwrap());
            // The text may not say it.
            assert!(seen[0].iter().all(|mapping| mapping.page_size == Some(page_size())));
            seen.iter_mut().flatten().for_each(|mapping| mapping.page_size = None);
            assert_eq!(seen[0], seen[1]);
            assert!(!seen[0].is_empty());
        }
    }
}
