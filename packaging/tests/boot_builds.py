# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Every build of the host's Xen that its package sources offer: proven, built for, booted, measured.

    make -C packaging check-builds

For each version its two packages are fetched and unpacked, nothing is installed. Each image then boots twice,
as pagetable/tests/machine/builds.py says. The exit code is 1 at the first failure.
"""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "pagetable/tests/machine"))

import builds  # noqa: E402
from builds import Build, Verdict  # noqa: E402
from trapless_lab import host  # noqa: E402

PACKAGE = host.xen().package
# With seed 7024 stock Xen itself gives different results: "stock again" must agree before a payload is
# judged.
SEEDS, ROUNDS = range(7000, 7024), 40


def versions() -> list[str]:
    """Return the versions that apt knows, newest first."""
    shown = subprocess.run(["apt-cache", "madison", PACKAGE], capture_output=True, text=True, check=True)
    return list(dict.fromkeys(re.findall(r"\| +(\S+) \|", shown.stdout)))


def fetch(version: str, directory: Path) -> Path:
    """Unpack both packages of a version below ``directory``, unless they are there already."""
    tree = directory / version
    if not tree.exists():
        debs, unpacked = directory / f"{version}.debs", directory / f"{version}.part"
        debs.mkdir(parents=True, exist_ok=True)
        names = [f"{package}={version}" for package in (PACKAGE, f"{PACKAGE}-dbg")]
        subprocess.run(["apt-get", "download", "-q", *names], cwd=debs, check=True)
        for deb in sorted(debs.glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", deb, unpacked], check=True)
        unpacked.rename(tree)
    return tree


def build(version: str, tree: Path, kind: str, directory: Path) -> Build:
    """Prove an image and build its payload."""
    xen = replace(host.xen(), root=tree)
    name, out = f"{version} {kind}", directory / "out" / f"{version}.{kind}"
    try:
        return builds.build(name, xen.image.with_suffix(f".{kind}"), xen.symbols, out)
    except builds.Refused as refusal:
        sys.exit(f"{name}: refused\n{refusal}")


def report(one: Build, verdict: Verdict, log: Path) -> None:
    """Print what was seen; end at what is wrong."""
    if verdict.wrong:
        wrong_lines = "\n".join(verdict.wrong)
        sys.exit(f"{one.name}: {wrong_lines}\nlogs: {log}")
    click.echo(f"{one.name}: {verdict.summary}")


@click.command(help=__doc__)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--only", default="", help="Versions and kinds that contain this.")
def main(directory: Path, only: str) -> None:
    """Fetch, build, boot."""
    directory = directory.resolve()
    found = [
        build(version, fetch(version, directory), kind, directory)
        for version in versions()
        for kind in ("gz", "efi")
    ]
    for one in found:
        for line in re.findall(r"^(?:FITTED|LEFT OUT|\d+ of \d+ loops are proven).*", one.log, re.MULTILINE):
            click.echo(f"{one.name}: {line}")
    for one in found:
        if only in one.name:
            log = directory / "logs" / f"{one.name} flushes".replace(" ", "-")
            report(one, builds.flushes(one, [other for other in found if other is not one], log), log)
            log = directory / "logs" / f"{one.name} tables".replace(" ", "-")
            report(one, builds.same_as_stock(one, SEEDS, ROUNDS, log), log)


if __name__ == "__main__":
    main()
