// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tracking another process: it is found what it writes, and the process does not notice.

mod process;

use std::time::{Duration, Instant};

use libdirty::{BackendKind, Dirty, Error, PageRange, Reason, Tracker, page_size};

use process::Answering;

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
def serve():
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
serve()
"#;

struct Writer {
    program: Answering,
    range: PageRange,
}

impl Writer {
    fn start() -> Self {
        Writer::run(PYTHON)
    }

    fn run(python: &str) -> Self {
        let (program, address) = Answering::start(python);
        let range = PageRange::from_length(address.parse().unwrap(), 64 * page_size()).unwrap();
        Writer { program, range }
    }

    fn pid(&self) -> i32 {
        self.program.pid()
    }

    fn ask(&mut self, command: &str) -> String {
        self.program.ask(command).unwrap()
    }

    fn write(&mut self, page: usize) {
        assert_eq!(self.ask(&format!("w {page}")), "ok");
    }
}

fn pages(dirty: &Dirty, range: PageRange) -> Vec<usize> {
    dirty
        .mapped()
        .filter_map(|part| part.intersection(range))
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
        let before = writer.program.descriptors();
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
        assert_eq!(writer.program.descriptors(), before, "{backend}");
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
        assert_eq!(unsafe { libc::kill(writer.pid(), signal) }, 0);
    };
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", writer.pid())).unwrap();
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
fn exec_and_exit_are_reported_once() {
    for backend in back_ends() {
        for (command, reason) in [("x", Reason::Exec), ("q", Reason::Exited)] {
            let mut writer = Writer::start();
            let mut tracker = Tracker::builder().backend(backend).process(writer.pid()).unwrap();
            tracker.watch(writer.range).unwrap();
            if command == "q" {
                writer.program.ask(command).unwrap_err();
            } else {
                writer.program.send(command).unwrap();
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
fn a_killed_process_is_reported_as_ended() {
    // Its memory goes before its end can be seen: that must not be taken for execve.
    for _ in 0..20 {
        let mut writer = Writer::start();
        let Some(backend) = back_ends().first().copied() else { return };
        let mut tracker = Tracker::builder().backend(backend).process(writer.pid()).unwrap();
        tracker.watch(writer.range).unwrap();
        writer.program.process.0.kill().unwrap();
        let mut dirty = Dirty::new();
        while !matches!(tracker.collect(&mut dirty), Ok(()) if !dirty.is_empty()) {}
        assert_eq!(dirty.extents()[0].reason, Reason::Exited);
    }
}

#[test]
fn a_process_whose_main_thread_has_ended_is_tracked() {
    const ENDED: &str = "\nthreading.Thread(target=serve).start()\nctypes.CDLL(None).syscall(60, 0)\n"; // exit(2)
    for backend in back_ends() {
        let mut writer = Writer::run(&PYTHON.replace("\nserve()\n", ENDED));
        let main = format!("/proc/{}/status", writer.pid());
        wait_until("ended", || std::fs::read_to_string(&main).unwrap().contains("State:\tZ"));
        let mut tracker = Tracker::builder().backend(backend).process(writer.pid()).unwrap();
        tracker.watch(writer.range).unwrap();
        let mut dirty = Dirty::new();
        tracker.collect(&mut dirty).unwrap();
        writer.write(9);
        tracker.collect(&mut dirty).unwrap();
        assert_eq!(pages(&dirty, writer.range), [9], "{backend}");
        drop(tracker);
        writer.write(10);
    }
}

#[test]
fn all_can_be_watched_after_a_part() {
    for backend in back_ends() {
        let mut writer = Writer::start();
        let mut tracker = Tracker::builder().backend(backend).process(writer.pid()).unwrap();
        tracker.watch(writer.range).unwrap();
        tracker.watch_all().unwrap();
        let watched: usize = tracker.ranges().iter().map(|range| range.len()).sum();
        assert_eq!(watched, PageRange::everything().len(), "{backend}");
        let mut dirty = Dirty::new();
        tracker.collect(&mut dirty).unwrap();
        writer.write(9);
        tracker.collect(&mut dirty).unwrap();
        assert!(pages(&dirty, writer.range).contains(&9), "{backend}");
        tracker.watch_all().unwrap(); // nothing is left
    }
}

#[test]
fn refuses_what_it_must_not_touch() {
    assert!(matches!(Tracker::builder().process(0), Err(Error::NoProcess(0))));
    assert!(matches!(Tracker::builder().process(-5), Err(Error::NoProcess(-5))));
    assert!(matches!(Tracker::builder().process(i32::MAX), Err(Error::NoProcess(_))));
    // A thread of this very process, and a process that has ended.
    let (id, own) = (std::sync::mpsc::channel(), std::process::id().cast_signed());
    std::thread::scope(|scope| {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            // SAFETY: takes nothing.
            id.0.send(unsafe { libc::gettid() }).unwrap();
            let _ = ended.recv();
        });
        let thread = id.1.recv().unwrap();
        let refused = Tracker::builder().process(thread);
        assert!(matches!(refused, Err(Error::Thread { process, .. }) if process == own), "{refused:?}");
        drop(end);
    });
    let mut ended = std::process::Command::new("true").spawn().unwrap();
    let pid = ended.id().cast_signed();
    wait_until("a zombie", || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") Z "));
    let refused = Tracker::builder().process(pid);
    ended.wait().unwrap();
    let error = refused.unwrap_err();
    assert!(matches!(error, Error::NoMemory(_) | Error::NoProcess(_)), "{error:?}");
    let message = error.to_string();
    assert_eq!(message.matches("os error").count(), 0, "{message}");
    assert!(std::error::Error::source(&error).is_none());
    // A forbidden system call kills under strict seccomp: such a process calls something only while that is suspended.
    let strict = "import ctypes; print(1, flush=True)\nctypes.CDLL(None).prctl(22, 1)\nwhile 1: pass";
    let (mut program, _) = Answering::start(strict);
    wait_until("under seccomp", || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", program.pid())).unwrap();
        status.contains("Seccomp:\t1")
    });
    let outcome = Tracker::builder().backend(BackendKind::UffdAsync).process(program.pid());
    std::thread::sleep(Duration::from_millis(50));
    let alive = program.process.0.try_wait().unwrap().is_none();
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

/// No reason of a back end's is given for what is none: the process has another memory by then, or has ended.
#[test]
fn a_process_that_executes_something_else_meanwhile() {
    let folder = std::env::temp_dir().join(format!("libdirty-{}-execs", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let script = folder.join("again");
    // A hundred times itself, then something that stays.
    let text = "#!/bin/sh\nn=$(($1 + 1)); [ $n -lt 100 ] || exec sleep 60; exec \"$0\" $n\n";
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut tracked = 0;
    for _ in 0..20 {
        let mut program = std::process::Command::new(&script).arg("0").spawn().unwrap();
        let pid = program.id().cast_signed();
        for _ in 0..10 {
            match Tracker::builder().process(pid) {
                Ok(_) => tracked += 1,
                Err(Error::Gone(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        program.kill().unwrap();
        // It ends while a tracker is made, too.
        let refused = Tracker::builder().process(pid);
        program.wait().unwrap(); // its end is its parent's to learn
        assert!(
            matches!(refused, Err(Error::Gone(_) | Error::NoMemory(_) | Error::NoProcess(_))),
            "{refused:?}"
        );
    }
    println!("{tracked} trackers");
    std::fs::remove_dir_all(folder).unwrap();
}

/// A process of one thread that waits for a `vfork` child until `seconds` are over, or it has ended itself: in that
/// time no signal but SIGKILL wakes it.
fn start_waiting(seconds: f64) -> Answering {
    let number = libc::SYS_clone;
    let python = format!(
        r#"
import ctypes, os, sys, time
me = os.getpid()
print("ready", flush=True)
sys.stdin.readline()
vfork = [0x4000 | 17, 0, 0, 0, 0]
if not ctypes.CDLL(None).syscall(ctypes.c_long({number}), *map(ctypes.c_long, vfork)):
    end = time.monotonic() + {seconds}
    while time.monotonic() < end and os.getppid() == me:
        time.sleep(0.01)
    os._exit(0)
print("it is over", flush=True)
sys.stdin.readline()
"#
    );
    let (mut program, _) = Answering::start(&python);
    program.send("").unwrap();
    let begin = Instant::now();
    let status = format!("/proc/{}/status", program.pid());
    while !std::fs::read_to_string(&status).unwrap().contains("State:\tD") {
        assert!(begin.elapsed() < Duration::from_secs(60), "it does not sleep");
    }
    program
}

#[test]
fn a_thread_that_cannot_be_woken_is_waited_for() {
    if !back_ends().contains(&BackendKind::UffdAsync) {
        return;
    }
    let attach = |program: &Answering| {
        Tracker::builder().backend(BackendKind::UffdAsync).process(program.pid()).map(drop)
    };
    attach(&start_waiting(0.5)).unwrap();
    // But not for ever.
    let Err(Error::Rejected { why, .. }) = attach(&start_waiting(1000.0)) else { panic!("it attached") };
    assert!(why.contains("is in state D") && why.contains("for 5s now"), "{why}");
    // And no longer than the caller wants.
    let (program, begin) = (start_waiting(1000.0), Instant::now());
    let builder = Tracker::builder().backend(BackendKind::UffdAsync).patience(Duration::from_millis(20));
    let Err(Error::Rejected { why, .. }) = builder.process(program.pid()) else { panic!("it attached") };
    assert!(why.contains("for 20ms now"), "{why}");
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
}
