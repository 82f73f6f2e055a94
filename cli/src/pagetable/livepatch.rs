// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The payload in Xen, through Debian's xen-livepatch.
//!
//! The tool's exit code is not trusted: it is 0 even if the tool cannot reach Xen. Instead Xen's list of payloads is
//! read again after every step.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::host::Host;
use super::part::PAYLOAD;
use super::platform::Xen;

/// Xen gives up if it cannot stop all its CPUs in time; nothing has changed then.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(300);

/// A payload that Xen has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub name: String,
    pub state: State,
}

/// A payload's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Uploaded, not applied.
    Checked,
    /// Applied.
    Applied,
    /// Any other state.
    Other(String),
}

/// A way to reach Xen's live patching.
pub struct Livepatch<'a> {
    host: &'a Host,
    program: PathBuf,
}

/// The tool's error message.
struct Failure {
    errno: Option<i32>,
    text: String,
}

impl<'a> Livepatch<'a> {
    /// # Errors
    /// When the tool, or its way to Xen, is missing.
    pub fn find(host: &'a Host, xen: &Xen) -> Result<Self> {
        let own = host.path(format!("/usr/lib/xen-{}/bin/xen-livepatch", xen.release));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into(), "/bin".into()]);
        let program = std::iter::once(own)
            .chain(folders.map(|folder| host.path(folder).join("xen-livepatch")))
            .find(|file| file.is_file())
            .with_context(|| {
                format!("xen-livepatch is missing: install Debian's package xen-utils-{}", xen.release)
            })?;
        if !host.has("/dev/xen/privcmd") {
            bail!("/dev/xen/privcmd is missing, so nothing reaches Xen: modprobe xen-privcmd");
        }
        Ok(Livepatch { host, program })
    }

    /// Xen's present list.
    ///
    /// # Errors
    /// When the answer is not a list.
    pub fn list(&self) -> Result<Vec<Listed>> {
        let (_, out) = self.run(&["list".as_ref()])?;
        parse(&out).with_context(|| format!("xen-livepatch list gave no list: {}", one_line(&out)))
    }

    /// Our payload's state; nothing if Xen does not have it.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub fn state(&self) -> Result<Option<State>> {
        Ok(self.list()?.into_iter().find(|listed| listed.name == PAYLOAD).map(|listed| listed.state))
    }

    /// Upload and apply the payload in this file. After an error it is not there.
    ///
    /// # Errors
    /// When Xen refuses it, with Xen's reason.
    pub fn load(&self, file: &Path) -> Result<()> {
        // Left behind by an interrupted load; it may be of another build.
        if self.state()? == Some(State::Checked) {
            self.step("unload", None, None)?;
        }
        self.step("upload", Some(file), Some(&State::Checked))?;
        if let Err(error) = self.step("apply", None, Some(&State::Applied)) {
            return Err(match self.step("unload", None, None) {
                Ok(()) => error,
                Err(also) => error.context(format!("it stays in Xen, not applied: {also:#}")),
            });
        }
        Ok(())
    }

    /// Revert and unload the payload. After an error it is applied, or only uploaded: see `state`.
    ///
    /// # Errors
    /// When Xen refuses.
    pub fn unload(&self) -> Result<()> {
        if self.state()? == Some(State::Applied) {
            self.step("revert", None, Some(&State::Checked))?;
        }
        self.step("unload", None, None)
    }

    /// One command, repeated while Xen is busy, and the state that must result.
    fn step(&self, command: &str, file: Option<&Path>, wanted: Option<&State>) -> Result<()> {
        let mut arguments: Vec<&OsStr> = vec![command.as_ref(), PAYLOAD.as_ref()];
        arguments.extend(file.map(Path::as_os_str));
        for tries in 1.. {
            let (failure, _) = self.run(&arguments)?;
            let state = self.state()?;
            if state.as_ref() == wanted {
                return Ok(());
            }
            let failure =
                failure.unwrap_or(Failure { errno: None, text: "xen-livepatch reported no error".into() });
            let busy = matches!(failure.errno, Some(libc::EBUSY | libc::EAGAIN));
            if !busy || tries == TRIES || self.host.kernel.stopped(PAUSE) {
                bail!("xen-livepatch {command}: {}{}", failure.text, explain(command, failure.errno, tries));
            }
        }
        Ok(())
    }

    /// Run the tool to its end. It has a process group of its own, so that Ctrl-C reaches only us, who wait for it.
    fn run(&self, arguments: &[&OsStr]) -> Result<(Option<Failure>, String)> {
        let output = Command::new(&self.program)
            .args(arguments)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .process_group(0)
            .output()
            .with_context(|| format!("{} cannot be started", self.program.display()))?;
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        let failure =
            (!output.status.success()).then(|| Failure { errno: errno(&text), text: one_line(&text) });
        Ok((failure, text))
    }
}

/// The number in xen-livepatch's `Error 22: Invalid argument`.
fn errno(text: &str) -> Option<i32> {
    text.lines().find_map(|line| line.strip_prefix("Error ")?.split(':').next()?.parse().ok())
}

