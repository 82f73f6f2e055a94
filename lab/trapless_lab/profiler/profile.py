# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Takes a profile: boots a machine with the plugin, and resolves the counted addresses to names.

Invariant: the number of instructions is compared with the guest's clock, an independent count; names come
from the same files that the machine booted.
"""

import gzip
import re
import shlex
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from .. import host
from ..errors import LabError
from ..experiment.experiment import Check
from ..experiment.workload import NS_PER_INSTRUCTION
from ..machines import qemu, runner
from ..machines.initramfs import File
from ..machines.machine import Machine
from ..machines.script import Step, StepResult
from ..machines.transcript import Transcript
from ..plugins import counts, plugin
from ..plugins.counts import Counts
from ..progress import Progress
from ..symbols import Area, Symbols
from . import binaries, kallsyms
from .attribution import Profile, adds_up, summarise

TOLERANCE = 0.01
"""How far the count may differ from the guest's clock: one of them also counts faults and its reading."""

_WORKLOAD = "workload"
_MODULES = Step(
    "where the modules are",
    "cd /sys/module && for m in *; do for s in $m/sections/.*text*; do "
    "[ -e $s ] && echo $m ${s##*/} $(cat $s); done; done; true",
)


@dataclass(frozen=True)
class Request:
    """What to profile: a command in a machine.

    ``before`` are the machine's first steps, which are not counted: they load something. ``files`` are the
    guest files for that.
    """

    machine: Machine
    workload: tuple[str, ...]
    before: Sequence[Step] = ()
    files: Mapping[str, File] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Read once: a build may replace them while the machine runs.
        read = {path: File(file.read(), file.mode) for path, file in self.files.items()}
        object.__setattr__(self, "files", read)

    @property
    def boosted(self) -> bool:
        """Whether something was loaded first."""
        return bool(self.before)

    @property
    def profiled_machine(self) -> Machine:
        """The machine to boot: with the deterministic clock, and the kernel at the address of its symbols."""
        return replace(self.machine.with_icount(), linux_args=(*self.machine.linux_args, kallsyms.NO_KASLR))

    @property
    def steps(self) -> list[Step]:
        """The machine's steps."""
        workload = Step(_WORKLOAD, f"profiled {shlex.join(self.workload)}", timeout_s=600)
        return [kallsyms.PLACE, *self.before, workload, _MODULES]


def take(request: Request, progress: Progress, keep: Path | None = None) -> Profile:
    """Run a workload under the profiler."""
    machine = request.machine
    if machine.cpus != 1:
        raise LabError(f"machine {machine.name} has {machine.cpus} CPUs; the profiler counts one")
    area = kallsyms.kernel(progress)
    with tempfile.TemporaryDirectory(prefix="trapless-profile-") as scratch:
        output = Path(scratch) / "counts"
        transcript = runner.run(
            request.profiled_machine,
            request.steps,
            files=request.files,
            progress=progress,
            work_dir=keep,
            plugins=[qemu.Plugin(plugin.build("profile"), output)],
        )
        with output.open() as lines:
            counted = counts.parse(lines)
    if warnings := transcript.kernel_warnings():
        raise LabError("the kernel complained:\n" + "\n".join(warnings))
    return resolved(request, transcript, counted, area)


def resolved(request: Request, transcript: Transcript, counted: Counts, kernel: Area) -> Profile:
    """Resolve a run's counts to names, and check them."""
    kallsyms.require(kernel, transcript[kallsyms.PLACE.name])
    areas = [kernel, *_modules(transcript[_MODULES.name], request.files)]
    if request.machine.xen:
        xen = hypervisor(request.machine.xen_root)
        areas += xen.around(_payload(request.files, xen, counted))
    profile = summarise(counted, Symbols(areas))
    profile.checks = (adds_up(profile), agrees(counted, intervals(transcript[_WORKLOAD])))
    return profile


def hypervisor(root: Path = host.ROOT) -> binaries.Hypervisor:
    """Return the Xen of a machine with its symbols."""
    xen = host.xen(root)
    found = binaries.hypervisor(host.file(xen.symbols, f"{xen.package}-dbg"))
    if found.build_id not in gzip.decompress(xen.image.read_bytes()):
        raise LabError(f"{xen.symbols} and {xen.image} are not of one build")
    return found


def _of_kind(files: Mapping[str, File], suffix: str) -> dict[str, bytes]:
    """Return the contents of the files with a suffix, by the rest of their names."""
    paths = (PurePosixPath(path) for path in files)
    return {path.stem: files[str(path)].read() for path in paths if path.suffix == suffix}


def _payload(files: Mapping[str, File], xen: binaries.Hypervisor, counted: Counts) -> Area | None:
    for content in _of_kind(files, ".livepatch").values():
        if placed := binaries.payload(content, xen.addresses).placed(counted.jumps):
            return placed
    return None


def _modules(shown: StepResult, files: Mapping[str, File]) -> list[Area]:
    sections: dict[str, dict[str, int]] = {}
    for module, section, address in re.findall(r"^(\S+) (\S+) 0x([0-9a-f]+)$", shown.output, re.MULTILINE):
        sections.setdefault(module, {})[section] = int(address, 16)
    ours = _of_kind(files, ".ko")
    kernel = host.kernel()
    areas = []
    for module, where in sections.items():
        content = ours.get(module) or host.module_content(host.module_files(kernel, module)[-1])
        areas += binaries.module(module, content, where)
    return areas


def intervals(result: StepResult) -> list[int]:
    """Return the nanoseconds of each interval on the guest's clock.

    A workload with markers of its own says so; the rest is not counted then.
    """
    found: dict[str, list[int]] = {"profiled": [], "around": []}
    for record, ns in re.findall(r"^(profiled|around) ns=(\d+)$", result.output, re.MULTILINE):
        found[record].append(int(ns))
    if not found["around"]:
        raise LabError(f"the profiled command did not end:\n{result.output}")
    return found["profiled"] or found["around"]


def agrees(counted: Counts, clock_ns: Iterable[int]) -> Check:
    """Compare a count with the guest's clock over the same intervals."""
    times = list(clock_ns)
    expected = sum(times) // NS_PER_INSTRUCTION
    difference = abs(counted.total - expected)
    holds = counted.intervals == len(times) and difference <= TOLERANCE * expected
    text = (
        f"counted {counted.total:,}, by the clock {expected:,}; intervals: {counted.intervals}, {len(times)}"
    )
    # The clock advances while a CPU waits for a timer or a disk.
    return Check("agrees with the clock", holds, text if holds else f"{text}; did the CPU idle?")
