# SPDX-License-Identifier: Apache-2.0 OR MIT
"""How often a machine crosses into Xen, and how often it empties its TLB.

Invariant: what is counted is seen by QEMU at Xen's own entry points and at the instructions that empty a TLB,
whatever the guest and the payload say of themselves. Entry points are those of the Xen that is booted, by its
symbols; a Xen without one of them is an error. A crossing has one kind, so that the kinds add up.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path

from ..errors import LabError
from ..experiment import workload
from ..experiment.experiment import Context, Row
from ..machines import domu
from ..machines.initramfs import Tree
from ..machines.machine import Machine
from ..machines.qemu import Plugin
from ..machines.script import Step, StepResult
from ..machines.transcript import Transcript
from ..plugins import events, plugin
from ..plugins.events import Interval, Plan
from ..profiler import profile
from ..profiler.binaries import Hypervisor

# Each point by its name in Xen 4.17, then by the one since 4.19. SYSCALL is how a guest's kernel makes
# hypercalls, too: pv_hypercall runs for those alone.
_CALLS = (
    ("lstar_enter",),
    ("cstar_enter",),
    ("sysenter_entry",),
    ("int80_direct_trap", "entry_int80"),
)
_PAGE_FAULT = ("page_fault", "entry_PF")
_OTHER_FAULTS = (
    ("divide_error", "entry_DE"),
    ("debug", "entry_DB"),
    ("int3", "entry_BP"),
    ("overflow", "entry_OF"),
    ("bounds", "entry_BR"),
    ("invalid_op", "entry_UD"),
    ("device_not_available", "entry_NM"),
    ("invalid_TSS", "entry_TS"),
    ("segment_not_present", "entry_NP"),
    ("stack_segment", "entry_SS"),
    ("general_protection", "entry_GP"),
    ("coprocessor_error", "entry_MF"),
    ("alignment_check", "entry_AC"),
    ("simd_coprocessor_error", "entry_XM"),
)
_INTERRUPTS = (("common_interrupt",), ("nmi", "entry_NMI"), ("machine_check", "entry_MC"))

# Functions of Xen's that say more about a crossing, or empty a TLB.
_EVENTS = {
    "hypercall": ("pv_hypercall",),
    "emulated": ("x86_emulate",),
    "segment_base": ("do_set_segment_base",),
    "vm_exit": ("svm_vmexit_handler",),
    "flush": ("flush_area_local",),
    "flush_ipi": ("invalidate_interrupt",),
}

# Xen leaves by one of the returns between these two.
_LEAVE_FROM, _LEAVE_TO = "restore_all_guest", "lstar_enter"


@dataclass(frozen=True)
class Crossings:
    """Of one interval, or of one operation: divided by how many there were.

    Crossings by kind: system calls of a guest's programs, hypercalls of its kernel, page faults, other
    faults and interrupts, all of them taken by Xen first; a PVH guest has VM exits instead. ``emulated`` are
    those of the faults whose instruction Xen emulated, ``segment_bases`` those of the hypercalls that set the
    base of FS or GS. ``flushes`` are Xen's calls of its own flush, on any CPU, ``flush_ipis`` those of them
    that another CPU asked for. The others are instructions, in Xen and in a kernel: loads of CR3 and INVLPG.
    """

    system_calls: float = 0
    hypercalls: float = 0
    page_faults: float = 0
    other_faults: float = 0
    interrupts: float = 0
    vm_exits: float = 0
    emulated: float = 0
    segment_bases: float = 0
    flushes: float = 0
    flush_ipis: float = 0
    cr3_loads: float = 0
    invlpgs: float = 0

    @property
    def entries(self) -> float:
        """All crossings into Xen."""
        return float(sum(getattr(self, kind) for kind in KINDS))

    def each(self, times: float) -> "Crossings":
        """Return how many there are of each in one of ``times`` operations."""
        return Crossings(*(round(getattr(self, field.name) / times, 2) for field in fields(self)))

    def __add__(self, other: "Crossings") -> "Crossings":
        both = (getattr(self, f.name) + getattr(other, f.name) for f in fields(self))
        return Crossings(*both)


KINDS = ("system_calls", "hypercalls", "page_faults", "other_faults", "interrupts", "vm_exits")
"""The kinds of crossings."""


def _find(xen: Hypervisor, names: tuple[str, ...]) -> int:
    for name in names:
        if name in xen.addresses:
            return xen.addresses[name]
    raise LabError(f"this Xen has none of {', '.join(names)}")


def plan(machine: Machine) -> Plan:
    """Return what the plugin counts in a machine; without Xen there are instructions alone."""
    return _plan(machine.xen_root) if machine.xen else Plan()


@cache
def _plan(root: Path) -> Plan:
    xen = profile.hypervisor(root)
    kinds = {
        "call": _CALLS,
        "page_fault": (_PAGE_FAULT,),
        "other_fault": _OTHER_FAULTS,
        "interrupt": _INTERRUPTS,
    }
    return Plan(
        events=[(_find(xen, names), event) for event, names in _EVENTS.items()],
        entries=[(_find(xen, names), kind) for kind, points in kinds.items() for names in points],
        leaves=[(_find(xen, (_LEAVE_FROM,)), _find(xen, (_LEAVE_TO,)))],
    )


def of(interval: Interval) -> Crossings:
    """Return what an interval of the plugin's file says."""

    def number(*names: str) -> int:
        return sum(interval.get(name, 0) for name in names)

    hypercalls = number("hypercall")
    return Crossings(
        system_calls=number("call") - hypercalls,
        hypercalls=hypercalls,
        page_faults=number("page_fault"),
        other_faults=number("other_fault"),
        interrupts=number("interrupt"),
        vm_exits=number("vm_exit"),
        emulated=number("emulated"),
        segment_bases=number("segment_base"),
        flushes=number("flush"),
        flush_ipis=number("flush_ipi"),
        cr3_loads=number("xen:cr3", "kernel:cr3"),
        invlpgs=number("xen:invlpg", "kernel:invlpg"),
    )


