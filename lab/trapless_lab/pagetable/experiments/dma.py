# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Can a device write a page? A normal, a semi-writable and a released one: PiBooster's security requirement.

Invariant: the verdict depends on the page's contents, byte by byte; a separate check, on QEMU's trace, is
that the IOMMU reported the blocked write.
"""

from pathlib import Path

from ... import artifacts, host
from ...errors import LabError
from ...experiment.experiment import BeforeAfter, Check, Context, Result, experiment, machine_facts
from ...machines import runner
from ...machines.initramfs import File, Tree
from ...machines.machine import MACHINES
from ...machines.script import Step, StepResult
from ...machines.transcript import Transcript
from .. import parts as pagetable

MACHINE = MACHINES["xen-strict"].with_disk()
MODULES = ("ahci", "sd_mod")

_GATE = "/lib/trapless/dma_gate.ko"
_DO = "/sys/module/dma_gate/parameters/do"
_RESULT = "/sys/module/dma_gate/parameters/result"
_ON_DISK = b"\x5a"
_READ = f"echo read >{_DO}; cat {_RESULT}"
# The kernel's error handling resets a refused device before the read returns.
_READ_TIMEOUT_S = 300

# The first read fills the IOTLB, and nothing forks until the last one: so a mark without a flush is detected.
_WARM = f"echo read >{_DO}"
PHASES = {
    "normal": _READ,
    "semi_writable": f"{_WARM} && echo mark >{_DO} && {_READ}",
    "released": f"echo release >{_DO} && {_READ}",
}
"""Key of the result -> the commands; only the last read of each counts."""


def steps() -> list[Step]:
    """Return the steps from loading the test module to its removal; the payload must be loaded."""
    phases = [Step(phase, command, timeout_s=_READ_TIMEOUT_S) for phase, command in PHASES.items()]
    return [Step("load the gate", f"insmod {_GATE}"), *phases, Step("remove the gate", "rmmod dma_gate")]


def files() -> Tree:
    """Return the guest files that the steps need."""
    return {_GATE: File(artifacts.module("pagetable", "tests/module", "dma_gate"))}


def disk(directory: Path) -> Path:
    """Make the disk that the test module expects."""
    path = directory / "pattern.img"
    path.write_bytes(_ON_DISK * runner.DISK_BYTES)
    return path


def outcome(transcript: Transcript, phase: str) -> str:
    """Return the outcome for the page in a phase."""
    return _one_of(transcript[phase], ("written", "blocked", "torn"))


def outcomes(transcript: Transcript) -> dict[str, str]:
    """Return the outcome of each phase."""
    return {phase: outcome(transcript, phase) for phase in PHASES}


def _one_of(result: StepResult, known: tuple[str, ...]) -> str:
    found = result.output.strip()
    if found not in known:
        raise LabError(f'step "{result.step.name}" printed {found!r}, not one of {", ".join(known)}')
    return found


@experiment(
    name="pagetable-dma",
    accelerator="pagetable",
    title="Device writes into semi-writable pages",
    reproduces="PiBooster, sections 2.2 and 3.3 (DMA validation)",
    minutes=1,
)
def pagetable_dma(context: Context) -> Result:
    """Let a real AHCI read write one page in each of its states."""
    # The payload alone: its guarantees must hold without our guest module, too.
    load_payload = pagetable.load_steps()[0]
    unload_payload = pagetable.unload_steps()[-1]
    transcript = context.run(
        "dma",
        MACHINE,
        [load_payload, *steps(), unload_payload],
        {**pagetable.files(), **files()},
        modules=MODULES,
        make_disk=disk,
    )
    found = outcomes(transcript)
    faults = {phase: transcript.counts(phase).faults for phase in PHASES}
    expected = {"normal": "written", "semi_writable": "blocked", "released": "written"}
    return Result(
        unit="outcome of a 4 KiB device write",
        method="AHCI read of a disk block into the page; every byte compared; faults from QEMU's VT-d trace",
        rows=[
            {"page": phase, "device_write": found[phase], "iommu_faults": faults[phase]} for phase in PHASES
        ],
        paper=[{"page": phase, "device_write": outcome} for phase, outcome in expected.items()],
        checks=[
            *(
                Check(phase, found[phase] == want, f"the device write was {found[phase]}, {want} expected")
                for phase, want in expected.items()
            ),
            Check(
                "reported",
                faults["semi_writable"] > 0 == faults["normal"] == faults["released"],
                f"the IOMMU reported {faults['semi_writable']} faults while the page was semi-writable, "
                f"{faults['normal']} before and {faults['released']} after",
            ),
        ],
        machine=machine_facts([MACHINE], host.versions()),
        keys=found,
        summary=[
            BeforeAfter(
                "device write into a page that waits to be a page table",
                found["normal"],
                f"{found['semi_writable']}, reported by the IOMMU {faults['semi_writable']:,} times",
                f"released again: {found['released']}",
            )
        ],
    )
