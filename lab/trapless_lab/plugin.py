# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The profiler's QEMU plugin, compiled when first needed.

Invariant: as for the guest's programs: a library newer than every source is never rebuilt, and a build that
failed leaves none behind.
"""

from pathlib import Path

from . import artifacts, compiler, guest

SOURCES = Path(__file__).parent / "plugin"

# The control counts nothing of Xen and takes no notice of returns: the tests must.
VARIANTS = {"profile": (), "profile-control": ("-DPROFILE_NEGATIVE_CONTROL",)}

_FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden", "-shared")


def build(variant: str = "profile") -> Path:
    """Compile the plugin if it is out of date and return it."""
    target = artifacts.build_dir() / "lab" / "plugin" / f"{variant}.so"
    sources = [*SOURCES.glob("*.[ch]"), guest.SOURCES / "profiled.h"]
    if target.exists() and target.stat().st_mtime >= max(path.stat().st_mtime for path in sources):
        return target
    compiler.compile_c(SOURCES / "profile.c", target, (*_FLAGS, *VARIANTS[variant]))
    return target
