// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `/dev/trapless_dirty`, the device of the kernel module `trapless_dirty`: one open file is one tracker of one
//! process. Use [`crate::Tracker`] instead, except to measure or to test the bare device.
//!
//! The module's answers are not trusted to stay within the room that it was given.

pub mod abi;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::descriptor::Descriptor;
use crate::extent::PageRange;

/// Why the module leaves a mechanism out, by the lines "mechanism: why" of [`abi::LEFT_OUT`]; "all" is every one.
fn left_out<'a>(listed: &'a str, mechanism: &str) -> Option<&'a str> {
    let mut lines = listed.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(name, _)| *name == "all" || *name == mechanism).map(|(_, why)| why)
}

/// An open file of the device.
#[derive(Debug)]
pub struct Device(Descriptor<File>);

impl Device {
    /// Open it, and see that the module has `mechanism` ([`abi::DBIT`], ...).
    ///
    /// # Errors
    /// Why it cannot be used, in words.
    pub fn open(mechanism: u32) -> Result<Self, String> {
        let path = abi::DEVICE;
        let file = File::options().read(true).write(true).open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => format!("no {path}: the module trapless_dirty is not loaded"),
            _ => format!("opening {path}: {error}"),
        })?;
        let file = Descriptor::new(file).map_err(|error| format!("fstat of {path}: {error}"))?;
        let device = Device(file);
        let mut info = abi::Info::default();
        device
            .ioctl(abi::GET_INFO, &mut info)
            .map_err(|error| format!("asking {path} what it is: {error}"))?;
        if info.abi != abi::ABI {
            return Err(format!(
                "the module behind {path} has interface {}, this library knows {}",
                info.abi,
                abi::ABI
            ));
        }
        if info.mechanisms & 1u32.checked_shl(mechanism).unwrap_or(0) == 0 {
            let (name, lacks) = match mechanism {
                abi::DBIT => ("dbit", "use of this processor's dirty bits (dbit)"),
                abi::SPML => ("spml", "hypervisor that forwards its log (spml)"),
                abi::EPML => ("epml", "processor that logs for its guest (epml)"),
                _ => ("", "such mechanism"),
            };
            let listed = std::fs::read_to_string(abi::LEFT_OUT).unwrap_or_default();
            return Err(match left_out(&listed, name) {
                Some(why) => format!(
                    "the module trapless_dirty is loaded, and leaves {name} out of this kernel: {why}"
                ),
                None => format!("the module trapless_dirty is loaded and finds no {lacks} here"),
            });
        }
        Ok(device)
    }

    /// Begin to track `pid`; once.
    ///
    /// # Errors
    /// Those of `ATTACH`.
    pub fn attach(&self, pid: i32, mechanism: u32) -> io::Result<()> {
        self.ioctl(abi::ATTACH, &mut abi::Attach { pid, mechanism })
    }

    /// Find writes to `range` from now on.
    ///
    /// # Errors
    /// Those of `WATCH`.
    pub fn watch(&self, range: PageRange) -> io::Result<()> {
        self.ioctl(abi::WATCH, &mut raw(range))
    }

    /// Forget `range`, watched or not.
    ///
    /// # Errors
    /// Those of `UNWATCH`.
    pub fn unwatch(&self, range: PageRange) -> io::Result<()> {
        self.ioctl(abi::UNWATCH, &mut raw(range))
    }

    /// Find what was written. Returns whether the log had run over: all that is watched counts as written then.
    ///
    /// # Errors
    /// Those of `COLLECT`.
    pub fn collect(&self) -> io::Result<bool> {
        let mut collect = abi::Collect::default();
        self.ioctl(abi::COLLECT, &mut collect)?;
        Ok(collect.flags & abi::OVERRUN != 0)
    }

    /// Take pages that collects have found, in order of addresses. If they do not fill the room, these were all.
    ///
    /// # Errors
    /// Those of `READ`, and that what it stored is not as it should be.
    pub fn read<'a>(&self, room: &'a mut [abi::Range]) -> io::Result<&'a [abi::Range]> {
        let capacity = u32::try_from(room.len()).unwrap_or(u32::MAX);
        let mut read = abi::Read { ranges: room.as_mut_ptr() as u64, capacity, count: 0 };
        self.ioctl(abi::READ, &mut read)?;
        room.get(..read.count as usize)
            .ok_or_else(|| io::Error::other("READ stored more than there is room for"))
    }

    /// What tracking has cost since [`Device::attach`].
    ///
    /// # Errors
    /// Those of `GET_STATS`.
    pub fn stats(&self) -> io::Result<abi::Stats> {
        let mut stats = abi::Stats::default();
        self.ioctl(abi::GET_STATS, &mut stats)?;
        Ok(stats)
    }

    fn ioctl<T>(&self, request: libc::Ioctl, argument: &mut T) -> io::Result<()> {
        loop {
            // SAFETY: every caller passes the struct that its request reads and writes; the one address in such a
            // struct is that of an array which the caller holds, with its length.
            let done = unsafe { libc::ioctl(self.0.as_raw_fd(), request, std::ptr::from_mut(argument)) };
            if done >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

fn raw(range: PageRange) -> abi::Range {
    abi::Range { start: range.start() as u64, end: range.end() as u64 }
}

#[cfg(test)]
mod tests {
    use super::left_out;

    #[test]
    fn what_is_left_out_is_read_by_name() {
        let listed = "dbit: a (01) is not known\nepml: b (02) is not known\nno line\n";
        assert_eq!(left_out(listed, "dbit"), Some("a (01) is not known"));
        assert_eq!(left_out(listed, "epml"), Some("b (02) is not known"));
        assert_eq!(left_out(listed, "spml"), None);
        assert_eq!(left_out("all: c (03) is not known\n", "spml"), Some("c (03) is not known"));
        assert_eq!(left_out("", "dbit"), None);
    }
}
