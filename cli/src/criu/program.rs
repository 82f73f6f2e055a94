// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The two files that are needed: criu, and the library that is preloaded into it.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The program with this name or path, as `execvp(3)` would find it.
pub(super) fn find(program: &Path) -> Result<PathBuf> {
    let is_program =
        |path: &PathBuf| path.metadata().is_ok_and(|file| file.is_file() && file.mode() & 0o111 != 0);
    if program.components().count() > 1 || program.is_absolute() {
        let path = program.to_owned();
        if is_program(&path) {
            return Ok(path);
        }
        bail!("{} is no program", program.display());
    }
    let folders = std::env::var_os("PATH").unwrap_or("/bin:/usr/bin".into());
    // Where Debian has criu, which is not in the PATH of users.
    let folders =
        std::env::split_paths(&folders).chain([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")]);
    // An empty one is the current folder, which exec must not look for in the PATH again.
    let here = |folder: PathBuf| if folder.as_os_str().is_empty() { ".".into() } else { folder };
    let Some(found) = folders.map(|folder| here(folder).join(program)).find(is_program) else {
        bail!(
            "{} is not installed (in Debian: apt install criu; elsewhere: name it by --program)",
            program.display()
        );
    };
    Ok(found)
}

/// A file that somebody has named, by its whole path, for criu may be given another folder.
pub(super) fn existing(path: &Path) -> Result<PathBuf> {
    path.canonicalize().with_context(|| format!("there is no {}", path.display()))
}

/// The library, where the command itself was installed or built.
pub(super) fn library() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find out where trapless is installed")?;
    let folder = own.parent().unwrap_or(Path::new("/"));
    let lib = folder.join("../lib");
    let mut places = vec![folder.join("libdirty_softdirty.so"), lib.join("libdirty-softdirty.so")];
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    places.push(lib.join(triplet).join("libdirty-softdirty.so"));
    places.push(folder.join("../lib64/libdirty-softdirty.so"));
    if let Some(found) = places.iter().find_map(|place| place.canonicalize().ok()) {
        return Ok(found);
    }
    let places: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
    bail!(
        "there is no libdirty-softdirty.so: neither {}; it is in the package libdirty-tools, or name it by --preload",
        places.join(" nor ")
    )
}

/// A program that gets privileges when it is executed takes no library from its caller: it would run as if alone.
pub(super) fn check_preloadable(program: &Path) -> Result<()> {
    let file = program.metadata().with_context(|| format!("cannot look at {}", program.display()))?;
    let path = CString::new(program.as_os_str().as_bytes())?;
    // SAFETY: two strings that end in NUL; without a buffer the call only says whether the attribute is there.
    let has_capabilities = unsafe {
        libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0
    };
    // SAFETY: takes nothing.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root && (has_capabilities || file.mode() & 0o6000 != 0) {
        bail!(
            "{} gets privileges when you execute it, so the loader preloads nothing into it; run this as root, or a copy \
             without them",
            program.display()
        );
    }
    Ok(())
}
