# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The installed package is complete: it compiles all of its C files without the checkout."""

import os
import subprocess
import sys
from pathlib import Path

from trapless_lab import artifacts

BUILD = "from setuptools import setup; setup()"
USE = """
from trapless_lab import artifacts
from trapless_lab.machines import guest
from trapless_lab.pagetable import policy
from trapless_lab.plugins import plugin
assert str(artifacts.PACKAGE).startswith({place!r}), artifacts.PACKAGE
for name in guest.names():
    guest.build(name)
for name in ("profile", "spans", "events", "epml", "ranges"):
    plugin.build(name)
policy.build()
print(*guest.names())
"""


def test_the_installed_package_compiles_its_own(tmp_path: Path) -> None:
    place = tmp_path / "installed"
    command = [sys.executable, "-c", BUILD, "-q", "egg_info", "--egg-base", str(tmp_path)]
    subprocess.run(
        [*command, "build_py", "--build-lib", str(place)], cwd=artifacts.PACKAGE.parent, check=True
    )
    environment = {**os.environ, "PYTHONPATH": str(place), "TRAPLESS_BUILD": str(tmp_path / "build")}
    ran = subprocess.run(
        [sys.executable, "-c", USE.format(place=str(place))],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    # Programs of the systems' tests are not in the package.
    assert {"spawn", "dirtyparts"} <= set(ran.stdout.split())
    assert "cow" not in ran.stdout.split()
