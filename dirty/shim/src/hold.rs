// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Other processes by a holder (`trapless dirty hold`), where `TRAPLESS_DIRTY_HOLD` names its socket: what was cleared in
//! one run of a program is known in the next.
//!
//! Invariants:
//! - Without a plain answer of the holder every page reads dirty, and stderr says why, in whatever mode.
//! - A clear holds only if the program ends with exit status 0 (`Client::clear_provisionally`): one that failed or was
//!   killed may not have written what was dirty before. So a clear that no holder has heard of can be called done: the
//!   moment from which the next program asks is an older one, or none, of which everything is dirty.
//! - With the setting "stopped" one answer serves for all that is read of a process from one opening of its pagemap to the
//!   next, or to a clear: who sets it promises that the process does not run in between. Otherwise each read asks anew.
//!
//! The connection is kept, for a checkpointer asks once for every piece of memory. It is used only while its descriptor
//! is still the socket that was connected: programs close descriptors that they do not know, and use the numbers again.
//! A forked child connects anew.

use std::ffi::{c_int, c_void};
use std::fmt::Display;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use libdirty::PageRange;
use libdirty_hold::Client;
use libdirty_hold::client::Error;
use libdirty_hold::protocol::{Extent, Mark, Process, Since};

use crate::settings::{announce, settings};

/// The connection, the last answer, and what was said last. Locked only under the lock of [`crate::lock`].
#[derive(Default)]
struct State {
    connection: Option<Connection>,
    answer: Option<Answer>,
    said: String,
}

/// All that was written in a process; `None`: not known.
struct Answer {
    pid: i32,
    /// The count of openings at the time.
    opened: u64,
    /// The moment until which it is known.
    mark: Option<Mark>,
    extents: Option<Vec<Extent>>,
}

struct Connection {
    client: Client,
    /// Device and inode of its socket.
    socket: (u64, u64),
    /// The process that connected, whose clears it has.
    owner: u32,
    /// It has clears that are to be kept.
    has_cleared: bool,
}

static STATE: Mutex<State> = Mutex::new(State { connection: None, answer: None, said: String::new() });

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a holder answers for this process: for every one but the own.
pub(crate) fn answers_for(pid: i32) -> bool {
    settings().hold.is_some() && pid.cast_unsigned() != std::process::id()
}

/// Have the process tracked, before somebody traces it: then the holder could not attach any more.
pub(crate) fn prepare(pid: i32) {
    // A thread has its process's memory.
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    if !status.lines().any(|line| line.strip_prefix("Tgid:").is_some_and(|of| of.trim().parse() == Ok(pid))) {
        return;
    }
    let mut state = state();
    if let Err(error) = state.ask(|client| client.track(process(pid), false)) {
        state.say(format_args!("process {pid} is not tracked, all of it reads dirty: {error}"));
    }
}

/// Answer the "4". What is not tracked, or of which no holder hears, is dirty as a whole the next time: a dump goes on, and
/// the next is a full one.
///
/// # Errors
/// There is no such process.
pub(crate) fn clear(pid: i32) -> Result<(), c_int> {
    keep_at_exit();
    let mut state = state();
    // What was answered is what will be dumped. From there on, nothing need be looked for a second time.
    let from = state.answer.take().filter(|answer| answer.pid == pid).and_then(|answer| answer.mark);
    let why = match state.ask(|client| client.clear_provisionally(process(pid), from)) {
        Ok(Ok(_)) => {
            if let Some(connection) = &mut state.connection {
                connection.has_cleared = true;
            }
            return Ok(());
        }
        Ok(Err(why)) => why,
        Err(Error::Refused { errno: libc::ESRCH, .. }) => return Err(libc::ESRCH),
        Err(error) => error.to_string(),
    };
    state.say(format_args!("process {pid} is not tracked, all of it will read dirty: {why}"));
    Ok(())
}

/// Have what was cleared kept when the program ends, if it ends well.
fn keep_at_exit() {
    unsafe extern "C" {
        fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    }
    static REGISTERED: Once = Once::new();

    extern "C" fn at_exit(status: c_int, _: *mut c_void) {
        if status == 0 {
            crate::lock::hold(|| catch_unwind(keep));
        }
    }
    // SAFETY: a function that lives as long as the process, and takes no argument. Where there is no memory for it nothing
    // is kept.
    REGISTERED.call_once(|| unsafe {
        on_exit(at_exit, std::ptr::null_mut());
    });
}

