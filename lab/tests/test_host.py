# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Finding the host's binaries, and naming missing ones."""

import gzip
import platform
import re
from pathlib import Path

import pytest

from trapless_lab import artifacts, host, releases
from trapless_lab.errors import LabError
from trapless_lab.releases import INSTALLED, Linux


def install(root: Path, release: str, *, headers: bool = True) -> None:
    (root / f"vmlinuz-{release}").touch()
    if headers:
        (root / release / "build").mkdir(parents=True)


NAMES: dict[Linux, str] = {"6.1": "6.1.0-{}-amd64", "6.12-deb13": "6.12.{}+deb13-amd64"}


def release(abi: int) -> str:
    """Return the name of a kernel of the host's series."""
    return NAMES[INSTALLED].format(abi)


@pytest.mark.parametrize(
    ("said", "linux"),
    [
        ({"ID": "debian", "VERSION_ID": "12"}, "6.1"),
        ({"ID": "debian", "VERSION_ID": "13"}, "6.12-deb13"),
        ({"ID": "other", "VERSION_ID": "13"}, "6.1"),
        ({}, "6.1"),
    ],
)
def test_the_host_says_which_kernel_it_has(
    said: dict[str, str], linux: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: said)
    assert releases.of_host().linux == linux


def test_newest_kernel_with_headers(tmp_path: Path) -> None:
    for name in (release(9), release(56), release(60).replace("amd64", "cloud-amd64")):
        install(tmp_path, name)
    install(tmp_path, release(57), headers=False)
    assert host.kernel(tmp_path, tmp_path).release == release(56)


def test_a_kernel_of_another_series_is_not_taken(tmp_path: Path) -> None:
    for name in NAMES.values():
        install(tmp_path, name.format(56))
    assert host.kernel(tmp_path, tmp_path).release == release(56)


def test_kernel_without_headers_names_the_package(tmp_path: Path) -> None:
    install(tmp_path, release(57), headers=False)
    with pytest.raises(LabError, match=re.escape(f"linux-headers-{release(57)}")):
        host.kernel(tmp_path, tmp_path)


def test_no_kernel_names_the_package(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="linux-image-amd64"):
        host.kernel(tmp_path, tmp_path)


def test_missing_tool_names_the_package() -> None:
    with pytest.raises(LabError, match="no-such-tool is missing; install the Debian package some-package"):
        host.tool("no-such-tool", "some-package")


def test_xen_is_unpacked(tmp_path: Path) -> None:
    image = tmp_path / "xen.gz"
    image.write_bytes(gzip.compress(b"hypervisor"))
    assert host.unpack_xen(tmp_path, image).read_bytes() == b"hypervisor"


def test_the_newest_xen_is_taken(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="install the Debian package xen-system-amd64"):
        host.xen(tmp_path)
    (tmp_path / "boot").mkdir()
    for name in ("xen-4.9-amd64.gz", "xen-4.20-amd64.gz", "xen-4.21-amd64.efi", "xen-syms-4.22-amd64.gz"):
        (tmp_path / "boot" / name).touch()
    assert host.xen(tmp_path).version == "4.20"
    with pytest.raises(LabError, match=r"install the Debian package xen-utils-4\.20"):
        host.xen(tmp_path).tool("xen-livepatch")


def test_module_dependencies_come_first() -> None:
    paths = host.module_files(host.kernel(), "ahci")
    assert all(path.is_relative_to("/lib/modules") for path in paths)
    names = [path.name.partition(".")[0] for path in paths]
    assert names.index("libata") < names.index("libahci") < names.index("ahci")
    with pytest.raises(LabError, match="no module nonsense"):
        host.module_files(host.kernel(), "nonsense")


def test_unbuilt_artefact_says_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAPLESS_BUILD", str(tmp_path))
    with pytest.raises(LabError, match="run make"):
        artifacts.payload("pagetable", "x")
    built = tmp_path / "pagetable" / "pool" / "x.ko"
    built.parent.mkdir(parents=True)
    built.touch()
    assert artifacts.module("pagetable", "pool", "x") == built
