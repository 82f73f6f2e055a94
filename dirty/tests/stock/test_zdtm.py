# SPDX-License-Identifier: Apache-2.0 OR MIT
"""CRIU's own tests of memory under ``trapless criu`` on this kernel, after three pre-dumps each."""

import os
from pathlib import Path

import pytest

import criu
import zdtm

pytestmark = [
    pytest.mark.machine,
    pytest.mark.long("CRIU's source from the network, and a chain of four images for each of its tests"),
    pytest.mark.skipif(os.geteuid() != 0, reason="criu restores as root"),
]

PASS = (
    *("static/cow00", "static/cow01", "static/dumpable02", "static/file_shared"),
    *("static/maps00", "static/maps01", "static/maps02", "static/maps03", "static/maps04"),
    *("static/maps05", "static/maps06", "static/maps_file_prot", "static/mem-touch", "static/mprotect00"),
    *(
        "static/pthread00",
        "static/pthread01",
        "static/pthread_timers",
        "static/shmemfd",
        "static/shmemfd-priv",
    ),
    *(
        "static/sse00",
        "static/sse20",
        "static/thp_disable",
        "static/vdso00",
        "static/vdso01",
        "static/vdso02",
    ),
    *("transition/fork", "transition/fork2", "transition/lazy-thp", "transition/maps007"),
    *("transition/maps008", "transition/shmem", "transition/stack"),
)
# Why others of memory and threads are not run.
NOT_RUN = {
    "static/maps09": "wants huge pages of the host",
    "static/maps10": "wants huge pages of the host",
    "static/mlock_setuid": "becomes another user, whose limits criu may read with CAP_SYS_RESOURCE alone",
    "static/pthread02": "its first thread has ended, and criu then cannot detach; noauto in CRIU's own list",
    "static/shm": "CRIU runs it in namespaces alone: SysV memory must be in an IPC namespace that is dumped",
    "static/shm-mp": "as static/shm",
    "static/shm-unaligned": "as static/shm",
    "transition/rseq01": "wants a glibc that has not registered rseq itself",
    "transition/thread-bomb": "on two busy processors criu does not stop it in its 10 seconds",
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a criu that runs on this kernel."""
    return criu.program(tmp_path_factory.mktemp("criu"))


@pytest.mark.parametrize("name", PASS)
def test_memory_is_as_the_test_wrote_it(program: Path, tmp_path: Path, name: str) -> None:
    verdict = zdtm.Test(zdtm.source(), name, tmp_path).run(criu.trapless(tmp_path / "socket", program))
    print(
        f"{name}: {verdict.written} pages written after the first pre-dump, {verdict.skipped} left to parents"
    )
    assert verdict.passed, f"{verdict.failed}: {verdict.why}"
    assert verdict.skipped > 0, "nothing was tracked"


@pytest.mark.parametrize("mistake", ["hold-silent", "hold-forget"])
def test_a_holder_that_does_not_tell_is_caught(
    program: Path, tmp_path: Path, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIRTY_MUTANT", mistake)
    command = criu.trapless(tmp_path / "socket", program, mutant=True)
    verdict = zdtm.Test(zdtm.source(), "transition/maps007", tmp_path).run(command)
    print(verdict.failed, verdict.why)
    # The test maps memory anew all the time: criu itself finds that a page is in no image.
    assert not verdict.passed and "not found in parent" in verdict.why
