# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The sources of exits: QEMU's log, names of instructions, the kernel's image, counts of instructions; and a
recorded run, shortened to 80 lines.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import plugin_mutants
from recorded import DATA
from trapless_lab import host
from trapless_lab.errors import LabError
from trapless_lab.experiment.experiment import Context, Result
from trapless_lab.experiment.plots import Album
from trapless_lab.machines import runner
from trapless_lab.plugins import plugin
from trapless_lab.power import exceptions as power_exceptions
from trapless_lab.power import image as power_image
from trapless_lab.power import instructions as power_instructions
from trapless_lab.power import machine as power
from trapless_lab.power import ranges as power_ranges
from trapless_lab.power import refused as power_refused
from trapless_lab.power.console import TICKS_PER_INSTRUCTION, Console
from trapless_lab.power.experiments import sources as power_sources
from trapless_lab.power.image import Branch, Image
from trapless_lab.power.machine import How
from trapless_lab.power.ranges import Called, Plan
from trapless_lab.progress import Progress
from trapless_lab.symbols import Area

LOG = DATA / "power-sources" / "exceptions.log"
PAGES, PAGES_END, TRANSLATOR = 0xC028C000, 0xC029C000, 0xC00DD000
# Of the recorded lines: instructions that were refused, and traps in fragments.
REFUSED, TRAPPED = 54, 2


def recorded_image() -> Image:
    """Return the words of the kernel at the addresses of the recorded exceptions."""
    code: list[tuple[int, bytes]] = []
    alternatives: dict[int, int] = {}
    symbols = {PAGES: "trapless_bt_execute", PAGES_END: "behind", TRANSLATOR: "kvmppc_bt_patch"}
    for line in (DATA / "power-sources" / "words").read_text().splitlines():
        at, *words, name = line.split()
        address = int(at, 16)
        code.append((address, bytes.fromhex(words[0])))
        symbols[address - int(name.split("+")[1], 16)] = name.split("+")[0]
        if len(words) > 1:
            alternatives[address] = 0xC0400000 + 8 * len(alternatives)
            code.append((alternatives[address], bytes.fromhex(words[1])))
    area = Area("kernel", power_image.BASE, 0xC0500000, tuple(symbols.items()))
    return Image(area, tuple(sorted(code)), {"kvmppc_bt_patch": TRANSLATOR}, alternatives)


def test_exceptions_are_attributed_by_their_address() -> None:
    found = power_exceptions.read(LOG)
    assert sum(found.refused.values()) == REFUSED
    assert sum(found.traps.values()) == TRAPPED
    assert found.by_programs == 1  # the C library's mfpvr
    assert found.refused[0xC00000D0] == 3  # before the kernel maps itself
    assert 0xC00A5FA4 in found.registers and 0xC01B3D9C in found.operations


