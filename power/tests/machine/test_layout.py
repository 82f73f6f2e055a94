# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Layouts of traced blocks: recorded, replayed, forged; and texts that KVM refuses.

A replay splits nothing and traces hardly anything. With any layout, here with random sizes, a guest ends in
the same state. ``guest/layout.c`` makes the texts and has a parser of its own as the model.
"""

import random
import re
from dataclasses import replace

import pytest

from differential import BASE, GUEST, Setting, checksums, require_same
from trapless_lab import artifacts
from trapless_lab.machines.initramfs import File
from trapless_lab.power import machine as power
from trapless_lab.power.machine import MODES, How, Vm

pytestmark = pytest.mark.machine

LIMITED = How(timeout_s=300)
WRITER = "/bin/layout"
FUZZED = 2000
GUEST_PAGES = 64 << 20 >> 12
# No larger ones: too many of a guest's loads and stores would be traced for a test.
SIZES = (4, 16, 64, 256)
# They include loops of lwarx, two traced loads and stwcx., which splitting would not end.
SEQUENCES = "seed=3 count=400"
EINVAL, EBUSY, EFBIG = 22, 16, 27

ADAPTIVE = Vm("adaptive", MODES["inplace"], "run=getppid")
WRONG_SEQUENCES = Setting("wrong-sequences", 2)


def files(**layouts: str) -> dict[str, File]:
    programs = {
        WRITER: File(artifacts.power("tests/guest", "layout"), 0o755),
        GUEST: File(artifacts.power("tests/guest", "differ.elf")),
    }
    return {**programs, **{f"/layouts/{name}": File(text.encode()) for name, text in layouts.items()}}


def given(label: str) -> Vm:
    return replace(ADAPTIVE, label=label, options=("--bt-layout", f"/layouts/{label}"))


def wrong_layout() -> str:
    """Return a random size for each page."""
    chosen = random.Random(1)
    return "".join(f"{page:x} {chosen.choice(SIZES)}\n" for page in range(GUEST_PAGES))


@pytest.fixture(scope="module")
def recorded() -> power.Console:
    """A guest whose blocks are split, and texts written to such files."""
    beside = replace(ADAPTIVE, label="beside")
    script = [
        *power.one_after_another([ADAPTIVE]),
        f"run texts {WRITER} texts",
        f"run fuzz {WRITER} fuzz {FUZZED}",
        f"run control {WRITER} control {FUZZED}",
        *power.side_by_side([beside])[:-2],
        f"run busy {WRITER} busy",
        "wait",
        f"show beside.statistics /tmp/statistics-{beside.label}",
    ]
    return power.in_host(script, files=files(), how=LIMITED, label="recorded")


@pytest.fixture(scope="module")
def replayed(recorded: power.Console) -> power.Console:
    """The same guest with the recorded layout, with an empty one and with a wrong one."""
    layouts = {"replayed": recorded.layout(ADAPTIVE.label), "empty": "", "wrong": wrong_layout()}
    script = power.one_after_another([given(name) for name in layouts])
    script += BASE.script(SEQUENCES)
    script += [
        line.replace(" --append", " --bt-layout /layouts/wrong --append")
        for line in WRONG_SEQUENCES.script(SEQUENCES)
    ]
    return power.in_host(script, files=files(**layouts), how=LIMITED, label="replayed")


def lines(console: power.Console, label: str) -> dict[str, list[str]]:
    return {page: rest for page, *rest in map(str.split, console.layout(label).splitlines())}


def started(console: power.Console, label: str) -> int:
    return console.of(label).results["kernel_boot"].ticks


def test_what_is_recorded_is_what_was_split(recorded: power.Console) -> None:
    pages = lines(recorded, ADAPTIVE.label)
    counts = recorded.statistics(ADAPTIVE.label)
    assert counts["bt_splits"] > 3 and len(pages) > 50
    small = [page for page, (kb, *_) in pages.items() if int(kb) < 4096]
    assert len(small) > 3
    assert {rest[1] for rest in pages.values() if len(rest) > 1} == {"traced"}


def test_a_replay_splits_nothing_and_traces_less(recorded: power.Console, replayed: power.Console) -> None:
    before, after = lines(recorded, ADAPTIVE.label), lines(replayed, "replayed")
    assert replayed.statistics("replayed")["bt_splits"] == 0
    assert before
    assert all(after[page][0] == rest[0] for page, rest in before.items())
    # The file contains what was written to it; the counters show what KVM did with it.
    assert replayed.traced("replayed") < recorded.traced(ADAPTIVE.label) / 4
    assert started(replayed, "replayed") < started(recorded, ADAPTIVE.label)


def test_negative_control_an_empty_layout_is_slow(recorded: power.Console, replayed: power.Console) -> None:
    assert replayed.statistics("empty")["bt_splits"] == 0
    assert started(replayed, "empty") > 2 * started(recorded, ADAPTIVE.label)
    assert replayed.traced("empty") > 20 * recorded.traced(ADAPTIVE.label)


def test_linux_runs_with_wrong_sizes(replayed: power.Console) -> None:
    """The fixture has checked its output."""
    counts = replayed.statistics("wrong")
    assert counts["bt_sites"] > 50 and counts["bt_splits"] == 0


def test_sequences_end_in_the_same_state_with_wrong_sizes(replayed: power.Console) -> None:
    require_same(replayed, WRONG_SEQUENCES, checksums(replayed, BASE))
    counts = replayed.statistics(WRONG_SEQUENCES.label)
    assert counts["bt_patched"] > 32 and counts["bt_splits"] == 0 and counts["bt_traced_loads"] > 32


def test_an_invalid_layout_is_refused_with_line_and_reason(recorded: power.Console) -> None:
    answers = re.findall(r"^texts\| text: (.*): (\d+) (.*)$", recorded.text, re.MULTILINE)
    found = {what: (int(why), then) for what, why, then in answers}
    assert found.pop("a good one") == found.pop("nothing at all") == (0, "changed")
    assert found.pop("too many bytes") == (EFBIG, "as it was")
    assert len(found) > 15 and set(found.values()) == {(EINVAL, "as it was")}
    said = re.findall(r"kvm: bt_layout: (.*)$", recorded.text, re.MULTILINE)
    # Refusals of the fuzzer's texts are not printed.
    assert len(said) == len(found) + 2
    for reason in (
        "line 2: there is no such page",
        "line 3: the size is not that of a TLB entry, in KB",
        "line 3: the page is listed twice",
        "byte 6 is 0",
        "it must be one write",
    ):
        assert reason in said
    assert "texts| text: one write more: 22" in recorded.text


def fuzzed(console: power.Console, label: str) -> tuple[int, ...]:
    found = re.search(
        r"^layout: (\d+) texts, (\d+) taken, (\d+) differ$", console.of(label).text, re.MULTILINE
    )
    assert found, console.of(label).text
    return tuple(map(int, found.groups()))


def test_random_texts_are_accepted_or_refused_as_by_the_model(recorded: power.Console) -> None:
    texts, taken, differ = fuzzed(recorded, "fuzz")
    assert texts == FUZZED and FUZZED / 4 < taken < 3 * FUZZED / 4
    assert not differ, recorded.of("fuzz").text


def test_negative_control_a_model_with_one_mistake_differs(recorded: power.Console) -> None:
    *_, differ = fuzzed(recorded, "control")
    assert differ > 0


def test_a_translated_vm_refuses_a_layout(recorded: power.Console) -> None:
    assert f"busy| text: while it runs: {EBUSY}" in recorded.text
    assert recorded.statistics("beside")["bt_splits"] > 3
