# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The operator's tool in machines: what `trapless pagetable` reports, compared with other witnesses:

Xen's own list of payloads, /sys/module and the trace of the IOMMU that QEMU emulates.
"""

import json
import lzma
import re
from typing import Any

import pytest

from machines import GUEST, SPAWN, STOCK_FLUSHES, installed, payload_file, pool_file, pvmmu_file
from trapless_lab import host
from trapless_lab.machines import runner
from trapless_lab.machines.initramfs import File, Tree
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable import parts as pagetable
from trapless_lab.pagetable.installed import tool

pytestmark = pytest.mark.machine

# The pool may still grow; pagetable-flushes checks that there are none in the end.
BOOSTED_FLUSHES = STOCK_FLUSHES // 20

# More than a process of these steps has; 11 tables of pte were seen to be freed between two readings.
TABLES_OF_A_PROCESS = {"pte": 24, "pmd": 8, "pud": 8, "pgd": 4, "user_pgd": 4}

SYSFS = f"/sys/kernel/{pagetable.NAME}"
SWITCHES = pagetable.PVMMU_SWITCHES
METRICS = "/tmp/metrics/trapless.prom"
NOTHING: set[str] = set()
EVERYTHING = {"payload", pagetable.NAME, pagetable.PVMMU}


def _step(name: str, command: str, expect: int | None = 0) -> Step:
    return Step(name, command, timeout_s=300, expect=expect)


def _trapless(name: str, arguments: str, expect: int | None = 0) -> list[Step]:
    """Return a step that runs the tool, and one that reads from the witnesses what is loaded."""
    return [
        _step(name, f"trapless pagetable {arguments}", expect),
        _step(f"after {name}", "xen-livepatch list; cd /sys/module && ls -1d trapless_*", expect=None),
    ]


def _loaded(transcript: Transcript, step: str) -> set[str]:
    """Return what the witnesses say is loaded after a step."""
    output = transcript[f"after {step}"].output
    modules = set(re.findall(r"^(trapless_\w+)$", output, re.MULTILINE))
    payloads = re.findall(rf"^{pagetable.NAME} +\| (\w+)", output, re.MULTILINE)
    assert "Nothing to list" in output or payloads or "APPLIED" not in output
    assert set(payloads) <= {"APPLIED"}, output
    return modules | ({"payload"} if payloads else set())


def _json(transcript: Transcript, step: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(transcript[step].output)
    return answer


@pytest.fixture(scope="module")
def strict() -> Transcript:
    """Every command once, in a dom0 that all parts serve."""
    cached = f"cd {SYSFS} && cat pte/cached pmd/cached pud/cached pgd/cached user_pgd/cached"
    half = f"--module {GUEST}/unknown-symbol.ko --module {GUEST}/{pagetable.PVMMU}.ko"
    return runner.run(
        MACHINES["xen-strict"].with_icount(),
        [
            _step("doctor", "trapless doctor --json"),
            _step("doctor's text", "trapless doctor"),
            _step("stock", SPAWN),
            *_trapless("status before", "status --json"),
            *_trapless("dry run", "load --dry-run"),
            *_trapless("other build", f"load --payload {GUEST}/wrong-build-id.livepatch", expect=1),
            *_trapless("half", f"load {half}", expect=1),
            *_trapless("misused", "load --only pool", expect=1),
            *_trapless("load", "load --prefill 90,22,16,6,6 --policy both --limit-number 500"),
            *_trapless("load again", "load"),
            _step("policy", f"cd {SYSFS} && cat policy limit_number"),
            _step("boosted", SPAWN),
            _step("pool", pagetable.pool_step().command),
            _step("status", "trapless pagetable status --json"),
            _step("metrics", f"mkdir /tmp/metrics && trapless pagetable status --prometheus {METRICS}"),
            _step("metrics file", f"ls -A /tmp/metrics; cat {METRICS}"),
            _step("metrics printed", "trapless pagetable status --prometheus -"),
            _step("table", "trapless pagetable status"),
            _step("disable", f"trapless pagetable disable; cat {SYSFS}/enabled"),
            _step("disabled", SPAWN),
            _step("enable", f"trapless pagetable enable; cat {SYSFS}/enabled"),
            _step("enabled", SPAWN),
            _step("switch off", f"trapless pagetable disable fork xen_zero_runs; grep . {SWITCHES}/*"),
            _step("switch on", f"trapless pagetable enable all; grep . {SWITCHES}/*"),
            _step("cached before", cached),
            _step("shrink", f"trapless pagetable shrink 50% && cat {SYSFS}/shrunk && {cached}"),
            _step("shrink one", f"trapless pagetable shrink 100% --level pmd && cat {SYSFS}/shrunk"),
            _step("set policy", f"trapless pagetable policy --limit-percent 90; cat {SYSFS}/limit_percent"),
            _step(
                "bad policy",
                f"trapless pagetable policy --limit-percent 4294967296; cat {SYSFS}/policy",
                None,
            ),
            *_trapless("unload one", "unload --only payload", expect=1),
            *_trapless("unload", "unload"),
            *_trapless("unload again", "unload"),
            _step("stock again", SPAWN),
            *_trapless(
                "no way to Xen", "unload; mv /dev/xen/privcmd /dev/xen/gone; trapless pagetable load", 1
            ),
        ],
        files={
            **installed(),
            **payload_file("wrong-build-id"),
            **pool_file("unknown-symbol"),
            **pvmmu_file(),
        },
    )


def _as_on_debian_13(files: Tree) -> Tree:
    """Return the same files with modules packed as DKMS packs them there."""
    packed = {
        f"{path}.xz": File(lzma.compress(entry.read()))
        for path, entry in files.items()
        if isinstance(entry, File) and path.endswith(".ko")
    }
    assert len(packed) == 2
    return {path: entry for path, entry in files.items() if f"{path}.xz" not in packed} | packed


@pytest.fixture(scope="module")
def relaxed() -> Transcript:
    return runner.run(
        MACHINES["xen-relaxed"],
        [
            _step("doctor", "trapless doctor --json"),
            *_trapless("load", "load"),
            _step("pool's size", f"cat /sys/kernel/{pagetable.NAME}/pte/cached"),
            _step("semi-writable", "trapless pagetable status --json"),
            *_trapless("unload", "unload"),
        ],
        files=_as_on_debian_13(installed()),
    )


def test_the_doctor_knows_before_anything_is_loaded(strict: Transcript, relaxed: Transcript) -> None:
    for transcript, follows in ((strict, True), (relaxed, False)):
        doctor = _json(transcript, "doctor")["pagetable"]
        serves = {gain["part"]: gain["serves"] for gain in doctor["parts"]}
        assert serves == {"payload": True, "pool": True, "pvmmu": True}
        assert doctor["host"].startswith(f"PV dom0 on Xen {host.xen().version}")
        assert doctor["refusals"] == []
        assert doctor["iommu"]["answer"] is follows
        assert "dom0-iommu=" in doctor["iommu"]["because"]
    assert "everything that load needs is installed" in strict["doctor's text"].output


def test_nothing_is_touched_before_everything_is_checked(strict: Transcript) -> None:
    for step in ("status before", "dry run", "other build", "misused"):
        assert _loaded(strict, step) == NOTHING, step
    assert _json(strict, "status before")["payload"]["loaded"] is False
    assert strict["dry run"].output.count("would be loaded") == 3
    assert "is for build" in strict["other build"].output
    assert "needs the payload" in strict["misused"].output


def test_if_one_part_fails_to_load_the_others_are_unloaded(strict: Transcript) -> None:
    output = strict["half"].output
    assert "no symbol trapless_no_such_symbol" in output, "the kernel's own reason is shown"
    assert "payload was taken out again" in output
    assert _loaded(strict, "half") == NOTHING


def test_loading_twice_is_loading_once(strict: Transcript) -> None:
    assert _loaded(strict, "load") == EVERYTHING
    assert _loaded(strict, "load again") == EVERYTHING
    assert strict["load again"].output.count("is loaded already") == 3
    assert strict["policy"].output.split() == ["both", "500"]


def test_the_iommu_sees_each_switch(strict: Transcript) -> None:
    """Stock and disabled are the negative controls of the others: same command, same witness."""
    for step in ("stock", "disabled", "stock again"):
        assert strict.counts(step).flushes >= STOCK_FLUSHES, step
    for step in ("boosted", "enabled"):
        assert strict.counts(step).flushes <= BOOSTED_FLUSHES, step


def test_status_is_what_the_control_files_say(strict: Transcript) -> None:
    status = _json(strict, "status")
    files = pagetable.pool_sizes(strict["pool"])
    metrics = dict(re.findall(r"^(\w+\{.*\}) (\d+)$", strict["metrics file"].output, re.MULTILINE))
    assert strict["metrics file"].output.splitlines()[0] == "trapless.prom", "no other file is left"
    for level, counters in files.items():
        shown = status["pool"]["levels"][level]
        # The commands in between are processes of their own.
        assert counters["hits"] <= shown["hits"] <= counters["hits"] + 100, level
        # What is cached is read before what is in use: tables that are freed in between count nowhere.
        assert shown["cached"] + shown["in_use"] == pytest.approx(
            counters["cached"] + counters["in_use"], abs=TABLES_OF_A_PROCESS[level]
        )
        label = f'{{level="{level}"}}'
        assert int(metrics[f"trapless_pagetable_hits_total{label}"]) >= shown["hits"]
        assert f"trapless_pagetable_cached_tables{label}" in metrics
    assert status["payload"]["iommu_follows_page_types"] is True
    assert status["payload"]["statistics"]["skipped_unmap"] > 0
    assert set(status["payload"]["switches"].values()) == {True}
    assert status["pool"]["policy"] == "both"
    assert metrics['trapless_pagetable_loaded{part="payload"}'] == "1"
    assert "trapless_pagetable_xen_pages" in strict["metrics printed"].output
    assert re.search(r"user_pgd +\d", strict["table"].output)


def test_switches(strict: Transcript) -> None:
    assert strict["disable"].output.split()[-1] == "0"
    assert strict["enable"].output.split()[-1] == "1"
    off = dict(re.findall(rf"{SWITCHES}/(\w+):(\d)", strict["switch off"].output))
    assert {name for name, value in off.items() if value == "0"} == {"fork", "xen_zero_runs"}
    on = re.findall(rf"{SWITCHES}/\w+:(\d)", strict["switch on"].output)
    assert set(on) == {"1"} and len(on) == len(off)


def test_shrinking(strict: Transcript) -> None:
    """Only giving pages back flushes the IOTLB while the pool serves."""
    before = [int(value) for value in strict["cached before"].output.split()]
    printed, shrunk, *after = (int(value) for value in re.findall(r"\d+", strict["shrink"].output))
    assert printed == shrunk > 0
    # The shell that reads the counters forks, and tables that are freed meanwhile are cached again.
    assert sum(after) <= sum(before) // 2 + 16
    one, shrunk_by_both = (int(value) for value in re.findall(r"\d+", strict["shrink one"].output))
    assert 0 < one == shrunk_by_both - shrunk
    for step in ("shrink", "shrink one"):
        assert strict.counts(step).flushes >= 1, step
    assert strict["set policy"].output.split()[-1] == "90"
    assert strict["bad policy"].output.split()[-1] == "both"


def test_unloading_leaves_nothing(strict: Transcript) -> None:
    assert _loaded(strict, "unload one") == EVERYTHING
    assert "the pool uses it" in strict["unload one"].output
    assert _loaded(strict, "unload") == NOTHING
    assert _loaded(strict, "unload again") == NOTHING
    assert strict["unload again"].output.count("is not loaded") == 3


def test_a_tool_that_cannot_reach_xen_says_so(strict: Transcript) -> None:
    """xen-livepatch itself exits with 0 there."""
    assert "modprobe xen-privcmd" in strict["no way to Xen"].output


def test_a_relaxed_dom0_gets_what_serves_it(relaxed: Transcript) -> None:
    """The pool caches tables there, and marks none."""
    assert _loaded(relaxed, "load") == {"payload", pagetable.NAME, pagetable.PVMMU}
    assert int(relaxed["pool's size"].output) > 0
    assert _json(relaxed, "semi-writable")["payload"]["statistics"]["semi_writable"] == 0
    assert _loaded(relaxed, "unload") == NOTHING


def test_refused_on_bare_metal() -> None:
    transcript = runner.run(
        MACHINES["bare"],
        [
            _step("load", "trapless pagetable load", expect=1),
            _step("unload", "trapless pagetable unload"),
            _step("status", "trapless pagetable status --json"),
            _step("doctor", "trapless doctor --json"),
        ],
        files=tool(),
    )
    assert "not a guest of Xen" in transcript["load"].output
    assert transcript["unload"].output.count("is not loaded") == 3
    assert _json(transcript, "status")["pool"] is None
    assert _json(transcript, "doctor")["pagetable"]["benefits"] is False


def test_no_kernel_complains(strict: Transcript, relaxed: Transcript) -> None:
    assert [t.kernel_warnings() for t in (strict, relaxed)] == [[], []]