@pytest.mark.parametrize(
    ("forge", "why"),
    [
        (lambda text: text[:-10], "line 84 .* none of QEMU's"),
        (lambda text: text.replace("error=32", "flags=32", 1), "line 6 .* none of QEMU's"),
        (lambda text: text.replace("syscall r0", "sys", 1), "line 12 .* none of QEMU's"),
        (lambda text: "", "no exceptions"),
        (lambda text: text + "Raise exception at c00a5fa4 => PROGRAM (6) error=31\n", "0xc00a5fa4 .* now an"),
    ],
)
def test_an_invalid_log_is_an_error(forge: Callable[[str], str], why: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(forge(LOG.read_text()))
    with pytest.raises(LabError, match=why):
        power_exceptions.read(tmp_path / "log")


def move(operation: int, spr: int) -> int:
    return 31 << 26 | 9 << 21 | (spr & 31) << 16 | (spr >> 5) << 11 | operation << 1


@pytest.mark.parametrize(
    ("word", "name"),
    [
        *((0x7D4000A6, "mfmsr"), (0x7D400124, "mtmsr"), (0x7D400106, "wrtee"), (0x7C008146, "wrteei")),
        *((0x4C000064, "rfi"), (0x7C0007A4, "tlbwe"), (0x7C000764, "tlbre"), (0x7C003724, "tlbsx")),
        *((move(339, 275), "mfspr SPRG3"), (move(467, 26), "mtspr SRR0"), (move(467, 944), "mtspr MAS7")),
        *(
            (move(339, 528), "mfspr IVOR32"),
            (move(467, 1013), "mtspr BUCSR"),
            (move(467, 1014), "mtspr 1014"),
        ),
        # Unprivileged: the link register, a user's copy of SPRG3, an addition; and an invalid word.
        *((move(339, 8), None), (move(339, 259), None), (0x7C642A14, None), (0, None)),
    ],
)
def test_names_of_privileged_instructions(word: int, name: str | None) -> None:
    assert power_instructions.name(word) == name


def test_what_the_kernel_has_replaced_is_counted_by_why_it_was_refused() -> None:
    image, found = recorded_image(), power_exceptions.read(LOG)
    names = power_refused.instructions(image, found)
    assert names[0xC00A5FA4] == "mtspr MMUCSR0"  # linked as mfmsr
    assert set(names.values()).isdisjoint({power_refused.OUTSIDE, power_refused.REPLACED})
    bare = Image(image.area, image.code, image.functions, {})
    assert power_refused.by_instruction(bare, found)[power_refused.REPLACED] == 4
    nothing = Image(image.area, (), image.functions, {})
    assert power_refused.by_instruction(nothing, found) == {power_refused.OUTSIDE: REFUSED}


def test_a_write_of_pid_in_a_fragment_has_its_name() -> None:
    found = power_exceptions.Exceptions({PAGES + 0x84: 5}, {PAGES + 0x44: 3, PAGES + 0x48: 1}, {}, 0)
    counted = power_refused.by_instruction(recorded_image(), found)
    assert counted["mtspr PID"] == 3 and counted.total() == 9


def test_a_trap_outside_of_fragments_is_an_error() -> None:
    image, found = recorded_image(), power_exceptions.read(LOG)
    assert power_refused.fragment_traps(image, found) == TRAPPED
    with pytest.raises(LabError, match="trapped at behind"):
        power_refused.fragment_traps(
            image, power_exceptions.Exceptions({}, {}, {PAGES_END: 1, PAGES + 0x9DC: 1}, 0)
        )


def test_program_counters_that_have_a_share() -> None:
    assert [power_refused.pcs_for([60, 30, 9, 1], percent) for percent in (50, 60, 61, 99, 100)] == [
        *(1, 1, 2, 3, 4)
    ]
    assert power_refused.pcs_for([], 50) == 0
    classes = power_sources.pc_classes([500, 100, 1], 100_000)
    assert [(pcs, percent) for _, pcs, percent in classes][:2] == [(1, 0.5), (1, 0.1)]
    assert sum(pcs for _, pcs, _ in classes) == 3


SOURCE = """
int other(int x);
static int inner(int x) { return other(x) + 1; }
int first(int x) { return inner(x) + other(x); }
int second(int x) { return first(x) * 2; }
"""
START = """
    .globl _start, other
    .type other, @function
    .text
_start: bl first
    bl other
    b second
other: mfmsr 3
0:  blr
    .section alternative, "ax"
1:  wrteei 0
    .section __ftr_fixup, "a"
2:  .long 0, 0, other - 2b, 0b - 2b, 1b - 2b, 1b - 2b + 4
"""


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Link a kernel of two objects."""
    place = tmp_path_factory.mktemp("kernel")
    (place / "a.s").write_text(START)
    (place / "b.c").write_text(SOURCE)
    (place / "stranger.c").write_text("int stranger(int x) { return x; }")
    gcc = [str(host.tool("powerpc-linux-gnu-gcc-12", "gcc-12-powerpc-linux-gnu")), "-O1", "-mcpu=8548"]
    for argv in (
        *([*gcc, "-c", source, "-o", f"{Path(source).stem}.o"] for source in ("a.s", "b.c", "stranger.c")),
        [*gcc, "-nostdlib", "-static", "-Wl,-Ttext=0xc0000000", "a.o", "b.o", "-o", "vmlinux"],
    ):
        subprocess.run(argv, cwd=place, check=True)
    return place


def test_a_linked_kernel_is_read(linked: Path) -> None:
    image = power_image.read(linked / "vmlinux")
    other = image.functions["other"]
    assert image.words(other) == [0x7C6000A6, 0x7C000146]
    assert image.words(other + 4) == [0x4E800020]
    assert image.words(other + 2) == image.words(0xC0800000) == []
    assert image.name(other + 4) == "other+0x4"
    assert image.name(0xD0000000) == "0xd0000000"
    parts = power_image.parts(image, {"a": linked / "a.o", "b": linked / "b.o"})
    assert parts["a"] == range(power_image.BASE, other + 8)
    assert image.functions["first"] in parts["b"] and image.functions["second"] in parts["b"]
    with pytest.raises(LabError, match=r"not linked from .*stranger\.o"):
        power_image.parts(image, {"b": linked / "stranger.o"})


def test_calls_are_followed_only_if_they_return(linked: Path) -> None:
    image = power_image.read(linked / "vmlinux")
    parts = power_image.parts(image, {"a": linked / "a.o", "b": linked / "b.o"})
    calls = power_ranges.calls_into(image, [parts["a"]])
    assert len(calls) == 2
    assert all(call.at in parts["b"] and call.target == image.functions["other"] for call in calls)
    with pytest.raises(LabError, match=r"_start\+0x8 ends in second"):
        power_ranges.calls_into(image, [parts["b"]])


PLAN = Plan(
    {name: range(TRANSLATOR + at, TRANSLATOR + at + 0x100) for at, name in enumerate(power_sources.FILES)},
    [Branch(0xC00DC904, TRANSLATOR, True), Branch(0xC00DC910, TRANSLATOR, True)],
)
# All of them together are 10,000.
REST = 10_000 - 172 - sum(100 + at for at in range(len(PLAN.parts)))
COUNTED = (
    "".join(f"range {part.start:x} {100 + at}\n" for at, part in enumerate(PLAN.parts.values()))
    + f"rest {REST}\nguest 172\nprograms 0\nspan c00dc904 2 300\nspan c00dc910 1 50\nend\n"
)


def test_counts_of_instructions(tmp_path: Path) -> None:
    PLAN.write(tmp_path / "plan")
    written = (tmp_path / "plan").read_text().splitlines()
    assert written[0] == "base c0000000" and written[1] == "range c00dd000 c00dd100"
    assert written[-1] == "span c00dc910"
    counts = power_ranges.parse(COUNTED, PLAN)
    assert (counts.total, counts.guest, counts.parts["e500_bt_site"]) == (10_000, 172, 107)
    assert counts.calls == {TRANSLATOR: Called(3, 350)}


@pytest.mark.parametrize(
    "bad",
    [
        COUNTED.removesuffix("end\n"),
        COUNTED.replace("range c00dd000 100\n", ""),
        COUNTED.replace("span c00dc904", "span c00dc908"),
        "",
    ],
)
def test_incomplete_counts_are_an_error(bad: str) -> None:
    with pytest.raises(LabError, match="not whole, or not those of the plan"):
        power_ranges.parse(bad, PLAN)


Forge = Callable[[str, str], str]
"""Kind of a file and its text -> the text to use instead."""


def console(mode: str) -> str:
    counters = {
        **{"emulated_inst_exits": REFUSED + TRAPPED, "dtlb_virt_miss_exits": 7, "sum_exits": 0},
        **{"bt_patched": 2, "bt_untranslated": 1, "bt_out_of_range": 0},
    }
    shown = "".join(f"boot.statistics| {name}:{value}\n" for name, value in counters.items())
    ticks = round(9_995 * TICKS_PER_INSTRUCTION)
    return f"boot| result boot {ticks} 1\n{shown}lasted {ticks}\n"


def replay(
    monkeypatch: pytest.MonkeyPatch, forge: Forge = lambda _, text: text, plots: Album | None = None
) -> Result:
    def in_host(*_args: Any, label: str, how: How, **_options: Any) -> Console:
        assert how.work_dir and how.exceptions
        (how.work_dir / runner.TRACE).write_text(forge("log", LOG.read_text()))
        for watching in how.plugins:
            watching.output.write_text(forge("counts", COUNTED))
        return Console(forge("console", console(label)))

    monkeypatch.setattr(power, "in_host", in_host)
    monkeypatch.setattr(power, "kernel", lambda: Path("vmlinux"))
    monkeypatch.setattr(power_image, "read", lambda _path: recorded_image())
    monkeypatch.setattr(power_sources, "plan", lambda _image: PLAN)
    monkeypatch.setattr(plugin, "build", lambda _name, **_more: Path("ranges.so"))
    return power_sources.power_sources(Context(quick=True, progress=Progress(), plots=plots))


def failing(result: Result) -> list[str]:
    return [check.name for check in result.checks if not check.holds]


def test_the_recorded_run_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    result = replay(monkeypatch, plots=(album := Album()))
    assert not failing(result)
    table = {row["source"]: row for row in result.rows}
    assert table["mtspr"]["base"] + table["mfspr"]["base"] == 27
    assert table["dtlb_virt_miss"]["in_place"] == 7
    assert table["trap in a fragment"]["base"] == TRAPPED
    assert "emulated_inst" not in table
    exits = REFUSED + TRAPPED + 7
    assert sum(row["base"] for row in result.rows if not row["source"].startswith("PCs ")) == exits
    assert result.keys["instructions"]["base"]["mfspr MMUCSR0"] == 2
    assert result.keys["top"]["base"][0] == {
        **{"at": "match_TLB+0x2c", "instruction": "mtspr MAS0", "exits": 3, "percent": 5.56}
    }
    took = result.keys["translator"]
    assert (took["own_percent"], took["called_percent"]) == (2.17, 3.5)
    assert [target.reached for target in result.targets] == [False, False]
    for plot in ("power-sources", "power-pcs"):
        assert len(album.drawn[f"{plot}.png"]) > 1000


ALIKE, HAS = "QEMU and KVM count alike", "vmlinux has what exits"
ALL, TRANSLATIONS = "all instructions are counted", "all translations are counted"


@pytest.mark.parametrize(
    ("what", "old", "new", "fails"),
    [
        # Three lost lines; an exit that KVM did not count, or false exits.
        ("log", "Raise exception at 000000d0 => PROGRAM (6) error=32\n", "", ALIKE),
        ("console", "emulated_inst_exits:56", "emulated_inst_exits:55", ALIKE),
        ("console", "emulated_inst_exits:56", "emulated_inst_exits:59", ALIKE),
        ("log", "c010bbd8 => PROGRAM (6) error=31", "c010bbd8 => PROGRAM (6) error=32", HAS),
        ("log", "c010bbd8 => PROGRAM (6) error=31", "d010bbd8 => PROGRAM (6) error=31", HAS),
        ("counts", f"rest {REST}", f"rest {REST - 10}", ALL),
        ("counts", f"rest {REST}", f"rest {REST + 20}", ALL),
        ("counts", "span c00dc904 2", "span c00dc904 3", TRANSLATIONS),
    ],
)
def test_failures_are_found(
    what: str, old: str, new: str, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forge(kind: str, text: str) -> str:
        assert kind != what or old in text
        return text.replace(old, new) if kind == what else text

    found = failing(replay(monkeypatch, forge))
    assert found == (
        [f"{fails}, {mode}" for mode in ("base", "inplace")] if fails in (ALIKE, HAS) else [fails]
    )


@pytest.mark.machine
@pytest.mark.long("a boot for a mistake of the plugin; replays of a recording hold the others")
def test_a_plugin_that_counts_whole_blocks_is_caught() -> None:
    image = power_image.read(power.kernel())
    taken = power_sources.take(
        Context(quick=True, progress=Progress()),
        "inplace",
        power_sources.plan(image),
        plugin_mutants.build("ranges-whole-blocks", "ranges", architecture="power"),
    )
    assert taken.counts
    caught = [
        check.name for check in power_sources.counts_hold(image, taken, taken.counts) if not check.holds
    ]
    assert caught == ["all instructions are counted"]
