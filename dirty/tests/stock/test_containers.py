# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Containers of Debian's runc and podman, checkpointed under ``trapless criu``: pre-dumps, a dump, a restore.

Both find the criu that they run (``criu swrk``) by its name, so they need to know nothing of trapless. They
have criu freeze the container's cgroup before criu seizes a process, and a frozen process cannot be given a
userfaultfd; so one that was not tracked before is dumped as a whole, each time.
"""

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import criu
from containers import KEPT, Container, Podman, Runc, until

pytestmark = [
    pytest.mark.machine,
    pytest.mark.long("container runtimes from the network; chains of criu itself are in make check"),
    pytest.mark.skipif(os.geteuid() != 0, reason="containers are made as root"),
    pytest.mark.parametrize("kind", [Runc, Podman]),
]

_NO_FIRST = "there is no first image, which leaves nothing to others"


def _started(kind: type[Container], folder: Path, *, mutant: bool = False) -> Iterator[Container]:
    made = kind(folder, criu.trapless(folder / "socket", criu.program(folder), mutant=mutant))
    try:
        if not made.start():
            pytest.skip(f"{kind.__name__} runs no container here")
        yield made
    finally:
        made.end()


@pytest.fixture
def container(kind: type[Container], tmp_path: Path) -> Iterator[Container]:
    """Return a running container. Skips the test where there can be none."""
    yield from _started(kind, tmp_path)


@pytest.fixture
def mistaken(kind: type[Container], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Container]:
    """Return one whose holder tells nothing."""
    monkeypatch.setenv("DIRTY_MUTANT", "hold-silent")
    yield from _started(kind, tmp_path, mutant=True)


def _bytes(images: Path | None) -> int:
    """Return the bytes of memory in images."""
    return sum(path.stat().st_size for path in images.glob("pages-*.img")) if images else -1


def _chain(container: Container) -> list[int]:
    """Return the bytes of memory in the images of pre-dumps and a dump, and restore the container."""
    sizes = []
    for number in range(container.before_last):
        sizes.append(_bytes(container.checkpoint(number)))
        time.sleep(0.5)
    before = int(container.inside("cat", "/dev/shm/count"))
    sizes.append(_bytes(container.checkpoint(container.before_last)))
    assert sizes[0] > KEPT, _NO_FIRST
    assert all(size > 0 for size in sizes)
    assert container.restore()
    container.inside("touch", "/dev/shm/ask")
    assert until(lambda: bool(_kept(container)))
    # Each number once, in order, from before the first image to after the restore.
    history = [int(number) for number in container.inside("cat", "/dev/shm/history").rstrip(",").split(",")]
    print(
        "it counted to", before, "before the dump, and to", history[-1], "after it; bytes of memory:", *sizes
    )
    assert history == list(range(1, history[-1] + 1)) and history[-1] > before
    assert _kept(container) == hashlib.md5(b"a" * KEPT + b"\n").hexdigest()
    return sizes


def _kept(container: Container) -> str:
    return container.inside("cat", "/dev/shm/kept").partition(" ")[0]


def test_one_is_restored_as_it_was(container: Container) -> None:
    _chain(container)


def test_one_that_is_tracked_is_dumped_in_increments(container: Container) -> None:
    assert container.track()
    sizes = _chain(container)
    assert all(size < KEPT / 4 for size in sizes[1:])


def test_a_holder_that_tells_nothing_is_caught(mistaken: Container) -> None:
    assert mistaken.track()
    with pytest.raises(AssertionError) as caught:
        _chain(mistaken)
    print(caught.value)
    assert _NO_FIRST not in str(caught.value)
