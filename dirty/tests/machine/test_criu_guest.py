# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Debian 12's criu 3.17 on Debian 12's kernel under ``trapless criu``, by each back end.

Chains of pre-dump, pre-dump, dump, kill and restore of a tree whose memory changes in every way, and every
page compared.
"""

import pytest

import module_steps
from trapless_lab.dirty import criu
from trapless_lab.dirty.criu import Outcome
from trapless_lab.machines import nested, runner
from trapless_lab.machines.machine import MACHINES, Machine
from trapless_lab.machines.nested import Inner
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript

pytestmark = pytest.mark.machine

TREE = "dirtychurn /tmp/file 100 30"
BACKENDS = ("dbit", "uffd-sync")
# The mistakes that a holder can make, and a tree in which criu itself sees nothing of them.
# Forgetting a page does no harm if the program writes it again, or if it is of a huge page that was
# written elsewhere: so the second has two chains.
MISTAKES = {"hold-silent": 1, "hold-forget": 2}
STILL = "dirtychurn /tmp/file 400 2 writes"


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


def _is_right(outcome: Outcome) -> None:
    assert outcome.status == 0 and outcome.pages > 3000 and outcome.wrong == 0, outcome.text
    for step in ("two", "three"):
        assert outcome.skipped(step) > 300 and outcome.written(step) > 100, outcome.text


def _holds(transcript: Transcript, *backends: str) -> None:
    for backend in backends:
        _is_right(_outcome(transcript, backend))
    assert transcript.kernel_warnings() == []


def test_a_tree_is_restored_as_it_was() -> None:
    _holds(_run(MACHINES["bare-smp"], *map(_chain, BACKENDS)), *BACKENDS)


def test_the_processors_log() -> None:
    """By EPML's model."""
    _holds(_run(MACHINES["bare-smp"].with_epml(), _chain("epml")), "epml")


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


@pytest.mark.long("nested emulation: minutes")
def test_the_hypervisors_log() -> None:
    """By SPML, in a guest of trapless-vmm."""
    lines = ["set -e", criu.LOAD_MODULES, criu.PREPARE.command, module_steps.insmod().command]
    lines += ["echo madvise >/sys/kernel/mm/transparent_hugepage/enabled", _chain("spml").command, ""]
    files = {**criu.files(), **criu.module_files(), **module_steps.module_files()}
    inner = Inner("spml", "\n".join(lines), files, memory=criu.INNER_MEMORY)
    transcript = runner.run(
        nested.machine(), [inner.step(3000)], files=nested.files(inner), modules=nested.OUTER_MODULES
    )
    # Its script ends with the chain's exit status.
    _is_right(Outcome(0, nested.output(transcript["spml"].output)))
