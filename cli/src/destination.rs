// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The destination of a command's output: the FILE of an option.
//!
//! Invariants:
//! - `-` is standard output.
//! - Anything but a regular file (a device, a pipe, a terminal) is opened and written, never replaced.
//! - A link stays a link: its target is written. The kernel follows it, and may refuse to: root must not write where
//!   somebody else's link in /tmp leads (fs.protected_symlinks).
//! - A regular file is *replaced* atomically: every reader sees the whole old file or the whole new one. The new one
//!   has the old one's permissions and, if root writes, its owner. Where a link leads to no file yet, there is an empty one first.
//! - A file that grows begins in the same way: it is there with its first line, or not at all. It is locked (flock) for
//!   as long as it may grow, and nobody here replaces one that is: its writer would go on where nobody finds it.
//! - What may have to be waited for, a pipe without a reader, is opened by [`prepare`] alone.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// The kind of a FILE.
#[derive(Debug)]
enum Destination {
    /// Standard output.
    Output,
    /// What its name stands for, and no regular file; [`prepare`] opens it for writing.
    Special(File),
    /// A regular file; its own name, behind all links.
    File(PathBuf),
    /// Nothing yet.
    None,
    /// A link that leads to nothing yet.
    Dangling,
}

/// The permissions of a new file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readers {
    /// Those of the umask, or of the old file.
    Usual,
    /// Everybody.
    All,
}

/// What a regular file is begun as.
#[derive(Debug, Clone, Copy)]
struct Kind {
    readers: Readers,
    /// There will be more than is written at first.
    grows: bool,
}

const LOCK: FlockOperation = FlockOperation::NonBlockingLockExclusive;

/// Write `content`; a regular file is replaced atomically.
///
/// # Errors
/// When it cannot be written; a regular file is then unchanged.
pub fn replace(path: &Path, content: &[u8], readers: Readers) -> io::Result<()> {
    prepare(path)?.begin(content, true, Kind { readers, grows: false }).map(drop)
}

/// A FILE before there is content for it. Nothing has been changed.
#[derive(Debug)]
pub struct Prepared<'a> {
    path: &'a Path,
    found: Destination,
}

/// Find out what it is, and wait for the reader of a pipe: so do this while a signal may still end the process.
///
/// # Errors
/// When it cannot be opened.
pub fn prepare(path: &Path) -> io::Result<Prepared<'_>> {
    let found = match find(path)? {
        Destination::Special(found) => Destination::Special(match descriptor_of_ours(path) {
            Some(same) => same,
            None => writable(&found)?,
        }),
        other => other,
    };
    Ok(Prepared { path, found })
}

impl Prepared<'_> {
    /// Begin a file that grows with `content`, and go on behind it; an existing file is refused, or replaced with
    /// `force`.
    ///
    /// # Errors
    /// `AlreadyExists`, or when it cannot be written; a regular file is then unchanged.
    pub fn create(self, content: &[u8], force: bool) -> io::Result<Box<dyn Write>> {
        self.begin(content, force, Kind { readers: Readers::Usual, grows: true })
    }

    fn begin(self, content: &[u8], force: bool, kind: Kind) -> io::Result<Box<dyn Write>> {
        let path = self.path;
        Ok(match self.found {
            Destination::Output => {
                let mut out = io::stdout();
                write_all(&mut out, content)?;
                Box::new(out)
            }
            Destination::Special(mut out) => {
                write_all(&mut out, content)?;
                Box::new(out)
            }
            Destination::File(_) if !force => return Err(io::ErrorKind::AlreadyExists.into()),
            Destination::File(path) => Box::new(begin_file(&path, content, true, kind)?),
            Destination::None => Box::new(begin_file(path, content, force, kind)?),
            Destination::Dangling => {
                drop(OpenOptions::new().append(true).create(true).open(path)?);
                match find(path)? {
                    Destination::File(path) => Box::new(begin_file(&path, content, true, kind)?),
                    _ => return Err(io::Error::other("it changes while it is written")),
                }
            }
        })
    }
}

