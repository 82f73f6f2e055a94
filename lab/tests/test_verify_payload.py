# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a payload's verification in a machine comes to, and the command's exit code. Nothing is booted:
pagetable/tests/machine/test_payload_verdicts.py does that.
"""

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from trapless_lab import __version__, artifacts, cli, host
from trapless_lab.errors import LabError
from trapless_lab.machines import initramfs, runner
from trapless_lab.machines.initramfs import Tree
from trapless_lab.machines.machine import Machine
from trapless_lab.machines.script import Step, StepResult
from trapless_lab.machines.session import GuestError, KilledError
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable import installed, verify_payload
from trapless_lab.progress import Progress

PASSING: dict[str, Any] = {
    "version": __version__,
    "verified": True,
    "verdict": "verified",
    "failures": [],
    "turns": 3,
    "tables": {"calls": 9000, "compared": 9000, "compared_interrupted": 8000, "difference": []},
}
TABLES: dict[str, Any] = PASSING["tables"]
DIFFERENT = {
    **PASSING,
    "verified": False,
    "verdict": "wrong",
    "failures": ["page tables are not validated as by stock Xen"],
    "tables": {**TABLES, "compared": 5, "difference": ["expected: call 5: rc 0", "got     : call 5: rc 1"]},
}
UNFINISHED = {
    **PASSING,
    "verified": False,
    "verdict": "unfinished",
    "failures": ["on the stock host: no fork"],
}
BEGUN = "verify: calls about page tables, on stock Xen and with the payload\n"
MARK = "[   20.1] trapless-lab: verify begins\n"
COMPLAINT = "(XEN) Xen BUG at mm.c:1"

Verify = Callable[..., Result]


@dataclass
class Machines:
    """What the next machine does in place of booting, and what it was given."""

    said: bytes = b""
    rc: int = 0
    console: str = MARK
    before: Exception | None = None
    during: Exception | None = None
    after: Exception | None = None
    files: Tree = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    kept: Path | None = None
    booted: list[Machine] = field(default_factory=list)

    def run(
        self, machine: Machine, steps: list[Step], *, files: Tree, progress: Progress, work_dir: Path | None
    ) -> Transcript:
        self.booted.append(machine)
        self.files, self.steps, self.kept = files, steps, work_dir
        progress.booting(machine.name, len(steps))
        if self.before:
            raise self.before
        if self.after:  # a step so short that nobody saw it run
            progress.finished(steps[0].name, 0.1)
            raise self.after
        progress.started(steps[0].name)
        if self.during:
            raise self.during
        return Transcript(machine, (StepResult(steps[0], self.said, self.rc, 1.0),), (), self.console)

    def reports(self, report: dict[str, Any], rc: int) -> None:
        self.said, self.rc = f"{BEGUN}{json.dumps(report)}\n".encode(), rc


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Machines:
    made = Machines()
    monkeypatch.setattr(runner, "run", made.run)
    monkeypatch.setattr(verify_payload, "tool", dict)
    monkeypatch.setattr(
        verify_payload, "modules", lambda wanted: dict.fromkeys(wanted, initramfs.Link("module"))
    )
    return made


@pytest.fixture
def verify(tmp_path: Path) -> Verify:
    """The command, with an image and a payload."""
    image, payload = tmp_path / "xen-4.17-amd64.gz", tmp_path / "payload"
    image.write_bytes(gzip.compress(b"xen"))
    payload.write_bytes(b"payload")

    def run(*options: str) -> Result:
        return CliRunner().invoke(cli.main, ["verify-payload", str(image), str(payload), *options])

    return run


# -- a verify that ended --------------------------------------------------------------------------


def test_a_verify_that_found_nothing_is_a_pass(machines: Machines, verify: Verify, tmp_path: Path) -> None:
    machines.reports(PASSING, 0)
    ran = verify("--seed", "7", "--packages", str(tmp_path), "--keep", str(tmp_path / "kept"))
    assert ran.exit_code == 0
    assert ran.stdout == (
        "passed: 9,000 calls about page tables answered as by stock Xen, 8,000 of them also while timers "
        "interrupted them\n"
    )
    (machine,) = machines.booted
    assert machine.iommu == "strict" and machine.icount and machine.image == tmp_path / "xen-4.17-amd64.gz"
    assert machine.xen_root == tmp_path and machines.kept == tmp_path / "kept"
    (step,) = machines.steps
    arguments = step.command.partition("; trapless pagetable verify ")[2].split()
    assert arguments[arguments.index("--seed") + 1] == "7" and "--json" in arguments
    payload = machines.files[arguments[arguments.index("--payload") + 1]]
    assert isinstance(payload, initramfs.File) and payload.read() == b"payload"
    assert {"trapless_pagetable", "trapless_pvmmu", "trapless_table_test"} < machines.files.keys()


def test_a_difference_is_shown_and_not_passed(machines: Machines, verify: Verify) -> None:
    machines.reports(DIFFERENT, 1)
    ran = verify()
    assert ran.exit_code == 1
    assert ran.stdout.splitlines()[:-1] == [
        "WRONG: expected: call 5: rc 0",
        "WRONG: got     : call 5: rc 1",
        "WRONG: page tables are not validated as by stock Xen",
    ]
    assert ran.stdout.splitlines()[-1].startswith("not passed: ")


@pytest.mark.parametrize(
    ("report", "rc", "why"),
    [
        (PASSING, 1, "verify ended with exit code 1 and the verdict verified"),
        ({**PASSING, "verified": False}, 0, "verify ended with exit code 0 and the verdict verified"),
        ({**PASSING, "failures": ["Xen complained"]}, 0, "Xen complained"),
        ({**PASSING, "tables": {**TABLES, "difference": ["a difference"]}}, 0, "a difference"),
        ({**UNFINISHED, "tables": {**TABLES, "difference": ["a difference"]}}, 1, "a difference"),
        ({**PASSING, "tables": {**TABLES, "compared": 1999}}, 0, "1,999 calls were compared, at least 2,000"),
    ],
)
def test_all_of_it_has_to_hold(
    machines: Machines, verify: Verify, report: dict[str, Any], rc: int, why: str
) -> None:
    machines.reports(report, rc)
    ran = verify()
    assert ran.exit_code == 1 and f"WRONG: {why}" in ran.stdout and "\npassed" not in f"\n{ran.stdout}"


def test_only_what_is_complained_of_meanwhile_speaks_against_the_payload(
    machines: Machines, verify: Verify
) -> None:
    machines.reports(PASSING, 0)
    machines.console = f"{COMPLAINT}\n{MARK}all is well\n"
    assert verify().exit_code == 0
    machines.console = f"{MARK}{COMPLAINT}\n"
    ran = verify()
    assert ran.exit_code == 1 and f"WRONG: {COMPLAINT}" in ran.stdout
    machines.console = f"{COMPLAINT}\nno mark\n"
    assert verify().exit_code == 1


def test_what_crashed_after_its_first_call_speaks_against_the_payload(
    machines: Machines, verify: Verify
) -> None:
    machines.said, machines.rc = f"{BEGUN}Segmentation fault\n".encode(), 139
    ran = verify()
    assert ran.exit_code == 1 and "verify gave no report, but ended with exit code 139" in ran.stdout


@pytest.mark.parametrize(
    "said", [b"", b"refused, and nothing was changed:\n  no payload\n", b'{"half of it', b"\xff\xfe{}"]
)
def test_what_ended_before_its_first_call_judged_nothing(
    machines: Machines, verify: Verify, said: bytes
) -> None:
    machines.said, machines.rc = said, 1
    ran = verify()
    assert ran.exit_code == 3 and "nothing was judged: verify gave no report" in ran.stderr
    if b"refused" in said:
        assert "refused, and nothing was changed: no payload" in ran.stderr
    # If Xen complained it is another matter.
    machines.console += COMPLAINT
    assert verify().exit_code == 1


def test_an_unfinished_verify_judged_nothing(machines: Machines, verify: Verify) -> None:
    machines.reports(UNFINISHED, 1)
    ran = verify()
    assert ran.exit_code == 3 and "nothing was judged: on the stock host: no fork" in ran.stderr


def test_a_tool_of_another_version_judged_nothing(machines: Machines, verify: Verify) -> None:
    """As in a checkout that was updated and not built."""
    machines.reports({**PASSING, "version": "0.0.1"}, 0)
    ran = verify()
    assert ran.exit_code == 3 and "the tool is of version 0.0.1" in ran.stderr


# -- a machine that did not end -------------------------------------------------------------------


@pytest.mark.parametrize("when", ["during", "after"])
def test_a_machine_that_fails_once_verify_has_begun_speaks_against_the_payload(
    machines: Machines, verify: Verify, when: str
) -> None:
    setattr(machines, when, GuestError("it crashed"))
    ran = verify()
    assert ran.exit_code == 1 and "WRONG: verify did not end: it crashed" in ran.stdout


@pytest.mark.parametrize(
    "error",
    [KilledError("exit code -9"), OSError(28, "No space left", "/tmp/trace"), IndexError("a defect")],
)
@pytest.mark.parametrize("when", ["before", "during"])
def test_what_fails_outside_the_machine_says_nothing_of_the_payload(
    machines: Machines, verify: Verify, error: Exception, when: str
) -> None:
    setattr(machines, when, error)
    ran = verify()
    assert ran.exit_code == 3 and ran.stdout == ""
    assert ran.stderr.splitlines()[-1].startswith("Error: nothing was judged: ") and str(error) in ran.stderr


@pytest.mark.parametrize("error", [GuestError("it hangs"), LabError("no QEMU")])
def test_a_machine_that_does_not_boot_says_nothing_of_the_payload(
    machines: Machines, verify: Verify, error: Exception
) -> None:
    machines.before = error
    ran = verify()
    assert ran.exit_code == 3 and f"Error: nothing was judged: {error}" in ran.stderr


# -- what it is given -----------------------------------------------------------------------------


def test_modules_of_another_kernel_judge_nothing(
    machines: Machines, verify: Verify, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As after an upgrade of the kernel. A machine would refuse them, which is not the payload's fault."""
    release = host.kernel().release
    monkeypatch.setattr(verify_payload, "modules", installed.modules)
    monkeypatch.setattr(artifacts, "module", lambda _system, part, _name: tmp_path / part)
    monkeypatch.setattr(host, "module_release", lambda path: release if path.name == "pool" else "6.1.0-1")
    ran = verify()
    assert ran.exit_code == 3 and not machines.booted
    assert f"{tmp_path}/pvmmu is for Linux 6.1.0-1, not for {release}: run make -C pagetable" in ran.stderr


