// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client's connection. Nothing here waits: what has not arrived or cannot be sent yet is kept, at most one request
//! and its reply, and who does not take a reply is not asked for more.

use std::collections::HashMap;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

use crate::permission::{Caller, Refusal};
use crate::protocol::{Decoder, Message, Process, Reply, Request};

/// One client.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    caller: Result<Caller, Refusal>,
    /// Tracking (by its epoch) of processes that this caller may ask about, as the right to read a file is that of who
    /// opened it.
    permitted: HashMap<Process, u64>,
    /// Clears that end with this connection, and of which tracking (by its epoch).
    provisional: Vec<(Process, u64)>,
    decoder: Decoder,
    unsent: Vec<u8>,
    /// End when all is sent.
    is_ending: bool,
}

impl Connection {
    /// # Errors
    /// The socket cannot be used.
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Connection {
            caller: Caller::of(&stream),
            stream,
            permitted: HashMap::new(),
            provisional: Vec::new(),
            decoder: Decoder::default(),
            unsent: Vec::new(),
            is_ending: false,
        })
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// What to wait for: room to send, or a request.
    pub(crate) fn events(&self) -> i16 {
        if self.unsent.is_empty() { libc::POLLIN } else { libc::POLLOUT }
    }

    /// Whether the caller may ptrace this process. `epoch`: of its tracking, 0 if it is not tracked.
    ///
    /// # Errors
    /// It may not, and why.
    pub(crate) fn check(&mut self, process: Process, epoch: u64) -> Result<(), Refusal> {
        if epoch != 0 && self.permitted.get(&process) == Some(&epoch) {
            return Ok(());
        }
        match &self.caller {
            Ok(caller) => caller.may_ptrace(process.pid)?,
            Err((errno, why)) => return Err((*errno, why.clone())),
        }
        if epoch != 0 {
            self.permitted.insert(process, epoch);
        }
        Ok(())
    }

    /// A clear that ends with this connection.
    pub(crate) fn cleared(&mut self, process: Process, epoch: u64) {
        self.provisional.push((process, epoch));
    }

    /// Its clears so far do not end with it.
    pub(crate) fn keep(&mut self) {
        self.provisional.clear();
    }

    /// The clears that end with it.
    pub(crate) fn provisional(&self) -> &[(Process, u64)] {
        &self.provisional
    }

    /// Go on: send what waits, take what has come, have `answer` answer it. `false`: the connection is to end.
    pub(crate) fn proceed(&mut self, mut answer: impl FnMut(&mut Self, Request) -> Reply) -> bool {
        loop {
            match self.send() {
                Ok(true) => {}
                Ok(false) => return true,
                Err(_) => return false,
            }
            if self.is_ending {
                return false;
            }
            let reply = match self.decoder.take() {
                Ok(Some(request)) => answer(self, request),
                Ok(None) => match self.receive() {
                    Ok(true) => continue,
                    Ok(false) => return true,
                    Err(_) => return false,
                },
                Err(malformed) => {
                    self.is_ending = true;
                    Reply::Refused { errno: libc::EPROTO, why: malformed.to_string() }
                }
            };
            self.unsent = reply.encode();
        }
    }

    /// Whether all is sent.
    fn send(&mut self) -> io::Result<bool> {
        while !self.unsent.is_empty() {
            match send(&self.stream, &self.unsent) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Whether something has come. An end in the midst of a request is an end like any other.
    fn receive(&mut self) -> io::Result<bool> {
        let mut bytes = [0; 4096];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.decoder.push(&bytes[..count]);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Send a part of `bytes`; how much. Without SIGPIPE, which would end a program that does not expect it.
pub(crate) fn send(stream: &UnixStream, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: so many bytes to be read.
    let sent =
        unsafe { libc::send(stream.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}
