// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tracked process: its memory as it was when tracking began.
//!
//! Invariant: every file of `/proc/PID` used by a tracker is opened once, here, and belongs to the memory
//! (the kernel's `mm`) that the process had then. After `execve` the files still stand for the old memory,
//! which is empty; nothing of the new one is ever read or touched by mistake. The pidfd makes sure that
//! a reused pid is never taken for the process.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::descriptor::Descriptor;
use crate::error::{Error, Result};
use crate::inject;
use crate::maps::Maps;
use crate::status;

/// A process and the files through which it is tracked.
#[derive(Debug)]
pub(crate) struct Target {
    pid: i32,
    own: bool,
    folder: String,
    pidfd: Descriptor<OwnedFd>,
    maps: Maps,
    pagemap: Descriptor<File>,
    opened: Instant,
    patience: Duration,
}

impl Target {
    /// The calling process.
    pub(crate) fn own() -> Result<Self> {
        let pid = i32::try_from(std::process::id()).expect("a pid is an i32");
        Target::open(pid, true)
    }

    /// Process `pid`; the calling one too.
    pub(crate) fn process(pid: i32) -> Result<Self> {
        if pid <= 0 {
            return Err(Error::NoProcess(pid));
        }
        Target::open(pid, i32::try_from(std::process::id()) == Ok(pid))
    }

    fn open(pid: i32, own: bool) -> Result<Self> {
        // SAFETY: pidfd_open takes plain numbers and returns a new descriptor or -1.
        let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if pidfd < 0 {
            let source = io::Error::last_os_error();
            return Err(match source.raw_os_error() {
                // Which of them a thread's number gives depends on the kernel.
                Some(libc::ESRCH | libc::EINVAL | libc::ENOENT) => no_process(pid),
                _ => Error::system(format!("pidfd_open({pid})"), source),
            });
        }
        let pidfd = i32::try_from(pidfd).expect("a descriptor is an i32");
        // SAFETY: the kernel has just returned this descriptor; nobody else owns it.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
        let whose = |error| Error::system("fstat", error);
        let pidfd = Descriptor::new(pidfd).map_err(whose)?;
        let folder = folder(pid);
        let open = |name: &str| {
            let path = format!("{folder}/{name}");
            let file = File::open(&path).map_err(|source| match source.kind() {
                io::ErrorKind::PermissionDenied => Error::Permission { pid, what: format!("opening {path}") },
                io::ErrorKind::NotFound => Error::NoProcess(pid),
                _ if source.raw_os_error() == Some(libc::ESRCH) => Error::NoMemory(pid),
                _ => Error::system(format!("opening {path}"), source),
            })?;
            Descriptor::new(file).map_err(whose)
        };
        let maps = Maps::new(open("maps")?, pid, own);
        let pagemap = open("pagemap")?;
        let (opened, patience) = (Instant::now(), inject::PATIENCE);
        let target = Target { pid, own, folder, maps, pagemap, pidfd, opened, patience };
        // The files may belong to a process that took the pid over since, or to none.
        if target.has_exited() {
            return Err(Error::NoProcess(pid));
        }
        Ok(target)
    }

    /// From its opening on, wait so long for threads that sleep where no signal wakes them.
    pub(crate) fn with_patience(self, patience: Duration) -> Self {
        Target { patience, ..self }
    }

    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// Whether a thread that cannot be woken is to be waited for, whichever back end asks.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.opened.elapsed() < self.patience
    }

    /// Whether the descriptors of this library are still its own.
    ///
    /// # Errors
    /// The program has closed one.
    pub(crate) fn check_descriptors(&self) -> Result<()> {
        if self.pidfd.is_intact() && self.maps.is_intact() && self.pagemap.is_intact() {
            return Ok(());
        }
        let closed = io::Error::from_raw_os_error(libc::EBADF);
        Err(Error::system(
            "this program has closed a descriptor of the tracker, which is of no use any more",
            closed,
        ))
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether this is the calling process.
    pub(crate) fn is_own(&self) -> bool {
        self.own
    }

    pub(crate) fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// Where the kernel shows its memory: `/proc/PID`, or a folder below it.
    pub(crate) fn folder(&self) -> &str {
        &self.folder
    }

    pub(crate) fn maps(&self) -> &Maps {
        &self.maps
    }

    pub(crate) fn pagemap(&self) -> &File {
        &self.pagemap
    }

    /// Whether the memory is gone: the process has ended or called `execve`.
    pub(crate) fn is_gone(&self) -> bool {
        match self.maps.text() {
            Ok(maps) => maps.0.is_empty(),
            Err(error) => error.raw_os_error() == Some(libc::ESRCH),
        }
    }

    /// Whether the process, whose memory is gone, has new memory: it called `execve`. One that is ending has none,
    /// some time before it can be seen to have ended.
    pub(crate) fn has_new_memory(&self) -> bool {
        let has_maps = match std::fs::read(format!("{}/maps", folder(self.pid))) {
            Ok(maps) => !maps.is_empty(),
            // A set-user-ID program is not ours to look at.
            Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
        };
        has_maps && !self.has_exited()
    }

    /// Whether the process has ended (its main thread gone and no other left).
    pub(crate) fn has_exited(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd, no waiting.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    }
}

fn no_process(pid: i32) -> Error {
    match status::read(format!("/proc/{pid}/status")) {
        Ok(status) if status.tgid != pid => Error::Thread { pid, process: status.tgid },
        _ => Error::NoProcess(pid),
    }
}

/// The folder of a thread that has the process's memory: of the main thread or, if that has ended and others have not,
/// of one of them.
fn folder(pid: i32) -> String {
    let main = format!("/proc/{pid}");
    if !has_ended(&main) {
        return main;
    }
    let threads = std::fs::read_dir(format!("{main}/task")).into_iter().flatten().flatten();
    let mut folders = threads.map(|thread| format!("{main}/task/{}", thread.file_name().display()));
    folders.find(|folder| !has_ended(folder)).unwrap_or(main)
}

fn has_ended(folder: &str) -> bool {
    let status = status::read(format!("{folder}/status"));
    status.is_ok_and(|status| matches!(status.state.chars().next(), Some('Z' | 'X')))
}
