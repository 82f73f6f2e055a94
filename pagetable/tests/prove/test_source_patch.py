# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The patches for Xen's sources are well-formed, and a guest built for the payload finds its interface there.

Xen's sources are not here: test_own_build.py fetches and compiles them with the series.
"""

from __future__ import annotations

import os
import re
import subprocess
from email import message_from_string
from pathlib import Path

import pytest

PAGETABLE = Path(__file__).resolve().parents[2]
PATCHES = sorted((PAGETABLE / "xen-source" / "patches").glob("*.patch"))
ABI = PAGETABLE / "abi" / "trapless_pagetable.h"
PUBLIC = "xen/include/public/arch-x86/semi-writable.h"


def run(
    *command: str | Path, cwd: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command], cwd=cwd, text=True, capture_output=True, timeout=120, env=env
    )


def demand(*command: str | Path, cwd: Path) -> str:
    result = run(*command, cwd=cwd)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture
def header(tmp_path: Path) -> Path:
    """The public header from the patches, with the parts of Xen's headers that it needs."""
    tree = tmp_path / "tree"
    tree.mkdir()
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(tmp_path)}
    for patch in PATCHES:
        result = run("git", "apply", f"--include={PUBLIC}", patch, cwd=tree, env=environment)
        assert result.returncode == 0, result.stderr
    (tree / "xen/include/public/xen.h").write_text(
        "#include <stdint.h>\n#define DEFINE_XEN_GUEST_HANDLE(name) struct handle_##name\n"
    )
    return tree / PUBLIC


# -- form ---------------------------------------------------------------------------------------


def test_the_series_is_whole() -> None:
    assert [int(patch.name[:4]) for patch in PATCHES] == [1, 2, 3, 4]
    for number, patch in enumerate(PATCHES, 1):
        text = patch.read_text()
        assert f"Subject: [PATCH {number}/4] " in text
        assert re.search(r"^Signed-off-by: .+ <.+@.+>$", text.split("\n---\n")[0], re.MULTILINE)


def test_the_cover_letter_names_the_patches() -> None:
    """And each of them as its own subject does."""
    letter = (PAGETABLE / "xen-source/cover-letter.txt").read_text()
    subjects = [message_from_string(patch.read_text())["Subject"] for patch in PATCHES]
    listed = re.findall(r"^  (\S.*)$", letter.partition("maintainers (4):\n")[2], re.MULTILINE)
    assert listed == [" ".join(subject.split()).partition("] ")[2] for subject in subjects]
    assert max(map(len, letter.splitlines()[3:])) <= 80 and "[PATCH 0/4] " in letter


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name[:4])
def test_a_patch_is_well_formed(patch: Path, tmp_path: Path) -> None:
    demand("git", "apply", "--numstat", patch, cwd=tmp_path)
    added = [line[1:] for line in patch.read_text().splitlines() if re.match(r"\+(?!\+\+ )", line)]
    assert [line for line in added if line != line.rstrip() or len(line.expandtabs(8)) > 80] == []


def test_negative_control_a_damaged_patch_is_not(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.patch"
    damaged.write_text(PATCHES[1].read_text().replace("+        smp_mb();\n", "", 1))
    assert run("git", "apply", "--numstat", damaged, cwd=tmp_path).returncode != 0


NOT_PART = {
    # For a payload that is to be reverted, which a Xen that is built with the patches has no use for.
    *("TPT_OP_EVICT", "TPT_OP_ADMIT", "TPT_FEAT_EVICTED", "tpt_evict"),
    # Of a part beside the page type, which the patches do not have.
    *("TPT_OP_PROTECT", "TPT_OP_MOVE", "TPT_SWITCH_RANGES", "TPT_SWITCH_ALL", "tpt_protect", "tpt_move"),
}


def interface(header: Path, cwd: Path) -> str:
    """Every number and every field's offset, from the compiler."""
    text = ABI.read_text()
    numbers = [name for name in re.findall(r"^#define (TPT_\w+)", text, re.MULTILINE) if name not in NOT_PART]
    lines = [f'printf("{name} %llu\\n", (unsigned long long){name});' for name in numbers]
    for name, body in re.findall(r"^struct (tpt_\w+) \{(.*?)^\};", text, re.MULTILINE | re.DOTALL):
        if name in NOT_PART:
            continue
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        for field in re.findall(r"(\w+);", body):
            size = f"sizeof(((struct {name} *)0)->{field})"
            lines.append(f'printf("{name}.{field} %zu %zu\\n", offsetof(struct {name}, {field}), {size});')
    assert len(numbers) > 10 and len(lines) > 30
    (cwd / "probe.c").write_text(
        f'#include <stddef.h>\n#include <stdio.h>\n#include "{header}"\nint main(void)\n{{\n'
        + "\n".join(lines)
        + "\nreturn 0;\n}\n"
    )
    demand("gcc", "-o", "probe", "probe.c", cwd=cwd)
    return demand("./probe", cwd=cwd)


def test_the_guest_module_finds_the_interface_it_knows(header: Path, tmp_path: Path) -> None:
    known = interface(ABI, tmp_path)
    assert interface(header, tmp_path) == known
    text = header.read_text()
    assert text.count("    uint32_t done;") == 1
    header.write_text(text.replace("    uint32_t done;", "    uint64_t done;"))
    assert interface(header, tmp_path) != known


def test_the_public_header_passes_xens_own_check(header: Path) -> None:
    """Xen compiles its public headers as C90 and C++."""
    for language in ("c", "c++"):
        options = ["-ansi", "-Wall", "-Werror", "-include", "stdint.h", "-fsyntax-only"]
        demand("gcc", "-x", language, *options, header, cwd=header.parent)
