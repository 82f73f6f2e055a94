// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A copy of guest memory that is kept up while the guest runs, as docs/dirty.md describes it ("If you write a VMM"),
//! and held against the memory at the end: exit code 0 if they are equal, 1 if not.
//!
//! The memory is rust-vmm's (`vm-memory`), in two regions, private, in a memfd or of huge pages. It is written by
//! - a guest, in KVM, for ever: three quarters of it, so that what others write is not always written once more;
//! - a device that goes through `vm-memory`, which notes in the region's `Bitmap` what it writes;
//! - a device that has the address of the memory: a back end in the same process, `read(2)`, io_uring;
//! - a balloon, by which memory is given back.
//!
//! Invariants:
//! - All that is known of a round is in the region's own `Bitmap` before the first page is copied: what KVM logged and
//!   libdirty reported is put there. So code that looks at the `Bitmap` needs no change.
//! - A page that the balloon gave back is noted under a lock together with the call that gives it back, and a round takes
//!   the notes and collects under the same lock. The copy has zeros there first, and then what was reported: so a page
//!   that the guest has written since is copied, whatever came first.

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use kvm_bindings::{KVM_MEM_LOG_DIRTY_PAGES, kvm_regs, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use libdirty::{BackendKind, Dirty, PageRange, Tracker, page_size};
use vm_memory::bitmap::{AtomicBitmap, Bitmap, NewBitmap};
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap,
};

type Memory = GuestMemoryMmap<AtomicBitmap>;

/// Keep a copy of guest memory, and compare
#[derive(Debug, Parser)]
struct Arguments {
    /// What the memory is made of
    #[arg(long, value_enum, default_value = "memfd")]
    memory: Kind,
    /// MiB of each of its two regions
    #[arg(long, default_value_t = 8)]
    size: usize,
    /// The back end of libdirty; the cheapest otherwise
    #[arg(long)]
    backend: Option<BackendKind>,
    /// Copies while the guest runs
    #[arg(long, default_value_t = 20)]
    rounds: u32,
    /// Leave out what this one knows: the copy will be wrong (repeat)
    #[arg(long, value_enum)]
    without: Vec<Source>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Private,
    Memfd,
    Hugetlb,
}

/// Who knows what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Source {
    Kvm,
    Libdirty,
    Bitmap,
}

// Step 1: memory with a Bitmap. The guest finds the second region right behind the first.

fn make_memory(kind: Kind, size: usize) -> Result<Memory> {
    let regions = [0, size].map(|base| -> Result<_> {
        let bitmap = AtomicBitmap::with_len(size);
        let builder = MmapRegionBuilder::new_with_bitmap(size, bitmap)
            .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE);
        let builder = match kind {
            Kind::Private => builder,
            Kind::Memfd => builder.with_file_offset(memfd(0, size)?).with_mmap_flags(libc::MAP_SHARED),
            Kind::Hugetlb => builder
                .with_file_offset(memfd(libc::MFD_HUGETLB, size)?)
                .with_mmap_flags(libc::MAP_SHARED)
                .with_hugetlbfs(true),
        };
        let mapping = builder.build().with_context(|| format!("{} MiB of memory", size >> 20))?;
        GuestRegionMmap::new(mapping, GuestAddress(base as u64)).context("a region of guest memory")
    });
    let [first, second] = regions;
    Ok(Memory::from_regions(vec![first?, second?])?)
}

fn memfd(flags: u32, size: usize) -> Result<FileOffset> {
    // SAFETY: a constant name and flags; returns a new descriptor or -1.
    let fd = unsafe { libc::memfd_create(c"guest".as_ptr(), flags | libc::MFD_CLOEXEC) };
    ensure!(fd >= 0, "memfd_create: {}", io::Error::last_os_error());
    // SAFETY: the kernel has just returned it.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(size as u64)?;
    Ok(FileOffset::new(file, 0))
}

