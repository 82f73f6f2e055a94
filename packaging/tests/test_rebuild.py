# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A rebuild where there is a lab: trapless-payload builds, has the payload judged in a machine, and keeps it
only if it passed. Checker, compiler, hypervisor and lab are the real ones; test_payload_builder.py has the
cases in which they fail.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trapless_lab import __version__, artifacts, host

pytestmark = [
    pytest.mark.machine,
    pytest.mark.long("two builds and their machines: five minutes of a processor"),
]

ROOT = Path(__file__).resolve().parents[2]
LAB = Path(sys.executable).with_name("trapless-lab")
# Without the emulator, which hosts lack, nothing but a machine shows this mistake.
MISTAKE = "payload-skip-unchecked"


def rebuild(sources: Path, place: Path) -> subprocess.CompletedProcess[str]:
    """Run trapless-payload on a host of files, as a package installs it."""
    xen = host.xen()
    command = place / "trapless-payload"
    command.write_text((ROOT / "packaging/trapless-payload").read_text().replace("@VERSION@", __version__))
    for folder, file in (("boot", xen.image), ("debug", xen.symbols)):
        (place / folder).mkdir()
        shutil.copy(file, place / folder)
    environment = {
        **os.environ,
        "TRAPLESS_SOURCES": str(sources),
        "TRAPLESS_BOOT": f"{place}/boot",
        "TRAPLESS_DEBUG": f"{place}/debug",
        "TRAPLESS_STORE": f"{place}/store",
        "TRAPLESS_PYTHON": sys.executable,
        "TRAPLESS_LAB": str(LAB),
        "TRAPLESS_BUILD": str(artifacts.build_dir()),
    }
    return subprocess.run(
        ["sh", command, "build"], env=environment, capture_output=True, text=True, check=False
    )


def stored(place: Path) -> dict[str, Path]:
    return {path.name: path for path in place.glob("store/*/*")}


def test_a_payload_that_passed_says_so(tmp_path: Path) -> None:
    ran = rebuild(ROOT, tmp_path)
    assert ran.returncode == 0, ran.stderr
    files = stored(tmp_path)
    assert files.keys() == {"trapless_pagetable.livepatch", "report.txt"}
    header = files["report.txt"].read_text().split("\n\n")[0]
    assert "differential: run here in a machine: " in header and " calls about page tables answered" in header


def test_negative_control_a_payload_that_did_not_pass_is_not_kept(tmp_path: Path) -> None:
    """Nothing else refuses it: its layout is right, and it compiles."""
    sources = tmp_path / "sources"
    subprocess.run([ROOT / "scripts/mutant", "pagetable", sources, MISTAKE], check=True)
    ran = rebuild(sources, tmp_path)
    assert ran.returncode == 1
    assert "REFUSED differential test: got     : seed 1 call " in ran.stderr
    assert stored(tmp_path).keys() == {"refused.txt"}
