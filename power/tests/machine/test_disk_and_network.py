# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A busybox system whose root file system is on a virtio disk, with a virtio network card to its host.

It fetches 8 MiB, keeps them on its disk and sends them back; it is turned off; and the same file is there
when it boots again from the image. Checksums are made at both ends. Untranslated and in place, and with two
processors, on a kernel of its own: ``make -C power devices``.
"""

import hashlib
import random
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from trapless_lab import artifacts, host
from trapless_lab.machines.initramfs import File
from trapless_lab.machines.machine import MACHINES, Machine
from trapless_lab.power import machine as power
from trapless_lab.power.machine import MODES, Console, How

pytestmark = [
    pytest.mark.machine,
    pytest.mark.long("a kernel of its own and busybox are compiled: 8 minutes"),
]

DATA = random.Random(20).randbytes(8 << 20)
SUM = hashlib.sha256(DATA).hexdigest()
OURS, GUESTS = "10.0.0.1", "10.0.0.2"
PORT = 5000
BUSYBOX = "/bin/busybox"

# What the kernel's command line calls part= comes in the environment.
INIT = f"""#!{BUSYBOX} sh
{BUSYBOX} mount -t tmpfs tmpfs /bin/applets
{BUSYBOX} --install -s /bin/applets
export PATH=/bin/applets
mount -t proc proc /proc
mount -t sysfs sysfs /sys
echo "boot $(($(cat /boots) + 1)) on $(nproc)"
{{ echo $(($(cat /boots) + 1)) >/boots; }} 2>/dev/null || echo "cannot write"
case $part in
fetch)
	ifconfig eth0 {GUESTS} netmask 255.255.255.0 up
	ping -c 3 {OURS}
	wget -q -O /data http://{OURS}/data
	nc {OURS} {PORT} </data
	;;
both)
	ifconfig eth0 {GUESTS} netmask 255.255.255.0 up
	wget -q -O /tmp/data http://{OURS}/data &
	sha256sum /data >/tmp/sum &
	wait
	cat /tmp/sum
	sha256sum /tmp/data
	cat /proc/interrupts
	;;
esac
sync
sha256sum /data
mount -o remount,ro / || exit
echo done
sleep 1
reboot -f
"""

NETWORK = f"""#!{BUSYBOX} sh
{BUSYBOX} tunctl -t tap0
{BUSYBOX} ifconfig tap0 {OURS} netmask 255.255.255.0 up
{BUSYBOX} httpd -p 80 -h /srv
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an ext4 file system as mke2fs makes it."""
    root = tmp_path_factory.mktemp("root")
    for folder in ("bin/applets", "sbin", "proc", "sys", "dev", "tmp"):
        (root / folder).mkdir(parents=True)
    (root / "boots").write_text("0\n")
    (root / "sbin/init").write_text(INIT)
    (root / "sbin/init").chmod(0o755)
    (root / "bin/busybox").write_bytes(artifacts.power("busybox", "busybox").read_bytes())
    (root / "bin/busybox").chmod(0o755)
    target = root.parent / f"{root.name}.ext4"
    mke2fs = host.tool("mke2fs", "e2fsprogs")
    subprocess.run([mke2fs, "-q", "-t", "ext4", "-d", root, target, "28M"], check=True)
    return target


def vm(label: str, mode: str, part: str, disk: str, *options: str) -> list[str]:
    """Return the host's lines for a guest that sends what it fetches, or does not."""
    root = "ro" if disk.endswith(",readonly") else "rw"
    arguments = f"console=ttyS0 panic=-1 loglevel=4 root=/dev/vda {root} part={part}"
    words = [
        *(power.VMM, "--kernel", "/guest/vmlinux", "--statistics", f"/tmp/{label}", "--disk", disk),
        *(*MODES[mode].options, *options, "--append", f'"{arguments}"'),
    ]
    lines = [
        f"write /sys/module/kvm/parameters/bt_mode {MODES[mode].translation}",
        f"run {label} {' '.join(words)}",
        f"show {label}.statistics /tmp/{label}",
    ]
    if part != "fetch":
        return lines
    receive = f'"{BUSYBOX} nc -l -p {PORT} </dev/null | {BUSYBOX} sha256sum"'
    return [f"start {label}.received {BUSYBOX} sh -c {receive}", "sleep 200", *lines, "wait"]


def run(image: Path, script: list[str], machine: Machine, label: str) -> Console:
    kernel = artifacts.power("devices", "vmlinux")
    return power.in_host(
        [f"run network {BUSYBOX} sh /network", *script],
        files={
            BUSYBOX: File(artifacts.power("busybox", "busybox"), 0o755),
            "/network": File(NETWORK.encode()),
            "/srv/data": File(DATA),
            "/image": File(image),
            "/guest/vmlinux": File(kernel),
        },
        how=How(timeout_s=900),
        label=label,
        machine=replace(machine, kernel=kernel),
    )


@pytest.fixture(scope="module", params=["base", "inplace"])
def console(request: pytest.FixtureRequest, image: Path) -> Iterator[tuple[str, Console]]:
    mode: str = request.param
    script = [
        *vm("first", mode, "fetch", "/image", "--net", "tap0"),
        *vm("again", mode, "look", "/image"),
        *vm("readonly", mode, "look", "/image,readonly"),
    ]
    yield mode, run(image, script, MACHINES["power-kvm"], mode)


def sums(console: Console) -> list[str]:
    return re.findall(r"^([0-9a-f]{64}) ", console.text, re.MULTILINE)


def test_the_network_carries_both_ways(console: tuple[str, Console]) -> None:
    first = console[1].of("first")
    assert "3 packets transmitted, 3 packets received" in first.text
    assert sums(first) == [SUM]
    assert sums(console[1].of("first.received")) == [SUM]


def test_what_was_written_is_there_after_another_boot(console: tuple[str, Console]) -> None:
    said = [console[1].of(label) for label in ("first", "again", "readonly")]
    boots = [re.findall(r"^boot \d+", one.text, re.MULTILINE) for one in said]
    assert boots == [["boot 1"], ["boot 2"], ["boot 3"]]
    assert [sums(one) for one in said] == [[SUM]] * 3


def test_a_disk_for_reading_is_not_written(console: tuple[str, Console]) -> None:
    assert "cannot write" in console[1].of("readonly").text
    assert "cannot write" not in console[1].of("again").text


def test_the_guest_is_translated_where_it_should_be(console: tuple[str, Console]) -> None:
    mode, whole = console
    assert (whole.statistics("first").get("bt_sites", 0) > 100) == (mode == "inplace")


def test_two_processors(image: Path) -> None:
    """Two threads of QEMU run the host's processors at once."""
    script = [
        *vm("one", "base", "fetch", "/image", "--net", "tap0"),
        *vm("two", "base", "both", "/image", "--net", "tap0", "--cpus", "2"),
    ]
    console = run(image, script, MACHINES["power-kvm-smp"], "smp")
    assert "boot 1 on 1\n" in console.of("one").text
    two = console.of("two").text
    assert "boot 2 on 2\n" in two
    assert sums(console.of("two")) == [SUM] * 3
    # Each processor has had interrupts from the other: reschedule and call function.
    sent = re.findall(r"^ *\d+: +(\d+) +(\d+) .* ipi ", two, re.MULTILINE)
    assert all(sum(int(row[cpu]) for row in sent) > 0 for cpu in (0, 1)), two
