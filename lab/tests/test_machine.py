# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Machines and the command lines made of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from trapless_lab import host, kernels
from trapless_lab.errors import LabError
from trapless_lab.machines import bochs, runner
from trapless_lab.machines.machine import MACHINES, Machine
from trapless_lab.machines.qemu import Images, Outputs, argv, linux_args, steps_port
from trapless_lab.machines.trace import EVENTS
from trapless_lab.releases import Linux

QEMU = Path("/usr/bin/qemu")
# No release has it installed from the start.
FETCHED: Linux = "6.12-deb12"
IMAGES = Images(Path("/k"), Path("/i"), Path("/x"), Path("/d"))
PCS = [machine for machine in MACHINES.values() if machine.pc]
OUTPUTS = Outputs(Path("/console"), Path("/steps"), Path("/trace"), Path("/qemu"))


def line(machine: Machine, images: Images = IMAGES) -> str:
    return " ".join(argv(QEMU, machine, images, OUTPUTS))


@pytest.mark.parametrize("machine", PCS, ids=lambda machine: machine.name)
def test_every_pc_has_its_three_logs_and_no_network(machine: Machine) -> None:
    made = line(machine)
    for part in ("path=/console", "path=/steps", "-D /trace", "iobase=0x378", *EVENTS):
        assert part in made
    assert "-nodefaults" in made
    assert ("intel-iommu" in made) == machine.xen


def test_a_kernel_of_our_own_does_not_rely_on_the_timer_of_a_busy_host() -> None:
    own = replace(MACHINES["xen-relaxed"], kernel=Path("/own"))
    stock = MACHINES["xen-relaxed"].with_linux("6.1")
    assert "no_timer_check" in line(own) and "no_timer_check" not in line(stock)
    assert "no_timer_check" not in line(replace(MACHINES["power"], kernel=Path("/own")))


def test_a_kernel_of_our_own_takes_no_stock_module() -> None:
    own = replace(MACHINES["xen-relaxed"], kernel=Path("/own"))
    with pytest.raises(ValueError, match="stock modules"):
        runner.run(own, [], modules=("zram",))


@pytest.mark.parametrize("name", ["power", "power-kvm"])
def test_power_is_deterministic_and_has_one_console(name: str) -> None:
    made = line(MACHINES[name])
    for part in ("-M ppce500 -cpu e500v2_v30", "-icount shift=1,sleep=off", "clock=vm,base=", "-seed 1"):
        assert part in made
    assert made.count("-serial") == 1 and "path=/console" in made
    assert "loglevel=4 " in made and "-smp" not in made and "-trace" not in made
    assert "-d int" in line(replace(MACHINES[name], exceptions=True)) and "-d int" not in made


def test_the_iommu_is_intels_or_amds() -> None:
    machine = MACHINES["xen-strict"]
    assert "-device intel-iommu,intremap=on" in line(machine)
    made = line(replace(machine, vendor="amd"))
    assert "-device amd-iommu,intremap=on" in made and "intel-iommu" not in made
    with pytest.raises(ValueError, match="that it does not have"):
        replace(MACHINES["bare"], vendor="amd")


def test_power_with_two_cpus_runs_them_at_once() -> None:
    made = line(MACHINES["power-kvm-smp"])
    assert "-accel tcg,thread=multi -smp 2" in made and "-icount" not in made


def test_power_has_another_board() -> None:
    assert "-M ppce500 " in line(MACHINES["power-kvm"])
    assert "-M mpc8544ds " in line(replace(MACHINES["power-kvm"], board="mpc8544ds"))


@pytest.mark.parametrize("name", ["arm64", "arm64-16k"])
def test_arm64_has_two_cpus_and_a_port_for_its_steps(name: str) -> None:
    made = line(MACHINES[name])
    for part in ("-M virt,gic-version=3 -cpu max", "-smp 2", "console=ttyAMA0", "path=/console"):
        assert part in made
    assert "file,id=steps,path=/steps -device pci-serial,chardev=steps" in made
    assert "isa-parallel" not in made and "-trace" not in made
    assert steps_port(MACHINES[name]) == "ttyS0" and steps_port(MACHINES["bare"]) == "ttyS1"


def test_bochs_boots_what_qemu_boots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = replace(IMAGES, kernel=tmp_path / "k", initramfs=tmp_path / "i")
    for path in (images.kernel, images.initramfs, made := tmp_path / "made"):
        path.write_bytes(path.name.encode())
    monkeypatch.setattr(bochs, "_NEEDED", dict.fromkeys(bochs._NEEDED, made))
    monkeypatch.setattr(host, "tool", lambda _name, _package: Path("/bin/true"))
    bochs.argv(MACHINES["bochs"], images, OUTPUTS, tmp_path)
    settings = (tmp_path / "bochsrc").read_text()
    assert "com1: enabled=1, mode=file, dev=/console" in settings
    assert "com2: enabled=1, mode=file, dev=/steps" in settings
    assert (tmp_path / "disc" / "initrd.gz").read_bytes() == b"i"
    assert linux_args(MACHINES["bochs"]) in (tmp_path / "disc" / "isolinux.cfg").read_text()


