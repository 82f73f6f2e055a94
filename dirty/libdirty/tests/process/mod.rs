// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes that tests start: a program in Python that answers each line by one, and any other. They end with the test.

#![allow(dead_code)] // each test uses a part

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A process that is killed when this is dropped.
pub struct Killed(pub Child);

impl Killed {
    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program in Python that has printed its first line, and answers each line of its input by one.
pub struct Answering {
    pub process: Killed,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Answering {
    /// Start it; return its first line too.
    pub fn start(python: &str) -> (Self, String) {
        Answering::start_with(python, &[])
    }

    /// The same, of a program that takes arguments.
    pub fn start_with(python: &str, arguments: &[&str]) -> (Self, String) {
        let mut child = Command::new("/usr/bin/python3")
            .args(["-c", python])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 starts");
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut answering = Answering { process: Killed(child), input, output };
        let mut first = String::new();
        answering.output.read_line(&mut first).unwrap();
        (answering, first.trim().into())
    }

    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Write a line, and wait for no answer. In one system call: a program that reads what is there must not take two
    /// parts of it for two lines.
    pub fn send(&mut self, line: &str) -> std::io::Result<()> {
        self.input.write_all(format!("{line}\n").as_bytes())
    }

    /// The answer to a line; or, if the process has ended, how.
    pub fn ask(&mut self, line: &str) -> Result<String, String> {
        let mut answer = String::new();
        let asked = self.send(line).and_then(|()| self.output.read_line(&mut answer));
        match asked {
            Ok(1..) => Ok(answer.trim().into()),
            _ => Err(format!("{:?}", self.process.0.wait())),
        }
    }

    /// What its descriptors lead to.
    pub fn descriptors(&self) -> Vec<PathBuf> {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid()))
            .unwrap()
            .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
            .collect()
    }
}
