# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Whether a payload does as stock Xen, before a host has it: the image that it was built for is booted in
QEMU, and `trapless pagetable verify` judges the payload there.

Invariant: a payload passes only by the report of a verify that ran to its end and found nothing, in a machine
whose Xen and whose kernel complained of nothing meanwhile. What went wrong before verify began, or outside
the machine, says nothing of the payload: a ``NothingKnownError``. What went wrong inside after that, as when
the machine crashes or hangs, speaks against the payload.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__, host
from ..errors import LabError
from ..machines import runner
from ..machines.initramfs import File
from ..machines.machine import MACHINES
from ..machines.script import Step, StepResult
from ..machines.session import GuestError, KilledError
from ..machines.transcript import complaints
from ..progress import Progress
from .installed import SERVING, TABLE_TEST, modules, tool
from .parts import PAYLOAD_PART

# In guest seconds, which are instructions; the other in seconds of the host, twenty times what it takes.
_BUDGET_S = 30
_TIMEOUT_S = 1800.0
_LEAST_CALLS = 2000
# Said on the console before verify begins: Linux and Xen also complain while they boot.
_MARK = "trapless-lab: verify begins"
# Verify says it before it makes a call, or loads anything.
_FIRST_CALL = "verify: calls about page tables"


class NothingKnownError(LabError):
    """The payload was not judged."""


@dataclass(frozen=True)
class Verdict:
    """``wrong`` has what speaks against the payload, a line each; ``summary`` is what was compared."""

    summary: str
    wrong: tuple[str, ...]


class _Watched(Progress):
    """Passes progress on, and notes when the step begins in which verify runs."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self.begun = False

    def booting(self, machine: str, steps: int) -> None:
        self._shown.booting(machine, steps)

    def again(self, reason: str) -> None:
        self.begun = False
        self._shown.again(reason)

    def started(self, step: str) -> None:
        self.begun = True
        self._shown.started(step)

    def finished(self, step: str, seconds: float) -> None:
        self.begun = True  # it may have been too short to be seen
        self._shown.finished(step, seconds)


def take(
    image: Path,
    payload: Path,
    *,
    packages: Path = host.ROOT,
    seed: int = 1,
    progress: Progress | None = None,
    keep: Path | None = None,
) -> Verdict:
    """Boot ``image`` with a strict dom0 and verify ``payload`` there; ``seed`` is the first of the calls'.

    ``packages`` is the folder with the unpacked packages of this Xen, if its toolstack is not the host's.
    Raises ``NothingKnownError``.
    """
    watched = _Watched(progress or Progress())
    place = PAYLOAD_PART.guest_path
    verify = f"trapless pagetable verify --json --budget {_BUDGET_S} --seed {seed} --payload {place}"
    step = Step("verify", f"echo '<1>{_MARK}' >/dev/kmsg; {verify}", timeout_s=_TIMEOUT_S, expect=None)
    try:
        machine = MACHINES["xen-strict"].with_xen(packages).with_image(image).with_icount()
        files = {**tool(), **modules({**SERVING, TABLE_TEST: "table_test"}), place: File(payload)}
        transcript = runner.run(machine, [step], files=files, progress=watched, work_dir=keep)
    except Exception as error:
        # A file of the host may be damaged in any way.
        if watched.begun and isinstance(error, GuestError) and not isinstance(error, KilledError):
            return Verdict("", (f"verify did not end: {error}",))
        why = str(error) if isinstance(error, LabError | OSError) else repr(error)
        raise NothingKnownError(why) from error
    after = transcript.console.rpartition(_MARK)[2]
    return judge(transcript[step.name], complaints(after))


def judge(result: StepResult, complained: list[str]) -> Verdict:
    """Return what the step said in which verify ran, and what Xen and the kernel complained of meanwhile."""
    report = _report(result.output)
    if report is None:
        said = " ".join(result.output.split()) or "nothing"
        why = f"verify gave no report, but ended with exit code {result.rc} and said: {said}"
        if _FIRST_CALL not in result.output and not complained:
            raise NothingKnownError(why)
        return Verdict("", (why, *complained))
    if report["version"] != __version__:
        raise NothingKnownError(
            f"the tool is of version {report['version']}, the lab of {__version__}: run make in the checkout"
        )
    tables = report["tables"]
    wrong = [*tables["difference"], *report["failures"], *complained]
    if report["verdict"] == "unfinished" and not tables["difference"] and not complained:
        raise NothingKnownError("; ".join(wrong) or "verify did not finish")
    if not wrong and not (result.rc == 0 and report["verified"]):
        wrong.append(f"verify ended with exit code {result.rc} and the verdict {report['verdict']}")
    if not wrong and tables["compared"] < _LEAST_CALLS:
        wrong.append(f"{tables['compared']:,} calls were compared, at least {_LEAST_CALLS:,} are wanted")
    summary = (
        f"{tables['compared']:,} calls about page tables answered as by stock Xen, "
        f"{tables['compared_interrupted']:,} of them also while timers interrupted them"
    )
    return Verdict(summary, tuple(wrong))


def _report(output: str) -> dict[str, Any] | None:
    """Return the last line that begins as a JSON object does."""
    lines = [line for line in output.splitlines() if line.startswith("{")]
    try:
        found: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        return None
    return found
