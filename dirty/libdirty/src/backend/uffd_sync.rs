// SPDX-License-Identifier: Apache-2.0 OR MIT
//! userfaultfd write protection, each fault handled by a thread of the tracker (Linux 5.7).
//!
//! A page is armed while its entry carries the write-protection mark. A write waits until the handler thread removes
//! the mark: that is all the thread does. The collect reads from `/proc/PID/pagemap` which pages were written: those
//! with content and without the mark. There is no log, so nothing can overflow.
//!
//! Collect reads first and protects second, and protects *only* the pages that it reports. A page that is written
//! between the two is either reported by this collect, or stays unmarked, and the next collect finds it.
//!
//! Empty entries of private anonymous memory carry no mark. The bitmap holds the pages whose copy at the caller may be
//! other than zeros (see `bitmap`): if such a page is empty, it is reported as discarded, and not protected, since it
//! may have been written after its entry was read. In shared memory an empty entry may stand for a page that was
//! written and reclaimed; it is reported unless it is marked: the kernel keeps the mark when it reclaims a marked page.
//!
//! Where the kernel has `PAGEMAP_SCAN`, it finds in private anonymous memory the runs with content, with and without the
//! mark, in place of the entries: memory that was never touched costs nothing, other memory little.
//!
//! In the own process the handler thread must never wait for itself: private mappings of files are refused, since
//! the data of libraries is there; its stack is never watched (`own`); no signal handler of the program runs on it.
//! It allocates nothing and takes no lock.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use linux_raw_sys::general::{
    PAGE_IS_WRITTEN, UFFD_FEATURE_PAGEFAULT_FLAG_WP, UFFD_FEATURE_WP_HUGETLBFS_SHMEM, uffd_msg,
};

use super::{Armed, Backend, Collection, Part, Place, pieces};
use crate::capability::BackendKind;
use crate::descriptor::Descriptor;
use crate::extent::{PageRange, Reason, page_size};
use crate::maps::{Mapping, Memory, Object};
use crate::own::Kept;
use crate::pagemap::{self, Entry, Regions, Scan};
use crate::room;
use crate::signals::Blocked;
use crate::target::Target;
use crate::uffd::{Faults, Uffd};

/// Pages whose entries are read at a time: 64 KiB of entries.
const BATCH: usize = 8192;

const UFFD_EVENT_PAGEFAULT: u8 = 0x12;

#[derive(Debug)]
pub(super) struct UffdSync {
    uffd: Arc<Uffd>,
    handler: Option<JoinHandle<()>>,
    /// Written to end the handler, which has the other end.
    stop: Descriptor<UnixStream>,
    /// The handler's stack, while it may be in use.
    stack: Option<Kept>,
    /// The process that has the handler thread.
    owner: u32,
    entries: Vec<Entry>,
    /// Where the kernel has `PAGEMAP_SCAN`.
    regions: Option<Regions>,
}

impl UffdSync {
    pub(super) fn open(target: &Target) -> Result<Self, String> {
        let features = UFFD_FEATURE_PAGEFAULT_FLAG_WP;
        // Shared memory can be watched since Linux 5.19.
        let choices = [features | UFFD_FEATURE_WP_HUGETLBFS_SHMEM, features];
        let uffd = Arc::new(Uffd::open(target, Faults::All, &choices)?);
        let (stop, stopped) = UnixStream::pair().map_err(|error| format!("a socket: {error}"))?;
        let stop = Descriptor::new(stop).map_err(|error| format!("a socket: {error}"))?;
        let (started, start) = mpsc::channel();
        let stopped = Descriptor::new(stopped).map_err(|error| format!("a socket: {error}"))?;
        let thread = (uffd.clone(), stopped);
        // The thread inherits the mask: no handler of the program, which may write watched memory, runs on it.
        let blocked = Blocked::new();
        let handler = std::thread::Builder::new()
            .name("libdirty-uffd".into())
            .spawn(move || {
                let stack = own_stack();
                if started.send(stack).is_ok() {
                    drop(started);
                    handle_faults(&thread.0, &thread.1);
                }
            })
            .map_err(|error| format!("no thread for its faults: {error}"))?;
        drop(blocked);
        let stack = start.recv().map_err(|_| "the thread for its faults did not start")?;
        let stack = stack.map_err(|error| format!("the stack of the thread for its faults: {error}"))?;
        Ok(UffdSync {
            uffd,
            handler: Some(handler),
            stop,
            stack: Some(Kept::new(stack)),
            owner: std::process::id(),
            entries: Vec::with_capacity(BATCH),
            regions: pagemap::can_scan(target.pagemap()).then(Regions::default),
        })
    }

