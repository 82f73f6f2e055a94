// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The scenarios: what programs do to memory that dirty tracking has been seen to get wrong.
//!
//! Rules: each writes the same pages in more than one round (else a back end that never arms again would pass),
//! no store writes what is there already, and each checks while the program holds still.

mod company;
mod discard;
mod documented;
mod kept;
mod kernel;
mod mapping;
mod process;
mod ranges;
mod scale;
mod threads;
mod writes;

pub(crate) use writes::huge_pages;

use libdirty::Sees;

use crate::judge::{Judge, Setup};
use crate::outcome::{Outcome, Stop, Verdict};
use crate::tracker::Record;
use crate::workload::Target;

/// One scenario.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// Writers race with collects: it must catch a back end that takes and re-arms in two steps.
    pub races: bool,
    /// Memory with content is discarded: it must catch a back end that is blind to that.
    pub discards: bool,
    /// Others write at the same addresses: it must catch a back end that reports what they write.
    pub noisy: bool,
    /// Ranges are collected alone: it must catch a tracker that takes what is written beside them.
    pub ranges: bool,
    /// It is peeked: it must catch a tracker that takes what a peek reports.
    pub peeks: bool,
    /// The field of the record that says whether such writes are seen; without it they must be.
    pub sees: fn(&Record) -> Sees,
    /// Where it makes sense.
    pub targets: &'static [Target],
    body: fn(&mut Judge) -> Result<(), Stop>,
}

const BOTH: &[Target] = &[Target::Own, Target::Other];

const fn scenario(
    name: &'static str,
    about: &'static str,
    body: fn(&mut Judge) -> Result<(), Stop>,
) -> Scenario {
    Scenario {
        name,
        about,
        races: false,
        discards: false,
        noisy: false,
        ranges: false,
        peeks: false,
        sees: |_| Sees::Yes,
        targets: BOTH,
        body,
    }
}

impl Scenario {
    const fn races(self) -> Self {
        Scenario { races: true, ..self }
    }

    const fn discards(self) -> Self {
        Scenario { discards: true, ..self }
    }

    const fn noisy(self) -> Self {
        Scenario { noisy: true, ..self }
    }

    const fn ranges(self) -> Self {
        Scenario { ranges: true, ..self }
    }

    const fn peeks(self) -> Self {
        Scenario { peeks: true, ..self }
    }

    const fn sees(self, sees: fn(&Record) -> Sees) -> Self {
        Scenario { sees, ..self }
    }

    const fn only(self, targets: &'static [Target]) -> Self {
        Scenario { targets, ..self }
    }

    /// Whether a mistake of a back end with this record shows here: where it is blind, or the kernel kills the
    /// program, nothing more can go wrong.
    #[must_use]
    pub fn is_telling(&self, record: &Record) -> bool {
        match (self.sees)(record) {
            Sees::Yes => true,
            Sees::Fails => !self.is_fatal(record),
            Sees::No => false,
        }
    }

    /// Whether the kernel kills a program that does this under such a back end, as its record says: a signal
    /// frame that cannot be written, or a store to memory that took its protection elsewhere.
    #[must_use]
    pub fn is_fatal(&self, record: &Record) -> bool {
        [SIGNAL_FRAMES, MREMAP, GROWTH].contains(&self.name) && (self.sees)(record) == Sees::Fails
    }

    /// Run it, in this process.
    #[must_use]
    pub fn run(&self, setup: Setup) -> Verdict {
        if !self.targets.contains(&setup.target) {
            return Verdict::Skipped(format!("says nothing about target {}", setup.target.name()));
        }
        match self.judge(setup) {
            Ok((outcome, true)) => Verdict::Skipped(format!(
                "its record says that it does not see these writes (tried: {} pages missed)",
                outcome.missed
            )),
            Ok((outcome, false)) => Verdict::Done(outcome),
            Err(Stop::Skip(why)) => Verdict::Skipped(why),
            Err(Stop::Fail(what)) => Verdict::Done(Outcome { failures: vec![what], ..Outcome::default() }),
        }
    }

    /// The outcome, and whether the record excludes this scenario.
    fn judge(&self, setup: Setup) -> Result<(Outcome, bool), Stop> {
        let mut judge = Judge::new(setup)?;
        let record = judge.record();
        let is_excluded =
            (self.sees)(record) == Sees::No || record.excluded.iter().any(|name| name == self.name);
        let outcome = match (self.body)(&mut judge) {
            // What was missed before counts, too.
            Err(Stop::Fail(what)) => {
                judge.outcome.failures.push(what);
                judge.outcome
            }
            Err(skip) => return Err(skip),
            Ok(()) => judge.finish()?,
        };
        Ok((outcome, is_excluded))
    }
}

const SIGNAL_FRAMES: &str = "signal-frames";
const MREMAP: &str = "mremap";
const GROWTH: &str = "growth";

