# SPDX-License-Identifier: Apache-2.0 OR MIT
"""How much each part of trapless saves: every switch alone, and all together.

Invariant: one boot with everything loaded; the switches of this build are read in the guest, and between two
measurements only switches are written.
"""

import re
from collections.abc import Mapping

from ... import host
from ...errors import LabError
from ...experiment.experiment import Check, Context, Result, Row, experiment, machine_facts
from ...experiment.workload import MODES, NS_PER_INSTRUCTION, fork_dirty_ns, ns_per_process
from ...machines.initramfs import File
from ...machines.script import Step, StepResult
from .. import parts as pagetable
from ..columns import STRICT

PROCESSES = {"fork_exit": 120, "fork_exec": 60, "fork_sh": 40}
QUICK_PROCESSES = {"fork_exit": 30, "fork_exec": 15, "fork_sh": 8}
# Even, as on Xen every other loop costs more than the one before it.
LOOPS = 2
WARM_UP = 10
PAGES = 1024
ROUNDS = 5
QUICK_ROUNDS = 2

NONE, ALL, UNLOADED, NONE_AGAIN = "none", "all", "not loaded", "none again"

_SCRIPT = "/bin/switches"
_PART = re.compile(r"^switches (.+)$", re.MULTILINE)

Costs = Mapping[str, int]
"""What was measured -> instructions."""


def script(processes: Mapping[str, int], rounds: int) -> str:
    """Return the guest's program: ``measure NAME``, or ``each`` for every switch of the loaded build."""
    loops = "\n".join(
        f"\tspawn {mode} --warm-up {WARM_UP} --count {processes[name]} || exit 1"
        for name, mode in MODES.items()
        for _ in range(LOOPS)
    )
    return f"""#!/bin/sh
switches=$(ls {pagetable.POOL_SWITCH} {pagetable.PVMMU_SWITCHES}/* 2>/dev/null)
write() {{ value=$1; shift; for switch in "$@"; do echo "$value" >"$switch" || exit 1; done; }}
measure() {{
\techo "switches $1"
{loops}
\tforkdirty --rounds {rounds} {PAGES} || exit 1
}}
each() {{
\twrite 0 $switches
\tmeasure "{NONE}"
\tfor one in $switches; do
\t\twrite 1 "$one"
\t\tmeasure "$one"
\t\twrite 0 "$one"
\tdone
\tmeasure "{NONE_AGAIN}"
\twrite 1 $switches
\tmeasure "{ALL}"
}}
"$@"
"""


def parse(result: StepResult) -> dict[str, dict[str, int]]:
    """Return which switches were on -> what was measured."""
    names = _PART.findall(result.output)
    if len(set(names)) != len(names):
        raise LabError(f'step "{result.step.name}" measured one of {names} twice')
    return {
        name.removeprefix(f"{pagetable.PVMMU_SWITCHES}/").replace(pagetable.POOL_SWITCH, "pool"): _costs(
            StepResult(result.step, text.encode(), result.rc, result.duration_s)
        )
        for name, text in zip(names, _PART.split(result.output)[2::2], strict=True)
    }


def _costs(part: StepResult) -> dict[str, int]:
    dirty = fork_dirty_ns(part, PAGES)
    ns = {name: ns_per_process(part, name) for name in MODES}
    ns |= {f"{operation}_{PAGES}": dirty[operation] for operation in ("fork", "redirty")}
    return {name: value // NS_PER_INSTRUCTION for name, value in ns.items()}


def _row(name: str, costs: Costs, base: Costs) -> Row:
    return {"on": name, **{what: base[what] - costs[what] for what in base}}


@experiment(
    name="pagetable-switches",
    accelerator="pagetable",
    title="Instructions saved by each switch",
    reproduces="nothing of the papers: each part's share",
    minutes=3,
)
def pagetable_switches(context: Context) -> Result:
    """Measure not loaded, with every switch off, with each alone on, and with all on."""
    processes, rounds = (QUICK_PROCESSES, QUICK_ROUNDS) if context.quick else (PROCESSES, ROUNDS)
    parts = pagetable.everything(STRICT)
    files = pagetable.files(parts)
    steps = [
        Step("stock", f"{_SCRIPT} measure '{UNLOADED}'", timeout_s=300),
        *pagetable.load_steps(parts),
        Step("switches", f"{_SCRIPT} each", timeout_s=540),
    ]
    program = File(script(processes, rounds).encode(), 0o755)
    transcript = context.run("switches", STRICT, steps, {**files, _SCRIPT: program})
    stock = parse(transcript["stock"])[UNLOADED]
    taken = parse(transcript["switches"])
    base = taken[NONE]
    saved = {name: _row(name, costs, base) for name, costs in taken.items() if name != NONE}
    drift = {what: abs(value) for what, value in saved.pop(NONE_AGAIN).items() if what != "on"}
    alone = [name for name in saved if name != ALL]
    return Result(
        unit="instructions saved against every switch off",
        method=f"QEMU -icount, {NS_PER_INSTRUCTION} ns an instruction; means of {LOOPS} loops; one boot. "
        f"fork_{PAGES}, redirty_{PAGES}: as in fork-dirty. What has no switch is in the row of all that is "
        "off, which is against the stock machine before loading; drift: the same again after all others",
        rows=[
            _row("all loaded, all off, against stock", base, stock),
            *saved.values(),
            {"on": "sum of each alone", **{what: sum(saved[name][what] for name in alone) for what in base}},
            {"on": "drift", **drift},
        ],
        paper=[],
        checks=[
            Check("there are switches", bool(alone), f"each was measured: {', '.join(alone)}"),
            Check(
                "all together save",
                all(saved[ALL][what] > 0 for what in base),
                "of all switches off: "
                + ", ".join(f"{what} {100 * saved[ALL][what] / base[what]:.1f} %" for what in base),
            ),
        ],
        machine=machine_facts([STRICT], host.versions()),
        keys={"stock": stock, "none": base, "all": taken[ALL], "saved": {n: saved[n] for n in alone}},
    )