    /// Report the pages of `part` that were written, and protect them. Fails where the memory is not watched any more.
    fn sweep(
        &mut self,
        target: &Target,
        part: &Part,
        mut report: impl FnMut(PageRange, Reason),
    ) -> io::Result<()> {
        if part.memory.is_private_anonymous()
            && let Some(mut regions) = self.regions.take()
        {
            let swept = self.sweep_scanned(target, part, &mut regions, &mut report);
            self.regions = Some(regions);
            return swept;
        }
        part.range.split(BATCH).try_for_each(|batch| self.sweep_batch(target, part, batch, &mut report))
    }

    /// The same for private anonymous memory, by `PAGEMAP_SCAN`, whose *written* means: without the mark.
    fn sweep_scanned(
        &self,
        target: &Target,
        part: &Part,
        regions: &mut Regions,
        report: &mut impl FnMut(PageRange, Reason),
    ) -> io::Result<()> {
        let (bitmap, is_fresh) = (&part.bitmap, part.bitmap.is_fresh());
        let empty = |start, end, report: &mut dyn FnMut(PageRange, Reason)| {
            if start < end {
                let hole = PageRange::trusted(start, end);
                if is_fresh {
                    report(hole, Reason::Discarded);
                }
                for piece in bitmap.set_within(hole) {
                    bitmap.runs(piece, true).for_each(|run| report(run, Reason::Discarded));
                    bitmap.fill(piece, false);
                }
            }
        };
        let mut at = part.range.start();
        let mut protected = Ok(());
        let what = Scan { report: PAGE_IS_WRITTEN, ..Scan::CONTENT };
        pagemap::scan(target.pagemap(), part.range, what, regions, |run, categories| {
            // In order, and no page again: one that was reported as discarded, which counts for more than written,
            // must stay unmarked for the next collect.
            empty(at, run.start(), report);
            at = run.end();
            bitmap.fill(run, true);
            if categories & PAGE_IS_WRITTEN != 0 {
                report(run, Reason::Written);
                if protected.is_ok() {
                    protected = self.uffd.write_protect(run, true);
                }
            }
        })?;
        empty(at, part.range.end(), report);
        protected
    }

    fn is_armed(&self, part: &Part, work: &Collection<'_>) -> bool {
        let rooms = || room::around(part.range, work.mappings, work.limits);
        self.uffd.is_watched(part.range, work.mappings) && self.uffd.is_ours(&rooms(), part.range)
    }

    fn sweep_or_lose(&mut self, target: &Target, part: &Part, work: &mut Collection<'_>) {
        if self.sweep(target, part, |range, reason| work.dirty.push(range, reason)).is_err() {
            work.lost.push(part.range);
        }
    }

    fn sweep_batch(
        &mut self,
        target: &Target,
        part: &Part,
        batch: PageRange,
        report: &mut impl FnMut(PageRange, Reason),
    ) -> io::Result<()> {
        let exact = part.memory.is_private_anonymous();
        let is_fresh = part.bitmap.is_fresh();
        pagemap::read(target.pagemap(), batch, &mut self.entries)?;
        let first = part.bitmap.index(batch.start());
        let mut run: Option<PageRange> = None;
        let protect = |run: Option<PageRange>, report: &mut dyn FnMut(PageRange, Reason)| {
            let Some(run) = run else { return Ok(()) };
            report(run, Reason::Written);
            self.uffd.write_protect(run, true)
        };
        for (offset, entry) in self.entries.iter().enumerate() {
            let had = exact && part.bitmap.get(first + offset);
            let has = !entry.is_none();
            if exact && had != has {
                part.bitmap.put(first + offset, has);
            }
            let start = batch.start() + offset * page_size();
            let page = PageRange::trusted(start, start + page_size());
            if exact && !has {
                if had || is_fresh {
                    report(page, Reason::Discarded);
                }
                continue;
            }
            if entry.is_write_protected() {
                continue;
            }
            run = match run {
                Some(run) if run.end() == start => Some(PageRange::trusted(run.start(), page.end())),
                before => {
                    protect(before, report)?;
                    Some(page)
                }
            };
        }
        protect(run, report)
    }
}

impl Backend for UffdSync {
    fn kind(&self) -> BackendKind {
        BackendKind::UffdSync
    }

    fn arm(&mut self, _target: &Target, part: &Part, place: &Place<'_>) -> Armed {
        if is_private_file(part.memory) {
            return Armed::Unsupported;
        }
        let armed = self.uffd.watch(part, &place.rooms);
        if armed != Armed::Watched {
            return armed;
        }
        // Empty entries of private anonymous memory stay as they are; all of it is fresh.
        if self.uffd.write_protect(part.range, true).is_err() {
            return Armed::Unsupported; // replaced while it was being armed; it is watched, and the next collect arms it
        }
        part.bitmap.set_fresh(true);
        Armed::Watched
    }

    fn enclose(&mut self, mappings: &[Mapping], end: usize) {
        self.uffd.enclose(mappings, end, |mapping| is_private_file(mapping.memory));
    }

