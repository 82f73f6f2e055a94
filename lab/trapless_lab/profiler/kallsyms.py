# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The kernel's own symbols: Debian ships no System.map, so they are read from a running kernel and cached.

Invariant: cached symbols belong to one kernel image, by its digest, booted without KASLR; a machine with its
kernel at another address is refused.
"""

import gzip
import hashlib
import re
from dataclasses import replace
from pathlib import Path

from .. import artifacts, compiler, host
from ..errors import LabError
from ..machines import runner
from ..machines.machine import MACHINES
from ..machines.script import Step, StepResult
from ..progress import Progress
from ..symbols import Area

NO_KASLR = "nokaslr"

_LINE = re.compile(r"^([0-9a-f]{16}) [tTwW] (\S+)$", re.MULTILINE)
# Only the kernel's own code: the lines of modules, BPF programs and trampolines have brackets.
_TAKE = Step("kernel symbols", r"grep ' [tTwW] ' /proc/kallsyms | grep -v '\[' | gzip", timeout_s=300)
# The page in which the last symbol begins belongs to the kernel.
_PAGE = 4096

PLACE = Step("where the kernel is", "grep -m 1 ' _text$' /proc/kallsyms")
"""A step for every machine whose addresses are looked up."""


def kernel(progress: Progress) -> Area:
    """Return the code of the installed kernel; the first time, a machine is booted for it."""
    found = host.kernel()
    digest = hashlib.sha256(found.image.read_bytes()).hexdigest()[:16]
    kept = artifacts.build_dir() / "lab" / "kallsyms" / f"{found.release}-{digest}.gz"
    if not kept.exists():
        _keep(kept, progress)
    return parse(gzip.decompress(kept.read_bytes()).decode())


def _keep(kept: Path, progress: Progress) -> None:
    machine = replace(MACHINES["bare"], name="bare (for the kernel's symbols)", linux_args=(NO_KASLR,))
    transcript = runner.run(machine, [_TAKE], progress=progress)
    parse(gzip.decompress(transcript[_TAKE.name].raw).decode())
    kept.parent.mkdir(parents=True, exist_ok=True)
    fresh = compiler.unique(kept)
    fresh.write_bytes(transcript[_TAKE.name].raw)
    fresh.replace(kept)


def parse(lines: str) -> Area:
    """Read the lines of /proc/kallsyms that name code of the kernel itself."""
    named = tuple((int(address, 16), name) for address, name in _LINE.findall(lines))
    text = [address for address, name in named if name == "_text"]
    if len(text) != 1 or not text[0]:
        raise LabError("/proc/kallsyms does not say where the kernel begins")
    return Area("kernel", text[0], max(address for address, _ in named) // _PAGE * _PAGE + _PAGE, named)


def require(area: Area, place: StepResult) -> None:
    """Refuse a machine whose kernel is not at the address of ``area``."""
    found = re.match(r"([0-9a-f]{16}) ", place.output)
    if found is None or int(found[1], 16) != area.first:
        raise LabError(
            f"the kernel is not at {area.first:#x}, where its symbols were taken: {place.output.strip()}"
        )
