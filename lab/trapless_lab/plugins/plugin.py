# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The lab's QEMU plugins, compiled when first needed, for the interface of the QEMU that will load them.

Invariant: as for the guest's programs, a library newer than every source is never rebuilt, and a failed build
leaves none behind. Libraries for two interfaces are two files.
"""

from pathlib import Path

from .. import artifacts, compiler, host
from ..errors import LabError

SOURCES = Path(__file__).parent

_FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden", "-shared")


def interface(version: tuple[int, int]) -> int:
    """Return the version of the plugin interface to compile for, of those in qemu_plugin.h."""
    if version < (9, 0):
        return 1
    if version < (9, 1):
        raise LabError(
            "QEMU 9.0 has an interface for plugins that no other has; use an earlier or a later one"
        )
    return 3


def build(name: str, sources: Path = SOURCES, *, architecture: str = "x86") -> Path:
    """Compile a plugin if it is out of date and return it.

    ``sources`` may be a copy with a mistake in it; ``architecture`` is that of the machine it will watch.
    """
    wanted = interface(host.qemu_version(host.qemu(architecture)))
    folder = artifacts.build_dir() / "lab" / "plugin" if sources == SOURCES else sources
    target = folder / f"{name}-{wanted}.so"
    needed = [*sources.glob("*.[ch]"), *artifacts.DIRTY_ABI.glob("*.h")]
    if target.exists() and target.stat().st_mtime >= max(path.stat().st_mtime for path in needed):
        return target
    compile_to(target, sources / f"{name}.c", wanted)
    return target


def compile_to(target: Path, source: Path, version: int) -> None:
    """Compile a plugin for a version of the interface; its headers are beside it or the lab's."""
    places = (f"-I{artifacts.DIRTY_ABI}", f"-I{SOURCES}")
    compiler.compile_c(source, target, (*_FLAGS, f"-DQEMU_PLUGIN_VERSION={version}", *places))
