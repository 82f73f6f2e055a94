// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine: builds it from the arguments, and runs it until the guest resets it.
//!
//! Everything that can fail because of wrong arguments is done before the guest's first instruction.

use std::fs::{self, File};
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::{iter, thread};

use anyhow::{Context, Error, Result, anyhow, bail, ensure};

use crate::arguments::Arguments;
use crate::board::{self, Board, Effect};
use crate::console::{Console, Line};
use crate::kvm::{Exit, Kvm, Registers, TlbEntry, Vcpu};
use crate::layout::{self, Layout};
use crate::mapping::Mapping;
use crate::spin::{Spin, Started};
use crate::statistics::{self, Statistics};
use crate::virtio::block::Disk;
use crate::virtio::mmio::Mmio;
use crate::virtio::network::{self, Network};
use crate::virtio::ram::Ram;
use crate::{elf, host, memory, replay, tree};

/// ePAPR's magic number, passed in r6.
const EPAPR_MAGIC: u64 = 0x4550_4150;
/// The size of the page at 0 with which other vCPUs than the first start.
const OTHERS_PAGE: u32 = 64 << 20;
/// For example signals: the guest continues.
const GO_ON: [io::ErrorKind; 2] = [io::ErrorKind::Interrupted, io::ErrorKind::WouldBlock];

