// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether this kernel accepts only signed modules, and whether DKMS has a key to sign with.
//!
//! What cannot be known from here is not guessed: whether a key is enrolled (mokutil says so), and whether the
//! hypervisor verifies live patches.

use std::path::Path;

use serde::Serialize;

const ENFORCE: &str = "sys/module/module/parameters/sig_enforce";
const LOCKDOWN: &str = "sys/kernel/security/lockdown";
/// Of the firmware: four bytes of attributes, then 1 if it is on.
const SECURE_BOOT: &str = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
const KEYS: [&str; 2] = ["var/lib/dkms/mok.pub", "var/lib/shim-signed/mok/MOK.der"];

/// What was found.
#[derive(Debug, Serialize, PartialEq, Eq)]
pub struct Signing {
    /// Whether unsigned modules are refused.
    pub needed: bool,
    /// The setting that decides.
    pub because: String,
    /// None: no UEFI, or its variables cannot be read, as in a dom0.
    pub secure_boot: Option<bool>,
    /// DKMS's public key, if it has one.
    pub key: Option<String>,
}

impl Signing {
    /// Of the host below this root.
    pub fn look(root: &Path) -> Self {
        let text =
            |file: &str| std::fs::read_to_string(root.join(file)).ok().map(|text| text.trim().to_owned());
        let lockdown = text(LOCKDOWN);
        let locked = lockdown.as_deref().and_then(|modes| modes.split('[').nth(1)?.split(']').next());
        let (needed, because) = if text(ENFORCE).as_deref() == Some("Y") {
            (true, "module.sig_enforce is on".to_owned())
        } else if let Some(mode) = locked.filter(|mode| *mode != "none") {
            (true, format!("the kernel is locked down: {mode}"))
        } else {
            (false, "neither module.sig_enforce nor lockdown is on".to_owned())
        };
        let secure_boot =
            std::fs::read(root.join(SECURE_BOOT)).ok().and_then(|bytes| bytes.get(4).map(|on| *on == 1));
        let key = KEYS.iter().find(|file| root.join(file).exists()).map(|file| format!("/{file}"));
        Signing { needed, because, secure_boot, key }
    }

    /// For a person; what to do is in docs/packaging.md.
    pub fn sentence(&self) -> String {
        let must = if self.needed { "must be signed" } else { "need no signature" };
        let secure_boot = match self.secure_boot {
            Some(true) => "Secure Boot is on",
            Some(false) => "Secure Boot is off",
            None => "Secure Boot cannot be seen from here",
        };
        let key = match (&self.key, self.needed) {
            (Some(key), _) => format!("; mokutil --test-key {key} says whether DKMS's key is enrolled"),
            (None, true) => "; DKMS has no key yet: dkms generate_mok, then mokutil --import".to_owned(),
            (None, false) => String::new(),
        };
        format!("modules {must}: {}; {secure_boot}{key}", self.because)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(files: &[(&str, &[u8])]) -> (tempfile::TempDir, Signing) {
        let root = tempfile::tempdir().unwrap();
        for (file, contents) in files {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, contents).unwrap();
        }
        let found = Signing::look(root.path());
        (root, found)
    }

    #[test]
    fn what_decides_is_named() {
        let off: [(&str, &[u8]); 2] = [(ENFORCE, b"N\n"), (LOCKDOWN, b"[none] integrity confidentiality\n")];
        let (_root, found) = host(&off);
        assert!(!found.needed && found.secure_boot.is_none());
        assert!(
            found.sentence().contains("need no signature") && found.sentence().contains("cannot be seen")
        );
        let (_root, found) = host(&[(LOCKDOWN, b"none [integrity] confidentiality\n")]);
        assert!(found.needed && found.because.contains("integrity"));
        assert!(found.sentence().contains("dkms generate_mok"), "{}", found.sentence());
        let (_root, found) = host(&[(ENFORCE, b"Y\n"), (KEYS[0], b"")]);
        assert!(found.needed && found.sentence().contains("mokutil --test-key /var/lib/dkms/mok.pub"));
    }

    #[test]
    fn secure_boot_is_the_firmwares_word() {
        for (bytes, expected) in [
            (&[6u8, 0, 0, 0, 1][..], Some(true)),
            (&[6, 0, 0, 0, 0], Some(false)),
            (&[6, 0, 0, 0], None),
            (&[], None),
        ] {
            let (_root, found) = host(&[(SECURE_BOOT, bytes)]);
            assert_eq!(found.secure_boot, expected, "{bytes:?}");
        }
    }
}
