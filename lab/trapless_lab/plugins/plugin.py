# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The lab's QEMU plugins, compiled when first needed.

Invariant: as for the guest's programs, a library newer than every source is never rebuilt, and a failed build
leaves none behind.
"""

from pathlib import Path

from .. import artifacts, compiler

SOURCES = Path(__file__).parent

_FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden", "-shared")


def build(name: str, sources: Path = SOURCES) -> Path:
    """Compile a plugin if it is out of date and return it; ``sources`` may be a copy with a mistake in it."""
    target = (artifacts.build_dir() / "lab" / "plugin" if sources == SOURCES else sources) / f"{name}.so"
    needed = [*sources.glob("*.[ch]"), *artifacts.DIRTY_ABI.glob("*.h")]
    if target.exists() and target.stat().st_mtime >= max(path.stat().st_mtime for path in needed):
        return target
    compile_to(target, sources / f"{name}.c")
    return target


def compile_to(target: Path, source: Path) -> None:
    """Compile a plugin; its headers are beside it or the lab's."""
    compiler.compile_c(source, target, (*_FLAGS, f"-I{artifacts.DIRTY_ABI}", f"-I{SOURCES}"))