def test_a_module_says_which_kernel_it_is_for() -> None:
    kernel = host.kernel()
    (module, *_) = host.module_files(kernel, "dummy")
    assert host.module_release(module) == kernel.release


@pytest.mark.parametrize("options", [["--seed", "-1"], ["--seed", "2147483648"], ["--packages", "/nowhere"]])
def test_wrong_use(machines: Machines, verify: Verify, options: list[str]) -> None:
    assert verify(*options).exit_code == 2 and not machines.booted


@pytest.mark.parametrize("content", [b"\x7fELF", gzip.compress(b"xen" * 99, mtime=0)[:-9]])
def test_an_image_that_is_none_is_named(tmp_path: Path, content: bytes) -> None:
    image = tmp_path / "xen.gz"
    image.write_bytes(content)
    with pytest.raises(LabError, match=r"xen\.gz is not a gzip file"):
        host.unpack_xen(tmp_path, image)


@pytest.mark.parametrize(
    ("image", "version"),
    [("xen-4.17-amd64.gz", "4.17"), ("xen-4.20-amd64.efi", "4.20"), ("own.gz", "4.20"), (None, "4.20")],
)
def test_the_toolstack_is_of_the_images_release(tmp_path: Path, image: str | None, version: str) -> None:
    """Of a host that has two, as after an upgrade of the distribution."""
    (tmp_path / "boot").mkdir()
    for release in ("4.17", "4.20"):
        (tmp_path / f"boot/xen-{release}-amd64.gz").touch()
    assert host.xen_of(Path(image) if image else None, tmp_path) == host.Xen(version, tmp_path)
