// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the environment says: `LIBDIRTY_SOFTDIRTY`, words separated by commas.

use std::ffi::CStr;
use std::fmt::Display;
use std::sync::OnceLock;

use crate::real;

/// The words of `LIBDIRTY_SOFTDIRTY`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Settings {
    /// Answer although the kernel can.
    pub(crate) force: bool,
    /// Print on stderr what happens.
    verbose: bool,
    /// Touch nothing.
    pub(crate) off: bool,
}

/// Read once, when the program first opens one of the files.
pub(crate) fn settings() -> Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    *SETTINGS.get_or_init(|| {
        // SAFETY: the name ends in NUL; the value is only read, before this function returns.
        let value = unsafe { libc::getenv(c"LIBDIRTY_SOFTDIRTY".as_ptr()) };
        let mut settings = Settings::default();
        if value.is_null() {
            return settings;
        }
        // SAFETY: `getenv` returned a string that ends in NUL.
        for word in unsafe { CStr::from_ptr(value) }.to_bytes().split(|byte| *byte == b',') {
            match word {
                b"force" => settings.force = true,
                b"verbose" => settings.verbose = true,
                b"off" => settings.off = true,
                _ => {}
            }
        }
        settings
    })
}

/// With "verbose", say it on stderr. The caller holds the lock: this may allocate.
pub(crate) fn say(what: impl Display) {
    if settings().verbose {
        let line = format!("libdirty-softdirty: {what}\n");
        // SAFETY: the bytes of the line. Where stderr is closed nothing can be said.
        unsafe { real::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
    }
}
