# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The checker accepts the installed hypervisor and nothing that differs from it.

Each class of item has a negative control: the same input with one thing wrong must be refused
under the name of that item. A checker that cannot refuse would pass every other test.
"""

from __future__ import annotations

import gzip
import random
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

XEN_DIR = Path(__file__).resolve().parents[2] / "xen"
sys.path.insert(0, str(XEN_DIR / "prove"))

from check_layout import DEFAULT_IMAGE, DEFAULT_SYMBOLS, main  # noqa: E402
from layout_checker import hypervisor as hypervisor_module  # noqa: E402
from layout_checker import payload, proofs  # noqa: E402
from layout_checker.facts import check_all, same_build  # noqa: E402
from layout_checker.header import FAMILIES, Header, families, family, parse_header, read_layout  # noqa: E402
from layout_checker.hypervisor import Hypervisor, near_branches, relative_pointers  # noqa: E402
from layout_checker.loops import read_loops  # noqa: E402
from layout_checker.report import Refused, Report, UnusableInput  # noqa: E402
from layout_checker.witness import Witness  # noqa: E402
from variants import HEADER, LAYOUT_TEXT, Files, Variant, installed, needs_xen, of_debian12  # noqa: E402

LAYOUT = XEN_DIR / "layout.h"
PROVEN = XEN_DIR.parents[1] / "build/pagetable/xen"
SITES = PROVEN / "zero_run_sites.h"

pytestmark = [needs_xen, of_debian12]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def build() -> Variant:
    return Variant()


def instruction(hypervisor: Hypervisor, function: str, text: str) -> tuple[int, int]:
    found = [i for i in hypervisor.function(function) if re.fullmatch(text, i.text)]
    assert found, f"{function} has no {text}"
    return found[0].address, found[0].size


def check(image: Path, symbols: Path, layout: Path, *more: str) -> int:
    return main(["--xen", str(image), "--syms", str(symbols), "--layout", str(layout), *more])


def run(files: Files, layout: Path = LAYOUT, *more: str) -> int:
    return check(*files.write(), layout, *more)


def refusals(build: Variant, header: Header = HEADER) -> dict[str, str]:
    """The refused items of a changed hypervisor, and the reasons."""
    verdicts = check_all(header, build).verdicts
    return {item.removeprefix("assumption: "): why for item, why in verdicts if why is not None}


def refused(output: str) -> set[str]:
    return set(re.findall(r"^REFUSED (.+?): ", output.replace("assumption: ", ""), flags=re.M))


@pytest.fixture(scope="module")
def with_layout() -> Callable[[str, str], set[str]]:
    """The items refused after a textual change of layout.h."""
    hypervisor = installed()

    def change(old: str, new: str) -> set[str]:
        text = LAYOUT_TEXT
        assert old in text
        report = check_all(parse_header(text.replace(old, new, 1)), hypervisor)
        return {item.removeprefix("assumption: ") for item in report.refused}

    return change


def test_the_installed_hypervisor_is_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_id = tmp_path / "build-id"
    assert check(DEFAULT_IMAGE, DEFAULT_SYMBOLS, LAYOUT, "--emit-build-id", str(build_id)) == 0
    output = capsys.readouterr().out
    assert re.fullmatch(r"[0-9a-f]{40}\n", build_id.read_text())
    for item in [*HEADER.values, *HEADER.declarations]:
        assert f"ok      {item}\n" in output
    assert HEADER.replaced == [
        "do_callback_op",
        "do_mmu_update",
        "do_update_va_mapping",
        "domain_kill",
        "get_page_from_l1e",
        "get_page_from_l4e",
        "iommu_legacy_map",
        "iommu_legacy_unmap",
        "put_page_from_l1e",
        "put_pt_page",
    ]
    assert not refused(output)


def test_the_undefined_byte_of_xen_4_22_is_an_instruction(build: Variant) -> None:
    """Its BUG() is three of them; any other byte that is no instruction is refused."""
    place, size = instruction(build, "_get_page_type", "ud2")
    before = len(build.function("_get_page_type"))
    build.poke(place, b"\xd6" * size)
    assert [i.text for i in build.function("_get_page_type") if i.address in (place, place + 1)] == [
        "ud2"
    ] * 2
    assert len(build.function("_get_page_type")) == before + size - 1
    build.poke(place, b"\x06" * size)
    with pytest.raises(Refused, match="not the end of an instruction"):
        build.function("_get_page_type")


def test_an_unchanged_copy_is_accepted(files: Files) -> None:
    assert run(files) == 0


def test_no_build_id_is_written_when_something_is_refused(files: Files, tmp_path: Path) -> None:
    files.poke(installed().symbol("iommu_legacy_map").address, b"\x90")
    path = tmp_path / "build-id"
    assert run(files, LAYOUT, "--emit-build-id", str(path)) == 1
    assert not path.exists()


# -- the header is wrong ------------------------------------------------------------------------


@pytest.mark.parametrize("item", sorted(HEADER.values))
@pytest.mark.parametrize("change", [1, 8, -1])
def test_a_changed_value_is_refused_by_name(
    item: str, change: int, with_layout: Callable[[str, str], set[str]]
) -> None:
    define = re.search(rf"#define {item}\s+\S+", LAYOUT_TEXT)
    assert define
    value = (HEADER.values[item] + change) % (1 << 64)
    names = with_layout(define[0], f"#define {item} {value:#x}UL")
    # The struct is checked against its values, and the graph proof uses two of them.
    assert names - {"struct page_info", "validated-last"} == {item}


@pytest.mark.parametrize("item", sorted(HEADER.values))
def test_a_missing_value_is_refused_by_name(item: str, with_layout: Callable[[str, str], set[str]]) -> None:
    assert item in with_layout(f"#define {item}", "#define")


@pytest.mark.parametrize("name", sorted(HEADER.declarations))
def test_a_missing_declaration_is_refused_by_name(
    name: str, with_layout: Callable[[str, str], set[str]]
) -> None:
    declaration = re.search(rf"^(extern|\w[^\n]*)[ *]{name}\b[^;{{}}]*;", LAYOUT_TEXT, flags=re.M)
    assert declaration
    item = "pdx" if name in proofs.FAMILY_SYMBOLS else name
    assert item in with_layout(declaration[0], "")


@pytest.mark.parametrize(
    ("old", "new", "item"),
    [
        ("bool get_page(", "int get_page(", "get_page"),
        ("extern u32 pfn_pdx_hole_shift", "extern u64 pfn_pdx_hole_shift", "pfn_pdx_hole_shift"),
        ("u32 flags, u32 *flush_flags);", "u32 *flush_flags);", "iommu_map"),
        ("void vfree(void *va);", "void vfree(void *va);\nvoid panic(void);", "panic"),
        ("#define IOMMUF_rw", "#define XEN_NEW_ITEM 5\n#define IOMMUF_rw", "XEN_NEW_ITEM"),
        ("#define IOMMUF_rw", "#define F(x) 5\n#define IOMMUF_rw", "F"),
        ("#define IOMMUF_rw", "#define X (1 << 3)\n#define IOMMUF_rw", "X"),
        ("#define PGT_validated", "#define IOMMUF_rw 1\n#define PGT_validated", "IOMMUF_rw"),
        ("#define IOMMUF_rw", "#ifdef A\n#endif\n#define IOMMUF_rw", "#ifdef"),
        ("sp | XEN_STACK_MASK", "sp | 0x7fff", "number 0x7fff"),
        ("\tu64 list;\n", "", "struct page_info"),
        ("\tu32 owner;\n\tu32 partial;", "\tu32 partial;\n\tu32 owner;", "struct page_info"),
        ("struct domain;\n", "struct domain { u64 id; };\n", "struct domain"),
        ("0x41, 0x54, 0x49, 0x89, 0xcc", "0x41, 0x54, 0x49, 0x89", "XEN_PROLOGUE_iommu_legacy_map"),
        ("0x41, 0x54, 0x49, 0x89, 0xcc", "0x41, 0x54, 0x4c, 0x89, 0xcc",
         "XEN_PROLOGUE_iommu_legacy_map"),
        ("0x41, 0x54, 0x49, 0x89, 0xcc", "0x41, 0x54, 0x49, 0x89, 0xcc, 0x55",
         "XEN_PROLOGUE_iommu_legacy_map"),
        ("0x49, 0x89, 0xd4", "0x49, 0x89", "XEN_PROLOGUE_iommu_legacy_unmap"),
        ("XEN_SIZE_do_callback_op\t\t348", "XEN_SIZE_do_callback_op 340",
         "XEN_SIZE_do_callback_op"),
    ],
)  # fmt: skip
def test_a_change_of_the_header_is_refused_by_name(
    old: str, new: str, item: str, with_layout: Callable[[str, str], set[str]]
) -> None:
    assert item in with_layout(old, new)


# -- the hypervisor is another one --------------------------------------------------------------


@pytest.mark.parametrize("name", HEADER.replaced)
def test_a_changed_prologue_byte_is_refused(name: str, build: Variant) -> None:
    last = len(HEADER.prologues[name]) - 1
    byte = HEADER.prologues[name][last] ^ 1
    build.poke(build.symbol(name).address + last, bytes([byte]))
    assert f"XEN_PROLOGUE_{name}" in refusals(build)


@pytest.mark.parametrize("which", ["image", "symbols"])
def test_files_of_two_builds_are_refused(
    which: str, files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    content = getattr(files, which)
    place = content.find(installed().build_id)
    content[place] ^= 1
    assert run(files) == 1
    assert "build-id" in refused(capsys.readouterr().out)


@pytest.mark.parametrize("section", [".text", ".rodata", ".init.text", ".data"])
def test_an_image_that_differs_from_its_symbols_is_refused(section: str, build: Variant) -> None:
    (address,) = (s.address + 100 for s in build.sections if s.name == section)
    build.poke(address, bytes([build.read(address, 1)[0] ^ 0x10]), image_only=True)
    assert f"image {section}" in refusals(build)


@pytest.mark.parametrize("name", HEADER.replaced)
@pytest.mark.parametrize("form", ["call", "jcc", "short", "pointer", "offset"])
def test_a_branch_into_a_prologue_is_refused(form: str, name: str, build: Variant) -> None:
    target = build.symbol(name).address + 2
    if form == "short":
        place = next(
            i.address for i in build.function(name) if i.size >= 2 and 16 < i.address - target + 2 < 120
        )
        build.poke(place, struct.pack("<Bb", 0xEB, target - place - 2))
    elif form in ("call", "jcc"):
        place = build.symbol("vzalloc").address
        code = b"\xe8" if form == "call" else b"\x0f\x84"
        offset = target - place - len(code) - 4
        build.poke(place, code + struct.pack("<i", offset))
    else:
        (place,) = (s.address + 64 for s in build.sections if s.name == ".data")
        data = struct.pack("<Q", target) if form == "pointer" else struct.pack("<i", target - place)
        build.poke(place, data)
    assert f"XEN_PROLOGUE_{name}" in refusals(build)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("e800000000", "branch"),
        ("eb0090909090", "branch"),
        ("488b0500000000", "place"),
        ("f30f1efa415641", "landing pad"),
        ("660f1f0190", "landing pad"),
        ("4989cc4189", "whole"),
        ("909090909090", "behind"),
        ("cccccccccc", "branch"),
    ],
)
def test_a_prologue_that_cannot_move_is_refused(code: str, why: str, build: Variant) -> None:
    """Header and hypervisor agree, but the bytes must not be copied."""
    data = bytes.fromhex(code)
    build.poke(build.symbol("do_callback_op").address, data)
    values = ", ".join(f"{byte:#04x}" for byte in data)
    header = re.sub(r"(XEN_PROLOGUE_do_callback_op\s+).*", rf"\g<1>{values}", LAYOUT_TEXT)
    assert why in refusals(build, parse_header(header))["XEN_PROLOGUE_do_callback_op"]


@pytest.mark.parametrize("name", [*sorted(HEADER.declarations), *HEADER.replaced])
def test_a_missing_symbol_is_refused_by_name(name: str, build: Variant) -> None:
    build.rename(name, "")
    assert {name, f"XEN_PROLOGUE_{name}"} & refusals(build).keys()


def test_a_duplicate_symbol_is_refused(build: Variant) -> None:
    build.rename("panic", "max_page")
    assert "max_page" in refusals(build)


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ((4, 17), "4.17"),
        ((4, 18), "4.18-4.20"),
        ((4, 20), "4.18-4.20"),
        ((4, 21), "4.21"),
        ((4, 22), "4.22"),
    ],
)
def test_a_version_has_the_header_of_its_family(version: tuple[int, int], name: str) -> None:
    assert family(LAYOUT.parent / FAMILIES, version).stem == name


@pytest.mark.parametrize("version", [(4, 16), (4, 23), (5, 17)])
def test_a_version_of_no_known_family_is_refused(version: tuple[int, int]) -> None:
    with pytest.raises(UnusableInput, match="of no family that is known"):
        read_layout(LAYOUT, version)


@pytest.mark.parametrize("first", [first for first, _, _ in families(LAYOUT.parent / FAMILIES)])
def test_each_familys_header_is_whole(first: tuple[int, int], tmp_path: Path) -> None:
    """It compiles, and has what all have, but for how holes are left out of the frame table."""
    text = read_layout(LAYOUT, first)
    header = parse_header(text)
    assert not header.problems
    assert header.values.keys() - proofs.FAMILY_VALUES == HEADER.values.keys()
    of_families = proofs.FAMILY_SYMBOLS
    assert header.declarations.keys() - of_families == HEADER.declarations.keys() - of_families
    assert frozenset(header.declarations.keys() & of_families) in proofs.PDX
    source = tmp_path / "layout.c"
    source.write_text(text)
    quiet = ["-Wno-unused-parameter", "-Wno-unused-function", "-fsyntax-only"]
    subprocess.run(["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", *quiet, source], check=True)


def test_another_familys_header_is_refused() -> None:
    """A frame table that leaves holes out, read as one that does not, would mark other frames."""
    other = check_all(parse_header(read_layout(LAYOUT, (4, 20))), installed()).refused
    assert {"assumption: pdx", "PGC_special"} <= set(other)


# Function, instruction, offset of the byte from its end, new byte, items that detect it.
CHANGED_CODE = [
    ("cleanup_page_mappings", r"cmp byte ptr \[rax \+ 0x1c9\], 0", -5, 0xCA,
     {"XEN_DOMAIN_NEED_SYNC"}),
    ("cleanup_page_mappings", r"test byte ptr \[rax \+ 0x13c\], 1", -1, 0x02,
     {"XEN_DOMAIN_OPTION_HVM"}),
    # Another function still shows the offset of the options, so it is the option that is not seen.
    ("cleanup_page_mappings", r"test byte ptr \[rax \+ 0x13c\], 1", -5, 0x3D,
     {"XEN_DOMAIN_OPTION_HVM"}),
    ("cleanup_page_mappings", r"sar rax, 5", -1, 0x06, {"XEN_PAGE_INFO_SIZE"}),
    ("cleanup_page_mappings", r"movabs rax, 0x7d2000000000", -2, 0x01, {"XEN_FRAME_TABLE"}),
    ("_get_page_type", r"mov r8d, 0xc0", -4, 0x03, {"IOMMUF_rw"}),
    ("_get_page_type", r"lock cmpxchg qword ptr \[rbx \+ 0x10\], rbp", -1, 0x18,
     {"validated-last"}),
    ("iommu_map", r"and ecx, 0x3f", -1, 0x1F, {"IOMMUF_rw"}),
    ("iommu_map", r"test byte ptr \[rdi \+ 0x13c\], 0x20", -1, 0x40, {"XEN_DOMAIN_OPTION_IOMMU"}),
    ("put_page", r"mov rdx, qword ptr \[rdi \+ 8\]", -1, 0x10, {"XEN_PAGE_INFO_COUNT_INFO"}),
    # Of a frame's group only its number is an item.
    ("__mfn_valid", r"setb al", -1, 0xC1, {"XEN_PDX_GROUP_SHIFT"}),
    ("__mfn_valid", r"shr rax, cl", -1, 0xE0, {"XEN_PDX_GROUP_SHIFT"}),
    ("__mfn_valid", r"shr rax, 0x10", -1, 0x11, {"XEN_PDX_GROUP_SHIFT"}),
    ("__mfn_valid", r"and rax, qword ptr \[pfn_hole_mask\]", -4, 0x10, {"pfn_hole_mask"}),
    ("get_page", r"movabs rsi, 0x1ffffffffffffff", -1, 0x03, {"PGC_count_mask"}),
    ("get_page", r"cmp rax, 2", -1, 0x01, {"PGC_count_mask"}),
    ("get_page_from_l2e", r"movabs rsi, 0x2000000000000000", -1, 0x40, {"PGT_l1_page_table"}),
    ("revert_payload", r"lea rcx, \[rax \+ rdx\*4\]", -1, 0x50, {"livepatch-func"}),
    ("vzalloc", r"call clear_page_sse2", -5, 0xE9, {"vzalloc"}),
    ("getdomaininfo", r"movzx eax, word ptr \[r12\]", -3, 0xB6, {"XEN_DOMAIN_ID"}),
    ("iommu_domain_init", r"cmp word ptr \[rbx\], 0x7fef", -2, 0xEE, {"XEN_DOMID_LAST"}),
    ("domain_kill", r"cmp eax, 1", -1, 2, {"death"}),
]  # fmt: skip


@pytest.mark.parametrize(("function", "text", "offset", "byte", "items"), CHANGED_CODE)
def test_changed_code_is_refused_by_the_items_it_proves(
    function: str,
    text: str,
    offset: int,
    byte: int,
    items: set[str],
    build: Variant,
) -> None:
    address, size = instruction(build, function, text)
    build.poke(address + size + offset, bytes([byte]))
    assert items <= refusals(build).keys()


def test_validation_before_the_iommu_is_refused(build: Variant) -> None:
    """The path after the store of PGT_validated leads back to the IOMMU call."""
    code = build.function("_get_page_type")
    store = next(
        index for index, i in enumerate(code)
        if i.text == "mov qword ptr [rbx + 0x10], rax" and "or rax" in code[index - 2].text
    )  # fmt: skip
    call = next(i for i in code if i.text == "call iommu_legacy_map")
    behind = code[store + 1].address
    build.poke(behind, b"\xe9" + struct.pack("<i", call.address - behind - 5))
    assert refusals(build)["validated-last"].startswith("3:")


VALIDATED_IN_PLACE = (
    "movabs rax, 0x400000000000000",
    "or rax, qword ptr [rbx + 0x10]",
    "xor r12d, r12d",
    "mov qword ptr [rbx + 0x10], rax",
)


def validate_in_place(build: Variant, bit: int) -> int:
    """Set the bit as gcc 16 does, by one instruction; returns where the code goes on."""
    code = build.function("_get_page_type")
    texts = [i.text for i in code]
    first = next(n for n in range(len(code)) if tuple(texts[n : n + 4]) == VALIDATED_IN_PLACE)
    behind = code[first + 4].address
    # bts qword ptr [rbx + 0x10], BIT; xor r12d, r12d
    in_place = bytes((0x48, 0x0F, 0xBA, 0x6B, 0x10, bit, 0x45, 0x31, 0xE4))
    build.poke(code[first].address, in_place.ljust(behind - code[first].address, b"\x90"))
    return behind


def test_a_page_may_be_validated_in_place(build: Variant) -> None:
    validate_in_place(build, 58)
    assert refusals(build) == {}


def test_negative_control_another_bit_in_place(build: Variant) -> None:
    validate_in_place(build, 59)
    assert {"PGT_validated", "validated-last"} <= refusals(build).keys()


def test_negative_control_validation_in_place_before_the_iommu(build: Variant) -> None:
    behind = validate_in_place(build, 58)
    call = next(i for i in build.function("_get_page_type") if i.text == "call iommu_legacy_map")
    build.poke(behind, b"\xe9" + struct.pack("<i", call.address - behind - 5))
    assert refusals(build)["validated-last"].startswith("3:")


def test_a_new_caller_of_the_iommu_functions_is_refused(build: Variant) -> None:
    place, target = build.symbol("vfree").address + 40, build.symbol("iommu_legacy_map").address
    build.poke(place, b"\xe8" + struct.pack("<i", target - place - 5))
    assert refusals(build)["iommu-callers"].startswith("vfree")


def test_a_register_that_is_read_behind_a_replaced_function_is_refused(build: Variant) -> None:
    """gcc may keep a value in r9 across a call of a known function that leaves r9 alone; ours may not."""
    code = build.function("_get_page_type")
    behind = next(n for n, i in enumerate(code) if i.text == "call get_page_from_l4e") + 1
    size = code[behind].size + code[behind + 1].size
    build.poke(code[behind].address, b"\x4c\x89\xc8".ljust(size, b"\x90"))  # mov rax, r9
    assert re.search(r"calls get_page_from_l4e, and .* reads r9 behind it", refusals(build)["clobbers"])


def test_a_register_that_is_written_first_is_not(build: Variant) -> None:
    """The control: the same read, behind a write of the register."""
    code = build.function("_get_page_type")
    behind = next(n for n, i in enumerate(code) if i.text == "call get_page_from_l4e") + 1
    size = code[behind].size + code[behind + 1].size
    build.poke(code[behind].address, b"\x45\x31\xc9".ljust(size, b"\x90"))  # xor r9d, r9d
    assert "r9" not in refusals(build).get("clobbers", "")


def test_an_item_that_no_passage_shows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a passage in two forms of which one lacks an item, any value of that item would do."""
    paging = proofs.PAGING_MODE
    lax = Witness(paging.function, *paging.passages, "test dh, 8\njne {_}")
    monkeypatch.setitem(proofs.VALUES, "XEN_DOMAIN_PAGING_MODE", (lax,))
    verdicts = dict(check_all(HEADER, installed()).verdicts)
    assert verdicts["XEN_DOMAIN_PAGING_MODE"] == "no passage shows its value"


