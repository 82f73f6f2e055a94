# SPDX-License-Identifier: Apache-2.0 OR MIT
"""How often pages change their type, and into which: the observation of PiBooster's draft, its section 3.

Invariant: changes are counted outside the guest, where Xen starts to validate the page. The positive control
is a program that makes pages of segment descriptors.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ... import host
from ...errors import LabError
from ...experiment.experiment import BeforeAfter, Check, Context, Result, Row, experiment, machine_facts
from ...machines.machine import MACHINES
from ...machines.script import Step
from ...machines.trace import Counts
from ...plugins.spans import Record, between
from ...profiler import kallsyms
from .. import page_types, recording, table_spans
from ..page_types import FIRST_ID, TYPES

MACHINE = MACHINES["xen-strict"].with_icount()
IDLE_S, QUICK_IDLE_S = 600, 60
PROCESSES, QUICK_PROCESSES = 1000, 100
DESCRIPTORS = 20
# The share of descriptors from which keeping them semi-writable would be worth the code.
WORTH_PERCENT = 1.0
# How far the IOMMU's count of a step may differ from the changes plus the step's own cost: the changes of two
# processes, whose exits may be before or after the markers.
BESIDE = 40

SETTINGS = ("idle", "busy", "control")
_NOTHING = "nothing"


@dataclass(frozen=True)
class Setting:
    """The counts in one setting: changes by type, and the flushes of QEMU's IOMMU meanwhile."""

    changes: Mapping[str, int]
    seconds: float
    iommu: Counts

    @property
    def all(self) -> int:
        """All changes into a type whose pages devices must not reach."""
        return sum(self.changes.values())

    @property
    def descriptors_percent(self) -> float:
        """How many of them are segment descriptors."""
        return 100 * self.changes["seg_desc"] / self.all if self.all else 0.0


def count(records: Sequence[Record], start: int, end: int) -> dict[str, int]:
    """Return the changes into each type within a stretch of a run."""
    ids = Counter(record.id for record in between(records, start, end))
    return {type: ids[FIRST_ID + number] for number, type in enumerate(TYPES)}


def _take(context: Context, idle_s: int, processes: int) -> tuple[dict[str, Setting], dict[str, int]]:
    steps = [
        # The cost of a step's shell and markers, which are outside the workload's own markers.
        Step(_NOTHING, "profiled true"),
        Step("idle", f"profiled sleep {idle_s}", timeout_s=600),
        Step("busy", f"spawn fork-exec --count {processes}", timeout_s=600),
        Step("control", f"profiled ldt {DESCRIPTORS}", timeout_s=300),
        # Without this the end of the machine would count for the last workload.
        Step("done", "true"),
    ]
    kernel = kallsyms.kernel(context.progress)
    run = recording.take(context, "stock", MACHINE, steps, plan=page_types.plan(), kernel=kernel)
    stretches = table_spans.marks(run.records)
    if len(stretches) != len(steps) - 1:
        raise LabError(f"the recording has {len(stretches)} workloads of {len(steps) - 1}")
    settings = {
        step.name: Setting(
            count(run.records, *stretch),
            run.transcript[step.name].duration_s,
            run.transcript.counts(step.name),
        )
        for step, stretch in zip(steps, stretches, strict=False)
    }
    return settings, count(run.records, 0, stretches[0][0])


def _row(name: str, setting: Setting) -> Row:
    return {
        "setting": name,
        "seconds": setting.seconds,
        **setting.changes,
        "a second": round(setting.all / setting.seconds, 1),
        "seg_desc %": round(setting.descriptors_percent, 2),
        "flushes": setting.iommu.flushes,
    }


