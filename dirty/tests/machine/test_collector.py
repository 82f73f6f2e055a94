# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The stock Boehm collector of Debian on dirty bits from the module, by the shim in the program itself, where
the kernel has soft-dirty.

The oracles are the programs': what must still be reachable (shim/tests/c/collector.c, on four threads), and a
checksum that is the same with malloc (the lab's workloads). Each fails with a shim that tells nothing.
"""

from pathlib import Path

import pytest

import module_steps
from trapless_lab import artifacts, compiler
from trapless_lab.dirty import workloads
from trapless_lab.machines import runner
from trapless_lab.machines.initramfs import File, Link, program
from trapless_lab.machines.machine import MACHINES, Machine
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript

pytestmark = [
    pytest.mark.machine,
    pytest.mark.long("two boots of minutes; natively the collector is in make -C dirty check"),
    pytest.mark.timeout(1800),
]

SOURCES = Path(__file__).parents[2] / "shim" / "tests" / "c"
SHIM, MUTANT = "/lib/trapless/libdirty_softdirty.so", "/lib/trapless/mutant.so"
SILENT = "shim-own-silent"
CHANGES = 20000
FROM_PROC = "Using soft-dirty bit feature"
# Of passes.c, which knows which pages it wrote.
CASES = ("rounds", "pieces", "replaced", "fork", "ways")
PROGRAMS = {
    "gcbench": "gcbench{} 50000 12 13",
    "pca": "phoenix{} pca 250",
    "word-count": "phoenix{} word-count 400000",
}


def _compiled(directory: Path, name: str, *flags: str) -> dict[str, File | Link]:
    compiler.compile_c(SOURCES / f"{name}.c", directory / name, ("-O2", "-pthread", *flags))
    return program(directory / name)


def _files(directory: Path) -> dict[str, File | Link]:
    shim = artifacts.program("libdirty_softdirty.so")
    mutant = artifacts.mutant("dirty", "rust", "release/libdirty_softdirty.so")
    libraries = {path: entry for path, entry in program(shim).items() if not path.startswith("/bin/")}
    return {
        **workloads.files(),
        **_compiled(directory, "collector", "-Wl,--no-as-needed", "-lgc"),
        **_compiled(directory, "passes"),
        **libraries,
        **module_steps.module_files(),
        SHIM: File(shim),
        MUTANT: File(mutant),
    }


def _by(backend: str, command: str, shim: str = SHIM) -> str:
    """Return a shell's line with the shim before a program; what kills the program ends no step."""
    mistake = f"DIRTY_MUTANT={SILENT} " if shim == MUTANT else ""
    return f"{mistake}LIBDIRTY_SOFTDIRTY={backend},verbose LD_PRELOAD={shim} {command}"


def _collector(name: str, threads: int, backend: str, shim: str = SHIM) -> Step:
    """Return a step that prints how the program ended, and, of much that the collector says, what counts."""
    run = _by(backend, f"collector {threads} {CHANGES}", shim)
    said = f"grep -aE '{FROM_PROC}|wrong|libdirty-softdirty' /tmp/said | uniq | head"
    return Step(name, f"GC_PRINT_STATS=1 {run} >/tmp/said 2>&1; echo rc $?; {said}", 900, expect=None)


def _program(name: str, kind: str, shim: str = SHIM) -> Step:
    line = PROGRAMS[name].format("" if kind == "malloc" else "-collected")
    if kind not in ("malloc", "collected"):
        line = f"GC_ENABLE_INCREMENTAL=1 {_by('dbit', line, shim)}"
    return Step(f"{name} {kind}", line, 600, expect=None if shim == MUTANT else 0)


def _is_right(transcript: Transcript, step: str, backend: str) -> None:
    said = transcript[step].output
    assert "rc 0\n" in said and "incremental 1" in said and "wrong 0" in said, said
    assert f"the own process is tracked by {backend}" in said and FROM_PROC in said, said


def _checksum(transcript: Transcript, step: str) -> str:
    return transcript[step].output.partition("sum=")[2][:16]


def _run(machine: Machine, directory: Path, *steps: Step) -> Transcript:
    return runner.run(machine, steps, files=_files(directory))


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Transcript:
    """One boot of a stock kernel on two processors."""
    return _run(
        MACHINES["bare-smp"],
        tmp_path_factory.mktemp("collector"),
        _collector("without the module", 1, "dbit"),
        module_steps.insmod(),
        *(_collector(f"{threads} threads", threads, "dbit") for threads in (1, 4)),
        *(_program(name, kind) for name in PROGRAMS for kind in ("malloc", "collected", "incremental")),
        *(Step(f"passes {case}", _by("dbit", f"passes {case}"), expect=None) for case in CASES),
        _collector("control", 1, "dbit", MUTANT),
        _program("gcbench", "control", MUTANT),
        module_steps.rmmod(),
    )


@pytest.mark.parametrize("threads", [1, 4])
def test_what_is_reachable_stays(stock: Transcript, threads: int) -> None:
    _is_right(stock, f"{threads} threads", "dbit")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_computes_the_same(stock: Transcript, name: str) -> None:
    found = {_checksum(stock, f"{name} {kind}") for kind in ("malloc", "collected", "incremental")}
    assert len(found) == 1 and len(found.pop()) == 16
    said = stock[f"{name} incremental"].output
    assert "tracked by dbit" in said and "incremental=1" in said


@pytest.mark.parametrize("case", CASES)
def test_a_program_that_reads_its_own_bits(stock: Transcript, case: str) -> None:
    assert stock[f"passes {case}"].rc == 0, stock[f"passes {case}"].output


def test_a_module_that_is_not_loaded_is_not_used(stock: Transcript) -> None:
    said = stock["without the module"].output
    assert "dbit is not used: no /dev/trapless_dirty" in said
    assert FROM_PROC in said and "rc 0\n" in said and "wrong 0" in said, said


def test_a_shim_that_tells_nothing_is_caught(stock: Transcript) -> None:
    said = stock["control"].output
    assert "tracked by dbit" in said and FROM_PROC in said, said
    assert "rc 0\n" not in said and "wrong 0" not in said, said
    assert _checksum(stock, "gcbench control") != _checksum(stock, "gcbench malloc")


def test_no_kernel_complains(stock: Transcript) -> None:
    assert stock.kernel_warnings() == []


def test_by_the_model_of_epml(tmp_path: Path) -> None:
    names = {threads: f"{threads} threads" for threads in (1, 4)}
    transcript = _run(
        MACHINES["bare-smp"].with_epml(),
        tmp_path,
        module_steps.insmod(),
        *(_collector(name, threads, "epml") for threads, name in names.items()),
    )
    for name in names.values():
        _is_right(transcript, name, "epml")
    assert transcript.kernel_warnings() == []
