// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory that is written, and the judge, which finds changes by reading it.
//!
//! Every write of a page leaves a stamp that no earlier write left. The judge keeps a copy of the stamps and
//! compares; it uses no back end. A page that changed and was not reported is *missed*, a page that was reported
//! and did not change is *spurious*.

use std::io;

use libdirty::{PageRange, page_size};

/// Pages of private anonymous memory, all present, none of them huge.
#[derive(Debug)]
pub struct Region {
    range: PageRange,
    /// The judge's copy of the stamps.
    seen: Vec<u64>,
    last_stamp: u64,
}

/// The judge's verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verdict {
    pub missed: usize,
    pub spurious: usize,
}

impl Region {
    /// # Errors
    /// When there is not enough memory.
    pub fn new(bytes: usize) -> io::Result<Self> {
        // SAFETY: a new private mapping, at an address of the kernel's choice.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping just made. A kernel without huge pages refuses; then there are none to avoid.
        unsafe { libc::madvise(memory, bytes, libc::MADV_NOHUGEPAGE) };
        let range = PageRange::from_length(memory as usize, bytes).map_err(io::Error::other)?;
        let mut region = Region { range, seen: vec![0; range.pages()], last_stamp: 0 };
        region.touch(range.pages(), 1);
        region.judge(&[range]);
        Ok(region)
    }

    /// The first `pages` of it.
    pub fn first(&self, pages: usize) -> PageRange {
        PageRange::from_length(self.range.start(), pages * page_size()).expect("a part of the region")
    }

    /// Its pages.
    pub fn pages(&self) -> usize {
        self.range.pages()
    }

    /// Write every `stride`-th of the first `pages` pages; returns how many that were.
    pub fn touch(&mut self, pages: usize, stride: usize) -> usize {
        assert!(pages <= self.pages() && stride > 0);
        let (start, step) = (self.range.start(), page_size());
        let mut stamp = self.last_stamp;
        for page in (0..pages).step_by(stride) {
            stamp += 1;
            // SAFETY: within the mapping, aligned to a page; volatile, as each store must happen.
            unsafe { ((start + page * step) as *mut u64).write_volatile(stamp) };
        }
        let written = stamp - self.last_stamp;
        self.last_stamp = stamp;
        usize::try_from(written).expect("as many as there are pages")
    }

    /// Compare the memory with the copy and with `reported` (sorted, disjoint), then update the copy.
    pub fn judge(&mut self, reported: &[PageRange]) -> Verdict {
        let mut verdict = Verdict::default();
        let mut reported = reported.iter().peekable();
        for (page, seen) in self.seen.iter_mut().enumerate() {
            let address = self.range.start() + page * page_size();
            // SAFETY: within the mapping, aligned; volatile, for other code wrote it.
            let now = unsafe { (address as *const u64).read_volatile() };
            while reported.next_if(|range| range.end() <= address).is_some() {}
            let is_reported = reported.peek().is_some_and(|range| range.contains_address(address));
            match (*seen != now, is_reported) {
                (true, false) => verdict.missed += 1,
                (false, true) => verdict.spurious += 1,
                _ => {}
            }
            *seen = now;
        }
        verdict
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`; nothing refers to it any more.
        unsafe { libc::munmap(self.range.start() as *mut _, self.range.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_judge_reads_the_memory() {
        let mut region = Region::new(16 * page_size()).unwrap();
        assert_eq!(region.touch(16, 4), 4); // pages 0, 4, 8, 12
        let page = |n: usize| {
            PageRange::from_length(region.first(1).start() + n * page_size(), page_size()).unwrap()
        };
        let reported = [page(0), page(3), page(4), page(12)];
        assert_eq!(region.judge(&reported), Verdict { missed: 1, spurious: 1 });
        assert_eq!(region.judge(&[]), Verdict::default());
    }
}
