# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The report: its items and docs/papers.md, what is kept and when it is stale, a failure, and both pages."""

import copy
import functools
import json
import operator
import random
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jmespath
import pytest
from click.testing import CliRunner

import replay
from trapless_lab import artifacts, catalogue, cli, output
from trapless_lab.dirty.experiments import boehm, criu, guest
from trapless_lab.errors import LabError
from trapless_lab.experiment.experiment import Check, Context, Experiment, Result, Target
from trapless_lab.experiment.report import as_json
from trapless_lab.machines import nested
from trapless_lab.overall import Overall
from trapless_lab.pagetable.experiments import latency
from trapless_lab.papers import PAPERS, documented, item, kept, making, measured, moved, page, read, sources
from trapless_lab.papers.item import Column, Comparison, Curves, Item, Line, Listing, Paper
from trapless_lab.papers.kept import Kept
from trapless_lab.papers.sources import Sources

ROOT = Path(__file__).resolve().parents[2]
ITEMS = [one for paper in PAPERS for one in paper.items]
VIEWS = [pytest.param(view, id=f"{one.anchor}-{at}") for one in ITEMS for at, view in enumerate(one.views, 1)]
NAMES = ("pears", "apples", "alone", *"abcd")
NOW, LATER = (Sources(commit, dict.fromkeys(NAMES, commit)) for commit in ("cafe", "beef"))


@pytest.fixture(scope="module")
def rows() -> list[documented.Row]:
    path = ROOT / "docs" / "papers.md"
    if not path.exists():
        pytest.skip("no documents")
    return documented.rows(path.read_text())


# The items and docs/papers.md


def test_every_table_and_figure_of_the_papers_is_in_the_report(rows: list[documented.Row]) -> None:
    drawn = [row for row in rows if row.is_drawn]
    assert len(drawn) > 70  # otherwise the reader reads nothing
    assert [row.item for row in drawn if not row.anchors] == []


def test_every_link_leads_to_an_item_and_every_item_has_one(rows: list[documented.Row]) -> None:
    assert {anchor for row in rows for anchor in row.anchors} == {one.anchor for one in ITEMS}
    assert len({one.anchor for one in ITEMS}) == len(ITEMS)


def test_what_is_done_is_shown_or_said_to_be_a_drawing(rows: list[documented.Row]) -> None:
    done = {anchor for row in rows if row.state.startswith(("done", "partly")) for anchor in row.anchors}
    assert [one.anchor for one in ITEMS if one.anchor in done and not one.views and not one.drawing] == []
    # And what is shown is not called background.
    shown = {one.anchor for one in ITEMS if one.views}
    assert shown <= {a for row in rows if not row.state.startswith("background") for a in row.anchors}


STATES = ("done", "partly: ", "planned", "open", "not reproducible here: ", "background")
MEASURED = re.compile(r"\d(?:[\d.,]*)\s?(?:%|\u00d7|times|instructions|pages|processes|ms\b)")


def test_every_state_is_one_of_the_documents_own(rows: list[documented.Row]) -> None:
    assert [row for row in rows if not row.state.startswith(STATES)] == []


def test_no_state_has_a_figure_that_the_next_run_changes(rows: list[documented.Row]) -> None:
    assert [row for row in rows if MEASURED.search(row.state)] == []


@pytest.mark.parametrize(
    "state",
    [
        *("done: measured; needs 2,092 pages", "done: CRIU 21.3 % on tiny", "done: 5.0\u00d7 slower"),
        *("done: 5,728 instructions", "partly: at most 1.6 times the throughput", "done: 636 processes"),
    ],
)
def test_a_measured_figure_in_a_state_is_found(state: str) -> None:
    assert MEASURED.search(state)


def test_what_is_done_is_not_announced() -> None:
    path = ROOT / "docs" / "papers.md"
    if not path.exists():
        pytest.skip("no documents")
    headings = {heading for table in documented.tables(path.read_text()) for heading in table.headings}
    assert "where it lives" in headings and [one for one in headings if " will " in one] == []


def test_items_are_in_the_order_of_the_document(rows: list[documented.Row]) -> None:
    # The document has the figures that are drawings last, where the paper has them first; so by paper.
    in_rows = list(dict.fromkeys(anchor.partition("-")[0] for row in rows for anchor in row.anchors))
    assert list(dict.fromkeys(one.anchor.partition("-")[0] for one in ITEMS)) == in_rows


@pytest.mark.parametrize(
    ("text", "is_drawn"),
    [
        ("5.2.1 and Figure 8, frequency", True),
        ("Tables 9 and 10, improvement", True),
        ("adaptive resizing (referred to as tab:adaptive_tlb_resizing)", True),
        ('"Limits": ufd, tracked', True),
        ("table (a): E(C_p)", True),
        ("3.5 a dedicated cache", False),
        ("5.1 shadow TLB entries", False),
    ],
)
def test_a_table_or_a_figure_is_known_by_its_name(text: str, is_drawn: bool) -> None:
    assert documented.Row(text, "", "", ()).is_drawn == is_drawn


