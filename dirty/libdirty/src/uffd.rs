// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A userfaultfd: of the own process, made in another and brought here, or handed over.
//!
//! Its operations act on the memory of the process that *made* it, whoever holds the descriptor. A forked child
//! therefore never uses the one it inherits; see [`crate::Tracker`].

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use linux_raw_sys::general::{
    _UFFDIO_WRITEPROTECT, UFFD_USER_MODE_ONLY, uffdio_api, uffdio_copy, uffdio_range, uffdio_register,
    uffdio_writeprotect,
};
use linux_raw_sys::ioctl::{
    UFFDIO_API, UFFDIO_COPY, UFFDIO_REGISTER, UFFDIO_UNREGISTER, UFFDIO_WAKE, UFFDIO_WRITEPROTECT,
};

use crate::adopt;
use crate::backend::contract::{Armed, Part};
use crate::claim::Claim;
use crate::descriptor::Descriptor;
use crate::extent::{PageRange, page_size};
use crate::inject;
use crate::maps::Mapping;
use crate::own::Kept;
use crate::room;
use crate::target::Target;

const UFFD_API: u64 = 0xAA;
const MODE_WP: u64 = 1 << 1; // UFFDIO_REGISTER_MODE_WP
const WRITEPROTECT_MODE_WP: u64 = 1;
const COPY_MODE_DONTWAKE: u64 = 1;
const DEV_USERFAULTFD_NEW: libc::Ioctl = libc::_IO(UFFD_API as u32, 0x00);

/// Whether the kernel's own writes (a `read(2)` into the memory) fault into the userfaultfd too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Faults {
    /// Only those of user code, or none at all; needs no privilege.
    User,
    /// The kernel's too; needs CAP_SYS_PTRACE, vm.unprivileged_userfaultfd=1 or access to /dev/userfaultfd.
    All,
}

/// An open userfaultfd.
#[derive(Debug)]
pub(crate) struct Uffd {
    file: Descriptor<File>,
    unreadable: Unreadable,
    /// After the descriptor: who comes next finds nothing registered.
    _claim: Claim,
}

impl Uffd {
    /// Make one for the memory of `target` with the first set of features (`UFFD_FEATURE_*`) that the kernel takes.
    ///
    /// # Errors
    /// What was tried and the kernel's word.
    pub(crate) fn open(target: &Target, faults: Faults, choices: &[u32]) -> Result<Self, String> {
        let claim = Claim::new(target)?;
        let fd = if target.is_own() {
            open_own(faults)?
        } else {
            inject::userfaultfd(target, open_flags(faults))?
        };
        let uffd = Uffd::new(fd, claim)?;
        let mut refused = String::new();
        for features in choices {
            match uffd.initialize(*features) {
                Ok(()) => return Ok(uffd),
                Err(why) => refused = why,
            }
        }
        Err(refused)
    }

    /// Take one that was handed over, for the memory of `target`, with these features.
    ///
    /// # Errors
    /// It is none, or another process's, or was initialised with other features.
    pub(crate) fn adopt(target: &Target, fd: OwnedFd, features: u32) -> Result<Self, String> {
        let initialized = adopt::features(&fd)?;
        let uffd = Uffd::new(fd, Claim::new(target)?)?;
        match initialized {
            None => uffd.initialize(features)?,
            Some(there) if there & u64::from(features) == features.into() => {}
            Some(there) => {
                return Err(format!(
                    "the userfaultfd that was handed over was initialised (UFFDIO_API) with the features {there:#x}, \
                     without all of {features:#x}; hand over one that is not initialised"
                ));
            }
        }
        adopt::check_memory(&uffd, target)?;
        Ok(uffd)
    }

    fn new(fd: OwnedFd, claim: Claim) -> Result<Self, String> {
        let unreadable = Unreadable::new().map_err(|error| format!("a page of memory: {error}"))?;
        let file = Descriptor::new(File::from(fd)).map_err(|error| format!("fstat: {error}"))?;
        Ok(Uffd { file, unreadable, _claim: claim })
    }

    fn initialize(&self, features: u32) -> Result<(), String> {
        let mut api = uffdio_api { api: UFFD_API, features: features.into(), ioctls: 0 };
        self.ioctl(UFFDIO_API, &mut api)
            .map_err(|error| format!("UFFDIO_API refuses the features {features:#x}: {error}"))
    }