fn range_of(region: &GuestRegionMmap<AtomicBitmap>) -> Result<PageRange> {
    Ok(PageRange::from_length(region.get_mmap().as_ptr() as usize, region.len() as usize)?)
}

// Step 2: KVM logs what the guest writes, region by region.

/// `loop: inc byte [es:edi]; edi += 37 pages and a byte, back at the end`, some thousand times, and `hlt`; for ever.
fn guest_program(end: u32) -> Vec<u8> {
    let mut code = vec![0x66, 0xba]; // mov edx, 3000
    code.extend(3000_u32.to_le_bytes());
    code.extend([0x26, 0x67, 0xfe, 0x07]); // inc byte [es:edi]
    code.extend([0x66, 0x81, 0xc7]); // add edi, step
    code.extend((37 * 4096 + 1_u32).to_le_bytes());
    code.extend([0x66, 0x39, 0xcf]); // cmp edi, ecx
    code.extend([0x72, 0x03]); // jb over the next
    code.extend([0x66, 0x29, 0xdf]); // sub edi, ebx
    code.extend([0x66, 0x4a]); // dec edx
    code.extend([0x75, 0xe9]); // jnz to the inc
    code.extend([0xf4]); // hlt
    code.extend([0xeb, 0xe0]); // jmp to the beginning
    debug_assert!(end > 4096 && code.len() == 32);
    code
}

fn make_guest(memory: &Memory) -> Result<(VmFd, VcpuFd)> {
    let vm = Kvm::new().context("/dev/kvm")?.create_vm().context("KVM makes no VM")?;
    for (slot, region) in memory.iter().enumerate() {
        let region = kvm_userspace_memory_region {
            slot: slot as u32,
            flags: KVM_MEM_LOG_DIRTY_PAGES,
            guest_phys_addr: region.start_addr().0,
            memory_size: region.len(),
            userspace_addr: region.get_mmap().as_ptr() as u64,
        };
        // SAFETY: the memory lives as long as the program.
        unsafe { vm.set_user_memory_region(region) }.context("KVM takes no memory")?;
    }
    let end = u32::try_from((memory.last_addr().0 + 1) / 4 * 3)?;
    memory.write_slice(&guest_program(end), GuestAddress(0))?;
    let vcpu = vm.create_vcpu(0)?;
    let mut special = vcpu.get_sregs()?;
    (special.cs.base, special.cs.selector) = (0, 0);
    // Real mode with data segments of 4 GiB.
    (special.es.base, special.es.selector, special.es.limit, special.es.g) = (0, 0, u32::MAX, 1);
    vcpu.set_sregs(&special)?;
    vcpu.set_regs(&kvm_regs {
        rcx: end.into(),
        rbx: u64::from(end) - 4096,
        rdi: 4096,
        rflags: 2,
        ..Default::default()
    })?;
    Ok((vm, vcpu))
}

fn run(vcpu: &mut VcpuFd, is_over: &AtomicBool, runs: &AtomicU64) -> Result<()> {
    while !is_over.load(Ordering::Relaxed) {
        match vcpu.run() {
            Ok(VcpuExit::Hlt) => drop(runs.fetch_add(1, Ordering::Relaxed)),
            Ok(other) => anyhow::bail!("the guest ended with {other:?}"),
            Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {}
            Err(error) => return Err(error).context("KVM_RUN"),
        }
    }
    Ok(())
}

// Step 3: the VMM's own writes.

/// Through `vm-memory`, which notes them; and by the bare address, which only libdirty sees.
fn devices(memory: &Memory, random: &mut Random) -> Result<()> {
    let mut source = File::open("/dev/urandom")?;
    let (pages, page) = (memory.last_addr().0 as usize / page_size(), page_size());
    for _ in 0..8 {
        let at = GuestAddress(((1 + random.below(pages - 1)) * page) as u64);
        memory.read_exact_volatile_from(at, &mut source, 100)?;
        let at = GuestAddress(((1 + random.below(pages - 1)) * page) as u64);
        let host = memory.get_host_address(at)?;
        // SAFETY: a hundred bytes of guest memory, which nobody has a reference to.
        let count = unsafe { libc::read(source.as_raw_fd(), host.cast(), 100) };
        ensure!(count == 100, "read: {}", io::Error::last_os_error());
    }
    Ok(())
}

