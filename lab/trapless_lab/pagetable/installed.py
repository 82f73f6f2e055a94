# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The guest files of a dom0 that the packages are installed on: the operator's tool, and the modules where it
looks for them.

Invariant: modules are for the host's kernel, the one that a machine boots unless it is told otherwise.
"""

from collections.abc import Mapping

from .. import artifacts, host
from ..errors import LabError
from ..machines import initramfs
from ..machines.initramfs import File, Tree
from .parts import NAME, PVMMU

TABLE_TEST = "trapless_table_test"
"""The module of the differential test."""

SERVING: Mapping[str, str] = {NAME: "pool", PVMMU: "pvmmu"}
"""Modules that serve a dom0 -> the folders that they are built from."""


def tool() -> Tree:
    """Return the operator's tool."""
    return initramfs.program(artifacts.program("trapless"))


def modules(wanted: Mapping[str, str] = SERVING) -> Tree:
    """Return modules, named as in ``SERVING``."""
    release = host.kernel().release
    built = {name: artifacts.module("pagetable", part, name) for name, part in wanted.items()}
    for file in built.values():
        if (of := host.module_release(file)) != release:
            raise LabError(f"{file} is for Linux {of}, not for {release}: run make -C pagetable")
    return {f"/lib/modules/{release}/updates/dkms/{name}.ko": File(file) for name, file in built.items()}
