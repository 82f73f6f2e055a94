// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether this kernel accepts only signed modules, and whether DKMS has a key to sign with that is enrolled.
//! (Live patches: `pagetable::signature`.)
//!
//! What cannot be known from here is not guessed: the list of enrolled keys is not there in every dom0.

use std::path::Path;

use serde::Serialize;

const ENFORCE: &str = "sys/module/module/parameters/sig_enforce";
const LOCKDOWN: &str = "sys/kernel/security/lockdown";
/// Of the firmware: four bytes of attributes, then 1 if it is on.
const SECURE_BOOT: &str = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
/// Where the kernel, and its file system of the firmware's variables, show shim's list of enrolled keys (MOKs); a long
/// list is in several files.
const ENROLLED: [&str; 2] = ["sys/firmware/efi/mok-variables", "sys/firmware/efi/efivars"];
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
    /// Whether shim knows it; None if its list cannot be read.
    pub enrolled: Option<bool>,
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
        let enrolled = key.as_deref().and_then(|key| is_enrolled(root, &key[1..]));
        Signing { needed, because, secure_boot, key, enrolled }
    }

    /// For a person; what to do is in docs/packaging.md.
    pub fn sentence(&self) -> String {
        let must = if self.needed { "must be signed" } else { "need no signature" };
        let secure_boot = match self.secure_boot {
            Some(true) => "Secure Boot is on",
            Some(false) => "Secure Boot is off",
            None => "Secure Boot cannot be seen from here",
        };
        let key = match (&self.key, self.enrolled, self.needed) {
            (Some(_), Some(true), _) => "; DKMS's key is enrolled".to_owned(),
            (Some(key), Some(false), _) => format!("; DKMS's key is not enrolled: mokutil --import {key}"),
            (Some(key), None, _) => format!("; mokutil --test-key {key} says whether DKMS's key is enrolled"),
            (None, _, true) => "; DKMS has no key yet: dkms generate_mok, then mokutil --import".to_owned(),
            (None, _, false) => String::new(),
        };
        let steps = if self.needed { " (docs/packaging.md, Signing)" } else { "" };
        format!("modules {must}: {}; {secure_boot}{key}{steps}", self.because)
    }
}

/// Whether the certificate, as it is, is in shim's list.
fn is_enrolled(root: &Path, certificate: &str) -> Option<bool> {
    let certificate = std::fs::read(root.join(certificate)).ok().filter(|bytes| !bytes.is_empty())?;
    let folders = ENROLLED.iter().filter_map(|folder| std::fs::read_dir(root.join(folder)).ok());
    let files = folders
        .flatten()
        .flatten()
        .filter(|file| file.file_name().to_string_lossy().starts_with("MokListRT"));
    let lists: Vec<_> = files.filter_map(|file| std::fs::read(file.path()).ok()).collect();
    let has = |list: &Vec<u8>| list.windows(certificate.len()).any(|part| part == certificate);
    if lists.is_empty() { None } else { Some(lists.iter().any(has)) }
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
    fn a_key_is_looked_for_among_those_of_shim() {
        const LIST: &str = "sys/firmware/efi/efivars/MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23";
        const MORE: &str = "sys/firmware/efi/mok-variables/MokListRT1";
        let key: (&str, &[u8]) = (KEYS[0], b"DER of the key");
        for (lists, expected, says) in [
            (&[][..], None, "mokutil --test-key /var/lib/dkms/mok.pub"),
            (
                &[(LIST, &b"...DER of another key..."[..])],
                Some(false),
                "mokutil --import /var/lib/dkms/mok.pub",
            ),
            (&[(LIST, b"...DER of the key...")], Some(true), "DKMS's key is enrolled"),
            (&[(LIST, b""), (MORE, b"...DER of the key")], Some(true), "DKMS's key is enrolled"),
        ] {
            let (_root, found) = host(&[&[key, (ENFORCE, b"Y\n")], lists].concat());
            assert_eq!(found.enrolled, expected, "{lists:?}");
            let sentence = found.sentence();
            assert!(sentence.contains(says) && sentence.contains("packaging.md"), "{sentence}");
        }
        // Without a key there is nothing to look for.
        let (_root, found) = host(&[(LIST, b"list")]);
        assert!(found.key.is_none() && found.enrolled.is_none());
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
