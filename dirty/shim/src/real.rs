// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The functions that this library stands in front of, as the next library in the search order has them.
//!
//! They are looked up before `main`, so that none is in a signal handler; a call that comes earlier (from the
//! constructor of another library) looks up its own.
//!
//! All are "C-unwind": a thread cancelled in a `read` unwinds through the caller, which has nothing to drop.

use std::ffi::{CStr, c_char, c_int, c_long, c_ulong, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{iovec, mode_t, off64_t, size_t, ssize_t};

/// The original of a function, once it was looked up.
struct Original {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Original {
    const fn new(name: &'static CStr) -> Self {
        Original { name, address: AtomicPtr::new(null_mut()) }
    }

    fn get(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if known.is_null() { self.find() } else { known }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // SAFETY: the name ends in NUL.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

macro_rules! originals {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(
            pub(crate) unsafe fn $name($($argument: $kind),*) -> $result {
                let original = originals::$name.get();
                if original.is_null() {
                    // A C library without this function: nobody can have linked to it.
                    // SAFETY: errno is the thread's own.
                    unsafe { *libc::__errno_location() = libc::ENOSYS };
                    return -1;
                }
                // SAFETY: the C library's function of that name has this type; variable arguments are passed
                // like fixed ones on the architectures of Linux that have 64 bits.
                let original: unsafe extern "C-unwind" fn($($kind),*) -> $result = unsafe { transmute(original) };
                // SAFETY: the caller's arguments, passed on as they are.
                unsafe { original($($argument),*) }
            }
        )*

        #[allow(non_upper_case_globals)] // named like the functions
        mod originals {
            use super::Original;
            $(
                pub(super) static $name: Original = {
                    const NAME: &str = concat!(stringify!($name), "\0");
                    match std::ffi::CStr::from_bytes_with_nul(NAME.as_bytes()) {
                        Ok(name) => Original::new(name),
                        Err(_) => panic!("a name has no NUL in it"),
                    }
                };
            )*
        }

        extern "C" fn find_all() {
            $(originals::$name.get();)*
        }
    };
}

originals! {
    open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    openat(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    openat64(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    __open_2(path: *const c_char, flags: c_int) -> c_int;
    __open64_2(path: *const c_char, flags: c_int) -> c_int;
    __openat_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int;
    __openat64_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int;
    close(fd: c_int) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(fd: c_int, onto: c_int) -> c_int;
    dup3(fd: c_int, onto: c_int, flags: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int;
    fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int;
    read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t;
    pread64(fd: c_int, buffer: *mut c_void, count: size_t, offset: off64_t) -> ssize_t;
    __read_chk(fd: c_int, buffer: *mut c_void, count: size_t, room: size_t) -> ssize_t;
    __pread64_chk(fd: c_int, buffer: *mut c_void, count: size_t, offset: off64_t, room: size_t) -> ssize_t;
    readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t;
    preadv64(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t) -> ssize_t;
    preadv64v2(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t;
    write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t;
    ptrace(request: c_int, pid: c_int, address: usize, data: usize) -> c_long;
    pwrite64(fd: c_int, buffer: *const c_void, count: size_t, offset: off64_t) -> ssize_t;
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = find_all;
