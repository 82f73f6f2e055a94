// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a caller may ptrace a process: the kernel is asked, in the caller's name.
//!
//! A forked child takes on the caller's credentials, and tries to open `/proc/PID/mem`, which the kernel permits to whom
//! it permits `PTRACE_MODE_ATTACH` (`ptrace(2)`): user and group IDs, capabilities, the dumpable attribute and the
//! Yama module are all looked at, by the kernel itself.
//!
//! The credentials are those with which the caller *connected* (SO_PEERCRED): a program that connects and then runs a
//! set-user-ID program, which has the connection too, gains nothing. A capability is believed only of a caller who
//! connected as root, for `/proc` shows the present ones: root by `execve` gets no more than root can.
//!
//! In doubt the answer is no: a caller that has ended, is in another pid namespace (its pids would mean other processes
//! here), or has changed its user since; one whose credentials the holder may not take on; and with Yama, or by
//! capabilities of its own, a caller that could ptrace the process but is not root.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use crate::process;

/// Who is at the other end of a connection.
#[derive(Debug)]
pub(crate) struct Caller {
    pid: i32,
    uid: u32,
    gid: u32,
    /// So that the pid is not another's.
    pidfd: OwnedFd,
}

/// Why not: an error number and words.
pub(crate) type Refusal = (i32, String);