fn one_line(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    crate::output::printable(&lines.join("; "))
}

/// An explanation for the operator.
fn explain(command: &str, errno: Option<i32>, tries: u32) -> String {
    let means = match (command, errno) {
        ("upload", Some(libc::EINVAL)) => "Xen refuses the file; xl dmesg says why",
        ("upload", Some(libc::ENOSYS | libc::EOPNOTSUPP)) => "this Xen was built without live patching",
        ("apply", Some(libc::EINVAL)) => {
            "a function of this Xen differs from what the payload expects; xl dmesg says which"
        }
        ("revert", Some(libc::EBUSY)) => {
            "pages are semi-writable or held, or Xen could not stop all CPUs; xl dmesg says which"
        }
        (_, Some(libc::EBUSY | libc::EAGAIN)) => {
            "Xen could not stop all CPUs in time; try again when the host is less busy"
        }
        (_, Some(libc::EPERM | libc::EACCES)) => "only root in dom0 may",
        _ => return String::new(),
    };
    format!(" ({means}; {tries} {})", if tries == 1 { "try" } else { "tries" })
}

/// Parse the table of `xen-livepatch list`; nothing if it is not one.
fn parse(text: &str) -> Option<Vec<Listed>> {
    if text.lines().any(|line| line.trim() == "Nothing to list") {
        return Some(Vec::new());
    }
    let mut lines = text.lines().skip_while(|line| !line.starts_with("---"));
    lines.next()?;
    Some(lines.filter_map(row).collect())
}

fn row(line: &str) -> Option<Listed> {
    let (name, rest) = line.split_once('|')?;
    let state = match rest.split('|').next()?.trim() {
        "CHECKED" => State::Checked,
        "APPLIED" => State::Applied,
        other => State::Other(crate::output::printable(other)),
    };
    Some(Listed { name: name.trim().to_owned(), state })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fake::Fake;
    use super::super::platform::Platform;
    use super::*;

    const LIST: &str = " ID                                     | status     | metadata\n\
        ----------------------------------------+------------+---------------\n\
        trapless_pagetable                      | CHECKED    | \n\
        xsa-999                                 | APPLIED    | by=hand\n";

    fn with<T>(fake: &Fake, act: impl FnOnce(&Livepatch<'_>) -> T) -> T {
        let host = fake.host();
        let Platform::Xen(xen) = Platform::look(&host) else { unreachable!() };
        act(&Livepatch::find(&host, &xen).unwrap())
    }

    #[test]
    fn reads_the_list() {
        let list = parse(LIST).unwrap();
        assert_eq!(list[0], Listed { name: PAYLOAD.into(), state: State::Checked });
        assert_eq!(list[1], Listed { name: "xsa-999".into(), state: State::Applied });
        assert_eq!(parse("Nothing to list\n"), Some(vec![]));
        assert_eq!(parse("failed to get the handler\n"), None);
        assert_eq!(errno("Uploading x... failed\nError 22: Invalid argument\n"), Some(22));
        assert_eq!(errno("Error : Error x"), None);
    }

    #[test]
    fn waits_for_a_busy_hypervisor_and_cleans_up() {
        let fake = Fake::dom0();
        let file = fake.payload();
        fake.write("/state/busy", b"3");
        with(&fake, |livepatch| livepatch.load(&file).unwrap());
        assert_eq!(fake.read("/state/payload").as_deref(), Some("APPLIED"));

        let fake = Fake::dom0();
        let file = fake.payload();
        fake.write("/state/busy", b"1000");
        let error = with(&fake, |livepatch| livepatch.load(&file).unwrap_err());
        assert!(format!("{error:#}").contains("could not stop all CPUs"), "{error:#}");
        assert!(format!("{error:#}").contains("10 tries"), "{error:#}");
        assert_eq!(fake.read("/state/payload"), None, "the upload is taken back");
    }

    #[test]
    fn an_exit_code_of_0_is_not_believed() {
        let fake = Fake::dom0();
        let file = fake.payload();
        fake.write("/state/lies", b"");
        let error = with(&fake, |livepatch| livepatch.load(&file).unwrap_err());
        assert!(format!("{error:#}").contains("reported no error"), "{error:#}");
        fake.write("/state/unreachable", b"");
        let error = with(&fake, |livepatch| livepatch.list().unwrap_err());
        assert!(format!("{error:#}").contains("failed to get the handler"), "{error:#}");
    }

    #[test]
    fn an_upload_that_was_left_is_replaced() {
        let fake = Fake::dom0();
        let file = fake.payload();
        fake.write("/state/payload", b"CHECKED");
        with(&fake, |livepatch| livepatch.load(&file).unwrap());
        assert_eq!(fake.read("/state/payload").as_deref(), Some("APPLIED"));
    }

    proptest! {
        #[test]
        fn takes_any_output(text: String) {
            let _ = (parse(&text), errno(&text), one_line(&text));
        }

        #[test]
        fn takes_any_table(rows in "[ -~\n|]{0,300}") {
            let _ = parse(&format!("---\n{rows}"));
        }
    }
}
