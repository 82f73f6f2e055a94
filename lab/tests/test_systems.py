# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Systems are independent: no file of one, including its tests, is built from or imports another's.

Code that two of them share is in kmod/, cli/ and the lab.
"""

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SYSTEMS = ("pagetable", "dirty", "power")

_INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.MULTILINE)
_CARGO_PATH = re.compile(r'\bpath\s*=\s*"([^"]+)"')
_RUST_PATH = re.compile(r'#\[path\s*=\s*"([^"]+)"\]|\binclude(?:_str|_bytes)?!\(\s*"([^"]+)"')


def reaches(file: Path, root: Path) -> Iterator[Path]:
    """Yield the paths of the repository that a file is built from or imports."""
    text = file.read_text(errors="replace")
    if file.suffix in (".c", ".h", ".S"):
        yield from (file.parent / name for name in _INCLUDE.findall(text))
    elif file.name in ("Makefile", "Kbuild") or file.suffix == ".mk":
        yield from (root / path for path in _make_paths(text))
    elif file.name == "Cargo.toml":
        yield from (file.parent / path for path in _CARGO_PATH.findall(text))
    elif file.suffix == ".rs":
        yield from (file.parent / (one or other) for one, other in _RUST_PATH.findall(text))
    elif file.suffix == ".py":
        yield from _python_paths(ast.parse(text), file, root)


def _make_paths(text: str) -> Iterator[Path]:
    """Yield each path in a makefile from the first folder in it that is a system's."""
    for line in text.splitlines():
        for word in re.split(r"[\s=:']+", line.partition("#")[0]):
            parts = re.sub(r"\$[({][^)}]*[)}]|^-[A-Za-z]+", "", word).split("/")
            if system := next((part for part in parts if part in SYSTEMS and len(parts) > 1), None):
                yield Path(*parts[parts.index(system) :])


def _python_paths(tree: ast.AST, file: Path, root: Path) -> Iterator[Path]:
    """Yield the imported modules of the lab and of the tests, and paths that are joined from parts."""
    helpers: dict[str, list[Path]] = {}
    for system in SYSTEMS:
        for path in (root / system).rglob("*.py"):
            helpers.setdefault(path.stem, []).append(path)
    own = file.relative_to(root).parts[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            if isinstance(node.right, ast.Constant) and node.right.value in SYSTEMS:
                yield root / str(node.right.value)
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            first, _, rest = name.partition(".")
            if first == "trapless_lab":
                yield root / rest.replace(".", "/")
            found = helpers.get(first, [])
            if not any(path.relative_to(root).parts[0] == own for path in found):
                yield from found


def foreign(root: Path, files: Iterable[Path]) -> list[str]:
    """Return the places where a file of one system uses another."""
    found = set()
    for file in files:
        own = file.relative_to(root).parts[0]
        for path in reaches(file, root):
            for other in set(SYSTEMS) - {own}:
                if path.resolve().is_relative_to(root / other):
                    found.add(f"{file.relative_to(root)} -> {other}")
    return sorted(found)


def test_no_system_uses_another() -> None:
    listed = subprocess.run(
        ["git", "ls-files", *SYSTEMS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = [path for line in listed.stdout.splitlines() if (path := ROOT / line).is_file()]
    assert len(files) > 200
    assert foreign(ROOT, files) == []


MADE: Mapping[str, tuple[str, str]] = {
    "header": ("pagetable/pool/a.c", '#include "../../dirty/abi/trapless_dirty.h"\n'),
    "flag": ("dirty/module/Makefile", "ccflags-y += -I$(srctree)/../pagetable/abi\n"),
    "variable": ("dirty/module/Makefile", "INCLUDE = $(ROOT)/power/kvm\n"),
    "product": ("pagetable/tests/Makefile", "\tcp ../../build/dirty/module/x.ko $@\n"),
    "crate": ("power/vmm/Cargo.toml", '[dependencies]\nx = { path = "../../dirty/vmm" }\n'),
    "source": ("power/vmm/src/main.rs", '#[path = "../../../dirty/vmm/src/abi.rs"]\nmod abi;\n'),
    "room": ("dirty/tests/test_x.py", "from trapless_lab.pagetable import parts\n"),
    "experiment": ("pagetable/tests/test_x.py", "import trapless_lab.power.machine\n"),
    "helper": ("dirty/tests/test_x.py", "def late() -> None:\n    from helper import step\n"),
    "path": ("power/tests/test_x.py", "import pathlib\nX = pathlib.Path() / 'dirty' / 'abi'\n"),
}
FINE: Mapping[str, str] = {
    "pagetable/pool/a.c": '#include "../../kmod/direct_hook.h"\n#include <linux/dirty.h>\n',
    "dirty/module/Makefile": "ccflags-y += -I$(ROOT)/dirty/abi -I$(ROOT)/kmod # not pagetable/abi\n",
    "dirty/tests/test_x.py": "from trapless_lab import dirty\nfrom trapless_lab.machines import qemu\n",
    "power/vmm/Cargo.toml": '[dependencies]\nx = { path = "../x" }\n',
    "pagetable/tests/helper.py": "import helper\n",
}


def write(root: Path, files: Mapping[str, str]) -> list[Path]:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return [root / name for name in files]


def test_permitted_uses_pass(tmp_path: Path) -> None:
    assert foreign(tmp_path, write(tmp_path, FINE)) == []


@pytest.mark.parametrize("case", MADE)
def test_a_use_of_another_system_is_found(case: str, tmp_path: Path) -> None:
    name, text = MADE[case]
    files = write(tmp_path, {**FINE, name: text})
    assert [line.split(" -> ")[0] for line in foreign(tmp_path, files)] == [name]
