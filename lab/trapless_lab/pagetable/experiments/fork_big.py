# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The cost of a fork for a large process: a save of redis in the background, in dom0 and in a domU.

Invariant: redis is Debian's, unchanged, and the time is the one that it shows to its own users
(latest_fork_usec); every column has the same keys, and a fork is compared by the memory that was resident.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import linear_regression

from ... import host
from ...errors import LabError
from ...experiment.experiment import (
    BeforeAfter,
    Check,
    Context,
    Result,
    Row,
    Target,
    experiment,
    machine_facts,
)
from ...experiment.workload import NS_PER_INSTRUCTION
from ...machines import domu
from ...machines.domu import DomU
from ...machines.initramfs import File, Tree, program
from ...machines.machine import Machine
from ...machines.script import Step, StepResult
from .. import columns, domu_states
from .. import parts as pagetable
from ..columns import BARE, PVH, RELAXED, STRICT

SIZES = (16, 64, 256)
QUICK_SIZES = (4, 16)
KEYS_A_MIB = 295
"""With values of 3,400 bytes and all that redis keeps beside them."""

PAGES = ("dirty", "clean")
DOM0, DOMU = "dom0", "domU"
TARGET_A_GIB = 70_000_000
# Twice the largest redis, for dom0 has half of the machine.
MEMORY_MIB = 1536
QUICK_MEMORY_MIB = 1024

_BIGFORK = Path(__file__).parent.parent / "guest" / "bigfork"
_US = re.compile(r"^bigfork pages=(\w+) us=(\d+)$", re.MULTILINE)
_RESIDENT = re.compile(r"^resident kib=(\d+)$", re.MULTILINE)
_TIMEOUT_S = 900


@dataclass(frozen=True)
class Fork:
    """One redis: its resident memory, and the instructions of a fork by what was written before."""

    kib: int
    instructions: Mapping[str, int]