def test_a_row_is_read_with_its_links() -> None:
    text = (
        "| item | the paper's numbers | what runs it | state |\n| --- | --- | --- | --- |\n"
        "| [Figure 8](report/report.md#f-8), `flushes` | 9,050 | x | partly: [no](x.md) browser |\n\n"
        "| state | meaning |\n| --- | --- |\n| `done` | it is here |\n"
    )
    assert documented.rows(text) == [
        documented.Row("Figure 8, flushes", "9,050", "partly: no browser", ("f-8",))
    ]


# The expressions


def test_the_experiments_exist() -> None:
    assert set(page.experiments(PAPERS)) <= set(catalogue.experiments())


@pytest.mark.parametrize("view", VIEWS)
def test_the_expressions_are_correct(view: item.View) -> None:
    found: list[str] = []
    if isinstance(view, Comparison):
        found += [view.rows] if isinstance(view.rows, str) else []
        for column in view.columns:
            found += [e for e in (column.theirs, column.ours, column.per) if isinstance(e, str) and e]
        assert not view.of or view.of in [column.name for column in view.columns]
        if not isinstance(view.rows, str):
            for column in view.columns:
                assert isinstance(column.theirs, str) or set(column.theirs) <= set(view.rows)
    elif isinstance(view, Curves):
        found += [expression for line in view.lines for expression in line.ours or ()]
    else:
        found.append(view.rows)
    for expression in found:
        jmespath.compile(expression.replace("{row}", "row"))


# Results that are kept


def result(value: float = 3, *, holds: bool = True) -> Result:
    return Result(
        unit="pears",
        method="counted",
        rows=[{"tree": "old", "pears": 10}, {"tree": "new", "pears": value}],
        paper=[{"tree": "old", "pears": 200}, {"tree": "new", "pears": 50}],
        checks=[Check("ripe", holds, "all of them")],
        machine={"qemu": "7.2", "machines": []},
        keys={"x": [1, 2, 3], "y": [1, None, value]},
        targets=[Target("pears left", value, 1)],
    )


def tree(name: str, run: Callable[[Context], Result], *, alone: bool = False) -> Experiment:
    return Experiment(name, "pagetable", "", "", 1, run, alone=alone)


PEARS = Paper(
    "pagetable",
    "On pears & <apples>",
    "One | two.",
    (
        Item(
            "pears-figure-1",
            "Figure 1",
            "pears",
            (
                Comparison(
                    "pears",
                    "Pears <a tree>",
                    "rows[].tree",
                    (
                        Column(
                            "pears", "paper[?tree=='{row}'].pears | [0]", "rows[?tree=='{row}'].pears | [0]"
                        ),
                        Column("left", {"old": "none"}, "rows[?tree=='{row}'].pears | [0]", model=True),
                    ),
                    "pears",
                    "pounds",
                    of="pears",
                ),
                Curves("pears", "Over time", "x", "y", (Line("a", ("x", "y"), ((0, 1), (9, 7))),)),
                Listing("apples", "Apples", "rows", {"tree": "tree", "pears": "apples", "none": "nothing"}),
            ),
        ),
        Item("pears-figure-2", "Figure 2", "a drawing", drawing="Nothing is measured."),
    ),
)


def make(folder: Path, *experiments: Experiment, now: Sources = NOW, before: Any = None) -> dict[str, Kept]:
    before = before or {}
    return making.make(experiments, before, making.Order(folder, now, quick=True), Overall(2), 2)


def test_a_result_is_kept_with_its_sources(tmp_path: Path) -> None:
    make(tmp_path, tree("pears", lambda _: result()))
    found = kept.load(tmp_path, ["pears", "apples"])
    assert set(found) == {"pears"}
    assert found["pears"].usable(NOW, quick=True)
    assert not found["pears"].usable(NOW, quick=False)
    assert not found["pears"].usable(LATER, quick=True)
    assert found["pears"].command == "trapless-lab run pears --quick"


def test_a_published_result_is_packed_and_takes_the_place_of_one_that_is_not(tmp_path: Path) -> None:
    (one,) = make(tmp_path, tree("pears", lambda _: result())).values()
    kept.save(tmp_path, one, packed=True)
    assert [path.name for path in tmp_path.glob("pears*")] == ["pears.json.gz"]
    assert kept.load(tmp_path, ["pears"]) == {"pears": one}
    packed = (tmp_path / "pears.json.gz").read_bytes()
    assert packed[4:8] == bytes(4)  # no time, with which the same result would be another file
    for broken in (packed[:-9], packed[:20] + b"\xff" + packed[21:], b"", b"{}"):
        (tmp_path / "pears.json.gz").write_bytes(broken)
        with pytest.raises(LabError, match=r"pears\.json\.gz is no kept result"):
            kept.load(tmp_path, ["pears"])


def test_a_failure_is_kept_and_the_others_run(tmp_path: Path) -> None:
    def fails(_context: Context) -> Result:
        raise LabError("no tree\nits log")

    def broken(_context: Context) -> Result:
        raise ZeroDivisionError

    experiments = [tree("a", fails), tree("b", broken), tree("c", lambda _: result())]
    made = make(tmp_path, *experiments)
    assert made["a"].failure.startswith("no tree") and "ZeroDivisionError" in made["b"].failure
    assert made["c"].result is not None
    assert kept.load(tmp_path, "abc") == made
    assert not made["a"].usable(NOW, quick=True)


