// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `trapless dirty verify`: does tracking miss a write on this kernel? Each back end that works here is judged by the
//! cases of `dirty-conformance`, which compares memory, in processes of its own.
//!
//! Invariant: nothing is called verified that was not judged. A judge that is missing, breaks off or finds nothing to
//! judge is a failure; what the time did not suffice for is counted and named. When this process ends, however it
//! does, the judge ends as well.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use libdirty::BackendKind;
use serde::Serialize;

use crate::doctor::host::Host;
use crate::output::{self, printable};
use crate::parse;
use crate::stop::{Stop, Woken};

const JUDGE: &str = "dirty-conformance";

/// Lines that are kept of what the judge says of a case that failed.
const SAID: usize = 12;

const HELP: &str = "\
The end of the output is the verdict; all of it can be sent to a colleague. The
tracked memory is that of processes that this command starts; nothing else on
the host is touched, and nothing stays.

Exit code 0 if every case that was reached held for every back end, 1 if one
missed a write, nothing could be judged, or a signal came first.";

/// For how long, and what.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    /// Seconds for all back ends together; those that are done early leave theirs to the next
    #[arg(long, value_name = "S", default_value = "60", value_parser = parse::seconds)]
    budget: Duration,
    /// Only this back end; may be given again
    #[arg(long, value_name = "NAME", value_parser = parse::backend)]
    backend: Vec<BackendKind>,
    /// The program dirty-conformance [default: the one beside this program, or in PATH]
    #[arg(long, value_name = "FILE")]
    judge: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What was found.
#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    host: Host,
    /// The judge, and what it calls itself.
    judge: PathBuf,
    judge_version: Option<String>,
    holds: bool,
    /// A signal came before the end.
    stopped: bool,
    back_ends: Vec<Judged>,
    /// Those that the signal came before.
    not_begun: Vec<&'static str>,
    rejected: Vec<Rejected>,
}

/// A back end that does not work here.
#[derive(Debug, Serialize)]
struct Rejected {
    back_end: &'static str,
    why: String,
}

/// The cases of one back end.
#[derive(Debug, Default, Serialize)]
struct Judged {
    back_end: &'static str,
    cases: usize,
    held: usize,
    not_applicable: usize,
    failed: Vec<Failed>,
    /// Cases for which there was no time.
    not_reached: usize,
    /// Why the judge broke off.
    broken: Option<String>,
    /// A signal requested the end.
    #[serde(skip)]
    stopped: bool,
    /// The lines to come are about the case that failed last.
    #[serde(skip)]
    is_explained: bool,
}

/// A case that failed.
#[derive(Debug, Serialize)]
struct Failed {
    case: String,
    /// The first lines that the judge says of it.
    said: Vec<String>,
}

impl Judged {
    fn holds(&self) -> bool {
        self.held > 0 && self.failed.is_empty() && self.broken.is_none()
    }

    /// Take a line of the Test Anything Protocol.
    fn take(&mut self, line: &str) {
        if let Some(failed) = self.failed.last_mut().filter(|_| self.is_explained) {
            if line.starts_with([' ', '#']) {
                if failed.said.len() < SAID && !["---", "..."].contains(&line.trim()) {
                    failed.said.push(line.trim_end().to_owned());
                }
                return;
            }
            self.is_explained = false;
        }
        if let Some(count) = line.strip_prefix("1..") {
            self.cases = count.parse().unwrap_or(0);
        } else if let Some(why) = line.strip_prefix("Bail out! ") {
            self.broken = Some(why.to_owned());
        } else if let Some(case) = line.strip_prefix("not ok ") {
            self.failed.push(Failed { case: name(case).to_owned(), said: Vec::new() });
            self.is_explained = true;
        } else if line.starts_with("ok ") {
            if line.contains(" # SKIP") { self.not_applicable += 1 } else { self.held += 1 }
        }
    }

    fn seen(&self) -> usize {
        self.held + self.not_applicable + self.failed.len()
    }
}

/// `12 - name (own process)` without its number.
fn name(case: &str) -> &str {
    case.split_once(" - ").map_or(case, |(_, name)| name)
}

