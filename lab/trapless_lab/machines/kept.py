# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A run whose logs were kept, to be taken in place of a new one.

Invariant: it is taken only if every step ended, and if the machine's description, its kernel, the version of
its emulator, the model of EPML, the steps and each byte of the guest's files are those of the run that is
wanted. What has a disk or other plugins is always run anew.
"""

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from .. import host
from ..plugins import plugin
from .initramfs import File, Tree
from .machine import Machine
from .qemu import Outputs
from .script import Step, StepLog

_NOTE = "whole.json"
_NONCE = "/nonce"  # the one file that no two runs have in common


def digest(machine: Machine, kernel: Path, steps: Sequence[Step], tree: Tree) -> str:
    """Return what stands for all that a run depends on."""
    described = repr((machine, sorted(host.versions().items()), list(steps)))
    sum_ = hashlib.sha256(described.encode())
    for path in (kernel, *([plugin.build("epml")] if machine.epml else [])):
        sum_.update(path.read_bytes())
    for name, entry in sorted(tree.items()):
        if name == _NONCE:
            continue
        content = entry.read() if isinstance(entry, File) else entry.target.encode()
        mode = entry.mode if isinstance(entry, File) else "link"
        sum_.update(f"{name} {mode} {len(content)}\n".encode())
        sum_.update(content)
    return sum_.hexdigest()


def note(directory: Path, state: str, log: StepLog) -> None:
    """Note that the logs in a folder are of a run that came to its end."""
    (directory / _NOTE).write_text(json.dumps({"digest": state, "nonce": log.nonce}) + "\n")


def forget(directory: Path) -> None:
    """Take back what was noted of a folder, whose logs are about to be written anew."""
    (directory / _NOTE).unlink(missing_ok=True)


def log(directory: Path, state: str, steps: Sequence[Step], outputs: Outputs) -> StepLog | None:
    """Return the log of steps in a folder; ``None`` if it is not of such a run, or not whole."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        noted = json.loads((directory / _NOTE).read_text())
        if noted["digest"] == state:
            found = StepLog(steps, noted["nonce"])
            found.feed(outputs.steps.read_bytes())
            if found.finished and outputs.console.exists() and outputs.trace.exists():
                return found
    return None
