// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process that writes, the tool run on it, and what the kernel reports about both.

#![allow(dead_code)] // each test program uses a part

#[path = "../../src/testing.rs"]
pub mod testing;

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Set for the process that writes: this test program, started again.
const WRITER: &str = "TRAPLESS_TEST_WRITER";
/// Pages that it writes, again and again.
pub const PAGES: usize = 256;

/// The body of the process that writes; returns at once in the test itself.
pub fn writer_body() {
    let Ok(mode) = std::env::var(WRITER) else { return };
    let mut memory = vec![0u8; PAGES * libdirty::page_size()];
    let done = Arc::new(AtomicBool::new(false));
    if mode != "runs" {
        let done = Arc::clone(&done);
        std::thread::spawn(move || {
            let _ = std::io::stdin().read_line(&mut String::new());
            done.store(true, Ordering::SeqCst);
        });
    }
    println!("\nready");
    for round in 1u64.. {
        for page in memory.chunks_mut(libdirty::page_size()) {
            page[0] = page[0].wrapping_add(1);
            std::hint::black_box(&page);
        }
        if round == 50 {
            println!("\nprogress");
        }
        if done.load(Ordering::SeqCst) {
            match mode.as_str() {
                "exits" => return,
                _ => panic!("{}", Command::new("sleep").arg("1000").exec()),
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A process that writes, ended with the test.
pub struct Writer {
    pub child: Child,
    out: BufReader<ChildStdout>,
}

impl Writer {
    /// `mode`: `runs`, or `exits` or `execs` when asked to (`go`).
    pub fn start(mode: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "writer", "--ignored", "--nocapture"])
            .env(WRITER, mode)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        wait_for_line(&mut out, "ready");
        Writer { child, out }
    }

    /// Make it do what its mode says.
    pub fn go(&mut self) {
        drop(self.child.stdin.take());
    }

    pub fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Check that it continues to write, and that nothing of the tool is left in it.
    pub fn assert_unharmed_and_untracked(&mut self) {
        assert!(self.child.try_wait().unwrap().is_none(), "the target has ended");
        let proc = Path::new("/proc").join(self.pid());
        let status = std::fs::read_to_string(proc.join("status")).unwrap();
        assert!(status.contains("TracerPid:\t0"), "still traced:\n{status}");
        for fd in std::fs::read_dir(proc.join("fd")).unwrap() {
            let target = std::fs::read_link(fd.unwrap().path()).unwrap();
            assert!(!target.to_string_lossy().contains("userfaultfd"), "a userfaultfd is left");
        }
        assert!(!self.is_tracked(), "memory is still write-protected by a userfaultfd");
        // Its CPU time increases: it is not stopped, nor in a fault that is not handled.
        let before = self.processor_time();
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.processor_time() == before {
            assert!(Instant::now() < deadline, "the target does not run");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether some mapping is registered with a userfaultfd for write protection.
    pub fn is_tracked(&self) -> bool {
        let smaps = std::fs::read_to_string(format!("/proc/{}/smaps", self.child.id())).unwrap();
        let mut flags = smaps.lines().filter_map(|line| line.strip_prefix("VmFlags:"));
        flags.any(|flags| flags.split_whitespace().any(|flag| flag == "uw"))
    }

    fn processor_time(&self) -> u64 {
        // The whole group's: the loop runs in a thread of the test harness.
        let sched = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        sched
            .map(|task| std::fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap_or_default())
            .filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok())
            .sum()
    }

    pub fn wait_for_progress(&mut self) {
        wait_for_line(&mut self.out, "progress");
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The tool at work, ended with the test.
pub struct Tool {
    child: Option<Child>,
    out: BufReader<ChildStdout>,
}

impl Tool {
    pub fn start(arguments: &[&str]) -> Self {
        let mut child = command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Tool { child: Some(child), out }
    }

    /// The next line that it prints.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line
    }

    pub fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.child.as_ref().unwrap().id()).unwrap();
        // SAFETY: sends a signal to a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    /// Wait for its end: exit code and standard error.
    pub fn end(mut self) -> (Option<i32>, String) {
        let output = self.child.take().unwrap().wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trapless"));
    command.args(arguments).stdin(Stdio::null());
    // The tests may run with ignored signals (nohup, a background job), which the tool respects.
    // SAFETY: the closure makes system calls only.
    unsafe {
        command.pre_exec(|| {
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        })
    };
    command
}

/// Run the tool to its end.
pub fn run(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// Its message must contain this, with this exit code, and standard output must be empty.
pub fn assert_refuses(output: &Output, code: i32, says: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.contains(says), "{says:?} is missing in {text:?}");
    assert!(output.stdout.is_empty());
}

fn wait_for_line(out: &mut impl BufRead, expected: &str) {
    let mut line = String::new();
    while out.read_line(&mut line).unwrap() > 0 {
        if line.trim_end() == expected {
            return;
        }
        line.clear();
    }
    panic!("the writer ended before it said {expected:?}");
}
