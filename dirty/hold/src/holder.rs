// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The holder: one thread that waits for clients, answers one request at a time, and follows forks.
//!
//! Invariants:
//! - A process is known by pid *and* start. A tracker is dropped as soon as its process is seen to have ended or to
//!   have called `execve`, and never answers for another.
//! - Only [`Request::Track`], [`Request::Clear`] and a fork begin a tracking; each has an epoch of its own, and a mark of
//!   another epoch is answered by "everything".
//! - Nobody is told of a process before `Connection::check` has permitted it.
//! - A provisional clear is undone when its connection ends before a [`Request::Keep`], for whatever reason: who cleared may
//!   not have got what it needs in place of the older moment.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libdirty::{BackendKind, Error};
use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

use crate::connection::Connection;
use crate::held::{Ended, Held, Looked};
use crate::process;
use crate::protocol::{MOST_EXTENTS, MOST_LISTED, Mark, Process, Reply, Request, Since};

/// Connections at a time.
const MOST_CLIENTS: usize = 256;
/// How long clients wait at most while children are looked for; attaching to one may take longer.
const PATIENCE: Duration = Duration::from_millis(50);

/// How a holder works.
#[derive(Debug, Clone)]
pub struct Options {
    /// The back end; `None`: the cheapest that works.
    pub backend: Option<BackendKind>,
    /// How often children of tracked trees are looked for.
    pub interval: Duration,
    /// Permissions of the socket: who may connect. (What they may ask is checked for each request.)
    pub mode: u32,
    /// End when nothing has been tracked and nobody connected for so long; `None`: never.
    pub idle: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Options { backend: None, interval: Duration::from_secs(1), mode: 0o600, idle: None }
    }
}

/// A listening socket and the processes that are tracked.
#[derive(Debug)]
pub struct Holder {
    listener: UnixListener,
    path: PathBuf,
    /// The file at `path`: the device and the inode.
    socket: Option<(u64, u64)>,
    options: Options,
    clients: Vec<Connection>,
    processes: Processes,
}

/// A socket at `path` to which nobody but the owner can connect before the mode is set. Linux gives the file the mode
/// that the socket has; the umask would be of the whole process, and what other threads make just then would have it.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, MOST_CLIENTS as i32)?;
    Ok(UnixListener::from(socket))
}

/// What is tracked.
#[derive(Debug)]
struct Processes {
    backend: Option<BackendKind>,
    held: BTreeMap<i32, Held>,
    /// Why children of trees are not tracked: not tried again, unless a client asks.
    failed: HashMap<Process, String>,
    /// Processes whose children are to be looked for soon.
    parents: Vec<i32>,
}

impl Holder {
    /// Listen at `path`. A socket that is there and at which nobody listens is replaced.
    ///
    /// # Errors
    /// Those of the socket; `AddrInUse` where another holder listens or something else is there.
    pub fn new(path: &Path, options: Options) -> io::Result<Self> {
        if let Ok(there) = fs::symlink_metadata(path) {
            let is_stale = there.file_type().is_socket()
                && UnixStream::connect(path)
                    .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
                && identity(path) == Some((there.dev(), there.ino())); // not another holder's since
            if !is_stale {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, "something is there already"));
            }
            fs::remove_file(path)?;
        }
        raise_descriptor_limit();
        let listener = listen(path)?;
        let socket = identity(path);
        listener.set_nonblocking(true)?;
        fs::set_permissions(path, fs::Permissions::from_mode(options.mode))?;
        Ok(Holder {
            listener,
            path: path.to_owned(),
            socket,
            processes: Processes {
                backend: options.backend,
                held: BTreeMap::new(),
                failed: HashMap::new(),
                parents: Vec::new(),
            },
            options,
            clients: Vec::new(),
        })
    }

    /// Track this process and its children from now on; those that are there are tracked when this returns.
    ///
    /// # Errors
    /// Why that cannot be.
    pub fn track(&mut self, pid: i32) -> libdirty::Result<()> {
        self.processes.track(pid, true)?;
        while !self.processes.follow() {}
        Ok(())
    }

    /// Serve until something can be read from `stop`, or [`Options::idle`] is over.
    ///
    /// # Errors
    /// `NotFound` when the socket was removed or replaced and no client is left: a holder that nobody can reach would
    /// only keep others from tracking its processes. Those of `poll(2)`; what goes wrong with one client ends only its connection.
    pub fn run(&mut self, stop: RawFd) -> io::Result<()> {
        let mut due = Instant::now() + self.options.interval;
        let mut last_used = Instant::now();
        loop {
            let accepts = if self.clients.len() < MOST_CLIENTS { libc::POLLIN } else { 0 };
            let wait = |fd, events| libc::pollfd { fd, events, revents: 0 };
            let mut polls = vec![wait(stop, libc::POLLIN), wait(self.listener.as_raw_fd(), accepts)];
            polls.extend(self.clients.iter().map(|client| wait(client.descriptor(), client.events())));
            let left = due.saturating_duration_since(Instant::now()).as_millis();
            let left = i32::try_from(left + 1).unwrap_or(i32::MAX);
            let left = if self.processes.parents.is_empty() { left } else { 0 };
            // SAFETY: so many valid pollfds.
            if unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, left) } < 0 {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
                continue;
            }
            if polls[0].revents != 0 {
                return Ok(());
            }
            let mut ready = polls[2..].iter().map(|poll| poll.revents != 0);
            let processes = &mut self.processes;
            self.clients.retain_mut(|client| {
                let goes_on = !ready.next().unwrap_or(false)
                    || client.proceed(|client, request| processes.answer(client, request));
                if !goes_on {
                    processes.undo(client.provisional());
                }
                goes_on
            });
            if polls[1].revents != 0
                && let Ok((stream, _)) = self.listener.accept()
                && let Ok(client) = Connection::new(stream)
            {
                self.clients.push(client);
            }
            if Instant::now() >= due {
                if self.clients.is_empty() && self.socket.is_some() && identity(&self.path) != self.socket {
                    let why = format!("{} was removed or replaced: nobody can connect", self.path.display());
                    return Err(io::Error::new(io::ErrorKind::NotFound, why));
                }
                self.processes.look_around();
                due = Instant::now() + self.options.interval;
            }
            self.processes.follow();
            if !self.clients.is_empty() || !self.processes.held.is_empty() {
                last_used = Instant::now();
            }
            if self.options.idle.is_some_and(|idle| last_used.elapsed() >= idle) {
                return Ok(());
            }
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Another holder's by now, if somebody has removed ours.
        if self.socket.is_some() && identity(&self.path) == self.socket {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|there| (there.dev(), there.ino()))
}

