// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a back end can and cannot do, as C sees it.

use std::ffi::{CStr, c_char};
use std::mem::offset_of;

use libdirty::BackendKind;

use crate::failure::{Failure, Outcome};
use crate::text::c_text;

/// How a kind of write that user code did not make itself is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum Sees {
    /// It is not reported: you must know of such writes by other means.
    No = 0,
    /// It is reported.
    Yes = 1,
    /// The write itself fails (EFAULT or EIO; a store by SIGSEGV): nothing is missed, but the writer must expect the
    /// error.
    Fails = 2,
}

/// Where the cost of tracking falls. More may be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum Cost {
    /// The first write to each page between two collects enters the kernel, about a microsecond.
    KernelFault = 0,
    /// The first write to each page runs a signal handler, several microseconds.
    SignalPerPage = 1,
    /// The first write to each page waits for another thread, several microseconds to 100.
    ThreadSwitchPerPage = 2,
    /// Nothing: the processor notes it.
    Hardware = 3,
    /// The first write to each page exits the virtual machine; where the processor keeps the hypervisor's log (PML),
    /// one in hundreds does.
    HypervisorExit = 4,
}

/// The record of one back end.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Capabilities {
    /// Set it to sizeof(struct dirty_capabilities) before the call. Later versions of the library may add members at
    /// the end; a program compiled before gets those that it knows, one compiled after finds zeroes.
    pub size: u32,
    /// Smallest unit it reports, in pages; in huge mappings (hugetlb) that of the mapping.
    pub granule_pages: u32,
    /// 1 if it reports only pages that were written, except as inexact says.
    pub exact: u32,
    /// Writes that the kernel makes on behalf of the process: read(2) into a buffer, recvmsg, signal frames.
    /// This and the next six: one of enum dirty_sees.
    pub kernel_writes: u32,
    /// Writes through process_vm_writev.
    pub foreign_writes: u32,
    /// Writes through /proc/PID/mem and PTRACE_POKEDATA: debuggers.
    pub mem_writes: u32,
    /// Writes to memory that the program itself made writable (or mapped anew) since the last collect, and made
    /// read-only again before the next.
    pub reprotected_writes: u32,
    /// Writes to watched memory that the program has moved or grown by mremap since the last collect.
    pub remapped_writes: u32,
    /// Changes to shared memory by other ways than the watched mapping: another mapping of it, operations on its file
    /// (write, truncation, punching holes) and MADV_REMOVE.
    pub shared_aliases: u32,
    /// Writes by devices or the kernel into pages pinned before the last collect (O_DIRECT, io_uring's registered
    /// buffers, RDMA).
    pub pinned_writes: u32,
    /// 1 if it can watch all memory of the calling process, its own stacks and data included.
    pub whole_own_process: u32,
    /// 1 if it can track a process other than the caller.
    pub other_process: u32,
    /// One of enum dirty_cost.
    pub cost: u32,
    /// Writes to pages that the kernel reclaimed (shared memory) or merged with equal ones (KSM) before they were
    /// collected, and brought back for a read. One of enum dirty_sees.
    pub reclaimed_writes: u32,
    /// When a page that was not written is reported nevertheless.
    pub inexact: *const c_char,
    /// What the caller needs beyond the permission to ptrace the target; empty if nothing.
    pub privilege: *const c_char,
}

/// The structure as it was released first: no program was compiled with less.
const FIRST_SIZE: usize = offset_of!(Capabilities, privilege) + size_of::<*const c_char>();

/// No structure of a later version is this long: whoever says so forgot to set the size.
const MAX_SIZE: usize = 4096;

/// Texts that a record of libdirty has no C form of.
struct Texts {
    name: *const c_char,
    inexact: *const c_char,
    privilege: *const c_char,
}

macro_rules! texts {
    ($($index:literal)*) => {
        [$(Texts {
            name: c_text!(BackendKind::ALL[$index].name()),
            inexact: c_text!(BackendKind::ALL[$index].capabilities().inexact),
            privilege: c_text!(BackendKind::ALL[$index].capabilities().privilege),
        }),*]
    };
}

/// In the order of [`BackendKind::ALL`].
const TEXTS: [Texts; BackendKind::ALL.len()] = texts![0 1 2 3 4 5 6];

