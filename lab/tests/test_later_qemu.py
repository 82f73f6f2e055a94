# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A later QEMU than the host's: its plugin interface, and machines that run on it.

What a plugin counts there has to agree with the guest's own clock, as on the host's QEMU, and with what the
host's QEMU counts. The control is the plugin with a mistake in it.
"""

import re
import subprocess
from pathlib import Path

import pytest

import plugin_mutants
from trapless_lab import artifacts, host
from trapless_lab.errors import LabError
from trapless_lab.machines import runner
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.qemu import Plugin
from trapless_lab.machines.script import Step
from trapless_lab.pagetable import crossings
from trapless_lab.plugins import events, plugin
from trapless_lab.plugins.counts import parse
from trapless_lab.profiler import kallsyms, profile
from trapless_lab.profiler.profile import Request
from trapless_lab.progress import Progress

ROOT = Path(__file__).resolve().parents[2]
RELEASE = "bookworm-backports"
PLUGINS = sorted(path.stem for path in plugin.SOURCES.glob("*.c"))
PROCESSES = 40


@pytest.mark.parametrize("name", PLUGINS)
@pytest.mark.parametrize("version", [1, 3])
def test_each_plugin_compiles_for_each_interface(name: str, version: int, tmp_path: Path) -> None:
    """QEMU calls a plugin's functions by these names, and refuses one without its version."""
    library = tmp_path / f"{name}.so"
    plugin.compile_to(library, plugin.SOURCES / f"{name}.c", version)
    shown = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True).stdout
    assert {"qemu_plugin_install", "qemu_plugin_version"} <= set(re.findall(r" [TDBR] (\S+)", shown))
    gone = {"qemu_plugin_register_vcpu_insn_exec_inline"} & set(re.findall(r" U (\S+)", shown))
    assert version == 1 or not gone


def test_the_interface_follows_the_version() -> None:
    assert [plugin.interface(version) for version in ((7, 2), (8, 2), (9, 1), (10, 0))] == [1, 1, 3, 3]
    with pytest.raises(LabError, match=r"QEMU 9\.0"):
        plugin.interface((9, 0))


def test_a_qemu_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAPLESS_QEMU", str(tmp_path))
    with pytest.raises(LabError, match="usr/bin/qemu-system-x86_64 is missing"):
        host.qemu()
    program = tmp_path / "usr/bin/qemu-system-x86_64"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho QEMU emulator version 10.0.2 of somebody\n")
    program.chmod(0o755)
    (tmp_path / "versions").write_text("qemu-system-data 1\nqemu-system-x86 2\n")
    assert host.qemu() == program and host.qemu_version(program) == (10, 0)
    assert host.qemu_data() == tmp_path / "usr/share/qemu"
    assert host.versions()["qemu"] == "2"


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """All machines are run by the fetched QEMU."""
    folder = artifacts.build_dir() / "qemu"
    subprocess.run([ROOT / "scripts/fetch-qemu", RELEASE, folder], check=True)
    monkeypatch.setenv("TRAPLESS_QEMU", str(folder))
    assert host.qemu_version(host.qemu()) >= (10, 0)


@pytest.mark.long("a download of 13 MB, and a profiled boot; the host's QEMU is what experiments run on")
@pytest.mark.machine
def test_the_plugins_count_there(later: None, tmp_path: Path) -> None:
    """Instructions agree with the clock; entries into Xen are as many as the processes need."""
    request = Request(MACHINES["xen-strict"], ("spawn", "fork-exit", "-n", str(PROCESSES)))
    area = kallsyms.kernel(Progress())
    libraries = {"sound": plugin.build("profile"), "blind": plugin_mutants.build("profile-blind", "profile")}
    assert all(path.name == "profile-3.so" for path in libraries.values())
    plan = crossings.plan(request.machine).write(tmp_path / "plan")
    transcript = runner.run(
        request.profiled_machine,
        request.steps,
        plugins=[
            *(Plugin(library, tmp_path / name) for name, library in libraries.items()),
            Plugin(plugin.build("events"), tmp_path / "events", plan),
        ],
    )
    counted = {name: parse((tmp_path / name).read_text().splitlines()) for name in libraries}
    found = profile.resolved(request, transcript, counted["sound"], area)
    assert found.holds, found.checks
    control = profile.resolved(request, transcript, counted["blind"], area)
    assert [check.holds for check in control.checks] == [True, False]
    entries = {(symbol.space, symbol.name): symbol.entries for symbol in found.symbols}
    assert entries["kernel", "__xen_pgd_pin"] == entries["kernel", "__xen_pgd_unpin"] == PROCESSES
    (interval,) = events.parse((tmp_path / "events").read_text().splitlines())
    seen = crossings.of(interval)
    # The profiler knows the handler of page faults, and the plugin the point at which they come in.
    assert seen.page_faults > 0 and seen.hypercalls > 10 * PROCESSES
    assert transcript.kernel_warnings() == []


@pytest.mark.long("a boot on the fetched QEMU")
@pytest.mark.machine
def test_two_processors_run_there(later: None) -> None:
    transcript = runner.run(MACHINES["xen-strict-smp"], [Step("use", "spawn fork-sh -n 20 && nproc")])
    assert transcript["use"].output.split()[-1] == "2" and transcript.kernel_warnings() == []