impl Processes {
    fn answer(&mut self, client: &mut Connection, request: Request) -> Reply {
        let process = match request {
            Request::List => return self.list(client),
            Request::Keep => {
                client.keep();
                return Reply::Kept;
            }
            Request::Track { process, .. }
            | Request::Written { process, .. }
            | Request::Clear { process, .. }
            | Request::Release { process } => process,
        };
        let process = match self.identify(client, process) {
            Ok(process) => process,
            Err((errno, why)) => return Reply::Refused { errno, why },
        };
        match request {
            Request::Track { tree, .. } => match self.track(process.pid, tree) {
                Ok(()) => {
                    // Not now: the tree may be large.
                    self.parents.extend(tree.then_some(process.pid));
                    self.held.get(&process.pid).map_or_else(
                        || refused(&Error::NoProcess(process.pid)),
                        |held| Reply::Tracked {
                            process: held.process,
                            mark: held.mark(),
                            backend: held.backend().name().into(),
                        },
                    )
                }
                Err(error) => refused(&error),
            },
            Request::Written { since, range, goes_on, .. } => self.written(process, since, range, goes_on),
            Request::Clear { provisional, from, .. } => {
                let reply = match from {
                    None => self.clear(process),
                    Some(mark) => self.clear_from(process, mark),
                };
                if provisional && let Reply::Cleared { process, mark, .. } = &reply {
                    client.cleared(*process, mark.epoch);
                }
                reply
            }
            Request::Release { .. } => {
                self.held.remove(&process.pid);
                Reply::Released
            }
            Request::List | Request::Keep => unreachable!("answered above"),
        }
    }

    /// Which process is meant, if the client may ask about it.
    fn identify(&mut self, client: &mut Connection, asked: Process) -> Result<Process, (i32, String)> {
        let pid = asked.pid;
        let none = || (libc::ESRCH, format!("process {pid}: no such process"));
        let start = process::start(pid).filter(|_| pid > 0).ok_or_else(none)?;
        if asked.start != 0 && asked.start != start {
            return Err((libc::ESRCH, format!("process {pid} is another by now than the one that you name")));
        }
        let process = Process { pid, start };
        if self.held.get(&pid).is_some_and(|held| held.process != process) {
            self.held.remove(&pid);
        }
        let epoch = self.held.get(&pid).map_or(0, |held| held.mark().epoch);
        client.check(process, epoch)?;
        // It may have ended, and another begun, while the kernel was asked.
        if process::start(pid) != Some(start) {
            return Err(none());
        }
        Ok(process)
    }

    fn list(&mut self, client: &mut Connection) -> Reply {
        self.held.retain(|_, held| held.is_there());
        let asked = self.held.values().filter(|held| client.check(held.process, held.mark().epoch).is_ok());
        Reply::Listed(asked.map(|held| held.process).take(MOST_LISTED).collect())
    }

    /// Track the process with this pid, if it is not tracked.
    fn track(&mut self, pid: i32, tree: bool) -> Result<(), Error> {
        if let Some(held) = self.held.get_mut(&pid).filter(|held| held.is_there()) {
            held.tree |= tree;
            return Ok(());
        }
        // Before the new one: of two trackers of a process one is refused.
        self.held.remove(&pid);
        let held = Held::new(pid, tree, self.backend)?;
        self.failed.remove(&held.process);
        self.held.insert(pid, held);
        Ok(())
    }

