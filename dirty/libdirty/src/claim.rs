// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The right to track a process by marks in its page tables: one program's at a time.
//!
//! The marks (of a userfaultfd, or the soft-dirty bits) belong to the process, not to their reader: what one tracker
//! takes, another never sees. So a program that uses them holds a lock on the *process*. A second program is refused,
//! with an error that names the first.
//!
//! The lock is `flock(2)` on the process's pidfd. Since Linux 6.9 its inode stands for one process for its lifetime,
//! whoever opens it, in any container and as any user: this needs no file, no name and no permission, and a reused pid
//! does no harm. On older kernels the lock is on the process's `pagemap`, whose inode belongs to one mount of procfs:
//! programs that see the process through different mounts do not exclude each other.
//!
//! The trackers of one program share the lock; the kernel keeps the memory that each watches apart. A forked child has
//! the descriptor too, but never unlocks it: if its parent is killed, the child keeps the lock, as it keeps the
//! userfaultfd, until it ends or calls `execve`.
//!
//! A program that uses a userfaultfd of its own knows nothing of this: see [`crate::uffd::Uffd::is_ours`].

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Weak};

use crate::descriptor::Descriptor;
use crate::own;
use crate::target::Target;

/// A held claim.
#[derive(Debug)]
pub(crate) struct Claim {
    _lock: Arc<Lock>,
}

/// The lock that the trackers of one program share.
#[derive(Debug)]
pub(crate) struct Lock {
    file: Descriptor<File>,
    /// Device and inode.
    process: (u64, u64),
    /// The process that took it.
    owner: u32,
}

impl Claim {
    /// # Errors
    /// Who has it.
    pub(crate) fn new(target: &Target) -> Result<Self, String> {
        let mut claims = own::claims();
        let lock =
            Lock::of(target).map_err(|error| format!("a lock on process {}: {error}", target.pid()))?;
        claims.retain(|claim| claim.strong_count() > 0);
        let known = claims.iter().filter_map(Weak::upgrade).find(|known| known.process == lock.process);
        if let Some(known) = known {
            return Ok(Claim { _lock: known });
        }
        match lock.take() {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(format!(
                    "process {} is tracked already, by {}, and two would take each other's marks",
                    target.pid(),
                    lock.holder()
                ));
            }
            Err(error) => return Err(format!("locking process {}: {error}", target.pid())),
        }
        let lock = Arc::new(lock);
        claims.push(Arc::downgrade(&lock));
        Ok(Claim { _lock: lock })
    }
}

impl Lock {
    fn of(target: &Target) -> io::Result<Self> {
        // A description of its own: the lock is the description's, and may outlive this tracker.
        let (file, known) = if is_pidfs(target.pidfd()) {
            // SAFETY: takes plain numbers and returns a new descriptor or -1.
            let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, target.pid(), 0) };
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: the kernel has just returned this descriptor; nobody else owns it.
            let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
            (File::from(fd), File::from(target.pidfd().try_clone()?))
        } else {
            (File::open(format!("{}/pagemap", target.folder()))?, target.pagemap().try_clone()?)
        };
        let identity = |file: &File| file.metadata().map(|status| (status.dev(), status.ino()));
        let process = identity(&file)?;
        if process != identity(&known)? {
            return Err(io::Error::other("its pid is another's by now"));
        }
        Ok(Lock { file: Descriptor::new(file)?, process, owner: std::process::id() })
    }

    fn take(&self) -> io::Result<()> {
        // SAFETY: plain numbers.
        let taken = unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
        if taken < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Who holds it, in words.
    fn holder(&self) -> String {
        let (device, inode) = self.process;
        let name = format!("{:02x}:{:02x}:{inode}", libc::major(device), libc::minor(device));
        let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
        let holder = locks
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .find(|words| words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&name.as_str()))
            .and_then(|words| words[4].parse::<i32>().ok().filter(|pid| *pid > 0));
        let Some(pid) = holder else { return "a process that cannot be seen from here".into() };
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        format!("process {pid} ({})", comm.trim_end())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if std::process::id() == self.owner && self.file.is_intact() {
            // Not by closing alone: a forked child may have a copy.
            // SAFETY: plain numbers.
            unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) };
        }
    }
}

fn is_pidfs(pidfd: &OwnedFd) -> bool {
    const PIDFS: u64 = 0x5049_4446; // "PIDF"
    let mut status = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the kernel fills the struct, unless it fails.
    let done = unsafe { libc::fstatfs(pidfd.as_raw_fd(), status.as_mut_ptr()) } == 0;
    // SAFETY: it has not failed.
    done && unsafe { status.assume_init() }.f_type as u64 == PIDFS
}
