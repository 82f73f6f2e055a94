// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A userfaultfd that is handed over: made by the target itself and brought here by the caller (SCM_RIGHTS,
//! `pidfd_getfd`, a parasite), where the target may not be made to call `userfaultfd(2)`: under seccomp, or while a
//! debugger has it.
//!
//! Its operations act on the memory of the process that made it, and nothing in it says which one that is. To use
//! another's would be silence about every write. So it is tried, on one page that nobody watches: registered by the
//! descriptor it must show as watched in the *target's* pagemap, and must not when it is unregistered. Both are asked
//! twice; that another program does the same with the same page in step is excluded by the claim (see `claim`).
//!
//! Only asynchronous write protection is taken. With the other kind the kernel's own writes into protected memory
//! would fail if the userfaultfd was made with UFFD_USER_MODE_ONLY, which cannot be seen from outside.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::extent::{PageRange, page_size};
use crate::maps::Unreadable;
use crate::pagemap;
use crate::target::Target;
use crate::uffd::Uffd;

/// Mappings on which the trial is made before it is given up: a program may unmap one meanwhile.
const TRIALS: usize = 16;

/// What `fd` is, as `/proc` shows it: the features with which its userfaultfd was initialised, or none if it was not.
///
/// # Errors
/// It is no userfaultfd, or that cannot be seen.
pub(crate) fn features(fd: &OwnedFd) -> Result<Option<u64>, String> {
    const INITIALIZED: u64 = 1 << 31; // UFFD_FEATURE_INITIALIZED, the kernel's own
    let number = fd.as_raw_fd();
    let link = format!("/proc/self/fd/{number}");
    let kind = fs::read_link(&link).map_err(|error| format!("{link}: {error}"))?;
    if kind.as_os_str() != "anon_inode:[userfaultfd]" {
        return Err(format!("the descriptor that was handed over is no userfaultfd but {}", kind.display()));
    }
    let path = format!("/proc/self/fdinfo/{number}");
    let info = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    // "API:	aa:FEATURES:IOCTLS"
    let line = info.lines().find_map(|line| line.strip_prefix("API:"));
    let features = line.and_then(|line| u64::from_str_radix(line.trim().split(':').nth(1)?, 16).ok());
    let features = features.ok_or_else(|| format!("{path} does not say which features it has"))?;
    Ok((features & INITIALIZED != 0).then_some(features))
}

/// Make sure that `uffd`, which watches asynchronously, acts on the memory of `target`.
///
/// # Errors
/// It does not, or that cannot be found out.
pub(crate) fn check_memory(uffd: &Uffd, target: &Target) -> Result<(), String> {
    let pid = target.pid();
    let mappings = target.maps().within(&[PageRange::everything()]).map_err(|error| match error {
        Unreadable::Gone => format!("process {pid} has ended"),
        Unreadable::Failed(error) => error.to_string(),
    })?;
    let candidates = mappings
        .iter()
        .filter(|mapping| mapping.memory.is_private_anonymous() && mapping.protection & libc::PROT_WRITE != 0)
        .map(|mapping| PageRange::trusted(mapping.range.start(), mapping.range.start() + page_size()));
    let mut why = "it has no private memory on which that could be tried".to_owned();
    for page in candidates.filter(|page| !pagemap::is_watched(target.pagemap(), *page)).take(TRIALS) {
        match try_on(uffd, target, page) {
            Ok(true) => return Ok(()),
            Ok(false) => why = "it is another process's, or an earlier program's before execve".into(),
            // What this request says of memory that is gone.
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
                why = format!("the process that made it has ended or called execve ({error})");
                break;
            }
            Err(error) => why = format!("UFFDIO_REGISTER of a page of process {pid}: {error}"),
        }
    }
    Err(format!("the userfaultfd that was handed over is not one for the memory of process {pid}: {why}"))
}

/// Whether `page` of the target is watched exactly while `uffd` watches it.
fn try_on(uffd: &Uffd, target: &Target, page: PageRange) -> io::Result<bool> {
    for _ in 0..2 {
        uffd.register(page)?;
        let while_registered = pagemap::is_watched(target.pagemap(), page);
        uffd.unregister(page)?;
        if !while_registered || pagemap::is_watched(target.pagemap(), page) {
            return Ok(false);
        }
    }
    Ok(true)
}
