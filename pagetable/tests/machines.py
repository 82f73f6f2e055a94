# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What the machine tests share: where the built parts are in a guest, and steps they all take."""

from trapless_lab import artifacts, host
from trapless_lab.machines.initramfs import File, Tree, program
from trapless_lab.machines.script import Step
from trapless_lab.pagetable.parts import NAME, PVMMU

GUEST = "/lib/trapless"

_FORKERS = "/tmp/forkers"
# Not by name, which a child has, too, until it is another program.
ALIVE_FORKERS = f"n=0; while read -r pid; do kill -0 $pid && n=$((n + 1)); done <{_FORKERS}; echo alive $n"
"""Prints how many of ``forkers`` there are."""
STOP_FORKERS = f"while read -r pid; do kill $pid && echo stopped || exit 1; done <{_FORKERS}"
"""Ends all of ``forkers``, each with a line; fails at one that is gone."""


def tool() -> Tree:
    """Return the operator's tool."""
    return program(artifacts.program("trapless"))


def installed() -> Tree:
    """Return the tool and all parts where it looks for them."""
    modules = f"/lib/modules/{host.kernel().release}/updates/dkms"
    payload = artifacts.payload("pagetable", NAME)
    return {
        **tool(),
        f"/usr/lib/trapless/4.17/{NAME}.livepatch": File(payload),
        f"{modules}/{NAME}.ko": File(artifacts.module("pagetable", "pool", NAME)),
        f"{modules}/{PVMMU}.ko": File(artifacts.module("pagetable", "pvmmu", PVMMU)),
    }


def payload_file(variant: str) -> dict[str, File]:
    """Return a payload under its own name; variants are the negative controls."""
    return {f"{GUEST}/{variant}.livepatch": File(artifacts.payload("pagetable", variant))}


def module_file(path: str, name: str | None = None, part: str = "pool") -> dict[str, File]:
    """Return a module of the build tree, under its base name or another; ``part`` as in ``artifacts``."""
    name = name or path.rsplit("/", 1)[-1]
    return {f"{GUEST}/{name}.ko": File(artifacts.module("pagetable", part, path))}


def insmod(module: str = NAME, parameters: str = "", name: str | None = None, expect: int | None = 0) -> Step:
    """Return a step that loads a module and, if that fails, shows why."""
    command = f"insmod {GUEST}/{module}.ko {parameters} || {{ dmesg | tail -5; false; }}"
    return Step(name or f"insmod {module}", command, expect=expect)


def forkers(what: str, count: int) -> str:
    """Return the shell command that starts processes which fork without end; ``what`` is spawn's workload."""
    return f"for i in $(seq {count}); do spawn {what} -n 1000000 >/dev/null 2>&1 & echo $! >>{_FORKERS}; done"


def refused(transcript_output: str, reason: str) -> bool:
    """Whether a module said why it did not load."""
    return "can't insert" in transcript_output and reason in transcript_output