fn texts(kind: BackendKind) -> &'static Texts {
    static OF: Shared = Shared(TEXTS);
    let index = BackendKind::ALL.iter().position(|other| *other == kind);
    &OF.0[index.expect("every back end is listed")]
}

/// Pointers to constant texts.
struct Shared([Texts; BackendKind::ALL.len()]);

// SAFETY: what they point to never changes and is never freed.
unsafe impl Sync for Shared {}

/// The name, as C wants it.
pub(crate) fn name(kind: BackendKind) -> *const c_char {
    texts(kind).name
}

/// The back end called `name`.
pub(crate) fn parse(name: &CStr) -> Outcome<BackendKind> {
    name.to_string_lossy().parse().map_err(|why: String| Failure::new(libc::EINVAL, why))
}

/// Fill what the caller has room for.
///
/// # Safety
/// `out` is aligned, has its size set, and may be written so far.
pub(crate) unsafe fn fill(kind: BackendKind, out: *mut Capabilities) -> Outcome<()> {
    // SAFETY: the first member.
    let room = unsafe { (&raw const (*out).size).read() } as usize;
    if !(FIRST_SIZE..=MAX_SIZE).contains(&room) {
        let known = size_of::<Capabilities>();
        let why = format!(
            "struct dirty_capabilities: its size is said to be {room}; set it to its sizeof, {known} here"
        );
        return Err(Failure::new(if room < FIRST_SIZE { libc::EINVAL } else { libc::E2BIG }, why));
    }
    let (record, texts) = (kind.capabilities(), texts(kind));
    let filled = Capabilities {
        size: room as u32,
        granule_pages: u32::try_from(record.granule_pages).unwrap_or(u32::MAX),
        exact: record.exact.into(),
        kernel_writes: sees(record.kernel_writes),
        foreign_writes: sees(record.foreign_writes),
        mem_writes: sees(record.mem_writes),
        reprotected_writes: sees(record.reprotected_writes),
        remapped_writes: sees(record.remapped_writes),
        shared_aliases: sees(record.shared_aliases),
        pinned_writes: sees(record.pinned_writes),
        whole_own_process: record.whole_own_process.into(),
        other_process: record.other_process.into(),
        cost: cost(record.cost),
        reclaimed_writes: sees(record.reclaimed_writes),
        inexact: texts.inexact,
        privilege: texts.privilege,
    };
    // SAFETY: `room` bytes may be written.
    unsafe { store(&filled, out.cast(), room) };
    Ok(())
}

/// A caller of an earlier version gets the beginning, one of a later version zeros behind the end.
///
/// # Safety
/// `room` bytes may be written to `out`.
unsafe fn store<T: Copy>(record: &T, out: *mut u8, room: usize) {
    let known = size_of::<T>().min(room);
    // SAFETY: as the caller promises; no more is read than `record` has.
    unsafe {
        out.copy_from_nonoverlapping((&raw const *record).cast(), known);
        out.add(known).write_bytes(0, room - known);
    }
}

fn sees(sees: libdirty::Sees) -> u32 {
    (match sees {
        libdirty::Sees::No => Sees::No,
        libdirty::Sees::Yes => Sees::Yes,
        libdirty::Sees::Fails => Sees::Fails,
    }) as u32
}

fn cost(cost: libdirty::CostClass) -> u32 {
    (match cost {
        libdirty::CostClass::KernelFault => Cost::KernelFault,
        libdirty::CostClass::SignalPerPage => Cost::SignalPerPage,
        libdirty::CostClass::ThreadSwitchPerPage => Cost::ThreadSwitchPerPage,
        libdirty::CostClass::Hardware => Cost::Hardware,
        libdirty::CostClass::HypervisorExit => Cost::HypervisorExit,
    }) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_of_other_versions_get_what_they_know() {
        let record = [1u32, 2, 3];
        for (room, expected) in [(8, [1, 2, 9, 9]), (12, [1, 2, 3, 9]), (16, [1, 2, 3, 0])] {
            let mut out = [9u32; 4];
            // SAFETY: there is room for 16 bytes.
            unsafe { store(&record, out.as_mut_ptr().cast(), room) };
            assert_eq!(out, expected);
        }
    }
}
