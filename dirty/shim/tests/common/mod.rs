// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the tests share: C programs are compiled and run, with and without the shim.

#![allow(dead_code, reason = "each test program uses a part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use libdirty::BackendKind;

/// How a program is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shim {
    /// Without it.
    Absent,
    /// With it; "force", so that it answers on kernels with soft-dirty too.
    Present,
}

/// Whether the shim can track here; says so loudly if not.
pub fn can_track() -> bool {
    let survey = libdirty::survey();
    let Some(finding) = survey.iter().find(|finding| finding.backend == BackendKind::UffdAsync) else {
        return false;
    };
    if let Some(why) = &finding.rejected {
        eprintln!("SKIPPED: the shim cannot track here: {why}");
    }
    finding.rejected.is_none()
}

/// The library under test, which cargo builds next to the test program. (The one a folder above may be older.)
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("this program has a path");
    let library = test.with_file_name("libdirty_softdirty.so");
    assert!(library.exists(), "{} is missing", library.display());
    library
}

/// Compile `tests/c/NAME.c`.
pub fn compile(name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(format!("{name}.c"));
    // One file for each test, for they run side by side.
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("main").replace("::", "-");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{test}"));
    let output = Command::new("gcc")
        .args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&program)
        .arg(&source)
        .args(flags)
        .output()
        .expect("gcc runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// A command that runs `program` with the shim or without.
pub fn command(program: impl AsRef<std::ffi::OsStr>, shim: Shim) -> Command {
    let mut command = Command::new(program);
    command.env_remove("LD_PRELOAD").stdin(Stdio::null());
    let words = match shim {
        Shim::Absent => return command,
        Shim::Present => "force,verbose",
    };
    command.env("LD_PRELOAD", library()).env("LIBDIRTY_SOFTDIRTY", words);
    command
}

/// Run it to its end; one that hangs is killed and the test fails.
pub fn run(mut command: Command) -> Output {
    let started = Instant::now();
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let pid = i32::try_from(child.id()).expect("a pid is an i32");
    let killer = std::thread::spawn(move || {
        while started.elapsed() < Duration::from_secs(300) {
            // SAFETY: signal 0 only asks; the process is a child that is waited for below.
            if unsafe { libc::kill(pid, 0) } != 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        // SAFETY: as above.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    });
    let _ = child.stdin.take();
    let output = child.wait_with_output().expect("a child can be waited for");
    killer.join().expect("the killer does not panic");
    output
}

/// Both of its outputs, for the message of an assertion.
pub fn text(output: &Output) -> String {
    format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
