# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What each way to track dirty pages costs on this host, without a machine around it: OoH's "Limits" slides.

Invariant: every figure is of one run of ``trapless dirty bench``, which finds missed pages by comparing
memory. Figures are processor time on one processor, so that other programs and the wake-up of an idle
processor are not in them. Checks of costs are made in the full run only: a quick one has few rounds.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ... import artifacts
from ...errors import LabError
from ...experiment import plots
from ...experiment.experiment import BeforeAfter, Check, Context, Result, experiment

Report = Mapping[str, Any]

# By which factor a tracked page must cost more than one of uffd-async; what the library may add.
CHEAPER = 3
COLLECT_OVER_IOCTL = 1.2
LIBRARY_OVER_TWIN = {"uffd-sync": 1.3}
"""Else 1.05. uffd-sync's handler makes two system calls a fault that its twin does not make: it waits for the
request to end as well, and looks whether its descriptor is still its own. On one processor nothing hides
them."""
USUAL_OVER_TWIN = 1.05
# One bit a page, one more for each 512 pages, and 5 % besides the bitmap.
BITS_PER_PAGE = 1.05
PAGE_BITS = 4096 * 8

# Slowdowns for 1 GB, in the paper's virtual machine, not on this host.
PAPER = [
    {
        "technique": "ufd",
        "backend": "uffd-sync",
        "tracked": "15.6x",
        "tracker": "14.5x",
        "where": "paper's VM",
    },
    {
        "technique": "/proc",
        "backend": "soft-dirty",
        "tracked": "4.3x",
        "tracker": "2.5x",
        "where": "paper's VM",
    },
]


def tool() -> Path:
    """Return the command, built for release."""
    return artifacts.program("trapless")


def bench(*, quick: bool) -> Report:
    """Run the bench, which shows its own progress bar."""
    command = [str(tool()), "dirty", "bench", "--json", *(["--quick"] if quick else [])]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    try:
        report = json.loads(ran.stdout)
    except ValueError:
        report = None
    # Exit code 1 with a report means missed pages, which the checks report.
    if not isinstance(report, dict) or ran.returncode not in (0, 1):
        raise LabError(f"trapless dirty bench failed, exit code {ran.returncode}; its message is above")
    return report


def checks(report: Report, *, quick: bool) -> list[Check]:
    """Check a report against the claims."""
    rows = {row["backend"]: row for row in report["rows"]}
    points = report["sweep"]["points"] if report["sweep"] else []
    found = [
        Check(
            f"{name} missed",
            row["missed"] == 0 and row["twin_missed"] == 0,
            f"{row['missed']} pages missed by the library, {row['twin_missed']} by its twin; "
            f"{row['spurious']} spurious",
        )
        for name, row in rows.items()
    ]
    if points:
        missed = sum(point["missed"] for point in points)
        found.append(Check("sizes missed", missed == 0, f"{missed} pages missed over {len(points)} sizes"))
    if report["sweep"] and report["sweep"]["bits_per_page"] is not None:
        bits = report["sweep"]["bits_per_page"]
        # The kernel counts memory in whole pages, so the slope may include one page too many.
        limit = BITS_PER_PAGE + PAGE_BITS / (points[-1]["pages"] - points[0]["pages"])
        text = f"{bits:.2f} bits for each further page, at most {limit:.2f} wanted"
        found.append(Check("memory", bits <= limit, text))
    if quick:
        return found
    if cheap := rows.get("uffd-async"):
        for name in ("mprotect", "uffd-sync"):
            if name in rows:
                times = _per_page(rows[name]) / _per_page(cheap)
                text = f"a page tracked and collected costs {times:.1f} times uffd-async's, {CHEAPER} wanted"
                found.append(Check(f"{name} dearer", times >= CHEAPER, text))
        found.append(_ratio("collect to bare ioctl", cheap["collect_over_twin"], COLLECT_OVER_IOCTL))
    found.extend(
        _ratio(f"{name} to its twin", row["library_over_twin"], LIBRARY_OVER_TWIN.get(name, USUAL_OVER_TWIN))
        for name, row in rows.items()
    )
    return found


def _per_page(row: Mapping[str, Any]) -> float:
    return float(row["tracked_ns_per_page"] + row["collect_ns_per_page"])


def _ratio(name: str, ratio: Mapping[str, float], most: float) -> Check:
    text = (
        f"{ratio['median']:.3f} (quartiles {ratio['q1']:.3f} and {ratio['q3']:.3f}, n={ratio['n']}), "
        f"at most {most} wanted"
    )
    return Check(name, ratio["median"] <= most, text)


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "backend": row["backend"],
        "pages": row["pages"],
        "untracked_ns_per_page": round(row["untracked_ns_per_page"]["median"], 1),
        "tracked_ns_per_page": round(row["tracked_ns_per_page"], 1),
        "times_untracked": round(row["tracked_over_untracked"]["median"], 1),
        "collect_ns_per_page": round(row["collect_ns_per_page"], 2),
        "missed": row["missed"],
        "spurious": row["spurious"],
        "to_twin": round(row["library_over_twin"]["median"], 3),
        "to_twin_quartiles": f"{row['library_over_twin']['q1']:.3f}-{row['library_over_twin']['q3']:.3f}",
        "collect_to_twin": round(row["collect_over_twin"]["median"], 3),
        "bookkeeping_bytes": row["memory"]["bookkeeping_bytes"],
        "watched_pages": row["memory"]["watched_pages"],
    }


def _summary(rows: Sequence[Mapping[str, Any]]) -> list[BeforeAfter]:
    by_name = {row["backend"]: row for row in rows}
    if not (cheap := by_name.get("uffd-async")):
        return []
    return [
        BeforeAfter(
            f"a tracked page, ns ({name} before)",
            f"{_per_page(by_name[name]):,.0f}",
            f"{_per_page(cheap):,.0f}",
            f"untracked: {cheap['untracked_ns_per_page']['median']:,.0f}",
        )
        for name in ("mprotect", "uffd-sync")
        if name in by_name
    ]


def _draw(album: plots.Album, points: Sequence[Mapping[str, Any]]) -> None:
    mib = [point["bytes"] / 2**20 for point in points]
    collect = [point["collect_ns"]["median"] / 1e6 for point in points]
    album.lines(
        "dirty-native.png",
        {"uffd-async, all pages dirty": (mib, collect)},
        x="MiB watched",
        y="ms a collect",
        title="A collect by size, on this machine",
    )


@experiment(
    name="dirty-native",
    accelerator="dirty",
    title="Dirty pages without a hypervisor",
    reproduces='OoH, "Limits of existing solutions"',
    minutes=3,
    alone=True,
)
def dirty_native(context: Context) -> Result:
    """Measure every back end that works here, against its twin and against no tracking."""
    report = bench(quick=context.quick)
    sweep = report["sweep"]
    if context.plots and sweep:
        _draw(context.plots, sweep["points"])
    return Result(
        unit="ns of processor time",
        method=f"{report['clock']}; each back end in {report['repeat']} turns with its twin (the bare "
        "mechanism by hand) and with no tracking, in one process; medians; missed and spurious by comparing "
        "memory",
        rows=[_row(row) for row in report["rows"]],
        paper=PAPER,
        checks=checks(report, quick=context.quick),
        machine={**report["host"], "machines": []},
        keys={"rejected": report["rejected"], "sweep": sweep, "bench": report["rows"]},
        summary=_summary(report["rows"]),
    )
