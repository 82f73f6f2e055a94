// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each back end can and cannot do. A record describes the mechanism; whether the running kernel has it is
//! found by trying (see [`crate::survey`]).

use std::fmt;
use std::str::FromStr;

/// A mechanism that finds dirty pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendKind {
    /// `mprotect` and a SIGSEGV handler.
    Mprotect,
    /// `/proc/PID/clear_refs` and bit 55 of `/proc/PID/pagemap`.
    SoftDirty,
    /// userfaultfd write protection, each fault handled by a thread of the tracker.
    UffdSync,
    /// userfaultfd asynchronous write protection, harvested by `PAGEMAP_SCAN`.
    UffdAsync,
    /// The module `trapless_dirty`: the dirty bit of the process's page-table entries.
    Dbit,
    /// The module `trapless_dirty`: the hypervisor's log of guest-physical pages (Shadow PML).
    Spml,
    /// The module `trapless_dirty`: the processor's log of guest-virtual pages (Extended PML).
    Epml,
}

impl BackendKind {
    /// Every back end, cheapest first: the order in which `auto` tries them.
    pub const ALL: [BackendKind; 7] = [
        BackendKind::Epml,
        BackendKind::Dbit,
        BackendKind::UffdAsync,
        BackendKind::SoftDirty,
        BackendKind::Spml,
        BackendKind::Mprotect,
        BackendKind::UffdSync,
    ];

    /// The name used on command lines, in the C interface and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            BackendKind::Mprotect => "mprotect",
            BackendKind::SoftDirty => "soft-dirty",
            BackendKind::UffdSync => "uffd-sync",
            BackendKind::UffdAsync => "uffd-async",
            BackendKind::Dbit => "dbit",
            BackendKind::Spml => "spml",
            BackendKind::Epml => "epml",
        }
    }

    /// What this mechanism can and cannot do.
    #[must_use]
    pub const fn capabilities(self) -> &'static Capabilities {
        match self {
            BackendKind::Mprotect => &MPROTECT,
            BackendKind::SoftDirty => &SOFT_DIRTY,
            BackendKind::UffdSync => &UFFD_SYNC,
            BackendKind::UffdAsync => &UFFD_ASYNC,
            BackendKind::Dbit => &DBIT,
            BackendKind::Spml => &SPML,
            BackendKind::Epml => &EPML,
        }
    }

    /// Whether it needs the kernel module.
    pub(crate) fn needs_module(self) -> bool {
        matches!(self, BackendKind::Dbit | BackendKind::Spml | BackendKind::Epml)
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for BackendKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|kind| kind.name()).collect();
            format!("no back end is called {name:?}; there are {}", known.join(", "))
        })
    }
}

/// How a kind of write that user code did not make itself is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sees {
    /// It is reported.
    Yes,
    /// It is not reported: the tracker's user must know of such writes by other means.
    No,
    /// The write itself fails (`EFAULT` or `EIO`; a store by SIGSEGV): nothing is missed, but the writer must expect
    /// the error.
    Fails,
}

impl fmt::Display for Sees {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Sees::Yes => "yes",
            Sees::No => "no",
            Sees::Fails => "fails",
        })
    }
}

/// Where the cost of tracking falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CostClass {
    /// The first write to each page in a round enters the kernel, about a microsecond.
    KernelFault,
    /// The first write to each page in a round runs a signal handler, several microseconds.
    SignalPerPage,
    /// The first write to each page in a round waits for another thread, several microseconds to 100.
    ThreadSwitchPerPage,
    /// Nothing: the processor notes it.
    Hardware,
    /// The first write to each page in a round exits the virtual machine; where the processor keeps the hypervisor's
    /// log (PML), one in hundreds does.
    HypervisorExit,
}

impl fmt::Display for CostClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            CostClass::KernelFault => "kernel fault",
            CostClass::SignalPerPage => "signal a page",
            CostClass::ThreadSwitchPerPage => "thread switch a page",
            CostClass::Hardware => "nothing",
            CostClass::HypervisorExit => "exit of the VM",
        })
    }
}

/// The record of one back end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Smallest unit it reports, in pages; in huge mappings (hugetlb) that of the mapping.
    pub granule_pages: usize,
    /// Reports only pages that were written, except as `inexact` says.
    pub exact: bool,
    /// When a page that was not written is reported nevertheless.
    pub inexact: &'static str,
    /// Writes that the kernel makes on behalf of the process: `read(2)` into a buffer, `recvmsg`, signal frames.
    pub kernel_writes: Sees,
    /// Writes through `process_vm_writev(2)`.
    pub foreign_writes: Sees,
    /// Writes through `/proc/PID/mem` and `PTRACE_POKEDATA`: debuggers.
    pub mem_writes: Sees,
    /// Writes to memory that the program itself made writable (or mapped anew) since the last collect, and made
    /// read-only again before the next.
    pub reprotected_writes: Sees,
    /// Writes to watched memory that the program has moved or grown by `mremap(2)` since the last collect.
    pub remapped_writes: Sees,
    /// Changes to shared memory by other ways than the watched mapping: another mapping of it, operations on its file
    /// (`write`, truncation, punching holes) and `MADV_REMOVE`.
    pub shared_aliases: Sees,
    /// Writes by devices or the kernel into pages pinned before the last collect (O_DIRECT, io_uring's
    /// registered buffers, RDMA).
    pub pinned_writes: Sees,
    /// Writes to pages that the kernel reclaimed (shared memory) or merged with equal ones (KSM) before they were
    /// collected, and brought back for a read.
    pub reclaimed_writes: Sees,
    /// Can watch all memory of the calling process, its own stacks and data included.
    pub whole_own_process: bool,
    /// Can track a process other than the caller.
    pub other_process: bool,
    /// What the caller needs beyond the permission to ptrace the target; empty if nothing.
    pub privilege: &'static str,
    /// Where the cost falls.
    pub cost: CostClass,
}

