// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The virtual machine: made, then run until the guest ends it.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use kvm_bindings::{
    CpuId, KVM_MAX_CPUID_ENTRIES, KVM_PIT_SPEAKER_DUMMY, kvm_cpuid_entry2, kvm_pit_config, kvm_regs,
};
use kvm_ioctls::{Cap, Kvm, VcpuExit, VcpuFd, VmFd};
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::terminal::Terminal;

use crate::devices::{Devices, Effect, Interrupt, SERIAL_IRQ};
use crate::forward::{Counts, Forwarder};
use crate::kvm_log::{self, EXIT_RING_FULL, KvmLog};
use crate::vcpus::{Vcpu, VcpuSet};
use crate::{abi, boot, layout, mp_table, self_test};

/// Calls come here.
const PORT: u16 = 0x5350;
/// Hypervisors are looked for at every 0x100 from 0x4000_0000 on; KVM itself is at the first place.
const CPUID_BASE: u32 = 0x4000_0100;

/// What to run.
#[derive(Debug)]
pub struct Configuration {
    /// A bzImage or an ELF kernel.
    pub kernel: PathBuf,
    /// What it unpacks as its root.
    pub initramfs: Option<PathBuf>,
    /// The kernel's command line.
    pub command_line: String,
    /// Bytes.
    pub memory: u64,
    /// Virtual processors.
    pub cpus: u8,
    /// Whether the log is offered to the guest.
    pub log: bool,
}

/// How the guest ended.
#[derive(Debug)]
pub enum End {
    /// It reset the machine.
    Reset,
    /// Something that no working kernel does.
    Broken(anyhow::Error),
}

/// All that the threads of vCPUs share.
struct Shared {
    devices: Devices,
    vcpus: VcpuSet,
    /// None if the log is not offered.
    forwarder: Option<Mutex<Forwarder<KvmLog>>>,
}

/// Run the machine; returns what was counted.
pub fn run(configuration: &Configuration) -> Result<Counts> {
    let kvm = open_kvm()?;
    if configuration.log {
        self_test::run(&kvm).context("the dirty log is not offered (--no-log runs without it)")?;
    }
    let memory = make_memory(configuration)?;
    let entry = boot::load(
        &memory,
        &configuration.kernel,
        configuration.initramfs.as_deref(),
        &configuration.command_line,
    )?;
    mp_table::write(&memory, configuration.cpus)?;

    let vm = Arc::new(make_vm(&kvm)?);
    if configuration.log {
        kvm_log::request_rings(&vm)?;
    }
    let mut log = KvmLog::new(Arc::clone(&vm), &memory)?;
    let interrupt = EventFd::new(0)?;
    vm.register_irqfd(&interrupt, SERIAL_IRQ).context("KVM refuses the serial port's interrupt")?;

    let mut cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
    if configuration.log {
        add_leaves(&mut cpuid)?;
    }
    let mut vcpus = Vec::new();
    for number in 0..configuration.cpus {
        let vcpu = make_vcpu(&vm, number, &cpuid, entry).with_context(|| format!("vCPU {number}"))?;
        if configuration.log {
            log.add(&vcpu)?;
        }
        vcpus.push(Vcpu::new(Box::leak(Box::new(vcpu))));
    }
    let (states, vcpus): (Vec<_>, Vec<_>) = vcpus.into_iter().unzip();
    let shared = Arc::new(Shared {
        devices: Devices::new(Interrupt(interrupt), Box::new(io::stdout())),
        vcpus: VcpuSet(states),
        forwarder: configuration.log.then(|| Mutex::new(Forwarder::new(log, memory.clone()))),
    });
    VcpuSet::prepare()?;
    start_and_wait(&shared, vcpus)
}

fn start_and_wait(shared: &Arc<Shared>, vcpus: Vec<&'static mut VcpuFd>) -> Result<Counts> {
    let (ended, end) = mpsc::channel();
    for (number, vcpu) in vcpus.into_iter().enumerate() {
        let (shared, ended) = (Arc::clone(shared), ended.clone());
        thread::Builder::new()
            .name(format!("vcpu{number}"))
            .spawn(move || run_vcpu(&shared, number, vcpu, &ended))?;
    }
    let raw = io::stdin().is_terminal();
    if raw {
        io::stdin().lock().set_raw_mode()?;
    }
    let input = Arc::clone(shared);
    thread::spawn(move || input.devices.feed(io::stdin()));
    let end = end.recv();
    if raw {
        io::stdin().lock().set_canon_mode()?;
    }
    match end.context("every vCPU's thread has gone")? {
        End::Reset => {}
        End::Broken(error) => return Err(error),
    }
    let forwarder = shared.forwarder.as_ref().map(|forwarder| forwarder.lock().expect("a vCPU panicked"));
    Ok(forwarder.map(|forwarder| forwarder.counts).unwrap_or_default())
}

fn open_kvm() -> Result<Kvm> {
    let kvm =
        Kvm::new().context("/dev/kvm cannot be opened: is kvm_intel or kvm_amd loaded, may you use it?")?;
    let version = kvm.get_api_version();
    ensure!(version == 12, "KVM's interface has version {version}, not 12");
    Ok(kvm)
}