/// Whether [`Prepared::create`] would refuse it without `force`.
pub fn has_content(path: &Path) -> bool {
    matches!(find(path), Ok(Destination::File(_)))
}

/// Its name in messages.
pub fn name(path: &Path) -> String {
    if path.as_os_str() == "-" { "standard output".into() } else { path.display().to_string() }
}

fn find(path: &Path) -> io::Result<Destination> {
    if path.as_os_str() == "-" {
        return Ok(Destination::Output);
    }
    let found = match OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let is_link = std::fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
            return Ok(if is_link { Destination::Dangling } else { Destination::None });
        }
        Err(error) => return Err(error),
    };
    if !found.metadata()?.is_file() || in_procfs(path).is_some() {
        return Ok(Destination::Special(found));
    }
    Ok(Destination::File(std::fs::read_link(descriptor(&found))?))
}

/// Open what was found, whatever its name stands for by now.
fn writable(found: &File) -> io::Result<File> {
    OpenOptions::new().write(true).open(descriptor(found))
}

fn descriptor(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// The link of procfs to an open file that it leads to (`/dev/stdout`, perhaps behind links): the open file itself
/// must be written, not replaced by another one.
fn in_procfs(path: &Path) -> Option<PathBuf> {
    let mut path = path.to_owned();
    // As many links as the kernel follows; it has followed these.
    for _ in 0..40 {
        if let Ok(folder) = folder(&path).canonicalize()
            && folder.starts_with("/proc")
        {
            return Some(folder.join(path.file_name()?));
        }
        let target = std::fs::read_link(&path).ok()?;
        path = folder(&path).join(target);
    }
    None
}

/// The open file itself if it is one of this process. Opened anew, it would be written from its beginning on, though
/// the shell has opened it to append, or has written to it before.
fn descriptor_of_ours(path: &Path) -> Option<File> {
    let found = in_procfs(path)?;
    let number =
        found.strip_prefix(Path::new("/proc/self/fd").canonicalize().ok()?).ok()?.to_str()?.parse().ok()?;
    // SAFETY: it is only asked for a duplicate, which fails if it is not open.
    let open = unsafe { BorrowedFd::borrow_raw(number) };
    open.try_clone_to_owned().ok().map(File::from)
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A regular file with this content; one that is there is replaced or, without `force`, refused.
fn begin_file(path: &Path, content: &[u8], force: bool, kind: Kind) -> io::Result<File> {
    let old = std::fs::metadata(path).ok();
    let reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    if reader.is_ok_and(|old| flock(old, LOCK) == Err(Errno::WOULDBLOCK)) {
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, "another command is writing it"));
    }
    let mode = match kind.readers {
        Readers::All => Some(Permissions::from_mode(0o644)),
        Readers::Usual => old.as_ref().map(std::fs::Metadata::permissions),
    };
    // A name that no collector of files picks up.
    let mut new = tempfile::Builder::new()
        .prefix(".trapless.")
        .suffix(".new")
        // Opened here: tempfile's own errors would name the temporary name.
        .make_in(folder(path), |new| {
            OpenOptions::new().write(true).create_new(true).mode(0o666).open(new) // less the umask
        })?;
    // By the file itself, for the same reason.
    new.as_file_mut().write_all(content)?;
    if let Some(old) = old {
        let is_new = new.as_file().metadata()?;
        if (is_new.uid(), is_new.gid()) != (old.uid(), old.gid()) {
            // Only root can give a file away; whoever else may replace it becomes its owner.
            match fchown(new.as_file(), Some(old.uid()), Some(old.gid())) {
                Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(error),
                _ => {}
            }
        }
    }
    if kind.grows {
        let _ = flock(new.as_file(), LOCK); // some file systems have no locks
    }
    if let Some(mode) = mode {
        new.as_file().set_permissions(mode)?;
    }
    Ok(if force { new.persist(path)? } else { new.persist_noclobber(path)? })
}

