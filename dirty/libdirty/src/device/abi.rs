// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interface of the kernel module as in `dirty/abi/trapless_dirty.h`, which explains each item. `tests/abi.rs`
//! checks with the C compiler that the two agree.

/// `TRAPLESS_DIRTY_DEVICE`.
pub const DEVICE: &str = "/dev/trapless_dirty";
/// What the module leaves out of this kernel, a line "mechanism: why" each; "all" is every mechanism.
pub const LEFT_OUT: &str = "/sys/class/misc/trapless_dirty/left_out";
/// `TRAPLESS_DIRTY_ABI`.
pub const ABI: u32 = 1;

/// `TRAPLESS_DIRTY_DBIT`.
pub const DBIT: u32 = 0;
/// `TRAPLESS_DIRTY_SPML`.
pub const SPML: u32 = 1;
/// `TRAPLESS_DIRTY_EPML`.
pub const EPML: u32 = 2;

/// `TRAPLESS_DIRTY_OVERRUN`.
pub const OVERRUN: u64 = 1;

/// `struct trapless_dirty_info`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Info {
    /// [`ABI`]; another value is another interface.
    pub abi: u32,
    /// Bit `1 << mechanism` is set for each that works.
    pub mechanisms: u32,
}

/// `struct trapless_dirty_attach`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Attach {
    /// The process.
    pub pid: i32,
    /// [`DBIT`], [`SPML`] or [`EPML`].
    pub mechanism: u32,
}

/// `struct trapless_dirty_range`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// First byte behind.
    pub end: u64,
}

/// `struct trapless_dirty_collect`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Collect {
    /// [`OVERRUN`] or 0.
    pub flags: u64,
}

/// `struct trapless_dirty_read`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Read {
    /// Address of an array of [`Range`].
    pub ranges: u64,
    /// Its length.
    pub capacity: u32,
    /// How many were stored.
    pub count: u32,
}

/// `struct trapless_dirty_stats`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Stats {
    /// Entries taken from the log.
    pub logged: u64,
    /// How many of these were for pages that are not watched.
    pub foreign: u64,
    /// Times a thread of the process was armed.
    pub arms: u64,
    /// Interrupts of the log.
    pub interrupts: u64,
    /// Times the log was full.
    pub overruns: u64,
    /// Nanoseconds in page tables.
    pub walk_ns: u64,
    /// Nanoseconds of TLB flushes.
    pub flush_ns: u64,
}

const TYPE: u32 = 0xd1;

/// `TRAPLESS_DIRTY_GET_INFO`.
pub const GET_INFO: libc::Ioctl = libc::_IOR::<Info>(TYPE, 0);
/// `TRAPLESS_DIRTY_ATTACH`.
pub const ATTACH: libc::Ioctl = libc::_IOW::<Attach>(TYPE, 1);
/// `TRAPLESS_DIRTY_WATCH`.
pub const WATCH: libc::Ioctl = libc::_IOW::<Range>(TYPE, 2);
/// `TRAPLESS_DIRTY_UNWATCH`.
pub const UNWATCH: libc::Ioctl = libc::_IOW::<Range>(TYPE, 3);
/// `TRAPLESS_DIRTY_COLLECT`.
pub const COLLECT: libc::Ioctl = libc::_IOR::<Collect>(TYPE, 4);
/// `TRAPLESS_DIRTY_READ`.
pub const READ: libc::Ioctl = libc::_IOWR::<Read>(TYPE, 5);
/// `TRAPLESS_DIRTY_GET_STATS`.
pub const GET_STATS: libc::Ioctl = libc::_IOR::<Stats>(TYPE, 6);
