# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Other builds than the one for which layout.h was written: what is fitted, what is not, and the PE image."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

XEN_DIR = Path(__file__).resolve().parents[2] / "xen"
sys.path.insert(0, str(XEN_DIR / "prove"))

from check_layout import DEFAULT_IMAGE, DEFAULT_SYMBOLS, main  # noqa: E402
from layout_checker.efi import EfiHypervisor, open_hypervisor  # noqa: E402
from layout_checker.facts import check_all  # noqa: E402
from layout_checker.fit import fit  # noqa: E402
from layout_checker.header import parse_header  # noqa: E402
from layout_checker.hypervisor import Hypervisor  # noqa: E402
from layout_checker.report import Refused, UnusableInput  # noqa: E402
from variants import LAYOUT_TEXT, of_debian12  # noqa: E402

EFI = DEFAULT_IMAGE.with_suffix(".efi")
LIST = DEFAULT_SYMBOLS.with_name(f"{EFI.name}.map")

pytestmark = [
    pytest.mark.skipif(
        not all(path.exists() for path in (DEFAULT_IMAGE, DEFAULT_SYMBOLS, EFI, LIST)),
        reason="Debian's Xen and its -dbg package are not installed",
    ),
    of_debian12,
]


@pytest.fixture(scope="module")
def gz() -> Hypervisor:
    return Hypervisor(DEFAULT_IMAGE, DEFAULT_SYMBOLS)


@pytest.fixture
def efi() -> EfiHypervisor:
    return EfiHypervisor(EFI, DEFAULT_SYMBOLS)


# -- fitting ------------------------------------------------------------------------------------


def fitted(old: str, new: str, hypervisor: Hypervisor) -> tuple[str, list[str]]:
    text = LAYOUT_TEXT
    assert old in text
    text = text.replace(old, new, 1)
    return fit(text, parse_header(text), hypervisor)


def test_nothing_is_fitted_for_the_build_of_layout_h(gz: Hypervisor) -> None:
    text, changes = fitted("", "", gz)
    assert text == LAYOUT_TEXT and not changes


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("XEN_SIZE_do_mmu_update\t\t5002", "XEN_SIZE_do_mmu_update\t\t7222"),
        ("0x41, 0x57, 0x4c, 0x63, 0xf9", "0x41, 0x57, 0x49, 0x89, 0xff"),
        ("XEN_DOMAIN_PAGING_MODE\t\t0x440", "XEN_DOMAIN_PAGING_MODE\t\t0x430"),
        ("XEN_DOMAIN_NEED_SYNC\t\t0x1c9", "XEN_DOMAIN_NEED_SYNC\t\t0x1c8"),
    ],
)
def test_what_moves_is_fitted(old: str, new: str, gz: Hypervisor) -> None:
    text, changes = fitted(old, new, gz)
    assert text == LAYOUT_TEXT
    assert len(changes) == 1


@pytest.mark.parametrize(
    ("old", "new", "refused"),
    [
        ("XEN_PAGE_INFO_COUNT_INFO\t0x8", "XEN_PAGE_INFO_COUNT_INFO\t0x10", "XEN_PAGE_INFO_COUNT_INFO"),
        ("XEN_DOMAIN_OPTION_HVM\t\t0x1", "XEN_DOMAIN_OPTION_HVM\t\t0x2", "XEN_DOMAIN_OPTION_HVM"),
        ("PGT_validated\t\t\t0x04", "PGT_validated\t\t\t0x08", "PGT_validated"),
        ("IOMMUF_rw\t\t\t0xc0", "IOMMUF_rw\t\t\t0x3", "IOMMUF_rw"),
    ],
)
def test_what_does_not_move_is_refused(old: str, new: str, refused: str, gz: Hypervisor) -> None:
    text, changes = fitted(old, new, gz)
    assert not changes
    assert refused in check_all(parse_header(text), gz).refused


# -- the PE image -------------------------------------------------------------------------------


