# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Spans: the plugin's file, page tables by level; and one machine, in which the profiler is the witness."""

import re
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from statistics import median

import pytest
from elftools.elf.elffile import ELFFile
from unicorn import UC_ARCH_X86, UC_HOOK_CODE, UC_MODE_64, Uc
from unicorn.x86_const import UC_X86_REG_RDI, UC_X86_REG_RSP

import plugin_mutants
from trapless_lab import host
from trapless_lab.errors import LabError
from trapless_lab.machines import qemu, runner
from trapless_lab.machines.machine import MACHINES
from trapless_lab.pagetable import table_spans
from trapless_lab.plugins import counts, plugin, spans
from trapless_lab.plugins.spans import EVERYWHERE, START, STOP, Plan, Record
from trapless_lab.profiler import kallsyms, profile
from trapless_lab.profiler.attribution import Profile
from trapless_lab.profiler.profile import Request
from trapless_lab.progress import Progress
from trapless_lab.symbols import Area

MISSED, END = 0xFF02, 0xFF03
PTE, PMD, PGD = 0x10, 0x11, 0x13
PTE_LET_GO, PMD_LET_GO = 0x30, 0x31
WAITED, AT_ONCE = 0x40, 0x41


def record(at: int, id: int, kernel: int = 0, xen: int = 0, point: int = 0, foreign: int = 0) -> Record:
    return Record(at, kernel, xen, point, id, foreign)


def written(*records: Record) -> bytes:
    return b"".join(struct.pack("<QIIIHH", *each) for each in (*records, record(99, END)))


def test_the_plugins_file() -> None:
    inner, outer = record(20, 0x14, 30, 2), record(10, PGD, 100, 2, 0, 1)
    found = spans.parse(written(inner, outer))
    assert found == [outer, inner]
    assert [each.instructions for each in found] == [102, 32]
    assert list(spans.between(found, 10, 20)) == [outer]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is incomplete"),
        (written(record(1, PTE))[:-1], "is incomplete"),
        (written(record(1, PTE))[:-24], "no end"),
        (written(record(1, START), record(2, MISSED)), "1 executions"),
    ],
)
def test_an_incomplete_file_is_refused(content: bytes, complaint: str) -> None:
    with pytest.raises(LabError, match=complaint):
        spans.parse(content)


def test_calls_through_pointers_during_boot_do_not_count() -> None:
    assert len(spans.parse(written(record(1, MISSED), record(2, START)))) == 2


def test_plan(tmp_path: Path) -> None:
    plan = Plan(calls=[(0xA0, 1, (0, 0xFF))], events=[(0xB0, 2)], points=[0xC0], foreign=[0xD0])
    assert plan.write(tmp_path / "plan").read_text() == "call a0 1 0 ff\nevent b0 2\npoint c0\nforeign d0\n"


def levels(*records: Record) -> list[tuple[str, str]]:
    return [(table.level, table.direction) for table in table_spans.tables(records)]


def test_tables_are_freed_in_the_order_in_which_they_were_released() -> None:
    let_go = [record(1, PTE_LET_GO), record(2, PMD_LET_GO)]
    assert levels(*let_go, record(3, WAITED), record(4, WAITED)) == [("pte", "free"), ("pmd", "free")]
    assert levels(*let_go, record(3, AT_ONCE), record(4, WAITED)) == [("pmd", "free"), ("pte", "free")]
    with pytest.raises(LabError, match="no level had released"):
        levels(record(3, WAITED))


def test_the_cost_of_a_table() -> None:
    (table,) = table_spans.tables([record(5, PMD, 90, 10, point=40, foreign=1)])
    assert (table.instructions, table.kernel, table.ready, table.foreign) == (100, 90, 40, True)
    (table,) = table_spans.tables([record(5, PTE, 90, 10)])
    assert (table.level, table.direction, table.ready, table.foreign) == ("pte", "allocate", 100, False)


def test_marks_are_the_innermost_pairs() -> None:
    marked = [(1, START), (2, START), (3, STOP), (4, STOP), (5, START), (6, STOP)]
    assert table_spans.marks([record(at, id) for at, id in marked]) == [(2, 3), (5, 6)]


def test_another_kernel_is_refused() -> None:
    with pytest.raises(LabError, match=r"no pte_alloc_one, .*__switch_to_asm"):
        table_spans.plan(Area("kernel", 0x1000, 0x2000, ((0x1000, "_text"),)))


def test_plan_is_given_to_the_plugin() -> None:
    outputs = qemu.Outputs(Path("/c"), Path("/s"), Path("/t"), Path("/q"))
    images = qemu.Images(Path("/k"), Path("/i"))
    loaded = [qemu.Plugin(Path("/p.so"), Path("/o"), Path("/a,b"))]
    made = " ".join(qemu.argv(Path("/qemu"), MACHINES["bare"], images, outputs, loaded))
    assert "-plugin /p.so,output=/o,plan=/a,,b" in made


# A leaf of the kernel's that every fork calls, and that ftrace leaves alone.
LEAF, LEAF_ID = "__list_del_entry_valid", 0x60


