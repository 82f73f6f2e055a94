// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SIGINT, SIGTERM and SIGHUP request the end: the loop that waits here notices it, and cleans up. The handler only
//! writes a byte to a pipe, so the request stays until it is [taken](Stop::take).

use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Listens for the request to stop, from its creation on.
#[derive(Debug)]
pub struct Stop {
    asked: UnixStream,
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// The time is over.
    Time,
    /// A signal requested the end.
    Stop,
    /// This one of the other descriptors is ready.
    Ready(usize),
}

impl Stop {
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let (stop, ask) = Stop::asked_by()?;
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            if !is_ignored(signal) {
                signal_hook::low_level::pipe::register(signal, ask.try_clone()?)?;
            }
        }
        Ok(stop)
    }

    /// Without signals: a byte that is written to the other end is a request.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn asked_by() -> io::Result<(Self, UnixStream)> {
        let (asked, ask) = UnixStream::pair()?;
        asked.set_nonblocking(true)?;
        Ok((Stop { asked }, ask))
    }

    /// Whether there was a request since the last call; it is answered with that, and only another one ends a wait.
    pub fn take(&self) -> bool {
        let mut was_asked = false;
        while matches!((&self.asked).read(&mut [0; 64]), Ok(1..)) {
            was_asked = true;
        }
        was_asked
    }

    /// Wait until `until`, a request to stop, or one of `others`.
    ///
    /// # Errors
    /// Those of `poll(2)`.
    pub fn wait(&self, until: Instant, others: &[BorrowedFd<'_>]) -> io::Result<Woken> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
            let mut fds = vec![PollFd::new(&self.asked, PollFlags::IN)];
            fds.extend(others.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
            match poll(&mut fds, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if let Some(ready) = fds.iter().position(|fd| !fd.revents().is_empty()) {
                return Ok(ready.checked_sub(1).map_or(Woken::Stop, Woken::Ready));
            }
            if Instant::now() >= until {
                return Ok(Woken::Time);
            }
        }
    }
}

/// Readable once the end was requested.
impl AsRawFd for Stop {
    fn as_raw_fd(&self) -> RawFd {
        self.asked.as_raw_fd()
    }
}

/// Whether the parent process has the signal ignored, as `nohup` does.
fn is_ignored(signal: i32) -> bool {
    // SAFETY: the struct is plain data, for which zero is a value.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks only: no new action, and `now` is there to be written.
    let done = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut now) };
    done == 0 && now.sa_sigaction == libc::SIG_IGN
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_request_stays_until_it_is_taken() {
        let (stop, mut ask) = Stop::asked_by().unwrap();
        let soon = || stop.wait(Instant::now() + Duration::from_millis(5), &[]).unwrap();
        assert_eq!(soon(), Woken::Time);
        assert!(!stop.take());
        ask.write_all(b"xx").unwrap();
        assert_eq!((soon(), soon()), (Woken::Stop, Woken::Stop));
        assert!(stop.take() && !stop.take());
        assert_eq!(soon(), Woken::Time);
        ask.write_all(b"x").unwrap();
        assert_eq!(soon(), Woken::Stop);
    }
}