/// Judge and print.
///
/// # Errors
/// No judge, no back end, or the output cannot be written.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let judge = arguments.judge.clone().map_or_else(find, Ok)?;
    let (mut works, mut rejected) = (Vec::new(), Vec::new());
    for finding in libdirty::survey() {
        let wanted = arguments.backend.is_empty() || arguments.backend.contains(&finding.backend);
        match finding.rejected {
            None if wanted => works.push(finding.backend),
            None => {}
            Some(why) if arguments.backend.contains(&finding.backend) => bail!("{}: {why}", finding.backend),
            Some(why) => rejected.push(Rejected { back_end: finding.backend.name(), why }),
        }
    }
    ensure!(!works.is_empty(), "no back end works here; see: trapless doctor");
    let stop = Stop::new().context("cannot listen for signals")?;
    let judge_version = version(&judge, &stop)?;
    let end = Instant::now() + arguments.budget;
    let (mut back_ends, mut not_begun): (Vec<Judged>, Vec<_>) = (Vec::new(), Vec::new());
    for (done, kind) in works.iter().enumerate() {
        if back_ends.last().is_some_and(|last| last.stopped) {
            not_begun.extend(works[done..].iter().map(|kind| kind.name()));
            break;
        }
        let left = end.saturating_duration_since(Instant::now());
        let share = left / u32::try_from(works.len() - done).expect("few back ends");
        back_ends.push(judged(&judge, kind.name(), share, &stop)?);
    }
    let stopped = back_ends.iter().any(|one| one.stopped);
    let holds = !stopped && back_ends.iter().all(Judged::holds);
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        host: Host::look()?,
        judge,
        judge_version,
        holds,
        stopped,
        back_ends,
        not_begun,
        rejected,
    };
    output::line(&if arguments.json { serde_json::to_string(&report)? } else { text(&report) })?;
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The judge beside this program, or in PATH.
fn find() -> Result<PathBuf> {
    let beside = std::env::current_exe().context("this program")?.with_file_name(JUDGE);
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::iter::once(beside)
        .chain(std::env::split_paths(&path).map(|folder| folder.join(JUDGE)))
        .find(|file| file.is_file())
        .with_context(|| format!("{JUDGE} is not installed: it is in the package libdirty-tools"))
}

/// Start the judge, which does not outlive us.
fn start(judge: &Path, arguments: &[&str]) -> Result<Group> {
    let us = std::process::id();
    let mut command = Command::new(judge);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0);
    // SAFETY: two system calls, allowed between fork and exec.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            // We may have ended before that.
            if u32::try_from(libc::getppid()) == Ok(us) {
                Ok(())
            } else {
                Err(io::Error::from(io::ErrorKind::NotFound))
            }
        });
    }
    Ok(Group(command.spawn().with_context(|| format!("cannot start {}", judge.display()))?))
}

/// Why no more lines are read.
enum Ended {
    Itself(ExitStatus),
    Time,
    Signal,
}

/// Take the judge's lines until its end, `end`, or a signal.
fn follow(running: &mut Group, end: Instant, stop: &Stop, mut take: impl FnMut(&str)) -> Result<Ended> {
    let mut out = running.0.stdout.take().expect("it is a pipe");
    let (mut pending, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        match stop.wait(end, &[out.as_fd()]).context("waiting for the judge")? {
            Woken::Stop => return Ok(Ended::Signal),
            Woken::Ready(_) if Instant::now() < end => {}
            Woken::Ready(_) | Woken::Time => return Ok(Ended::Time),
        }
        let length = out.read(&mut chunk).context("reading what the judge says")?;
        pending.extend_from_slice(&chunk[..length]);
        if length == 0 && !pending.is_empty() {
            pending.push(b'\n');
        }
        while let Some(at) = pending.iter().position(|byte| *byte == b'\n') {
            take(&String::from_utf8_lossy(&pending[..at]));
            pending.drain(..=at);
        }
        if length == 0 {
            break;
        }
    }
    // It has nothing more to say, and may yet run.
    loop {
        if let Some(status) = running.0.try_wait().context("waiting for the judge")? {
            return Ok(Ended::Itself(status));
        }
        let soon = Instant::now() + Duration::from_millis(5);
        match stop.wait(soon.min(end), &[]).context("waiting for the judge")? {
            Woken::Stop => return Ok(Ended::Signal),
            _ if Instant::now() >= end => return Ok(Ended::Time),
            _ => {}
        }
    }
}

/// What the judge calls itself.
fn version(judge: &Path, stop: &Stop) -> Result<Option<String>> {
    let mut first = None;
    let end = Instant::now() + Duration::from_secs(5);
    let ended = follow(&mut start(judge, &["--version"])?, end, stop, |line| {
        first.get_or_insert_with(|| line.to_owned());
    })?;
    Ok(first.filter(|_| matches!(ended, Ended::Itself(status) if status.success())))
}

/// Run the judge for one back end until it ends, the time is over, or a signal requests the end.
fn judged(judge: &Path, back_end: &'static str, time: Duration, stop: &Stop) -> Result<Judged> {
    let mut running = start(judge, &["--backend", back_end, "--seconds", "0.5", "--rounds", "20"])?;
    let mut found = Judged { back_end, ..Judged::default() };
    match follow(&mut running, Instant::now() + time, stop, |line| found.take(line))? {
        Ended::Time => {}
        Ended::Signal => found.stopped = true,
        Ended::Itself(status) => {
            if found.broken.is_none() && (found.cases == 0 || found.seen() < found.cases) {
                found.broken =
                    Some(format!("it ended after {} of {} cases: {status}", found.seen(), found.cases));
            }
        }
    }
    found.not_reached = found.cases.saturating_sub(found.seen());
    Ok(found)
}

/// The judge and every process that it has started: ended with this value.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        if let Ok(Some(_)) = self.0.try_wait() {
            return;
        }
        let group = rustix::process::Pid::from_child(&self.0);
        // It is a child that was not waited for, so its group is still its own.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.0.wait();
    }
}

