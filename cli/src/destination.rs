// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The destination of a command's output: the FILE of an option.
//!
//! Invariants:
//! - `-` is standard output.
//! - Anything but a regular file (a device, a pipe, a terminal) is opened and written, never replaced.
//! - A link stays a link: its target is written.
//! - A regular file is *replaced* atomically: every reader sees the whole old file or the whole new one.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The kind of a FILE.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Destination {
    /// Standard output.
    Output,
    /// Something to open as it is.
    Special(PathBuf),
    /// A regular file, or none yet; its own name, behind all links.
    File(PathBuf),
}

/// The permissions of a new file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readers {
    /// Those of the umask, or of the old file.
    Usual,
    /// Everybody.
    All,
}

/// Write `content`; a regular file is replaced atomically.
///
/// # Errors
/// When it cannot be written; a regular file is then unchanged.
pub fn replace(path: &Path, content: &[u8], readers: Readers) -> io::Result<()> {
    match find(path)? {
        Destination::Output => write_all(&mut io::stdout().lock(), content),
        Destination::Special(path) => write_all(&mut OpenOptions::new().write(true).open(path)?, content),
        Destination::File(path) => replace_file(&path, content, readers),
    }
}

/// Begin a file that grows; an existing one is refused, or truncated with `force`.
///
/// # Errors
/// `AlreadyExists`, or when it cannot be written.
pub fn create(path: &Path, force: bool) -> io::Result<Box<dyn Write>> {
    Ok(match find(path)? {
        Destination::Output => Box::new(io::stdout()),
        Destination::Special(path) => Box::new(OpenOptions::new().write(true).open(path)?),
        Destination::File(path) if force => Box::new(File::create(path)?),
        Destination::File(path) => Box::new(File::create_new(path)?),
    })
}

/// Whether [`create`] would refuse it without `force`.
pub fn has_content(path: &Path) -> bool {
    matches!(find(path), Ok(Destination::File(path)) if path.exists())
}

/// Its name in messages.
pub fn name(path: &Path) -> String {
    if path.as_os_str() == "-" { "standard output".into() } else { path.display().to_string() }
}

