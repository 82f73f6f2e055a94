// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The host for this command: files below a root, and a kernel with operations.
//!
//! Every path of the system goes through [`Host::path`], and everything that is not a file through [`Kernel`]:
//! the tests put a tree of their own and a kernel of their own in place of both.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::hypercall::{Eviction, Payload, Unasked};

/// The host on which the tool runs.
pub struct Host {
    root: PathBuf,
    pub kernel: Box<dyn Kernel>,
}

/// Operations of the kernel and its hypervisor.
pub trait Kernel {
    fn is_root(&self) -> bool;
    /// Release of the running kernel, as `uname -r` prints it.
    fn release(&self) -> String;
    /// Load the module `name`, which is in this file.
    fn insert(&self, name: &str, file: &Path, parameters: &str) -> Result<(), NotInserted>;
    /// Remove a module; never waits for its users.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// The command line that Xen was booted with.
    fn xen_command_line(&self) -> Result<String, Unasked>;
    /// The payload's state; nothing if Xen has none that answers this domain.
    fn payload(&self) -> Result<Option<Payload>, Unasked>;
    /// Take some semi-writable pages of any domain back, and admit no new ones.
    fn evict(&self) -> Result<Eviction, Unasked>;
    /// Admit them again.
    fn admit(&self) -> Result<(), Unasked>;
    /// Wait this long, or until a signal requests the end. Returns whether one did.
    fn stopped(&self, within: Duration) -> bool;
    /// What follows undoes things, which is what a signal requests: one that has come, or the first to come, does
    /// not cut it short. The next one does.
    fn begin_clean_up(&self);
    /// Whether a signal has ever requested the end.
    fn was_asked_to_stop(&self) -> bool;
}

/// Why a module was not loaded.
#[derive(Debug)]
pub struct NotInserted {
    pub error: io::Error,
    /// The lines of the kernel's log about it.
    pub said: Vec<String>,
}

impl Host {
    pub fn new(root: PathBuf, kernel: Box<dyn Kernel>) -> Self {
        Host { root, kernel }
    }

    /// An absolute path of the system.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// A small file's contents, trimmed; nothing if it cannot be read.
    pub fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let bytes = std::fs::read(self.path(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    pub fn has(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// Whether a module of this name is loaded.
    pub fn has_module(&self, name: &str) -> bool {
        self.has(Path::new("/sys/module").join(name))
    }
}
