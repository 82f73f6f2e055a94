// SPDX-License-Identifier: Apache-2.0 OR MIT
//! x86-64: a thread is sent over a *bridge*: a few instructions that make the call, close the descriptor, put back the
//! signal mask and every register that they used, and jump to where the thread was. Between the call and the close it
//! is stopped once more, for the descriptor to be copied.
//!
//! The bridge is written to unused bytes behind the end of the vDSO, on its last page, which thereby becomes a private
//! copy of the process, and stays one. No memory of the program is written, and no stack.
//!
//! Invariant: *the tracer may die at any instant*. Whatever it has done so far, the thread, let go by the kernel, runs
//! on as if nothing had happened:
//! - Before the registers are changed it was only stopped. The bridge is complete before any register points to it.
//! - From then on it is on the bridge, which ends where it was, with the mask that it had. The mask is changed when the
//!   registers are on the bridge already, and put back while they still are.
//! - A system call that was interrupted is made again by the bridge as the kernel would have.
//! - A bridge on which a thread may still be is never changed, nor used again while that thread lives: signals that
//!   waited are taken on it, and their handlers return to it.
//!
//! Registers are put back in a stop from which the kernel restarts the system call that was interrupted, as after any
//! ptrace stop.

use std::fs;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;
use procfs::process::MMapPath;

use super::{set_mask, wait_for_trap};
use crate::target::Target;

/// The bridge ends by itself.
pub(super) const NEEDS_GUARDIAN: bool = false;

pub(super) fn is_supported() -> Result<(), String> {
    Ok(())
}

/// Where a thread is to go on, and with what.
pub(super) struct Place {
    registers: libc::user_regs_struct,
}

impl Place {
    /// Of a thread in the stop of `PTRACE_INTERRUPT`. `None`: it must go on for a moment.
    pub(super) fn find(_target: &Target, tid: Pid) -> Result<Option<Self>, String> {
        let registers = ptrace::getregs(tid).map_err(|error| format!("its registers: {error}"))?;
        if registers.cs != 0x33 {
            return Err("it is not a 64-bit process".into());
        }
        Ok(Some(Place { registers }))
    }
}

/// The result of the system call at whose exit the thread is stopped.
pub(super) fn result(tid: Pid) -> Result<i64, Errno> {
    Ok(ptrace::getregs(tid)?.rax.cast_signed())
}

/// A thread that makes calls for us.
pub(super) struct Detour {
    bridge: Bridge,
}

impl Detour {
    /// For a thread that is to go on there, with this mask.
    pub(super) fn build(target: &Target, tid: Pid, place: &Place, mask: u64) -> Result<Self, String> {
        Ok(Detour { bridge: Bridge::build(target, tid, &place.registers, mask)? })
    }

    /// Send the thread to where it makes this system call of one argument.
    pub(super) fn enter(&self, tid: Pid, place: &Place, number: i64, argument: i64) -> Result<(), Errno> {
        let mut registers = place.registers;
        registers.rip = self.bridge.start;
        registers.rax = number.cast_unsigned();
        registers.rdi = argument.cast_unsigned();
        // No system call was interrupted, as far as these registers go: nothing to restart.
        registers.orig_rax = u64::MAX;
        ptrace::setregs(tid, registers)
    }

    /// What the bridge calls next, by itself: close, of what it was returned.
    pub(super) fn close(&self, _tid: Pid, _place: &Place, _fd: i64) -> Result<(), Errno> {
        Ok(())
    }

    /// Put the thread back and let it go.
    pub(super) fn end(&self, tid: Pid, place: &Place, mask: u64) -> Result<(), String> {
        // A stop within the kernel's signal delivery, which looks at a system call to restart when it goes on.
        ptrace::interrupt(tid).map_err(|error| error.to_string())?;
        ptrace::cont(tid, None).map_err(|error| error.to_string())?;
        wait_for_trap(tid)?;
        set_mask(tid, mask)?;
        ptrace::setregs(tid, place.registers).map_err(|error| error.to_string())?;
        poke(tid, self.bridge.owner, 0)?;
        ptrace::detach(tid, None).map_err(|error| error.to_string())
    }
}

// The bridge. Nothing on it changes flags or the stack, so these need no putting back; nor does the kernel.
std::arch::global_asm!(
    ".pushsection .rodata.libdirty_bridge, \"a\"",
    ".balign 16",
    ".globl libdirty_bridge",
    ".hidden libdirty_bridge",
    "libdirty_bridge:",
    "syscall",
    "mov edi, eax", // the descriptor; of an error close makes nothing
    "mov eax, 3",
    "syscall",
    "mov edi, 2", // SIG_SETMASK
    "lea rsi, [rip + 2f]",
    "mov edx, 0",
    "mov r10d, 8",
    "mov eax, 14",
    "syscall",
    "mov rax, [rip + 2f + 8]",
    "mov rcx, [rip + 2f + 16]",
    "mov rdx, [rip + 2f + 24]",
    "mov rsi, [rip + 2f + 32]",
    "mov rdi, [rip + 2f + 40]",
    "mov r10, [rip + 2f + 48]",
    "mov r11, [rip + 2f + 56]",
    "jmp qword ptr [rip + 2f + 64]",
    ".org libdirty_bridge + 112, 0xcc", // eight times CODE
    "2:",
    ".popsection",
);

