// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A holder, and programs that write memory on request.

#![allow(dead_code)] // each test uses a part

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use libdirty::{BackendKind, PageRange, page_size};
use libdirty_hold::client::Written;
use libdirty_hold::protocol::{Process, is_mapped};
use libdirty_hold::{Client, Holder, Options};

/// The back end that is tested, which `LIBDIRTY_HOLD_BACKEND` names; uffd-async otherwise.
pub fn backend() -> BackendKind {
    std::env::var("LIBDIRTY_HOLD_BACKEND")
        .map_or(BackendKind::UffdAsync, |name| name.parse().expect("LIBDIRTY_HOLD_BACKEND names a back end"))
}

/// Whether a process can be tracked here by the back end that is tested.
pub fn works() -> bool {
    let survey = libdirty::survey();
    let works = survey.iter().any(|found| found.backend == backend() && found.rejected.is_none());
    if !works {
        eprintln!("SKIPPED: {} does not work here", backend());
    }
    works
}

/// A holder that serves in a thread of the test.
pub struct Service {
    pub path: PathBuf,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    pub fn start() -> Self {
        // Short, for a socket's path has at most 107 bytes; one for each test.
        let test = std::thread::current().name().unwrap_or("main").to_owned();
        let name = format!("trapless-hold-{}-{test}", std::process::id());
        Service::start_at(std::env::temp_dir().join(&name[..name.len().min(60)]))
    }

    pub fn start_at(path: PathBuf) -> Self {
        Service::start_with(path, Duration::from_millis(50))
    }

    pub fn start_with(path: PathBuf, interval: Duration) -> Self {
        let options = Options { backend: Some(backend()), interval, mode: 0o666, idle: None };
        let mut holder = Holder::new(&path, options).unwrap();
        let (stop, asked) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || holder.run(asked.as_raw_fd()).unwrap());
        Service { path, stop: Some(stop), thread: Some(thread) }
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.path).unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

/// `w SEED` writes 50 pages of 2,000 and gives some back, `fork` makes a child to which `c COMMAND` is passed on.
const WRITER: &str = r#"
import ctypes, mmap, os, random, socket, sys
page = mmap.PAGESIZE
memory = mmap.mmap(-1, 2000 * page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for index in range(2000):
    memory[index * page] = 1
if "forbid" in globals():
    forbid(*filters[sys.argv[1]])
child = None
def obey(line):
    global child
    words = line.split()
    if words[0] == "w":
        chosen = random.Random(int(words[1])).sample(range(2000), 55)
        for index in chosen[:50]:
            memory[index * page + 7] = (memory[index * page + 7] + 1) % 256
        for index in chosen[50:]:
            memory.madvise(mmap.MADV_DONTNEED, index * page, page)
    elif words[0] == "fork":
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            lines = theirs.makefile("rw")
            for line in lines:
                print(obey(line), file=lines, flush=True)
            os._exit(0)
        theirs.close()
        child = ours.makefile("rw")
        return pid
    elif words[0] == "c":
        print(" ".join(words[1:]), file=child, flush=True)
        return child.readline().strip()
    return "ok"
print(ctypes.addressof(ctypes.c_char.from_buffer(memory)), flush=True)
for line in sys.stdin:
    print(obey(line), flush=True)
"#;

/// A process that writes.
pub struct Writer {
    pub child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub range: PageRange,
}

impl Writer {
    pub fn start() -> Self {
        Writer::start_as("", &[], None)
    }

    /// With Python before it, arguments, and a user.
    pub fn start_as(before: &str, arguments: &[&str], user: Option<u32>) -> Self {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", &format!("{before}{WRITER}")]).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).current_dir("/");
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        let mut child = command.spawn().expect("python3 starts");
        let input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let range = PageRange::from_length(line.trim().parse().unwrap(), 2000 * page_size()).unwrap();
        Writer { child, input, output, range }
    }

    pub fn process(&self) -> Process {
        Process { pid: self.child.id() as i32, start: 0 }
    }

    pub fn ask(&mut self, command: &str) -> String {
        writeln!(self.input, "{command}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    pub fn write(&mut self, seed: u32) {
        assert_eq!(self.ask(&format!("w {seed}")), "ok");
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A copy of a process's memory, kept up by what a client is told.
pub struct Image {
    pid: i32,
    range: PageRange,
    bytes: Vec<u8>,
}

impl Image {
    pub fn new(pid: i32, range: PageRange) -> Self {
        let mut image = Image { pid, range, bytes: Vec::new() };
        image.bytes = image.memory();
        image
    }

    fn memory(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.range.len()];
        let memory = File::open(format!("/proc/{}/mem", self.pid)).unwrap();
        memory.read_exact_at(&mut bytes, self.range.start() as u64).unwrap();
        bytes
    }

    /// Copy what was written; how many pages. All of it where that is not known.
    pub fn update(&mut self, written: &Written) -> usize {
        let memory = self.memory();
        let extents = match &written.pages {
            Ok(extents) => extents.clone(),
            Err(_) => {
                self.bytes = memory;
                return self.range.pages();
            }
        };
        let mut pages = 0;
        for part in extents.iter().filter(|extent| is_mapped(extent.reason)) {
            let part = part.range.intersection(self.range).expect("no more than was asked for");
            pages += part.pages();
            let at = part.start() - self.range.start();
            self.bytes[at..at + part.len()].copy_from_slice(&memory[at..at + part.len()]);
        }
        pages
    }

    /// As [`Image::check`], where it is not told which pages were given back: they are empty, and a reader sees that.
    pub fn check_but_zeros(&mut self) {
        let memory = self.memory();
        let size = page_size();
        for page in (0..self.range.pages()).map(|page| page * size..(page + 1) * size) {
            if memory[page.clone()].iter().all(|byte| *byte == 0) {
                self.bytes[page].fill(0);
            }
        }
        self.check();
    }

    /// The process must not be running.
    pub fn check(&self) {
        let memory = self.memory();
        let size = page_size();
        let wrong = (0..self.range.pages())
            .filter(|page| {
                self.bytes[page * size..(page + 1) * size] != memory[page * size..(page + 1) * size]
            })
            .count();
        assert_eq!(wrong, 0, "pages were missed");
    }
}
