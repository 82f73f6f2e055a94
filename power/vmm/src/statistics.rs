// SPDX-License-Identifier: Apache-2.0 OR MIT
//! KVM's statistics of one guest. They disappear from debugfs with the guest, so the VMM saves them.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::process;

use anyhow::{Context, Result};

const KVM: &str = "/sys/kernel/debug/kvm";
/// Levels of directories: the VM's statistics, and those of its vCPUs below.
const DEPTH: u32 = 1;

/// Source and destination of the statistics, both opened before the guest runs.
pub struct Statistics {
    directory: PathBuf,
    file: File,
}

impl Statistics {
    /// For the VM with this descriptor, to be written to a file.
    ///
    /// # Errors
    /// There are none, or the file cannot be written.
    pub fn prepare(vm: RawFd, file: &Path) -> Result<Self> {
        let directory = directory(vm);
        let there = fs::metadata(&directory);
        there.with_context(|| format!("no statistics in {}; is debugfs mounted?", directory.display()))?;
        let file = File::create(file).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(Self { directory, file })
    }

    /// Write `path/below/the/directory:line` for each line of each file, in the order of their names.
    ///
    /// # Errors
    /// They cannot be read or written.
    pub fn keep(mut self) -> Result<()> {
        let mut text = String::new();
        collect(&self.directory, "", DEPTH, &mut text).context("cannot read the statistics")?;
        self.file.write_all(text.as_bytes()).context("cannot write the statistics")
    }
}

/// Where KVM shows the VM with this descriptor.
pub fn directory(vm: RawFd) -> PathBuf {
    PathBuf::from(format!("{KVM}/{}-{vm}", process::id()))
}

fn collect(directory: &Path, prefix: &str, depth: u32, text: &mut String) -> io::Result<()> {
    let mut entries = fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_file() {
            // Some files are write-only.
            for line in fs::read_to_string(entry.path()).unwrap_or_default().lines() {
                writeln!(text, "{name}:{line}").expect("a String takes all");
            }
        } else if depth > 0 {
            collect(&entry.path(), &format!("{name}/"), depth - 1, text)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_says_whose_it_is() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, content: &str| fs::write(root.path().join(path), content).unwrap();
        fs::create_dir_all(root.path().join("vcpu0/too_deep")).unwrap();
        put("exits", "12\n");
        put("vcpu0/timing", "type count\nMMIO 3\n");
        put("vcpu0/too_deep/x", "1\n");
        put("empty", "");
        let mut text = String::new();
        collect(root.path(), "", DEPTH, &mut text).unwrap();
        assert_eq!(text, "exits:12\nvcpu0/timing:type count\nvcpu0/timing:MMIO 3\n");
    }

    #[test]
    fn no_vm_is_an_error() {
        let error = format!("{:#}", Statistics::prepare(-1, Path::new("unused")).err().unwrap());
        assert!(error.contains("is debugfs mounted?"), "{error}");
    }
}
