# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Chains of checkpoints in a guest of trapless-vmm, for the test of SPML and for its soak.

Invariant: an outcome has what its own chain printed, and nothing of another's. A chain that did not end has
none.
"""

import re
from collections.abc import Mapping

import module_steps
from trapless_lab import artifacts
from trapless_lab.dirty import criu
from trapless_lab.dirty.criu import Outcome
from trapless_lab.errors import LabError
from trapless_lab.machines import nested, runner
from trapless_lab.machines.nested import Inner

BACKEND = "spml"
CPUS = 2
# Each page's first write is an exit through two hypervisors: criu's limit for stopping all processes, 10 s by
# the clock, is not for an emulation of an emulation.
PATIENCE_S = 1200
_PROCESSORS = re.compile(r"^processors: (\d+)$", re.MULTILINE)


def nested_chains(
    trees: Mapping[str, str],
    *,
    pinned: frozenset[str] = frozenset(),
    mistake: str = "",
    timeout_s: float = 3000,
) -> dict[str, Outcome]:
    """Make a chain of each tree, in turn, in one guest of two processors; ``pinned``: those whose processes
    all stay on one of them.

    ``mistake`` is one that a VMM can make. Raises LabError if the guest has not two processors, or its script
    does not end.
    """
    lines = ["set -e", criu.LOAD_MODULES, criu.PREPARE.command, module_steps.insmod().command]
    lines += ["echo processors: $(grep -c ^processor /proc/cpuinfo)", f"export DUMP='--timeout {PATIENCE_S}'"]
    for name, tree in trees.items():
        command = criu.command(BACKEND, f"/tmp/{name}.socket")
        chain = criu.chain(name, tree, command, before="taskset 1" if name in pinned else "")
        lines += [f"echo chain {name} begins", f"{chain.command} && status=0 || status=$?"]
        lines += [f"echo chain {name} ends: $status", f"rm -rf /tmp/{name} /tmp/{name}.socket"]
    files = {**criu.files(), **criu.module_files(), **module_steps.module_files()}
    environment = f"DIRTY_MUTANT={mistake}" if mistake else ""
    script = "\n".join([*lines, ""])
    inner = Inner(BACKEND, script, files, criu.INNER_MEMORY, CPUS, environment)
    vmm = artifacts.mutant("dirty", "rust", "release/trapless-vmm") if mistake else None
    transcript = runner.run(
        nested.machine(),
        [inner.step(timeout_s)],
        files=nested.files(inner, vmm=vmm),
        modules=nested.OUTER_MODULES,
    )
    text = nested.output(transcript[BACKEND].output)
    print(text)
    if _PROCESSORS.findall(text) != [str(CPUS)]:
        raise LabError(f"the inner guest has not {CPUS} processors:\n{text}")
    return {name: _outcome(name, text) for name in trees}


def _outcome(name: str, text: str) -> Outcome:
    """Return what came of one chain.

    Raises LabError if it did not end.
    """
    found = re.search(
        rf"^chain {name} begins\n(.*)^chain {name} ends: (\d+)$", text, re.MULTILINE | re.DOTALL
    )
    if found is None:
        raise LabError(f"chain {name} did not end:\n{text}")
    return Outcome(int(found[2]), found[1])
