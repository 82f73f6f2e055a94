# SPDX-License-Identifier: Apache-2.0 OR MIT
"""CRIU's own tests ("zdtm") of memory, each through three pre-dumps, a dump and a restore.

What its ``zdtm.py run --flavor h --pre 3`` does, for a criu under ``trapless criu``. That program wants more
of criu built than the tests do. The tests are CRIU's and unchanged, and so is the verdict: each knows what it
wrote, and says PASS when it is asked to end.

Unlike there, tests stay root: the limits of another user's process are read with CAP_SYS_RESOURCE, which
containers do not have.
"""

import ast
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packages import run, upstream
from trapless_lab import artifacts

PRE_DUMPS = 3
PAUSE = 0.2  # seconds that a test runs before each of them
LASTS = 120.0
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Verdict:
    """What came of a test: ``failed`` names the step that did, and ``why`` what it printed."""

    failed: str
    why: str
    written: int = 0
    skipped: int = 0

    @property
    def passed(self) -> bool:
        """Whether memory was restored as the test had written it."""
        return not self.failed


def source() -> Path:
    """Return CRIU's source with what all its tests need built."""
    tree = artifacts.build_dir() / "dirty" / "zdtm"
    if not tree.exists():
        fresh = tree.with_name("zdtm.fresh")
        shutil.rmtree(fresh, ignore_errors=True)
        run("cp", "-a", upstream("criu", "trixie"), fresh)
        run("make", "-C", fresh / "test/zdtm/lib")
        fresh.rename(tree)  # all of it, or nothing
    return tree


def _adopt() -> None:
    """Become the parent of what tests leave behind: a pid can be restored when its process is reaped."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _reap(group: int) -> None:
    """Wait for all of a process group that is ours."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-group, 0)


class Test:
    """One of CRIU's tests, with a folder for what it writes."""

    def __init__(self, tree: Path, name: str, folder: Path) -> None:
        self.kind, self.name = name.split("/")
        self.sources, self.folder = tree / "test/zdtm" / self.kind, folder
        description = (self.sources / f"{self.name}.desc").resolve()
        text = description.read_text() if description.exists() else "{}"
        self.description: Mapping[str, str] = ast.literal_eval(text)

    def refusal(self) -> str:
        """Return why it cannot be run on the host itself, in CRIU's own words; empty if it can."""
        flavors = self.description.get("flavor", "h ns uns")
        if "h" not in flavors.split():
            return f"for the flavours {flavors} alone"
        flags = set(self.description.get("flags", "").split()) - {"suid", "nolazy", "noauto", "crlib"}
        wanted = {key for key in ("feature", "deps", "arch") if key in self.description}
        return ", ".join(sorted(flags | wanted))

    def _make(self, target: str) -> subprocess.CompletedProcess[str]:
        # In its own session, and without descriptors of ours, as it is to be dumped.
        with (self.folder / "make.log").open("a") as log:
            return subprocess.run(
                ["make", "-C", self.sources, target],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
                timeout=LASTS,
                check=False,
                start_new_session=True,
            )

    def _criu(self, criu: Sequence[str | Path], action: str, number: int, *more: str) -> str:
        """Run criu, for the images of a number. Return what it says if it fails."""
        images = self.folder / str(number)
        images.mkdir(exist_ok=True)
        options = self.description.get("opts", "").split()
        options += self.description.get("ropts" if action == "restore" else "dopts", "").split()
        line = [*criu, action, "-D", images, "-v4", "-o", f"{action}.log", "--display-stats", *options, *more]
        with (self.folder / f"{number}.{action}").open("w+") as out:
            done = subprocess.run(
                line, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=LASTS, check=False
            )
            out.seek(0)
            said = out.read()
        if done.returncode == 0:
            return ""
        log = images / f"{action}.log"
        errors = log.read_text(errors="replace") if log.exists() else ""
        return said + "".join(line for line in errors.splitlines(keepends=True) if "Error" in line)

    def _count(self, what: str) -> int:
        """Return the sum of what criu counted in all steps but the first, which has no parent."""
        total = 0
        for number in range(1, PRE_DUMPS + 1):
            path = self.folder / f"{number}.{'dump' if number == PRE_DUMPS else 'pre-dump'}"
            lines = path.read_text(errors="replace").splitlines() if path.exists() else []
            total += sum(int(line.split(":")[1].split()[0]) for line in lines if what in line)
        return total

    def run(self, criu: Sequence[str | Path]) -> Verdict:
        """Run it under criu."""
        pid_file, out = self.sources / f"{self.name}.pid", self.sources / f"{self.name}.out"
        for path in (pid_file, out, out.with_suffix(".out.inprogress")):
            path.unlink(missing_ok=True)
        if self._make(self.name).returncode:
            return Verdict("build", (self.folder / "make.log").read_text())
        _adopt()
        if self._make(pid_file.name).returncode:
            return Verdict("start", (self.folder / "make.log").read_text())
        pid = int(pid_file.read_text())
        group = os.getpgid(pid)
        try:
            return self._through(criu, pid, group, out)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
            _reap(group)

    def _through(self, criu: Sequence[str | Path], pid: int, group: int, out: Path) -> Verdict:
        for number in range(PRE_DUMPS + 1):
            time.sleep(PAUSE)
            action = "dump" if number == PRE_DUMPS else "pre-dump"
            more = ("--prev-images-dir", f"../{number - 1}") if number else ()
            if said := self._criu(criu, action, number, "-t", str(pid), "--track-mem", *more):
                return Verdict(f"{action} {number}", said)
        _reap(group)
        counts = self._count("Memory pages written"), self._count("Memory pages skipped from parent")
        if said := self._criu(criu, "restore", PRE_DUMPS, "--restore-detached"):
            return Verdict("restore", said, *counts)
        os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + 30
        while not out.exists() and time.monotonic() < until:
            time.sleep(0.05)
        said = out.read_text(errors="replace") if out.exists() else "it does not end"
        return Verdict("" if "PASS" in said else "verdict", said[-2000:], *counts)