# -- garbage ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not an ELF file, and not a gzip either",
        DEFAULT_IMAGE.read_bytes()[:5000] if DEFAULT_IMAGE.exists() else b"",
        gzip.compress(b"", mtime=0),
        gzip.compress(b"\x7fELF", mtime=0),
        gzip.compress(Path(sys.executable).resolve().read_bytes()[:4096], mtime=0),
    ],
)
def test_a_garbage_image_is_one_clear_line(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "xen.gz"
    path.write_bytes(content)
    assert check(path, DEFAULT_SYMBOLS, LAYOUT) == 2
    one_clear_line(capsys, path, "xen-hypervisor-VERSION-amd64)")


@pytest.mark.parametrize("source", [None, "/bin/true", "/dev/null", str(DEFAULT_IMAGE)])
def test_a_garbage_symbol_file_is_one_clear_line(
    source: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "xen-syms"
    if source:
        path.write_bytes(Path(source).read_bytes())
    assert check(DEFAULT_IMAGE, path, LAYOUT) == 2
    one_clear_line(capsys, path, "xen-hypervisor-VERSION-amd64-dbg)")


def test_an_unreadable_header_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "layout.h"
    path.write_bytes(b"#define X \xff\n")
    assert check(DEFAULT_IMAGE, DEFAULT_SYMBOLS, path) == 2
    one_clear_line(capsys, path, "not a C header")


def one_clear_line(capsys: pytest.CaptureFixture[str], *needed: object) -> None:
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and captured.err.startswith("check_layout: ")
    for text in needed:
        assert str(text) in captured.err
    assert not captured.out


@cache
def branches_once(code: bytes, address: int) -> list[tuple[int, int]]:
    return list(near_branches(code, address))


@cache
def pointers_once(data: bytes, address: int, start: int, end: int) -> list[tuple[int, int]]:
    return list(relative_pointers(data, address, start, end))


def test_mutated_elf_headers_never_give_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any contents of the headers get a verdict."""
    # The code is the same each time and need not be searched again.
    monkeypatch.setattr(hypervisor_module, "near_branches", branches_once)
    monkeypatch.setattr(hypervisor_module, "relative_pointers", pointers_once)
    chance = random.Random(417)
    image = gzip.decompress(DEFAULT_IMAGE.read_bytes())
    symbols = DEFAULT_SYMBOLS.read_bytes()
    section_headers = int.from_bytes(symbols[0x28:0x30], "little")
    image_path, symbols_path = tmp_path / "xen.gz", tmp_path / "xen-syms"
    image_path.write_bytes(gzip.compress(image, 0))
    verdicts = set()
    for turn in range(16):
        changed = bytearray(symbols)
        for _ in range(chance.randint(1, 4)):
            place = chance.choice([0, section_headers]) + chance.randrange(4, 13 * 64)
            if place < len(changed):
                changed[place] = chance.randrange(256)
        symbols_path.write_bytes(changed)
        verdicts.add(readable(DEFAULT_IMAGE, symbols_path, turn % 8 == 0))
    for turn in range(16):
        shipped = bytearray(image)
        for _ in range(chance.randint(1, 4)):
            place = chance.choice([chance.randrange(4, 128), len(image) - chance.randrange(1, 300)])
            shipped[place] = chance.randrange(256)
        image_path.write_bytes(gzip.compress(bytes(shipped), 0))
        verdicts.add(readable(image_path, DEFAULT_SYMBOLS, turn % 8 == 0))
    assert verdicts == {True, False}


def readable(image: Path, symbols: Path, deep: bool) -> bool:
    """Either it is refused as unusable, or the checks give every item a verdict."""
    try:
        hypervisor = Hypervisor(image, symbols)
        same_build(hypervisor)
    except (UnusableInput, Refused):
        return False
    if deep:
        assert check_all(HEADER, hypervisor).verdicts
    return True


def test_mutated_gzip_never_gives_a_traceback(tmp_path: Path) -> None:
    chance = random.Random(17)
    packed = DEFAULT_IMAGE.read_bytes()
    path = tmp_path / "xen.gz"
    for _ in range(60):
        changed = bytearray(packed[: chance.randrange(1, len(packed))])
        changed[chance.randrange(min(64, len(changed)))] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
        assert check(path, DEFAULT_SYMBOLS, LAYOUT, "--quiet") == 2


def test_mutated_layouts_never_give_a_traceback() -> None:
    chance = random.Random(2022)
    text = LAYOUT_TEXT
    for _ in range(400):
        changed = list(text)
        for _ in range(chance.randint(1, 6)):
            changed[chance.randrange(len(changed))] = chance.choice('{}();#\\"/*\n0x ,a')
        parse_header("".join(changed))


# -- payloads -----------------------------------------------------------------------------------

STUB = """
#include "layout.h"
#include "livepatch.h"
int original_iommu_legacy_map(struct domain *d, u64 dfn, u64 mfn,
                              unsigned long page_count, u32 flags);
static int new_iommu_legacy_map(struct domain *d, u64 dfn, u64 mfn,
                                unsigned long page_count, u32 flags)
{
	return original_iommu_legacy_map(d, dfn, mfn, page_count, flags);
}
static int before_revert(struct payload *payload)
{
	printk("stub: current domain is PV: %d\\n", domain_is_pv(current_domain()));
	return 0;
}
LIVEPATCH_FUNC(iommu_legacy_map);
LIVEPATCH_PREREVERT_HOOK(before_revert);
"""


# Payload, and the item that the checker refuses.
VARIANTS = {
    "trapless_pagetable": None,
    "wrong-build-id": "payload: build-ids",
    "wrong-prologue": "payload: .livepatch.funcs",
    "wrong-loop": "payload: .livepatch.funcs",
}


RUNS = """
unsigned plain_run_take(unsigned long *entry) { return 0; }
unsigned plain_run_drop(unsigned long *entry) { return 0; }
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A payload and mutants of it, built from a stub by the Makefile."""
    directory = tmp_path_factory.mktemp("payload")
    (directory / "payload.c").write_text(STUB)
    (directory / "switches.c").write_text("unsigned char zero_runs_enabled, l1_update_enabled;\n")
    (directory / "plain_runs.c").write_text(RUNS)
    for name in VARIANTS:
        make(directory, name)
    return directory


def make(directory: Path, name: str) -> None:
    """Everything except running the trampolines, which test_find_zero_runs.py does."""
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    sources, out = XEN_DIR, directory
    if name.startswith("wrong-"):
        out = directory / name
        script = XEN_DIR.parents[1] / "scripts/mutant"
        subprocess.run([script, "pagetable", out / "source", f"payload-{name}"], check=True)
        sources = out / "source/pagetable/xen"
    for proof in ("layout.h", "build-id", "parts.h", "left-out", SITES.name):  # proven already
        if (PROVEN / proof).exists():
            shutil.copy(PROVEN / proof, out)
    command = ["make", "-s", "-C", str(sources), "payload", f"SRC={directory}", f"O={out}"]
    command += ["SOURCES=payload.c switches.c plain_runs.c original.S zero_runs.S", "RUN="]
    command += [f"REFUSED={'y' if VARIANTS[name] else ''}", f"PYTHON={sys.executable}"]
    subprocess.run(command, check=True)
    if out != directory:
        (out / "trapless_pagetable.livepatch").rename(directory / f"{name}.livepatch")


def check_payload(path: Path, layout: Path, *more: str) -> int:
    return check(DEFAULT_IMAGE, DEFAULT_SYMBOLS, layout, "--payload", str(path), *more)


@pytest.mark.not_fast("builds a payload for each of its mistakes: 30 s of a processor")
@pytest.mark.parametrize(("name", "item"), VARIANTS.items())
def test_built_payloads(name: str, item: str | None, built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loops = ("--loops", str(built / SITES.name))
    status = check_payload(built / f"{name}.livepatch", built / "layout.h", "--payload-only", *loops)
    output = capsys.readouterr().out
    assert status == (1 if item else 0)
    assert (f"REFUSED {item}:" in output) if item else "REFUSED" not in output
    if not item:
        assert check_payload(built / f"{name}.livepatch", LAYOUT, *loops) == 0


def test_a_payload_alone_is_checked_only_beside_a_layout_of_its_image(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = Path(shutil.copy(built / "layout.h", tmp_path))
    for wrong, said in ((None, "No such file"), ("00" * 20, "was proven for Xen 0000"), ("\xff", "ascii")):
        if wrong is not None:
            (tmp_path / "build-id").write_bytes(wrong.encode("latin-1"))
        assert check_payload(built / "trapless_pagetable.livepatch", layout, "--payload-only") == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "flags", "item"),
    [
        ("return 0;", "extern void panic(void); panic(); return 0;", [], "undefined symbols"),
        ("return 0;", "extern void no_such(void); no_such(); return 0;", [], "undefined symbols"),
        ("return 0;", "return payload == (void *)&max_page;", ["-mcmodel=kernel", "-fno-pic"],
         "relocations"),
        ("LIVEPATCH_PREREVERT_HOOK", "LIVEPATCH_PREAPPLY_HOOK", ["-fcf-protection=none"], "hooks"),
        ("LIVEPATCH_FUNC(iommu_legacy_map);", "static int other; int *p = &other;",
         ["-Wno-unused"], ".livepatch.funcs"),
    ],
)  # fmt: skip
def test_a_payload_that_xen_could_not_load_is_refused(
    old: str,
    new: str,
    flags: list[str],
    item: str,
    built: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = tmp_path / "payload.c"
    source.write_text(STUB.replace(old, new))
    base = ["-O2", "-ffreestanding", "-fPIC", "-fcf-protection=branch", "-fno-stack-protector"]
    base += ["-fno-asynchronous-unwind-tables", "-mno-red-zone", f"-I{XEN_DIR}", "-w"]
    base += ["-include", str(built / "layout.h")]
    compiled = tmp_path / "payload.o"
    linked = tmp_path / "payload.livepatch"
    subprocess.run(["gcc", *base, *flags, "-c", source, "-o", compiled], check=True)
    others = [built / "trapless_pagetable" / f"{name}.S.o" for name in ("original", "notes")]
    subprocess.run(["ld", "-r", "--build-id=sha1", "-o", linked, compiled, *others], check=True)
    assert check_payload(linked, built / "layout.h", "--payload-only") == 1
    assert f"REFUSED payload: {item}" in capsys.readouterr().out


def payload_refusals(path: Path, sites: Path) -> list[str]:
    report = Report()
    payload.check_payload(report, path, HEADER, installed(), read_loops(sites))
    return report.refused


@pytest.mark.parametrize(
    ("old", "new", "item"),
    [
        ("offset=0x", "offset=0x1", ".livepatch.funcs"),
        ("name=demote_l3", "name=demote_l5", "trampolines"),
        ('size=7, bytes="0x49,0x8b,0x3c,0x24,', 'size=6, bytes="0x49,0x8b,0x3c,', ".livepatch.funcs"),
        ('function="devalidate_page"', 'function="arch/x86/mm.c#devalidate_page"', "undefined symbols"),
        ('function="devalidate_page"', 'function="put_page"', ".livepatch.funcs"),
    ],
)
def test_a_trampoline_into_something_else_is_refused(
    old: str, new: str, item: str, built: Path, tmp_path: Path
) -> None:
    sites = tmp_path / "sites.h"
    text = (built / SITES.name).read_text()
    assert old in text
    sites.write_text(text.replace(old, new))
    assert f"payload: {item}" in payload_refusals(built / "trapless_pagetable.livepatch", sites)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (".Lstock_\\name:\n", ".Lstock_\\name:\n\tnop\n"),
        ("\tjmp\t.Lstock_\\name\n", "\tjmp\tdevalidate_page\n"),
        ("+ \\offset + \\size", "+ \\offset + \\size + 1"),
        ("\tjmp\t.Lnext_\\name\n", "\tcall\t.Lnext_\\name\n"),
        ("\tjmp\t.Lnext_\\name\n", "\tmovq\t$0, \\entry\n\tjmp\t.Lnext_\\name\n"),
        ("\tjmp\t.Lnext_\\name\n", "\tret\n"),
        ("\tcall\t\\run\n", "\tcall\tput_page\n"),
        ("\tcall\t\\run\n", "\tcall\t\\run + 1\n"),
        ("\tcall\t\\run\n", "\tjmp\t\\run\n"),
        ("\tkeep\tpush, ", "\tjne\t\\run\n\tkeep\tpush, "),
        ("\tkeep\tpush, ", "\tlea\t\\run(%rip), %rdi\n\tkeep\tpush, "),
        # Not kept, in both lists.
        ("%rsi, %rdi, %r8, %r9, %r10, %r11\n", "%rsi, %rdi, %r9, %r10, %r11\n"),
        ("\tkeep\tpop, ", "\tkeep\tpush, "),
        ("\tkeep\tpop, \\scratch, %r11, %r10, %r9, %r8, %rdi, %rsi, %rdx, %rcx, %rax\n", ""),
        ("%r9, %r8, %rdi, %rsi, %rdx, %rcx, %rax", "%r9, %r8, %rsi, %rdi, %rdx, %rcx, %rax"),
        ("\ttest\t\\scratch, \\scratch\n", "\tpop\t%rbx\n\ttest\t\\scratch, \\scratch\n"),
        ("\tcall\t\\run\n", "\tcall\t\\run\n.Lback_\\name:\n\tjmp\t.Lback_\\name\n"),
        ("\tcall\t\\run\n", "\tcall\t\\run\n\txor\t%ebx, %ebx\n"),
        ("\tcall\t\\run\n", "\tcall\t\\run\n\tadd\t$8, %rsp\n"),
        ("\tjmp\t.Lnext_\\name\n", "\tadd\t$8, %rsp\n\tjmp\t.Lnext_\\name\n"),
        ("\tjmp\t.Lnext_\\name\n", "\tjmp\t.Lnext_\\name + 1\n"),
        ("\tjmp\t.Lnext_\\name\n", "\tjmp\t.Lstock_\\name + 1\n"),
        ("\tcmpb\t$0, l1_update_enabled(%rip)\n", "\tcmpb\t$0, zero_runs_enabled(%rip)\n"),
        ("\tcmpb\t$0, l1_update_enabled(%rip)\n\tje\t.Lstock_\\name\n", ""),
        ("\tcmpb\t$0, zero_runs_enabled(%rip)\n", "\tcmpb\t$0, l1_update_enabled(%rip)\n"),
        ("\tmov\t%eax, %eax\n", "\tmov\t%eax, 8(%rsp)\n"),
    ],
)
def test_a_trampoline_of_another_form_is_refused(old: str, new: str, built: Path, tmp_path: Path) -> None:
    source, compiled, linked = (tmp_path / f"x.{suffix}" for suffix in ("S", "o", "livepatch"))
    text = (XEN_DIR / "zero_runs.S").read_text()
    assert old in text
    source.write_text(text.replace(old, new))
    subprocess.run(["gcc", f"-I{XEN_DIR}", f"-I{built}", "-c", source, "-o", compiled], check=True)
    objects = sorted((built / "trapless_pagetable").glob("*.o"))
    others = [path for path in objects if path.name != "zero_runs.S.o"]
    subprocess.run(["ld", "-r", "--build-id=sha1", "-o", linked, *others, compiled], check=True)
    assert payload_refusals(linked, built / SITES.name) == ["payload: trampolines"]


def test_garbage_payloads_never_give_a_traceback(built: Path, tmp_path: Path) -> None:
    chance = random.Random(5)
    loops = read_loops(built / SITES.name)
    hypervisor = installed()
    good = (built / "trapless_pagetable.livepatch").read_bytes()
    path = tmp_path / "x.livepatch"
    verdicts = set()
    for _ in range(100):
        changed = bytearray(good)
        for _ in range(chance.randint(1, 5)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        path.write_bytes(changed[: chance.choice([len(changed), chance.randrange(len(changed))])])
        report = Report()
        try:
            payload.check_payload(report, path, HEADER, hypervisor, loops)
        except UnusableInput:
            verdicts.add("unusable")
        else:
            verdicts.add("refused" if report.refused else "accepted")
    assert {"unusable", "refused"} <= verdicts