@dataclass(frozen=True)
class Counted:
    """A step's result, and what was counted in its intervals, by their names.

    ``iotlb_flushes`` are of the whole step, as QEMU's trace has them.
    """

    result: StepResult
    intervals: Mapping[str, Sequence[Crossings]]
    iotlb_flushes: int

    def total(self, name: str) -> Crossings:
        """Return the sum of all intervals of a name."""
        return sum(self.intervals[name], Crossings())


@dataclass(frozen=True)
class Counting:
    """A run, and each of its steps by name."""

    transcript: Transcript
    steps: Mapping[str, Counted]


def run(
    context: Context,
    label: str,
    machine: Machine,
    steps: Sequence[Step],
    files: Tree | None = None,
    modules: Sequence[str] = (),
) -> Counting:
    """Run steps in a machine and count in all intervals that the guest's programs mark."""
    with tempfile.TemporaryDirectory(prefix="trapless-events-") as scratch:
        output = Path(scratch) / "events"
        counted = plan(context.pair.machine(machine)).write(Path(scratch) / "plan")
        watching = Plugin(plugin.build("events"), output, counted)
        transcript = context.run(label, machine, steps, files, modules=modules, plugins=[watching])
        content = output.read_text()
    if logs := context.logs(label):
        (logs / "events").write_text(content)
    return Counting(transcript, _by_step(transcript, events.parse(content.splitlines())))


def _by_step(transcript: Transcript, intervals: Sequence[Interval]) -> dict[str, Counted]:
    """Return the steps with the intervals that each has printed, which are in the file's order."""
    printed = [
        [] if result.step.name == domu.CONSOLE else workload.intervals(result)
        for result in transcript.results
    ]
    if (names := sum(map(len, printed))) != len(intervals):
        raise LabError(f"the guest's programs printed {names} intervals, {len(intervals)} were counted")
    left = iter(intervals)
    found: dict[str, Counted] = {}
    for result, names_of_step in zip(transcript.results, printed, strict=True):
        of_step: dict[str, list[Crossings]] = {}
        for name in names_of_step:
            of_step.setdefault(name, []).append(of(next(left)))
        found[result.step.name] = Counted(result, of_step, transcript.counts(result.step.name).flushes)
    return found


Figures = Mapping[str, Mapping[str, Crossings]]
"""Column -> measure -> what one operation has."""


def keys(counted: Figures) -> dict[str, object]:
    """Return the JSON's keys: all crossings and flushes, and each kind of them."""

    def each(read: Callable[[Crossings], object]) -> dict[str, dict[str, object]]:
        return {
            column: {measure: read(figure) for measure, figure in measures.items()}
            for column, measures in counted.items()
        }

    return {
        "xen_entries": each(lambda figure: round(figure.entries, 2)),
        "tlb_flushes": each(lambda figure: figure.flushes),
        "counted": each(asdict),
    }


def rows(counted: Figures, measures: Sequence[str]) -> list[Row]:
    """Return for each measure a row of its crossings and one of its TLB flushes."""

    def row(measure: str, what: str, read: Callable[[Crossings], float]) -> Row:
        values = {column: read(figures[measure]) for column, figures in counted.items()}
        return {"measure": f"{measure}: {what}", **values}

    return [
        row(measure, what, read)
        for what, read in (
            ("crossings into Xen", lambda figure: round(figure.entries, 1)),
            ("TLB flushes by Xen", lambda figure: round(figure.flushes, 1)),
        )
        for measure in measures
    ]


def named(rows: Sequence[Row], what: str) -> list[Row]:
    """Return rows whose measures are in a column of this name."""
    return [{what: row["measure"], **{key: row[key] for key in row if key != "measure"}} for row in rows]


METHOD = (
    "crossings into Xen and TLB flushes (of Xen's flush_area_local) are counted by a QEMU plugin over the "
    "same intervals, IOTLB flushes in QEMU's trace"
)
"""How, for an experiment's method."""