fn text(report: &Report) -> String {
    let host = &report.host;
    let mut lines = vec![
        format!(
            "trapless {}, {}, {}, {}",
            report.version,
            host.kernel,
            host.machine,
            output::number_of(host.cpus, "CPU")
        ),
        format!(
            "Each case compares all memory with what the back end reported. Judge: {} ({})",
            report.judge.display(),
            report.judge_version.as_deref().map_or_else(|| "it does not say its version".into(), printable)
        ),
    ];
    for one in &report.back_ends {
        lines.push(format!(
            "{:11} {} of {} cases held, {} not applicable, {} failed, {} not reached",
            one.back_end,
            one.held,
            one.cases,
            one.not_applicable,
            one.failed.len(),
            one.not_reached
        ));
        for failed in &one.failed {
            lines.push(format!("            FAILED {}", printable(&failed.case)));
            lines.extend(failed.said.iter().map(|line| format!("              {}", printable(line))));
        }
        lines.extend(one.broken.iter().map(|why| format!("            BROKE OFF {}", printable(why))));
    }
    lines.extend(report.not_begun.iter().map(|name| format!("{name:11} not begun")));
    lines.extend(report.rejected.iter().map(|one| format!("{:11} not here: {}", one.back_end, one.why)));
    let is_bad = |one: &Judged| !one.failed.is_empty() || one.broken.is_some();
    lines.push(if report.stopped && !report.back_ends.iter().any(is_bad) {
        "Stopped by a signal: not finished. No write was missed in the cases that were reached.".to_owned()
    } else if report.holds && report.back_ends.iter().any(|one| one.not_reached > 0) {
        "Verified: no write was missed in the cases that were reached; --budget is for more.".to_owned()
    } else if report.holds {
        "Verified: no write was missed.".to_owned()
    } else {
        format!("NOT verified. More of a case: {JUDGE} --backend NAME --case CASE")
    });
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::program;

    /// A judge that says this.
    fn says(script: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let judge = folder.path().join(JUDGE);
        program(&judge, &format!("#!/bin/sh\n{script}\n"));
        (folder, judge)
    }

    fn judge(script: &str, time: Duration) -> Judged {
        let (_folder, judge) = says(script);
        judged(&judge, "mprotect", time, &Stop::asked_by().unwrap().0).unwrap()
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn every_line_is_counted() {
        let found = judge(
            "echo 1..3; echo 'ok 1 - a (own process)'; echo 'not ok 2 - b'; echo 'ok 3 - c # SKIP none'",
            LONG,
        );
        assert_eq!((found.held, found.not_applicable, found.not_reached), (1, 1, 0));
        assert_eq!(found.failed[0].case, "b");
        assert!(!found.holds() && found.broken.is_none());
        assert!(judge("echo 1..1; echo 'ok 1 - a'", LONG).holds());
    }

    #[test]
    fn what_is_said_of_a_case_that_failed_is_kept() {
        let script = "echo 1..4; echo 'ok 1 - a'; echo '# not this'; echo 'not ok 2 - b'; echo '  ---'
            echo '  missed: 7'; echo '# page 3'; echo '  ...'; echo 'not ok 3 - c'
            for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14; do echo \"# $n\"; done; echo 'ok 4 - d'";
        let found = judge(script, LONG);
        assert_eq!(found.failed[0].said, ["  missed: 7", "# page 3"]);
        assert_eq!(found.failed[1].said.len(), SAID);
        assert_eq!((found.held, found.seen()), (2, 4));
    }

    #[test]
    fn a_judge_that_breaks_off_is_no_success() {
        for script in
            ["exit 0", "echo 1..2; echo 'ok 1 - a'", "echo 'Bail out! no back end'; exit 2", "kill -9 $$"]
        {
            let found = judge(script, LONG);
            assert!(!found.holds() && found.broken.is_some(), "{script}: {found:?}");
        }
        assert!(!judge("echo 1..1; echo 'ok 1 - a # SKIP'", LONG).holds(), "nothing was judged");
    }

    #[test]
    fn what_there_was_no_time_for_is_counted_and_nothing_stays() {
        let (folder, judge) = says("echo 1..9; echo 'ok 1 - a'; sleep 60 & echo $! >$0.child; wait");
        let since = Instant::now();
        let stop = Stop::asked_by().unwrap();
        let found = judged(&judge, "mprotect", Duration::from_millis(700), &stop.0).unwrap();
        assert!(since.elapsed() < Duration::from_secs(20));
        assert_eq!((found.held, found.not_reached), (1, 8));
        assert!(found.holds(), "what was reached held");
        let child = std::fs::read_to_string(folder.path().join(format!("{JUDGE}.child"))).unwrap();
        // It was killed; on a busy machine it ends a moment later.
        let runs = || {
            std::fs::read_to_string(format!("/proc/{}/stat", child.trim()))
                .is_ok_and(|state| !state.contains(") Z "))
        };
        while runs() {
            assert!(since.elapsed() < Duration::from_secs(20), "the judge's child runs on");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