// Step 4: the balloon. What it gives back is noted: no log has what is done to the file behind shared memory.

fn give_back(region: &GuestRegionMmap<AtomicBitmap>, pages: Range<usize>) -> io::Result<()> {
    let mapping = region.get_mmap();
    let (start, length) = (pages.start * page_size(), pages.len() * page_size());
    let done = match mapping.file_offset() {
        // SAFETY: pages of the region, which nobody has a reference to.
        None => unsafe { libc::madvise(mapping.as_ptr().add(start).cast(), length, libc::MADV_DONTNEED) },
        Some(file) => {
            let hole: c_int = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: an open file.
            unsafe { libc::fallocate(file.file().as_raw_fd(), hole, start as i64, length as i64) }
        }
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

// Step 5: the copy.

struct Copier {
    tracker: Tracker,
    dirty: Dirty,
    /// Of each region.
    images: Vec<Vec<u8>>,
    without: Vec<Source>,
    copied: usize,
}

/// Addresses that the balloon gave back since the last round, by host address.
type Notes = Mutex<Vec<PageRange>>;

impl Copier {
    /// Begin to watch, and copy everything once: KVM logs already.
    fn new(memory: &Memory, backend: Option<BackendKind>, without: Vec<Source>) -> Result<Self> {
        let mut builder = Tracker::builder();
        if let Some(kind) = backend {
            builder = builder.backend(kind);
        }
        let mut tracker = builder.own()?;
        let mut images = Vec::new();
        for region in memory.iter() {
            let range = range_of(region)?;
            tracker.watch(range)?;
            let mut image = vec![0; range.len()];
            copy(range, range, &mut image);
            images.push(image);
        }
        Ok(Copier { tracker, dirty: Dirty::new(), images, without, copied: 0 })
    }

    /// Bring the copy up to date with all that was written before the call.
    fn round(&mut self, memory: &Memory, vm: &VmFd, notes: &Notes) -> Result<()> {
        for (slot, region) in memory.iter().enumerate() {
            let (range, mapping) = (range_of(region)?, region.get_mmap());
            let bitmap = mapping.bitmap();
            let uses = |source| !self.without.contains(&source);
            if !uses(Source::Bitmap) {
                bitmap.reset();
            }
            let mut zeros = Vec::new();
            {
                let mut notes = notes.lock().expect("nobody panicked");
                zeros.extend(notes.extract_if(.., |note| range.contains(*note)));
                if uses(Source::Kvm) {
                    let log = vm.get_dirty_log(slot as u32, range.len()).context("KVM's dirty log")?;
                    each_bit(&log, |page| bitmap.mark_dirty(page * page_size(), page_size()));
                }
                if uses(Source::Libdirty) {
                    // The other region's writes wait for its turn.
                    self.tracker.collect_range(range, &mut self.dirty)?;
                    zeros.extend(self.dirty.zeros());
                    for extent in self.dirty.to_copy() {
                        bitmap.mark_dirty(extent.start() - range.start(), extent.len());
                    }
                }
            }
            // Now copy: what is written from here on is in the next round.
            let image = &mut self.images[slot];
            for zero in zeros {
                image[zero.start() - range.start()..][..zero.len()].fill(0);
            }
            each_bit(&bitmap.get_and_reset(), |page| {
                let at = range.start() + page * page_size();
                if let Ok(page) = PageRange::from_length(at, page_size()) {
                    copy(page, range, image);
                    self.copied += 1;
                }
            });
        }
        Ok(())
    }

    /// Pages in which the copy differs from the memory, which nobody writes now.
    fn wrong(&self, memory: &Memory) -> Result<usize> {
        let mut wrong = 0;
        for (region, image) in memory.iter().zip(&self.images) {
            let range = range_of(region)?;
            let mut now = vec![0; range.len()];
            copy(range, range, &mut now);
            wrong += now
                .chunks(page_size())
                .zip(image.chunks(page_size()))
                .filter(|(now, then)| now != then)
                .count();
        }
        Ok(wrong)
    }
}

/// Copy `part` of the memory at `whole` to where it is in the image of that.
fn copy(part: PageRange, whole: PageRange, image: &mut [u8]) {
    let to = &mut image[part.start() - whole.start()..][..part.len()];
    // SAFETY: guest memory of that length, and an image of our own. The guest may write the page meanwhile: whatever is
    // copied then is copied once more in the next round.
    unsafe { std::ptr::copy_nonoverlapping(part.start() as *const u8, to.as_mut_ptr(), to.len()) };
}

fn each_bit(words: &[u64], mut each: impl FnMut(usize)) {
    for (index, word) in words.iter().enumerate() {
        let mut rest = *word;
        while rest != 0 {
            each(index * 64 + rest.trailing_zeros() as usize);
            rest &= rest - 1;
        }
    }
}

/// Marsaglia's xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit
    }
}