/// Boot a guest, and return when it resets the machine.
///
/// # Errors
/// It could not be booted, or it failed.
pub fn run(arguments: &Arguments) -> Result<()> {
    let disks: Vec<Disk> = arguments.disk.iter().map(Disk::open).collect::<Result<_>>()?;
    let cards: Vec<Network> = arguments.net.iter().map(Network::connect).collect::<Result<_>>()?;
    let kvm = Kvm::open()?;
    let vm = kvm.create_vm()?;
    let statistics = arguments.statistics.as_deref();
    let statistics = statistics.map(|file| Statistics::prepare(vm.descriptor(), file)).transpose()?;
    let mut memory = memory::map(arguments.backing, arguments.memory)?;
    let hypercall = if arguments.paravirt { Some(vm.hypercall()?) } else { None };
    let start = load(arguments, hypercall, memory.bytes_mut())?;
    let memory = Arc::new(memory);
    // SAFETY: only threads of this process run vCPUs, and each keeps the memory.
    unsafe { vm.set_memory(&memory) }?;
    let mpic = Arc::new(vm.create_mpic(u64::from(layout::SOC + layout::MPIC))?);
    let mut vcpus = Vec::new();
    for number in 0..arguments.cpus {
        let page = if number == 0 { start.initial_page } else { OTHERS_PAGE };
        vcpus.push(vm.create_vcpu(number, &mpic, TlbEntry::page_at_0(page))?);
    }
    vcpus[0].set_registers(&start.registers).context("KVM does not accept the vCPU's registers")?;
    if let Some(file) = &arguments.bt_layout {
        replay::give(&statistics::directory(vm.descriptor()), file)?;
    }

    let line = |source| -> Line {
        let mpic = Arc::clone(&mpic);
        Box::new(move |up| mpic.set_line(source, up))
    };
    // At a terminal each byte must be visible at once.
    let console = Arc::new(Console::new(io::stdout(), !io::stdin().is_terminal(), line(layout::SERIAL_IRQ)));
    let ram = Ram::new(Arc::clone(&memory));
    let mut virtio: Vec<Arc<dyn board::Registers>> = Vec::new();
    let mut sources = layout::VIRTIO_IRQ..;
    for (disk, source) in disks.into_iter().zip(sources.by_ref()) {
        virtio.push(Arc::new(Mmio::new(disk, ram.clone(), line(source))));
    }
    for (card, source) in cards.into_iter().zip(sources) {
        let card = Arc::new(Mmio::new(card, ram.clone(), line(source)));
        virtio.push(Arc::clone(&card) as Arc<dyn board::Registers>);
        in_background("network", move || network::receive(&card).context("no more packets"))?;
    }
    let input = Arc::clone(&console);
    in_background("input", move || input.feed(io::stdin()).context("no more input"))?;
    let spin = Arc::new(Spin::new(arguments.cpus));
    let board = Board::new(Arc::clone(&console), virtio, Arc::clone(&spin));
    let result = Machine { board, spin, stopped: AtomicBool::new(false), _memory: memory }.run(vcpus);
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
        virtio: arguments.disk.len() + arguments.net.len(),
        cpus: arguments.cpus,
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

/// Start a thread that ends with the process.
fn in_background(name: &str, work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    let work = move || {
        if let Err(error) = work() {
            eprintln!("trapless-power-vmm: {error:#}");
        }
    };
    let started = thread::Builder::new().name(name.into()).spawn(work);
    started.with_context(|| format!("cannot start the thread {name}"))?;
    Ok(())
}

/// What the vCPUs' threads share.
struct Machine {
    board: Board<io::Stdout>,
    spin: Arc<Spin>,
    /// The guest has ended: no vCPU changes anything any more.
    stopped: AtomicBool,
    /// KVM uses it as long as a vCPU may run.
    _memory: Arc<Mapping>,
}

impl Machine {
    /// Run the vCPUs until one of them ends the guest. The others are left where they are; they end with the process.
    fn run(self, vcpus: Vec<Vcpu>) -> Result<()> {
        let mut vcpus = vcpus.into_iter().enumerate();
        let (Some((_, mut first)), rest) = (vcpus.next(), vcpus) else { bail!("there is no vCPU") };
        if rest.len() == 0 {
            return self.run_vcpu(&mut first);
        }
        let machine = Arc::new(self);
        let (ended, result) = mpsc::channel();
        for (number, mut vcpu) in iter::once((0, first)).chain(rest) {
            let (machine, ended) = (Arc::clone(&machine), ended.clone());
            in_background(&format!("vCPU {number}"), move || {
                let result = match number {
                    0 => machine.run_vcpu(&mut vcpu),
                    _ => machine
                        .wait_for_start(number as u32, &mut vcpu)
                        .and_then(|()| machine.run_vcpu(&mut vcpu)),
                };
                machine.stopped.store(true, Ordering::SeqCst);
                // Only the first end counts, and then nobody listens.
                let _ = ended.send(result);
                Ok(())
            })?;
        }
        result.recv().context("no vCPU runs")?
    }

    /// Wait for the guest to start a vCPU.
    fn wait_for_start(&self, number: u32, vcpu: &mut Vcpu) -> Result<()> {
        let started =
            self.spin.wait(number).with_context(|| format!("vCPU {number} is not in the spin table"))?;
        let Started { address, argument } = started;
        ensure!(
            address < u64::from(OTHERS_PAGE),
            "the guest starts vCPU {number} at {address:#x}, beyond the first {} MiB",
            OTHERS_PAGE >> 20
        );
        let mut registers = Registers::default();
        registers.pc = address;
        registers.gpr[3] = argument.into();
        registers.gpr[7] = OTHERS_PAGE.into();
        vcpu.set_registers(&registers)
            .with_context(|| format!("KVM does not accept vCPU {number}'s registers"))
    }

    fn run_vcpu(&self, vcpu: &mut Vcpu) -> Result<()> {
        while !self.stopped.load(Ordering::SeqCst) {
            match vcpu.run() {
                Ok(()) => {}
                Err(error) if GO_ON.contains(&error.kind()) => continue,
                Err(error) => return Err(broken(vcpu, anyhow!(error).context("KVM does not run the guest"))),
            }
            match vcpu.exit()? {
                Exit::Write { address, data, length } => match self.board.write(address, &data[..length])? {
                    Effect::None => {}
                    Effect::Reset => return Ok(()),
                },
                Exit::Read { address, length } => {
                    let mut data = [0; 8];
                    self.board.read(address, &mut data[..length])?;
                    vcpu.answer(data);
                }
                exit => return Err(broken(vcpu, anyhow!("the guest stopped: {}", explain(&exit)))),
            }
        }
        Ok(())
    }
}

/// An error, with the state of the vCPU.
fn broken(vcpu: &Vcpu, error: Error) -> Error {
    match vcpu.registers() {
        Ok(registers) => anyhow!("{error:#}\n{registers}"),
        Err(unknown) => anyhow!("{error:#}\nits registers are unknown: {unknown}"),
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
