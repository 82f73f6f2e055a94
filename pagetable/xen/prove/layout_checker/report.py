# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What the checker says: one line an item."""

from __future__ import annotations

from dataclasses import dataclass, field


class UnusableInput(Exception):
    """An input file that cannot be checked at all; the text names it."""


class Refused(Exception):
    """An item that does not hold; the text says why."""


@dataclass
class Report:
    """Verdicts in the order they were reached."""

    verdicts: list[tuple[str, str | None]] = field(default_factory=list)

    def accept(self, item: str) -> None:
        """Note that an item holds."""
        self.verdicts.append((item, None))

    def refuse(self, item: str, why: str) -> None:
        """Note that an item does not hold."""
        self.verdicts.append((item, why))

    @property
    def refused(self) -> list[str]:
        """The items that do not hold."""
        return [item for item, why in self.verdicts if why is not None]

    def lines(self) -> list[str]:
        """The report as text."""
        return [f"ok      {item}" if why is None else f"REFUSED {item}: {why}" for item, why in self.verdicts]
