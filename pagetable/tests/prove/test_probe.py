# SPDX-License-Identifier: Apache-2.0 OR MIT
"""probe: what it says about builds that nobody here has, made from the installed one; and about no build.

The proof of a loop takes a minute and is tested elsewhere; here all loops count as proven, but in the test
that is about them.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from elftools.common.exceptions import ELFParseError
from elftools.elf.elffile import ELFFile

XEN_DIR = Path(__file__).resolve().parents[2] / "xen"
sys.path.insert(0, str(XEN_DIR / "prove"))

import probe  # noqa: E402
from check_layout import DEFAULT_IMAGE, DEFAULT_SYMBOLS  # noqa: E402
from find_zero_runs import find_all  # noqa: E402
from layout_checker.known_functions import OPTIONS, place  # noqa: E402
from layout_checker.report import Report, UnusableInput  # noqa: E402
from variants import Files, against, installed, of_debian12  # noqa: E402
from zero_run_finder.finder import NAMES  # noqa: E402

pytestmark = [
    pytest.mark.skipif(
        not (DEFAULT_IMAGE.exists() and DEFAULT_SYMBOLS.exists()),
        reason="Debian's Xen and its -dbg package are not installed",
    ),
    pytest.mark.not_fast("a build is read and judged anew for each: 3 s of a processor"),
]
EFI = DEFAULT_IMAGE.with_suffix(".efi")
REPEATERS = {"l1_update", "table_refs", "ranges"}


@pytest.fixture(autouse=True)
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All loops count as proven, but in the test that is about them."""
    if request.node.name == test_a_loop_that_is_not_proven_is_left_out.__name__:
        return
    verdicts = Report([(name, None) for name in NAMES])
    monkeypatch.setattr(probe, "find_all", lambda _: ([], verdicts))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


# -- builds ---------------------------------------------------------------------------------------


