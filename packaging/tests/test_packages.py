# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The Debian packages, by Debian's own tools: built, judged, installed into a root of their own, used,
upgraded, removed. What apt installs with each is in clean-roots.
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
BUILD = ROOT / "packaging/build"
VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
CONTROL = (ROOT / "packaging/debian/control").read_text()
NAMES = tuple(re.findall(r"^Package: (\S+)", CONTROL, re.M))
LIBDIRTY = ("libdirty1", "libdirty-dev", "libdirty-tools")
QUICK = {"DPKG_DEB_COMPRESSOR_TYPE": "gzip", "DPKG_DEB_COMPRESSOR_LEVEL": "1"}
pytestmark = [
    pytest.mark.not_fast("builds the packages: 15 s of a processor"),
    pytest.mark.skipif(not shutil.which("dh_dkms"), reason="no debhelper, dh-dkms, dh-python"),
]


def run(command: Sequence[str | Path], **more: str | Path) -> str:
    """Run a command, without its words if it succeeds; return what it printed."""
    environment = {**os.environ, "LC_ALL": "C", **{name: str(value) for name, value in more.items()}}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}"
    return done.stdout


TRIPLET = run(["gcc", "-print-multiarch"]).strip() if shutil.which("gcc") else ""


def build(out: Path, *version: str) -> dict[str, Path]:
    """Build all packages; return them by name."""
    run([BUILD, out, *version], **QUICK)
    return {path.name.partition("_")[0]: path for path in out.glob("*.deb")}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return build(tmp_path_factory.mktemp("packages"))


def fields(package: Path) -> dict[str, str]:
    """Return a package's control fields."""
    text = re.sub(r"\n[ \t]+", " ", run(["dpkg-deb", "--field", package]))
    return dict(line.split(": ", 1) for line in text.splitlines())


def contents(package: Path) -> set[str]:
    """Return a package's files and links."""
    listed = run(["dpkg-deb", "--contents", package]).splitlines()
    return {line.split()[5].removeprefix("./") for line in listed if not line.startswith("d")}


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
    system.dpkg("--install", *(packages[name] for name in LIBDIRTY))
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


def test_the_split(packages: Mapping[str, Path]) -> None:
    assert set(packages) == set(NAMES)
    files = {name: contents(package) for name, package in packages.items()}
    assert {"usr/bin/trapless", "usr/share/zsh/vendor-completions/_trapless"} <= files["trapless"]
    assert "usr/lib/python3/dist-packages/libdirty/dirty.h" in files["python3-trapless-dirty"]
    assert f"usr/src/trapless-dirty-{VERSION}/dkms.conf" in files["trapless-dirty-dkms"]
    xen = files["trapless-xen"]
    assert {"lib/systemd/system/trapless-pagetable.service", "usr/sbin/trapless-payload"} <= xen
    assert {name for name, of in files.items() if any("pagetable" in file for file in of)} == {"trapless-xen"}
    for name in NAMES:
        docs = {f"usr/share/doc/{name}/{file}" for file in ("copyright", "changelog.gz")}
        assert docs <= files[name], name


def pulled_in(field: Mapping[str, str]) -> list[str]:
    """Return what apt installs with a package."""
    wanted = ", ".join(field.get(kind, "") for kind in ("Pre-Depends", "Depends", "Recommends"))
    return [name for name in re.split(r"[ ,|]+", wanted) if re.match(r"[a-z]", name)]


def test_none_asks_for_a_hypervisor_or_recommends_anything(packages: Mapping[str, Path]) -> None:
    for name, package in packages.items():
        field = fields(package)
        assert "Recommends" not in field, name
        assert not [other for other in pulled_in(field) if re.match(r"xen|grub|linux-image", other)], name
    assert set(pulled_in(fields(packages["trapless"]))) == {"libc6", "libgcc-s1"}
    assert pulled_in(fields(packages["trapless-dirty-dkms"])) == ["dkms"]
    # The control: what the one package said before it was split.
    assert "xen-utils-4.17" in pulled_in({"Depends": "dkms, gcc", "Recommends": "xen-utils-4.17 (>= 1)"})


