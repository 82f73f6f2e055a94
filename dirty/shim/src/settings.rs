// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the environment says: `LIBDIRTY_SOFTDIRTY`, words separated by commas, and `TRAPLESS_DIRTY_HOLD`, a path.

use std::ffi::{CStr, OsString};
use std::fmt::Display;
use std::os::unix::ffi::OsStringExt;
use std::sync::OnceLock;

use libdirty::BackendKind;

use crate::real;

/// The words of `LIBDIRTY_SOFTDIRTY`, and the path.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    /// Answer although the kernel can.
    pub(crate) force: bool,
    /// Print on stderr what happens.
    verbose: bool,
    /// Touch nothing.
    pub(crate) off: bool,
    /// The back end of the kernel module that answers for the own process.
    pub(crate) module: Option<BackendKind>,
    /// The program's own memory is not tracked: it always reads dirty, and may be cleared.
    pub(crate) others: bool,
    /// The program stops other processes before it opens their pagemap, until it has closed it: one question to a holder
    /// answers for all that is read from it.
    pub(crate) stopped: bool,
    /// The socket of a holder, who answers for other processes.
    pub(crate) hold: Option<OsString>,
}

/// Read once, when the program first opens one of the files.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        // SAFETY: the name ends in NUL; the value is only read, before this function returns.
        let value = unsafe { libc::getenv(c"LIBDIRTY_SOFTDIRTY".as_ptr()) };
        let mut settings = Settings { hold: hold(), ..Settings::default() };
        if value.is_null() {
            return settings;
        }
        // SAFETY: `getenv` returned a string that ends in NUL.
        for word in unsafe { CStr::from_ptr(value) }.to_bytes().split(|byte| *byte == b',') {
            match word {
                b"force" => settings.force = true,
                b"verbose" => settings.verbose = true,
                b"off" => settings.off = true,
                b"dbit" => settings.module = Some(BackendKind::Dbit),
                b"spml" => settings.module = Some(BackendKind::Spml),
                b"epml" => settings.module = Some(BackendKind::Epml),
                b"others" => settings.others = true,
                b"stopped" => settings.stopped = true,
                _ => {}
            }
        }
        settings.module = settings.module.filter(|_| !settings.off);
        settings
    })
}

fn hold() -> Option<OsString> {
    // SAFETY: the name ends in NUL; the value is copied before this function returns.
    let value = unsafe { libc::getenv(c"TRAPLESS_DIRTY_HOLD".as_ptr()) };
    // SAFETY: `getenv` returned a string that ends in NUL.
    let value = (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_bytes().to_vec());
    value.filter(|path| !path.is_empty()).map(OsString::from_vec)
}

/// With "verbose", say it on stderr. The caller holds the lock: this may allocate.
pub(crate) fn say(what: impl Display) {
    if settings().verbose {
        announce(what);
    }
}

/// Say it on stderr in any case. The caller holds the lock.
pub(crate) fn announce(what: impl Display) {
    let line = format!("libdirty-softdirty: {what}\n");
    // SAFETY: the bytes of the line. Where stderr is closed nothing can be said.
    unsafe { real::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}