def test_bochs_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bochs, "_NEEDED", {"bochs": Path("/none"), "vgabios": tmp_path})
    with pytest.raises(LabError, match=r"packages bochs$"):
        bochs.argv(MACHINES["bochs"], IMAGES, OUTPUTS, tmp_path)


def test_iommu_mode() -> None:
    assert "dom0-iommu=strict" in line(MACHINES["xen-strict"])
    assert "dom0-iommu=no-strict" in line(MACHINES["xen-relaxed"])
    assert "dom0-iommu" not in line(MACHINES["bare"])


def test_pvh() -> None:
    made = line(MACHINES["xen-pvh"])
    assert "dom0=pvh" in made and "-cpu qemu64,+svm,+npt,+pdpe1gb" in made
    plain = line(MACHINES["xen-strict"])
    assert "dom0=pvh" not in plain and "-cpu qemu64 " in plain


def test_consoles() -> None:
    assert "console=ttyS0" in line(MACHINES["bare"])
    assert "console=hvc0" in line(MACHINES["xen-strict"])


def test_icount_excludes_threads() -> None:
    made = line(MACHINES["xen-strict"].with_icount())
    assert "-icount shift=1,sleep=off -rtc clock=vm,base=" in made
    assert "thread=multi" not in made
    assert "-icount" not in line(MACHINES["xen-strict"]) and "-rtc" not in line(MACHINES["xen-strict"])
    assert "-smp 2" in line(MACHINES["xen-strict-smp"])


def test_turns() -> None:
    parallel = MACHINES["xen-strict-smp"]
    assert "thread=multi -smp 2" in line(parallel)
    assert "thread=single -smp 2" in line(parallel.with_turns())
    with pytest.raises(ValueError, match="cannot take turns"):
        MACHINES["xen-strict"].with_turns()


def test_disk() -> None:
    assert "ide-hd" not in line(MACHINES["bare"])
    assert "file=/d,format=raw,if=none,id=d0,snapshot=on" in line(MACHINES["bare"].with_disk())


def test_cable() -> None:
    assert "netdev" not in line(MACHINES["xen-strict"])
    made = line(MACHINES["xen-strict"].with_cable())
    assert made.count("hubid=0") == made.count("-device e1000,") == 2
    assert "netdev user" not in made and "romfile= " in made


def test_missing_images_are_refused() -> None:
    with pytest.raises(ValueError, match="no hypervisor image"):
        line(MACHINES["xen-strict"], replace(IMAGES, xen=None))
    with pytest.raises(ValueError, match="no image for it"):
        line(MACHINES["bare"].with_disk(), replace(IMAGES, disk=None))


def test_commas_in_paths_are_doubled() -> None:
    made = line(MACHINES["xen-strict"], replace(IMAGES, initramfs=Path("/a,b")))
    assert f"/k {linux_args(MACHINES['xen-strict'])},/a,,b" in made


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"icount": True, "cpus": 2}, "one CPU"),
        ({"iommu": "strict"}, "Xen option"),
        ({"xen_args": ("x",)}, "without Xen"),
        ({"architecture": "power", "disk": True}, "memory and a console"),
        ({"architecture": "arm64", "disk": True}, "memory and a console"),
        ({"page_kib": 16}, "arm64's alone"),
        ({"emulator": "bochs", "disk": True}, "memory and a console"),
        ({"emulator": "bochs", "cpus": 2}, "with one CPU"),
        ({"emulator": "bochs", "icount": True}, "its own clock"),
        ({"emulator": "bochs", "architecture": "power"}, "Bochs has a PC"),
        ({"dom0": "pvh"}, "PVH dom0 without Xen"),
        ({"xen": True, "dom0": "pvh", "iommu": "relaxed"}, "needs its IOMMU strict"),
        ({"xen": True, "dom0": "pvh", "iommu": "strict"}, r"a CPU with \+svm,\+npt,\+pdpe1gb"),
        ({"xen": True, "dom0": "pvh", "iommu": "strict", "cpu": "qemu64,+svm,+npt"}, r"with \+pdpe1gb"),
        ({"board": "mpc8544ds"}, "only Power has several boards"),
    ],
)
def test_impossible_machines_are_refused(fields: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        replace(MACHINES["bare"], **fields)  # type: ignore[arg-type]


def test_only_a_pc_boots_one_of_several_stock_kernels() -> None:
    with pytest.raises(ValueError, match="only a PC boots"):
        MACHINES["power"].with_linux(FETCHED)
    with pytest.raises(ValueError, match="a stock kernel and another one"):
        replace(MACHINES["bare"], kernel=Path("/k"), linux=FETCHED)


def test_a_fetched_kernel_belongs_to_its_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAPLESS_BUILD", str(tmp_path))
    with pytest.raises(LabError, match="scripts/fetch-linux"):
        kernels.kernel(FETCHED)
    fetched = tmp_path / "linux" / FETCHED
    (fetched / "lib").mkdir(parents=True)
    (fetched / "vmlinuz").touch()
    (fetched / "release").write_text("6.12.1+deb12-amd64\n")
    assert kernels.kernel(FETCHED) == host.Kernel("6.12.1+deb12-amd64", fetched / "vmlinuz", fetched)