impl Caller {
    /// # Errors
    /// The caller cannot be known, and is to be told why.
    pub(crate) fn of(stream: &UnixStream) -> Result<Self, Refusal> {
        let refuse = |what: &str, error: io::Error| {
            (libc::EPERM, format!("the holder cannot find out who you are: {what}: {error}"))
        };
        let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: room of the length given.
        let got = unsafe {
            let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
            libc::getsockopt(stream.as_raw_fd(), level, name, (&raw mut peer).cast(), &raw mut length)
        };
        if got < 0 {
            return Err(refuse("SO_PEERCRED", io::Error::last_os_error()));
        }
        if peer.pid <= 0 {
            return Err((libc::EPERM, "you are in a pid namespace that the holder cannot see into".into()));
        }
        // Of the peer itself where the kernel has that (Linux 6.5); else of who has its pid by now.
        const SO_PEERPIDFD: libc::c_int = 77;
        let mut pidfd = -1i32;
        let mut length = size_of::<i32>() as libc::socklen_t;
        // SAFETY: room of the length given; a new descriptor is stored there, or none is.
        let pidfd = unsafe {
            let place = (&raw mut pidfd).cast();
            if libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, place, &raw mut length)
                < 0
            {
                pidfd = libc::syscall(libc::SYS_pidfd_open, peer.pid, 0) as i32;
            }
            if pidfd < 0 {
                return Err(refuse("a pidfd", io::Error::last_os_error()));
            }
            OwnedFd::from_raw_fd(pidfd)
        };
        Ok(Caller { pid: peer.pid, uid: peer.uid, gid: peer.gid, pidfd })
    }

    fn has_ended(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd, no waiting.
        unsafe { libc::poll(&raw mut poll, 1, 0) != 0 }
    }

    /// The effective capabilities that are believed of it.
    fn capabilities(&self, own: i32) -> u64 {
        if self.uid != 0 || !process::share_namespace(self.pid, own, "user") {
            return 0;
        }
        let set = process::status(self.pid, "CapEff");
        set.and_then(|set| u64::from_str_radix(&set, 16).ok()).unwrap_or(0)
    }

    /// # Errors
    /// It may not, and why.
    pub(crate) fn may_ptrace(&self, pid: i32) -> Result<(), Refusal> {
        let refuse = |why: String| Err((libc::EPERM, format!("process {pid}: permission denied: {why}")));
        let own = std::process::id().cast_signed();
        let uids = process::status(self.pid, "Uid").unwrap_or_default();
        let same_users = uids.split_whitespace().count() == 4
            && uids.split_whitespace().all(|uid| uid.parse() == Ok(self.uid));
        if !same_users {
            return refuse(format!("you connected as user {}, and your users are {uids:?} by now", self.uid));
        }
        if !process::share_namespace(self.pid, own, "pid") {
            return refuse("you are in another pid namespace than the holder".into());
        }
        let capabilities = self.capabilities(own);
        if self.has_ended() {
            return refuse("the process that connected has ended".into());
        }
        match self.ask_kernel(pid, capabilities) {
            Ok(()) => Ok(()),
            Err(Asked::NoChild(error)) => refuse(format!("the holder cannot ask the kernel: {error}")),
            Err(Asked::Credentials(error)) => refuse(format!(
                "the holder, user {}, cannot take on the credentials of user {}, group {}: {error}",
                // SAFETY: takes nothing.
                unsafe { libc::geteuid() },
                self.uid,
                self.gid
            )),
            Err(Asked::Kernel(error)) if error.raw_os_error() == Some(libc::ENOENT) => {
                Err((libc::ESRCH, format!("process {pid}: no such process")))
            }
            Err(Asked::Kernel(error)) if error.raw_os_error() == Some(libc::ESRCH) => {
                let none = libdirty::Error::NoMemory(pid);
                Err((none.errno(), none.to_string()))
            }
            Err(Asked::Kernel(error)) => refuse(format!(
                "user {}, group {} needs the permission to ptrace it ({error}{})",
                self.uid,
                self.gid,
                yama()
            )),
        }
    }

    /// Have a child with the caller's credentials and no more than these capabilities open the memory of `pid`.
    fn ask_kernel(&self, pid: i32, capabilities: u64) -> Result<(), Asked> {
        let path = format!("/proc/{pid}/mem\0");
        // SAFETY: the child makes system calls alone, allocates nothing and ends itself; so it may be forked off a
        // process that has other threads.
        let child = unsafe { libc::fork() };
        if child < 0 {
            return Err(Asked::NoChild(io::Error::last_os_error()));
        }
        if child == 0 {
            // SAFETY: as above; the path ends in NUL.
            unsafe {
                let code = match self.take_on(capabilities) {
                    Err(errno) => CREDENTIALS | errno,
                    Ok(()) => {
                        let memory = libc::open(path.as_ptr().cast(), libc::O_RDWR | libc::O_CLOEXEC);
                        if memory < 0 { *libc::__errno_location() } else { 0 }
                    }
                };
                libc::_exit(code);
            }
        }
        let mut status = 0;
        // SAFETY: our own child, and a place for its status.
        while unsafe { libc::waitpid(child, &raw mut status, 0) } < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(Asked::NoChild(error));
            }
        }
        if !libc::WIFEXITED(status) {
            return Err(Asked::NoChild(io::Error::other("the child that asks was killed")));
        }
        match libc::WEXITSTATUS(status) {
            0 => Ok(()),
            code if code & CREDENTIALS != 0 => {
                Err(Asked::Credentials(io::Error::from_raw_os_error(code & !CREDENTIALS)))
            }
            code => Err(Asked::Kernel(io::Error::from_raw_os_error(code))),
        }
    }

    /// In the child: become the caller, or return the error number.
    ///
    /// # Safety
    /// Only in a child with one thread.
    unsafe fn take_on(&self, capabilities: u64) -> Result<(), i32> {
        #[repr(C)]
        struct Header {
            version: u32,
            pid: i32,
        }
        #[repr(C)]
        #[derive(Default, Clone, Copy)]
        struct Set {
            effective: u32,
            permitted: u32,
            inheritable: u32,
        }
        const VERSION_3: u32 = 0x2008_0522;
        // SAFETY: system calls with numbers, and with structs of the kernel's layout.
        unsafe {
            let done = |result: libc::c_long| {
                if result < 0 { Err(*libc::__errno_location()) } else { Ok(()) }
            };
            let (uid, gid) = (self.uid, self.gid);
            // Raw calls: the C library's would speak to threads that this child does not have.
            if libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()) < 0 && libc::geteuid() == 0 {
                return done(-1);
            }
            done(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
            done(libc::syscall(libc::SYS_setresuid, uid, uid, uid))?;
            let mut header = Header { version: VERSION_3, pid: 0 };
            let mut sets = [Set::default(); 2];
            done(libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()))?;
            for (index, set) in sets.iter_mut().enumerate() {
                set.permitted &= (capabilities >> (32 * index)) as u32;
                set.effective = set.permitted;
                set.inheritable = 0;
            }
            done(libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()))
        }
    }
}

/// Of a child's exit code: it could not take on the credentials.
const CREDENTIALS: i32 = 128;

/// Why a child got no permission.
enum Asked {
    NoChild(io::Error),
    Credentials(io::Error),
    Kernel(io::Error),
}

fn yama() -> &'static str {
    match fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").as_deref().map(str::trim) {
        Ok("0") | Err(_) => "",
        Ok(_) => "; kernel.yama.ptrace_scope restricts it to root here",
    }
}