    fn release(&mut self, mappings: &[Mapping], end: usize) {
        self.uffd.release(mappings, end, |mapping| is_private_file(mapping.memory));
    }

    fn disarm(&mut self, _target: &Target, _range: PageRange, _mapped: bool) {
        // Nothing is kept of it, and `release` has left it. What was lost is armed again.
    }

    fn collects_some(&self, _parts: &[Part]) -> bool {
        true
    }

    fn collect(&mut self, target: &Target, work: &mut Collection<'_>) {
        for part in work.parts {
            if self.is_armed(part, work) {
                self.sweep_or_lose(target, part, work);
                continue;
            }
            // One mapping that was replaced costs none of the others.
            for piece in pieces(part, work.mappings) {
                if self.is_armed(&piece, work) {
                    self.sweep_or_lose(target, &piece, work);
                } else {
                    work.lost.push(piece.range);
                }
            }
        }
        // Not before: the pieces of a part share their bits.
        work.parts.iter().for_each(|part| part.bitmap.set_fresh(false));
    }
}

impl Drop for UffdSync {
    fn drop(&mut self) {
        let Some(handler) = self.handler.take() else { return };
        // Before the thread ends: after that the program may get these addresses at any time.
        self.stack = None;
        if std::process::id() != self.owner {
            // A forked child has no such thread to wait for.
            std::mem::forget(handler);
            return;
        }
        // The thread of a program that has closed this descriptor is left alone: nothing wakes it.
        if self.stop.is_intact() && (&*self.stop).write_all(&[1]).is_ok() {
            let _ = handler.join();
        }
    }
}

/// Private mappings of files are refused: the kernel keeps the mark on a page that was discarded, so discards go
/// unseen; and in the own process the handler thread needs the data of libraries.
fn is_private_file(memory: Memory) -> bool {
    !memory.shared && matches!(memory.object, Object::File { .. })
}

/// The stack of the calling thread.
fn own_stack() -> io::Result<PageRange> {
    // SAFETY: the attributes are initialised by the first call, read by the second and destroyed by the third.
    let (stack, size) = unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        let failed = libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes);
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
        let (mut stack, mut size) = (std::ptr::null_mut(), 0);
        libc::pthread_attr_getstack(&raw const attributes, &raw mut stack, &raw mut size);
        libc::pthread_attr_destroy(&raw mut attributes);
        (stack as usize, size)
    };
    let page = page_size();
    Ok(PageRange::trusted(stack / page * page, (stack + size).next_multiple_of(page)))
}

/// The handler thread: removes the protection of each page that a write waits for, until it is asked to stop or
/// the memory is gone.
fn handle_faults(uffd: &Uffd, stop: &UnixStream) {
    // SAFETY: the messages are plain numbers, for which zero is a value.
    let mut messages: [uffd_msg; 16] = unsafe { std::mem::zeroed() };
    let descriptor = uffd.file();
    let mut polls = [descriptor.as_raw_fd(), stop.as_raw_fd()].map(|fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    });
    loop {
        // SAFETY: two valid pollfds.
        if unsafe { libc::poll(polls.as_mut_ptr(), 2, -1) } < 0 {
            continue; // a signal
        }
        if polls[1].revents != 0 || polls[0].revents & (libc::POLLHUP | libc::POLLNVAL) != 0 {
            return;
        }
        if !uffd.is_intact() {
            return;
        }
        // SAFETY: the bytes of an array of plain numbers, any of which the kernel may write.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(messages.as_mut_ptr().cast::<u8>(), size_of_val(&messages))
        };
        let Ok(length) = (&mut &*descriptor).read(bytes) else { continue };
        for message in &messages[..length / size_of::<uffd_msg>()] {
            if message.event != UFFD_EVENT_PAGEFAULT {
                continue;
            }
            // SAFETY: of this event the union holds this member.
            let address = unsafe { message.arg.pagefault.address } as usize;
            lift(uffd, address);
        }
    }
}

/// Let the write at `address` pass.
fn lift(uffd: &Uffd, address: usize) {
    // A huge page of hugetlb has one mark and cannot be unprotected in part; its size depends on the architecture.
    let sizes = (page_size().trailing_zeros()..=34).map(|bits| 1usize << bits);
    for size in sizes {
        let start = address & !(size - 1);
        let range = PageRange::trusted(start, start + size);
        loop {
            match uffd.write_protect(range, false) {
                Ok(()) => return,
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
                // Unmapped or replaced meanwhile: wake the write, so that it faults again.
                Err(_) => {
                    let _ = uffd.wake(range);
                    return;
                }
            }
        }
    }
    let start = address & !(page_size() - 1);
    let _ = uffd.wake(PageRange::trusted(start, start + page_size()));
}