fn find(path: &Path) -> io::Result<Destination> {
    if path.as_os_str() == "-" {
        return Ok(Destination::Output);
    }
    let mut path = path.to_owned();
    for _ in 0..40 {
        if std::fs::metadata(&path).is_ok_and(|found| !found.is_file()) || is_descriptor(&path) {
            return Ok(Destination::Special(path));
        }
        if !std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink()) {
            return Ok(Destination::File(path));
        }
        let target = std::fs::read_link(&path)?;
        path = folder(&path).join(target);
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// Whether it is a link of procfs to an open file (`/dev/stdout`): the open file itself must be written, not
/// replaced by another one.
fn is_descriptor(path: &Path) -> bool {
    folder(path).canonicalize().is_ok_and(|folder| folder.starts_with("/proc"))
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn replace_file(path: &Path, content: &[u8], readers: Readers) -> io::Result<()> {
    let mode = match readers {
        Readers::All => Some(Permissions::from_mode(0o644)),
        Readers::Usual => std::fs::metadata(path).ok().map(|old| old.permissions()),
    };
    // A name that no collector of files picks up.
    let mut new = tempfile::Builder::new()
        .prefix(".trapless.")
        .suffix(".new")
        .permissions(Permissions::from_mode(0o666)) // less the umask
        .tempfile_in(folder(path))?;
    new.write_all(content)?;
    if let Some(mode) = mode {
        new.as_file().set_permissions(mode)?;
    }
    new.persist(path)?;
    Ok(())
}

fn write_all(out: &mut impl Write, content: &[u8]) -> io::Result<()> {
    out.write_all(content)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt, symlink};

    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    /// A named pipe: it needs no privilege, and replacing it does no harm.
    fn pipe(path: &Path) {
        let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: a path that ends in NUL.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    }

    #[test]
    fn a_pipe_stays_one_and_is_written() {
        let folder = folder();
        let (path, link) = (folder.path().join("pipe"), folder.path().join("link"));
        pipe(&path);
        symlink("pipe", &link).unwrap();
        for path in [&path, &link] {
            let reader = path.clone();
            let reader = std::thread::spawn(move || std::fs::read(reader).unwrap());
            replace(path, b"text", Readers::All).unwrap();
            assert_eq!(reader.join().unwrap(), b"text");
            let reader = path.clone();
            let reader = std::thread::spawn(move || std::fs::read(reader).unwrap());
            create(path, false).unwrap().write_all(b"more").unwrap();
            assert_eq!(reader.join().unwrap(), b"more");
        }
        assert!(std::fs::symlink_metadata(&path).unwrap().file_type().is_fifo());
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    /// A new device node, so that a failure does not damage the system's; only root can make one.
    #[test]
    fn a_device_stays_one() {
        let folder = folder();
        let path = folder.path().join("null");
        let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: a path that ends in NUL.
        if unsafe { libc::mknod(name.as_ptr(), libc::S_IFCHR | 0o666, libc::makedev(1, 3)) } != 0 {
            eprintln!("SKIPPED: only root makes devices");
            return;
        }
        // On a nodev file system it cannot be opened, but must still be a device.
        let _ = replace(&path, b"text", Readers::All);
        assert!(create(&path, true).is_ok() || path.exists());
        assert!(std::fs::symlink_metadata(&path).unwrap().file_type().is_char_device());
    }

    #[test]
    fn what_a_link_leads_to_is_replaced() {
        let folder = folder();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir(path("far")).unwrap();
        std::fs::write(path("far/file"), "old").unwrap();
        std::fs::set_permissions(path("far/file"), Permissions::from_mode(0o640)).unwrap();
        symlink("far/file", path("first")).unwrap();
        symlink(path("first"), path("second")).unwrap();
        let mut reader = File::open(path("far/file")).unwrap();
        replace(&path("second"), b"new", Readers::Usual).unwrap();
        assert_eq!(std::fs::read(path("far/file")).unwrap(), b"new");
        assert_eq!(mode(&path("far/file")), 0o640);
        assert!(path("first").is_symlink() && path("second").is_symlink());
        assert_eq!(
            io::read_to_string(&mut reader).unwrap(),
            "old",
            "a concurrent reader sees one or the other"
        );
        assert_eq!(std::fs::read_dir(path("far")).unwrap().count(), 1, "nothing else is left there");
        // To nothing yet.
        symlink("far/none", path("third")).unwrap();
        replace(&path("third"), b"made", Readers::All).unwrap();
        assert_eq!(
            (std::fs::read(path("far/none")).unwrap(), mode(&path("far/none"))),
            (b"made".into(), 0o644)
        );
        assert!(path("third").is_symlink());
        // To itself.
        symlink("loop", path("loop")).unwrap();
        assert!(replace(&path("loop"), b"", Readers::All).is_err());
    }

    #[test]
    fn an_old_file_is_emptied_only_if_asked() {
        let folder = folder();
        let (path, link) = (folder.path().join("file"), folder.path().join("link"));
        symlink("file", &link).unwrap();
        assert!(!has_content(&link));
        create(&link, false).unwrap().write_all(b"one").unwrap();
        assert!(has_content(&link) && link.is_symlink());
        assert_eq!(create(&link, false).err().unwrap().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        create(&link, true).unwrap().write_all(b"2").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"2");
        assert!(link.is_symlink());
    }

    #[test]
    fn open_files_of_others_are_written_not_replaced() {
        for path in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
            assert!(matches!(find(Path::new(path)), Ok(Destination::Special(_))), "{path}");
        }
        assert_eq!(find(Path::new("-")).unwrap(), Destination::Output);
    }
}
