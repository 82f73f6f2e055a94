// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A module's file: plain, as Debian 12 installs it, or packed by xz, as Debian 13 does.
//!
//! What is unpacked is bounded, in bytes and in memory: the file is not trusted before the kernel has judged it.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use lzma_rust2::XzReader;

/// The suffixes under which a module can be installed; at one place the first that exists counts.
pub const SUFFIXES: [&str; 2] = ["ko", "ko.xz"];

const XZ: &[u8] = b"\xfd7zXZ\0";
const GZIP: &[u8] = b"\x1f\x8b";
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";
/// Bytes of a module; the largest of Debian's have some 10 MiB.
const LARGEST: u64 = 64 << 20;
/// KiB that unpacking may take; xz needs 9 MiB for what `xz` writes unless told otherwise.
const MEMORY: u32 = 64 << 10;

/// Whether a file's contents have to be unpacked before the kernel gets them.
pub fn is_packed(bytes: &[u8]) -> bool {
    bytes.starts_with(XZ)
}

/// The module in a file, unpacked.
///
/// # Errors
/// When the file cannot be read, is damaged, larger than 64 MiB, or packed by anything but xz.
pub fn read(file: &Path) -> io::Result<Vec<u8>> {
    let bytes = limited(File::open(file)?)?;
    let refused = |by: &str| {
        let why = format!("it is packed by {by}, and only xz can be unpacked here: unpack it first");
        Err(io::Error::new(io::ErrorKind::Unsupported, why))
    };
    match &bytes {
        _ if is_packed(&bytes) => limited(XzReader::new_mem_limit(bytes.as_slice(), true, MEMORY)),
        _ if bytes.starts_with(GZIP) => refused("gzip"),
        _ if bytes.starts_with(ZSTD) => refused("zstd"),
        _ => Ok(bytes),
    }
}

fn limited(from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 64 MiB"));
    }
    Ok(bytes)
}

/// What `xz` makes of bytes.
#[cfg(test)]
pub fn packed_by_xz(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;

    let mut writer = lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(1)).unwrap();
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::packed_by_xz as packed;
    use super::*;

    fn read_back(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        read(file.path())
    }

    #[test]
    fn plain_and_packed_files_give_the_same() {
        let module = b"\x7fELF and more".repeat(1000);
        assert_eq!(read_back(&module).unwrap(), module);
        assert_eq!(read_back(&packed(&module)).unwrap(), module);
        assert!(is_packed(&packed(&module)) && !is_packed(&module));
    }

    #[test]
    fn what_cannot_be_unpacked_says_why() {
        let why = |bytes: &[u8]| read_back(bytes).unwrap_err().to_string();
        assert!(why(b"\x1f\x8b\x08").contains("packed by gzip"));
        assert!(why(b"\x28\xb5\x2f\xfd\x04").contains("packed by zstd"));
        assert!(why(&packed(&vec![0; 65 << 20])).contains("larger than 64 MiB"));
        let module = packed(&b"module ".repeat(1000));
        assert!(read_back(&module[..module.len() / 2]).is_err(), "a file that is cut off is no module");
    }

    proptest! {
        #[test]
        fn damage_is_an_error_or_the_module(at in 0..200_usize, to in any::<u8>()) {
            let module: Vec<u8> = (0..600_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
            let mut damaged = packed(&module);
            let at = at * (damaged.len() - 1) / 200;
            damaged[at] = to;
            if let Ok(read) = read_back(&damaged) {
                prop_assert!(read == module || read == damaged, "checksums are compared");
            }
        }
    }
}