def parse(result: StepResult) -> Fork:
    """Read what bigfork has printed."""
    resident, found = _RESIDENT.findall(result.output), dict(_US.findall(result.output))
    if len(resident) != 1 or set(found) != set(PAGES):
        raise LabError(f'step "{result.step.name}" has not measured a fork:\n{result.output}')
    return Fork(int(resident[0]), {pages: int(found[pages]) * 1000 // NS_PER_INSTRUCTION for pages in PAGES})


def files() -> Tree:
    """Return redis and the script, as files of a guest."""
    # The package of its tools has the server under the name of one of its uses, and starts no service.
    server = host.tool("redis-check-rdb", "redis-tools")
    tree = {**program(server), **program(host.tool("redis-cli", "redis-tools"))}
    return {**tree, "/bin/redis-server": File(server, 0o755), "/bin/bigfork": File(_BIGFORK, 0o755)}


def _label(name: str, mib: int) -> str:
    return f"{name}: {mib} MiB"


def _steps(name: str, sizes: Sequence[int]) -> list[Step]:
    return [Step(_label(name, mib), f"bigfork {KEYS_A_MIB * mib}", timeout_s=_TIMEOUT_S) for mib in sizes]


Forks = Mapping[str, Mapping[int, Fork]]
"""Column -> MiB -> what was measured."""


def _alone(context: Context, name: str, machine: Machine, sizes: Sequence[int]) -> Forks:
    transcript = context.run(name, machine, _steps(name, sizes), files())
    return {name: {mib: parse(transcript[_label(name, mib)]) for mib in sizes}}


def _in_dom0(context: Context, machine: Machine, sizes: Sequence[int]) -> Forks:
    parts = pagetable.everything(machine)
    script = [*_steps("stock", sizes), *pagetable.load_steps(parts), *_steps("boosted", sizes)]
    tree = {**files(), **pagetable.files(parts, context.pair)}
    transcript = context.run("dom0", machine, script, tree)
    return {
        name: {mib: parse(transcript[_label(name, mib)]) for mib in sizes} for name in ("stock", "boosted")
    }


def _in_domu(context: Context, machine: Machine, sizes: Sequence[int]) -> Forks:
    inside = {**files(), **domu_states.files_inside()}
    guest = DomU(files=inside, memory_mib=machine.memory_mib // 3, native_tsc=True)
    transcript = context.run(
        "domU",
        machine,
        domu_states.steps(guest, {name: _steps(name, sizes) for name in ("stock", "boosted")}),
        domu_states.files(guest),
        modules=domu.MODULES,
    )
    domu.require_quiet(transcript)
    return {
        name: {mib: parse(transcript[_label(name, mib)]) for mib in sizes} for name in ("stock", "boosted")
    }


def a_gib(forks: Mapping[int, Fork], pages: str) -> int:
    """Return the instructions of a GiB more: the line of least squares through all sizes."""
    kib = [fork.kib for fork in forks.values()]
    return round(linear_regression(kib, [f.instructions[pages] for f in forks.values()]).slope * (1 << 20))


@experiment(
    name="fork-big",
    accelerator="pagetable",
    title="A save of redis in the background",
    reproduces="nothing of the papers: what redis' users complain of on Xen",
    minutes=12,
)
def fork_big(context: Context) -> Result:
    """Measure on bare metal, in a PVH dom0, and stock and boosted in a PV dom0 and in a PV domU."""
    sizes = QUICK_SIZES if context.quick else SIZES
    memory = QUICK_MEMORY_MIB if context.quick else MEMORY_MIB
    bare, pvh, strict, relaxed = (replace(m, memory_mib=memory) for m in (BARE, PVH, STRICT, RELAXED))
    alone = {**_alone(context, "bare", bare, sizes), **_alone(context, "pvh", pvh, sizes)}
    places: dict[str, Forks] = {
        DOM0: {**alone, **_in_dom0(context, strict, sizes)},
        DOMU: {**alone, **_in_domu(context, relaxed, sizes)},
    }
    slopes = {
        where: {name: {pages: a_gib(forks[name], pages) for pages in PAGES} for name in forks}
        for where, forks in places.items()
    }
    if context.plots:
        for where, forks in places.items():
            context.plots.lines(
                f"fork-big-{where.lower()}.png",
                {
                    name: (
                        [f.kib >> 10 for f in each.values()],
                        [f.instructions["dirty"] for f in each.values()],
                    )
                    for name, each in forks.items()
                },
                x="memory of redis, MiB, all of it written",
                y="instructions of a fork",
                title=f"A save of redis in the background, in a {where}",
            )
    return Result(
        unit="instructions of one fork",
        method=f"QEMU -icount, {NS_PER_INSTRUCTION} ns an instruction; redis' own latest_fork_usec at a "
        "BGSAVE, to a microsecond; dirty: every page was written and never shared before; clean: the next "
        "save, with nothing written in between; mib is what was asked for, keys of 3,400 bytes each; stock "
        "and boosted are one boot, before and after loading; bare and pvh are the same in both places: Linux "
        "alone, and a PVH dom0, whose nested page walks cost nothing in emulation",
        rows=[
            *(
                {
                    "mib": mib,
                    "where": where,
                    "pages": pages,
                    **{name: forks[name][mib].instructions[pages] for name in forks},
                }
                for where, forks in places.items()
                for pages in PAGES
                for mib in sizes
            ),
            *(
                {
                    "mib": "a GiB",
                    "where": where,
                    "pages": pages,
                    **{n: each[pages] for n, each in slope.items()},
                }
                for where, slope in slopes.items()
                for pages in PAGES
            ),
        ],
        paper=[],
        checks=[
            *(
                columns.no_slower(
                    f"boosted in a {where}",
                    {
                        f"{pages}, {mib} MiB": (
                            forks["stock"][mib].instructions[pages],
                            forks["boosted"][mib].instructions[pages],
                        )
                        for pages in PAGES
                        for mib in sizes
                    },
                )
                for where, forks in places.items()
            ),
            _same_memory(places),
        ],
        machine=machine_facts([bare, pvh, strict, relaxed], {**host.versions(), **_redis()}),
        keys={"a_gib": slopes},
        summary=[
            BeforeAfter(
                f"fork of redis, a GiB that was written, in a {where}",
                f"{slope['stock']['dirty'] / 1e6:,.0f} M instructions",
                f"{slope['boosted']['dirty'] / 1e6:,.0f} M",
                f"bare metal: {slope['bare']['dirty'] / 1e6:,.0f} M",
            )
            for where, slope in slopes.items()
        ],
        targets=[
            Target(f"a GiB, {pages}, {where}", slope["boosted"][pages], TARGET_A_GIB)
            for where, slope in slopes.items()
            for pages in PAGES
        ],
    )


def _same_memory(places: Mapping[str, Forks]) -> Check:
    """Check that from one size to another the memory of all columns grows alike.

    Besides it redis has 4 MiB more on bare metal and under PVH; we take that for huge pages, which Xen PV
    has not.
    """
    grown: dict[int, list[int]] = {}
    for forks in places.values():
        for each in forks.values():
            least, *more = each
            for mib in more:
                grown.setdefault(mib, []).append(each[mib].kib - each[least].kib)
    apart = max(1 - min(kib) / max(kib) for kib in grown.values())
    text = f"from size to size resident memory grows by what differs by {100 * apart:.1f} % at most"
    return Check("the same memory", apart <= _APART_AT_MOST, text)


_APART_AT_MOST = 0.05


def _redis() -> Row:
    return host.package_versions(["redis-tools"])
