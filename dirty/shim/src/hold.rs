// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Other processes by a holder (`trapless dirty hold`), where `TRAPLESS_DIRTY_HOLD` names its socket: what was cleared in
//! one run of a program is known in the next.
//!
//! Invariant: without a plain answer of the holder every page reads dirty, and stderr says why, in whatever mode.
//!
//! The connection is kept, for a checkpointer asks once for every piece of memory. It is used only while its descriptor
//! is still the socket that was connected: programs close descriptors that they do not know, and use the numbers again.
//! A forked child connects anew.

use std::ffi::c_int;
use std::fmt::Display;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libdirty::PageRange;
use libdirty_hold::Client;
use libdirty_hold::client::Error;
use libdirty_hold::protocol::{Extent, Process, Since};

use crate::settings::{announce, settings};

/// The connection, and what was said last. Locked only under the lock of [`crate::lock`].
#[derive(Default)]
struct State {
    connection: Option<Connection>,
    said: String,
}

struct Connection {
    client: Client,
    /// Device and inode of its socket.
    socket: (u64, u64),
}

static STATE: Mutex<State> = Mutex::new(State { connection: None, said: String::new() });

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

/// Answer the "4".
///
/// # Errors
/// The errno to fail with. Everything then reads dirty, or what did before.
pub(crate) fn clear(pid: i32) -> Result<(), c_int> {
    let mut state = state();
    match state.ask(|client| client.clear(process(pid))) {
        Ok(Ok(_)) => Ok(()),
        // A dump goes on, and is a full one.
        Ok(Err(why)) => {
            state.say(format_args!("process {pid} is not tracked, all of it reads dirty: {why}"));
            Ok(())
        }
        Err(error) => {
            state.say(format_args!("process {pid} cannot be cleared: {error}"));
            Err(error.errno())
        }
    }
}

/// What was written within `range` since the last clear; `None`: all of it.
pub(crate) fn written(pid: i32, range: PageRange) -> Option<Vec<Extent>> {
    let mut state = state();
    let why = match state.ask(|client| client.written(process(pid), Since::Clear, range)) {
        Ok(written) => match written.pages {
            Ok(extents) => return Some(extents),
            Err(why) => why,
        },
        Err(error) => error.to_string(),
    };
    state.say(format_args!("all of process {pid} reads dirty: {why}"));
    None
}

/// In a forked child: the connection is the parent's.
pub(crate) fn forget() {
    let mut state = state();
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
        Ok(Connection { client, socket })
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