fn follow(arguments: &Arguments) -> Result<usize> {
    let memory = make_memory(arguments.memory, arguments.size << 20)?;
    let (vm, mut vcpu) = make_guest(&memory)?;
    let (is_over, runs, notes) = (AtomicBool::new(false), AtomicU64::new(0), Notes::default());
    let mut copier = Copier::new(&memory, arguments.backend, arguments.without.clone())?;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    // Huge pages are given back whole.
    let unit = if arguments.memory == Kind::Hugetlb { (2 << 20) / page_size() } else { 1 };
    thread::scope(|scope| -> Result<()> {
        let guest = scope.spawn(|| run(&mut vcpu, &is_over, &runs));
        let mut proceed = || -> Result<()> {
            for round in 0..arguments.rounds {
                let before = runs.load(Ordering::Relaxed);
                while runs.load(Ordering::Relaxed) == before && !guest.is_finished() {
                    thread::sleep(Duration::from_millis(1)); // until the guest has written
                }
                devices(&memory, &mut random)?;
                let region = memory.iter().nth(round as usize % 2).context("there are two")?;
                let units = region.len() as usize / page_size() / unit;
                // Not the first: the guest's program is there.
                let first = 1 + random.below(units - 1);
                let pages = first * unit..(first + 1 + random.below((units - first).min(30))) * unit;
                {
                    let mut notes = notes.lock().expect("nobody panicked");
                    give_back(region, pages.clone()).context("the balloon")?;
                    let start = range_of(region)?.start();
                    notes.push(PageRange::new(
                        start + pages.start * page_size(),
                        start + pages.end * page_size(),
                    )?);
                }
                copier.round(&memory, &vm, &notes)?;
            }
            devices(&memory, &mut random)
        };
        let proceeded = proceed();
        is_over.store(true, Ordering::Relaxed);
        guest.join().expect("it does not panic")?;
        proceeded
    })?;
    // The guest stands still: the last round.
    copier.round(&memory, &vm, &notes)?;
    let (wrong, runs) = (copier.wrong(&memory)?, runs.load(Ordering::Relaxed));
    println!(
        "{:?} by {}: {} rounds, {runs} runs of the guest, {} pages copied, {wrong} wrong",
        arguments.memory,
        copier.tracker.backend(),
        arguments.rounds,
        copier.copied
    );
    Ok(wrong)
}

fn main() -> ExitCode {
    match follow(&Arguments::parse()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("guest-memory: {error:#}");
            ExitCode::from(2)
        }
    }
}
