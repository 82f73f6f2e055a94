// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The judged program: the own process, or another that takes operations from a pipe.
//!
//! The other process is this very program, started anew with the argument `workload`; it reads one operation a line
//! (JSON) and answers each with one line. It dies with its parent.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::op::Op;
use crate::perform::Performer;

/// Which process is tracked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// The tracker's.
    Own,
    /// Another.
    Other,
}

impl Target {
    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Target::Own => "own",
            Target::Other => "other",
        }
    }
}

/// A program that executes the operations that it is sent.
#[derive(Debug)]
pub enum Workload {
    /// This process.
    Own(Performer),
    /// Another.
    Other(Channel),
    /// Another judge's: only looked at.
    Lent(i32),
}

/// The answer to one operation: its result, or `errno` and words.
type Answer = Result<i64, (Option<i32>, String)>;

impl Workload {
    /// Start it.
    ///
    /// # Errors
    /// When the process does not start.
    pub fn start(target: Target) -> io::Result<Self> {
        Ok(match target {
            Target::Own => Workload::Own(Performer::default()),
            Target::Other => Workload::Other(Channel::start()?),
        })
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> i32 {
        match self {
            Workload::Own(_) => std::process::id().cast_signed(),
            Workload::Other(channel) => channel.child.id().cast_signed(),
            Workload::Lent(pid) => *pid,
        }
    }

    /// Do one operation.
    ///
    /// # Errors
    /// That of the operation, or that the process is gone.
    pub fn perform(&mut self, op: Op) -> io::Result<i64> {
        match self {
            Workload::Own(performer) => performer.perform(op),
            Workload::Other(channel) => channel.perform(op),
            Workload::Lent(_) => Err(io::Error::other("this program is another judge's")),
        }
    }
}

/// The other process and the pipes to it.
#[derive(Debug)]
pub struct Channel {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Channel {
    fn start() -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("workload").stdin(Stdio::piped()).stdout(Stdio::piped());
        // SAFETY: one system call, allowed between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut child = command.spawn()?;
        let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("no pipes to the workload"));
        };
        let mut channel = Channel { child, requests, answers: BufReader::new(answers) };
        channel.perform(Op::Ping)?;
        Ok(channel)
    }

    fn perform(&mut self, op: Op) -> io::Result<i64> {
        let mut line = serde_json::to_string(&op)?;
        line.push('\n');
        self.requests.write_all(line.as_bytes())?;
        let mut answer = String::new();
        if self.answers.read_line(&mut answer)? == 0 {
            return Err(io::Error::other(format!("the workload ended at {op:?}: {}", self.child.wait()?)));
        }
        let answer: Answer = serde_json::from_str(&answer)?;
        if op == Op::Exec {
            return self.perform(Op::Ping); // the old program has answered; the new one does now
        }
        answer.map_err(|(errno, words)| {
            errno.map_or_else(|| io::Error::other(words), io::Error::from_raw_os_error)
        })
    }

    /// End the process and wait for it.
    ///
    /// # Errors
    /// The kernel's word.
    pub fn end(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(|_| ())
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Be the other process: take operations from standard input until it ends.
///
/// # Errors
/// When the pipes break.
pub fn serve() -> io::Result<()> {
    let mut performer = Performer::default();
    let mut requests = io::stdin().lock();
    let mut line = String::new();
    loop {
        line.clear();
        if requests.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let op: Op = serde_json::from_str(&line)?;
        let done = if op == Op::Exec { Ok(0) } else { performer.perform(op) };
        let answer: Answer = done.map_err(|error| (error.raw_os_error(), error.to_string()));
        let mut answer = serde_json::to_string(&answer)?;
        answer.push('\n');
        io::stdout().write_all(answer.as_bytes())?;
        io::stdout().flush()?;
        if op == Op::Exec {
            performer.perform(op)?; // after the answer: what is read from now on is for the new program
        }
    }
}
