# SPDX-License-Identifier: Apache-2.0 OR MIT
"""layout.h as a list of items: the values it defines and the symbols it declares.

In layout.h a line stands for the family of versions that the hypervisor belongs to. families/ has a header
for each, named after its versions: 4.17.h, 4.18-4.20.h; and what some of them share, which they include.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from .report import UnusableInput

FIELD_SIZES = {"u8": 1, "u32": 4, "u64": 8}
PLAIN_DIRECTIVES = {"ifndef", "endif", "include", "pragma"}
INTEGER = re.compile(r"(0[xX][0-9a-fA-F]+|[0-9]+)(?:[uU]?[lL]{0,2})")


FAMILIES = "families"
FAMILY_LINE = '#include "family.h"\n'
FAMILY_NAME = re.compile(r"(\d+)\.(\d+)(?:-(\d+)\.(\d+))?")

Version = tuple[int, int]


@dataclass
class Header:
    """What layout.h claims."""

    values: dict[str, int] = field(default_factory=dict)
    prologues: dict[str, bytes] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    declarations: dict[str, str] = field(default_factory=dict)
    structs: dict[str, dict[str, int]] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)

    @property
    def replaced(self) -> list[str]:
        """The stock functions that have a size or a prologue."""
        return sorted(self.prologues.keys() | self.sizes.keys())


def read_layout(path: Path, version: Version) -> str:
    """The text of layout.h for a version of Xen; of a fitted one as it is."""
    text = _read(path)
    if FAMILY_LINE not in text:
        return text
    folder = path.parent / FAMILIES
    text = text.replace(FAMILY_LINE, _read(family(folder, version)))
    for shared in sorted(folder.glob("*.h")):
        text = text.replace(f'#include "{shared.name}"\n', _read(shared))
    return text


def family(folder: Path, version: Version) -> Path:
    """The header of the family that a version of Xen belongs to."""
    known = families(folder)
    for first, last, path in known:
        if first <= version <= last:
            return path
    names = ", ".join(path.stem for _, _, path in known)
    raise UnusableInput(f"Xen {version[0]}.{version[1]} is of no family that is known: {names or 'none is'}")


def families(folder: Path) -> list[tuple[Version, Version, Path]]:
    """First and last version of each family, and its header, the oldest first."""
    found = []
    for path in folder.glob("*.h"):
        if named := FAMILY_NAME.fullmatch(path.stem):
            first = int(named[1]), int(named[2])
            last = (int(named[3]), int(named[4])) if named[3] else first
            found.append((first, last, path))
    return sorted(found)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError as error:
        raise UnusableInput(f"{path}: {error.strerror} (part of the source tree)") from error
    except UnicodeDecodeError as error:
        raise UnusableInput(f"{path}: not a C header: {error.reason}") from error


def parse_header(text: str) -> Header:
    """Read layout.h; what cannot be proven for its form alone is in `problems`."""
    header = Header()
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"//[^\n]*", " ", text).replace("\\\n", " ")
    code = []
    for line in text.splitlines():
        directive = re.match(r"\s*#\s*(\w+)\s*(.*)", line)
        if not directive:
            code.append(line)
        elif directive[1] == "define":
            _read_define(header, directive[2])
        elif directive[1] not in PLAIN_DIRECTIVES:
            header.problems.append(
                (f"#{directive[1]}", "what is compiled must be what is proven, unconditionally")
            )
    _read_code(header, "\n".join(code))
    return header


def _read_define(header: Header, text: str) -> None:
    define = re.match(r"(\w+)(\()?\s*(.*)", text)
    if not define:
        header.problems.append(("#define", f"cannot be read: {text}"))
        return
    name, arguments, value = define[1], define[2], define[3].strip()
    known = {*header.values, *(f"XEN_PROLOGUE_{n}" for n in header.prologues)}
    known |= {f"XEN_SIZE_{n}" for n in header.sizes}
    if name in known:
        header.problems.append((name, "is defined twice"))
    elif arguments:
        header.problems.append((name, "a macro with arguments has no proof"))
    elif name.startswith("XEN_PROLOGUE_"):
        numbers = [INTEGER.fullmatch(part.strip()) for part in value.split(",")]
        if all(numbers) and all(int(n[1], 0) < 256 for n in numbers if n):
            header.prologues[name.removeprefix("XEN_PROLOGUE_")] = bytes(int(n[1], 0) for n in numbers if n)
        else:
            header.problems.append((name, f"not a list of bytes: {value}"))
    elif number := INTEGER.fullmatch(value):
        try:
            parsed = int(number[1], 0)
        except ValueError:
            header.problems.append((name, f"neither hexadecimal nor decimal: {value}"))
            return
        if name.startswith("XEN_SIZE_"):
            header.sizes[name.removeprefix("XEN_SIZE_")] = parsed
        else:
            header.values[name] = parsed
    elif value:
        header.problems.append((name, f"not a plain number, so it cannot be proven: {value}"))


def _read_code(header: Header, code: str) -> None:
    code = re.sub(r'"(?:[^"\\]|\\.)*"', '""', code)
    code = re.sub(r"__attribute__\s*\(\(.*?\)\)\s*(?=[;{])", "", code, flags=re.S)
    for number in re.findall(r"(?<![\w.])\d[\w.]*", code):
        header.problems.append((f"number {number}", "stands outside a #define"))
    for name, body in re.findall(r"\bstruct\s+(\w+)\s*\{([^{}]*)\}\s*;", code):
        header.structs[name] = _field_offsets(header, name, body)
    code = re.sub(r"\bstruct\s+\w+\s*\{[^{}]*\}\s*;", "", code)
    code = re.sub(r"\b_Static_assert\s*\(.*?\)\s*;", "", code, flags=re.S)
    for kind, use in re.findall(r"\b(union|enum|struct(?!\s+\w+\s*[;*]))\b([^\n]*)", code):
        header.problems.append((kind + use.rstrip(), "its layout has no proof"))
    previous = None
    while previous != code:  # bodies, innermost first
        previous, code = code, re.sub(r"\{[^{}]*\}", "@", code)
    code = re.sub(r"[^;@]*@", "", code)
    for statement in code.split(";"):
        statement = " ".join(statement.split())
        if statement.startswith("typedef "):
            continue
        if not statement or re.fullmatch(r"struct \w+", statement):
            continue
        declared = re.match(r"(?:extern )?[\w *]*?(\w+)(?: ?\(|\[\]|$)", statement)
        if declared:
            header.declarations[declared[1]] = statement
        else:
            header.problems.append(("declaration", f"cannot be read: {statement}"))


def _field_offsets(header: Header, name: str, body: str) -> dict[str, int]:
    """Offset of each field, and the size as that of a field named "" after the last."""
    offsets: dict[str, int] = {}
    offset, widest = 0, 1
    for statement in filter(None, (" ".join(part.split()) for part in body.split(";"))):
        declared = re.fullmatch(r"(\w+) (\w+)", statement)
        size = FIELD_SIZES.get(declared[1]) if declared else None
        if not declared or not size:
            header.problems.append((f"struct {name}", f"cannot be read: {statement}"))
            return {}
        offset = -(-offset // size) * size
        offsets[declared[2]] = offset
        offset, widest = offset + size, max(widest, size)
    offsets[""] = -(-offset // widest) * widest
    return offsets
