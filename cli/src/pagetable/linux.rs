// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The running kernel: modules by system call, so that a refusal keeps its error number, and the kernel's log,
//! which alone has the reason.

use std::cell::Cell;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use super::host::{Kernel, NotInserted};
use super::hypercall::{self, Eviction, Payload, Unasked};
use super::module_file;
use crate::stop::{Stop, Woken};

/// The kernel under us.
pub struct Linux {
    /// For commands that a signal must not interrupt.
    stop: Option<Stop>,
    /// Whether the next request to end is ignored, once: things are being undone.
    ignores_one: Cell<bool>,
    was_asked: Cell<bool>,
}

impl Linux {
    pub fn new() -> Self {
        Linux::asked_by(None)
    }

    /// From here on SIGINT, SIGTERM and SIGHUP only request the end.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn that_is_asked_to_stop() -> io::Result<Self> {
        Ok(Linux::asked_by(Some(Stop::new()?)))
    }

    fn asked_by(stop: Option<Stop>) -> Self {
        Linux { stop, ignores_one: Cell::new(false), was_asked: Cell::new(false) }
    }

    /// Wait for a request until then.
    fn is_asked(&self, until: Instant) -> bool {
        let Some(stop) = &self.stop else {
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            return false;
        };
        // If the wait itself fails, ending is the safe choice.
        let asked = stop.wait(until, &[]).map_or(true, |woken| woken == Woken::Stop);
        self.was_asked.set(self.was_asked.get() || asked);
        asked
    }

    /// Answer the requests that have come, if there are any.
    fn take(&self) -> bool {
        self.stop.as_ref().is_some_and(Stop::take)
    }
}

/// A plain file goes to the kernel as it is, so that security modules can judge where it is from.
fn insert(file: &Path, parameters: &str) -> io::Result<()> {
    let parameters = CString::new(parameters)?;
    let plain = File::open(file)?;
    let mut start = [0; 8];
    let length = plain.read_at(&mut start, 0)?;
    if module_file::is_packed(&start[..length]) {
        rustix::system::init_module(&module_file::read(file)?, &parameters)?;
    } else {
        rustix::system::finit_module(&plain, &parameters, 0)?;
    }
    Ok(())
}

impl Kernel for Linux {
    fn is_root(&self) -> bool {
        rustix::process::geteuid().is_root()
    }

    fn release(&self) -> String {
        rustix::system::uname().release().to_string_lossy().into_owned()
    }

    fn insert(&self, name: &str, file: &Path, parameters: &str) -> Result<(), NotInserted> {
        let mut log = Log::from_now(Path::new(LOG));
        insert(file, parameters).map_err(|error| NotInserted {
            error,
            said: log.as_mut().map(|log| log.of(name)).unwrap_or_default(),
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::system::delete_module(&CString::new(name)?, libc::O_NONBLOCK)?)
    }

    fn xen_command_line(&self) -> Result<String, Unasked> {
        hypercall::command_line()
    }

    fn payload(&self) -> Result<Option<Payload>, Unasked> {
        hypercall::payload()
    }

    fn evict(&self) -> Result<Eviction, Unasked> {
        hypercall::evict()
    }

    fn admit(&self) -> Result<(), Unasked> {
        hypercall::admit()
    }

    fn stopped(&self, within: Duration) -> bool {
        let until = Instant::now() + within;
        if !self.is_asked(until) {
            return false;
        }
        // The one that is ignored does not shorten the wait, either.
        !(self.ignores_one.take() && self.take()) || self.is_asked(until)
    }

    fn begin_clean_up(&self) {
        let was_asked = self.take();
        self.was_asked.set(self.was_asked.get() || was_asked);
        self.ignores_one.set(!was_asked);
    }

    fn was_asked_to_stop(&self) -> bool {
        self.was_asked.get() || self.is_asked(Instant::now())
    }
}

const LOG: &str = "/dev/kmsg";

/// The kernel's log from a moment on.
pub struct Log {
    file: File,
}

impl Log {
    /// Nothing if the log cannot be read: errors are then reported without it.
    pub fn from_now(path: &Path) -> Option<Self> {
        let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
        file.seek(SeekFrom::End(0)).ok()?;
        Some(Log { file })
    }

    /// The messages about this module since then, or since the last call.
    pub fn of(&mut self, module: &str) -> Vec<String> {
        self.records(|record| about(module, record))
    }

    /// All messages since then, or since the last call.
    pub fn lines(&mut self) -> Vec<String> {
        self.records(text)
    }

    fn records(&mut self, of: impl Fn(&[u8]) -> Option<String>) -> Vec<String> {
        let mut said = Vec::new();
        let mut record = [0; 8192];
        // A read returns one record; after EPIPE (records were overwritten) the next read returns the next.
        loop {
            match self.file.read(&mut record) {
                Ok(0) => return said,
                Ok(length) => said.extend(of(&record[..length])),
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                Err(_) => return said,
            }
        }
    }
}

/// The text of a record of /dev/kmsg, `6,339,5140900,-;text`, without the lines of properties that may follow.
fn text(record: &[u8]) -> Option<String> {
    let record = String::from_utf8_lossy(record);
    let (_, text) = record.split_once(';')?;
    text.lines().next().map(crate::output::printable)
}

/// The same, if it is a message of this module: `module: text`. The message that an out-of-tree module taints
/// the kernel comes each time, and is not a reason.
fn about(module: &str, record: &[u8]) -> Option<String> {
    let text = text(record)?;
    let said = text.strip_prefix(module)?.strip_prefix(": ")?;
    (!said.contains("tainting kernel") && !said.contains("taints kernel")).then(|| said.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_undoes_things_is_cut_short_by_another_signal_only() {
        let (stop, mut ask) = Stop::asked_by().unwrap();
        let linux = Linux::asked_by(Some(stop));
        let pause = Duration::from_millis(20);
        let mut signal = || std::io::Write::write_all(&mut ask, b"x").unwrap();
        assert!(!linux.stopped(pause) && !linux.was_asked_to_stop());
        signal();
        assert!(linux.stopped(pause) && linux.stopped(pause), "it stays");
        linux.begin_clean_up();
        let since = Instant::now();
        assert!(!linux.stopped(pause) && since.elapsed() >= pause, "it was answered");
        signal();
        assert!(linux.stopped(pause) && linux.stopped(pause));
        // The first may also come while things are undone: it asks for what is done.
        linux.begin_clean_up();
        linux.begin_clean_up();
        signal();
        let since = Instant::now();
        assert!(!linux.stopped(pause) && since.elapsed() >= pause, "the pause is not cut short, either");
        signal();
        assert!(linux.stopped(pause) && linux.was_asked_to_stop());
    }

    #[test]
    fn finds_what_a_module_said() {
        let record = b"3,412,9034,-;trapless_pvmmu: not a Xen PV guest\n SUBSYSTEM=x\n";
        assert_eq!(about("trapless_pvmmu", record).as_deref(), Some("not a Xen PV guest"));
        assert_eq!(about("trapless", record), None);
        assert_eq!(about("trapless_pvmmu", b"no record"), None);
        let taint = b"4,1,1,-;trapless_pvmmu: loading out-of-tree module taints kernel.\n";
        assert_eq!(about("trapless_pvmmu", taint), None);
    }

    proptest! {
        #[test]
        fn takes_any_record(bytes: Vec<u8>) {
            about("trapless_pvmmu", &bytes);
        }
    }
}