    fn written(
        &mut self,
        process: Process,
        since: Since,
        range: libdirty::PageRange,
        goes_on: bool,
    ) -> Reply {
        let unknown =
            |mark, unknown: String| Reply::Written { process, mark, extents: Vec::new(), next: 0, unknown };
        let nothing = Mark { epoch: 0, round: 0 };
        let Some(held) = self.held.get_mut(&process.pid) else {
            let why = self.failed.get(&process).map_or("nobody has asked for it", String::as_str);
            return unknown(nothing, format!("process {} is not tracked: {why}", process.pid));
        };
        if !goes_on {
            match held.look(Some(range)) {
                Ok(Looked::Known) => {}
                Ok(Looked::Failed(error)) => return unknown(held.mark(), error.to_string()),
                Err(Ended(why)) => {
                    self.held.remove(&process.pid);
                    return unknown(nothing, format!("process {} is not tracked: {why}", process.pid));
                }
            }
        }
        let from = match since {
            Since::Mark(mark) => mark,
            Since::Clear => match held.last_cleared() {
                Some(mark) => mark,
                None => {
                    let why = format!("process {} was not cleared since it is tracked here", process.pid);
                    return unknown(held.mark(), why);
                }
            },
        };
        match held.since(from, range, MOST_EXTENTS) {
            Some((extents, next)) => Reply::Written {
                process,
                mark: held.mark(),
                extents,
                next: next.map_or(0, |next| next as u64),
                unknown: String::new(),
            },
            None => unknown(held.mark(), no_gap(process)),
        }
    }

    fn clear(&mut self, process: Process) -> Reply {
        // A process that has called execve since is tracked anew.
        for _ in 0..2 {
            if let Err(error) = self.track(process.pid, false) {
                let mark = Mark { epoch: 0, round: 0 };
                return Reply::Cleared { process, mark, unknown: error.to_string() };
            }
            let Some(held) = self.held.get_mut(&process.pid) else { break };
            match held.look(None) {
                Ok(Looked::Known) => {
                    held.clear();
                    return Reply::Cleared {
                        process: held.process,
                        mark: held.mark(),
                        unknown: String::new(),
                    };
                }
                Ok(Looked::Failed(error)) => {
                    // What was cleared before is so still.
                    return Reply::Refused { errno: error.errno(), why: error.to_string() };
                }
                Err(Ended(_)) => {
                    self.held.remove(&process.pid);
                }
            }
        }
        refused(&Error::NoProcess(process.pid))
    }

    /// Who was answered everything until `mark` need not have it looked for again: what was written since is kept for the
    /// next answer.
    fn clear_from(&mut self, process: Process, mark: Mark) -> Reply {
        let held = self.held.get_mut(&process.pid);
        let unknown =
            if held.is_some_and(|held| held.clear_from(mark)) { String::new() } else { no_gap(process) };
        Reply::Cleared { process, mark, unknown }
    }

    /// These clears have ended with their connection.
    fn undo(&mut self, cleared: &[(Process, u64)]) {
        for (process, epoch) in cleared {
            let held = self.held.get_mut(&process.pid);
            if let Some(held) = held.filter(|held| held.mark().epoch == *epoch) {
                held.undo_clear();
            }
        }
    }

    /// Forget what has ended, and have the children of all trees looked for.
    fn look_around(&mut self) {
        self.held.retain(|_, held| held.is_there());
        self.failed.retain(|process, _| process::start(process.pid) == Some(process.start));
        self.parents = self.held.values().filter(|held| held.tree).map(|held| held.process.pid).collect();
    }

    /// Track the children of trees, for some time. Whether that was all.
    fn follow(&mut self) -> bool {
        let begin = Instant::now();
        while let Some(parent) = self.parents.pop() {
            for pid in process::children(parent) {
                let Some(start) = process::start(pid) else { continue };
                let child = Process { pid, start };
                let is_known = self.held.get(&pid).is_some_and(|held| held.process == child && held.tree);
                if is_known || self.failed.contains_key(&child) {
                    continue;
                }
                if begin.elapsed() > PATIENCE {
                    self.parents.push(parent);
                    return false;
                }
                match self.track(pid, true) {
                    Ok(()) => self.parents.push(pid),
                    Err(error) => {
                        self.failed.insert(child, error.to_string());
                    }
                }
            }
        }
        true
    }
}

fn no_gap(process: Process) -> String {
    format!("process {} was not tracked since then without a gap", process.pid)
}

fn refused(error: &Error) -> Reply {
    Reply::Refused { errno: error.errno(), why: error.to_string() }
}

/// Each process takes six descriptors.
fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a struct to be filled, and the same to be read.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_its_owners_from_the_start() {
        let path = std::env::temp_dir().join(format!("trapless-hold-{}-owned", std::process::id()));
        let _socket = listen(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::remove_file(path).unwrap();
    }
}