const MPROTECT: Capabilities = Capabilities {
    granule_pages: 1,
    exact: true,
    inexact: "before Linux 6.7 without CAP_SYS_ADMIN, untouched pages that were only read and pages shared with a forked child",
    kernel_writes: Sees::Fails,
    foreign_writes: Sees::Fails,
    mem_writes: Sees::No,
    reprotected_writes: Sees::No,
    remapped_writes: Sees::Fails,
    shared_aliases: Sees::No,
    pinned_writes: Sees::No,
    reclaimed_writes: Sees::Yes,
    whole_own_process: false,
    other_process: false,
    privilege: "",
    cost: CostClass::SignalPerPage,
};

const SOFT_DIRTY: Capabilities = Capabilities {
    granule_pages: 1,
    exact: true,
    inexact: "a transparent huge page is reported whole; in shared memory untouched pages always; mappings that the program joins; before Linux 6.7 without CAP_SYS_ADMIN, untouched pages that were only read and pages shared with a forked child",
    kernel_writes: Sees::Yes,
    foreign_writes: Sees::Yes,
    mem_writes: Sees::Yes,
    reprotected_writes: Sees::Yes,
    remapped_writes: Sees::Yes,
    shared_aliases: Sees::No,
    pinned_writes: Sees::No,
    reclaimed_writes: Sees::No,
    whole_own_process: true,
    other_process: true,
    privilege: "",
    cost: CostClass::KernelFault,
};

const UFFD_SYNC: Capabilities = Capabilities {
    granule_pages: 1,
    exact: true,
    inexact: "untouched pages that were only read",
    kernel_writes: Sees::Yes,
    foreign_writes: Sees::Yes,
    mem_writes: Sees::Fails,
    reprotected_writes: Sees::Yes,
    remapped_writes: Sees::Yes,
    shared_aliases: Sees::No,
    pinned_writes: Sees::No,
    reclaimed_writes: Sees::Yes,
    whole_own_process: false,
    other_process: true,
    privilege: "CAP_SYS_PTRACE in the target, or vm.unprivileged_userfaultfd=1",
    cost: CostClass::ThreadSwitchPerPage,
};

const UFFD_ASYNC: Capabilities = Capabilities {
    granule_pages: 1,
    exact: true,
    inexact: "in private file mappings pages that were only read, and written ones while they are swapped out",
    kernel_writes: Sees::Yes,
    foreign_writes: Sees::Yes,
    mem_writes: Sees::Yes,
    reprotected_writes: Sees::Yes,
    remapped_writes: Sees::Yes,
    shared_aliases: Sees::No,
    pinned_writes: Sees::No,
    reclaimed_writes: Sees::Yes,
    whole_own_process: true,
    other_process: true,
    privilege: "",
    cost: CostClass::KernelFault,
};

const DBIT: Capabilities = Capabilities {
    granule_pages: 1,
    exact: true,
    inexact: "a huge page is reported whole; ranges that were discarded, unmapped or shared with a forked child whole; pages that the kernel moved (swap, migration, joining to a huge page)",
    kernel_writes: Sees::Yes,
    foreign_writes: Sees::Yes,
    mem_writes: Sees::Yes,
    reprotected_writes: Sees::Yes,
    remapped_writes: Sees::Yes,
    shared_aliases: Sees::No,
    pinned_writes: Sees::Yes, // reported for as long as they are pinned
    reclaimed_writes: Sees::Yes,
    whole_own_process: true,
    other_process: true,
    privilege: "the kernel module trapless_dirty, and access to its device",
    cost: CostClass::Hardware,
};

const EPML: Capabilities = Capabilities {
    inexact: "ranges that were discarded, unmapped or shared with a forked child whole; pages that the kernel moved (swap, migration, joining to a huge page)",
    ..DBIT
};

const SPML: Capabilities = Capabilities {
    inexact: "pages whose memory was another process's when that was written; ranges that were discarded, unmapped or shared with a forked child whole; pages that the kernel moved (swap, migration, joining to a huge page)",
    cost: CostClass::HypervisorExit,
    ..DBIT
};
