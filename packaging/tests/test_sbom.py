# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The bill of materials against the products themselves, which name crates, and against the packages."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trapless_lab import artifacts

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "packaging/sbom.py"


pytestmark = pytest.mark.not_fast("resolves all crates several times: 6 s of a processor")


def write(file: Path) -> dict[str, Any]:
    subprocess.run([sys.executable, SCRIPT, file], check=True, capture_output=True)
    bill: dict[str, Any] = json.loads(file.read_text())
    return bill


@pytest.fixture(scope="module")
def bill(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return write(tmp_path_factory.mktemp("sbom") / "bill.json")


def reached(bill: dict[str, Any], start: str) -> set[str]:
    """Return what a component consists of, with itself."""
    depends = {of["ref"]: of.get("dependsOn", []) for of in bill["dependencies"]}
    found: set[str] = set()
    ahead = [start]
    while ahead:
        if (one := ahead.pop()) not in found:
            found.add(one)
            ahead += depends.get(one, [])
    return found


@pytest.mark.parametrize(("package", "product"), [("trapless", "trapless"), ("libdirty1", "libdirty.so")])
def test_crates_that_a_product_names_are_in_its_bill(
    bill: dict[str, Any], package: str, product: str
) -> None:
    """A program names the source files in which it can panic, those of crates with name and version."""
    contents = artifacts.program(product).read_bytes()
    named = set(re.findall(rb"/registry/src/[^/]+/([a-z0-9_.-]+?)-(\d[^/]*)/", contents))
    found = {f"crate:{name.decode()}@{version.decode()}" for name, version in named}
    assert found and found <= reached(bill, f"deb:{package}")


def test_what_only_tests_and_compilers_use_is_not_in_it(bill: dict[str, Any]) -> None:
    names = {of["name"] for of in bill["components"]}
    assert {"anyhow", "libdirty"} <= names and not {"syn", "quote", "cc", "serde_derive"} & names


def test_each_crate_of_others_has_a_licence_and_a_checksum(bill: dict[str, Any]) -> None:
    crates = [of for of in bill["components"] if of["bom-ref"].startswith("crate:")]
    assert crates and all(of["licenses"] for of in crates)
    without = {of["name"] for of in crates if "hashes" not in of}
    assert without <= {
        "trapless",
        "libdirty",
        "libdirty-hold",
        "libdirty-capi",
        "libdirty-softdirty",
        "dirty-oracle",
    }


def test_each_package_is_in_it(bill: dict[str, Any]) -> None:
    packages = re.findall(r"^Package: (\S+)", (ROOT / "packaging/debian/control").read_text(), re.MULTILINE)
    assert sorted(packages) == sorted(
        of["name"] for of in bill["components"] if of["bom-ref"].startswith("deb:")
    )
    assert reached(bill, "trapless") >= {f"deb:{name}" for name in packages}


def test_the_same_sources_give_the_same_file(bill: dict[str, Any], tmp_path: Path) -> None:
    assert write(tmp_path / "again.json") == bill


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone" / "bill.json"
    done = subprocess.run([sys.executable, SCRIPT, gone], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and str(gone) in done.stderr and "Traceback" not in done.stderr
