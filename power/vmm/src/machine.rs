// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine: builds it from the arguments, and runs it until the guest resets it.
//!
//! Everything that can fail because of wrong arguments is done before the guest's first instruction.

use std::fs::{self, File};
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Error, Result, anyhow, ensure};

use crate::arguments::Arguments;
use crate::board::{Board, Effect};
use crate::console::Console;
use crate::kvm::{Exit, Kvm, Registers, TlbEntry, Vcpu, Vm};
use crate::layout::{self, Layout};
use crate::mapping::Mapping;
use crate::statistics::{self, Statistics};
use crate::{elf, host, memory, replay, tree};

/// ePAPR's magic number, passed in r6.
const EPAPR_MAGIC: u64 = 0x4550_4150;
/// For example signals: the guest continues.
const GO_ON: [io::ErrorKind; 2] = [io::ErrorKind::Interrupted, io::ErrorKind::WouldBlock];

/// Fields are dropped in this order: KVM uses the memory until the last of its descriptors is closed.
struct Machine {
    vcpu: Vcpu,
    #[expect(dead_code, reason = "its statistics end with it")]
    vm: Vm,
    #[expect(dead_code, reason = "the guest uses it as long as there is KVM's part")]
    memory: Mapping,
}

/// Boot a guest, and return when it resets the machine.
///
/// # Errors
/// It could not be booted, or it failed.
pub fn run(arguments: &Arguments) -> Result<()> {
    let kvm = Kvm::open()?;
    let vm = kvm.create_vm()?;
    let statistics = arguments.statistics.as_deref();
    let statistics = statistics.map(|file| Statistics::prepare(vm.descriptor(), file)).transpose()?;
    let mut memory = memory::map(arguments.backing, arguments.memory)?;
    let hypercall = if arguments.paravirt { Some(vm.hypercall()?) } else { None };
    let start = load(arguments, hypercall, memory.bytes_mut())?;
    // SAFETY: only the machine runs a vCPU, and it keeps the memory.
    unsafe { vm.set_memory(&memory) }?;
    let mpic = vm.create_mpic(u64::from(layout::SOC + layout::MPIC))?;
    let mut vcpu = vm.create_vcpu(&mpic, TlbEntry::page_at_0(start.initial_page))?;
    vcpu.set_registers(&start.registers).context("KVM does not accept the vCPU's registers")?;
    if let Some(file) = &arguments.bt_layout {
        replay::give(&statistics::directory(vm.descriptor()), file)?;
    }
    let mut machine = Machine { vcpu, vm, memory };

    let line = Box::new(move |up| mpic.set_line(layout::SERIAL_IRQ, up));
    // At a terminal each byte must be visible at once.
    let console = Arc::new(Console::new(io::stdout(), !io::stdin().is_terminal(), line));
    feed(Arc::clone(&console))?;
    let result = machine.run(&mut Board::new(Arc::clone(&console)));
    let finished = console.finish();
    result.and(finished).and(statistics.map_or(Ok(()), Statistics::keep))
}

/// The vCPU's initial state.
struct Start {
    registers: Registers,
    initial_page: u32,
}

/// Fill the guest's memory.
fn load(arguments: &Arguments, hypercall: Option<tree::Hypercall>, memory: &mut [u8]) -> Result<Start> {
    let image = fs::read(&arguments.kernel)
        .with_context(|| format!("cannot read the kernel {}", arguments.kernel.display()))?;
    let kernel = elf::parse(&image, arguments.memory)
        .with_context(|| format!("cannot boot the kernel {}", arguments.kernel.display()))?;
    let initramfs = arguments.initramfs.as_deref().map(open).transpose()?;
    let layout = layout::place(kernel.end, initramfs.as_ref().map(|(_, length)| *length), arguments.memory)?;

    for segment in &kernel.segments {
        let into = memory::at(memory, segment.address..segment.address + segment.size)?;
        let (data, rest) = into.split_at_mut(segment.data.len());
        data.copy_from_slice(segment.data);
        rest.fill(0);
    }
    if let (Some((file, _)), Some(range), Some(path)) = (initramfs, &layout.initramfs, &arguments.initramfs) {
        memory::fill(memory::at(memory, range.clone())?, file)
            .with_context(|| format!("cannot read the initramfs {}", path.display()))?;
    }
    let description = tree::Description {
        memory: arguments.memory,
        initramfs: layout.initramfs.clone(),
        command_line: &arguments.append,
        timebase: host::timebase()?,
        seed: &host::seed()?,
        hypercall,
        driver: arguments.driver,
    };
    let blob = tree::build(&description).context("cannot write the device tree")?;
    ensure!(blob.len() <= layout::TREE_ROOM as usize, "the device tree has {} bytes", blob.len());
    memory::at(memory, layout.tree..layout.tree + blob.len() as u32)?.copy_from_slice(&blob);
    Ok(Start { registers: registers(kernel.entry, &layout), initial_page: layout.initial_page })
}

