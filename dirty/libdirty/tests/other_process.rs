// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tracking another process: it is found what it writes, and the process does not notice.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use libdirty::{BackendKind, Dirty, Error, PageRange, Reason, Tracker, page_size};

/// A process that writes pages of its memory on request: `w N` writes page N, `x` calls execve, `q` ends. Each
/// command is answered by a line. Meanwhile a second thread of it sleeps over and over, and counts how often that
/// was cut short.
const PYTHON: &str = r#"
import ctypes, errno, mmap, os, sys, threading, time
page = mmap.PAGESIZE
memory = mmap.mmap(-1, 64 * page)
for index in range(64):
    memory[index * page] = 1
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
short = 0
def sleeper():
    global short
    while True:
        begin = time.monotonic()
        time.sleep(0.01)
        short += time.monotonic() - begin < 0.01
threading.Thread(target=sleeper, daemon=True).start()
print(address, flush=True)
for line in sys.stdin:
    words = line.split()
    if words[0] == "w":
        index = int(words[1])
        memory[index * page] = (memory[index * page] + 1) % 256
        print("ok", flush=True)
    elif words[0] == "short":
        print(short, flush=True)
    elif words[0] == "x":
        os.execvp("sleep", ["sleep", "1000"])
    else:
        break
"#;

struct Writer {
    child: Child,
    input: ChildStdin,
    output: BufReader<std::process::ChildStdout>,
    range: PageRange,
}

