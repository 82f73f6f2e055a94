// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A tracker that is killed while it attaches, at whatever instant, leaves its target running and as it was.
//!
//! `LIBDIRTY_KILLS` sets how many are killed (a soak: 10,000).

mod filtered;
mod process;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use filtered::FORBID;
use libdirty::{BackendKind, Error, Tracker};

use process::Answering;

/// A process that computes, sleeps and waits, and counts what came out wrong; each line is answered by that count.
const PYTHON: &str = r#"
import os, select, sys, time
wrong = 0
expected = sum(i * i * 0.5 for i in range(3000))
if len(sys.argv) > 1:
    forbid(*filters[sys.argv[1]])
print("ready", flush=True)
while True:
    wrong += sum(i * i * 0.5 for i in range(3000)) != expected
    begin = time.monotonic()
    time.sleep(0.001)
    wrong += time.monotonic() - begin < 0.001
    if select.select([0], [], [], 0.0005)[0]:
        if not os.read(0, 100):
            break
        os.write(1, b"%d\n" % wrong)
"#;

struct Victim {
    program: Answering,
    descriptors: usize,
}

impl Victim {
    /// Under this filter, or under none.
    fn start(filter: Option<&str>) -> Self {
        let arguments: Vec<&str> = filter.into_iter().collect();
        let (program, _) = Answering::start_with(&format!("{FORBID}{PYTHON}"), &arguments);
        let descriptors = program.descriptors().len();
        Victim { program, descriptors }
    }

    fn status(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/status", self.program.pid())).unwrap()
    }

    fn wait_for_tracer(&self) {
        let since = Instant::now();
        while self.status().contains("TracerPid:\t0\n") {
            assert!(since.elapsed() < Duration::from_secs(60), "nobody attaches");
        }
    }

    /// That it runs, computes right, blocks no signal and has the descriptors that it had.
    fn check(&mut self, kill: usize) {
        assert_eq!(self.program.ask("?").as_deref(), Ok("0"), "after kill {kill}");
        let status = self.status();
        assert!(status.contains("SigBlk:\t0000000000000000"), "after kill {kill}: {status}");
        assert_eq!(self.program.descriptors().len(), self.descriptors, "after kill {kill}");
    }
}

const TARGET: &str = "LIBDIRTY_TEST_TARGET";
/// Killed trackers may leave a bridge each, and there is room for seven.
const KILLS_TO_A_TARGET: usize = 6;

#[test]
#[ignore = "the program that the other test kills"]
fn attach_until_killed() {
    let Some(pid) = std::env::var(TARGET).ok().and_then(|pid| pid.parse().ok()) else { return };
    let mut count = 0;
    loop {
        match Tracker::builder().backend(BackendKind::UffdAsync).process(pid) {
            Ok(tracker) => drop(tracker),
            // The guardian of the last one that was killed is about to end.
            Err(Error::Rejected { why, .. }) if count == 0 && why.contains("already") => continue,
            Err(error) => panic!("it attaches: {error}"),
        }
        count += 1;
        if count == 2 {
            println!("\nattached");
        }
    }
}

#[test]
fn no_target_is_harmed() {
    if works() {
        kill_trackers_of(None);
    }
}

/// Its filter kills for each of the calls that it is made to make.
#[test]
fn no_target_under_seccomp_is_harmed() {
    if !works() {
        return;
    }
    let victim = Victim::start(Some("sandbox"));
    let pid = victim.program.pid();
    if let Err(Error::Rejected { why, .. }) = Tracker::builder().backend(BackendKind::UffdAsync).process(pid)
    {
        eprintln!("SKIPPED: {why}");
        return;
    }
    kill_trackers_of(Some("sandbox"));
}

fn works() -> bool {
    libdirty::survey().iter().any(|finding| {
        finding.backend == BackendKind::UffdAsync
            && finding.rejected.is_none()
            && cfg!(any(target_arch = "x86_64", target_arch = "aarch64"))
    })
}

fn kill_trackers_of(filter: Option<&str>) {
    let kills = std::env::var("LIBDIRTY_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(300);
    let mut victim = Victim::start(filter);
    for kill in 1..=kills {
        if kill % KILLS_TO_A_TARGET == 0 {
            victim = Victim::start(filter);
        }
        let mut tracker = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "attach_until_killed", "--ignored", "--nocapture"])
            .env(TARGET, victim.program.pid().to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(tracker.stdout.take().unwrap());
        assert!(output.lines().map_while(Result::ok).any(|line| line == "attached"));
        // Wait until it has attached, so that most die in the midst of it, at any instant.
        victim.wait_for_tracer();
        let (since, wait) = (Instant::now(), Duration::from_micros((kill * 7919 % 400) as u64));
        while since.elapsed() < wait {
            std::hint::spin_loop();
        }
        tracker.kill().unwrap();
        tracker.wait().unwrap();
        victim.check(kill);
    }
}
