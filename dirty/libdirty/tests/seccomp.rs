// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Targets that may not call `userfaultfd(2)`: their filters are suspended for a moment, or they hand one over that they
//! made before. What was found is held against their memory.

mod filtered;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use filtered::FORBID;
use libdirty::{BackendKind, Dirty, Error, PageRange, Tracker, page_size};

/// A process with 256 pages of memory and a userfaultfd, made before its filter was, which it also sends through
/// the socket that is its descriptor 3. `w SEED` writes some pages; each line is answered by one.
const TARGET: &str = r#"
import array, mmap, os, random, socket, sys
page = mmap.PAGESIZE
memory = mmap.mmap(-1, 256 * page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for index in range(256):
    memory[index * page] = 1
uffd = ctypes.CDLL(None).syscall(USERFAULTFD, os.O_NONBLOCK | 1)
sender = socket.socket(fileno=3)
sender.sendmsg([b"u"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [uffd]))])
generator = random.Random()
if sys.argv[1] != "none":
    forbid(*filters[sys.argv[1]])
print(ctypes.addressof(ctypes.c_char.from_buffer(memory)), uffd, flush=True)
for line in sys.stdin:
    generator.seed(int(line.split()[1]))
    for index in generator.sample(range(256), 20):
        at = index * page + generator.randrange(page)
        memory[at] = (memory[at] + 1) % 256
    print("ok", flush=True)
"#;

const PAGES: usize = 256;

struct Target {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    range: PageRange,
    memory: File,
    /// Its number there.
    userfaultfd: i32,
    sent: UnixStream,
}

impl Target {
    fn start(filter: &str) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        // Descriptor 3 of the child: a copy without close-on-exec; the shell moves it.
        // SAFETY: plain numbers; the copy is closed below.
        let passed = unsafe { OwnedFd::from_raw_fd(libc::fcntl(theirs.as_raw_fd(), libc::F_DUPFD, 10)) };
        let mut child = Command::new("bash")
            .args(["-c", &format!("exec python3 -c \"$1\" \"$2\" 3<&{0} {0}<&-", passed.as_raw_fd()), "bash"])
            .args([&format!("{FORBID}{TARGET}"), filter])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("bash starts");
        let input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let numbers: Vec<usize> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
        Target {
            range: PageRange::from_length(numbers[0], PAGES * page_size()).unwrap(),
            memory: File::open(format!("/proc/{}/mem", child.id())).unwrap(),
            userfaultfd: numbers[1] as i32,
            sent: ours,
            child,
            input,
            output,
        }
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn write(&mut self, seed: u32) {
        let mut line = String::new();
        writeln!(self.input, "w {seed}").unwrap();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line, "ok\n", "{:?}", self.child.try_wait());
    }

    fn read(&self, range: PageRange) -> Vec<u8> {
        let mut bytes = vec![0; range.len()];
        self.memory.read_exact_at(&mut bytes, range.start() as u64).unwrap();
        bytes
    }

    /// Its userfaultfd, as it sent it.
    fn receive(&self) -> OwnedFd {
        let mut byte = 0u8;
        let mut buffer = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let mut control = [0u64; 8];
        // SAFETY: a message is plain numbers and pointers, here to places that outlive the call; the kernel fills
        // `control` with one header and one descriptor, which is new and nobody's.
        unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = (&raw mut buffer, 1);
            (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), 64);
            assert_eq!(libc::recvmsg(self.sent.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC), 1);
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            assert!(!header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS);
            OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<i32>().read_unaligned())
        }
    }

    /// The same, taken by the caller.
    fn take(&self) -> OwnedFd {
        // SAFETY: plain numbers; what is returned is new and nobody's.
        unsafe {
            let pidfd = OwnedFd::from_raw_fd(libc::syscall(libc::SYS_pidfd_open, self.pid(), 0) as i32);
            let taken = libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), self.userfaultfd, 0);
            assert!(taken >= 0, "{}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(taken as i32)
        }
    }

    /// Ten rounds of the documented loop; then the copy must be the memory.
    fn check(&mut self, mut tracker: Tracker) {
        tracker.watch(self.range).unwrap();
        let mut copy = self.read(self.range);
        let mut dirty = Dirty::new();
        for round in 0..10 {
            self.write(round);
            tracker.collect(&mut dirty).unwrap();
            assert!(round == 0 || (1..=20).contains(&dirty.pages()), "{} pages", dirty.pages());
            for part in dirty.to_copy() {
                let at = part.start() - self.range.start();
                copy[at..at + part.len()].copy_from_slice(&self.read(part));
            }
        }
        assert!(copy == self.read(self.range), "a write was missed");
        drop(tracker);
        self.write(11);
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn works() -> bool {
    let survey = libdirty::survey();
    survey.iter().any(|finding| finding.backend == BackendKind::UffdAsync && finding.rejected.is_none())
}

fn asynchronous() -> libdirty::Builder {
    Tracker::builder().backend(BackendKind::UffdAsync)
}

#[test]
fn a_filtered_process_is_tracked_where_filters_may_be_suspended() {
    if !works() {
        return;
    }
    for filter in ["container", "sandbox"] {
        let mut target = Target::start(filter);
        match asynchronous().process(target.pid()) {
            Ok(tracker) => target.check(tracker),
            // In a container ourselves.
            Err(Error::Rejected { why, .. }) if why.contains("needs CAP_SYS_ADMIN") => {
                assert!(why.contains("dirty_open_fd"), "{why}");
                eprintln!("SKIPPED: {why}");
            }
            other => panic!("{filter}: {other:?}"),
        }
        target.write(12);
    }
}

#[test]
fn a_userfaultfd_is_handed_over() {
    if !works() {
        return;
    }
    for filter in ["none", "container", "sandbox"] {
        for taken in [false, true] {
            let mut target = Target::start(filter);
            let userfaultfd = if taken { target.take() } else { target.receive() };
            let tracker = Tracker::builder().userfaultfd(userfaultfd).process(target.pid()).unwrap();
            assert_eq!(tracker.backend(), BackendKind::UffdAsync);
            target.check(tracker);
            // The next one gets it initialised already.
            let again = asynchronous().userfaultfd(target.take()).process(target.pid()).unwrap();
            target.check(again);
        }
    }
}

/// A debugger holds it: nobody else can attach, and it does not run.
#[test]
fn a_traced_process_is_tracked_by_what_it_handed_over() {
    if !works() {
        return;
    }
    let mut target = Target::start("sandbox");
    let userfaultfd = target.receive();
    let pid = target.pid();
    let (stopped, go_on) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
    let debugger = std::thread::spawn(move || {
        // SAFETY: plain numbers, and a status to be written; a stop is waited for before the process is let go.
        unsafe {
            assert_eq!(libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0), 0);
            assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, pid, 0, 0), 0);
            let mut status = 0;
            assert_eq!(libc::waitpid(pid, &raw mut status, libc::__WALL), pid);
            stopped.0.send(()).unwrap();
            let _ = go_on.1.recv();
            assert_eq!(libc::ptrace(libc::PTRACE_DETACH, pid, 0, 0), 0);
        }
    });
    stopped.1.recv().unwrap();
    let refused = asynchronous().process(pid);
    assert!(matches!(&refused, Err(Error::Rejected { why, .. }) if why.contains("traces it")), "{refused:?}");
    let tracker = Tracker::builder().userfaultfd(userfaultfd).process(pid).unwrap();
    go_on.0.send(()).unwrap();
    debugger.join().unwrap();
    target.check(tracker);
}

