# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Loads of traced memory that read a copy of it: each event that makes a copy wrong. And, with 4 KB pages,
loads of pages that have just become traced.

The guest is ``guest/reread.c``. Random sequences with the same parameter are in test_differential.py, a whole
kernel is in test_translated_guest.py.
"""

import pytest

from differential import GUEST, TIMEOUT_S, Setting
from trapless_lab import artifacts
from trapless_lab.machines.initramfs import File
from trapless_lab.power import machine as power

pytestmark = pytest.mark.machine

PLAIN = Setting("plain", 0)
# One TLB entry covers the whole arena of the guest, code and data.
CACHED = Setting("cached", 2, read_cache=4, first_kb=64)
# Without copies; each page has an entry of its own, which was readable before the page's first site.
SMALL = Setting("small", 2, backing="anonymous")
WAYS = 22


@pytest.fixture(scope="module")
def console() -> power.Console:
    script = [line for setting in (PLAIN, CACHED, SMALL) for line in setting.script("")]
    files = {GUEST: File(artifacts.power("tests/guest", "reread.elf"))}
    return power.in_host(script, files=files, how=power.How(timeout_s=TIMEOUT_S), label="reread")


def said(console: power.Console, setting: Setting) -> list[str]:
    return [line for line in console.of(setting.label).text.splitlines() if line.startswith("reread: ")]


def test_loads_read_what_is_in_memory(console: power.Console) -> None:
    lines = said(console, CACHED)
    assert len(lines) == WAYS and not [line for line in lines if ": right " not in line]
    assert lines == said(console, PLAIN)


def test_a_page_with_its_first_site_is_not_read_as_it_was(console: power.Console) -> None:
    """The negative control is in test_two_vcpus.py."""
    assert said(console, SMALL) == said(console, PLAIN)
    assert console.statistics(SMALL.label)["bt_patched"] > WAYS / 4


def test_all_these_loads_had_copies(console: power.Console) -> None:
    counters = console.statistics(CACHED.label)
    # Fewer than WAYS: some loads print several lines, and a dropped copy is not always made again.
    assert counters["bt_reads_made"] >= WAYS - 10
    assert counters["bt_reads_dropped"] >= WAYS - 12