impl Writer {
    fn start() -> Self {
        let mut child = Command::new("/usr/bin/python3")
            .args(["-c", PYTHON])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 starts");
        let input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let range = PageRange::from_length(line.trim().parse().unwrap(), 64 * page_size()).unwrap();
        Writer { child, input, output, range }
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn ask(&mut self, command: &str) -> String {
        writeln!(self.input, "{command}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().into()
    }

    fn write(&mut self, page: usize) {
        assert_eq!(self.ask(&format!("w {page}")), "ok");
    }

    fn descriptors(&self) -> Vec<String> {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid()))
            .unwrap()
            .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
            .map(|link| link.to_string_lossy().into_owned())
            .collect()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pages(dirty: &Dirty, range: PageRange) -> Vec<usize> {
    dirty
        .mapped()
        .flat_map(|part| (part.start()..part.end()).step_by(page_size()))
        .map(|address| (address - range.start()) / page_size())
        .collect()
}

/// Wait until a process is seen in a state; on a busy host that may take long.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < Duration::from_secs(60), "still not: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Those that work here for another process.
fn back_ends() -> Vec<BackendKind> {
    libdirty::survey()
        .into_iter()
        .filter(|finding| finding.rejected.is_none() && finding.backend.capabilities().other_process)
        .map(|finding| finding.backend)
        .collect()
}

#[test]
fn finds_what_it_writes_and_leaves_it_as_it_was() {
    for backend in back_ends() {
        let mut writer = Writer::start();
        let before = writer.descriptors();
        let mut tracker = Tracker::builder().backend(backend).process(writer.pid()).unwrap();
        tracker.watch(writer.range).unwrap();
        let mut dirty = Dirty::new();
        for written in [&[3, 5][..], &[], &[5, 6, 63], &[5]] {
            for page in written {
                writer.write(*page);
            }
            tracker.collect(&mut dirty).unwrap();
            assert_eq!(pages(&dirty, writer.range), written, "{backend}");
        }
        drop(tracker);
        writer.write(7);
        assert_eq!(writer.descriptors(), before, "{backend}");
        let smaps = std::fs::read_to_string(format!("/proc/{}/smaps", writer.pid())).unwrap();
        let watched =
            smaps.lines().filter(|line| line.starts_with("VmFlags") && line.contains(" uw")).count();
        assert_eq!(watched, 0, "{backend}");
    }
}

#[test]
fn attaching_many_times_cuts_no_system_call_short() {
    // The main thread waits in read(2), the other in a sleep: both must go on as if nothing had happened.
    let mut writer = Writer::start();
    if !back_ends().contains(&BackendKind::UffdAsync) {
        return;
    }
    for round in 0..200 {
        let mut tracker = Tracker::builder().backend(BackendKind::UffdAsync).process(writer.pid()).unwrap();
        tracker.watch(writer.range).unwrap();
        if round % 10 == 0 {
            writer.write(round % 64);
            let mut dirty = Dirty::new();
            tracker.collect(&mut dirty).unwrap();
            assert_eq!(pages(&dirty, writer.range), [round % 64]);
        }
    }
    assert_eq!(writer.ask("short"), "0");
}

#[test]
fn a_stopped_process_stays_stopped() {
    let mut writer = Writer::start();
    if !back_ends().contains(&BackendKind::UffdAsync) {
        return;
    }
    let signal = |signal| {
        // SAFETY: a signal to our own child.
        assert_eq!(unsafe { libc::kill(writer.child.id() as i32, signal) }, 0);
    };
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", writer.child.id())).unwrap();
        stat.rsplit(')').next().unwrap().trim().chars().next().unwrap()
    };
    signal(libc::SIGSTOP);
    wait_until("stopped", || state() == 'T');
    let tracker = Tracker::builder().backend(BackendKind::UffdAsync).process(writer.pid()).unwrap();
    // It may have to be scheduled once to stop again.
    wait_until("stopped again", || state() == 'T');
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(state(), 'T');
    signal(libc::SIGCONT);
    writer.write(1);
    drop(tracker);
}

#[test]
fn exec_and_exit_are_told_once() {
    for backend in back_ends() {
        for (command, reason) in [("x", Reason::Exec), ("q", Reason::Exited)] {
            let mut writer = Writer::start();
            let mut tracker = Tracker::builder().backend(backend).process(writer.pid()).unwrap();
            tracker.watch(writer.range).unwrap();
            writeln!(writer.input, "{command}").unwrap();
            let mut rest = String::new();
            if command == "q" {
                writer.output.read_to_string(&mut rest).unwrap();
                writer.child.wait().unwrap();
            } else {
                while std::fs::read_to_string(format!("/proc/{}/comm", writer.pid())).unwrap() != "sleep\n" {}
            }
            let mut dirty = Dirty::new();
            tracker.collect(&mut dirty).unwrap();
            let reported: Vec<_> =
                dirty.extents().iter().map(|extent| (extent.range, extent.reason)).collect();
            assert_eq!(reported, [(writer.range, reason)], "{backend}");
            assert!(matches!(tracker.collect(&mut dirty), Err(Error::Gone(_))), "{backend}");
        }
    }
}

#[test]
fn a_killed_process_is_told_to_have_ended() {
    // Its memory goes before its end can be seen: that must not be taken for execve.
    for _ in 0..20 {
        let mut writer = Writer::start();
        let Some(backend) = back_ends().first().copied() else { return };
        let mut tracker = Tracker::builder().backend(backend).process(writer.pid()).unwrap();
        tracker.watch(writer.range).unwrap();
        writer.child.kill().unwrap();
        let mut dirty = Dirty::new();
        while !matches!(tracker.collect(&mut dirty), Ok(()) if !dirty.is_empty()) {}
        assert_eq!(dirty.extents()[0].reason, Reason::Exited);
    }
}

#[test]
fn refuses_what_it_must_not_touch() {
    assert!(matches!(Tracker::builder().process(0), Err(Error::NoProcess(0))));
    assert!(matches!(Tracker::builder().process(-5), Err(Error::NoProcess(-5))));
    assert!(matches!(Tracker::builder().process(i32::MAX), Err(Error::NoProcess(_))));
    // A forbidden system call kills under strict seccomp: such a process calls something only while that is suspended.
    let mut strict = Command::new("/usr/bin/python3");
    strict.args(["-c", "import ctypes; print(1, flush=True)\nctypes.CDLL(None).prctl(22, 1)\nwhile 1: pass"]);
    let mut child = strict.stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    wait_until("under seccomp", || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        status.contains("Seccomp:\t1")
    });
    let outcome = Tracker::builder().backend(BackendKind::UffdAsync).process(child.id() as i32);
    std::thread::sleep(Duration::from_millis(50));
    let alive = child.try_wait().unwrap().is_none();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        match &outcome {
            Ok(_) => true,
            Err(Error::Rejected { why, .. }) => why.contains("seccomp"),
            Err(_) => false,
        },
        "{outcome:?}"
    );
    assert!(alive);
}