def test_the_stock_build(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    assert probe.main([str(DEFAULT_IMAGE), str(DEFAULT_SYMBOLS), "--json", str(report)]) == 0
    text = capsys.readouterr().out
    assert "A payload can be built for this Xen" in text and "LEFT OUT" not in text
    found = json.loads(report.read_text())
    assert found["format"] == probe.FORMAT and found["builds"] and not any(found["parts"].values())
    assert found["build_id"] == installed().image.build_id.hex() in text
    assert found["code"] == {} and len(found["functions"]) > 50
    assert str(DEFAULT_IMAGE.parent) not in report.read_text(), "nothing of this host"


@pytest.mark.long("a second image proven, which make pagetable does")
def test_the_other_image_of_the_stock_build() -> None:
    if not EFI.exists():
        pytest.skip("no image that UEFI starts")
    found = probe.look(EFI, DEFAULT_SYMBOLS)
    assert found.builds and not against(found) and len(found.build_id) == 32


@of_debian12
def test_offsets_that_moved_are_fitted(files: Files) -> None:
    """Both functions that show the field use one that is eight bytes further on."""
    for name in ("cleanup_page_mappings", "_get_page_type"):
        symbol = installed().symbol(name)
        for i in installed().disassemble(symbol.address, symbol.size):
            if "+ 0x1c9], 0" in i.text:
                code = installed().read(i.address, i.size)
                files.poke(i.address, code.replace(b"\xc9\x01\0\0", b"\xd1\x01\0\0"))
    found = probe.look(*files.write())
    assert [line for line in found.fitted if "XEN_DOMAIN_NEED_SYNC is 0x1d1" in line]
    assert found.builds and against(found) == REPEATERS, "other bytes in what they lean on"


def test_a_flipped_jump_of_a_decision_leaves_the_part_out(files: Files) -> None:
    """A decision that no item of the layout is about; of mod_l1_entry, items are not seen either."""
    files.flip(place(installed(), "get_page_from_l1e").name)
    found = probe.look(*files.write())
    assert found.builds and against(found) == REPEATERS, "both lean on it"
    assert "get_page_from_l1e" in found.parts()["l1_update"][0]


def test_a_function_that_is_missing_is_named(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.rename("iommu_legacy_unmap", "")
    assert probe.main([*map(str, files.write())]) == 1
    output = capsys.readouterr().out
    assert "the symbol table has iommu_legacy_unmap 0 times" in output and "No payload can be built" in output


def test_code_that_shows_no_value_is_sent_back(files: Files) -> None:
    """The instructions of the function in which it was looked for, for who writes a passage."""
    address = installed().symbol("__mfn_valid").address
    files.poke(address, b"\x90" * 4)
    found = probe.look(*files.write())
    assert not found.builds and "marks" in against(found)
    assert "nop" in found.code["__mfn_valid"] and "_xmalloc" not in found.code


@of_debian12
def test_an_option_leaves_parts_out(files: Files) -> None:
    option = "CONFIG_PV32"
    files.spell("free_xenoprof_pages", OPTIONS[option][0])
    found = probe.look(*files.write())
    assert found.options[option] and against(found) >= REPEATERS
    assert all(option in found.parts()[part][0] for part in REPEATERS)


def test_without_live_patching_nothing_helps(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    """As in Qubes' build."""
    files.rename("livepatch_op", "")
    assert probe.main([*map(str, files.write())]) == 1
    assert "this Xen was built without CONFIG_LIVEPATCH" in capsys.readouterr().out


@of_debian12
def test_an_unknown_version_is_no_error(files: Files) -> None:
    """It is judged as the nearest version, and no payload comes of it."""
    minor = installed().symbol("xen_minor_version")
    code = installed().disassemble(minor.address, minor.size)
    move = next(i for i in code if i.mnemonic == "mov")
    files.poke(move.address + 1, (99).to_bytes(4, "little"))
    found = probe.look(*files.write())
    assert found.version == "4.99" and not found.builds
    assert "Xen 4.99 is of no family" in found.hopeless[0] and "judged as" in found.hopeless[0]
    assert "PGC_special" in found.refused and found.items["XEN_PAGE_SHIFT"] is None


@pytest.mark.long("two loops are proven, one of them in vain: minutes with Debian 12's solver")
def test_a_loop_that_is_not_proven_is_left_out(files: Files) -> None:
    sites, verdicts = find_all(installed())
    assert not verdicts.refused
    # The first conditional jump of the function may be one that no loop depends on.
    head = next(site.head for site in sites if site.loop.name == "demote_l1")
    files.flip("devalidate_page", behind=head)
    found = probe.look(*files.write())
    assert 0 < found.proven_loops < len(NAMES) and found.builds
    assert "zero_runs" not in against(found) and any(why for why in found.loops.values())


# -- what is no build -----------------------------------------------------------------------------


def says(capsys: pytest.CaptureFixture[str], image: Path, symbols: Path) -> str:
    """What is said about unusable input: one line."""
    assert probe.main([str(image), str(symbols)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("probe: ") and error.count("\n") == 1
    return error


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not an image of Xen"),
        (b"#!/bin/sh\n", "not an image of Xen"),
        (gzip.compress(b"no kernel", mtime=0), "not an image of Xen"),
        (b"\x7fELF", "not an image of Xen"),
        (b"MZ no PE", "no PE image"),
    ],
)
def test_no_image(content: bytes, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "xen.gz"
    path.write_bytes(content)
    assert why in says(capsys, path, DEFAULT_SYMBOLS)


def test_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "No such file" in says(capsys, tmp_path / "xen.gz", DEFAULT_SYMBOLS)
    assert "No such file" in says(capsys, DEFAULT_IMAGE, tmp_path / "xen-syms")
    assert "Is a directory" in says(capsys, DEFAULT_IMAGE, tmp_path)


def test_both_files_exchanged(capsys: pytest.CaptureFixture[str]) -> None:
    assert "it is for EM_X86_64, not for EM_386" in says(capsys, DEFAULT_SYMBOLS, DEFAULT_IMAGE)


@pytest.mark.parametrize("which", ["image", "symbols"])
def test_another_processor(which: str, files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    getattr(files, which)[18:20] = (183).to_bytes(2, "little")
    assert "it is for EM_AARCH64" in says(capsys, *files.write())


def test_symbols_that_were_stripped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stripped = tmp_path / "xen-syms"
    subprocess.run(["strip", "-o", str(stripped), str(DEFAULT_SYMBOLS)], check=True)
    assert "has no symbol table" in says(capsys, DEFAULT_IMAGE, stripped)


def test_symbols_of_another_build(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    at = files.symbols.index(installed().build_id)
    files.symbols[at] ^= 1
    assert "image and symbols are not of one build" in says(capsys, *files.write())


def test_an_efi_image_without_its_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not EFI.exists():
        pytest.skip("no image that UEFI starts")
    symbols = tmp_path / DEFAULT_SYMBOLS.name
    shutil.copy(DEFAULT_SYMBOLS, symbols)
    assert f"{EFI.name}.map: No such file" in says(capsys, EFI, symbols)


# -- bytes that come from anybody -----------------------------------------------------------------


SEEDS = (
    *range(3),
    *(pytest.param(n, marks=pytest.mark.long("3 s each; make check has three")) for n in range(3, 100)),
)


def damage(data: bytearray, chance: random.Random) -> None:
    """Headers, tables and code of a file, a few places at a time; now and then it is cut off."""
    for _ in range(chance.choice((1, 3, 30))):
        near = chance.choice((64, 4096, len(data), len(data)))
        at = chance.randrange(near)
        if chance.random() < 0.5:
            at = len(data) - 1 - at  # section headers and names are at the end
        size = chance.choice((1, 2, 4, 8))
        data[at : at + size] = chance.choice((b"\0" * size, b"\xff" * size, chance.randbytes(size)))
    if chance.random() < 0.1:
        del data[chance.randrange(len(data)) :]


def judge(image: Path, symbols: Path) -> str:
    """Read and judge all but the loops; what is said is a finding or a refusal, never a traceback."""
    try:
        found = probe.look(image, symbols)
    except UnusableInput as error:
        assert "\n" not in str(error)
        return "unusable"
    probe.as_json(found)
    assert list(probe.as_text(found))
    return "judged"


@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_files_are_judged_or_refused(seed: int, files: Files) -> None:
    """Both files, or one; a symbol table that lies; code that is none."""
    chance = random.Random(seed)
    if seed % 3 != 1:
        damage(files.symbols, chance)
    if seed % 3 != 0:
        damage(files.image, chance)
    print(judge(*files.write()))


@pytest.mark.parametrize("seed", SEEDS)
def test_symbols_that_lie_are_judged_or_refused(seed: int, files: Files) -> None:
    """Values, sizes and kinds of symbols that the checker looks at."""
    chance = random.Random(seed)
    wanted = [*sorted(installed()._functions), "__alt_instructions", "__alt_instructions_end", "max_page"]
    for name in chance.sample(wanted, 6):
        place = files.place_of(name)
        at, size = chance.choice(((4, 1), (6, 2), (8, 8), (16, 8)))
        files.symbols[place + at : place + at + size] = chance.choice(
            (b"\0" * size, b"\xff" * size, chance.randbytes(size))
        )
    print(judge(*files.write()))


def test_negative_control_garbage_makes_the_readers_stumble(files: Files) -> None:
    """What is refused in one line is an error of the library's own where nobody looks at it."""
    files.symbols[0x28:0x30] = b"\xff" * 8  # where the sections' headers are
    image, symbols = files.write()
    assert judge(image, symbols) == "unusable"
    with pytest.raises((OverflowError, ELFParseError, OSError, ValueError)):
        list(ELFFile(io.BytesIO(symbols.read_bytes())).iter_sections())


# -- where findings are written -------------------------------------------------------------------


def test_a_file_that_cannot_be_written_is_named_before_anything_is_proven(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(probe, "look", lambda *_: pytest.fail("it looked"))
    for target, named in ((tmp_path, tmp_path), (tmp_path / "none" / "x.json", tmp_path / "none")):
        assert probe.main(["image", "symbols", "--json", str(target)]) == 2
        assert f"--json: {named} is " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_report_is_shown_although_its_findings_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(probe, "look", lambda *_: probe.Findings())
    assert probe.main(["image", "symbols", "--json", "/dev/full"]) == 2
    shown = capsys.readouterr()
    assert "No payload can be built for this Xen" in shown.out
    assert shown.err == "probe: cannot write /dev/full: No space left on device\n"


def test_findings_on_standard_output_are_alone_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(probe, "look", lambda *_: probe.Findings())
    assert probe.main(["image", "symbols", "--json", "-"]) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out)["format"] == probe.FORMAT
    assert "No payload can be built for this Xen" in shown.err