/// Every scenario.
pub const ALL: &[Scenario] = &[
    scenario("one-writer", "stores to some pages, others each epoch", writes::one_writer),
    scenario("straddle", "unaligned stores over the border of two pages", writes::straddle),
    scenario("huge", "memory in transparent huge pages", writes::huge),
    scenario("not-huge", "the same without huge pages", writes::not_huge),
    scenario("runs", "memory in runs of 64 KiB", writes::runs),
    scenario("shared-memory", "a shared mapping of a memfd", writes::shared_memory),
    scenario("private-file", "a private mapping of a file", writes::private_file),
    scenario("shared-alias", "stores through a second mapping of shared memory", writes::shared_alias)
        .sees(|record| record.shared_aliases),
    scenario("racing-writers", "4 threads write random pages under hundreds of collects", threads::writers)
        .races(),
    scenario(
        "racing-few",
        "the same on so few pages that processors keep them all at hand",
        threads::few_pages,
    ),
    scenario("racing-watch", "ranges come and go under the same threads", threads::watch),
    scenario("read", "read(2) from a pipe", kernel::read).sees(|record| record.kernel_writes),
    scenario("recvmsg", "recvmsg(2) from a socket", kernel::recvmsg).sees(|record| record.kernel_writes),
    scenario("vmsplice", "vmsplice(2) from a pipe", kernel::vmsplice).sees(|record| record.kernel_writes),
    scenario("io-uring", "a read by io_uring", kernel::io_uring).sees(|record| record.kernel_writes),
    scenario(SIGNAL_FRAMES, "signals on an alternate stack", kernel::signal_frames)
        .sees(|record| record.kernel_writes),
    scenario("process-vm-writev", "process_vm_writev(2) by a child", kernel::process_vm_writev)
        .sees(|record| record.foreign_writes),
    scenario("proc-mem", "writes to /proc/PID/mem by a child", kernel::proc_mem)
        .sees(|record| record.mem_writes),
    scenario(
        "outside-writev",
        "process_vm_writev(2) by a process that is no child",
        kernel::outside_vm_writev,
    )
    .sees(|record| record.foreign_writes),
    scenario("outside-mem", "writes to /proc/PID/mem by a process that is no child", kernel::outside_mem)
        .sees(|record| record.mem_writes),
    scenario("direct", "a read from a file without the page cache (O_DIRECT)", kernel::direct)
        .sees(|record| record.kernel_writes),
    scenario("pinned", "io_uring writes into buffers that were registered before", kernel::pinned)
        .sees(|record| record.pinned_writes),
    scenario("guest", "a virtual machine of the program writes its memory (KVM)", kernel::guest)
        .sees(|record| record.kernel_writes),
    scenario(
        "documented-loop",
        "a copier follows the documented loop while threads fill memory and give it back",
        documented::discards,
    )
    .only(&[Target::Other]),
    scenario("documented-ranges", "the same, range by range, in any order", documented::ranges)
        .only(&[Target::Other])
        .ranges(),
    scenario(
        "ranges",
        "4 threads write random pages, and ranges are collected in any order",
        ranges::writers,
    )
    .ranges(),
    scenario(
        "ranges-discarded",
        "memory is given back and replaced, and ranges are collected",
        ranges::discards,
    )
    .ranges(),
    scenario("peek", "it is looked at what will be collected, under four threads and without", ranges::peek)
        .peeks(),
    scenario("dontneed", "MADV_DONTNEED of some pages, then reads, then writes", discard::some).discards(),
    scenario("dontneed-block", "the same of all pages of a page table", discard::block).discards(),
    scenario("dontneed-huge", "the same of a transparent huge page", discard::huge).discards(),
    scenario("huge-split", "huge pages are taken apart and put together", discard::split),
    scenario(
        "copied-discarded",
        "written while it is copied, and given back before the next collect",
        discard::copied,
    ),
    scenario("free", "MADV_FREE, and reclaim", discard::free),
    scenario("swap", "pages go to swap and come back", discard::swap),
    scenario("write-back", "shared files are synced and go out of memory", kept::write_back)
        .sees(|record| record.reclaimed_writes),
    scenario("merged", "equal pages are merged by the kernel (KSM)", kept::merged)
        .sees(|record| record.reclaimed_writes),
    scenario("hugetlb", "private memory in huge pages set aside", kept::hugetlb),
    scenario("munmap-refault", "munmap, and new memory at the same place", mapping::munmap),
    scenario("map-over", "mmap with MAP_FIXED over content", mapping::map_over),
    scenario(MREMAP, "pages move within, out of and into the watched range", mapping::mremap)
        .sees(|record| record.remapped_writes),
    scenario(GROWTH, "memory grows at its end, into watched and unwatched addresses", mapping::growth)
        .sees(|record| record.remapped_writes),
    scenario("protection", "the program makes pages read-only and writable again", mapping::protection),
    scenario("trackers", "three trackers of one process", company::trackers),
    scenario("noise", "three other processes write the same addresses", company::noise).noisy(),
    scenario("fork", "a forked child lives and writes", process::fork),
    scenario(
        "fork-tracker",
        "a forked child tracks itself while its parent is tracked",
        process::fork_tracker,
    )
    .only(&[Target::Own]),
    scenario("exec", "the tracked process replaces its program", process::exec).only(&[Target::Other]),
    scenario("exit", "the tracked process ends", process::exit).only(&[Target::Other]),
    scenario("sparse", "10 GiB of address space, a page in every 4 MiB", scale::sparse),
    scenario("alternate-pages", "100,000 pages, every other one of 200,000", scale::alternate),
    scenario("many-mappings", "2,000 mappings, some of which are replaced", scale::mappings),
    scenario("many-ranges", "1,000 watched ranges", scale::ranges),
];

/// The scenario of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Scenario> {
    ALL.iter().find(|scenario| scenario.name == name)
}
