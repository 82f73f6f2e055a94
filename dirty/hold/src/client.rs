// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client: what a checkpointer asks.
//!
//! Invariant: whatever goes wrong between the two (no holder, one that dies, a reply that cannot be understood) is an
//! error, never an empty answer. Take every page for written then.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use libdirty::PageRange;

use crate::connection::send;
use crate::protocol::{Decoder, Extent, Malformed, Mark, Message, Process, Reply, Request, Since};

/// How long a reply may take: longer than the holder waits for a thread to stop.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why there is no answer. In each case every page is to be taken for written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No holder, or none any more.
    #[error("the holder does not answer: {0}")]
    Connection(#[from] io::Error),
    /// What was received is no reply.
    #[error("the holder does not speak this protocol: {0}")]
    Protocol(#[from] Malformed),
    /// A reply to something else.
    #[error("the holder's reply does not fit the request")]
    Unexpected,
    /// The holder refuses.
    #[error("{why}")]
    Refused {
        /// The error number.
        errno: i32,
        /// Why.
        why: String,
    },
}

impl Error {
    /// The nearest error number.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Error::Connection(error) => error.raw_os_error().unwrap_or(libc::EIO),
            Error::Protocol(_) | Error::Unexpected => libc::EPROTO,
            Error::Refused { errno, .. } => *errno,
        }
    }
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Which process it is.
    pub process: Process,
    /// The moment until which writes are in this answer, to ask from the next time.
    pub mark: Mark,
    /// The pages; or why everything is to be taken for written.
    pub pages: Result<Vec<Extent>, String>,
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// A connection to a holder.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    decoder: Decoder,
}

impl Client {
    /// Connect to the holder that listens at `path`.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn connect(path: &Path) -> Result<Self, Error> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Client { stream, decoder: Decoder::default() })
    }

    /// Track a process, and with `tree` its children. Returns which it is, and now.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn track(&mut self, process: Process, tree: bool) -> Result<(Process, Mark), Error> {
        match self.ask(Request::Track { process, tree })? {
            Reply::Tracked { process, mark, .. } => Ok((process, mark)),
            _ => Err(Error::Unexpected),
        }
    }

    /// Which pages of `range` were written?
    ///
    /// # Errors
    /// See [`Error`].
    pub fn written(&mut self, process: Process, since: Since, range: PageRange) -> Result<Written, Error> {
        let (mut all, mut first, mut range, mut goes_on) = (Vec::new(), None, range, false);
        loop {
            let reply = self.ask(Request::Written { process, since, range, goes_on })?;
            let Reply::Written { process, mark, extents, next, unknown } = reply else {
                return Err(Error::Unexpected);
            };
            // Of a tracking that is not the first part's, this part says nothing.
            let (process, until) = *first.get_or_insert((process, mark));
            if !unknown.is_empty() {
                return Ok(Written { process, mark, pages: Err(unknown) });
            }
            if until.epoch != mark.epoch {
                return Err(Error::Unexpected);
            }
            all.extend(extents);
            if next == 0 {
                return Ok(Written { process, mark: until, pages: Ok(all) });
            }
            let next = usize::try_from(next).map_err(|_| Error::Unexpected)?;
            if next <= range.start() {
                return Err(Error::Unexpected);
            }
            range = PageRange::new(next, range.end()).map_err(|_| Error::Unexpected)?;
            goes_on = true;
        }
    }

    /// Begin anew for [`Since::Clear`]. Returns which process it is, and now; or why it is not tracked.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn clear(&mut self, process: Process) -> Result<Result<(Process, Mark), String>, Error> {
        self.begin_anew(process, false, None)
    }

    /// As [`Client::clear`], but until [`Client::keep`] it holds no longer than this connection: for who writes a
    /// checkpoint that is of no use if it is not written to its end. `from`: begin at the mark of an earlier answer about
    /// everything, and not now: nothing is looked for, and what was written since is in the next answer.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn clear_provisionally(
        &mut self,
        process: Process,
        from: Option<Mark>,
    ) -> Result<Result<(Process, Mark), String>, Error> {
        self.begin_anew(process, true, from)
    }

    /// Have the clears of this connection hold from now on.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn keep(&mut self) -> Result<(), Error> {
        match self.ask(Request::Keep)? {
            Reply::Kept => Ok(()),
            _ => Err(Error::Unexpected),
        }
    }

    fn begin_anew(
        &mut self,
        process: Process,
        provisional: bool,
        from: Option<Mark>,
    ) -> Result<Result<(Process, Mark), String>, Error> {
        match self.ask(Request::Clear { process, provisional, from })? {
            Reply::Cleared { process, mark, unknown } if unknown.is_empty() => Ok(Ok((process, mark))),
            Reply::Cleared { unknown, .. } => Ok(Err(unknown)),
            _ => Err(Error::Unexpected),
        }
    }

    /// Track a process no longer.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn release(&mut self, process: Process) -> Result<(), Error> {
        match self.ask(Request::Release { process })? {
            Reply::Released => Ok(()),
            _ => Err(Error::Unexpected),
        }
    }

    /// The processes that are tracked and that the caller may ask about.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn list(&mut self) -> Result<Vec<Process>, Error> {
        match self.ask(Request::List)? {
            Reply::Listed(processes) => Ok(processes),
            _ => Err(Error::Unexpected),
        }
    }

    fn ask(&mut self, request: Request) -> Result<Reply, Error> {
        if self.decoder.is_amid() {
            // The rest of a reply that was given up.
            return Err(Error::Unexpected);
        }
        let request = request.encode();
        let mut unsent = request.as_slice();
        while !unsent.is_empty() {
            match send(&self.stream, unsent) {
                Ok(count) => unsent = &unsent[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut bytes = [0; 16384];
        loop {
            match self.decoder.take()? {
                Some(Reply::Refused { errno, why }) => return Err(Error::Refused { errno, why }),
                Some(reply) => return Ok(reply),
                None => {}
            }
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(count) => self.decoder.push(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
