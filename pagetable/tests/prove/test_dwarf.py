# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Offsets that the debugging information has: taken where there is some, and refused where the code differs.

Debian 13's symbol file has debugging information, Debian 12's has none. Each control changes one of the two
opinions, in the bytes of the file.
"""

from __future__ import annotations

import copy
import io
import sys
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

XEN_DIR = Path(__file__).resolve().parents[2] / "xen"
sys.path.insert(0, str(XEN_DIR / "prove"))

from check_layout import DEFAULT_IMAGE, DEFAULT_LAYOUT, DEFAULT_SYMBOLS  # noqa: E402
from layout_checker import dwarf  # noqa: E402
from layout_checker.facts import check_all  # noqa: E402
from layout_checker.fit import fit  # noqa: E402
from layout_checker.header import Header, parse_header, read_layout  # noqa: E402
from layout_checker.hypervisor import Hypervisor  # noqa: E402
from layout_checker.report import UnusableInput  # noqa: E402

NEWER = Path(__file__).resolve().parents[3] / "build/pagetable/debian13"
ITEM, FIELD = "XEN_DOMAIN_NEED_SYNC", ("domain", "iommu", "need_sync")

pytestmark = [
    pytest.mark.skipif(
        not (NEWER / "versions").exists(), reason="no Xen of Debian 13: make -C pagetable debian13"
    ),
    pytest.mark.not_fast("debugging information of 20 MB is read, three times"),
]


@pytest.fixture(scope="module")
def files() -> tuple[Path, Path]:
    """Image and symbols of Debian 13's Xen."""
    (image,) = NEWER.glob("boot/xen-*.gz")
    return image, NEWER / f"usr/lib/debug/boot/{image.stem.replace('xen-', 'xen-syms-', 1)}"


@pytest.fixture(scope="module")
def read(files: tuple[Path, Path]) -> Hypervisor:
    """Read once; tests must not change it."""
    hypervisor = Hypervisor(*files)
    assert hypervisor.stated
    return hypervisor


@pytest.fixture
def newer(read: Hypervisor) -> Hypervisor:
    """A copy to be changed."""
    build = copy.copy(read)
    build.image = copy.copy(read.image)
    build.sections = list(read.sections)
    build.forget()
    build.__dict__["stated"] = read.stated
    return build


def header_of(build: Hypervisor) -> Header:
    """layout.h, fitted to a build."""
    text = read_layout(DEFAULT_LAYOUT, build.version)
    return parse_header(fit(text, parse_header(text), build)[0])


def refusals(build: Hypervisor) -> dict[str, str]:
    return {item: why for item, why in check_all(header_of(build), build).verdicts if why is not None}


def place_of(symbols: bytes) -> int:
    """Where in the file the offset of ITEM's field stands, one byte."""
    elf = ELFFile(io.BytesIO(symbols))
    for unit in elf.get_dwarf_info().iter_CUs():
        if unit.get_top_DIE().attributes["DW_AT_name"].value.endswith(dwarf.SOURCE.encode()):
            break
    types = dwarf.Unit(unit)
    _, inner = dwarf._member(dwarf._struct(types._types[FIELD[0]]), FIELD[1])
    (member,) = (
        die
        for die in inner.iter_children()
        if "DW_AT_name" in die.attributes and die.attributes["DW_AT_name"].value == FIELD[2].encode()
    )
    place = member.attributes["DW_AT_data_member_location"]
    assert place.form == "DW_FORM_data1", place
    section = elf.get_section_by_name(".debug_info")
    assert section
    return int(section["sh_offset"] + place.offset)


def test_both_opinions_agree(newer: Hypervisor) -> None:
    assert newer.stated.keys() == dwarf.ITEMS.keys()
    header = header_of(newer)
    assert {item: stated.value for item, stated in newer.stated.items()} == {
        item: header.values[item] for item in newer.stated
    }
    assert not refusals(newer)


def test_without_debugging_information_the_passages_decide(newer: Hypervisor) -> None:
    newer.__dict__["stated"] = {}
    assert not refusals(newer)
    if DEFAULT_SYMBOLS.exists() and not ELFFile.load_from_path(str(DEFAULT_SYMBOLS)).has_dwarf_info():
        assert Hypervisor(DEFAULT_IMAGE, DEFAULT_SYMBOLS).stated == {}


def test_another_offset_in_the_debugging_information_is_refused(
    newer: Hypervisor, files: tuple[Path, Path], tmp_path: Path
) -> None:
    """The file says one byte more than the code does."""
    image, symbols = files
    data = bytearray(symbols.read_bytes())
    data[place_of(bytes(data))] += 1
    changed = tmp_path / symbols.name
    changed.write_bytes(data)
    right = newer.stated[ITEM].value
    newer.__dict__["stated"] = Hypervisor(image, changed).stated
    assert newer.stated[ITEM].value == right + 1
    why = refusals(newer)
    assert set(why) == {ITEM}
    assert f"the code shows {right:#x}" in why[ITEM]
    assert f"the debugging information has {right + 1:#x} for domain.iommu.need_sync" in why[ITEM]


def test_another_offset_in_the_code_is_refused(newer: Hypervisor) -> None:
    """Every use of the field in the two functions that show it is one byte further on."""
    right = newer.stated[ITEM].value
    flat, changed = bytearray(newer.image.flat), 0
    for name in ("cleanup_page_mappings", "_get_page_type"):
        for instruction in newer.function(name):
            if f"+ {right:#x}], 0" in instruction.text:
                end = instruction.address - newer.base + instruction.size
                at = flat.index(right.to_bytes(4, "little"), end - instruction.size, end)
                flat[at] += 1
                changed += 1
    assert changed >= 2
    newer.image.flat = bytes(flat)
    stated = newer.stated
    newer.forget()
    newer.__dict__["stated"] = stated
    why = refusals(newer)[ITEM]
    assert f"the code shows {right + 1:#x}" in why
    assert f"the debugging information has {right:#x} for domain.iommu.need_sync" in why


@pytest.mark.parametrize("section", [".debug_info", ".debug_abbrev"])
def test_debugging_information_that_cannot_be_read_is_one_clear_line(
    files: tuple[Path, Path], section: str, tmp_path: Path
) -> None:
    image, symbols = files
    data = bytearray(symbols.read_bytes())
    header = ELFFile(io.BytesIO(bytes(data))).get_section_by_name(section)
    assert header
    data[header["sh_offset"] + 4 : header["sh_offset"] + 2048] = b"\xfe" * 2044
    changed = tmp_path / symbols.name
    changed.write_bytes(data)
    with pytest.raises(UnusableInput, match="its debugging information cannot be read") as refusal:
        print(Hypervisor(image, changed).stated)
    assert "\n" not in str(refusal.value)
