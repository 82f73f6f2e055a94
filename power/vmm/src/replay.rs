// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The layout of traced blocks that KVM is to keep, instead of splitting them as it goes.
//!
//! It is given after the first vCPU is made and before that runs: KVM has the file from then on, and takes none
//! once the guest's driver has called.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Give the VM that KVM shows in `directory` the layout in a file.
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
    // KVM takes it as a whole.
    let taken = to
        .write(&text)
        .with_context(|| format!("KVM refuses the layout {}, and its log says why", file.display()))?;
    ensure!(taken == text.len(), "KVM took {taken} of {} bytes of the layout {}", text.len(), file.display());
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