fn write_all(out: &mut impl Write, content: &[u8]) -> io::Result<()> {
    out.write_all(content)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt, symlink};

    use super::*;

    fn create(path: &Path, content: &[u8], force: bool) -> io::Result<Box<dyn Write>> {
        prepare(path)?.create(content, force)
    }

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
            create(path, b"mo", false).unwrap().write_all(b"re").unwrap();
            assert_eq!(reader.join().unwrap(), b"more");
        }
        assert!(std::fs::symlink_metadata(&path).unwrap().file_type().is_fifo());
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_file_that_grows_is_not_replaced() {
        let folder = folder();
        let path = folder.path().join("file");
        let mut growing = create(&path, b"be", false).unwrap();
        for refused in [create(&path, b"other", true).err(), replace(&path, b"other", Readers::Usual).err()] {
            assert_eq!(refused.map(|error| error.kind()), Some(io::ErrorKind::ResourceBusy));
        }
        growing.write_all(b"gun").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"begun");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        drop(growing);
        replace(&path, b"other", Readers::Usual).unwrap();
        replace(&path, b"another", Readers::Usual).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"another");
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
        assert!(create(&path, b"text", true).is_ok() || path.exists());
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
        symlink("far/grows", path("fourth")).unwrap();
        create(&path("fourth"), b"ma", false).unwrap().write_all(b"de").unwrap();
        assert_eq!(std::fs::read(path("far/grows")).unwrap(), b"made");
        // To itself.
        symlink("loop", path("loop")).unwrap();
        assert!(replace(&path("loop"), b"", Readers::All).is_err());
    }

    #[test]
    fn a_file_keeps_its_owner() {
        let folder = folder();
        let path = folder.path().join("file");
        std::fs::write(&path, "old").unwrap();
        if std::os::unix::fs::chown(&path, Some(65534), Some(65534)).is_err() {
            eprintln!("SKIPPED: only root gives files away");
            return;
        }
        replace(&path, b"new", Readers::All).unwrap();
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!((found.uid(), found.gid()), (65534, 65534));
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn an_old_file_is_replaced_only_if_asked() {
        let folder = folder();
        let (path, link) = (folder.path().join("file"), folder.path().join("link"));
        symlink("file", &link).unwrap();
        assert!(!has_content(&link));
        create(&link, b"on", false).unwrap().write_all(b"e").unwrap();
        assert!(has_content(&link) && link.is_symlink());
        assert_eq!(create(&link, b"", false).err().unwrap().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        create(&link, b"2", true).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"2");
        assert!(link.is_symlink());
    }

    #[test]
    fn a_file_that_is_made_meanwhile_is_refused() {
        let folder = folder();
        let path = folder.path().join("file");
        std::fs::write(&path, "other").unwrap();
        // As if it had not been there when it was looked for.
        let refused =
            begin_file(&path, b"ours", false, Kind { readers: Readers::Usual, grows: false }).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"other");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn open_files_of_others_are_written_not_replaced() {
        for path in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
            assert!(matches!(find(Path::new(path)), Ok(Destination::Special(_))), "{path}");
        }
        let folder = folder();
        let (link, file) = (folder.path().join("link"), File::create(folder.path().join("file")).unwrap());
        symlink(format!("/proc/self/fd/{}", file.as_raw_fd()), &link).unwrap();
        replace(&link, b"text", Readers::All).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 4, "the open file itself has it");
        // Where it stands, as the shell's >> has it.
        replace(&link, b" more", Readers::All).unwrap();
        assert_eq!(std::fs::read(folder.path().join("file")).unwrap(), b"text more");
        assert!(matches!(find(Path::new("-")).unwrap(), Destination::Output));
    }
}
