// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A layout of traced blocks for KVM to keep, instead of splitting blocks while the guest runs.
//!
//! It is written after the first vCPU is created, when KVM creates the file, and before it runs: KVM refuses a
//! layout once the guest's driver has enabled translation.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Write the layout in a file to the VM that KVM shows in `directory`.
///
/// # Errors
/// The file cannot be read, the VM is not to be translated, or KVM refuses the layout.
pub fn give(directory: &Path, file: &Path) -> Result<()> {
    let text = fs::read(file).with_context(|| format!("cannot read the layout {}", file.display()))?;
    let into = directory.join("bt_layout");
    let mut to = OpenOptions::new()
        .write(true)
        .open(&into)
        .with_context(|| format!("no {}; is the parameter bt_mode of kvm 0?", into.display()))?;
    // In one write: KVM accepts only a whole layout.
    let taken = to
        .write(&text)
        .with_context(|| format!("KVM refuses the layout {}, and its log says why", file.display()))?;
    ensure!(
        taken == text.len(),
        "KVM accepted {taken} of {} bytes of the layout {}",
        text.len(),
        file.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_it_is_given() {
        let root = tempfile::tempdir().unwrap();
        let (file, into) = (root.path().join("file"), root.path().join("bt_layout"));
        fs::write(&file, "c28 16 traced\n").unwrap();
        fs::write(&into, "").unwrap();
        give(root.path(), &file).unwrap();
        assert_eq!(fs::read_to_string(into).unwrap(), "c28 16 traced\n");
    }

    #[test]
    fn what_is_missing_is_named() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        let error = || format!("{:#}", give(root.path(), &file).unwrap_err());
        assert!(error().contains("cannot read the layout"), "{}", error());
        fs::write(&file, "").unwrap();
        assert!(error().contains("bt_mode of kvm"), "{}", error());
    }
}