fn open(path: &Path) -> Result<(File, u64)> {
    let opened = File::open(path).and_then(|file| {
        let length = file.metadata()?.len();
        Ok((file, length))
    });
    opened.with_context(|| format!("cannot open the initramfs {}", path.display()))
}

/// The registers that ePAPR specifies for the start of a client program.
fn registers(entry: u32, layout: &Layout) -> Registers {
    let mut registers = Registers::default();
    registers.pc = entry.into();
    registers.gpr[3] = layout.tree.into();
    registers.gpr[6] = EPAPR_MAGIC;
    registers.gpr[7] = layout.initial_page.into();
    registers
}

/// Start the thread that passes input to the guest; it ends with the process.
fn feed(console: Arc<Console<io::Stdout>>) -> Result<()> {
    let feed = move || {
        if let Err(error) = console.feed(io::stdin()) {
            eprintln!("trapless-power-vmm: no more input: {error:#}");
        }
    };
    thread::Builder::new().name("input".into()).spawn(feed).context("cannot start the thread for input")?;
    Ok(())
}

impl Machine {
    fn run(&mut self, board: &mut Board<io::Stdout>) -> Result<()> {
        loop {
            match self.vcpu.run() {
                Ok(()) => {}
                Err(error) if GO_ON.contains(&error.kind()) => continue,
                Err(error) => return Err(self.broken(anyhow!(error).context("KVM does not run the guest"))),
            }
            match self.vcpu.exit()? {
                Exit::Write { address, data, length } => match board.write(address, &data[..length])? {
                    Effect::None => {}
                    Effect::Reset => return Ok(()),
                },
                Exit::Read { address, length } => {
                    let mut data = [0; 8];
                    board.read(address, &mut data[..length])?;
                    self.vcpu.answer(data);
                }
                exit => return Err(self.broken(anyhow!("the guest stopped: {}", explain(&exit)))),
            }
        }
    }

    /// An error, with the state of the vCPU.
    fn broken(&self, error: Error) -> Error {
        match self.vcpu.registers() {
            Ok(registers) => anyhow!("{error:#}\n{registers}"),
            Err(unknown) => anyhow!("{error:#}\nits registers are unknown: {unknown}"),
        }
    }
}

/// Describe an exit that cannot be handled.
fn explain(exit: &Exit) -> String {
    match *exit {
        // In this form KVM for Book E reports that it could not emulate an instruction.
        Exit::Unknown(hardware) if hardware >> 32 == 0xffff_ffff => {
            format!("KVM cannot emulate the instruction {:#010x}", hardware as u32)
        }
        Exit::Unknown(hardware) => format!("KVM reports an unknown exit, hardware reason {hardware:#x}"),
        Exit::Other(reason) => format!("KVM_EXIT reason {reason} is not one of e500v2's"),
        Exit::Write { .. } | Exit::Read { .. } => format!("{exit:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_finds_its_device_tree() {
        let layout = layout::place(0x1000, None, 16 << 20).unwrap();
        let registers = registers(0x40, &layout);
        assert_eq!((registers.pc, registers.msr, registers.gpr[3]), (0x40, 0, 1 << 20));
        assert_eq!((registers.gpr[6], registers.gpr[7]), (0x4550_4150, 16 << 20));
    }

    #[test]
    fn exits_are_explained() {
        let text = explain(&Exit::Unknown(0xffff_ffff_7c00_06ac));
        assert_eq!(text, "KVM cannot emulate the instruction 0x7c0006ac");
        assert!(explain(&Exit::Unknown(7)).contains("hardware reason 0x7"));
        assert!(explain(&Exit::Other(17)).contains("reason 17"));
    }
}
