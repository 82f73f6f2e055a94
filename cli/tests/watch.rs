// SPDX-License-Identifier: Apache-2.0 OR MIT
//! However `watch` and `record` end, the target continues untracked.
//!
//! The negative control is in each test that ends the tool: before that, the target must be tracked.

mod common;

use std::io::{BufRead, Read};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{PAGES, Tool, Writer, assert_refuses, command, run};
use serde_json::Value;

/// Not a test: the process that writes.
#[test]
#[ignore = "started by the other tests"]
fn writer() {
    common::writer_body();
}

/// The back ends that can track another process here.
fn back_ends() -> Vec<String> {
    let doctor: Value = serde_json::from_slice(&run(&["doctor", "--json"]).stdout).unwrap();
    let all = doctor["dirty"]["backends"].as_array().unwrap();
    let usable = all.iter().filter(|b| b["works"] == true && b["other_process"] == true);
    usable.map(|b| b["name"].as_str().unwrap().to_owned()).collect()
}

/// Intervals in which a writer with enough CPU time writes all of its pages at least once.
const ENOUGH: usize = 100;

/// Watch for three intervals or, on a busy host, until the writes were seen.
fn watch(writer: &mut Writer, back_end: &str) -> Tool {
    let pid = writer.pid();
    let mut tool =
        Tool::start(&["dirty", "watch", &pid, "--json", "--interval", "0.3", "--backend", back_end]);
    let (mut most, mut intervals) = (0, 0);
    while intervals < 3 || (most < PAGES as u64 && intervals < ENOUGH) {
        let line = tool.line();
        assert!(!line.is_empty(), "{back_end}: it printed nothing");
        let sample: Value = serde_json::from_str(&line).unwrap();
        assert!(sample["working_set"].as_u64() >= sample["written"].as_u64(), "{line}");
        let of_mappings = sample["mappings"].as_array().unwrap().iter();
        let sum: u64 = of_mappings.map(|mapping| mapping["written"].as_u64().unwrap()).sum();
        assert_eq!(Some(sum), sample["written"].as_u64(), "{line}");
        (most, intervals) = (most.max(sum), intervals + 1);
    }
    assert!(most >= PAGES as u64, "{back_end}: it saw {most} pages of {PAGES}");
    if back_end.starts_with("uffd") {
        assert!(writer.is_tracked());
    }
    tool
}

#[test]
fn signals_end_it_cleanly() {
    for back_end in back_ends() {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            let mut writer = Writer::start("runs");
            let tool = watch(&mut writer, &back_end);
            tool.signal(signal);
            let (code, said) = tool.end();
            assert_eq!((code, said.as_str()), (Some(0), ""), "{back_end}, signal {signal}");
            writer.assert_unharmed_and_untracked();
            writer.wait_for_progress();
        }
    }
}

#[test]
fn a_kill_leaves_the_target_untracked() {
    for back_end in back_ends() {
        let mut writer = Writer::start("runs");
        let tool = watch(&mut writer, &back_end);
        tool.signal(libc::SIGKILL);
        assert_eq!(tool.end().0, None);
        writer.assert_unharmed_and_untracked();
    }
}

