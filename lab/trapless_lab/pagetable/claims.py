# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The demonstration of Xen: processes before and after, and a device whose writes are blocked."""

from ..errors import LabError
from ..experiment.claim import Claim, Facts, Heading, Line, Part
from ..experiment.experiment import Context
from ..experiment.workload import NS_PER_INSTRUCTION, ns_per_process
from ..machines.machine import Machine
from ..machines.script import Step
from ..machines.transcript import Transcript
from . import parts
from .columns import BARE, RELAXED, STRICT
from .experiments.dma import pagetable_dma

_WARM_UP, _COUNT = 10, 20
_PROCESSES = {"fork_exec": "fork-exec", "fork_sh": "fork-sh"}
_WORDS = {"fork_exec": "start a program", "fork_sh": "start a shell"}


def _steps(state: str) -> list[Step]:
    return [
        Step(f"{state}: {what}", f"spawn {mode} --warm-up {_WARM_UP} --count {_COUNT}", timeout_s=300)
        for what, mode in _PROCESSES.items()
    ]


def _facts(name: str, state: str, transcript: Transcript) -> dict[str, float]:
    found: dict[str, float] = {}
    for what in _PROCESSES:
        step = f"{state}: {what}"
        found[f"{name} {state} {what}"] = ns_per_process(transcript[step], what) / NS_PER_INSTRUCTION
        flushes = transcript.counts(step).flushes / (_WARM_UP + _COUNT)
        found[f"{name} {state} {what} flushes"] = flushes
    return found


def _alone(context: Context) -> Facts:
    return _facts("bare", "stock", context.run("bare metal", BARE, _steps("stock")))


def _before_and_after(context: Context, name: str, machine: Machine) -> Facts:
    needed = parts.everything(machine)
    script = [*_steps("stock"), *parts.load_steps(needed), *_steps("boosted")]
    transcript = context.run(name, machine, script, parts.files(needed))
    return _facts(name, "stock", transcript) | _facts(name, "boosted", transcript)


def _device(context: Context) -> Facts:
    result = pagetable_dma(context)
    if failed := [check.text for check in result.checks if not check.holds]:
        raise LabError("; ".join(failed))
    return {"blocked": next(row["iommu_faults"] for row in result.rows if row["page"] == "semi_writable")}


def _lines(facts: Facts) -> list[Line]:
    found = [
        Line(
            f"{words}, {name}",
            facts[f"{name} stock {what}"],
            facts[f"{name} boosted {what}"],
            facts[f"bare stock {what}"],
        )
        for name in ("relaxed", "strict")
        for what, words in _WORDS.items()
    ]
    before, after = (facts[f"strict {state} fork_exec flushes"] for state in ("stock", "boosted"))
    return [*found, Line("IOMMU flushes, a program", before, after)]


def _gained(facts: Facts) -> str:
    left = facts["relaxed boosted fork_exec"] / facts["relaxed stock fork_exec"]
    return f"starting a program in a PV guest of stock Xen takes {100 * left:.0f} % of what it took"


def _kept(facts: Facts) -> str:
    return f"a device's writes into a page table were stopped ({facts['blocked']:,.0f} refused)"


PART = Part(
    "pagetable",
    Heading("a Xen PV guest, by IOMMU", "stock", "trapless", "no Xen"),
    (
        Claim("Xen, relaxed IOMMU: processes", 32, lambda c: _before_and_after(c, "relaxed", RELAXED)),
        Claim("Xen, strict IOMMU: processes", 38, lambda c: _before_and_after(c, "strict", STRICT)),
        Claim("Xen, strict IOMMU: a device writes into a page table", 20, _device),
        Claim("no Xen: processes", 8, _alone),
    ),
    _lines,
    _gained,
    _kept,
)
