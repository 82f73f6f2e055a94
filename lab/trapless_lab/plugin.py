# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The lab's QEMU plugins, compiled when first needed.

Invariant: as for the guest's programs: a library newer than every source is never rebuilt, and a build that
failed leaves none behind.
"""

from collections.abc import Mapping
from pathlib import Path

from . import artifacts, compiler, guest

SOURCES = Path(__file__).parent / "plugin"

_EPML = Path(__file__).resolve().parents[2] / "dirty" / "abi" / "trapless_epml.h"

# Each control is what the tests must not believe: a profile without Xen and without returns, spans that end
# with the first return, whosever it is, blocks that always run to their ends.
_BUILDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "profile": ("profile.c", ()),
    "profile-control": ("profile.c", ("-DPROFILE_NEGATIVE_CONTROL",)),
    "spans": ("spans.c", ()),
    "spans-control": ("spans.c", ("-DSPANS_NEGATIVE_CONTROL",)),
    "epml": ("epml.c", ()),
    "ranges": ("ranges.c", ()),
    "ranges-control": ("ranges.c", ("-DRANGES_NEGATIVE_CONTROL",)),
}
VARIANTS = ("profile", "profile-control")
"""Of the profiler."""

_FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden", "-shared")


def build(variant: str = "profile") -> Path:
    """Compile a plugin if it is out of date and return it."""
    source, defines = _BUILDS[variant]
    target = artifacts.build_dir() / "lab" / "plugin" / f"{variant}.so"
    sources = [*SOURCES.glob("*.[ch]"), guest.SOURCES / "profiled.h", _EPML]
    if target.exists() and target.stat().st_mtime >= max(path.stat().st_mtime for path in sources):
        return target
    compiler.compile_c(SOURCES / source, target, (*_FLAGS, *defines))
    return target