    /// Watch writes to `part`, of which no page is marked yet, and all of one of its rooms.
    pub(crate) fn watch(&self, part: &Part, rooms: &[PageRange]) -> Armed {
        // All but private anonymous memory is marked where it is empty, too.
        if !part.memory.is_private_anonymous() && is_too_large_to_mark(part.range) {
            return Armed::Unsupported;
        }
        match self.register_within(rooms, part.range) {
            Ok(()) => Armed::Watched,
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => Armed::Constant, // no VM_MAYWRITE
            Err(_) => Armed::Unsupported,
        }
    }

    /// Whether some userfaultfd watches all of `range`, which is mapped like this. The kernel may end our watch:
    /// memory that `mremap` moves beside watched memory is joined with it, and then the watch of the whole mapping
    /// ends. Marks stay there and say nothing any more: a write does not lift them.
    ///
    /// Nothing is changed by asking: it is for a copy whose source cannot be read, into the first page of each
    /// mapping. Doubt means no.
    pub(crate) fn is_watched(&self, range: PageRange, mappings: &[Mapping]) -> bool {
        let first = mappings.partition_point(|mapping| mapping.range.end() <= range.start());
        mappings[first..].iter().map_while(|mapping| mapping.range.intersection(range)).all(|piece| {
            let mut copy = uffdio_copy {
                dst: piece.start() as u64,
                src: self.unreadable.0.start() as u64,
                len: page_size() as u64,
                mode: COPY_MODE_DONTWAKE,
                copy: 0,
            };
            let refused = self.ioctl(UFFDIO_COPY, &mut copy).err().and_then(|error| error.raw_os_error());
            // The source was looked at, a huge page is there, or it is of hugetlb, or the program is changing its
            // mappings: all of it comes after the question of who watches.
            matches!(refused, Some(libc::EFAULT | libc::EEXIST | libc::EINVAL | libc::EAGAIN))
        })
    }

    /// Whether the marks that a sweep of `range` would take are ours. The operations that read and set marks do not
    /// check whose userfaultfd watches: if the program has mapped the memory anew and registered it with its own, that
    /// would lose its marks.
    ///
    /// This watches memory that nobody watched, whatever marks it has: call [`Uffd::is_watched`] first. (Should our
    /// watch end between the two calls, a write in these microseconds is lost.)
    pub(crate) fn is_ours(&self, rooms: &[PageRange], range: PageRange) -> bool {
        self.register_within(rooms, range).is_ok()
    }

    /// Register `range` with one of its rooms: the first that the kernel takes. (Something in a room may be none that
    /// can be watched.)
    fn register_within(&self, rooms: &[PageRange], range: PageRange) -> io::Result<()> {
        if rooms.iter().any(|room| self.register(*room).is_ok()) { Ok(()) } else { self.register(range) }
    }

    /// Watch all of these mappings but those that `cannot` be watched, and what is free around them, up to `end`.
    pub(crate) fn enclose(&self, mappings: &[Mapping], end: usize, cannot: impl Fn(&Mapping) -> bool) {
        room::each(mappings, end, cannot, &mut |span| self.register(span).is_ok());
    }

    /// Stop watching the same. Memory that another userfaultfd watches refuses to be registered and is passed over:
    /// before Linux 6.17 the kernel would end that watch, too.
    pub(crate) fn release(&self, mappings: &[Mapping], end: usize, cannot: impl Fn(&Mapping) -> bool) {
        room::each(mappings, end, cannot, &mut |span| {
            self.register(span).is_ok() && self.unregister(span).is_ok()
        });
    }

    pub(crate) fn register(&self, range: PageRange) -> io::Result<()> {
        let mut register = uffdio_register { range: raw(range), mode: MODE_WP, ioctls: 0 };
        self.ioctl(UFFDIO_REGISTER, &mut register)?;
        if register.ioctls & (1 << _UFFDIO_WRITEPROTECT) == 0 {
            let _ = self.unregister(range);
            return Err(io::Error::other("this memory cannot be write-protected"));
        }
        Ok(())
    }

