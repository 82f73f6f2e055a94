# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Every package that is published by itself has the whole texts of its licences.

The Python packages have copies, as their builders refuse a link out of the package's directory;
the crates have links, which cargo follows. A copy must not go its own way.
"""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ORIGINALS = {
    "LICENSE-APACHE": "Apache-2.0.txt",
    "LICENSE-GPL": "GPL-2.0-only.txt",
    "LICENSE-MIT": "MIT.txt",
}
PACKAGES = {
    "dirty/hold": "APACHE MIT",
    "dirty/libdirty": "APACHE MIT",
    "dirty/python": "APACHE MIT",
    "lab": "APACHE GPL MIT",
}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_the_texts_of_its_licences(package: str) -> None:
    texts = {path.name: path for path in (ROOT / package).glob("LICENSE*")}
    assert set(texts) == {f"LICENSE-{name}" for name in PACKAGES[package].split()}
    for name, path in texts.items():
        assert path.read_bytes() == (ROOT / "LICENSES" / ORIGINALS[name]).read_bytes()
