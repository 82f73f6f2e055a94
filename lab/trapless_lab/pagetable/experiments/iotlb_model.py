# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The cost of a process's IOTLB flushes on hardware: a *model*, as a flush has no latency in QEMU.

Invariant: flushes and instructions a process are measured, in one run, flushes by QEMU's IOMMU between the
workload's own ticks; latencies and clocks are assumed, and every number based on them is labelled a model's.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ... import host
from ...errors import LabError
from ...experiment.experiment import BeforeAfter, Check, Context, Result, Row, experiment, machine_facts
from ...experiment.workload import MODES, NS_PER_INSTRUCTION, ns_per_process
from ...machines.script import Step
from ...machines.trace import TICK, total
from ...machines.transcript import Transcript
from .. import parts as pagetable
from ..columns import STRICT

LATENCIES_US = (0.25, 0.5, 1.0, 2.0)
"""Assumed, of one flush."""

CLOCKS_NS = {"lab": float(NS_PER_INSTRUCTION), "paper": 1 / 3.2}
"""Assumed, of one instruction: the lab's own clock, and the paper's 3.2 GHz processor at one a cycle."""

TICK_PROCESSES = 5
PROCESSES = 100
QUICK_PROCESSES = 20
WARM_UP = 50
# A fork and exit has nine tables, and each is unmapped once.
STOCK_AT_LEAST = 8

STATES = ("stock", "boosted")


@dataclass(frozen=True)
class Cost:
    """The measured cost of one process."""

    flushes: float
    instructions: int

    def share_percent(self, latency_us: float, instruction_ns: float = CLOCKS_NS["paper"]) -> float:
        """Return the *model's* share of a process's time for flushes."""
        flushing = self.flushes * latency_us * 1000
        return round(100 * flushing / (flushing + self.instructions * instruction_ns), 1)


def _label(state: str, measure: str) -> str:
    return f"{state}: {measure}"


def _steps(state: str, processes: int) -> list[Step]:
    return [
        Step(
            _label(state, measure),
            f"spawn {mode} --warm-up {WARM_UP} --count {processes} --tick {TICK_PROCESSES}",
            timeout_s=300,
        )
        for measure, mode in MODES.items()
    ]


def cost(transcript: Transcript, step: str, measure: str) -> Cost:
    """Return the measured cost of a process of a step: flushes are those from its first tick to its last."""
    at = transcript.index(step)
    between = [b for b in transcript.buckets if b.step == at and b.opened_by == TICK][:-1]
    if not between:
        raise LabError(f'step "{step}" wrote fewer than two ticks into the trace')
    flushes = total(between).flushes / (len(between) * TICK_PROCESSES)
    return Cost(flushes, ns_per_process(transcript[step], measure) // NS_PER_INSTRUCTION)


def _rows(costs: Mapping[str, Mapping[str, Cost]]) -> list[Row]:
    return [
        {
            "measure": measure,
            "state": state,
            "flushes": round(of.flushes, 1),
            "instructions": of.instructions,
            "model_clock": clock,
            **{f"model_percent_{us:g}_us": of.share_percent(us, ns) for us in LATENCIES_US},
        }
        for measure, by in costs.items()
        for state, of in by.items()
        for clock, ns in CLOCKS_NS.items()
    ]


@experiment(
    name="pagetable-iotlb-model",
    accelerator="pagetable",
    title="What IOTLB flushes would cost (model)",
    reproduces="PiBooster, sections 2.2 and 5.3.3: latencies that QEMU does not have (model)",
    minutes=1,
)
def pagetable_iotlb_model(context: Context) -> Result:
    """Measure flushes and instructions a process, stock and with PiBooster alone; model the rest."""
    processes = QUICK_PROCESSES if context.quick else PROCESSES
    script = [
        *_steps("stock", processes),
        *pagetable.load_steps(pagetable.PIBOOSTER_ALONE),
        *_steps("boosted", processes),
    ]
    transcript = context.run("model", STRICT, script, pagetable.files(pagetable.PIBOOSTER_ALONE))
    costs = {m: {s: cost(transcript, _label(s, m), m) for s in STATES} for m in MODES}
    if context.plots:
        context.plots.lines(
            "pagetable-iotlb-model.png",
            {
                f"{m}, {s}": (
                    LATENCIES_US,
                    [of.share_percent(us) for us in LATENCIES_US],
                )
                for m, by in costs.items()
                for s, of in by.items()
            },
            x="model: microseconds a flush",
            y="model: percent of a process in flushes",
            title="IOTLB flushes (model, 3.2 GHz, one instruction a cycle)",
        )
    stock, boosted = ({m: costs[m][s].flushes for m in MODES} for s in STATES)
    exit_stock, exit_boosted = costs["fork_exit"]["stock"], costs["fork_exit"]["boosted"]
    at_1_us = [of.share_percent(1.0) for of in (exit_stock, exit_boosted)]
    return Result(
        unit="flushes and instructions a process, measured; model: percent of a process",
        method=f"flushes and instructions measured under QEMU -icount, mean of {processes} processes; "
        "boosted is PiBooster alone. MODEL: model_percent_N_us is the share of a process's time that passes "
        "in its flushes, of N us each, during which nothing else runs; an instruction takes 2 ns "
        "(model_clock lab) or 1/3.2 ns (paper)",
        rows=_rows(costs),
        paper=[{"measure": "a process of the workload", "flushes": round(9050 / 542, 1)}],
        checks=[
            Check(
                "stock flushes",
                min(stock.values()) >= STOCK_AT_LEAST,
                f"at least {min(stock.values()):.1f} a process, {STOCK_AT_LEAST} wanted",
            ),
            Check(
                "boosted does not",
                max(boosted.values()) == 0,
                f"at most {max(boosted.values()):.1f} a process",
            ),
        ],
        machine=machine_facts([STRICT], host.versions()),
        keys={
            **{s: {m: round(costs[m][s].flushes, 1) for m in MODES} for s in STATES},
            "model": {
                m: {f"{us:g}_us": costs[m]["stock"].share_percent(us) for us in LATENCIES_US} for m in MODES
            },
        },
        summary=[
            BeforeAfter(
                "MODEL: percent of fork+exit in IOTLB flushes of 1 us",
                f"{at_1_us[0]}",
                f"{at_1_us[1]}",
                f"{exit_stock.flushes:.1f} flushes measured; 3.2 GHz and one instruction a cycle assumed",
            )
        ],
    )
