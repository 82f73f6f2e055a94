# SPDX-License-Identifier: Apache-2.0 OR MIT
"""layout.h for another build of the hypervisor: the items that move with every rebuild, read anew.

Invariant: the result is not trusted. The written header is read by the same header parser and proven by the
same proofs as layout.h itself; fitting only saves a human the editing. Only these items are fitted, as no
C code of ours depends on their values:

  - the size and the prologue of a replaced function, from the symbol table and the code;
  - offsets in Xen's struct domain and struct vcpu: from the debugging information, or if the symbol file has
    none, where the code leaves exactly one choice.

Everything else (page types, flags, declarations) is the same in each build, or the build is refused.
"""

from __future__ import annotations

import re

from . import proofs
from .facts import JUMP_SIZE, MOVES, shown
from .header import Header
from .hypervisor import Hypervisor
from .report import Refused

LONGEST_INSTRUCTION = 15


def fit(text: str, header: Header, hypervisor: Hypervisor) -> tuple[str, list[str]]:
    """The text of layout.h with the items of this build, and what was changed, a line each.

    An item that cannot be found stays as it is: the proof will refuse it and say why.
    """
    changes: list[str] = []

    def change(name: str, old: str, new: str) -> None:
        nonlocal text
        text, count = re.subn(
            rf"(#define[ \t]+{name}[ \t]+)(?:[^\n\\/]|\\\n)*?(?=[ \t]*(?:/\*|\n))", rf"\g<1>{new}", text
        )
        if count:
            changes.append(f"{name} is {new}, in layout.h {old}")

    for name in header.replaced:
        if len(hypervisor.symbols.get(name, [])) != 1:
            continue
        size, prologue = hypervisor.symbol(name).size, _prologue(hypervisor, name)
        if size and size != header.sizes.get(name):
            change(f"XEN_SIZE_{name}", str(header.sizes.get(name)), str(size))
        if prologue and prologue != header.prologues.get(name):
            old = header.prologues.get(name, b"")
            change(f"XEN_PROLOGUE_{name}", _listed(old), _listed(prologue))
    for name in sorted(filter(MOVES.fullmatch, header.values.keys() & proofs.VALUES.keys())):
        stated = hypervisor.stated.get(name)
        values = {stated.value} if stated else shown(hypervisor, header, name)
        value = values.pop() if len(values) == 1 else header.values[name]
        if value != header.values[name]:
            change(name, hex(header.values[name]), hex(value))
    return text, changes


def _listed(code: bytes) -> str:
    return ", ".join(f"{byte:#04x}" for byte in code)


def _prologue(hypervisor: Hypervisor, name: str) -> bytes:
    """The whole instructions that a jump at the function's head overwrites."""
    symbol = hypervisor.symbol(name)
    code = b""
    try:
        for instruction in hypervisor.leading(symbol.address, JUMP_SIZE + LONGEST_INSTRUCTION - 1):
            code += hypervisor.read(instruction.address, instruction.size)
            if len(code) >= JUMP_SIZE:
                return code
    except Refused:
        return b""  # a symbol that lies: the proof will say so
    return b""