fn keep() {
    let mut state = state();
    let is_ours = |connection: &mut Connection| {
        connection.has_cleared && connection.owner == std::process::id() && connection.is_whole()
    };
    if let Some(mut connection) = state.connection.take_if(is_ours)
        && let Err(error) = connection.client.keep()
    {
        state.say(format_args!("what was cleared is not kept, all of it will read dirty: {error}"));
    }
}

/// Somebody opened a pagemap: counted, for it may be while another thread holds the lock.
static OPENED: AtomicU64 = AtomicU64::new(0);

/// The pagemap of a process was opened: what was answered before is old.
pub(crate) fn opened() {
    OPENED.fetch_add(1, Ordering::AcqRel);
}

/// What was written within `range` since the last clear; `None`: all of it.
pub(crate) fn written(pid: i32, range: PageRange) -> Option<Vec<Extent>> {
    let mut state = state();
    if !settings().stopped {
        return state.written(pid, range).1;
    }
    let opened = OPENED.load(Ordering::Acquire);
    if state.answer.as_ref().is_none_or(|answer| (answer.pid, answer.opened) != (pid, opened)) {
        let (mark, extents) = state.written(pid, PageRange::everything());
        state.answer = Some(Answer { pid, opened, mark, extents });
    }
    let extents = state.answer.as_ref()?.extents.as_ref()?;
    let first = extents.partition_point(|extent| extent.range.end() <= range.start());
    let end = extents.partition_point(|extent| extent.range.start() < range.end());
    Some(extents[first..end.max(first)].to_vec())
}

/// In a forked child: the connection is the parent's.
pub(crate) fn forget() {
    let mut state = state();
    state.answer = None;
    if let Some(connection) = state.connection.take() {
        connection.leave();
    }
}

fn process(pid: i32) -> Process {
    Process { pid, start: 0 }
}

impl State {
    /// Ask, over a new connection if there is none that works.
    fn ask<T>(&mut self, mut question: impl FnMut(&mut Client) -> Result<T, Error>) -> Result<T, Error> {
        if let Some(mut connection) = self.connection.take() {
            if !connection.is_whole() {
                connection.leave();
            } else {
                match question(&mut connection.client) {
                    // The holder may be another one by now.
                    Err(Error::Connection(_)) => {}
                    answer => {
                        if matches!(answer, Ok(_) | Err(Error::Refused { .. })) {
                            self.connection = Some(connection);
                        }
                        return answer;
                    }
                }
            }
        }
        let Some(path) = &settings().hold else { return Err(Error::Unexpected) };
        let mut connection = Connection::new(Client::connect(Path::new(path))?)?;
        let answer = question(&mut connection.client);
        if matches!(answer, Ok(_) | Err(Error::Refused { .. })) {
            self.connection = Some(connection);
        }
        answer
    }

    /// What was written, and the moment until which that is known, if the process is tracked.
    fn written(&mut self, pid: i32, range: PageRange) -> (Option<Mark>, Option<Vec<Extent>>) {
        let (mark, why) = match self.ask(|client| client.written(process(pid), Since::Clear, range)) {
            Ok(written) => {
                let mark = Some(written.mark).filter(|mark| mark.epoch != 0);
                match written.pages {
                    Ok(extents) => return (mark, Some(extents)),
                    Err(why) => (mark, why),
                }
            }
            Err(error) => (None, error.to_string()),
        };
        self.say(format_args!("all of process {pid} reads dirty: {why}"));
        (mark, None)
    }

    /// On stderr, unless it was the last that was said.
    fn say(&mut self, what: impl Display) {
        let what = what.to_string();
        if self.said != what {
            announce(&what);
            self.said = what;
        }
    }
}

impl Connection {
    fn new(client: Client) -> Result<Self, Error> {
        let socket = identity(&client).ok_or(Error::Unexpected)?;
        Ok(Connection { client, socket, owner: std::process::id(), has_cleared: false })
    }

    fn is_whole(&self) -> bool {
        identity(&self.client) == Some(self.socket)
    }

    /// Close it, if it is still ours to close.
    fn leave(self) {
        if !self.is_whole() {
            std::mem::forget(self);
        }
    }
}

fn identity(client: &Client) -> Option<(u64, u64)> {
    let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the call fills the struct when it returns 0.
    unsafe {
        let done = libc::fstat(client.as_fd().as_raw_fd(), status.as_mut_ptr()) == 0;
        done.then(|| status.assume_init()).map(|status| (status.st_dev, status.st_ino))
    }
}
