# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Does PiBooster harm computation? Its Figure 13, with stress-ng's kernels in place of SPEC CINT2006.

Invariant: a kernel does the same fixed amount of work, from the same seed, in each run; counted are all
instructions of the machine during that time, except those of the idle loop.
"""

from collections.abc import Mapping
from statistics import fmean

from ... import host
from ...experiment.experiment import (
    BeforeAfter,
    Check,
    Context,
    Result,
    Row,
    Target,
    experiment,
    machine_facts,
)
from ...experiment.workload import NS_PER_INSTRUCTION, instructions_on
from ...machines import initramfs
from ...machines.script import Step
from .. import states
from ..columns import STRICT
from ..states import EVERYTHING, PIBOOSTER, STATES, STOCK

KERNELS = {
    "crc16": "--cpu 1 --cpu-method crc16 --cpu-ops 40",
    "fft": "--cpu 1 --cpu-method fft --cpu-ops 60",
    "hanoi": "--cpu 1 --cpu-method hanoi --cpu-ops 60",
    "int64": "--cpu 1 --cpu-method int64 --cpu-ops 60",
    "queens": "--cpu 1 --cpu-method queens --cpu-ops 40",
    "sieve": "--cpu 1 --cpu-method sieve --cpu-ops 40",
    "hsearch": "--hsearch 1 --hsearch-ops 40",
    "memcpy": "--memcpy 1 --memcpy-ops 8",
    "mergesort": "--mergesort 1 --mergesort-ops 1",
    "qsort": "--qsort 1 --qsort-ops 1",
    "tsearch": "--tsearch 1 --tsearch-ops 1",
    "zlib": "--zlib 1 --zlib-ops 1",
}
"""Twelve, as SPEC CINT2006 has; a quarter to a half of a billion instructions each."""

QUICK_KERNELS = ("hsearch", "queens")
REPEATS = 3
QUICK_REPEATS = 2

AT_MOST_PERCENT = 0.5
# By how much two runs of a kernel may differ; a quick run has few for its mean.
SLACK_PERCENT = 1.0

PAPER = [{"measure": "483.xalancbmk, the largest of twelve", "faster_percent": 0.42}]


def _label(kernel: str, repeat: int) -> str:
    return f"{kernel} {repeat + 1}"


def _steps(kernels: Mapping[str, str], repeats: int) -> list[Step]:
    return [
        Step(_label(kernel, repeat), f"soaked stress-ng --quiet --no-rand-seed {options}", timeout_s=300)
        for kernel, options in kernels.items()
        for repeat in range(repeats)
    ]


def _spread_percent(values: Mapping[str, list[int]]) -> float:
    return round(max(100 * (max(taken) - min(taken)) / fmean(taken) for taken in values.values()), 2)


@experiment(
    name="pagetable-compute",
    accelerator="pagetable",
    title="Instructions of a computation",
    reproduces="PiBooster, Figure 13 (stress-ng in place of SPEC CINT2006)",
    minutes=4,
)
def pagetable_compute(context: Context) -> Result:
    """Run each kernel several times stock, with PiBooster alone, and with everything, in one boot."""
    kernels = {name: KERNELS[name] for name in (QUICK_KERNELS if context.quick else KERNELS)}
    repeats = QUICK_REPEATS if context.quick else REPEATS
    stress_ng = host.tool("stress-ng", "stress-ng")
    steps = _steps(kernels, repeats)
    # With random address spaces the number of tables would vary.
    script = [
        Step("no random layout", "echo 0 >/proc/sys/kernel/randomize_va_space"),
        Step("warm up", steps[0].command),
        *states.steps(steps),
    ]
    transcript = context.run("compute", STRICT, script, {**states.files(), **initramfs.program(stress_ng)})
    taken = {
        kernel: {
            state: [
                instructions_on(states.result(transcript, state, _label(kernel, i))) for i in range(repeats)
            ]
            for state in STATES
        }
        for kernel in kernels
    }
    means = {k: {state: fmean(values) for state, values in by.items()} for k, by in taken.items()}
    keys = {state: {k: round(means[k][state]) for k in kernels} for state in STATES}
    slower = {
        state: {k: states.percent(means[k][state], means[k][STOCK]) for k in kernels} for state in STATES
    }
    if context.plots:
        context.plots.bars(
            "pagetable-compute.png",
            list(kernels),
            {state: [100 + slower[state][k] for k in kernels] for state in STATES},
            y="instructions, percent of stock",
            title="A fixed amount of computation",
        )
    rows: list[Row] = [
        {
            "kernel": k,
            **{state: keys[state][k] for state in STATES},
            **states.percents(means[k]),
            "spread_percent": _spread_percent(taken[k]),
        }
        for k in kernels
    ]
    worst = {state: max(kernels, key=slower[state].__getitem__) for state in STATES[1:]}
    return Result(
        unit="instructions of the whole machine",
        method=f"QEMU -icount, {NS_PER_INSTRUCTION} ns an instruction; stress-ng's kernels, a fixed number "
        f"of operations each, start and end of the program included; mean of {repeats}; percent is against "
        "stock, below 0 is faster; spread is the largest minus the smallest, of the worst state; piboost is "
        "PiBooster alone, boosted has the rest of trapless too; one boot",
        rows=rows,
        paper=PAPER,
        checks=[
            Check(
                f"{state} computes no slower",
                slower[state][worst[state]] <= SLACK_PERCENT,
                f"of {len(kernels)} the worst is {worst[state]}, {slower[state][worst[state]]:+.2f} %",
            )
            for state in (PIBOOSTER, EVERYTHING)
        ],
        machine=machine_facts([STRICT], {**host.versions(), **host.package_versions(["stress-ng"])}),
        keys=keys,
        summary=[
            BeforeAfter(
                f"computation, the worst of {len(kernels)} kernels, instructions",
                f"{keys[STOCK][worst[EVERYTHING]]:,}",
                f"{keys[EVERYTHING][worst[EVERYTHING]]:,}",
                f"{slower[EVERYTHING][worst[EVERYTHING]]:+.2f} %",
            )
        ],
        targets=[
            Target(f"{state}, slowdown in percent", slower[state][worst[state]], AT_MOST_PERCENT)
            for state in (PIBOOSTER, EVERYTHING)
        ],
    )
