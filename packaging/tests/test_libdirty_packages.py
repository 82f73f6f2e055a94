# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The Debian packages of libdirty, by Debian's own tools: built, judged, installed into a root of their own,
used, upgraded, removed.
"""

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "packaging/libdirty/build"
VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
NAMES = ("libdirty1", "libdirty-dev", "libdirty-tools")
# What lintian says of these packages that is not theirs to mend.
EXPECTED_TAGS = (
    "bogus-mail-host",  # the project has no address
    "initial-upload-closes-no-bugs",  # nor a bug in Debian
    # LD_PRELOAD=libdirty-softdirty.so finds it there; nothing is linked with it
    "sharedobject-in-library-directory-missing-soname",
)

pytestmark = pytest.mark.skipif(not shutil.which("dpkg-gensymbols"), reason="no dpkg-dev")


def run(command: Sequence[str | Path], **more: str | Path) -> str:
    """Run a command, without its words if it succeeds; return what it printed."""
    environment = {**os.environ, "LC_ALL": "C", **{name: str(value) for name, value in more.items()}}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}"
    return done.stdout


TRIPLET = run(["gcc", "-print-multiarch"]).strip() if shutil.which("gcc") else ""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Return the packages by name; ``old`` has those of an earlier version."""
    out = tmp_path_factory.mktemp("packages")
    quick = {"DPKG_DEB_COMPRESSOR_TYPE": "gzip", "DPKG_DEB_COMPRESSOR_LEVEL": "1"}
    run([BUILD, out], **quick)
    run([BUILD, out / "old", "0.1.9"], **quick)
    return {path.name.partition("_")[0]: path for path in out.glob("*.deb")} | {"old": out / "old"}


