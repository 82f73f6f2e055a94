# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The same guest under full binary translation, an emulator, beside translation in place and plain KVM: the
paper's section 7.2, which is empty there.

Invariant: the emulator runs on the emulated host, with the same kernel, initramfs and workloads, on the one
clock that counts the host's instructions. What bare metal needs is the lower bound of all.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ... import artifacts
from ...errors import LabError
from ...experiment.experiment import BeforeAfter, Check, Context, Result, experiment
from ...machines.initramfs import File
from .. import machine as power
from ..console import NS_PER_INSTRUCTION, Console
from ..machine import MODES, How, Vm
from .exits import TABLE

EMULATED = "emulated"
GUESTS = ("base", "inplace")
WORKLOADS = ("getppid", *(name for name in TABLE if name != "boot"), "ctx_2p0k")
# The kernel alone, and with the start-up of 100 commands behind it.
STARTS = ("kernel_boot", "boot")

METHOD = (
    f"QEMU -icount, {NS_PER_INSTRUCTION} ns an instruction. emulated: Debian's QEMU 7.2, compiled for the "
    "emulated host and run on it, emulates the same board and processor (TCG, one block of code after the "
    "other, each memory access by a table in software); base and inplace: KVM on that host. boot is from the "
    "guest's start, without that of the emulator or VMM for emulated. Instructions of one repetition"
)


def _emulated(context: Context, run: str) -> Console:
    host = replace(power.HOST, linux_args=())  # without huge pages, which nobody uses
    console = power.in_host(
        [power.emulated(EMULATED, run)],
        files={power.EMULATOR: File(artifacts.power_emulator(), 0o755)},
        how=How(context.progress, context.logs(EMULATED)),
        label=EMULATED,
        machine=host,
    )
    return console.of(EMULATED)


def take(context: Context) -> dict[str, Console]:
    """Run the workloads in each way."""
    run = f"run=boot,{','.join(WORKLOADS)} scale={'quick' if context.quick else 'full'}"
    vms = [Vm(mode, MODES[mode], run) for mode in GUESTS]
    how = How(context.progress, context.logs("kvm"))
    host = power.in_host(power.one_after_another(vms), label="kvm", how=how)
    found = {
        "bare": power.bare(run, how=How(context.progress, context.logs("bare"))),
        **{mode: host.of(mode) for mode in GUESTS},
        EMULATED: _emulated(context, run),
    }
    for way, console in found.items():
        if missing := [name for name in (*STARTS, *WORKLOADS) if name not in console.results]:
            raise LabError(f"{way} lacks {', '.join(missing)}")
    return found


def row(name: str, found: Mapping[str, Console]) -> dict[str, Any]:
    """Return the instructions of a workload in each way, and how many times those of plain KVM it takes."""
    counts = {way: round(console.results[name].instructions) for way, console in found.items()}
    return {
        "workload": name,
        **counts,
        "emulated, of plain KVM": round(counts[EMULATED] / counts["base"], 2),
        "emulated, of in place": round(counts[EMULATED] / counts["inplace"], 2),
    }


def checks(found: Mapping[str, Console]) -> list[Check]:
    """Check a run."""

    def no_slower_than(way: str) -> list[str]:
        return [
            name
            for name in (*STARTS, *WORKLOADS)
            if found[EMULATED].results[name].instructions <= found[way].results[name].instructions
        ]

    faster, lost = no_slower_than("bare"), no_slower_than("inplace")
    return [
        Check(
            "an emulator needs more than bare metal",
            not faster,
            f"fewer instructions than on bare metal: {', '.join(faster) or 'none'}",
        ),
        Check(
            "in place is faster than full translation",
            not lost,
            f"faster when emulated: {', '.join(lost) or 'none'} of {len(STARTS) + len(WORKLOADS)}",
        ),
    ]


@experiment(
    name="power-emulation",
    accelerator="power",
    title="A guest on an e500v2 under full binary translation: instructions",
    reproduces="In-place translation, section 7.2, which has no text: full binary translation",
    minutes=3,
)
def power_emulation(context: Context) -> Result:
    """Measure an emulator on the emulated host beside plain KVM and translation in place."""
    found = take(context)
    rows = [row(name, found) for name in (*STARTS, *WORKLOADS)]
    return Result(
        unit="instructions",
        method=METHOD,
        rows=rows,
        paper=[],
        checks=checks(found),
        machine=power.machine_facts(),
        keys={way: {one["workload"]: one[way] for one in rows} for way in found},
        summary=[
            BeforeAfter(
                f"{name}, instructions",
                f"{found[EMULATED].results[name].instructions:,.0f}",
                f"{found['inplace'].results[name].instructions:,.0f}",
                f"plain KVM: {found['base'].results[name].instructions:,.0f}; before is an emulator",
            )
            for name in ("boot", "syscall", "fork", "exec")
        ],
    )