    /// Stop watching; removes the protection of every page. What is unmapped there does not matter.
    pub(crate) fn unregister(&self, range: PageRange) -> io::Result<()> {
        self.ioctl(UFFDIO_UNREGISTER, &mut raw(range))
    }

    /// Protect pages, or lift the protection and wake the threads that wait there.
    pub(crate) fn write_protect(&self, range: PageRange, protect: bool) -> io::Result<()> {
        let mode = if protect { WRITEPROTECT_MODE_WP } else { 0 };
        self.ioctl(UFFDIO_WRITEPROTECT, &mut uffdio_writeprotect { range: raw(range), mode })
    }

    /// Wake the threads that wait in `range`, to try again.
    pub(crate) fn wake(&self, range: PageRange) -> io::Result<()> {
        self.ioctl(UFFDIO_WAKE, &mut raw(range))
    }

    /// Whether the number still stands for a userfaultfd. (A program may close descriptors that it does not know.)
    pub(crate) fn is_intact(&self) -> bool {
        let mut none = uffdio_range { start: 0, len: 0 };
        let refused = self.ioctl(UFFDIO_WAKE, &mut none).err().and_then(|error| error.raw_os_error());
        refused == Some(libc::EINVAL) // other files do not know the request
    }

    /// The descriptor, for the thread that reads its events.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    fn ioctl<T>(&self, request: u32, argument: &mut T) -> io::Result<()> {
        // SAFETY: every caller passes the struct that its request reads and writes.
        let done =
            unsafe { libc::ioctl(self.file.as_raw_fd(), request.into(), std::ptr::from_mut(argument)) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// A page of this process that nobody can read.
#[derive(Debug)]
struct Unreadable(PageRange, Option<Kept>);

impl Unreadable {
    fn new() -> io::Result<Self> {
        let length = page_size();
        // SAFETY: a new private mapping, at an address of the kernel's choice.
        let page = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0)
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let range = PageRange::trusted(page as usize, page as usize + length);
        Ok(Unreadable(range, Some(Kept::new(range))))
    }
}

impl Drop for Unreadable {
    fn drop(&mut self) {
        // Before the memory goes: the program may be given this address at once.
        self.1 = None;
        // SAFETY: the mapping made by `new`, of which nobody has a reference.
        unsafe { libc::munmap(self.0.start() as *mut _, self.0.len()) };
    }
}

/// Whether marking all of `range`, which makes page tables where there are none, could fill the memory of this
/// machine: it is larger than that memory, which it cannot fill otherwise.
fn is_too_large_to_mark(range: PageRange) -> bool {
    // SAFETY: sysconf has no preconditions.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    usize::try_from(pages).is_ok_and(|pages| range.pages() > pages)
}

fn raw(range: PageRange) -> uffdio_range {
    uffdio_range { start: range.start() as u64, len: range.len() as u64 }
}

/// The flags of `userfaultfd(2)`.
fn open_flags(faults: Faults) -> i32 {
    let mode = if faults == Faults::User { UFFD_USER_MODE_ONLY.cast_signed() } else { 0 };
    libc::O_CLOEXEC | libc::O_NONBLOCK | mode
}

fn open_own(faults: Faults) -> Result<OwnedFd, String> {
    // SAFETY: takes a number and returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, open_flags(faults)) };
    let refused = if fd >= 0 {
        // SAFETY: the kernel has just returned this descriptor; nobody else owns it.
        return Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) });
    } else {
        io::Error::last_os_error()
    };
    if refused.raw_os_error() == Some(libc::EPERM) && faults == Faults::All {
        if let Ok(device) = File::open("/dev/userfaultfd") {
            let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
            // SAFETY: the request takes flags and returns a new descriptor or -1.
            let fd = unsafe { libc::ioctl(device.as_raw_fd(), DEV_USERFAULTFD_NEW, flags) };
            if fd >= 0 {
                // SAFETY: as above.
                return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        return Err(format!(
            "userfaultfd(2) for the kernel's writes too: {refused}; it needs CAP_SYS_PTRACE, \
             vm.unprivileged_userfaultfd=1 or access to /dev/userfaultfd"
        ));
    }
    Err(format!("userfaultfd(2): {refused}"))
}
