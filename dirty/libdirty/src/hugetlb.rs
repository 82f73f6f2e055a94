// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which mappings are made of huge pages set aside (hugetlb): they look like those of a file on a device of
//! their own. The kernel has one such device for each size, and one for each hugetlbfs that is mounted.

use std::ffi::c_uint;
use std::fs::File;
use std::io::BufReader;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use procfs::FromBufRead;
use procfs::process::MountInfos;

use crate::maps::{Memory, Object};
use crate::target::Target;

/// The kernel's own devices of huge pages, which stay what they are.
#[derive(Debug)]
pub(crate) struct Sizes(Vec<(u32, u32)>);

impl Sizes {
    pub(crate) fn new() -> Self {
        Sizes(of_sizes().collect())
    }

    /// Whether `memory` is of huge pages.
    pub(crate) fn is_huge(&self, target: &Target, memory: Memory) -> bool {
        let Object::File { device, .. } = memory.object else { return false };
        // A device without a driver has the major number 0.
        device.0 == 0 && (self.0.contains(&device) || of_mounts(target).contains(&device))
    }
}

fn of_sizes() -> impl Iterator<Item = (u32, u32)> {
    let sizes = std::fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten();
    sizes.filter_map(|size| {
        let name = size.ok()?.file_name().into_string().ok()?;
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let flags =
            libc::MFD_CLOEXEC | libc::MFD_HUGETLB | (kib * 1024).ilog2() << libc::MFD_HUGE_SHIFT as c_uint;
        // SAFETY: a name and flags; returns a new descriptor or -1.
        let fd = unsafe { libc::memfd_create(c"size".as_ptr(), flags) };
        if fd < 0 {
            return None;
        }
        // SAFETY: the kernel has just returned this descriptor; nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the kernel fills the struct, unless it fails.
        (unsafe { libc::fstat(fd.as_raw_fd(), stat.as_mut_ptr()) } == 0).then_some(())?;
        // SAFETY: it has not failed.
        let device = unsafe { stat.assume_init() }.st_dev;
        Some((libc::major(device), libc::minor(device)))
    })
}

fn of_mounts(target: &Target) -> Vec<(u32, u32)> {
    let device = |text: &str| {
        let (major, minor) = text.split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    let Ok(file) = File::open(format!("/proc/{}/mountinfo", target.pid())) else { return Vec::new() };
    let Ok(mounts) = MountInfos::from_buf_read(BufReader::new(file)) else { return Vec::new() };
    let huge = mounts.into_iter().filter(|mount| mount.fs_type == "hugetlbfs");
    huge.filter_map(|mount| device(&mount.majmin)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_known_from_other_files() {
        let (target, sizes) = (Target::own().unwrap(), Sizes::new());
        let memory = |device| Memory { object: Object::File { device, inode: 1, bias: 0 }, shared: true };
        for device in of_sizes() {
            assert!(sizes.is_huge(&target, memory(device)));
        }
        assert!(!sizes.is_huge(&target, memory((8, 1))));
        assert!(!sizes.is_huge(&target, Memory { object: Object::Anonymous, shared: false }));
    }
}
