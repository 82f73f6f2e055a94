# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What scripts/setup does to a user's packages, with an apt-get that only records its arguments.

Other systems than the host's are a file over /etc/os-release, in a mount namespace of the script's own: the
script has no way in for tests.

Not checked: whether the named packages are sufficient, which only a new machine shows.
"""

import os
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

APT_GET = """
echo "$*" >> {log}
case "$*" in
*--assume-no*) cat {plan}; exit 1 ;;
update*) exit 0 ;;
esac
exit 9
"""
HARMLESS = (
    "Need to get 1 MB of archives.\nAfter this operation, 2 MB of additional disk space will be used.\n"
)
REMOVES = "The following packages will be REMOVED:\n  gcc-multilib other\nThe following NEW packages:\n"


# Everything that the script may read of it.
SYSTEM = 'ID={}\nVERSION_ID="{}"\nVERSION_CODENAME={}\nPRETTY_NAME="{}"\n'
DEBIAN12 = SYSTEM.format("debian", 12, "bookworm", "Debian 12")
DEBIAN13 = SYSTEM.format("debian", 13, "trixie", "Debian 13")
OTHERS = (
    SYSTEM.format("debian", 11, "bullseye", "an older one"),
    SYSTEM.format("ubuntu", 13, "x", "another"),
)
# Of anybody who may make namespaces; its own mounts end with it.
OWN_MOUNTS = ["unshare", "--map-root-user", "--mount"]
OVER = 'mount --bind "$0" /etc/os-release && exec "$@"'

other_system = pytest.mark.skipif(
    subprocess.run([*OWN_MOUNTS, "true"], capture_output=True, check=False).returncode != 0,
    reason="no mount namespaces here",
)


class Host:
    """A host on which no package is installed, and whose apt-get has a plan and does nothing."""

    def __init__(self, folder: Path, plan: str, system: str = "") -> None:
        self._over: list[str | Path] = []
        if system:
            (folder / "os-release").write_text(system)
            self._over = [*OWN_MOUNTS, "sh", "-c", OVER, folder / "os-release"]
        self._log = folder / "log"
        self._log.touch()
        self._bin = folder / "bin"
        self._bin.mkdir()
        (folder / "plan").write_text(plan)
        self._command("apt-get", APT_GET.format(log=self._log, plan=folder / "plan"))
        self._command("dpkg-query", "exit 1")
        self._command("sudo", 'exec "$@"')

    def _command(self, name: str, text: str) -> None:
        path = self._bin / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def setup(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the script; it ends where apt-get refuses to install."""
        environment = os.environ | {"PATH": f"{self._bin}:{os.environ['PATH']}"}
        return subprocess.run(
            [*self._over, REPOSITORY / "scripts/setup", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def installations(self) -> list[str]:
        """Return apt-get's arguments, without those of simulations."""
        calls = self._log.read_text().splitlines()
        return [call for call in calls if call.startswith("install") and "--assume-no" not in call]


def test_a_plan_that_removes_a_package_is_refused_by_name(tmp_path: Path) -> None:
    host = Host(tmp_path, REMOVES)
    result = host.setup("power")
    assert result.returncode == 1
    assert "would remove: gcc-multilib other" in result.stderr
    assert not host.installations()


def test_the_download_is_announced_and_nothing_may_be_removed(tmp_path: Path) -> None:
    host = Host(tmp_path, HARMLESS)
    result = host.setup("power")
    assert "Need to get 1 MB" in result.stdout
    (installation,) = host.installations()
    assert "--no-remove" in installation.split()


def test_dirty_alone_needs_no_xen_and_no_cross_compiler(tmp_path: Path) -> None:
    host = Host(tmp_path, HARMLESS)
    host.setup("dirty")
    (installation,) = host.installations()
    assert not [word for word in installation.split() if "xen" in word or "powerpc" in word or "qemu" in word]


def test_packages_for_tests_are_not_installed_otherwise(tmp_path: Path) -> None:
    (tmp_path / "with").mkdir()
    host, testing = Host(tmp_path, HARMLESS), Host(tmp_path / "with", HARMLESS)
    host.setup("pagetable")
    testing.setup("--tests", "pagetable")
    assert "libcmocka-dev" not in host.installations()[0].split()
    assert "libcmocka-dev" in testing.installations()[0].split()


@pytest.mark.parametrize("argument", ["boots", "--all", ""])
def test_an_unknown_part_is_refused(tmp_path: Path, argument: str) -> None:
    host = Host(tmp_path, HARMLESS)
    assert host.setup(argument).returncode == 2
    assert not host.installations()


@other_system
@pytest.mark.parametrize(
    ("system", "has", "has_not"),
    [
        (DEBIAN12, {"xen-hypervisor-4.17-amd64", "clang-14"}, {"xen-hypervisor-4.20-amd64", "clang-19"}),
        (DEBIAN13, {"xen-hypervisor-4.20-amd64", "clang-19"}, {"xen-hypervisor-4.17-amd64", "clang-14"}),
    ],
    ids=["12", "13"],
)
def test_each_release_gets_its_own_xen(tmp_path: Path, system: str, has: set[str], has_not: set[str]) -> None:
    host = Host(tmp_path, HARMLESS, system)
    host.setup("--tests", "pagetable")
    installed = set(host.installations()[0].split())
    assert has <= installed and not has_not & installed


@other_system
@pytest.mark.parametrize(
    ("system", "is_asked_of_apt"), [(DEBIAN12, True), (DEBIAN13, False)], ids=["12", "13"]
)
def test_what_a_release_lacks_is_not_asked_of_its_archive(
    tmp_path: Path, system: str, is_asked_of_apt: bool
) -> None:
    """It is announced all the same."""
    host = Host(tmp_path, HARMLESS, system)
    result = host.setup("power")
    assert "linux-source-6.1" in result.stdout.split()
    assert ("linux-source-6.1" in host.installations()[0].split()) == is_asked_of_apt


@other_system
@pytest.mark.parametrize(
    ("system", "arguments"),
    [
        (DEBIAN13, ["--long"]),
        *((other, [part]) for other in OTHERS for part in ("lab", "pagetable", "power")),
    ],
)
def test_what_is_not_known_to_work_is_refused(tmp_path: Path, system: str, arguments: list[str]) -> None:
    host = Host(tmp_path, HARMLESS, system)
    result = host.setup(*arguments)
    assert result.returncode == 1 and "setup: this is " in result.stderr
    assert not host.installations()
