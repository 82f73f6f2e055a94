# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The module's own decision when to shrink, pagetable/pool/policy.c, compiled for this host.

Invariant: that file itself makes the decision; nothing of it is repeated here. The structures below are those
of policy.h, field by field.
"""

import ctypes
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path

from .. import artifacts, compiler

_FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")

RESERVE = 2
"""TPT_POLICY_RESERVE."""


class Kind(IntEnum):
    """When cached tables are given back."""

    NONE, NUMBER, PROPORTION, BOTH, ADAPTIVE = range(5)


class Policy(ctypes.Structure):
    """struct tpt_policy."""

    _fields_ = (("kind", ctypes.c_int), ("number", ctypes.c_uint), ("percent", ctypes.c_uint))


class Demand(ctypes.Structure):
    """struct tpt_demand: one level at a tick."""

    cached: int
    in_use: int
    lowest: int
    missed: int
    _fields_ = tuple((name, ctypes.c_uint) for name in ("cached", "in_use", "lowest", "missed", "need"))


def build() -> Path:
    """Compile the file if it is out of date."""
    target = artifacts.build_dir() / "lab" / "policy.so"
    newest = max((artifacts.POLICY / name).stat().st_mtime for name in ("policy.c", "policy.h"))
    if not target.exists() or target.stat().st_mtime < newest:
        compiler.compile_c(artifacts.POLICY / "policy.c", target, _FLAGS)
    return target


class Decider:
    """The policy and the levels that it remembers."""

    def __init__(self, policy: Policy, filled: Sequence[int]) -> None:
        self._library = ctypes.CDLL(str(build()))
        self._policy = policy
        self.levels = (Demand * len(filled))(*(Demand(cached=cached, lowest=cached) for cached in filled))
        self._surplus = (ctypes.c_uint * len(filled))()
        self._library.tpt_policy_start(self.levels, len(filled))

    def tick(self) -> list[int]:
        """Return how many tables each level is to give back now."""
        self._library.tpt_policy_tick(
            ctypes.byref(self._policy), self.levels, len(self.levels), self._surplus
        )
        return list(self._surplus)
