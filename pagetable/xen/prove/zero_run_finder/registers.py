# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The general registers and their parts."""

from __future__ import annotations

from dataclasses import dataclass

CALLER_SAVED = ("rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11")
CALLEE_SAVED = ("rbx", "rbp", "r12", "r13", "r14", "r15")
ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
GENERAL = (*CALLER_SAVED, *CALLEE_SAVED, "rsp")


@dataclass(frozen=True)
class Part:
    """Some bits of a register."""

    register: str
    low: int
    width: int


def _parts() -> dict[str, Part]:
    parts = {}
    for name in GENERAL:
        parts[name] = Part(name, 0, 64)
        if name[1:].isdigit():
            views = (name + "d", name + "w", name + "b")
        elif name[2] == "x":
            views = ("e" + name[1:], name[1:], name[1] + "l")
            parts[name[1] + "h"] = Part(name, 8, 8)
        else:
            views = ("e" + name[1:], name[1:], name[1:] + "l")
        for view, width in zip(views, (32, 16, 8), strict=True):
            parts[view] = Part(name, 0, width)
    return parts


PARTS = _parts()


def view(register: str, width: int) -> str:
    """The name of the low bits of a register."""
    return next(name for name, part in PARTS.items() if part == Part(register, 0, width))
