// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs each scenario in a process of its own: this program, started anew with the argument `one`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::judge::Setup;
use crate::outcome::{Outcome, Verdict};
use crate::scenario;
use crate::sequence::Sequence;
use crate::subject::Subject;
use crate::sys::check;
use crate::workload::Target;

/// [`Setup`] and what to run, as sent to the process that runs it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    subject: Subject,
    target: Target,
    seconds: f64,
    what: What,
}

/// What to run.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// A scenario by name.
    Scenario(String),
    /// Generated steps.
    Sequence(Sequence),
    /// Nothing: say who is judged, in a note, or by skipping why that is not possible.
    Name,
}

impl Order {
    /// An order.
    #[must_use]
    pub fn new(setup: Setup, what: What) -> Self {
        let Setup { subject, target, seconds } = setup;
        Order { subject, target, seconds, what }
    }

    fn setup(&self) -> Setup {
        Setup { subject: self.subject.clone(), target: self.target, seconds: self.seconds }
    }

    /// Carry it out in this process.
    ///
    /// # Errors
    /// When it names what there is not.
    pub fn run(&self) -> Result<Verdict, String> {
        let setup = self.setup();
        Ok(match &self.what {
            What::Scenario(name) => {
                scenario::find(name).ok_or_else(|| format!("no scenario is called {name:?}"))?.run(setup)
            }
            What::Sequence(sequence) => sequence.run(setup),
            What::Name => match setup.subject.name() {
                Ok(name) => Verdict::Done(Outcome { notes: vec![name], ..Outcome::default() }),
                Err(why) => Verdict::Skipped(why),
            },
        })
    }

    /// Have `program` carry it out in a process of its own.
    ///
    /// # Errors
    /// When no process can be started. That it dies or hangs is a verdict.
    pub fn spawn(&self, program: &Path, limit: Duration) -> io::Result<Verdict> {
        let mut command = Command::new(program);
        command.arg("one").stdin(Stdio::piped()).stdout(Stdio::piped());
        // SAFETY: one system call, allowed between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut child = command.spawn()?;
        if let Some(mut input) = child.stdin.take() {
            // It may die before it has read all; its exit status shows that.
            let _ = input.write_all(serde_json::to_string(self)?.as_bytes());
        }
        let since = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if since.elapsed() > limit {
                child.kill()?;
                child.wait()?;
                return Ok(Verdict::Crashed(format!("hung: killed after {} s", limit.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let mut answer = String::new();
        if let Some(mut output) = child.stdout.take() {
            output.read_to_string(&mut answer)?;
        }
        if let Ok(verdict) = serde_json::from_str(&answer) {
            return Ok(verdict);
        }
        Ok(match status.signal() {
            Some(signal) => self.killed(signal),
            None => Verdict::Crashed(format!("ended without an answer: {status}")),
        })
    }

    fn killed(&self, signal: i32) -> Verdict {
        let crashed = Verdict::Crashed(format!("killed by {}", signal_name(signal)));
        // A plug-in has no such record; and is not loaded into this process, which is to live.
        let (What::Scenario(name), Subject::Backend(kind)) = (&self.what, &self.subject) else {
            return crashed;
        };
        let record = kind.capabilities().into();
        let scenario = scenario::find(name);
        if signal == libc::SIGSEGV && scenario.is_some_and(|scenario| scenario.is_fatal(&record)) {
            let notes = vec!["the kernel killed the program, as the record says".into()];
            return Verdict::Done(Outcome { notes, ..Outcome::default() });
        }
        crashed
    }
}

fn signal_name(signal: i32) -> String {
    match signal {
        libc::SIGSEGV => "SIGSEGV".into(),
        libc::SIGBUS => "SIGBUS".into(),
        libc::SIGABRT => "SIGABRT".into(),
        libc::SIGKILL => "SIGKILL (out of memory?)".into(),
        other => format!("signal {other}"),
    }
}

/// Be the process that runs one order, from standard input to standard output. What a plug-in prints goes to standard
/// error.
///
/// # Errors
/// When the order cannot be read.
pub fn serve() -> io::Result<()> {
    let mut order = String::new();
    io::stdin().read_to_string(&mut order)?;
    let order: Order = serde_json::from_str(&order)?;
    let mut answer = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    // SAFETY: two descriptors that every process is started with.
    check(unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) }.into())?;
    let verdict = order.run().map_err(io::Error::other)?;
    answer.write_all(serde_json::to_string(&verdict)?.as_bytes())
}