def _agrees(name: str, setting: Setting, nothing: Setting) -> Check:
    """Compare the changes with the IOMMU: each unmaps a page and flushes that page or, if the page was part
    of a superpage, the domain. Mapping flushes the domain, too, if it completes a superpage again.
    """
    own = nothing.iommu.flushes - nothing.all
    least, most = setting.iommu.pages - own - BESIDE, setting.iommu.flushes - own + BESIDE
    return Check(
        f"{name}: the IOMMU saw the same",
        least <= setting.all <= most,
        f"{setting.all:,} changes; {setting.iommu.pages:,} flushes of a page and {setting.iommu.domain:,} of "
        f"the domain in the step, {own:,} of them its own",
    )


def checks(settings: Mapping[str, Setting], processes: int) -> list[Check]:
    """Return the checks of the counts."""
    made = settings["control"].changes["seg_desc"]
    tables = settings["busy"].changes
    return [
        Check(
            "descriptors are seen where there are some",
            made == DESCRIPTORS,
            f"{made} changes for {DESCRIPTORS} pages of descriptors",
        ),
        Check(
            "a busy guest changes types at every level",
            all(tables[level] >= processes for level in TYPES[:-1]),
            ", ".join(f"{level}: {tables[level]:,}" for level in TYPES[:-1])
            + f" for {processes:,} processes",
        ),
        *(_agrees(name, settings[name], settings[_NOTHING]) for name in SETTINGS),
    ]


def conclusion(settings: Mapping[str, Setting]) -> str:
    """Return the conclusion for keeping pages of segment descriptors semi-writable."""
    idle, busy = settings["idle"], settings["busy"]
    seen = idle.changes["seg_desc"] + busy.changes["seg_desc"]
    share = 100 * seen / max(idle.all + busy.all, 1)
    verdict = "they do" if share >= WORTH_PERCENT else "they do not"
    return (
        f"{verdict} deserve the semi-writable state: {seen:,} of {idle.all + busy.all:,} changes, "
        f"{share:.2f} %, at least {WORTH_PERCENT:g} % would be worth it"
    )


@experiment(
    name="pagetable-types",
    accelerator="pagetable",
    title="Pages that change their type",
    reproduces="the draft of PiBooster, section 3: which types change",
    minutes=2,
)
def pagetable_types(context: Context) -> Result:
    """Count changes into each level of page tables and into segment descriptors, idle and busy."""
    idle_s = QUICK_IDLE_S if context.quick else IDLE_S
    processes = QUICK_PROCESSES if context.quick else PROCESSES
    settings, boot = _take(context, idle_s, processes)
    if context.plots:
        context.plots.bars(
            "pagetable-types.png",
            TYPES,
            {name: [settings[name].changes[type] for type in TYPES] for name in SETTINGS},
            y="changes into the type",
            title="Pages that change their type, counted in Xen",
        )
    decided = conclusion(settings)
    busy = settings["busy"]
    return Result(
        unit="changes of type",
        method="executions of the places in Xen that start to validate a page of a type, by a QEMU plugin. "
        f"idle: nothing runs; busy: {processes:,} fork+exec; control: {DESCRIPTORS} processes with a local "
        f"descriptor table. flushes: of the whole step, in QEMU's VT-d trace. Descriptors: {decided}",
        rows=[
            *(_row(name, settings[name]) for name in SETTINGS),
            {"setting": "boot, until then", **boot},
        ],
        paper=[
            {
                "setting": "the draft",
                "observation": "creating GDTs and LDTs is rare; page tables are the source",
            }
        ],
        checks=checks(settings, processes),
        machine=machine_facts([MACHINE], host.versions()),
        keys={
            **{
                name: {
                    **settings[name].changes,
                    "seconds": settings[name].seconds,
                    "flushes": settings[name].iommu.flushes,
                }
                for name in SETTINGS
            },
            "boot": boot,
            "conclusion": decided,
        },
        summary=[
            BeforeAfter(
                "changes of a page's type for a fork+exec, and those into segment descriptors",
                f"{busy.all / processes:.1f}",
                f"{busy.changes['seg_desc'] / processes:.1f}",
                decided,
            )
        ],
    )
