# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Stock criu under ``trapless criu``, asked by RPC, as container engines ask it; and with a frozen cgroup.

The client is pycriu, of criu's own authors (criu_rpc.py). The chains are those of test_criu.py.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import criu
from trapless_lab.dirty.criu import Outcome

PYTHON = Path("/usr/bin/python3")  # Debian's, which has pycriu
CLIENT = Path(__file__).with_name("criu_rpc.py")
TREE = "dirtychurn file 60 2"


def _has_pycriu() -> bool:
    return subprocess.run([PYTHON, "-c", "import pycriu"], capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(os.geteuid() != 0, reason="criu restores as root"),
    pytest.mark.long("the same chain, asked for in another way"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a criu that runs on this kernel."""
    return criu.working(tmp_path_factory.mktemp("criu"))


def _wrapped(folder: Path, program: Path) -> Path:
    """Return `trapless criu` as one program, which is what a client of criu asks for."""
    script = folder / "trapless-criu"
    words = " ".join(map(str, criu.trapless(folder / "socket", program)))
    script.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    script.chmod(0o755)
    return script


def _holds(outcome: Outcome) -> None:
    print(outcome.text)
    assert outcome.status == 0 and outcome.pages > 5000 and outcome.wrong == 0, outcome.text
    for step in ("two", "three"):
        assert outcome.skipped(step) > 1000 and outcome.written(step) > 200, outcome.text


@pytest.mark.skipif(not _has_pycriu(), reason="Debian's Python has no pycriu (package criu)")
def test_a_worker_a_request(program: Path, tmp_path: Path) -> None:
    """`criu swrk`."""
    command: list[str | Path] = [PYTHON, CLIENT, "swrk", _wrapped(tmp_path, program)]
    _holds(criu.chain(tmp_path, command, TREE))


@contextmanager
def _service(wrapped: Path, address: Path) -> Iterator[None]:
    with subprocess.Popen([wrapped, "service", "--address", address], stdout=subprocess.DEVNULL) as service:
        try:
            end = time.monotonic() + 20
            while not address.exists():
                assert time.monotonic() < end and service.poll() is None, "criu service did not start"
                time.sleep(0.05)
            yield
        finally:
            service.terminate()


@pytest.mark.skipif(not _has_pycriu(), reason="Debian's Python has no pycriu (package criu)")
def test_a_service(program: Path, tmp_path: Path) -> None:
    """`criu service`: one that goes on, with a child for each request."""
    wrapped, address = _wrapped(tmp_path, program), tmp_path / "service"
    with _service(wrapped, address):
        _holds(criu.chain(tmp_path, [PYTHON, CLIENT, address, wrapped], TREE))


def _group() -> Path:
    """Make a cgroup that can be frozen, where this host has them mounted: of version 1 or 2."""
    folders = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/freezer"), Path("/sys/fs/cgroup/unified")
    for folder in folders:
        if not (folder / "cgroup.procs").exists():
            continue
        group = folder / f"trapless-test-{os.getpid()}"
        group.mkdir()
        if any((group / name).exists() for name in ("freezer.state", "cgroup.freeze")):
            return group
        group.rmdir()
    pytest.skip("no cgroup can be frozen here")


def _remove(group: Path) -> None:
    """Remove a cgroup, once its processes are gone; they were killed."""
    end = time.monotonic() + 20
    while (group / "cgroup.procs").read_text() and time.monotonic() < end:
        time.sleep(0.05)
    group.rmdir()


def test_a_frozen_cgroup(program: Path, tmp_path: Path) -> None:
    """`--freeze-cgroup`, as runc and podman call it: no process can be attached to any more."""
    group, join = _group(), tmp_path / "join"
    join.write_text(f"#!/bin/sh\necho $$ >{group}/cgroup.procs\nexec {TREE}\n")
    join.chmod(0o755)
    command, frozen = criu.trapless(tmp_path / "socket", program), {"DUMP": f"--freeze-cgroup {group}"}
    try:
        _holds(criu.chain(tmp_path, command, str(join), environment=frozen))
    finally:
        _remove(group)
