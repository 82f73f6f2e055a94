// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The holder that knows in one run of criu what was written since the last: found, or started.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use libdirty::BackendKind;
use libdirty_hold::Client;
use libdirty_hold::protocol::Process;

use super::HOLD;

/// Seconds after which a holder that was started here ends, when nothing is tracked any more.
const IDLE: &str = "60";

/// The socket: `named`, or what the environment names, or where this user's sockets are. By its whole path.
pub(super) fn socket(named: Option<PathBuf>) -> Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // SAFETY: takes nothing.
    let is_root = unsafe { libc::geteuid() } == 0;
    let folder = || if is_root { Some(PathBuf::from("/run")) } else { variable("XDG_RUNTIME_DIR") };
    let path = named
        .or_else(|| variable(HOLD))
        .or_else(|| folder().map(|folder| folder.join("trapless-dirty-hold.socket")))
        .with_context(|| format!("XDG_RUNTIME_DIR is not set: name a socket by --hold or {HOLD}"))?;
    std::path::absolute(&path).with_context(|| format!("{} is no path", path.display()))
}

/// Who is to say what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// A holder; one that is started takes this back end, or the cheapest that works.
    Holder(Option<BackendKind>),
    /// The kernel's soft-dirty bits, which criu reads by itself.
    Kernel,
}

/// The source, with a holder at `socket` or one that is to be started. libdirty's own soft-dirty stops a process to read
/// and clear its bits in one; while criu holds the process it cannot, and would call everything dirty.
pub(super) fn source(socket: &Path, backend: Option<BackendKind>) -> Result<Source> {
    if backend == Some(BackendKind::SoftDirty) {
        bail!("soft-dirty cannot be held for criu, which reads the kernel's bits itself: run criu alone");
    }
    if backend.is_some() || Client::connect(socket).is_ok() {
        return Ok(Source::Holder(backend));
    }
    let works =
        |kind: BackendKind, rejected: Option<&str>| rejected.is_none() && kind.capabilities().other_process;
    let survey = libdirty::survey();
    match survey
        .iter()
        .find(|found| works(found.backend, found.rejected.as_deref()))
        .map(|found| found.backend)
    {
        Some(BackendKind::SoftDirty) => Ok(Source::Kernel),
        Some(_) => Ok(Source::Holder(None)),
        None => bail!("no back end can track another process here; trapless doctor says why"),
    }
}

/// A connection to the holder at `socket`, which is started if nobody listens there.
pub(super) fn find_or_start(socket: &Path, backend: Option<BackendKind>) -> Result<Client> {
    if let Ok(client) = Client::connect(socket) {
        return Ok(client);
    }
    let started = start(socket, backend);
    // Another may have been started meanwhile, and then ours refused to listen.
    match (Client::connect(socket), started) {
        (Ok(client), _) => Ok(client),
        (Err(_), Err(why)) => Err(why),
        (Err(error), Ok(())) => Err(error).context("the holder that was started does not answer"),
    }
}

/// Start a holder in a session of its own, so that it outlives the terminal; it listens when this returns.
fn start(socket: &Path, backend: Option<BackendKind>) -> Result<()> {
    let own = std::env::current_exe().context("cannot find out where trapless is installed")?;
    let (mut said, says) = std::io::pipe()?;
    let mut command = Command::new(own);
    command.args(["dirty", "hold", "--idle", IDLE, "--socket"]).arg(socket);
    if let Some(backend) = backend {
        command.args(["--backend", backend.name()]);
    }
    command.stdin(Stdio::null()).stdout(says.try_clone()?).stderr(says).current_dir("/");
    // SAFETY: one system call, which may be made after a fork.
    unsafe {
        command.pre_exec(|| if libc::setsid() < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) });
    }
    command.spawn().context("cannot start a holder")?;
    drop(command); // our ends of the pipe
    let (mut text, mut bytes) = (String::new(), [0; 256]);
    loop {
        let count = said.read(&mut bytes).context("cannot hear of the holder")?;
        text.push_str(&String::from_utf8_lossy(&bytes[..count]));
        if text.contains("holding: ") {
            return Ok(());
        }
        if count == 0 {
            bail!("no holder could be started: {}", text.trim().trim_start_matches("trapless: "));
        }
    }
}

/// Have a process and all below it tracked before criu stops them: once they are frozen nobody can attach to them.
pub(super) fn track_tree(client: &mut Client, root: i32) {
    let mut waiting = vec![root];
    while let Some(pid) = waiting.pop() {
        if let Err(error) = client.track(Process { pid, start: 0 }, true)
            && (pid == root || error.errno() != libc::ESRCH)
        {
            crate::output::remark!(
                "trapless: process {pid} is not tracked, all of it counts as dirty: {error}"
            );
        }
        waiting.extend(children(pid));
    }
}

/// The children of all threads of a process.
fn children(pid: i32) -> Vec<i32> {
    let Ok(process) = procfs::process::Process::new(pid) else { return Vec::new() };
    let Ok(tasks) = process.tasks() else { return Vec::new() };
    let lists = tasks.flatten().filter_map(|task| task.children().ok());
    lists.flatten().filter_map(|child| i32::try_from(child).ok()).collect()
}
