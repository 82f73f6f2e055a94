// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What clients are told is held against the memory of the processes.

mod common;
#[path = "../../libdirty/tests/filtered/mod.rs"]
mod filtered;

use std::collections::BTreeSet;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use common::{Image, Service, Writer, works};
use libdirty::PageRange;
use libdirty_hold::client::Error;
use libdirty_hold::protocol::{Mark, Message, Process, Request, Since};
use libdirty_hold::{Client, Holder, Options};

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < Duration::from_secs(300), "still not: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn files_that_other_threads_make_have_the_mode_they_ask_for() {
    let is_over = AtomicBool::new(false);
    let folder = std::env::temp_dir().join(format!("trapless-hold-{}-files", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    std::thread::scope(|scope| {
        let modes = scope.spawn(|| {
            let file = folder.join("file");
            let mut modes = BTreeSet::new();
            while !is_over.load(Relaxed) {
                modes.insert(std::fs::File::create(&file).unwrap().metadata().unwrap().permissions().mode());
                std::fs::remove_file(&file).unwrap();
            }
            modes
        });
        for _ in 0..2000 {
            drop(Holder::new(&folder.join("socket"), Options::default()).unwrap());
        }
        is_over.store(true, Relaxed);
        assert_eq!(modes.join().unwrap().len(), 1);
    });
    std::fs::remove_dir_all(folder).unwrap();
}

/// Somebody removes the socket, and another holder listens there: the first one's end leaves that alone.
#[test]
fn the_end_of_a_holder_leaves_its_successors_socket() {
    let folder = std::env::temp_dir().join(format!("trapless-hold-{}-successor", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let socket = folder.join("socket");
    let first = Holder::new(&socket, Options::default()).unwrap();
    assert!(Holder::new(&socket, Options::default()).is_err());
    std::fs::remove_file(&socket).unwrap();
    let second = Holder::new(&socket, Options::default()).unwrap();
    drop(first);
    assert!(socket.exists());
    drop(second);
    assert!(!socket.exists());
    std::fs::remove_dir(folder).unwrap();
}

/// A cleaner of /tmp takes the socket away: the holder ends, for its processes could be tracked by nobody else.
#[test]
fn a_holder_without_its_socket_ends() {
    let folder = std::env::temp_dir().join(format!("trapless-hold-{}-gone", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let socket = folder.join("socket");
    let options = Options { interval: std::time::Duration::from_millis(20), ..Options::default() };
    let mut holder = Holder::new(&socket, options).unwrap();
    let client = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    std::fs::remove_file(&socket).unwrap();
    let (stop, _open) = std::os::unix::net::UnixStream::pair().unwrap();
    let serving = std::thread::spawn(move || holder.run(std::os::fd::AsRawFd::as_raw_fd(&stop)));
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(!serving.is_finished(), "a client is connected");
    drop(client);
    let error = serving.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
    std::fs::remove_dir(folder).unwrap();
}

/// One asks from moments of its own, the other begins anew by clearing; each at its own pace.
#[test]
fn two_clients_on_one_process() {
    if !works() {
        return;
    }
    let service = Service::start();
    let mut writer = Writer::start();
    let (process, range) = (writer.process(), writer.range);
    let (mut one, mut other) = (service.client(), service.client());
    let (named, mut mark) = one.track(process, false).unwrap();
    assert_eq!(named.pid, process.pid);
    other.clear(process).unwrap().unwrap();
    let mut images = [0, 1].map(|_| Image::new(process.pid, range));
    for round in 0..100 {
        writer.write(round);
        if round % 2 == 0 {
            let written = one.written(named, Since::Mark(mark), range).unwrap();
            mark = written.mark;
            let pages = images[0].update(&written);
            assert!(round == 0 || (50..=220).contains(&pages), "{pages} pages in round {round}");
            images[0].check();
        }
        if round % 3 == 0 {
            let written = other.written(process, Since::Clear, range).unwrap();
            assert!(written.pages.is_ok(), "{written:?}");
            images[1].update(&written);
            images[1].check();
            other.clear(process).unwrap().unwrap();
        }
    }
    // Asked again, what was told is told again: it is not the answer that begins anew.
    for _ in 0..2 {
        images[0].update(&one.written(named, Since::Mark(mark), range).unwrap());
        images[0].check();
    }
    images[1].update(&other.written(process, Since::Clear, range).unwrap());
    images[1].check();
}

/// A client that goes through the memory piece by piece, each from a moment of its own, as those do who read some
/// entries at a time; and one that asks for everything now and then.
#[test]
fn pieces_are_asked_for_one_by_one() {
    if !works() {
        return;
    }
    let service = Service::start();
    let mut writer = Writer::start();
    let (process, range) = (writer.process(), writer.range);
    let mut client = service.client();
    let (named, mark) = client.track(process, false).unwrap();
    let mut images = [0, 1].map(|_| Image::new(process.pid, range));
    let mut all = mark;
    // None begins where a page table does.
    let mut pieces: Vec<_> = (range.start()..range.end())
        .step_by(300 * libdirty::page_size())
        .map(|start| (start, (start + 300 * libdirty::page_size()).min(range.end())))
        .map(|(start, end)| (libdirty::PageRange::new(start, end).unwrap(), mark))
        .collect();
    for round in 0..60_usize {
        let first = round % pieces.len();
        pieces.rotate_left(first);
        for (number, (piece, mark)) in pieces.iter_mut().enumerate() {
            if number % 2 == 0 {
                writer.write((100 * round + number) as u32);
            }
            let written = client.written(named, Since::Mark(*mark), *piece).unwrap();
            *mark = written.mark;
            images[0].update(&written);
            if number == 3 {
                let written = client.written(named, Since::Mark(all), range).unwrap();
                all = written.mark;
                images[1].update(&written);
                images[1].check();
            }
        }
        for (piece, mark) in &mut pieces {
            let written = client.written(named, Since::Mark(*mark), *piece).unwrap();
            *mark = written.mark;
            images[0].update(&written);
        }
        images[0].check();
    }
}

/// A checkpointer that was killed has cleared, and has not written what was dirty before.
#[test]
fn a_clear_that_is_not_kept_ends_with_its_connection() {
    if !works() {
        return;
    }
    let service = Service::start();
    let mut writer = Writer::start();
    let (process, range) = (writer.process(), writer.range);
    let everything = |service: &Service, what: &str| {
        wait_until(what, || {
            let written = service.client().written(process, Since::Clear, range).unwrap();
            written.pages.is_err_and(|why| why.contains("was not cleared"))
        });
    };
    let mut client = service.client();
    client.clear_provisionally(process, None).unwrap().unwrap();
    // While the connection is there it is a clear like others.
    writer.write(1);
    assert!(client.written(process, Since::Clear, range).unwrap().pages.is_ok());
    drop(client);
    everything(&service, "undone");
    // Kept, it stays; one of another client that is not kept undoes it, for who asks cannot know which it was.
    let mut client = service.client();
    client.clear_provisionally(process, None).unwrap().unwrap();
    let mut image = Image::new(process.pid, range);
    client.keep().unwrap();
    drop(client);
    for round in 2..5 {
        writer.write(round);
        image.update(&service.client().written(process, Since::Clear, range).unwrap());
        image.check();
    }
    let mut other = service.client();
    other.clear_provisionally(process, None).unwrap().unwrap();
    drop(other);
    everything(&service, "undone for the next");
}

/// A checkpointer has its answer, and clears a moment later.
#[test]
fn a_clear_from_an_answer_keeps_what_came_after_it() {
    if !works() {
        return;
    }
    let service = Service::start();
    let mut writer = Writer::start();
    let (process, range) = (writer.process(), writer.range);
    let mut client = service.client();
    client.clear(process).unwrap().unwrap();
    for (round, from_the_answer) in [(1, true), (3, false)] {
        writer.write(round);
        let answer = client.written(process, Since::Clear, PageRange::everything()).unwrap();
        assert!(answer.pages.is_ok_and(|pages| !pages.is_empty()));
        writer.write(round + 1);
        let from = from_the_answer.then_some(answer.mark);
        let (_, mark) = client.clear_provisionally(process, from).unwrap().unwrap();
        client.keep().unwrap();
        assert_eq!(mark == answer.mark, from_the_answer);
        // Another client's look takes nothing away.
        service.client().written(process, Since::Mark(mark), range).unwrap();
        let next = service.client().written(process, Since::Clear, range).unwrap();
        assert_eq!(next.pages.is_ok_and(|pages| !pages.is_empty()), from_the_answer);
    }
    // A moment of another tracking, and one that is still to come.
    let (_, mark) = client.clear(process).unwrap().unwrap();
    for other in [Mark { epoch: mark.epoch ^ 1, ..mark }, Mark { round: mark.round + 1, ..mark }] {
        let why = client.clear_provisionally(process, Some(other)).unwrap().unwrap_err();
        assert!(why.contains("without a gap"), "{why}");
    }
}

#[test]
fn a_holder_that_nobody_needs_ends() {
    if !works() {
        return;
    }
    let name = format!("trapless-hold-{}-idle", std::process::id());
    let path = std::env::temp_dir().join(name);
    let (interval, idle) = (Duration::from_millis(20), Some(Duration::from_millis(300)));
    let options = Options { backend: Some(common::backend()), interval, mode: 0o600, idle };
    let mut holder = Holder::new(&path, options).unwrap();
    let (_stop, asked) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || holder.run(asked.as_raw_fd()).unwrap());
    let writer = Writer::start();
    Client::connect(&path).unwrap().track(writer.process(), false).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    assert!(!thread.is_finished(), "it holds a process");
    drop(writer);
    wait_until("it has ended", || thread.is_finished());
    thread.join().unwrap();
    assert!(!path.exists());
}

#[test]
fn a_client_that_dies_in_mid_request_harms_nobody() {
    if !works() {
        return;
    }
    let service = Service::start();
    let mut writer = Writer::start();
    let process = writer.process();
    let mut client = service.client();
    client.clear(process).unwrap().unwrap();
    let mut image = Image::new(process.pid, writer.range);
    let request = Request::Clear { process, provisional: false, from: None }.encode();
    for length in 0..request.len() {
        let mut dying = UnixStream::connect(&service.path).unwrap();
        dying.write_all(&request[..length]).unwrap();
    }
    // A process that is killed while it waits, having sent requests whose replies nobody takes.
    let ask = Request::Written { process, since: Since::Clear, range: writer.range, goes_on: false }.encode();
    let script = "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); \
                  s.setblocking(False)\nwhile True:\n try: s.send(bytes.fromhex(sys.argv[2]))\n \
                  except BlockingIOError: break\nprint(1, flush=True); time.sleep(1000)";
    let hex: String = ask.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut dying = Command::new("/usr/bin/python3")
        .args(["-c", script, &service.path.display().to_string(), &hex])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Read::read_exact(dying.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    writer.write(1);
    dying.kill().unwrap();
    dying.wait().unwrap();
    writer.write(2);
    let written = client.written(process, Since::Clear, writer.range).unwrap();
    assert!(image.update(&written) < 200);
    image.check();
}

/// A child of the calling process with this pid, which waits until it is killed.
fn fork_as(pid: i32) -> i32 {
    let pids = [pid];
    let mut arguments = [0u64; 11]; // struct clone_args
    arguments[4] = libc::SIGCHLD as u64;
    (arguments[8], arguments[9]) = (pids.as_ptr() as u64, 1); // set_tid and its size
    // SAFETY: a fork, whose child only waits.
    unsafe {
        match libc::syscall(libc::SYS_clone3, arguments.as_ptr(), size_of_val(&arguments)) {
            0 => loop {
                libc::pause();
            },
            child => child as i32,
        }
    }
}

#[test]
fn a_reused_pid_is_another_process() {
    if !works() {
        return;
    }
    let service = Service::start();
    let mut writer = Writer::start();
    let (process, range) = (writer.process(), writer.range);
    let mut client = service.client();
    let (named, mark) = client.clear(process).unwrap().unwrap();
    assert!(client.written(process, Since::Clear, range).unwrap().pages.is_ok());
    writer.child.kill().unwrap();
    writer.child.wait().unwrap();
    let refused = client.written(process, Since::Clear, range).unwrap_err();
    assert_eq!(refused.errno(), libc::ESRCH, "{refused}");
    // In another tick of the clock that starts are counted in.
    std::thread::sleep(Duration::from_millis(50));
    let child = fork_as(process.pid);
    if child < 0 {
        eprintln!("SKIPPED: a pid cannot be chosen here: {}", std::io::Error::last_os_error());
        return;
    }
    assert_eq!(child, process.pid);
    let outcomes = [
        client.written(process, Since::Clear, range).map(|written| written.pages),
        client.written(process, Since::Mark(mark), range).map(|written| written.pages),
    ];
    let by_name = client.written(named, Since::Clear, range);
    // SAFETY: our own child.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    for outcome in outcomes {
        assert!(matches!(&outcome, Ok(Err(why)) if why.contains("not tracked")), "{outcome:?}");
    }
    let Err(Error::Refused { errno, why }) = by_name else { panic!("{by_name:?}") };
    assert_eq!((errno, why.contains("another by now")), (libc::ESRCH, true), "{why}");
}

#[test]
fn a_child_is_followed_and_is_all_written_at_first() {
    if !works() {
        return;
    }
    let service = Service::start();
    let mut writer = Writer::start();
    let (process, range) = (writer.process(), writer.range);
    let mut client = service.client();
    client.track(process, true).unwrap();
    client.clear(process).unwrap().unwrap();
    let mut image = Image::new(process.pid, range);
    writer.write(1);
    let child = Process { pid: writer.ask("fork").parse().unwrap(), start: 0 };
    // Whether it was found by now or not: nothing of it is known to be clean.
    let answer = client.written(child, Since::Clear, range).unwrap();
    assert!(answer.pages.is_err(), "{answer:?}");
    wait_until("the child is followed", || client.list().unwrap().iter().any(|held| held.pid == child.pid));
    assert!(client.written(child, Since::Clear, range).unwrap().pages.is_err());
    client.clear(child).unwrap().unwrap();
    let mut image_of_child = Image::new(child.pid, range);
    for seed in 2..30 {
        writer.write(seed);
        assert_eq!(writer.ask(&format!("c w {}", 100 + seed)), "ok");
    }
    assert!(image_of_child.update(&client.written(child, Since::Clear, range).unwrap()) < 2000);
    image_of_child.check();
    assert!(image.update(&client.written(process, Since::Clear, range).unwrap()) < 2000);
    image.check();
}

#[test]
fn execve_is_the_end_of_what_was_known() {
    if !works() {
        return;
    }
    let service = Service::start();
    let mut child =
        Command::new("bash").args(["-c", "read; exec sleep 1000"]).stdin(Stdio::piped()).spawn().unwrap();
    let process = Process { pid: child.id() as i32, start: 0 };
    let mut client = service.client();
    let range = libdirty::PageRange::everything();
    let (_, mark) = client.clear(process).unwrap().unwrap();
    assert!(client.written(process, Since::Clear, range).unwrap().pages.is_ok());
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    wait_until("another program", || {
        std::fs::read_to_string(format!("/proc/{}/comm", process.pid)).unwrap() == "sleep\n"
    });
    let answer = client.written(process, Since::Mark(mark), range).unwrap();
    let cleared = client.clear(process).unwrap();
    let after = client.written(process, Since::Clear, range).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(answer.pages.unwrap_err().contains("execve"));
    assert!(cleared.is_ok_and(|(_, new)| new.epoch != mark.epoch));
    assert!(after.pages.is_ok());
}

/// Run a Python program as another user; what it printed.
fn as_user(user: u32, script: &str, arguments: &[String]) -> String {
    let output = Command::new("/usr/bin/python3")
        .args(["-c", script])
        .args(arguments)
        .uid(user)
        .gid(user)
        .current_dir("/")
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn a_caller_may_ask_about_what_it_could_trace() {
    // SAFETY: takes nothing.
    if !works() || unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED: not root");
        return;
    }
    const NOBODY: u32 = 65534;
    let service = Service::start();
    let (writer, theirs) = (Writer::start(), Writer::start_as("", &[], Some(NOBODY)));
    // One that has made itself undumpable is its own user's no more.
    let hidden = Writer::start_as("import ctypes; ctypes.CDLL(None).prctl(4, 0)\n", &[], Some(NOBODY));
    let script = "import socket, struct, sys\ns = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n\
        for pid in sys.argv[2:]:\n s.send(struct.pack('<IBBHiIQ', 20, 1, 3, 0, int(pid), 0, 0))\n \
        length, version, kind, zero = struct.unpack('<IBBH', s.recv(8)); rest = s.recv(length - 4)\n \
        print(hex(kind), struct.unpack('<i', rest[:4])[0], rest[4:])";
    let mut client = service.client();
    for process in [&writer, &theirs, &hidden].map(Writer::process) {
        client.clear(process).unwrap().unwrap();
    }
    let pids: Vec<String> =
        [&writer, &theirs, &hidden].iter().map(|one| one.child.id().to_string()).collect();
    let path = vec![service.path.display().to_string()];
    let said = as_user(NOBODY, script, &[path, pids].concat());
    let lines: Vec<_> = said.lines().collect();
    let refusal = "user 65534, group 65534 needs the permission to ptrace it";
    assert_eq!(lines.len(), 3, "{said}");
    assert!(lines[0].starts_with("0xff 1 ") && lines[0].contains(refusal), "{said}");
    assert!(lines[1].starts_with(&format!("0x83 {} ", theirs.child.id())), "{said}");
    assert!(lines[2].starts_with("0xff 1 ") && lines[2].contains(refusal), "{said}");
}

/// A connection that was made as one user, and is used by a program of another.
#[test]
fn a_connection_does_not_gain_by_its_new_owner() {
    // SAFETY: takes nothing.
    if !works() || unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED: not root");
        return;
    }
    let service = Service::start();
    let writer = Writer::start();
    // Connected as nobody; root again, as after execve of a set-user-ID program.
    let script = "import os, socket, struct, sys\nos.seteuid(65534)\n\
        s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\nos.seteuid(0)\n\
        s.send(struct.pack('<IBBHiIQ', 20, 1, 3, 0, int(sys.argv[2]), 0, 0)); print(s.recv(1000))";
    let arguments = [service.path.display().to_string(), writer.child.id().to_string()];
    let said = as_user(0, script, &arguments);
    assert!(said.contains("you connected as user 65534"), "{said}");
}

#[test]
fn a_process_under_seccomp_is_held() {
    if !works() {
        return;
    }
    let service = Service::start();
    let mut client = service.client();
    for filter in ["container", "sandbox"] {
        let mut writer = Writer::start_as(filtered::FORBID, &[filter], None);
        let process = writer.process();
        match client.clear(process).unwrap() {
            Ok(_) => {}
            Err(why) if why.contains("needs CAP_SYS_ADMIN") => {
                eprintln!("SKIPPED: {why}");
                return;
            }
            Err(why) => panic!("{why}"),
        }
        let mut image = Image::new(process.pid, writer.range);
        for round in 0..20 {
            writer.write(round);
            let written = client.written(process, Since::Clear, writer.range).unwrap();
            assert!(image.update(&written) < 2000);
            image.check();
        }
    }
}

/// Said so to who asks the dead one, and to who asks the next.
#[test]
fn a_holder_that_dies_means_that_all_was_written() {
    if !works() {
        return;
    }
    let service = Service::start();
    let path = service.path.clone();
    let mut writer = Writer::start();
    let (process, range) = (writer.process(), writer.range);
    let mut client = service.client();
    let (_, mark) = client.clear(process).unwrap().unwrap();
    drop(service);
    writer.write(1);
    let answer = client.written(process, Since::Clear, range);
    assert!(matches!(answer, Err(Error::Connection(_))), "{answer:?}");
    assert!(matches!(Client::connect(&path), Err(Error::Connection(_))));

    let service = Service::start_at(path);
    let mut client = service.client();
    let none = Mark { epoch: 0, round: 0 };
    let answers = |client: &mut Client| {
        [Since::Clear, Since::Mark(mark), Since::Mark(none)]
            .map(|since| client.written(process, since, range).unwrap().pages)
    };
    for answer in answers(&mut client) {
        assert!(answer.as_ref().is_err_and(|why| why.contains("is not tracked")), "{answer:?}");
    }
    client.track(process, false).unwrap();
    for answer in answers(&mut client) {
        let is_said = |why: &String| why.contains("was not cleared") || why.contains("without a gap");
        assert!(answer.as_ref().is_err_and(is_said), "{answer:?}");
    }
    // The next clear begins anew; who has no mark of this tracking does not profit from another's clear.
    client.clear(process).unwrap().unwrap();
    assert!(client.written(process, Since::Mark(none), range).unwrap().pages.is_err());
    let mut image = Image::new(process.pid, range);
    writer.write(2);
    assert!(image.update(&client.written(process, Since::Clear, range).unwrap()) < 2000);
    image.check();
}

/// Time, and processor time of this process and its children.
struct Spent {
    since: Instant,
    processor: Duration,
}

impl Spent {
    fn now() -> Self {
        let processor = [libc::RUSAGE_SELF, libc::RUSAGE_CHILDREN].map(|whose| {
            // SAFETY: plain numbers, for which zero is a value, filled by the call.
            let usage = unsafe {
                let mut usage: libc::rusage = std::mem::zeroed();
                assert_eq!(libc::getrusage(whose, &raw mut usage), 0);
                usage
            };
            let time =
                |time: libc::timeval| Duration::from_micros((time.tv_sec * 1_000_000 + time.tv_usec) as u64);
            time(usage.ru_utime) + time(usage.ru_stime)
        });
        Spent { since: Instant::now(), processor: processor[0] + processor[1] }
    }

    /// Since then, by so many.
    fn each(&self, most: u32) -> String {
        let processor = (Spent::now().processor - self.processor) / most;
        format!("{processor:.0?} of a processor ({:.1?})", self.since.elapsed() / most)
    }
}

/// `LIBDIRTY_HOLD_PROCESSES` sets how many; prints what a question costs.
#[test]
fn a_tree_of_many_processes() {
    if !works() {
        return;
    }
    let most = std::env::var("LIBDIRTY_HOLD_PROCESSES").ok().and_then(|most| most.parse().ok()).unwrap_or(10);
    let script = "import os, sys, time\nfor i in range(int(sys.argv[1]) - 1):\n if os.fork() == 0: time.sleep(1000)\n\
                  print(1, flush=True); time.sleep(1000)";
    let mut root = Command::new("/usr/bin/python3")
        .args(["-c", script, &most.to_string()])
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    std::io::Read::read_exact(root.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    let process = Process { pid: root.id() as i32, start: 0 };
    let path = std::env::temp_dir().join(format!("trapless-hold-{}-tree", std::process::id()));
    let service = Service::start_with(path, Duration::from_secs(1));
    let mut client = service.client();
    let begin = Spent::now();
    client.track(process, true).unwrap();
    let mut held = Vec::new();
    wait_until("all are tracked", || {
        // Each is asked for, which costs time as well.
        std::thread::sleep(Duration::from_millis(u64::from(most) * 10));
        held = client.list().unwrap();
        held.len() == most as usize
    });
    let tracked = begin.each(most);
    let begin = Spent::now();
    let cleared = held.iter().filter(|one| client.clear(**one).is_ok_and(|done| done.is_ok())).count();
    let clear = begin.each(most);
    let range = libdirty::PageRange::everything();
    let begin = Spent::now();
    let known =
        held.iter().filter(|one| client.written(**one, Since::Clear, range).unwrap().pages.is_ok()).count();
    let question = begin.each(most);
    // SAFETY: the process group made above.
    unsafe { libc::kill(-process.pid, libc::SIGKILL) };
    root.wait().unwrap();
    println!("{most} processes: to track one {tracked}; a clear {clear}; a question {question}");
    assert_eq!((held.len(), cleared, known), (most as usize, most as usize, most as usize));
}

/// Asks for 512 pages and for everything, in a process of `LIBDIRTY_HOLD_MIB`; prints what a question costs.
#[test]
fn a_question_about_some_pages() {
    const QUESTIONS: u32 = 200;
    if !works() {
        return;
    }
    let mib = std::env::var("LIBDIRTY_HOLD_MIB").ok().and_then(|mib| mib.parse().ok()).unwrap_or(16_usize);
    let script = "import ctypes, mmap, sys, time\nsize = int(sys.argv[1]) << 20\n\
                  memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
                  memory.madvise(mmap.MADV_NOHUGEPAGE)\n\
                  for at in range(0, size, mmap.PAGESIZE): memory[at] = 1\n\
                  print(ctypes.addressof(ctypes.c_char.from_buffer(memory)), flush=True); time.sleep(1000)";
    let mut child = Command::new("/usr/bin/python3")
        .args(["-c", script, &mib.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
        .unwrap();
    let start: usize = line.trim().parse().unwrap();
    let length = 512 * libdirty::page_size();
    let service = Service::start();
    let mut client = service.client();
    let process = Process { pid: child.id() as i32, start: 0 };
    client.clear(process).unwrap().unwrap();
    let mut ask = |range| {
        let begin = Spent::now();
        for _ in 0..QUESTIONS {
            let written = client.written(process, Since::Clear, range).unwrap();
            assert!(written.pages.is_ok(), "{written:?}");
        }
        begin.each(QUESTIONS)
    };
    let everything = ask(libdirty::PageRange::everything());
    let some = ask(libdirty::PageRange::from_length(start + (mib << 19), length).unwrap());
    println!("{mib} MiB: a question about 512 pages {some}, about everything {everything}");
    child.kill().unwrap();
    child.wait().unwrap();
}
