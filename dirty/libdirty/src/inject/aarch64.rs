// SPDX-License-Identifier: Apache-2.0 OR MIT
//! arm64: a thread is sent to an `svc` of its vDSO for each call, and is put back at the exit of the last.
//!
//! A guardian does this for every thread (see `inject`): no code can lead a thread back to where it computed, for a
//! jump takes a register, and every one may hold a value.
//!
//! Two things would harm the target silently, where x86-64 has no such trouble:
//! - *A system call that was interrupted.* In the stop of `PTRACE_INTERRUPT` the kernel has put `x0` and `pc` back
//!   already, and it keeps to itself whether the call is to be made again or its rest (`restart_syscall(2)`, after a
//!   sleep). Sent elsewhere from there, a thread sleeps its whole time again. So a thread that is about to execute an
//!   `svc` goes on, through that call, which returns at once, for the next stop is asked for already. At its exit the
//!   result says how the kernel means to restart it. With this result the thread is put back at the exit of another
//!   call that has the same first argument: there the kernel restarts the call by itself, or ends it for a signal that
//!   waits.
//! - *Vector registers.* A system call empties what SVE has above the lowest 128 bits, the predicates and FFR. A thread
//!   that holds values in them, since it is in no call, has them saved and put back. Streaming mode (SME), which a call
//!   ends, is waited for.
//!
//! In stops at system calls the kernel shows something else in `x7`, and ignores what is written to it. No call changes
//! it.

use std::fs;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;
use procfs::process::MMapPath;

use super::{Stop, resume, set_mask, to_syscall_stop, wait, wait_for_trap};
use crate::target::Target;

pub(super) const NEEDS_GUARDIAN: bool = true;

pub(super) fn is_supported() -> Result<(), String> {
    Ok(())
}

type Registers = libc::user_regs_struct;

const MODE32: u64 = 1 << 4; // PSTATE.nRW
const BTYPE: u64 = 3 << 10;

/// `svc`, whatever its immediate value.
fn is_svc(word: [u8; 4]) -> bool {
    u32::from_le_bytes(word) & 0xffe0_001f == 0xd400_0001
}

/// Where a thread is to go on, and with what.
pub(super) struct Place {
    registers: Registers,
    /// The first argument of the call whose result is in `x0`, if the kernel is to restart it.
    restart: Option<u64>,
    /// What a system call empties.
    vectors: Option<Vec<u8>>,
}

impl Place {
    /// Of a thread in the stop of `PTRACE_INTERRUPT`. `None`: it must go on for a moment.
    pub(super) fn find(target: &Target, tid: Pid) -> Result<Option<Self>, String> {
        let registers = registers(tid).map_err(|error| format!("its registers: {error}"))?;
        if registers.pstate & MODE32 != 0 {
            return Err("it is not a 64-bit process".into());
        }
        let mut next = [0; 4];
        fs::File::open(format!("{}/mem", target.folder()))
            .and_then(|memory| memory.read_exact_at(&mut next, registers.pc))
            .map_err(|error| format!("reading its next instruction: {error}"))?;
        if is_svc(next) {
            return through_call(tid).map_err(|error| format!("its system call: {error}"));
        }
        if is_streaming(tid)? {
            return Ok(None);
        }
        Ok(Some(Place { registers, restart: None, vectors: vectors(tid)? }))
    }
}

/// Let a thread that is about to make a system call make it, and stop it at its exit. `None`: it got elsewhere, and
/// is in the stop of `PTRACE_INTERRUPT`, or will be.
fn through_call(tid: Pid) -> Result<Option<Place>, Errno> {
    resume(tid, libc::PTRACE_SYSCALL, 0)?;
    match wait(tid)? {
        Stop::Syscall => {}
        Stop::Trap => return Ok(None),
        Stop::Signal(signal) => {
            resume(tid, libc::PTRACE_CONT, signal)?;
            ptrace::interrupt(tid)?;
            return wait_for_trap(tid).map(|()| None).map_err(|_| Errno::ETIMEDOUT);
        }
    }
    let entry = registers(tid)?;
    ptrace::interrupt(tid)?;
    to_syscall_stop(tid)?; // exit
    let exit = registers(tid)?;
    // rt_sigreturn(2) and execve(2) go elsewhere.
    if exit.pc != entry.pc || system_call(tid)? == NO_CALL {
        return Ok(None);
    }
    let is_restarted = matches!(exit.regs[0].cast_signed(), -514..=-512 | -516); // ERESTART*
    Ok(Some(Place { registers: exit, restart: is_restarted.then_some(entry.regs[0]), vectors: None }))
}

/// The result of the system call at whose exit the thread is stopped.
pub(super) fn result(tid: Pid) -> Result<i64, Errno> {
    Ok(registers(tid)?.regs[0].cast_signed())
}

/// A thread that makes calls for us.
pub(super) struct Detour {
    /// The address of an `svc`.
    svc: u64,
}

impl Detour {
    /// For a thread that is to go on there, with this mask.
    pub(super) fn build(target: &Target, _tid: Pid, _place: &Place, _mask: u64) -> Result<Self, String> {
        let maps = target.maps().text().map_err(|error| format!("reading its mappings: {error}"))?;
        let vdso =
            maps.iter().find(|map| map.pathname == MMapPath::Vdso).ok_or("it has no vDSO to call from")?;
        let (start, end) = vdso.address;
        let mut bytes = vec![0; (end - start) as usize];
        fs::File::open(format!("{}/mem", target.folder()))
            .and_then(|memory| memory.read_exact_at(&mut bytes, start))
            .map_err(|error| format!("reading its vDSO: {error}"))?;
        let found = bytes.chunks_exact(4).position(|word| word.try_into().is_ok_and(is_svc));
        let index = found.ok_or("its vDSO has no svc instruction")?;
        Ok(Detour { svc: start + 4 * index as u64 })
    }