#[test]
fn a_reader_that_goes_away_is_an_end() {
    let mut writer = Writer::start("runs");
    let mut child = command(&["dirty", "watch", &writer.pid(), "--interval", "0.1"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    writer.assert_unharmed_and_untracked();
}

#[test]
fn the_end_of_the_target_is_an_end() {
    for (mode, gone, says) in [("exits", "exited", "has ended"), ("execs", "exec", "has called execve")] {
        let mut writer = Writer::start(mode);
        let mut tool = Tool::start(&["dirty", "watch", &writer.pid(), "--json", "--interval", "0.2"]);
        let mut last: Value = serde_json::from_str(&tool.line()).unwrap();
        assert!(last["gone"].is_null(), "{mode}: {last}");
        // Not before: it is tracked now, however long that took.
        writer.go();
        loop {
            let line = tool.line();
            if line.is_empty() {
                break;
            }
            last = serde_json::from_str(&line).unwrap();
        }
        let (code, said) = tool.end();
        assert_eq!(code, Some(0), "{mode}: {said}");
        assert!(said.contains(says), "{mode}: {said}");
        assert_eq!(last["gone"], gone, "{mode}");
    }
}

#[test]
fn records_and_draws() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (file, picture) = (path("a.jsonl"), path("a.svg"));
    let mut writer = Writer::start("runs");
    let record = ["dirty", "record", &writer.pid(), "-o", &file, "--interval", "0.2", "--duration", "1"];
    let output = run(&record);
    assert!(output.status.success(), "{output:?}");
    writer.assert_unharmed_and_untracked();
    // A second run does not overwrite the first.
    assert_refuses(&run(&record), 1, "exists");
    assert!(!writer.is_tracked());

    assert!(run(&["dirty", "plot", &file, "-o", &picture]).status.success());
    let drawn = std::fs::read_to_string(&picture).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("pages written a second"));

    // Damage is named, and the old picture stays.
    let text = std::fs::read_to_string(&file).unwrap();
    // A header, and a sample for each interval; a busy host may skip intervals, but not the last.
    assert!(text.lines().count() >= 3, "{text}");
    std::fs::write(&file, text.replacen("\"t\"", "\"x\"", 1)).unwrap();
    assert_refuses(&run(&["dirty", "plot", &file, "-o", &picture]), 1, "line 2: ");
    assert_eq!(std::fs::read_to_string(&picture).unwrap(), drawn);
    assert_refuses(&run(&["dirty", "plot", &path("none"), "-o", &picture]), 1, "cannot read");
    // No recording at all: another JSON, an empty file, a program.
    let other = path("other");
    for content in [&b"{\n  \"format\": 2\n}\n"[..], b"", b"\x7fELF\x02\x01\x00\xff\xfe"] {
        std::fs::write(&other, content).unwrap();
        let output = run(&["dirty", "plot", &other, "-o", &picture]);
        assert_refuses(&output, 1, &format!("{other}: "));
        assert_refuses(&output, 1, "it is no recording of trapless dirty");
        assert_eq!(std::fs::read_to_string(&picture).unwrap(), drawn);
    }
    // Cut short, it is drawn up to there.
    std::fs::write(&file, &text[..text.len() - 10]).unwrap();
    let output = run(&["dirty", "plot", &file, "-o", &picture]);
    assert!(output.status.success() && String::from_utf8_lossy(&output.stderr).contains("is truncated"));
}

#[test]
fn a_killed_recording_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (file, picture) = (path("a.jsonl"), path("a.svg"));
    let mut writer = Writer::start("runs");
    let tool = Tool::start(&["dirty", "record", &writer.pid(), "-o", &file, "--interval", "0.05"]);
    while std::fs::read_to_string(&file).unwrap_or_default().lines().count() < 4 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    tool.signal(libc::SIGKILL);
    tool.end();
    writer.assert_unharmed_and_untracked();
    assert!(run(&["dirty", "plot", &file, "-o", &picture]).status.success());
    let recorded = std::fs::read(&file).unwrap();
    let link = folder.path().join("link").to_str().unwrap().to_owned();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for target in [&file, &link] {
        assert_refuses(&run(&["dirty", "plot", &file, "-o", target]), 1, "is the recording itself");
        assert_eq!(std::fs::read(&file).unwrap(), recorded);
    }
}

/// A named pipe in a folder of its own.
fn pipe() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: a path that ends in NUL.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    (folder, path)
}