fn make_memory(configuration: &Configuration) -> Result<GuestMemoryMmap> {
    let bytes = configuration.memory;
    let (least, most) = (128 << 20, layout::MEMORY_LIMIT);
    ensure!(
        (least..=most).contains(&bytes) && bytes.is_multiple_of(2 << 20),
        "memory is {} to {} MiB, a multiple of 2",
        least >> 20,
        most >> 20
    );
    kvm_log::make_memory(usize::try_from(bytes)?)
}

fn make_vm(kvm: &Kvm) -> Result<VmFd> {
    let vm = kvm.create_vm().context("KVM makes no VM")?;
    vm.set_tss_address(layout::TSS).context("KVM_SET_TSS_ADDR")?;
    vm.create_irq_chip().context("KVM has no interrupt controllers")?;
    let timer = kvm_pit_config { flags: KVM_PIT_SPEAKER_DUMMY, ..Default::default() };
    vm.create_pit2(timer).context("KVM has no timer")?;
    Ok(vm)
}

/// By these the guest finds us.
fn add_leaves(cpuid: &mut CpuId) -> Result<()> {
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| abi::SIGNATURE[at + byte]));
    let (ebx, ecx, edx) = (word(0), word(4), word(8));
    let leaves = [
        kvm_cpuid_entry2 { function: CPUID_BASE, eax: CPUID_BASE + 1, ebx, ecx, edx, ..Default::default() },
        kvm_cpuid_entry2 {
            function: CPUID_BASE + 1,
            eax: abi::VERSION,
            ebx: u32::from(PORT),
            ..Default::default()
        },
    ];
    for leaf in leaves {
        cpuid.push(leaf).context("KVM's CPUID table has no room")?;
    }
    Ok(())
}

fn make_vcpu(vm: &VmFd, number: u8, cpuid: &CpuId, entry: u64) -> Result<VcpuFd> {
    let vcpu = vm.create_vcpu(u64::from(number)).context("KVM makes no more")?;
    let mut cpuid = cpuid.clone();
    for leaf in cpuid.as_mut_slice() {
        match leaf.function {
            1 => {
                leaf.ebx = leaf.ebx & 0x00ff_ffff | u32::from(number) << 24;
                // KVM leaves it to us to say that there is a hypervisor, and that the timer takes a deadline:
                // else the guest measures it, and on a busy host comes to a wrong result.
                leaf.ecx |= 1 << 31 | u32::from(vm.check_extension(Cap::TscDeadlineTimer)) << 24;
            }
            0xb | 0x1f => leaf.edx = u32::from(number),
            0x8000_001e => leaf.eax = u32::from(number),
            _ => {}
        }
    }
    vcpu.set_cpuid2(&cpuid).context("KVM refuses the CPUID table")?;
    if number == 0 {
        let mut sregs = vcpu.get_sregs()?;
        boot::long_mode(&mut sregs);
        vcpu.set_sregs(&sregs)?;
        vcpu.set_regs(&boot::registers(entry))?;
    }
    Ok(vcpu)
}

fn run_vcpu(shared: &Shared, number: usize, vcpu: &mut VcpuFd, ended: &Sender<End>) {
    let state = &shared.vcpus.0[number];
    state.is_run_here();
    let end = loop {
        match step(shared, state, vcpu) {
            Ok(Effect::None) => {}
            Ok(Effect::Reset) => break End::Reset,
            Err(error) => break End::Broken(error.context(format!("vCPU {number}"))),
        }
    };
    // Nobody receives if another vCPU was first; then the process is about to end.
    let _ = ended.send(end);
}

/// One stay in the guest, and what it wants.
fn step(shared: &Shared, state: &Vcpu, vcpu: &mut VcpuFd) -> Result<Effect> {
    state.enter();
    let exit = vcpu.run();
    state.left();
    match exit {
        Ok(VcpuExit::IoIn(PORT, answer)) if shared.forwarder.is_some() && answer.len() == 4 => {
            let answer: *mut [u8] = answer;
            let result = call(shared, &vcpu.get_regs()?);
            // SAFETY: it points into the vCPU's mapping, which is there for ever, and which only this thread and the
            // kernel, in KVM_RUN, access.
            unsafe { (*answer).copy_from_slice(&result.to_le_bytes()) };
        }
        Ok(VcpuExit::IoIn(port, data)) => shared.devices.read(port, data),
        Ok(VcpuExit::IoOut(port, data)) => return Ok(shared.devices.write(port, data)),
        Ok(VcpuExit::MmioRead(_, data)) => data.fill(0xff),
        Ok(VcpuExit::MmioWrite(..)) => {}
        Ok(VcpuExit::Unsupported(EXIT_RING_FULL)) => {
            let forwarder = shared.forwarder.as_ref().context("a log is full that nobody asked for")?;
            forwarder.lock().expect("a vCPU panicked").log_is_full();
        }
        Ok(VcpuExit::Shutdown) => bail!("a triple fault"),
        Ok(VcpuExit::Intr) => {}
        Ok(other) => bail!("KVM cannot go on: {other:?}"),
        Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {}
        Err(error) => return Err(error).context("KVM_RUN"),
    }
    Ok(Effect::None)
}

fn call(shared: &Shared, registers: &kvm_regs) -> i32 {
    let Some(forwarder) = &shared.forwarder else { return abi::INVALID };
    let function = registers.rax as u32;
    if function == abi::DRAIN {
        shared.vcpus.flush();
    }
    forwarder.lock().expect("a vCPU panicked").call(function, registers.rbx, registers.rcx)
}