    /// Send the thread to where it makes this system call of one argument.
    pub(super) fn enter(&self, tid: Pid, place: &Place, number: i64, argument: i64) -> Result<(), Errno> {
        let mut registers = place.registers;
        registers.pc = self.svc;
        registers.regs[8] = number.cast_unsigned();
        registers.regs[0] = argument.cast_unsigned();
        registers.pstate &= !BTYPE; // an svc is no landing pad
        set_registers(tid, registers)
    }

    /// Send it to where it closes `fd`.
    pub(super) fn close(&self, tid: Pid, place: &Place, fd: i64) -> Result<(), Errno> {
        self.enter(tid, place, libc::SYS_close, fd)
    }

    /// Put the thread back and let it go.
    pub(super) fn end(&self, tid: Pid, place: &Place, mask: u64) -> Result<(), String> {
        self.put_back(tid, place).map_err(|error| error.to_string())?;
        set_mask(tid, mask)?;
        // Kernels look at a call to restart where a signal waits, or a stop: letting go wakes the thread as one does.
        ptrace::detach(tid, None).map_err(|error| error.to_string())
    }

    fn put_back(&self, tid: Pid, place: &Place) -> Result<(), Errno> {
        // A call without effect, whose first argument the kernel keeps for the restart.
        self.enter(tid, place, libc::SYS_getpid, place.restart.unwrap_or(0).cast_signed())?;
        to_syscall_stop(tid)?; // entry
        to_syscall_stop(tid)?; // exit
        if place.restart.is_none() {
            // Its x0 may look like the result of a call that is to be restarted.
            set_regset(tid, NT_ARM_SYSTEM_CALL, &mut NO_CALL.to_ne_bytes())?;
        }
        if let Some(vectors) = &place.vectors {
            set_regset(tid, NT_ARM_SVE, &mut vectors.clone())?;
        }
        set_registers(tid, place.registers)
    }
}

/// SVE registers, if the thread holds values in them.
fn vectors(tid: Pid) -> Result<Option<Vec<u8>>, String> {
    let state = vector_state(tid, NT_ARM_SVE)?;
    Ok(state.filter(|state| has_scalable_values(state)))
}

fn is_streaming(tid: Pid) -> Result<bool, String> {
    Ok(vector_state(tid, NT_ARM_SSVE)?.is_some_and(|state| has_scalable_values(&state)))
}

/// `None` where the processor or the kernel has no such registers.
fn vector_state(tid: Pid, set: usize) -> Result<Option<Vec<u8>>, String> {
    let mut state = vec![0; MOST_VECTORS];
    match regset(tid, libc::PTRACE_GETREGSET, set, &mut state) {
        Ok(length) => {
            state.truncate(length);
            Ok(Some(state))
        }
        Err(Errno::EINVAL | Errno::ENODEV) => Ok(None),
        Err(error) => Err(format!("its vector registers: {error}")),
    }
}

/// The flag SVE_PT_REGS_SVE of `struct user_sve_header`.
fn has_scalable_values(state: &[u8]) -> bool {
    const FLAGS: usize = 12;
    const SVE_PT_REGS_SVE: u16 = 1;
    let flags = state.get(FLAGS..FLAGS + 2).and_then(|flags| flags.try_into().ok());
    flags.is_some_and(|flags| u16::from_ne_bytes(flags) & SVE_PT_REGS_SVE != 0)
}

const NT_PRSTATUS: usize = 1;
const NT_ARM_SYSTEM_CALL: usize = 0x404;
const NT_ARM_SVE: usize = 0x405;
const NT_ARM_SSVE: usize = 0x40b;
/// As many bytes as the longest vectors take, and more.
const MOST_VECTORS: usize = 32 << 10;

const NO_CALL: i32 = -1;

fn registers(tid: Pid) -> Result<Registers, Errno> {
    let mut registers = Registers { regs: [0; 31], sp: 0, pc: 0, pstate: 0 };
    // SAFETY: plain numbers, of which any are registers.
    let bytes =
        unsafe { std::slice::from_raw_parts_mut((&raw mut registers).cast::<u8>(), size_of::<Registers>()) };
    regset(tid, libc::PTRACE_GETREGSET, NT_PRSTATUS, bytes)?;
    Ok(registers)
}

fn set_registers(tid: Pid, mut registers: Registers) -> Result<(), Errno> {
    // SAFETY: as in `registers`.
    let bytes =
        unsafe { std::slice::from_raw_parts_mut((&raw mut registers).cast::<u8>(), size_of::<Registers>()) };
    set_regset(tid, NT_PRSTATUS, bytes)
}

/// The number of the system call in which the thread is, or `NO_CALL`.
fn system_call(tid: Pid) -> Result<i32, Errno> {
    let mut number = [0; 4];
    regset(tid, libc::PTRACE_GETREGSET, NT_ARM_SYSTEM_CALL, &mut number)?;
    Ok(i32::from_ne_bytes(number))
}

fn set_regset(tid: Pid, set: usize, bytes: &mut [u8]) -> Result<(), Errno> {
    regset(tid, libc::PTRACE_SETREGSET, set, bytes).map(drop)
}

/// Returns how many bytes were read or written.
fn regset(tid: Pid, request: libc::c_uint, set: usize, bytes: &mut [u8]) -> Result<usize, Errno> {
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: the kernel reads or writes at most what the vector says.
    let done = unsafe { libc::ptrace(request, tid.as_raw(), set, &raw mut part) };
    Errno::result(done).map(|_| part.iov_len)
}
