// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `dirty-oracle attach` on a program of somebody else's, which goes on whatever ends the oracle.

mod common;

use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{program, setups};
use dirty_oracle::workload::Target;

struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Program {
    fn start() -> Self {
        Program(Command::new("sleep").arg("600").spawn().expect("sleep starts"))
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a signal to a child that was not waited for.
        unsafe { libc::kill(self.0.id().cast_signed(), signal) };
    }

    fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).expect("it lives");
        stat.rsplit(')').next().is_some_and(|behind| behind.starts_with(" T"))
    }

    fn waits_until_stopped(&self) {
        let since = Instant::now();
        while !self.is_stopped() {
            assert!(since.elapsed() < Duration::from_secs(10), "it is not stopped");
            sleep(Duration::from_millis(1));
        }
    }

    /// Have it compared again and again, by a back end that works here.
    fn attach(&self) -> Child {
        let other = setups(0.0).into_iter().find(|setup| setup.target == Target::Other);
        // As from a terminal: a runner may have its programs ignore SIGINT.
        Command::new("env")
            .args(["--default-signal=INT,TERM,HUP".as_ref(), program().as_os_str()])
            .args([
                "attach",
                &self.0.id().to_string(),
                "--seconds",
                "20",
                "--images",
                "20000",
                "--interval",
                "1",
            ])
            .args(["--backend", &other.expect("one tracks other processes").subject.to_string()])
            .stdout(Stdio::null())
            .spawn()
            .expect("the oracle starts")
    }
}

#[test]
fn a_signal_does_not_leave_it_stopped() {
    let program = Program::start();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGTERM, libc::SIGINT] {
        let mut oracle = program.attach();
        // In the middle of a comparison.
        program.waits_until_stopped();
        // SAFETY: a signal to a child that was not waited for.
        unsafe { libc::kill(oracle.id().cast_signed(), signal) };
        assert!(!oracle.wait().expect("it ends").success());
        assert!(!program.is_stopped(), "after signal {signal}");
    }
}

#[test]
fn what_was_stopped_stays_so() {
    let program = Program::start();
    program.signal(libc::SIGSTOP);
    program.waits_until_stopped();
    let mut oracle = program.attach();
    sleep(Duration::from_millis(500));
    // SAFETY: a signal to a child that was not waited for.
    unsafe { libc::kill(oracle.id().cast_signed(), libc::SIGTERM) };
    oracle.wait().expect("it ends");
    assert!(program.is_stopped());
    program.signal(libc::SIGCONT);
}
