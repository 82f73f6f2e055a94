# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A guest that attacks the translator can harm only itself: the host's kernel does not warn, the guest's
correct code gives correct results, and later guests run as usual.

The guest is ``guest/hostile.c``. The lab's own check finds BUG, WARNING and Oops in the host's console.
"""

import re

import pytest

from differential import BASE, GUEST, PARAMETERS, TIMEOUT_S, TRANSLATED, Setting, checksums, require_same
from trapless_lab import artifacts
from trapless_lab.machines.initramfs import File
from trapless_lab.power import machine as power

HOSTILE = "/guest/hostile.elf"
SPOILED = 24
AFTER = "seed=1 count=32"

SUCCESS, NO_MEMORY, INVALID, UNIMPLEMENTED = 0, 5, 8, 12
# In the order of the guest's hypercalls; the answer to all others is INVALID.
GRANTED = {
    "four pages": SUCCESS,
    "the same again": SUCCESS,
    "an overlap": SUCCESS,
    "an alias of them": SUCCESS,
    "a second area": SUCCESS,
    "a third area": SUCCESS,
    "a fourth area": SUCCESS,
    "a fifth area": NO_MEMORY,
    "disable": SUCCESS,
    "disable again": SUCCESS,
    "registered again": SUCCESS,
}


def hostile(label: str, mode: int, read_cache: int = 0) -> list[str]:
    setting = Setting(label, mode, read_cache=read_cache)
    return [line.replace(GUEST, HOSTILE) for line in setting.script(f"seeds={SPOILED} last=1")]


@pytest.fixture(scope="module")
def console() -> power.Console:
    names = {GUEST: "differ.elf", HOSTILE: "hostile.elf"}
    files = {path: File(artifacts.power("tests/guest", name)) for path, name in names.items()}
    script = [
        *BASE.script(AFTER),
        *hostile("hostile-base", 0),
        *hostile("hostile", 2),
        *hostile("hostile-singles", 1),
        *hostile("hostile-cached", 2, read_cache=1),
        *TRANSLATED[0].script(AFTER),
        f"write {PARAMETERS}/bt_mode 0",
    ]
    return power.in_host(script, files=files, how=power.How(timeout_s=TIMEOUT_S), label="hostile")


@pytest.mark.machine
@pytest.mark.parametrize("label", ["hostile-base", "hostile", "hostile-singles", "hostile-cached"])
def test_its_correct_code_gives_correct_results(console: power.Console, label: str) -> None:
    said = [line for line in console.of(label).text.splitlines() if line.startswith("hostile: ")]
    assert len(said) > 2 * SPOILED and not [line for line in said if not line.endswith(": right")]


@pytest.mark.machine
def test_forged_registrations_are_refused(console: power.Console) -> None:
    for label in ("hostile", "hostile-singles", "hostile-cached"):
        answers = re.findall(r"^answer: (.*) (\d+)$", console.of(label).text, re.MULTILINE)
        assert len(answers) > len(GRANTED) + 12
        assert {what: int(got) for what, got in answers} == {
            what: GRANTED.get(what, INVALID) for what, _ in answers
        }
    answers = re.findall(r"^answer: .* (\d+)$", console.of("hostile-base").text, re.MULTILINE)
    assert set(answers) == {str(UNIMPLEMENTED)}


@pytest.mark.machine
def test_it_was_translated(console: power.Console) -> None:
    counters = console.statistics("hostile")
    assert counters["bt_fragments"] > SPOILED and counters["bt_settled"] > SPOILED
    assert counters["bt_undone"] > SPOILED
    assert console.statistics("hostile-cached")["bt_reads_made"] > 0


@pytest.mark.machine
def test_the_host_logs_nothing(console: power.Console) -> None:
    """A guest must not be able to fill its host's log."""
    assert not re.findall(r"^.*(?:already present|Couldn't emulate).*$", console.text, re.MULTILINE)


@pytest.mark.machine
def test_the_next_guest_runs_as_usual(console: power.Console) -> None:
    require_same(console, TRANSLATED[0], checksums(console, BASE))
    assert console.statistics(TRANSLATED[0].label)["bt_fragments"] > 0
