# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Crossings into Xen and TLB flushes: the plugin's file, Xen's entry points, prices."""

from collections import Counter
from pathlib import Path

import pytest

from trapless_lab import artifacts
from trapless_lab.errors import LabError
from trapless_lab.experiment import workload
from trapless_lab.machines import domu
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step, StepResult
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable import crossings, prices
from trapless_lab.pagetable.crossings import Crossings
from trapless_lab.pagetable.experiments.process_latency import claimed
from trapless_lab.plugins import events
from trapless_lab.profiler import binaries
from trapless_lab.symbols import Area

LINES = """\
begin
call 10
hypercall 7
page_fault 2
xen:cr3 5
kernel:cr3 1
end
begin
end
"""


def parsed(text: str = LINES) -> list[events.Interval]:
    return events.parse(text.splitlines())


def test_the_plugins_file() -> None:
    first, second = parsed()
    assert first["call"] == 10
    assert second == {}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (LINES.removesuffix("end\n"), "in the middle"),
        (LINES.removeprefix("begin\n"), "line 1"),
        (LINES.replace("hypercall 7", "call 7"), "line 3"),
        (LINES.replace("call 10", "call -1"), "line 2"),
    ],
)
def test_an_incomplete_file_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(LabError, match=complaint):
        parsed(text)


def test_a_plan_is_one_item_a_line(tmp_path: Path) -> None:
    plan = events.Plan(events=[(0x10, "a")], entries=[(0x20, "b")], leaves=[(0x30, 0x40)])
    assert plan.write(tmp_path / "plan").read_text() == "event 10 a\nentry 20 b\nleave 30 40\n"


def test_kinds_add_up() -> None:
    found = crossings.of(parsed()[0])
    assert (found.system_calls, found.hypercalls, found.page_faults) == (3, 7, 2)
    assert found.entries == 12
    assert found.cr3_loads == 6
    assert (found + found).each(2) == found


def _transcript(*outputs: str) -> Transcript:
    results = tuple(StepResult(Step(f"{i}", ""), out.encode(), 0, 0.0) for i, out in enumerate(outputs))
    return Transcript(MACHINES["xen-strict"], results, (), "")


def test_intervals_belong_to_the_steps_that_printed_them() -> None:
    said = "profiled ns=1\nof a\nprofiled ns=2\nof b\n"
    found = crossings._by_step(
        _transcript(said, "nothing", "profiled ns=3\nof a\n"), [{"call": n} for n in (1, 2, 4)]
    )
    assert [found[name].total("a").entries for name in ("0", "2")] == [1, 4]
    assert found["0"].total("b").entries == 2
    assert not found["1"].intervals


def test_an_interval_that_nobody_printed_is_an_error() -> None:
    with pytest.raises(LabError, match="printed 1 intervals, 2 were counted"):
        crossings._by_step(_transcript("profiled ns=1\nof a\n"), [{}, {}])


def test_a_domus_console_repeats_what_was_printed() -> None:
    said = b"profiled ns=1\nof a\n"
    results = tuple(StepResult(step, said, 0, 0.0) for step in (Step("inside", ""), domu.console()))
    found = crossings._by_step(Transcript(MACHINES["xen-strict"], results, (), ""), [{"call": 1}])
    assert [len(found[name].intervals) for name in ("inside", domu.CONSOLE)] == [1, 0]


def test_names_of_intervals() -> None:
    said = "x ns=1 n=2\nprofiled ns=1\nof x\naround ns=4\n"
    assert workload.intervals(StepResult(Step("x", ""), said.encode(), 0, 0.0)) == ["x"]


def test_entry_points_of_this_hosts_xen() -> None:
    found = crossings.plan(MACHINES["xen-strict"])
    assert {name for _, name in found.entries} == {"call", "page_fault", "other_fault", "interrupt"}
    assert len({address for address, _ in found.entries}) == len(found.entries)
    ((first, end),) = found.leaves
    assert first < end <= min(address for address, name in found.entries if name == "call")


def test_a_xen_without_an_entry_point_is_refused() -> None:
    xen = binaries.Hypervisor(Area("xen", 0, 1), {"entry_PF": 16}, b"")
    assert crossings._find(xen, ("page_fault", "entry_PF")) == 16
    with pytest.raises(LabError, match="none of common_interrupt"):
        crossings._find(xen, ("common_interrupt",))


def test_linux_alone_has_instructions_only() -> None:
    assert crossings.plan(MACHINES["bare"]) == events.Plan()


def test_what_an_old_model_alone_causes_is_not_claimed() -> None:
    stock, boosted = Crossings(hypercalls=100, segment_bases=8), Crossings(hypercalls=50, segment_bases=3)
    assert claimed(stock, boosted, real=True) == 50
    assert claimed(stock, boosted, real=False) == 55
    assert claimed(boosted, stock, real=False) == 100


def test_prices() -> None:
    processor = prices.Processor("x", 2.0, 500)
    assert processor.us(2000, Crossings()) == 1
    assert processor.us(2000, Crossings(hypercalls=4)) == 3
    assert processor.us(0, Crossings(flushes=20, flush_ipis=1)) == 4
    (row, *others) = prices.rows({"stock": {"m": 2000}}, {"stock": {"m": Crossings()}}, ["m"])
    assert "model" in row["measure"] and len(others) == len(prices.PROCESSORS) - 1


def test_debian13s_xen_has_entry_points_of_other_names() -> None:
    try:
        root = artifacts.fetched_xen("debian13")
    except LabError as error:
        pytest.skip(str(error))
    found = crossings.plan(MACHINES["xen-strict"].with_xen(root))
    here = crossings.plan(MACHINES["xen-strict"])
    assert Counter(name for _, name in found.entries) == Counter(name for _, name in here.entries)