def test_what_ended_before_a_stop_is_kept(tmp_path: Path) -> None:
    def stops(_context: Context) -> Result:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        order = making.Order(tmp_path, NOW, quick=True)
        making.make([tree("a", lambda _: result()), tree("b", stops, alone=True)], {}, order, Overall(1), 1)
    assert set(kept.load(tmp_path, "ab")) == {"a"}


def test_one_that_measures_the_host_has_nothing_beside_it(tmp_path: Path) -> None:
    running: list[str] = []
    most: dict[str, int] = {}

    def runs(name: str) -> Callable[[Context], Result]:
        def run(_context: Context) -> Result:
            running.append(name)
            most[name] = len(running)
            running.remove(name)
            return result()

        return run

    make(tmp_path, tree("alone", runs("alone"), alone=True), *(tree(name, runs(name)) for name in "abcd"))
    assert list(most)[-1] == "alone" and most["alone"] == 1


def test_a_file_that_is_no_result_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "pears.json").write_text('{"experiment": "pears"}')
    with pytest.raises(LabError, match=r"pears\.json is no kept result"):
        kept.load(tmp_path, ["pears"])
    make(tmp_path, tree("apples", lambda _: result()))
    (tmp_path / "apples.json").rename(tmp_path / "pears.json")
    with pytest.raises(LabError, match="is a result of apples"):
        kept.load(tmp_path, ["pears"])


DAMAGES = [
    pytest.param({"result": "rubbish"}, r"\$.result: 'rubbish' is not of type 'object'", id="text"),
    pytest.param({"result": []}, r"\$.result: \[\] is not", id="list"),
    pytest.param({"result": {}}, r"\$.result: 'experiment' is a required", id="empty"),
    pytest.param({"seconds": "3"}, r"\$.seconds: '3' is not", id="seconds"),
    pytest.param({"processors": None}, r"\$.processors: None is not", id="processors"),
    pytest.param({"result": None}, "neither a result nor a failure", id="nothing"),
    pytest.param({"peers": 1}, "unexpected keyword argument 'peers'", id="more"),
    pytest.param({"seconds": float("inf")}, "Infinity is no number", id="infinity"),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGES)