unsafe extern "C" {
    #[link_name = "libdirty_bridge"]
    static BRIDGE: [u64; CODE];
}

/// Words of the bridge's code, and of what follows it: mask, registers, where to go, and the thread whose bridge it is.
const CODE: usize = 14;
const DATA: usize = 10;

/// A bridge in the target for one thread.
struct Bridge {
    start: u64,
    /// The word that names its owner; 0: none.
    owner: u64,
}

impl Bridge {
    /// Build one for the stopped thread `tid`, which is to go on with these registers and this mask.
    fn build(
        target: &Target,
        tid: Pid,
        registers: &libc::user_regs_struct,
        mask: u64,
    ) -> Result<Self, String> {
        let start = Self::place(target)?;
        // SAFETY: so many words of constants, see above.
        let code = unsafe { BRIDGE };
        let (rax, next) = resumption(registers);
        let libc::user_regs_struct { rcx, rdx, rsi, rdi, r10, r11, .. } = *registers;
        let data: [u64; DATA - 1] = [mask, rax, rcx, rdx, rsi, rdi, r10, r11, next];
        let owner = start + 8 * (CODE + DATA - 1) as u64;
        // First whose it is: whoever finds a half-built one leaves it alone.
        poke(tid, owner, tid.as_raw() as u64)?;
        for (index, word) in code.into_iter().chain(data).enumerate() {
            poke(tid, start + 8 * index as u64, word)?;
        }
        Ok(Bridge { start, owner })
    }

    /// Free room behind the vDSO.
    fn place(target: &Target) -> Result<u64, String> {
        const SIZE: usize = 8 * (CODE + DATA);
        let pid = target.pid();
        let maps = target.maps().text().map_err(|error| format!("reading its mappings: {error}"))?;
        let vdso =
            maps.iter().find(|map| map.pathname == MMapPath::Vdso).ok_or("it has no vDSO to call from")?;
        let (start, end) = vdso.address;
        let mut bytes = vec![0; (end - start) as usize];
        let memory = fs::File::open(format!("{}/mem", target.folder())).map_err(|error| error.to_string())?;
        std::os::unix::fs::FileExt::read_exact_at(&memory, &mut bytes, start)
            .map_err(|error| format!("reading its vDSO: {error}"))?;
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        let mut room = 0;
        for (number, slot) in bytes.rchunks_exact(SIZE).enumerate() {
            let words: Vec<u64> = slot.chunks_exact(8).map(word).collect();
            let owner = words[CODE + DATA - 1];
            // SAFETY: so many words of constants, see above.
            let code = unsafe { BRIDGE };
            let is_bridge = words[..CODE] == code;
            // Nothing yet, or one whose builder died.
            let is_begun = words[..CODE].iter().zip(&code).all(|(word, code)| word == code || *word == 0)
                && words[CODE..CODE + DATA - 1].iter().all(|word| *word == 0);
            if !is_bridge && !is_begun {
                break; // the vDSO itself
            }
            room += 1;
            if owner == 0 || !Path::new(&format!("/proc/{pid}/task/{owner}")).exists() {
                return Ok(end - ((number + 1) * SIZE) as u64);
            }
        }
        if room == 0 {
            return Err("there is no room behind its vDSO".into());
        }
        Err(format!(
            "{room} trackers were killed while they attached to threads that live still: no room is left"
        ))
    }
}

/// The value of `rax` and the address with which the thread goes on: where a system call was interrupted, it makes it
/// again, as the kernel would have it do.
fn resumption(registers: &libc::user_regs_struct) -> (u64, u64) {
    const SYSCALL_LENGTH: u64 = 2;
    let again = match registers.rax.cast_signed() {
        -514..=-512 => Some(registers.orig_rax), // ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND
        -516 => Some(libc::SYS_restart_syscall as u64), // ERESTART_RESTARTBLOCK
        _ => None,
    };
    match again.filter(|_| registers.orig_rax != u64::MAX) {
        Some(number) => (number, registers.rip - SYSCALL_LENGTH),
        None => (registers.rax, registers.rip),
    }
}

fn poke(tid: Pid, address: u64, word: u64) -> Result<(), String> {
    ptrace::write(tid, address as *mut libc::c_void, word.cast_signed())
        .map_err(|error| format!("writing behind its vDSO: {error}"))
}
