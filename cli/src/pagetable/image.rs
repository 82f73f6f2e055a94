// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads from a payload or a module for which hypervisor or kernel it was built.
//!
//! The files are read with an ELF library and are not trusted: any bytes give a result or an error with a reason.

use anyhow::{Context, Result, ensure};
use object::elf::{FileHeader64, NT_GNU_BUILD_ID};
use object::read::elf::{ElfFile64, NoteIterator};
use object::{LittleEndian, Object, ObjectSection};

const LEFT_OUT: &str = ".trapless.left_out";

type Header = FileHeader64<LittleEndian>;

/// The build-id of a linked image.
#[derive(Clone, PartialEq, Eq)]
pub struct BuildId(Vec<u8>);

/// The fields of a module that the kernel checks when it loads it.
#[derive(Debug, PartialEq, Eq)]
pub struct Module {
    pub name: String,
    /// Release of the kernel that it was built for.
    pub release: String,
}

impl BuildId {
    /// Whether the kernel's file for the running hypervisor's build id can mean this one.
    ///
    /// Linux prints the raw bytes as a string: it ends at a byte that is zero, and what lay behind the bytes in
    /// memory may follow. So this can be wrong for an id with a zero byte: Xen itself has the last word.
    pub fn may_be(&self, running: &[u8]) -> bool {
        if running.len() >= self.0.len() {
            running.starts_with(&self.0)
        } else {
            self.0.split(|byte| *byte == 0).next() == Some(running)
        }
    }
}

impl std::fmt::Display for BuildId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl std::fmt::Debug for BuildId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Bytes as they are usually written.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The build of Xen that a payload is for.
///
/// # Errors
/// When the file is not a payload.
pub fn payload_is_for(bytes: &[u8]) -> Result<BuildId> {
    let notes = section(bytes, ".livepatch.depends")?;
    let mut notes = NoteIterator::<Header>::new(LittleEndian, 4, notes).context("its notes are damaged")?;
    while let Some(note) = notes.next().context("its notes are damaged")? {
        if note.name() == b"GNU" && note.n_type(LittleEndian) == NT_GNU_BUILD_ID {
            let id = note.desc();
            ensure!((8..=64).contains(&id.len()), "its build id has {} bytes", id.len());
            return Ok(BuildId(id.to_vec()));
        }
    }
    anyhow::bail!("it does not say which build of Xen it is for")
}

/// The parts that a payload was built without, and why: those that its checker did not prove for its build of Xen.
///
/// # Errors
/// When the file is no payload. One that does not say so is without none.
pub fn left_out(bytes: &[u8]) -> Result<Vec<(String, String)>> {
    let file = ElfFile64::<LittleEndian>::parse(bytes).context("it is no 64-bit ELF file")?;
    let Some(section) = file.section_by_name(LEFT_OUT) else { return Ok(Vec::new()) };
    let text = section.data().with_context(|| format!("its section {LEFT_OUT} is damaged"))?;
    let text = String::from_utf8_lossy(text);
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    Ok(lines.map(|(part, why)| (crate::output::printable(part), crate::output::printable(why))).collect())
}

/// Read a module's name and kernel.
///
/// # Errors
/// When the file is not a module.
pub fn module(bytes: &[u8]) -> Result<Module> {
    let info = section(bytes, ".modinfo")?;
    let value = |key: &str| {
        let mut entries = info.split(|byte| *byte == 0).filter_map(|entry| std::str::from_utf8(entry).ok());
        entries.find_map(|entry| entry.strip_prefix(key)?.strip_prefix('=')).map(str::to_owned)
    };
    let magic = value("vermagic").context("it does not say which kernel it is for")?;
    let release = magic.split(' ').next().unwrap_or_default().to_owned();
    Ok(Module { name: value("name").context("it has no name")?, release })
}

fn section<'a>(bytes: &'a [u8], name: &str) -> Result<&'a [u8]> {
    let file = ElfFile64::<LittleEndian>::parse(bytes).context("it is not a 64-bit ELF file")?;
    let section = file.section_by_name(name).with_context(|| format!("it has no section {name}"))?;
    section.data().with_context(|| format!("its section {name} is damaged"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fake::{BUILD_ID, module_file, payload_file};
    use super::*;

    #[test]
    fn reads_what_is_there() {
        assert_eq!(payload_is_for(&payload_file(&BUILD_ID)).unwrap().to_string(), hex(&BUILD_ID));
        let read = module(&module_file("trapless_pvmmu", "6.1.0-56-amd64")).unwrap();
        assert_eq!((read.name.as_str(), read.release.as_str()), ("trapless_pvmmu", "6.1.0-56-amd64"));
    }

    #[test]
    fn refuses_what_is_neither() {
        let says = |error: anyhow::Error| format!("{error:#}");
        assert!(says(payload_is_for(b"").unwrap_err()).contains("not a 64-bit ELF file"));
        assert!(
            says(payload_is_for(&module_file("x", "y")).unwrap_err())
                .contains("no section .livepatch.depends")
        );
        assert!(says(module(&payload_file(&BUILD_ID)).unwrap_err()).contains("no section .modinfo"));
        assert!(says(payload_is_for(&payload_file(b"")).unwrap_err()).contains("0 bytes"));
    }

    #[test]
    fn the_kernels_file_is_a_string() {
        let id = BuildId(vec![1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(id.may_be(&[1, 2, 3, 4, 5, 6, 7, 8]));
        assert!(id.may_be(&[1, 2, 3, 4, 5, 6, 7, 8, 99]), "what lay behind it in memory");
        assert!(!id.may_be(&[1, 2, 3, 4]));
        assert!(!id.may_be(&[1, 2, 3, 4, 5, 6, 7, 9]));
        assert!(!id.may_be(b""));
        let holed = BuildId(vec![1, 2, 0, 4, 5, 6, 7, 8]);
        assert!(holed.may_be(&[1, 2]));
        assert!(!holed.may_be(&[1]));
    }

    proptest! {
        #[test]
        fn takes_any_bytes(bytes: Vec<u8>) {
            prop_assert!(payload_is_for(&bytes).is_err() && module(&bytes).is_err());
        }

        #[test]
        fn takes_any_damage(at: prop::sample::Index, byte: u8, cut: prop::sample::Index) {
            let damage = |mut bytes: Vec<u8>| {
                let length = bytes.len();
                bytes[at.index(length)] = byte;
                bytes.truncate(cut.index(length + 1));
                bytes
            };
            let _ = payload_is_for(&damage(payload_file(&BUILD_ID)));
            let _ = module(&damage(module_file("trapless_pvmmu", "6.1.0-56-amd64")));
        }

        #[test]
        fn compares_any_ids(id: Vec<u8>, running: Vec<u8>) {
            let id = BuildId(id);
            if id.may_be(&running) && !id.0.contains(&0) {
                prop_assert!(running.starts_with(&id.0));
            }
        }
    }
}
