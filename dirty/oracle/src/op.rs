// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a program does to its memory, as data that can be sent to another process, printed and replayed.

use serde::{Deserialize, Serialize};

/// What stands behind a new mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backing {
    /// Private memory without swap reservation, as for large sparse areas.
    Anonymous,
    /// Shared memory: a memfd of its own.
    Shared,
    /// A private mapping of a new file full of known bytes.
    PrivateFile,
    /// A shared mapping of a new file full of known bytes.
    SharedFile,
    /// Private memory in huge pages set aside (hugetlb).
    Huge,
}

/// How the kernel, or another process, writes into the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// `read(2)` from a pipe.
    Read,
    /// `recvmsg(2)` from a socket.
    Recvmsg,
    /// `vmsplice(2)` from a pipe.
    Vmsplice,
    /// A read by io_uring from a file.
    IoUring,
    /// `process_vm_writev(2)` by a child.
    ProcessVmWritev,
    /// A write to `/proc/PID/mem` by a child.
    ProcMem,
    /// A read from a file opened with `O_DIRECT`.
    Direct,
}

/// One step. Addresses and lengths are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)] // the fields say what they are
pub enum Op {
    /// Map memory; what was there is replaced only if so wished.
    Map {
        at: usize,
        length: usize,
        backing: Backing,
        replace: bool,
    },
    /// Map the shared memory of `of` once more, at `at`.
    Alias {
        of: usize,
        at: usize,
        length: usize,
    },
    /// `munmap`.
    Unmap {
        at: usize,
        length: usize,
    },
    /// `mremap`; to another place, or grown where it is.
    Remap {
        at: usize,
        length: usize,
        new_length: usize,
        to: Option<usize>,
    },
    /// `mprotect` with `PROT_*`.
    Protect {
        at: usize,
        length: usize,
        protection: i32,
    },
    /// `madvise` with `MADV_*`.
    Advise {
        at: usize,
        length: usize,
        advice: i32,
    },
    /// Write every byte.
    Fill {
        at: usize,
        length: usize,
        value: u8,
    },
    /// Write one byte in each `step`.
    Touch {
        at: usize,
        length: usize,
        step: usize,
        value: u8,
    },
    /// Count the bytes, one in each `step`, that are not `value`.
    Differing {
        at: usize,
        length: usize,
        step: usize,
        value: u8,
    },
    /// One store of eight bytes, wherever it lies.
    Straddle {
        at: usize,
        value: u64,
    },
    /// Read a byte of each page.
    Load {
        at: usize,
        length: usize,
    },
    /// Have the kernel write.
    Kernel {
        way: Way,
        at: usize,
        length: usize,
        value: u8,
    },
    /// Write into another process: [`Way::ProcessVmWritev`] or [`Way::ProcMem`].
    Into {
        pid: i32,
        way: Way,
        at: usize,
        length: usize,
        value: u8,
    },
    /// Have a virtual machine of the program write.
    Guest {
        at: usize,
        length: usize,
        value: u8,
    },
    /// Pin this memory for the kernel to write later: io_uring's registered buffers.
    Pin {
        at: usize,
        length: usize,
    },
    /// Have the kernel write to all that is pinned.
    WritePinned {
        value: u8,
    },
    Unpin,
    /// `msync`, until what was written is on disk.
    Sync {
        at: usize,
        length: usize,
    },
    /// Begin to write other memory at these addresses, over and over, from so many other processes.
    StartNoise {
        processes: usize,
        at: usize,
        length: usize,
    },
    StopNoise,
    /// Take a signal on an alternate stack that lies here.
    Signal {
        at: usize,
        length: usize,
    },
    /// Begin to write random pages from many threads.
    StartWriters {
        threads: usize,
        at: usize,
        length: usize,
    },
    /// Hold the threads still, or let them go on.
    PauseWriters,
    ResumeWriters,
    StopWriters,
    /// Begin to fill memory and give it back, by the allocator and here, in so many threads of either kind.
    StartChurn {
        threads: usize,
        at: usize,
        length: usize,
    },
    StopChurn,
    /// Fork; the child writes its copy of these pages once and lives on.
    Fork {
        at: usize,
        length: usize,
        value: u8,
    },
    /// End the forked child.
    EndFork,
    /// Replace the program.
    Exec,
    /// Nothing; shows that the process is alive.
    Ping,
}
