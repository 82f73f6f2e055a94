# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Debian 12's criu 3.17 on Debian 12's kernel under ``trapless criu``, by each back end.

Chains of pre-dump, pre-dump, dump, kill and restore of a tree whose memory changes in every way, and every
page compared.
"""

import pytest

import criu_steps
import module_steps
from packages import debian13
from trapless_lab.dirty import criu
from trapless_lab.dirty.criu import Outcome
from trapless_lab.dirty.experiments import criu as experiment
from trapless_lab.dirty.experiments import trackers
from trapless_lab.machines import runner
from trapless_lab.machines.initramfs import File, Tree
from trapless_lab.machines.machine import MACHINES, Machine
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript

pytestmark = pytest.mark.machine

TREE = "dirtychurn /tmp/file 100 30"
SMALL = "dirtychurn /tmp/file 60 60 small"
SMALL_STILL = "dirtychurn /tmp/file 100 20 writes small"
BACKENDS = ("dbit", "uffd-sync")
# The mistakes that a holder can make, and a tree in which criu itself sees nothing of them.
# Forgetting a page does no harm if the program writes it again, or if it is of a huge page that was
# written elsewhere: so the second has two chains.
MISTAKES = {"hold-silent": 1, "hold-forget": 2}
STILL = "dirtychurn /tmp/file 400 2 writes"
# It writes the same 1,280 pages again and again, some time apart, and comes to an end. No tree: who is told
# that a child was stopped has a signal's frame on its stack before it stops itself, after the dump.
ENDS = "dd if=/dev/urandom of=/dev/null bs=5M count=10"


def _run(machine: Machine, *steps: Step, mutant: bool = False) -> Transcript:
    # With huge pages everywhere a back end that reads page tables tells 2 MiB for each page.
    small = Step("huge pages on request", "echo madvise >/sys/kernel/mm/transparent_hugepage/enabled")
    first = (criu.PREPARE, small, module_steps.insmod())
    files = {**criu.files(mutant=mutant), **module_steps.module_files()}
    return runner.run(machine, [*first, *steps], files=files, modules=criu.MODULES)


def _outcome(transcript: Transcript, step: str) -> Outcome:
    found = Outcome(transcript[step].rc, transcript[step].output)
    print(step, found.text)
    return found


def _chain(backend: str) -> Step:
    return criu.chain(backend, TREE, criu.command(backend, f"/tmp/{backend}.socket"))


def _is_right(outcome: Outcome, least_skipped: int = 300) -> None:
    assert outcome.status == 0 and outcome.pages > 3000 and outcome.wrong == 0, outcome.text
    for step in ("two", "three"):
        assert outcome.skipped(step) > least_skipped and outcome.written(step) > 100, outcome.text


def _holds(transcript: Transcript, *backends: str) -> None:
    for backend in backends:
        _is_right(_outcome(transcript, backend))
    assert transcript.kernel_warnings() == []


def test_a_tree_is_restored_as_it_was() -> None:
    _holds(_run(MACHINES["bare-smp"], *map(_chain, BACKENDS)), *BACKENDS)


@pytest.mark.long("a boot for the model of a log, which test_epml.py tests")
def test_the_processors_log() -> None:
    """By EPML's model."""
    _holds(_run(MACHINES["bare-smp"].with_epml(), _chain("epml")), "epml")


def test_the_experiment_counts_wrong_pages() -> None:
    """dirty-criu's wrong_pages, of a holder that forgets one page in a thousand and of one that does not."""
    line = experiment.rounds(ENDS, 0.3, "dbit")
    steps = [
        module_steps.insmod(),
        criu.PREPARE,
        Step("ready", experiment.READY),
        Step("right", line, 300),
        Step("hold-forget", f"export DIRTY_MUTANT=hold-forget; {line}", 300),
    ]
    files = {**experiment.round_files(mutant=True), **module_steps.module_files()}
    transcript = runner.run(trackers.STOCK, steps, files=files, modules=criu.MODULES)
    right, forgets = (_outcome(transcript, name) for name in ("right", "hold-forget"))
    assert right.pages > 1280 and right.wrong == 0
    assert forgets.pages > 1280 and 0 < forgets.wrong < 20


@pytest.mark.long("a boot for controls; make check has one of them in the experiment")
def test_a_holder_that_does_not_tell_is_caught() -> None:
    chains = {name: [f"{name} {number}" for number in range(count)] for name, count in MISTAKES.items()}
    steps = [
        criu.chain(
            chain,
            STILL,
            criu.command("dbit", f"/tmp/{chain.replace(' ', '-')}.socket"),
            before=f"export DIRTY_MUTANT={name};",
        )
        for name, of_it in chains.items()
        for chain in of_it
    ]
    transcript = _run(MACHINES["bare-smp"], *steps, mutant=True)
    for of_it in chains.values():
        outcomes = [_outcome(transcript, chain) for chain in of_it]
        assert any(outcome.status == 1 and outcome.wrong > 0 for outcome in outcomes), outcomes


@pytest.mark.long("the same chains on one processor")
def test_one_processor() -> None:
    _holds(_run(MACHINES["bare"], *map(_chain, BACKENDS)), *BACKENDS)


def _criu4() -> Tree:
    """Return Debian 13's criu, which knows later kernels, with its own loader and libraries."""
    tree = debian13("criu")
    libraries = (tree / "usr/lib/x86_64-linux-gnu").glob("*.so*")
    script = '#!/bin/sh\nexec /criu4/ld-linux-x86-64.so.2 --library-path /criu4 /criu4/criu "$@"\n'
    return {
        **{f"/criu4/{library.name}": File(library, 0o755) for library in libraries if library.is_file()},
        "/criu4/ld-linux-x86-64.so.2": File(tree / "usr/lib64/ld-linux-x86-64.so.2", 0o755),
        "/criu4/criu": File(tree / "usr/sbin/criu", 0o755),
        "/bin/criu": File(script.encode(), 0o755),
    }


def test_a_later_kernel() -> None:
    """By uffd-async, which Linux has from 6.7 on, and Debian 13's criu 4.1.1."""
    steps = [criu.PREPARE, _chain("uffd-async")]
    machine = MACHINES["bare-smp"].with_linux("6.12-deb13")
    files = {**criu.files(), **_criu4()}
    _holds(runner.run(machine, steps, files=files, modules=criu.MODULES), "uffd-async")


def _nested(tree: str, *, mistake: str = "") -> Outcome:
    (outcome,) = criu_steps.nested_chains({"chain": tree}, mistake=mistake).values()
    return outcome


@pytest.mark.long("a nested boot; make check has this log in test_spml.py, and criu by other back ends")
def test_the_hypervisors_log() -> None:
    """By SPML, on two processors.

    The slower the machine, the more children the holder has not found yet when they are dumped, as a whole
    then: 250 to 930 pages were skipped. Of a holder that tells nothing none is.
    """
    _is_right(_nested(SMALL), least_skipped=100)


@pytest.mark.long("a second nested boot, for a control")
def test_a_hypervisor_that_forgets_is_caught() -> None:
    outcome = _nested(SMALL_STILL, mistake="vmm-lose")
    assert outcome.status == 1 and outcome.wrong > 0
