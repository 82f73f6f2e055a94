# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The Python package against memory itself, against the C header, and against its own documents."""

import ctypes
import errno
import mmap
import os
import re
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[1]
ROOT = HERE.parents[1]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "build/rust"))
os.environ.setdefault("LIBDIRTY_LIBRARY", str(TARGET / "release/libdirty.so"))

import libdirty  # noqa: E402
from libdirty import _library  # noqa: E402

PAGE = mmap.PAGESIZE
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
HEADER = (HERE / "libdirty/dirty.h").read_text()
# What of the header is not called, and why.
NOT_CALLED = {"dirty_discard": "collect() leaves nothing unread"}

WRITER = """
import ctypes, mmap, sys
memory = mmap.mmap(-1, 64 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory[:] = b"a" * len(memory)
print(ctypes.addressof(ctypes.c_char.from_buffer(memory)), flush=True)
for line in sys.stdin:
    word, page = line.split()
    if word == "write":
        memory[int(page) * mmap.PAGESIZE] ^= 1
    else:
        memory.madvise(mmap.MADV_DONTNEED, int(page) * mmap.PAGESIZE, mmap.PAGESIZE)
    print("done", flush=True)
"""


class Writer:
    """A process that writes and discards pages when it is told to."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid
        self.start = int(self.answer())
        self.length = 64 * PAGE

    def answer(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()

    def do(self, what: str, *pages: int) -> None:
        assert self.process.stdin
        for page in pages:
            print(what, page, file=self.process.stdin, flush=True)
            assert self.answer() == "done\n"

    def content(self) -> bytes:
        with Path(f"/proc/{self.pid}/mem").open("rb", buffering=0) as memory:
            memory.seek(self.start)
            return memory.read(self.length)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            pipe.close()


@pytest.fixture
def writer() -> Iterator[Writer]:
    writer = Writer()
    yield writer
    writer.end()


@pytest.fixture
def memory() -> Iterator[mmap.mmap]:
    with mmap.mmap(-1, 64 * PAGE, flags=PRIVATE) as memory:
        memory[:] = b"a" * len(memory)
        yield memory


BACKENDS = [found.backend for found in libdirty.survey() if found.rejected is None]


def update(copy: bytearray, now: bytes, start: int, extents: list[libdirty.Extent]) -> None:
    """Bring a copy up to date, as the README says."""
    for one in extents:
        first, end = max(one.start - start, 0), min(one.end - start, len(copy))
        if first < end:
            copy[first:end] = now[first:end] if one.is_content else bytes(end - first)


@pytest.mark.parametrize("backend", BACKENDS)
def test_own_memory(memory: mmap.mmap, backend: str) -> None:
    start, length = libdirty.pages_of(memory)
    with libdirty.track(watch=[(start, length)], backend=backend) as tracker:
        assert tracker.backend == backend
        copy = bytearray(memory)
        for rounds in range(3):
            for page in range(rounds, 64, 7):
                memory[page * PAGE] += 1
            update(copy, memory[:], start, tracker.collect())
            assert copy == memory[:]
        memory.madvise(mmap.MADV_DONTNEED, 8 * PAGE, PAGE)
        update(copy, memory[:], start, tracker.collect())
        assert copy == memory[:] and copy[8 * PAGE] == 0


@pytest.mark.parametrize("backend", [name for name in BACKENDS if libdirty.capabilities(name).other_process])
def test_another_process(writer: Writer, backend: str) -> None:
    with libdirty.track(writer.pid, backend=backend) as tracker:
        tracker.collect()  # of memory that was just watched: empty pages are reported
        copy = bytearray(writer.content())
        for rounds in range(3):
            writer.do("write", *range(rounds, 64, 9))
            writer.do("discard", 60 - rounds)
            update(copy, writer.content(), writer.start, tracker.collect())
            assert copy == writer.content()
        writer.end()
        assert {one.reason for one in tracker.collect()} == {libdirty.Reason.EXITED}
        with pytest.raises(libdirty.NoProcess, match=f"process {writer.pid} has ended"):
            tracker.collect()


def test_an_extent_that_is_left_out_is_seen(memory: mmap.mmap) -> None:
    """The control: the comparison above fails for each extent that does not come."""
    start, length = libdirty.pages_of(memory)
    with libdirty.track(watch=[(start, length)]) as tracker:
        before = bytearray(memory)
        for page in (3, 20, 41):
            memory[page * PAGE] += 1
        extents = tracker.collect()
    assert len(extents) == 3
    for left_out in extents:
        copy = bytearray(before)
        update(copy, memory[:], start, [one for one in extents if one is not left_out])
        assert copy != memory[:]


def test_what_is_reported(writer: Writer) -> None:
    with libdirty.track(writer.pid, watch=[(writer.start, writer.length)]) as tracker:
        assert tracker.collect() == []
        writer.do("write", 2, 3, 9)
        first, second = tracker.collect()
        assert first == (writer.start + 2 * PAGE, writer.start + 4 * PAGE, libdirty.Reason.WRITTEN)
        assert (second.length, second.is_content, second.is_zero) == (PAGE, True, False)
        assert not first.reason.is_doubt and first.reason.text == "written"
        tracker.unwatch(writer.start, 8 * PAGE)
        writer.do("write", 2, 9)
        assert [one.start for one in tracker.collect()] == [writer.start + 9 * PAGE]
        tracker.watch(writer.start, PAGE)
        writer.do("write", 0, 1)
        assert [one.start for one in tracker.collect()] == [writer.start]


def test_many_extents() -> None:
    with mmap.mmap(-1, 20_000 * PAGE) as large:
        large[:] = b"a" * len(large)
        with libdirty.track(watch=[libdirty.pages_of(large)]) as tracker:
            for page in range(0, 20_000, 2):
                large[page * PAGE] = 1
            assert len(tracker.collect()) == 10_000


def test_errors_say_what_and_why(writer: Writer, memory: mmap.mmap) -> None:
    start, length = libdirty.pages_of(memory)
    with pytest.raises(libdirty.BadRange, match="bogus") as bad:
        libdirty.track(backend="bogus")
    assert isinstance(bad.value, ValueError) and bad.value.errno == errno.EINVAL
    with pytest.raises(ValueError, match="zero"):
        libdirty.track(backend="auto\0")
    with pytest.raises(libdirty.Unsupported, match="mprotect: "):
        libdirty.track(writer.pid, backend="mprotect")
    with pytest.raises(ValueError, match="0 is no process"):
        libdirty.track(0)
    with pytest.raises(ValueError, match="for uffd-async, not for mprotect"):
        libdirty.track(userfaultfd=3, backend="mprotect")
    with Path(os.devnull).open() as other, pytest.raises(libdirty.Unsupported, match="userfaultfd"):
        libdirty.track(userfaultfd=other.fileno())
    with libdirty.track(watch=[(start, length)]) as tracker:
        for wrong in ((start + 1, PAGE), (start, 0), (-PAGE, PAGE), (start, 1 << 64)):
            with pytest.raises(libdirty.BadRange):
                tracker.watch(*wrong)
        with pytest.raises(libdirty.Error, match="watched already") as overlap:
            tracker.watch(start, PAGE)
        assert overlap.value.errno == errno.EEXIST
        with pytest.raises(libdirty.Error, match="not watched"):
            tracker.unwatch(start + length, PAGE)
    writer.end()
    with pytest.raises(ProcessLookupError, match=f"process {writer.pid}") as gone:
        libdirty.track(writer.pid)
    assert isinstance(gone.value, libdirty.NoProcess)


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to become somebody else")
def test_who_may_not_ptrace_is_refused(writer: Writer) -> None:
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            libdirty.track(writer.pid)
        except PermissionError as why:
            os._exit(0 if isinstance(why, libdirty.NotPermitted) and str(writer.pid) in str(why) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def another_program(pid: int) -> str:
    """Return what another program gets that tracks the process: one at a time can."""
    program = f"""
