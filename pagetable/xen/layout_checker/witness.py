# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A passage of the stock hypervisor's code in which a value can be seen.

A witness names a function and gives the passage in Intel syntax, one instruction a line:

    {ITEM}          the value that layout.h has for ITEM
    {ITEM:log2}     its logarithm; also :bit, the number of its only bit, :negated and :complement
    {name}          lower case: any one register, the same one wherever the name stands
    r{name}, e{name} the 64-bit and 32-bit views of one register
    {_}, {#}        any operand, any number
    ...             up to a dozen instructions, none of which leaves the path

The hypervisor was compiled by a compiler that allocates registers as it likes; the passage says
only how data flows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .hypervisor import Hypervisor
from .report import Refused

GAP = r"(?:(?!jmp|ret|ud2)[^\n]*\n){0,12}?"
NUMBER = r"(?:0x[0-9a-f]+|\d+)"


@dataclass(frozen=True)
class Witness:
    """A function and the passage to be found in it."""

    function: str
    passage: str

    @property
    def items(self) -> set[str]:
        """The items whose values the passage shows."""
        return set(re.findall(r"\{([A-Z]\w*)(?::\w+)?\}", self.passage))

    def pattern(self, values: dict[str, int]) -> str:
        """A regular expression; items without a value match any number."""
        bound: set[str] = set()

        def hole(match: re.Match[str]) -> str:
            name, form = match[1], match[2]
            if name == "_":
                return r"[^\n]+?"
            if name == "#" or (name[0].isupper() and name not in values):
                return NUMBER
            if name[0].isupper():
                return re.escape(printed(values[name], form))
            if name in bound:
                return f"(?P={name})"
            bound.add(name)
            return rf"(?P<{name}>\w+)"

        lines = []
        for line in filter(None, map(str.strip, self.passage.splitlines())):
            if line == "...":
                lines.append(GAP)
                continue
            parts = re.split(r"(\{[^}]*\})", line)
            lines.append(
                "".join(
                    re.sub(r"\{([\w#]+)(?::(\w+))?\}", hole, part)
                    if part.startswith("{")
                    else re.escape(part)
                    for part in parts
                )
                + "\n"
            )
        return "^" + "".join(lines)

    def seen(self, hypervisor: Hypervisor, values: dict[str, int]) -> bool:
        """Whether the function contains the passage with these values."""
        text = "".join(f"{i.text}\n" for i in hypervisor.function(self.function))
        return re.search(self.pattern(values), text, flags=re.M) is not None

    def demand(self, hypervisor: Hypervisor, values: dict[str, int], item: str) -> None:
        """Refuse unless the value of this item, and that of all together, is in the passage."""
        if not self.seen(hypervisor, {}):
            raise Refused(f"{self.function} does not contain the code that would show it")
        if item in self.items and not self.seen(hypervisor, {item: values[item]}):
            raise Refused(f"{self.function} does not use {values[item]:#x}")
        others = [name for name in sorted(self.items) if not self._alone(hypervisor, values, name)]
        if not others and not self.seen(hypervisor, values):
            raise Refused(f"{self.function} does not use it together with {sorted(self.items)}")

    def _alone(self, hypervisor: Hypervisor, values: dict[str, int], name: str) -> bool:
        """An item that fails by itself is refused under its own name, not under another's."""
        return name in values and self.seen(hypervisor, {name: values[name]})


def printed(value: int, form: str | None) -> str:
    """A number as capstone prints it."""
    if form == "negated":
        value = (1 << 64) - value
    elif form == "complement":
        value = (1 << 64) - 1 - value
    elif form in ("log2", "bit"):
        if value <= 0 or value & (value - 1):
            return "not a power of two"
        value = value.bit_length() - 1
    return hex(value) if value > 9 else str(value)
