// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The `status` file of a process or of a thread, which begins with its name: any bytes, and not whole characters, for
//! the kernel cuts it.

use std::fs;
use std::path::Path;

use procfs::FromBufRead;
use procfs::process::Status;

/// Read it.
///
/// # Errors
/// Why that is not possible, with the file's name.
pub(crate) fn read(path: impl AsRef<Path>) -> Result<Status, String> {
    let path = path.as_ref();
    let text = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let text = String::from_utf8_lossy(&text);
    Status::from_buf_read(text.as_bytes()).map_err(|error| format!("{}: {error}", path.display()))
}