import libdirty
try:
    libdirty.track({pid}, backend="uffd-async").close()
    print("tracked")
except libdirty.Error as why:
    print(type(why).__name__, why.strerror)
"""
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


@pytest.mark.skipif("uffd-async" not in BACKENDS, reason="uffd-async does not work here")
def test_leaving_the_block_releases(writer: Writer) -> None:
    with libdirty.track(writer.pid, backend="uffd-async") as tracker:
        assert str(writer.pid) in repr(tracker)
        refusal = f"Unsupported uffd-async: process {writer.pid} is tracked already, by process {os.getpid()}"
        assert another_program(writer.pid).startswith(refusal)
    assert "closed" in repr(tracker) and another_program(writer.pid) == "tracked\n"
    with pytest.raises(ValueError, match="closed"):
        tracker.collect()
    tracker.close()
    with pytest.raises(RuntimeError), libdirty.track(writer.pid) as tracker:
        raise RuntimeError
    with pytest.raises(ValueError, match="closed"):
        tracker.watch_all()
    # A failed call of track leaves none behind.
    with pytest.raises(libdirty.BadRange):
        libdirty.track(writer.pid, watch=[(1, 1)])
    assert another_program(writer.pid) == "tracked\n"


@pytest.mark.skipif("uffd-async" not in BACKENDS, reason="uffd-async does not work here")
def test_a_tracker_that_is_forgotten_is_released(writer: Writer) -> None:
    with pytest.warns(ResourceWarning, match="was not closed"):
        libdirty.Tracker(writer.pid)
    assert another_program(writer.pid) == "tracked\n"


def test_a_range_alone_and_a_peek(memory: mmap.mmap) -> None:
    start, length = libdirty.pages_of(memory)

    def pages(extents: list[libdirty.Extent]) -> set[int]:
        return {at for one in extents for at in range(one.start, one.end, PAGE) if one.is_content}

    with libdirty.track(watch=[(start, length)]) as tracker:
        first, other = start, start + 5 * PAGE
        memory[0] = memory[5 * PAGE] = 1
        assert {first, other} <= pages(tracker.peek()) and pages(tracker.peek(other, PAGE)) == {other}
        assert pages(tracker.collect(first, PAGE)) == {first}
        left = pages(tracker.collect())
        assert other in left and first not in left
        assert first not in pages(tracker.peek())
        with pytest.raises(TypeError, match="start and a length"):
            tracker.collect(first)
        with pytest.raises(libdirty.BadRange):
            tracker.peek(first + 1, PAGE)


def test_a_collect_that_is_cut_short_ends_the_tracker(
    memory: mmap.mmap, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with libdirty.track(watch=[libdirty.pages_of(memory)]) as tracker:
        memory[0] = 1
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("libdirty.tracker.Extent", interrupted)
            tracker.collect()
        with pytest.raises(ValueError, match=r"lost by KeyboardInterrupt.*copy all"):
            tracker.collect()


def test_a_forked_child_cannot_use_it(memory: mmap.mmap) -> None:
    with libdirty.track(watch=[libdirty.pages_of(memory)]) as tracker:
        child = os.fork()
        if child == 0:
            try:
                tracker.collect()
            except libdirty.Error as why:
                tracker.close()
                os._exit(0 if why.errno == errno.EXDEV else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        memory[0] = 1
        assert any(one.is_content for one in tracker.collect())


def test_threads(memory: mmap.mmap) -> None:
    """Two collect, two write: nothing is lost, and both lists together have every page."""
    start, length = libdirty.pages_of(memory)
    seen: list[libdirty.Extent] = []
    with libdirty.track(watch=[(start, length)]) as tracker:
        writers = [
            threading.Thread(
                target=lambda first=first: [
                    memory.__setitem__(page * PAGE, 1) for page in range(first, 64, 2)
                ]
            )
            for first in range(2)
        ]

        def collect() -> None:
            for _ in range(50):
                seen.extend(tracker.collect())

        readers = [threading.Thread(target=collect) for _ in range(2)]
        for thread in [*writers, *readers]:
            thread.start()
        for thread in [*writers, *readers]:
            thread.join()
        seen += tracker.collect()
    assert {page for one in seen for page in range(one.start, one.end, PAGE)} >= set(
        range(start, start + length, PAGE)
    )


def test_a_userfaultfd_that_is_handed_over(memory: mmap.mmap) -> None:
    if "uffd-async" not in BACKENDS:
        pytest.skip("uffd-async does not work here")
    import ctypes

    userfaultfd = {"x86_64": 323, "aarch64": 282}[os.uname().machine]
    made = ctypes.CDLL(None, use_errno=True).syscall(userfaultfd, os.O_CLOEXEC | 1)  # UFFD_USER_MODE_ONLY
    if made < 0:
        pytest.skip(f"userfaultfd: {os.strerror(ctypes.get_errno())}")
    with libdirty.track(watch=[libdirty.pages_of(memory)], userfaultfd=made) as tracker:
        os.close(made)
        memory[PAGE] = 1
        assert [one.length for one in tracker.collect()] == [PAGE]


def test_pages_of() -> None:
    odd = bytearray(3 * PAGE + 5)
    start, length = libdirty.pages_of(odd)
    assert start % PAGE == 0 and length % PAGE == 0 and 4 * PAGE <= length <= 5 * PAGE
    with pytest.raises(ValueError, match="empty"):
        libdirty.pages_of(bytearray())


def test_capabilities() -> None:
    record = libdirty.capabilities("mprotect")
    assert record.kernel_writes is libdirty.Sees.FAILS and record.other_process is False
    assert record.cost is libdirty.Cost.SIGNAL_PER_PAGE and record.inexact
    with pytest.raises(libdirty.BadRange):
        libdirty.capabilities("bogus")
    assert len(libdirty.survey()) == 7


def test_the_package_has_all_that_the_header_has() -> None:
    functions = set(re.findall(r"\b(dirty_[a-z_]+)\(", re.sub(r"/\*.*?\*/", "", HEADER, flags=re.DOTALL)))
    assert len(functions) >= 16
    sources = "".join(path.read_text() for path in (HERE / "libdirty").glob("*.py"))
    assert {name for name in functions if f'"{name}"' not in sources} == set(NOT_CALLED)
    for ours, theirs in (
        (libdirty.Reason, "enum dirty_reason"),
        (libdirty.Sees, "enum dirty_sees"),
        (libdirty.Cost, "enum dirty_cost"),
    ):
        prefix = theirs.removeprefix("enum ").upper() + "_"
        listed = {
            name.removeprefix(prefix): value for name, value in _library.ffi.typeof(theirs).relements.items()
        }
        assert {one.name: one.value for one in ours} == listed
    members = [name for name, _ in _library.ffi.typeof("struct dirty_capabilities").fields]
    assert list(libdirty.Capabilities.__annotations__) == members[1:]
    for name in functions:
        assert _library.function(name)


def test_a_later_library() -> None:
    """Its reasons are unknown, and dirty; a function that an earlier one lacks is named."""
    unknown = libdirty.Reason(1000)
    assert unknown == 1000 and unknown.name == "UNKNOWN"
    assert unknown.is_doubt and unknown.is_mapped and not unknown.is_zero and "unknown" in unknown.text
    with pytest.raises(libdirty.Error, match="dirty_from_the_future: the installed"):
        _library.function("dirty_from_the_future")


def test_a_library_that_is_missing_is_named() -> None:
    environment = {**os.environ, "LIBDIRTY_LIBRARY": "/nowhere/libdirty.so", "PYTHONPATH": str(HERE)}
    command = [sys.executable, "-c", "import libdirty"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode and "/nowhere/libdirty.so" in ran.stderr and "libdirty1" in ran.stderr


def test_versions_agree() -> None:
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    assert libdirty.__version__ == workspace
    said = subprocess.run(
        ["readelf", "-d", os.environ["LIBDIRTY_LIBRARY"]], capture_output=True, text=True, check=True
    )
    assert f"soname: [{_library.SONAME}]" in said.stdout


def blocks() -> list[str]:
    """Return the programs of the README."""
    return re.findall(r"^```python\n(.*?)^```", (HERE / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def test_the_readme_runs(writer: Writer, capsys: pytest.CaptureFixture[str]) -> None:
    first, other, own = blocks()
    names: dict[str, object] = {"pid": writer.pid, "start": writer.start, "length": writer.length}
    exec(compile(first, "README.md", "exec"), names)
    assert re.fullmatch(r"(0x[0-9a-f]+\.\.0x[0-9a-f]+: [a-z:, ]+\n)+", capsys.readouterr().out)

    def work() -> None:
        writer.do("write", 3, 4, 17)
        writer.do("discard", 17, 30)

    names |= {"rounds": 3, "work": work}
    exec(compile(other, "README.md", "exec"), names)
    assert names["copy"] == writer.content() != bytes(writer.length)
    # The control: without its line for what is to be copied, the copy is wrong.
    careless = other.replace("part = read(extent.start, extent.length)", "continue")
    assert careless != other
    exec(compile(careless, "README.md", "exec"), names)
    assert names["copy"] != writer.content()

    # What is unmapped between a collect and the copy does not move what is behind it.
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    start = libc.mmap(None, ctypes.c_size_t(3 * PAGE), 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    ctypes.memset(start, ord("x"), 3 * PAGE)
    mem = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    names |= {"pid": os.getpid(), "mem": mem}
    read = names["read"]
    assert callable(read) and read(start, 3 * PAGE) == b"x" * 3 * PAGE
    libc.munmap(ctypes.c_void_p(start + PAGE), ctypes.c_size_t(PAGE))
    assert read(start, 3 * PAGE) == b"x" * PAGE + bytes(PAGE) + b"x" * PAGE
    libc.munmap(ctypes.c_void_p(start), ctypes.c_size_t(3 * PAGE))
    os.close(mem)

    exec(compile(own, "README.md", "exec"), {})


def test_the_wheel_is_complete(tmp_path: Path) -> None:
    for what in ("wheel", "sdist"):
        build = f"import sys; from flit_core import buildapi; buildapi.build_{what}(sys.argv[1])"
        subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=HERE, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    (_sdist,) = tmp_path.glob("*.tar.gz")
    assert wheel.name == f"libdirty-{libdirty.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    for name in ("py.typed", "dirty.h"):
        assert (tmp_path / "installed/libdirty" / name).is_file()
    licences = {path.name for path in tmp_path.glob("installed/*.dist-info/licenses/*")}
    assert licences == {"LICENSE-APACHE", "LICENSE-MIT"}
    program = "import libdirty; libdirty.track().close(); print(libdirty.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    said = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.startswith(str(tmp_path))