#[test]
fn a_pipe_without_a_reader_is_waited_for_before_anything_is_tracked() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let (_folder, path) = pipe();
        let mut writer = Writer::start("runs");
        let mut record = command(&["dirty", "record", &writer.pid(), "-o"]);
        let mut record = record.arg(&path).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(500));
        assert!(record.try_wait().unwrap().is_none() && !writer.is_tracked());
        // SAFETY: sends a signal to a child that has not been waited for.
        unsafe { libc::kill(record.id().try_into().unwrap(), signal) };
        let until = Instant::now() + Duration::from_secs(20);
        let ended = loop {
            if let Some(ended) = record.try_wait().unwrap() {
                break ended;
            }
            if Instant::now() > until {
                record.kill().unwrap();
                panic!("signal {signal} did not end it");
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(ended.signal(), Some(signal));
        writer.assert_unharmed_and_untracked();
    }
}

#[test]
fn a_named_pipe_whose_reader_leaves_is_a_failure() {
    let (_folder, path) = pipe();
    let mut writer = Writer::start("runs");
    let mut record = command(&["dirty", "record", &writer.pid(), "--interval", "0.1", "-o"]);
    let record = record.arg(&path).stderr(Stdio::piped()).spawn().unwrap();
    let mut header = String::new();
    std::io::BufReader::new(std::fs::File::open(&path).unwrap()).read_line(&mut header).unwrap();
    assert!(header.contains("backend"), "{header}");
    assert_refuses(&record.wait_with_output().unwrap(), 1, &format!("cannot write {}: ", path.display()));
    writer.assert_unharmed_and_untracked();
}

