# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What the back ends can and cannot do, and which of them work here."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from . import _library
from ._growing import Growing


class Sees(IntEnum):
    """How a kind of write that user code did not make itself is treated."""

    NO = 0
    YES = 1
    FAILS = 2
    """The write itself fails: nothing is missed, but the writer must expect the error."""


class Cost(Growing):
    """Where the cost of tracking falls. A later library may have more."""

    KERNEL_FAULT = 0
    SIGNAL_PER_PAGE = 1
    THREAD_SWITCH_PER_PAGE = 2
    HARDWARE = 3
    HYPERVISOR_EXIT = 4


@dataclass(frozen=True)
class Capabilities:
    """The record of a back end; each member is described in ``dirty.h``."""

    granule_pages: int
    exact: bool
    kernel_writes: Sees
    foreign_writes: Sees
    mem_writes: Sees
    reprotected_writes: Sees
    remapped_writes: Sees
    shared_aliases: Sees
    pinned_writes: Sees
    whole_own_process: bool
    other_process: bool
    cost: Cost
    reclaimed_writes: Sees
    inexact: str
    privilege: str


@dataclass(frozen=True)
class Finding:
    """A back end, and why it does not work here; None if it does."""

    backend: str
    rejected: str | None


def capabilities(backend: str) -> Capabilities:
    """Return what a back end can and cannot do, whether it works here or not."""
    record: Any = _library.ffi.new("struct dirty_capabilities *")
    record.size = _library.ffi.sizeof("struct dirty_capabilities")
    _library.call("dirty_capabilities", _library.name(backend), record)
    return Capabilities(
        **{name: _typed(kind, getattr(record, name)) for name, kind in Capabilities.__annotations__.items()}
    )


def _typed(kind: Any, value: Any) -> Any:
    return _library.text(value) if kind is str else kind(value)


def survey() -> list[Finding]:
    """Try every back end on scratch memory of this process, cheapest first."""
    found: list[Finding] = []

    @_library.ffi.callback("void(void *, const char *, const char *)")
    def visit(_context: Any, backend: Any, rejected: Any) -> None:
        found.append(Finding(_library.text(backend), _library.text(rejected) if rejected else None))

    _library.call("dirty_survey", visit, _library.ffi.NULL)
    return found