class System:
    """A root of its own, in which only dpkg has been."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "var/lib/dpkg/info").mkdir(parents=True)
        (root / "var/lib/dpkg/updates").mkdir()
        (root / "var/lib/dpkg/status").touch()
        self.empty = self.files()

    def dpkg(self, *arguments: str | Path) -> str:
        """Run dpkg. What the packages depend on of the system is not here."""
        as_root = [] if os.geteuid() == 0 else ["unshare", "-r"]
        return run(
            [*as_root, "dpkg", f"--root={self.root}", "--force-depends", "--log=/dev/null", *arguments]
        )

    def files(self) -> set[str]:
        paths = (path for path in self.root.rglob("*") if path.is_symlink() or not path.is_dir())
        names = {str(path.relative_to(self.root)) for path in paths}
        return {name for name in names if not name.startswith("var/lib/dpkg")}

    def installed(self) -> dict[str, str]:
        form = "${Package} ${Version} ${db:Status-Status}\n"
        said = run(["dpkg-query", f"--admindir={self.root}/var/lib/dpkg", "-W", "-f", form])
        return {line.split()[0]: line.split(maxsplit=1)[1] for line in said.splitlines()}


def test_a_program_is_built_and_runs(packages: Mapping[str, Path], tmp_path: Path) -> None:
    system = System(tmp_path / "root")
    system.dpkg("--install", *(packages[name] for name in NAMES))
    library = system.root / "usr/lib" / TRIPLET
    assert sorted(path.name for path in library.glob("libdirty.so*")) == ["libdirty.so", "libdirty.so.1"]
    config: dict[str, str | Path] = {
        "PKG_CONFIG_LIBDIR": library / "pkgconfig",
        "PKG_CONFIG_SYSROOT_DIR": system.root,
        "PKG_CONFIG_ALLOW_SYSTEM_CFLAGS": "1",
        "PKG_CONFIG_ALLOW_SYSTEM_LIBS": "1",
    }
    assert run(["pkg-config", "--modversion", "dirty"], **config).strip() == VERSION
    example = ROOT / "dirty/capi/examples/incremental.c"
    shared = run(["pkg-config", "--cflags", "--libs", "dirty"], **config).split()
    run(["gcc", "-std=gnu11", "-Wall", "-Werror", example, "-o", tmp_path / "shared", *shared])
    told = run([tmp_path / "shared"], LD_LIBRARY_PATH=library)
    assert re.match(r"copied 20 of 1000 pages by ", told)
    needed = run(["readelf", "-dV", tmp_path / "shared"])
    assert "[libdirty.so.1]" in needed and "Name: LIBDIRTY_0.2" in needed
    man = system.root / "usr/share/man/man3"
    assert {path.name for path in man.glob("dirty*")} >= {"dirty.3.gz", "dirty_open.3.gz"}
    assert run([system.root / "usr/bin/dirty-conformance", "--list"]).startswith("one-writer ")


def test_upgrade_and_removal(packages: Mapping[str, Path], tmp_path: Path) -> None:
    system = System(tmp_path / "root")
    system.dpkg("--install", *sorted(packages["old"].glob("*.deb")))
    assert system.installed() == dict.fromkeys(NAMES, "0.1.9 installed")
    # The library alone first, as apt may do it: nothing of the old one stays.
    system.dpkg("--install", packages["libdirty1"])
    system.dpkg("--install", packages["libdirty-dev"], packages["libdirty-tools"])
    assert system.installed() == dict.fromkeys(NAMES, f"{VERSION} installed")
    fresh = System(tmp_path / "fresh")
    fresh.dpkg("--install", *(packages[name] for name in NAMES))
    assert system.files() == fresh.files() > system.empty
    system.dpkg("--purge", *NAMES)
    assert system.installed() == {} and system.files() == system.empty


def test_who_is_built_against_it_gets_its_dependency(packages: Mapping[str, Path], tmp_path: Path) -> None:
    run(["dpkg-deb", "--control", packages["libdirty1"], tmp_path / "control"])
    symbols = (tmp_path / "control/symbols").read_text()
    declared = re.findall(r"^\tF\(\"(.*?)\", (\w+)", (ROOT / "dirty/capi/tests/c/abi.c").read_text(), re.M)
    assert len(declared) >= 16
    for version, name in declared:
        assert f" {name}@{version} {version.removeprefix('LIBDIRTY_')}" in symbols
    assert "ldconfig" in (tmp_path / "control/triggers").read_text()
    fields = run(["dpkg-deb", "--field", packages["libdirty1"], "Multi-Arch", "Depends"])
    assert "Multi-Arch: same" in fields and "libc6 (>= " in fields
    assert f"libdirty1 (= {VERSION})" in run(["dpkg-deb", "--field", packages["libdirty-dev"], "Depends"])


def test_a_symbol_without_a_version_is_refused(tmp_path: Path) -> None:
    """The control: a list of symbols that does not know the library's is an error."""
    tree = tmp_path / "packaging"
    shutil.copytree(ROOT / "packaging", tree, ignore=shutil.ignore_patterns("tests"))
    for name in ("dirty", "Cargo.toml", "cli"):
        (tmp_path / name).symlink_to(ROOT / name)
    known = tree / "libdirty/libdirty1.symbols"
    known.write_text(known.read_text().replace("LIBDIRTY_0.2", "LIBDIRTY_0.1"))
    refused = subprocess.run(
        [tree / "libdirty/build", tmp_path / "out"], capture_output=True, text=True, check=False
    )
    assert refused.returncode and "libdirty1.symbols is not what the library exports" in refused.stderr
    assert "dirty_open@LIBDIRTY_0.2" in refused.stdout


@pytest.mark.long("lintian comes with 120 packages, and judges how, not whether")
@pytest.mark.skipif(not shutil.which("lintian"), reason="no lintian")
def test_lintian_has_nothing_to_say(packages: Mapping[str, Path]) -> None:
    command = ["lintian", "--no-cfg", "--fail-on", "error,warning", "--allow-root"]
    command += ["--suppress-tags", ",".join(EXPECTED_TAGS)]
    run([*command, *(str(packages[name]) for name in NAMES)])
