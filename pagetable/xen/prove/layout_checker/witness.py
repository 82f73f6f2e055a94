# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A passage of the stock hypervisor's code in which a value can be seen.

A witness names a function and gives the passage in Intel syntax, one instruction a line:

    {ITEM}          the value that layout.h has for ITEM
    {ITEM:log2}     its logarithm; also :bit, the number of its only bit, :negated and :complement
    [r{ITEM:plus}]  what is that far behind r, which is written without it if it is 0
    {name}          lower case: any one register, the same one wherever the name stands
    r{name}, e{name} the 64-bit and 32-bit views of one register
    {_}, {#}        any operand, any number
    ...             up to a dozen instructions, none of which leaves the path

The hypervisor was compiled by a compiler that allocates registers as it likes; the passage says
only how data flows. Where two builds were compiled to different instructions for the same source, a
witness has a passage for each: one of them must be there, with all of its values. An item that needs that
is better shown by a claim (claim.py).
"""

from __future__ import annotations

import re
from functools import cache

from .hypervisor import Hypervisor
from .report import Refused

GAP = r"(?:(?!jmp|ret|ud2)[^\n]*\n){0,12}?"
NUMBER = r"(?:0x[0-9a-f]+|\d+)"


class Witness:
    """A function and the passage to be found in it, in one of its forms."""

    def __init__(self, function: str, *passages: str, along: str = "") -> None:
        """With `along` the passage is looked for on the way from that instruction, jumps followed."""
        self.function = function
        self.passages = passages
        self.along = along

    def _text(self, hypervisor: Hypervisor) -> str:
        return hypervisor.text(self.function, self.along)

    @property
    def items(self) -> set[str]:
        """The items whose values every form of the passage shows."""
        shown = [set(re.findall(r"\{([A-Z]\w*)(?::\w+)?\}", passage)) for passage in self.passages]
        return set.intersection(*shown)

    @staticmethod
    def pattern(passage: str, values: dict[str, int], wanted: str = "") -> str:
        """A regular expression; items without a value match any number. That of `wanted` is captured."""
        named = re.findall(r"\{([A-Z]\w*)", passage)
        return Witness._pattern(passage, tuple((n, values[n]) for n in named if n in values), wanted)

    @staticmethod
    @cache
    def _pattern(passage: str, shown: tuple[tuple[str, int], ...], wanted: str) -> str:
        values = dict(shown)
        bound: set[str] = set()

        def hole(match: re.Match[str]) -> str:
            name, form = match[1], match[2]
            if name == wanted and not form:
                seen_before = name in bound
                bound.add(name)
                return f"(?P={name})" if seen_before else f"(?P<{name}>{NUMBER})"
            if name == "_":
                return r"[^\n]+?"
            if name == "#" or (name[0].isupper() and name not in values):
                return rf"(?: \+ {NUMBER})?" if form == "plus" else NUMBER
            if name[0].isupper():
                return re.escape(printed(values[name], form))
            if name in bound:
                return f"(?P={name})"
            bound.add(name)
            return rf"(?P<{name}>\w+)"

        lines = []
        for line in filter(None, map(str.strip, passage.splitlines())):
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
        text = self._text(hypervisor)
        return any(compiled(self.pattern(form, values)).search(text) for form in self.passages)

    def values_of(self, hypervisor: Hypervisor, item: str, others: dict[str, int]) -> set[int]:
        """Every value of an item with which the passage is there, the others being as they are."""
        text = self._text(hypervisor)
        return {
            int(found[item], 0)
            for form in self.passages
            if f"{{{item}}}" in form
            for found in compiled(self.pattern(form, others, item)).finditer(text)
        }

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


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """The module's own cache is smaller than the number of our patterns."""
    return re.compile(pattern, flags=re.M)


def printed(value: int, form: str | None) -> str:
    """A number as capstone prints it."""
    if form == "plus":
        return f" + {printed(value, None)}" if value else ""
    if form == "negated":
        value = (1 << 64) - value
    elif form == "complement":
        value = (1 << 64) - 1 - value
    elif form in ("log2", "bit"):
        if value <= 0 or value & (value - 1):
            return "not a power of two"
        value = value.bit_length() - 1
    return hex(value) if value > 9 else str(value)