def test_a_result_of_another_shape_is_an_error(tmp_path: Path, damage: object, said: str) -> None:
    make(tmp_path, tree("pears", lambda _: result()))
    path = tmp_path / "pears.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    with pytest.raises(LabError, match=rf"pears\.json is no kept result \(.*{said}"):
        kept.load(tmp_path, ["pears"])


def _places(value: object, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield at
    inner: Iterable[tuple[str | int, object]] = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    for name, one in inner:
        yield from _places(one, (*at, name))


def test_whatever_one_value_is_a_page_is_made_or_the_file_named(tmp_path: Path) -> None:
    """Values of a result, one at a time, as another of every kind, or left out; a chart takes a while."""
    make(tmp_path, tree("pears", lambda _: result()))
    path = tmp_path / "pears.json"
    good = json.loads(path.read_text())
    outcomes = Counter[str]()
    others = (None, -1, 10**400, "it's \\", [1, "a"], {"a": 1}, _places)
    cases = [(place, other) for place in list(_places(good))[1:] for other in others]
    for place, other in random.Random(1).sample(cases, 40):
        bad = copy.deepcopy(good)
        inner = functools.reduce(operator.getitem, place[:-1], bad)
        if other is _places:
            del inner[place[-1]]
        else:
            inner[place[-1]] = other
        path.write_text(json.dumps(bad))
        try:
            found = kept.load(tmp_path, ["pears"])
        except LabError as error:
            assert "pears.json is" in str(error)
            outcomes["named"] += 1
        else:
            page.build([PEARS], [], found, NOW, quick=True)
            outcomes["made"] += 1
    assert min(outcomes["named"], outcomes["made"]) > 5


# The version of the sources


def _digest(repository: Path) -> tuple[str, str]:
    known = catalogue.experiments()
    found = sources.version(repository, [known["power-exits"], known["pagetable-flushes"]])
    return found.digests["power-exits"], found.digests["pagetable-flushes"]


def test_only_what_can_change_a_measurement_counts(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", tmp_path, *arguments], check=True, capture_output=True)

    def write(name: str, text: str) -> tuple[str, str]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        return _digest(tmp_path)

    (tmp_path / "power").mkdir()
    (tmp_path / "power/a.c").write_text("one")
    git("init")
    git("add", "-A")
    git("-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-m", "x")
    first = _digest(tmp_path)
    for name in (
        *("README.md", "docs/x.svg", "lab/tests/test_x.py", "lab/trapless_lab/papers/page.py"),
        *("dirty/a.c", "lab/trapless_lab/dirty/criu.py", "power/tests/machine/x.py"),
    ):
        assert write(name, "two") == first, name
    changed = write("power/a.c", "two")
    assert changed[0] != first[0] and changed[1] == first[1]
    assert write("power/a.c", "one") == first
    for name, both in (
        ("lab/trapless_lab/machines/runner.py", True),
        ("lab/trapless_lab/guest/init", True),
        ("kmod/a.c", True),
        ("lab/trapless_lab/power/console.py", False),
    ):
        before = _digest(tmp_path)
        after = write(name, "two")
        assert after[0] != before[0] and (after[1] != before[1]) == both, name
    experiment = "lab/trapless_lab/power/experiments/exits.py"
    said = [write(experiment, f"a(\n    minutes={minutes},\n    rounds=3,\n)\n") for minutes in (3, 12)]
    assert said[0] == said[1] != write(experiment, "a(\n    minutes=3,\n    rounds=4,\n)\n")


def test_an_experiment_counts_what_it_imports() -> None:
    found = sources.imports("trapless_lab.pagetable.experiments.size")
    assert {"pagetable/experiments/size.py", "pagetable/experiments/flushes.py", "host.py"} <= found
    assert not found & {"pagetable/experiments/io.py", "cli.py", "power/machine.py"}


def test_without_git_the_version_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="unknown without git"):
        sources.version(tmp_path, [])


# The page


def _given(found: Result, _context: Context) -> Result:
    return found


def pears(tmp_path: Path, **results: Result) -> page.Page:
    made = make(tmp_path, *(tree(name, partial(_given, of)) for name, of in results.items()))
    row = documented.Row("Figure 1, pears", "200 <b> | 50", "done", ("pears-figure-1",))
    return page.build([PEARS], [row], made, NOW, quick=True)


def text_of(built: page.Page, name: str) -> str:
    return page.render(built)[name].decode()


def test_both_pages_have_theirs_beside_ours(tmp_path: Path) -> None:
    built = pears(tmp_path, pears=result(), apples=result())
    assert built.good
    entry = built.parts[0].entries[0]
    table = entry.views[0].table
    assert table is not None
    assert table.headings == [
        "",
        "pears: the paper (pounds)",
        "pears: trapless (pears)",
        "left: the paper (pounds)",
        "left (model): trapless (pears)",
    ]
    assert table.rows == [
        ["old", "200", "10", "none", "10 (100 %)"],
        ["new", "50", "3", page.NOTHING, "3 (100 %)"],
    ]
    assert list(entry.views[1].pictures) == ["pears-figure-1-2-theirs.svg", "pears-figure-1-2-ours.svg"]
    assert entry.views[0].model and not entry.views[1].model
    assert entry.views[2].table == page.Table(["tree", "apples"], [["old", "10"], ["new", "3"]])
    for name in (page.HTML, page.MARKDOWN):
        shown = text_of(built, name)
        assert "QUICK RUN" in shown and "model" in shown and "Nothing is measured." in shown
        assert "trapless-lab run pears --quick" in shown and "pears left: 3, at most 1 wanted" in shown
        assert "<apples>" not in shown and "<b>" not in shown


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    class Outside(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.links: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.links += [
                value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")
            ]
            assert tag not in ("script", "link") or dict(attrs).get("href") == "data:,"

    parser = Outside()
    built = pears(tmp_path, pears=result(), apples=result())
    parser.feed(text_of(built, page.HTML))
    assert len(parser.links) > 5
    assert [link for link in parser.links if not link.startswith(("#", "data:"))] == []
    files = page.render(built)
    named = re.findall(r"!\[[^]]*\]\(([^)]*)\)", files[page.MARKDOWN].decode())
    assert sorted(named) == sorted(set(files) - {page.HTML, page.MARKDOWN}) != []


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    made = make(tmp_path, tree("pears", lambda _: result()), tree("apples", lambda _: result()))
    pages = [page.build([PEARS], [], kept.load(tmp_path, made), NOW, quick=True) for _ in range(2)]
    first, second = map(page.render, pages)
    assert first == second and len(first) > 2
    other = page.build([PEARS], [], {"pears": replace(made["pears"], result=None)}, NOW, quick=True)
    assert page.render(other) != first


def test_what_is_not_fresh_is_called_so(tmp_path: Path) -> None:
    made = make(tmp_path, tree("pears", lambda _: result()), tree("apples", lambda _: result(holds=False)))
    later = page.build([PEARS], [], made, LATER, quick=True)
    assert not later.good
    assert "STALE: made by other sources (cafe)" in text_of(later, page.HTML)
    assert later.sentence.startswith("0 of 2 experiments")
    missing = page.build([PEARS], [], {"pears": made["pears"]}, NOW, quick=True)
    assert not missing.good and "apples: not run" in text_of(missing, page.MARKDOWN)
    full = page.build([PEARS], [], made, NOW, quick=False)
    assert "made by a quick run" in text_of(full, page.HTML) and not full.good
    failed = replace(made["pears"], result=None, failure="no | tree\nits log")
    named = page.build([PEARS], [], {**made, "pears": failed}, NOW, quick=True)
    assert "FAILED: no \\| tree" in text_of(named, page.MARKDOWN) and not named.good
    for one, lacking in (
        (later, "Of 2 experiments: 2 STALE."),
        (missing, "Of 2 experiments: 1 not run."),
        (full, "Of 2 experiments: 2 made by a quick run."),
        (named, "Of 2 experiments: 1 FAILED."),
    ):
        for form in (page.HTML, page.MARKDOWN):
            assert lacking in text_of(one, form).partition("What held")[2].partition("One")[0]
    broken = page.build([PEARS], [], made, NOW, quick=True)
    assert not broken.good and "apples: ripe: all of them" in text_of(broken, page.HTML)
    assert broken.lacking == ""


def shown(view: item.View, found: dict[str, Any]) -> page.Shown:
    """Return a view of a paper as it is drawn from a result."""
    paper = Paper("pagetable", "", "", (Item("one", "Figure 1", "", (view,)),))
    one = Kept(view.experiment, False, "cafe", "cafe", "2026-01-02T03:04:05", 1, 1, {**as_kept(), **found})
    return page.build([paper], [], {view.experiment: one}, NOW, quick=False).parts[0].entries[0].views[0]


def as_kept() -> dict[str, Any]:
    return as_json(tree("pears", lambda _: result()), result())


def test_only_what_is_a_model_is_called_one() -> None:
    columns = Column("pears", "", "rows[?tree=='{row}'].pears | [0]"), Column("left", "", "x[0]", model=True)
    plain = Comparison("pears", "", "rows[].tree", columns[:1], "pears")
    # Beside measurements a model's figures are a key of the result; if all of it is a model, the key is true.
    for found, view, model in (
        ({"model": {"a": 1}}, plain, False),
        ({"model": {"a": 1}}, replace(plain, columns=columns), True),
        ({"model": True}, plain, True),
        ({}, plain, False),
    ):
        assert shown(view, found).model is model


def test_a_column_has_its_own_unit() -> None:
    columns = (
        Column("pears", {"old": 7}, "rows[?tree=='{row}'].pears | [0]"),
        Column("spread", {"old": 3}, "rows[?tree=='{row}'].pears | [0]", unit="%"),
    )
    table = shown(Comparison("pears", "", "rows[].tree", columns, "kg", "pounds"), {}).table
    assert table is not None and list(table.headings) == [
        *("", "pears: the paper (pounds)", "pears: trapless (kg)"),
        *("spread: the paper (%)", "spread: trapless (%)"),
    ]


def test_a_listing_says_what_a_person_understands() -> None:
    view = Listing("pears", "", "rows", {"tree": "tree", "pears": "pears"}, words={"old": "of last year"})
    table = shown(view, {}).table
    assert table is not None and [row[0] for row in table.rows] == ["of last year", "new"]


def test_a_machine_that_was_booted_again_is_named_once(tmp_path: Path) -> None:
    bare = {"name": "bare", "cpu": "qemu64", "cpus": 1, "memory_mib": 512, "icount": True}
    ran = replace(result(), machine={"qemu": "7.2", "machines": [bare, {**bare, "cpus": 2}, bare]})
    made = pears(tmp_path, pears=ran, apples=result()).parts[0].entries[0].made[0]
    assert "; bare: qemu64, 1 CPU, 512 MiB, icount (2 times); bare: qemu64, 2 CPUs" in made.text


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("product(x[0], x[2])", 3),
        ("quotient(x[2], x[1])", 1.5),
        ("quotient(x[2], `0`)", None),
        ("product(x[0], nothing)", None),
        ("rows[].product(pears, `2`)", [20, 6]),
    ],
)
def test_products_and_quotients(expression: str, found: object) -> None:
    assert read.value(expression, as_kept()) == found


def test_what_is_one_quantity_ends_at_one_place() -> None:
    line = Line("a", ("x", "y"), ((0, 1), (4000, 7)))
    one = Curves("pears", "", "x", "y", (line,))
    for view, has in ((one, True), (replace(one, their_x="minutes"), False)):
        theirs, ours = shown(view, {}).pictures.values()
        assert b"4,000" in theirs.svg or b"4000" in theirs.svg
        assert (b"4,000" in ours.svg or b"4000" in ours.svg) is has
    theirs, ours = shown(replace(one, their_y="minutes"), {"y": [1, 2, 700]}).pictures.values()
    assert b"600" in ours.svg and b"600" not in theirs.svg and b"minutes" in theirs.svg


def test_axes_are_the_same(tmp_path: Path) -> None:
    entry = pears(tmp_path, pears=result(700), apples=result()).parts[0].entries[0]
    theirs, ours = entry.views[1].pictures.values()
    # Both end where the larger does, ours: so theirs has 700 on its axis, too.
    assert b"600" in theirs.svg and b"600" in ours.svg


# The command


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose papers are on pears; each experiment's runs are written down."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/papers.md").write_text("")
    (tmp_path / "ran").write_text("")

    def runs(name: str) -> Experiment:
        def run(_context: Context) -> Result:
            with (tmp_path / "ran").open("a") as file:
                file.write(f"{name} ")
            if (tmp_path / f"{name}-fails").exists():
                raise LabError(f"no {name}")
            return result()

        return tree(name, run)

    monkeypatch.setattr(artifacts, "repository", lambda: tmp_path)
    monkeypatch.setattr(sources, "version", lambda *_: NOW)
    monkeypatch.setattr(catalogue, "experiments", lambda: {name: runs(name) for name in ("pears", "apples")})
    monkeypatch.setattr(cli, "PAPERS", (PEARS,))
    return tmp_path


def report(*arguments: str) -> tuple[int, str]:
    ran = CliRunner().invoke(cli.main, ["report", *arguments])
    return ran.exit_code, ran.output


def test_it_goes_on_where_it_was_stopped(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = str(checkout / "out")
    (checkout / "pears-fails").touch()
    code, shown = report("--quick", "-j1", "-o", target)
    assert code == 1 and "pears: FAILED: no pears" in shown and "1 of 2 experiments" in shown
    assert "FAILED: no pears" in (checkout / "out/report.html").read_text()
    (checkout / "pears-fails").unlink()
    code, shown = report("--quick", "-j1", "-o", target)
    assert code == 0 and "2 of 2 experiments" in shown
    assert sorted((checkout / "ran").read_text().split()) == ["apples", "pears", "pears"]
    assert report("--quick", "-j1", "-o", target)[0] == 0
    assert len((checkout / "ran").read_text().split()) == 3
    # By other sources all is made anew.
    monkeypatch.setattr(sources, "version", lambda *_: LATER)
    assert report("--quick", "-j1", "-o", target)[0] == 0
    assert len((checkout / "ran").read_text().split()) == 5
    kept_in = checkout / "results/report/quick"
    assert json.loads((kept_in / "pears.json").read_text())["commit"] == "beef"


def test_what_takes_too_long_is_in_full_reports_only(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = catalogue.experiments()
    long = {**known, "pears": replace(known["pears"], in_quick_report=False)}
    monkeypatch.setattr(catalogue, "experiments", lambda: long)
    target = checkout / "out"
    code, shown = report("-j1", "-o", str(target))
    assert code == 0 and "2 of 2 experiments" in shown
    assert "left out" not in (target / "report.html").read_text()
    pictures = len(list((target / page.FIGURES).iterdir()))
    (target / page.FIGURES / "of-the-user.svg").touch()
    # An older result of it is not shown as one of this report.
    shutil.copytree(checkout / "results/report/full", checkout / "results/report/quick")
    code, shown = report("--quick", "-j1", "-o", str(target))
    assert code == 0 and "1 of 1 experiments" in shown
    assert (checkout / "ran").read_text().split() == ["pears", "apples", "apples"]
    text = (target / "report.html").read_text()
    assert "pears: left out of a quick report" in text and "sizes, without pears." in text
    left = [path.name for path in (target / page.FIGURES).iterdir()]
    assert len(left) - 1 < pictures and "of-the-user.svg" in left
    assert [path.name for path in (target / page.RESULTS).iterdir()] == ["apples.json.gz"]
    # Results that are given are not removed, wherever they are.
    assert report("-j1", "-o", str(target))[0] == 0
    report("--quick", "--from", str(target / page.RESULTS), "-o", str(target))
    assert len(list((target / page.RESULTS).iterdir())) == 2


def test_what_moved_since_the_page_before_is_said(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = checkout / "out"
    assert "since the results" not in report("-j1", "-o", str(target))[1]
    before = kept.load(target / page.RESULTS, ["pears"])["pears"]
    known = catalogue.experiments()
    more = {**known, "pears": tree("pears", lambda _: result(4))}
    monkeypatch.setattr(catalogue, "experiments", lambda: more)
    monkeypatch.setattr(sources, "version", lambda *_: LATER)
    shown = report("-j1", "-o", str(target))[1]
    assert f"since the results in {target}: worse: pears, pears left: 4, 3 at {before.commit}" in shown
    assert "apples, " not in shown


@pytest.mark.parametrize(
    ("was", "figure", "said"),
    [
        (100.0, 102.0, ["worse: pears, pears left: 102, 100 at cafe"]),
        (100.0, 98.0, ["better: pears, pears left: 98, 100 at cafe"]),
        (100.0, 100.5, []),
        (0.0, 0.0, []),
        (0.0, 1.0, ["worse: pears, pears left: 1, 0 at cafe"]),
    ],
)
def test_how_far_a_target_moved(was: float, figure: float, said: list[str]) -> None:
    def of(value: float, *, quick: bool = False) -> dict[str, Kept]:
        made = as_json(tree("pears", lambda _: result()), result(value))
        return {"pears": Kept("pears", quick, "cafe", "cafe", "2026-01-02T03:04:05", 1, 1, made)}

    assert moved.since(of(was), of(figure)) == said
    assert moved.since(of(was, quick=True), of(figure)) == []
    assert moved.since({}, of(figure)) == []


def test_two_do_not_share_a_folder(checkout: Path) -> None:
    target = str(checkout / "out")
    with output.alone(checkout / "results/report/quick", "a test"):
        code, shown = report("--quick", "-o", target)
        assert code == 1 and "results/report/quick is in use" in shown.replace("\n", "")
        assert (checkout / "ran").read_text() == ""
    assert report("--quick", "-j1", "-o", target)[0] == 0


def test_from_runs_nothing(checkout: Path) -> None:
    empty = checkout / "empty"
    empty.mkdir()
    code, shown = report("--from", str(empty), "-o", str(checkout / "out"))
    assert code == 1 and "has no result of these experiments" in shown.replace("\n", "")
    assert not (checkout / "out").exists() and (checkout / "ran").read_text() == ""
    assert list(empty.iterdir()) == []
    assert report("--quick", "-j2", "-o", str(checkout / "out"))[0] == 0
    made = str(checkout / "results/report/quick")
    assert report("--quick", "--from", made, "-o", str(checkout / "again"))[0] == 0
    assert (checkout / "again/report.html").read_bytes() == (checkout / "out/report.html").read_bytes()
    assert len((checkout / "ran").read_text().split()) == 2


def test_figures_of_full_runs_go_into_a_document(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = measured.Figures("pears", {"old": (("x[2]",), ())})
    monkeypatch.setattr(measured, "TABLES", {"pears": figures})
    document = checkout / "results.md"
    text = "<!-- measured: pears -->\n| tree | pears | by |\n| --- | --- | --- |\n| old | 7.0 kg | hand |\n"
    document.write_text(text)
    arguments = "-j1", "-o", str(checkout / "out"), "--tables", str(document)
    assert report("--quick", *arguments)[0] == 0 and document.read_text() == text
    assert report(*arguments)[0] == 0
    assert document.read_text().endswith("sources cafe -->\n" + text.partition("\n")[2].replace("7.0", "3.0"))
    # What does not fit is found before anything runs.
    ran = (checkout / "ran").read_text()
    document.write_text(text.replace("| old", "| new"))
    monkeypatch.setattr(sources, "version", lambda *_: LATER)
    code, shown = report(*arguments)
    assert code == 1 and "0 rows are called old" in shown and (checkout / "ran").read_text() == ran


def test_a_target_that_cannot_be_written_is_found_first(checkout: Path) -> None:
    (checkout / "file").touch()
    code, shown = report("--quick", "-o", str(checkout / "file"))
    assert code != 0 and (checkout / "ran").read_text() == "" and "Traceback" not in shown
    (checkout / "out").mkdir()
    (checkout / "out" / "results").touch()
    code, shown = report("--quick", "-o", str(checkout / "out"))
    assert code == 1 and "out/results: File exists" in shown and (checkout / "ran").read_text() == ""


def test_a_document_in_another_encoding_is_named_first(checkout: Path) -> None:
    document = checkout / "results.md"
    document.write_bytes(b"\xff")
    code, shown = report("--quick", "-o", str(checkout / "out"), "--tables", str(document))
    assert code == 1 and "results.md is no text in UTF-8" in shown and (checkout / "ran").read_text() == ""


def test_only_is_a_part(checkout: Path) -> None:
    assert report("--only", "pears", "-o", str(checkout / "out"))[0] == 2
    code, shown = report("--only", "dirty", "--quick", "-o", str(checkout / "out"))
    assert code == 0 and "0 of 0 experiments" in shown and (checkout / "ran").read_text() == ""


# What is shown of recorded runs

RECORDED = ("dirty-boehm", "dirty-criu", "dirty-guest", "dirty-guest-spml", "process-latency")


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    """The results of recorded quick runs."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (boehm, criu, guest):
            patch.setattr(module, "files", dict)
        patch.setattr(nested, "files", lambda *_inner: {})
        patch.setattr(artifacts, "_built", lambda path, _how: path)
        known = catalogue.experiments()
        return {name: as_json(known[name], known[name].run(replay.quick(name))) for name in RECORDED}


def empty(view: item.View, result: dict[str, Any]) -> list[str]:
    """Return what of a view has no value of ours, although it should."""
    if isinstance(view, Comparison):
        names = read.rows(view, result)
        wanted = [column for column in view.columns if column.ours]
        return [c.name for c in wanted if all(read.ours(c, row, result) is None for row in names)]
    if isinstance(view, Curves):
        return [line.name for line in view.lines if line.ours and not read.points(line, result)]
    rows = read.listed(view, result)
    return [name for at, name in enumerate(view.columns.values()) if all(row[at] is None for row in rows)]


@pytest.mark.parametrize("name", RECORDED)
def test_every_key_is_in_a_recorded_result(name: str, recorded: dict[str, Any]) -> None:
    shown = [(one.anchor, view) for one in ITEMS for view in one.views if view.experiment == name]
    assert shown
    assert [(anchor, missing) for anchor, view in shown if (missing := empty(view, recorded[name]))] == []


def test_every_key_is_in_the_committed_report() -> None:
    found = kept.load(ROOT / "docs/report/results", page.experiments(PAPERS))
    if not found:
        pytest.skip("no documents")
    shown = [(one.anchor, view) for one in ITEMS for view in one.views if view.experiment in found]
    results = {name: dict(one.result or {}) for name, one in found.items()}
    assert [
        (anchor, missing) for anchor, view in shown if (missing := empty(view, results[view.experiment]))
    ] == []


def column_of(anchor: str, title: str, name: str) -> tuple[Comparison, Column]:
    (view,) = (v for one in ITEMS if one.anchor == anchor for v in one.views if v.title == title)
    assert isinstance(view, Comparison)
    (column,) = (column for column in view.columns if column.name == name)
    return view, column


def test_times_and_numbers_of_the_slides_formulas_stand_in_their_rows(recorded: dict[str, Any]) -> None:
    view, spml = column_of("ooh-formulas-spml", "Parts, estimates and measurements", "SPML")
    theirs = {row: read.theirs(spml, row, {}) for row in read.rows(view, {})}
    # 18,000 ms of VM exits, not so many of them; and what N counts the slide does not say.
    assert (theirs["exits"], theirs["N"], theirs["vmread"], theirs["faults"]) == (18_000, 39, 0.00173, None)
    found = recorded["dirty-guest-spml"]
    parts = found["formulas"][0]
    assert read.ours(spml, "exits", found) == parts["a fault"] * parts["faults"]
    assert read.ours(spml, "faults", found) == parts["faults"] and read.ours(spml, "N", found) is None


def test_a_factor_of_no_program_is_given_to_none(recorded: dict[str, Any]) -> None:
    for name, programs in (("boehm", {"string-match"}), ("criu", {"pca"})):
        found = recorded[f"dirty-{name}"]
        for anchor in (f"ooh-tracker-{name}", f"ooh-tracked-{name}"):
            for one in (one for one in ITEMS if one.anchor == anchor):
                named = {
                    row
                    for view in one.views
                    if isinstance(view, Comparison) and isinstance(view.rows, str)
                    for column in view.columns
                    for row in read.rows(view, found)
                    if read.theirs(column, row, found) is not None
                }
                # The slides name the program that a tracker slows down most, and no other.
                assert named == {"no program named"} | (programs if "tracked" in anchor else set())


def test_how_many_times_faster_follows_from_each_machines_own_share(recorded: dict[str, Any]) -> None:
    _, column = column_of("ooh-tracker-boehm", "How many times faster EPML's tracker is", "than SPML")
    found = recorded["dirty-boehm"]
    share = found["spml_tracker_of_proc"]["gcbench, small"]
    ours = read.ours(column, "gcbench", found)
    assert ours == pytest.approx(share / found["tracker_of_proc"]["epml"]["gcbench, small"], rel=0.01)
    assert read.theirs(column, "no program named", found) == 6 and read.ours(column, "", found) is None


@pytest.fixture(scope="module")
def committed() -> dict[str, dict[str, Any]]:
    """The results of the committed report."""
    found = kept.load(ROOT / "docs/report/results", page.experiments(PAPERS))
    if not found:
        pytest.skip("no documents")
    return {name: dict(one.result) for name, one in found.items() if one.result}


def test_the_range_and_deviation_of_netperf_stand_beside_ours(committed: dict[str, dict[str, Any]]) -> None:
    found = committed["pagetable-io"]
    (row,) = (one for one in found["rows"] if one["measure"] == "network beside processes, Mbps")
    for name, state, theirs in (("stock", "stock", 0.021), ("PiBooster alone", "piboost", 0.028)):
        view, column = column_of("pibooster-table-2", "How far its runs differ", name)
        assert set(column.theirs) == set(read.rows(view, found)) and not view.chart
        assert read.theirs(column, "deviation", found) == theirs
        ours = row[state] * row[f"{state}_stdev_percent"] / 100
        assert read.ours(column, "deviation", found) == pytest.approx(ours)
        assert read.ours(column, "least", found) is None


def test_a_figure_of_the_papers_own_means_is_drawn() -> None:
    for level, anchor in (("L1", "pibooster-figure-9"), ("L3", "pibooster-figure-11")):
        (one,) = (one for one in ITEMS if one.anchor == anchor)
        (lines,) = (view for view in one.views if isinstance(view, Curves))
        _, stock = column_of(anchor, f"A table of level {level[1]}", "stock")
        # The means are those of the table, which the experiment has.
        means = {"paper": latency.PAPER}
        drawn = {line.name: line.theirs for line in lines.lines}
        for direction in ("allocate", "free"):
            assert drawn[f"stock, {direction}"][0][1] == read.theirs(stock, direction, means)
            assert drawn[f"Dyn, {direction}"][-1][1] == drawn[f"Pre, {direction}"][-1][1]


def test_what_a_table_does_not_list_is_not_zero(committed: dict[str, dict[str, Any]]) -> None:
    (one,) = (one for one in ITEMS if one.anchor == "power-figure-1")
    (view,) = one.views
    assert isinstance(view, Comparison)
    found = committed["power-benchmarks"]
    theirs = {column.name: read.theirs(column, "boot", found) for column in view.columns}
    lacking = {name for name, value in theirs.items() if value is None}
    assert lacking == {"mfmsr", "tlbsx", "dsi", "syscall"} and theirs["mfspr"] == 33.8


def test_a_number_of_processes_is_not_called_a_share() -> None:
    title = "Flushes of a process in the steady state"
    _, column = column_of("pibooster-figure-8", title, "processes until zero")
    # "in about one minute", and "roughly two minutes" of 542 processes.
    assert column.unit == "a number" and column.theirs == {"pre": 542, "dyn": 1084}


def test_a_key_that_is_not_there_is_found() -> None:
    column = Column("pears", "", "rows[?tree=='{row}'].peers | [0]")
    view = Comparison("pears", "", "rows[].tree", (column,), "")
    found = {"rows": [{"tree": "old", "pears": 1}]}
    assert empty(view, found) == ["pears"]
    assert empty(Listing("pears", "", "rows", {"peers": "x"}), found) == ["x"]
    assert empty(Curves("pears", "", "", "", (Line("a", ("x", "y")),)), found) == ["a"]


def test_the_committed_page_has_all_items_and_pictures() -> None:
    folder = ROOT / "docs/report"
    if not folder.exists():
        pytest.skip("no documents")
    shown, text = ((folder / name).read_text() for name in (page.HTML, page.MARKDOWN))
    for one in ITEMS:
        assert f'id="{one.anchor}"' in shown and f'id="{one.anchor}"' in text
    named = set(re.findall(r"!\[[^]]*\]\(([^)]*)\)", text))
    assert named == {f"{page.FIGURES}/{path.name}" for path in (folder / page.FIGURES).iterdir()}
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 4_000_000
    quick = any(one.quick for one in kept.load(folder / page.RESULTS, page.experiments(PAPERS)).values())
    assert ("QUICK RUN" in shown) == ("QUICK RUN" in text) == quick
