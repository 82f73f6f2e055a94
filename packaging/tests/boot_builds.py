# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Every build of the host's Xen that its package sources offer: proven, built for, booted, measured.

    make -C packaging check-builds

For each version its two packages are fetched and unpacked, nothing is installed. Each image then boots twice.
In the first boot it must refuse the other builds' payloads, then its own is loaded, and QEMU counts the IOTLB
flushes of a workload before and after. In the second table_test compares this Xen with and without the
payload. The exit code is 1 at the first failure.
"""

import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "pagetable/tests/machine"))

import tables  # noqa: E402
from machines import GUEST, insmod, table_test_file  # noqa: E402
from trapless_lab import host  # noqa: E402
from trapless_lab.machines import runner  # noqa: E402
from trapless_lab.machines.initramfs import File, Tree  # noqa: E402
from trapless_lab.machines.machine import MACHINES  # noqa: E402
from trapless_lab.machines.script import Step  # noqa: E402
from trapless_lab.machines.transcript import Transcript  # noqa: E402
from trapless_lab.pagetable import parts as pagetable  # noqa: E402

PACKAGE = host.xen().package
SPAWN = "spawn fork-exec -n 40"
STOCK_FLUSHES = 15 * 40  # at least, for SPAWN
# With seed 7024 stock Xen itself gives different results: "stock again" must agree before a payload is
# judged.
SEEDS, ROUNDS = range(7000, 7024), 40


@dataclass(frozen=True)
class Build:
    """An image and its payload."""

    name: str
    image: Path
    payload: Path
    log: str


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
    """Prove an image and build its payload; print the differences from the usual build."""
    xen, out = replace(host.xen(), root=tree), directory / "out" / f"{version}.{kind}"
    image = xen.image.with_suffix(f".{kind}")
    command = ["make", "-C", str(ROOT / "pagetable/xen"), "payload"]
    command += [f"XEN={image}", f"XEN_SYMS={xen.symbols}", f"O={out}"]
    made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if made.returncode:
        sys.exit(f"{version} {kind}: refused\n{made.stdout}")
    return Build(f"{version} {kind}", image, out / f"{pagetable.NAME}.livepatch", made.stdout)


def _judge(wrong: list[str], transcript: Transcript, name: str, log: Path) -> None:
    if wrong or transcript.kernel_warnings():
        wrong_lines = "\n".join([*wrong, *transcript.kernel_warnings()])
        sys.exit(f"{name}: {wrong_lines}\nlogs: {log}")


def flushes(one: Build, others: list[Build], directory: Path) -> None:
    """The payloads of other builds are refused, its own loads, and the flushes end."""
    own = pagetable.PAYLOAD_PART.guest_path
    files: Tree = {**pagetable.files(pagetable.PIBOOSTER[1:]), own: File(one.payload)}
    refusals = []
    for number, other in enumerate(others):
        path = f"{GUEST}/other{number}.livepatch"
        files = {**files, path: File(other.payload)}
        refusals.append(Step(f"payload of {other.name}", f"xen-livepatch load {path}", expect=None))
    log = directory / "logs" / f"{one.name} flushes".replace(" ", "-")
    transcript = runner.run(
        MACHINES["xen-strict"].with_image(one.image).with_icount(),
        [
            Step("stock", SPAWN),
            *refusals,
            Step("nothing was loaded", "xen-livepatch list"),
            *pagetable.load_steps(),
            Step("warm", SPAWN),
            Step("boosted", SPAWN),
            *pagetable.unload_steps(),
            Step("stock again", SPAWN),
        ],
        files=files,
        work_dir=log,
    )
    pages = {name: transcript.counts(name).pages for name in ("stock", "boosted", "stock again")}
    boosted = pages.pop("boosted")
    wrong = [f"{name}: {count} flushes" for name, count in pages.items() if count < STOCK_FLUSHES]
    wrong += [f"boosted: {boosted} flushes"] if boosted else []
    wrong += [f"{s.name} was not refused" for s in refusals if "failed" not in transcript[s.name].output]
    if "Nothing to list" not in transcript["nothing was loaded"].output:
        wrong.append("a payload of another build was loaded")
    _judge(wrong, transcript, one.name, log)
    click.echo(
        f"{one.name}: {len(others)} payloads of other builds refused; flushes {pages}, boosted {boosted}"
    )


def same_as_stock(one: Build, directory: Path) -> None:
    """Check that table_test gets the same results from this Xen with and without the payload."""
    own = pagetable.PAYLOAD_PART.guest_path
    log = directory / "logs" / f"{one.name} tables".replace(" ", "-")
    transcript = runner.run(
        MACHINES["xen-strict"].with_image(one.image).with_icount(),
        [
            insmod(tables.MODULE),
            tables.leg("record", SEEDS, ROUNDS, "record"),
            tables.leg("stock again", SEEDS, ROUNDS, "compare"),
            *pagetable.load_steps((pagetable.PAYLOAD_PART,)),
            tables.leg("boosted", SEEDS, ROUNDS, "compare"),
            tables.leg("interrupted", SEEDS, ROUNDS, "compare", preempt=True),
        ],
        files={**table_test_file(), own: File(one.payload)},
        work_dir=log,
    )
    legs = [tables.parse(transcript[name]) for name in ("record", "stock again", "boosted", "interrupted")]
    counters = ("illegal", "leaked", "kept_data")
    wrong = [leg.output for leg in legs if not leg.ok or any(leg.counters[name] for name in counters)]
    wrong += [
        f"compared {leg.compared} of {leg.calls} calls" for leg in legs[1:] if leg.compared != leg.calls
    ]
    _judge(wrong, transcript, one.name, log)
    click.echo(f"{one.name}: {sum(leg.calls for leg in legs[2:])} calls as stock, no difference")


@click.command(help=__doc__)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--only", default="", help="Versions and kinds that contain this.")
def main(directory: Path, only: str) -> None:
    """Fetch, build, boot."""
    directory = directory.resolve()
    builds = [
        build(version, fetch(version, directory), kind, directory)
        for version in versions()
        for kind in ("gz", "efi")
    ]
    for one in builds:
        for line in re.findall(r"^(?:FITTED|LEFT OUT|\d+ of \d+ loops are proven).*", one.log, re.MULTILINE):
            click.echo(f"{one.name}: {line}")
    for one in builds:
        if only in one.name:
            flushes(one, [other for other in builds if other is not one], directory)
            same_as_stock(one, directory)


if __name__ == "__main__":
    main()
