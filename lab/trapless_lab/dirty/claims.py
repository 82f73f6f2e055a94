# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The demonstration of dirty pages: what each way to find them costs, checked by comparing memory."""

from ..errors import LabError
from ..experiment.claim import Claim, Facts, Heading, Line, Part
from ..experiment.experiment import Context
from ..machines.script import Step
from .experiments.guest import MODULE, SMALLEST, STOCK, bench_command, bench_row, files

_OURS = "dbit"
_WORDS = {"soft-dirty": "/proc's soft-dirty bits", "uffd-sync": "userfaultfd", _OURS: "trapless"}


def _take(context: Context, backend: str) -> Facts:
    steps = [
        Step("load module", f"insmod /lib/trapless/{MODULE}.ko"),
        Step(backend, bench_command(backend, SMALLEST, 1.0, 1), 600),
    ]
    transcript = context.run(backend, STOCK, steps, files())
    row = bench_row(transcript[backend], backend, SMALLEST, 1.0)
    if row["missed"]:
        raise LabError(f"{backend} missed {row['missed']} of {row['dirtied']} dirty pages")
    return {
        f"{backend} tracked": max(row["tracked_insns_per_page"], 0),
        f"{backend} collect": row["collect_insns_per_page"],
        f"{backend} pages": row["dirtied"],
    }


def _claim(backend: str, seconds: int) -> Claim:
    return Claim(f"dirty pages by {_WORDS[backend]}", seconds, lambda context: _take(context, backend))


def _lines(facts: Facts) -> list[Line]:
    return [
        Line(
            what,
            facts[f"soft-dirty {key}"],
            facts[f"{_OURS} {key}"],
            facts[f"uffd-sync {key}"],
        )
        for what, key in (
            ("the program, a dirty page", "tracked"),
            ("the tracker, a dirty page", "collect"),
        )
    ]


def _gained(facts: Facts) -> str:
    before, after = (
        sum(facts[f"{name} {key}"] for key in ("tracked", "collect")) for name in ("soft-dirty", _OURS)
    )
    return f"tracking a dirty page takes {100 * after / before:.0f} % of what /proc's bits take"


def _kept(facts: Facts) -> str:
    return f"none of {facts[f'{_OURS} pages']:,.0f} dirty pages was missed (memory itself was compared)"


PART = Part(
    "dirty",
    Heading("tracking dirty pages", "/proc", "trapless", "userfaultfd"),
    (_claim("soft-dirty", 15), _claim("uffd-sync", 15), _claim(_OURS, 12)),
    _lines,
    _gained,
    _kept,
)