/// A terminal that is closed ends the view as its SIGHUP does, with nothing to restore and nobody to tell.
#[test]
fn a_terminal_that_goes_away_ends_it() {
    let mut writer = Writer::start("runs");
    let (mut master, mut slave) = (-1, -1);
    let none = std::ptr::null_mut();
    let mut size = libc::winsize { ws_row: 30, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: writes two descriptors, which are ours from then on; the size lives here.
    let (mut master, slave) = unsafe {
        assert_eq!(libc::openpty(&raw mut master, &raw mut slave, none, none.cast(), &raw mut size), 0);
        libc::fcntl(master, libc::F_SETFL, libc::O_NONBLOCK);
        libc::fcntl(master, libc::F_SETFD, libc::FD_CLOEXEC);
        (std::fs::File::from_raw_fd(master), OwnedFd::from_raw_fd(slave))
    };
    let mut watch = command(&["dirty", "watch", &writer.pid(), "--interval", "0.1"]);
    watch.stdin(slave.try_clone().unwrap()).stdout(slave.try_clone().unwrap()).stderr(slave);
    // SAFETY: the closure makes system calls only.
    unsafe {
        watch.pre_exec(|| {
            libc::setsid();
            match libc::ioctl(0, libc::TIOCSCTTY, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        })
    };
    let mut child = watch.spawn().unwrap();
    drop(watch); // it has the terminal's descriptors
    let (mut shown, since) = (Vec::new(), Instant::now());
    // Until the view is there.
    while !String::from_utf8_lossy(&shown).contains("back") {
        assert!(since.elapsed() < Duration::from_secs(30), "no view: {}", String::from_utf8_lossy(&shown));
        let _ = master.read_to_end(&mut shown);
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(master);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    writer.assert_unharmed_and_untracked();
}

/// The kernel cuts a name at 15 bytes, which may be in the middle of a character.
#[test]
fn a_process_may_have_any_name() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("abcdefghijklmn\u{fc}");
    std::fs::copy("/bin/sleep", &program).unwrap();
    let mut named = std::process::Command::new(&program).arg("600").spawn().unwrap();
    let told = |back_end: &str| {
        let mut record = command(&["dirty", "record", &named.id().to_string(), "--duration", "0.3"]);
        record.args(["--interval", "0.1", "--backend", back_end, "-o", "-"]).output().unwrap()
    };
    let failed: Vec<_> =
        back_ends().iter().map(|name| told(name)).filter(|told| !told.status.success()).collect();
    named.kill().unwrap();
    named.wait().unwrap();
    assert!(failed.is_empty(), "{failed:?}");
}

/// What is remarked on standard error is no reason to fail, or to stop before the picture is drawn.
#[test]
fn a_full_standard_error_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (file, picture) = (folder.path().join("a.jsonl"), folder.path().join("a.svg"));
    let full = || Stdio::from(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let mut writer = Writer::start("runs");
    let mut record =
        command(&["dirty", "record", &writer.pid(), "--interval", "0.1", "--duration", "0.5", "-o"]);
    assert!(record.arg(&file).stderr(full()).status().unwrap().success());
    writer.assert_unharmed_and_untracked();
    let recorded = std::fs::read(&file).unwrap();
    std::fs::write(&file, &recorded[..recorded.len() - 5]).unwrap();
    let mut plot = command(&["dirty", "plot", "-o"]);
    assert!(plot.arg(&picture).arg(&file).stderr(full()).status().unwrap().success());
    assert!(picture.exists());
}

/// A rate that no number holds cannot be drawn; it was tried for ever.
#[test]
fn an_interval_of_no_time_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.jsonl");
    let writer = Writer::start("runs");
    let mut record =
        command(&["dirty", "record", &writer.pid(), "--interval", "0.1", "--duration", "0.3", "-o"]);
    assert!(record.arg(&file).output().unwrap().status.success());
    let recorded = std::fs::read_to_string(&file).unwrap();
    let at = recorded.find(r#""seconds":"#).unwrap() + r#""seconds":"#.len();
    let end = at + recorded[at..].find(',').unwrap();
    std::fs::write(&file, format!("{}1e-300{}", &recorded[..at], &recorded[end..])).unwrap();
    let mut plot = command(&["dirty", "plot", "-o", "-"]);
    assert_refuses(&plot.arg(&file).output().unwrap(), 1, "an interval of 1e-300 seconds");
}

/// A limit of the size of files stands for a full disk, which only root can make: a write is cut, and the next fails.
#[test]
fn a_full_disk_leaves_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.jsonl");
    let mut writer = Writer::start("runs");
    let recorded = |bytes: u64| {
        let mut record = command(&["dirty", "record", &writer.pid(), "--force", "--interval", "0.1", "-o"]);
        record.arg(&file);
        // SAFETY: the closure makes system calls only.
        unsafe {
            record.pre_exec(move || {
                libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
                let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
                match libc::setrlimit(libc::RLIMIT_FSIZE, &limit) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            })
        };
        record.output().unwrap()
    };
    let says = format!("cannot write {}: ", file.display());
    // No room for a header: no file, and an old one as it was.
    assert_refuses(&recorded(10), 1, &says);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    std::fs::write(&file, "old").unwrap();
    assert_refuses(&recorded(10), 1, &says);
    assert_eq!(std::fs::read(&file).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    // Later: what was recorded stays.
    assert_refuses(&recorded(400), 1, &says);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.len() == 400 && text.lines().next().unwrap().ends_with('}'), "{text}");
    writer.assert_unharmed_and_untracked();
}

#[test]
fn refuses_what_it_cannot_track() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x").to_str().unwrap().to_owned();
    // Greater than any pid_max.
    let none = "2147483647";
    assert_refuses(&run(&["dirty", "watch", none, "--json"]), 1, "no such process");
    assert_refuses(&run(&["dirty", "record", none, "-o", &file]), 1, "no such process");
    assert!(!folder.path().join("x").exists(), "a file without a recording");
}

/// As another user, if this one can become another.
#[test]
fn refuses_a_process_of_another_user() {
    // SAFETY: only returns a number.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    let mut writer = Writer::start("runs");
    // A copy that another user can run: the build tree may not be accessible.
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let tool = folder.path().join("trapless");
    std::fs::copy(env!("CARGO_BIN_EXE_trapless"), &tool).unwrap();
    let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).unwrap();
    let output = std::process::Command::new(&tool)
        .args(["dirty", "watch", &writer.pid(), "--json"])
        .current_dir("/")
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    assert_refuses(&output, 1, "permission denied");
    writer.assert_unharmed_and_untracked();
}