@pytest.mark.long("make pagetable proves this image in the same way")
def test_the_efi_image_is_proven(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its own build-id, of 16 bytes."""
    written = tmp_path / "build-id"
    assert main(["--quiet", "--xen", str(EFI), "--emit-build-id", str(written)]) == 0, capsys.readouterr().out
    assert len(bytes.fromhex(written.read_text())) == 16


def test_the_first_bytes_say_which_image_it_is() -> None:
    assert isinstance(open_hypervisor(EFI, DEFAULT_SYMBOLS), EfiHypervisor)
    assert not isinstance(open_hypervisor(DEFAULT_IMAGE, DEFAULT_SYMBOLS), EfiHypervisor)


def test_one_other_instruction_is_another_build(efi: EfiHypervisor) -> None:
    place = efi.symbol("get_page").address - efi.sections[0].address
    code = bytearray(efi.sections[0].data)
    code[place] ^= 1
    efi.sections[0] = type(efi.sections[0])(efi.sections[0].name, efi.sections[0].address, bytes(code), True)
    with pytest.raises(Refused, match="get_page of"):
        efi.demand_one_build()


NEWER = Path(__file__).resolve().parents[3] / "build/pagetable/debian13"


@pytest.fixture
def newer() -> EfiHypervisor:
    """Xen 4.20, whose boot code has addresses as distances from Xen's base."""
    if not (NEWER / "versions").exists():
        pytest.skip("no Xen of Debian 13: make -C pagetable debian13")
    (image,) = NEWER.glob("boot/xen-*.efi")
    return EfiHypervisor(image, NEWER / f"usr/lib/debug/boot/xen-syms-{image.stem.removeprefix('xen-')}")


def test_numbers_that_moved_with_what_they_name_are_addresses(newer: EfiHypervisor) -> None:
    newer.demand_one_build()
    assert max(section.address for section in newer.sections) < newer.symbol("_end").address, "debugging data"


@pytest.mark.parametrize("wrong", [1, 0x1000, 1 << 30])
def test_a_number_that_moved_otherwise_is_another_build(newer: EfiHypervisor, wrong: int) -> None:
    (section,) = (section for section in newer.sections if section.name == ".init.text")
    at = newer.symbol("early_error").address - section.address
    code = bytearray(section.data)
    # mov ecx, IMMEDIATE: a message
    at = code.index(0xB9, at) + 1
    number = int.from_bytes(code[at : at + 4], "little") + wrong
    code[at : at + 4] = number.to_bytes(4, "little")
    newer.sections[newer.sections.index(section)] = type(section)(
        section.name, section.address, bytes(code), True
    )
    with pytest.raises(Refused, match="early_error of"):
        newer.demand_one_build()


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("ffff82d0403129b0 T do_mmu_update", "ffff82d0403129c0 T do_mmu_update", "does not list .text"),
        (" T do_mmu_update", " do_mmu_update", "cannot be read"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(old: str, new: str, why: str, tmp_path: Path) -> None:
    text = LIST.read_text()
    if old not in text:
        pytest.skip("another build: other addresses")
    shutil.copy(DEFAULT_SYMBOLS, tmp_path / DEFAULT_SYMBOLS.name)
    (tmp_path / LIST.name).write_text(text.replace(old, new, 1))
    with pytest.raises(UnusableInput, match=why):
        EfiHypervisor(EFI, tmp_path / DEFAULT_SYMBOLS.name)


@pytest.mark.parametrize("content", [b"MZ", b"MZ" + bytes(4096), b"MZ and then nothing that is one"])
def test_a_garbage_pe_image_is_one_clear_line(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "xen.efi"
    path.write_bytes(content)
    assert main(["--xen", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_pe_image_without_a_build_id_is_refused(tmp_path: Path) -> None:
    path = tmp_path / EFI.name
    path.write_bytes(EFI.read_bytes().replace(b"RSDS", b"RSDT", 1))
    with pytest.raises(UnusableInput, match="no CodeView build-id"):
        open_hypervisor(path, DEFAULT_SYMBOLS)