def test_every_command_has_its_page_and_its_version(packages: Mapping[str, Path], tmp_path: Path) -> None:
    for name, package in packages.items():
        run(["dpkg-deb", "--extract", package, tmp_path / name])
        for command in (tmp_path / name).glob("usr/*bin/*"):
            assert list(tmp_path.glob(f"{name}/usr/share/man/man[18]/{command.name}.[18].gz")), command
            assert run([command, "--version"]).split() == [command.name, VERSION]


@pytest.mark.long("the packages a second time, 15 s of a processor")
def test_upgrade_and_removal(packages: Mapping[str, Path], tmp_path: Path) -> None:
    old = build(tmp_path / "old", "0.1.9")
    system = System(tmp_path / "root")
    system.dpkg("--install", *(old[name] for name in LIBDIRTY))
    assert system.installed() == dict.fromkeys(LIBDIRTY, "0.1.9-1 installed")
    # The library alone first, as apt may do it: nothing of the old one stays.
    system.dpkg("--install", packages["libdirty1"])
    system.dpkg("--install", packages["libdirty-dev"], packages["libdirty-tools"])
    assert system.installed() == dict.fromkeys(LIBDIRTY, f"{VERSION}-1 installed")
    fresh = System(tmp_path / "fresh")
    fresh.dpkg("--install", *(packages[name] for name in LIBDIRTY))
    assert system.files() == fresh.files() > system.empty
    system.dpkg("--purge", *LIBDIRTY)
    assert system.installed() == {} and system.files() == system.empty


def test_who_is_built_against_it_gets_its_dependency(packages: Mapping[str, Path], tmp_path: Path) -> None:
    run(["dpkg-deb", "--control", packages["libdirty1"], tmp_path / "control"])
    symbols = (tmp_path / "control/symbols").read_text()
    declared = re.findall(r"^\tF\(\"(.*?)\", (\w+)", (ROOT / "dirty/capi/tests/c/abi.c").read_text(), re.M)
    assert len(declared) >= 16
    for version, name in declared:
        assert f" {name}@{version} {version.removeprefix('LIBDIRTY_')}" in symbols
    assert "ldconfig" in (tmp_path / "control/triggers").read_text()
    field = fields(packages["libdirty1"])
    assert field["Multi-Arch"] == "same" and "libc6 (>= " in field["Depends"]
    assert f"libdirty1 (= {VERSION}-1)" in fields(packages["libdirty-dev"])["Depends"]


@pytest.mark.long("the packages a second time, 15 s of a processor")
def test_a_symbol_without_a_version_is_refused(tmp_path: Path) -> None:
    """The control: a list of symbols that does not know the library's is an error."""
    tree = tmp_path / "packaging"
    shutil.copytree(ROOT / "packaging", tree, ignore=shutil.ignore_patterns("tests"))
    links = "dirty", "Cargo.toml", "cli", "kmod", "pagetable", "docs", "CHANGELOG.md"
    for name in links:
        (tmp_path / name).symlink_to(ROOT / name)
    known = tree / "debian/libdirty1.symbols"
    known.write_text(known.read_text().replace("LIBDIRTY_0.2", "LIBDIRTY_0.1"))
    refused = subprocess.run([tree / "build", tmp_path / "out"], capture_output=True, text=True, check=False)
    assert refused.returncode and "dirty_open@LIBDIRTY_0.2" in refused.stderr


@pytest.mark.long("lintian comes with 120 packages, and judges how, not whether")
@pytest.mark.skipif(not shutil.which("lintian"), reason="no lintian")
def test_lintian_has_nothing_to_say(packages: Mapping[str, Path]) -> None:
    said = run(["lintian", "--no-cfg", "--allow-root", "--fail-on", "error,warning", *packages.values()])
    assert said == ""


@pytest.mark.parametrize("release", ["bookworm", "trixie"])
@pytest.mark.long("a Debian root for each package, from the network: 15 minutes")
@pytest.mark.timeout(5400)
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mmdebstrap"), reason="not root, or no mmdebstrap")
def test_apt_installs_each_into_a_clean_root(
    release: str, packages: Mapping[str, Path], tmp_path: Path
) -> None:
    folder = packages["trapless"].parent
    said = run([ROOT / "packaging/tests/clean-roots", release, folder, tmp_path])
    assert all(f"{name}: installed, used, purged" in said for name in NAMES), said