#[test]
fn what_is_no_userfaultfd_of_the_process_is_refused() {
    if !works() {
        return;
    }
    let (mut target, other) = (Target::start("container"), Target::start("container"));
    let refusal = |userfaultfd: OwnedFd, backend: Option<BackendKind>| {
        let mut builder = Tracker::builder().userfaultfd(userfaultfd);
        if let Some(backend) = backend {
            builder = builder.backend(backend);
        }
        match builder.process(target.pid()) {
            Err(Error::Rejected { why, .. }) => why,
            other => panic!("{other:?}"),
        }
    };
    let null = || OwnedFd::from(File::open("/dev/null").unwrap());
    assert!(refusal(null(), None).contains("is no userfaultfd but /dev/null"));
    // SAFETY: plain numbers; what is returned is new and nobody's.
    let event = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
    assert!(refusal(event, None).contains("is no userfaultfd but anon_inode"));
    for _ in 0..2 {
        let why = refusal(other.take(), None);
        assert!(why.contains("not one for the memory of process"), "{why}");
    }
    // Of a process that has the same things at the same addresses.
    // SAFETY: takes flags and returns what is new and nobody's.
    let own = unsafe { OwnedFd::from_raw_fd(libc::syscall(libc::SYS_userfaultfd, 1) as i32) };
    assert!(refusal(own, None).contains("not one for the memory of process"));
    assert!(refusal(target.take(), Some(BackendKind::UffdSync)).contains("uffd-async only"));
    let handed = target.take();
    target.check(Tracker::builder().userfaultfd(handed).process(target.pid()).unwrap());
    // Of one that has ended.
    let late = other.take();
    drop(other);
    let why = match Tracker::builder().userfaultfd(late).process(target.pid()) {
        Err(Error::Rejected { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert!(why.contains("has ended or called execve"), "{why}");
}