def emulated(area: Area, function: str) -> int:
    """Return the instructions of the check of a list entry, by another emulator."""
    start = next(address for address, name in area.symbols if name == function)
    machine = Uc(UC_ARCH_X86, UC_MODE_64)
    # There are no high addresses without page tables; the code is position-independent.
    low, page, data, stack, back = (1 << 32) - 1, 1 << 12, 1 << 32, 2 << 32, 3 << 32
    for segment in ELFFile(BytesIO(host.unpack_kernel(host.kernel().image))).iter_segments():
        first = segment["p_vaddr"]
        if segment["p_type"] == "PT_LOAD" and first <= start < first + segment["p_filesz"]:
            machine.mem_map(first & low, (segment["p_filesz"] // page + 1) * page)
            machine.mem_write(first & low, segment.data())
    for address in (data, stack, back):
        machine.mem_map(address, page)
    entry, before, after = data, data + 0x100, data + 0x200
    machine.mem_write(entry, struct.pack("<QQ", after, before))
    machine.mem_write(before, struct.pack("<QQ", entry, 0))
    machine.mem_write(after, struct.pack("<QQ", 0, entry))
    machine.mem_write(stack + 0x800, struct.pack("<Q", back))
    machine.reg_write(UC_X86_REG_RSP, stack + 0x800)
    machine.reg_write(UC_X86_REG_RDI, entry)
    ran: list[int] = []
    machine.hook_add(UC_HOOK_CODE, lambda _machine, address, _size, _data: ran.append(address))
    machine.emu_start(start & low, back)
    return len(ran)


def inclusive(found: Profile, function: str) -> int:
    """Return the kernel's instructions in a function and in what it called, by the profiler."""
    return sum(n for (space, *frames), n in found.stacks.items() if space == "kernel" and function in frames)


def traced(records: Sequence[Record], id: int) -> list[Record]:
    (stretch,) = table_spans.marks(records)
    return [each for each in spans.between(records, *stretch) if each.id == id]


@pytest.mark.long("a profiled boot; the profiler serves experiments")
@pytest.mark.machine
def test_machine(tmp_path: Path) -> None:
    """The profiler counts the same in each function; with a build that accepts any return it does not."""
    processes = 40
    request = Request(MACHINES["xen-strict"], ("spawn", "fork-exit", "-n", str(processes)))
    area = kallsyms.kernel(Progress())
    at = {name: address for address, name in area.symbols}
    plan = table_spans.plan(area)
    plan = replace(plan, calls=[*plan.calls, (at[LEAF], LEAF_ID, EVERYWHERE)])
    libraries = {
        "sound": plugin.build("spans"),
        "any return": plugin_mutants.build("spans-any-return", "spans"),
    }
    plugins = [qemu.Plugin(plugin.build("profile"), tmp_path / "profile")] + [
        qemu.Plugin(library, tmp_path / variant, plan.write(tmp_path / "plan"))
        for variant, library in libraries.items()
    ]
    transcript = runner.run(request.profiled_machine, request.steps, plugins=plugins)
    counted = counts.parse((tmp_path / "profile").read_text().splitlines())
    found = profile.resolved(request, transcript, counted, area)
    assert found.holds, found.checks
    records, control = (spans.parse((tmp_path / name).read_bytes()) for name in libraries)

    names = ("pte_alloc_one", "__pmd_alloc", "__pud_alloc", "pgd_alloc", "xen_pgd_alloc")
    for id, name in enumerate(names, PTE):
        seen = traced(records, id)
        entries = next(symbol.entries for symbol in found.symbols if symbol.name == name)
        assert len(seen) == entries > 0, name
        # The profiler leaves out what ran on the interrupts' own stack.
        clean = [each.kernel for each in seen if not each.foreign]
        assert len(clean) > 0.9 * len(seen), name
        kernel = sum(clean) + median(clean) * (len(seen) - len(clean))
        assert kernel == pytest.approx(inclusive(found, name), rel=0.01), name
        # It ends spans too early, or at another call's return.
        assert sum(each.kernel for each in traced(control, id)) < 0.9 * kernel, name
    # Each forks and exits; the user's table is within the other.
    assert len(traced(records, PGD)) == processes
    assert all(
        inner.kernel < outer.kernel
        for inner, outer in zip(traced(records, PGD + 1), traced(records, PGD), strict=True)
    )
    # If nothing else runs, the number is exact: with the jump to the return, or the return patched in.
    lengths = Counter(each.kernel for each in traced(records, LEAF_ID) if not each.foreign)
    known = emulated(area, LEAF)
    assert set(lengths) < {known, known - 1} and sum(lengths.values()) > processes
    # What fork allocates exit frees, at every level.
    begun = next(each.at for each in records if each.id == START)
    tables = [table for table in table_spans.tables(records) if table.at >= begun]
    made, freed = (Counter(t.level for t in tables if t.direction == d) for d in ("allocate", "free"))
    for level in table_spans.LEVELS:
        assert abs(made[level] - freed[level]) < 0.1 * made[level], level
    assert not re.search("plugin:", transcript.console)
