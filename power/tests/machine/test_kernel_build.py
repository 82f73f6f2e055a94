# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The kernel's build: errors that say what is wrong, and nothing built for nothing.

The kernel itself is compiled by make; nothing here compiles one.
"""

import os
import re
import shutil
import subprocess
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from trapless_lab import artifacts, host

POWER = Path(__file__).resolve().parents[2]
PATCHES = sorted((POWER / "patches").glob("*.patch"))


def source() -> Path:
    """Return the sources that make has unpacked."""
    path = artifacts.build_dir() / "power" / "kernel" / "source"
    if not path.exists():
        pytest.fail(f"{path} is missing; run make power")
    return path


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Return an output directory that has the sources already."""
    target = tmp_path / "output"
    target.mkdir()
    for name in ("source.inputs", "obj.package"):
        shutil.copy(source().parent / name, target)
    try:
        shutil.copytree(source(), target / "source", copy_function=os.link, symlinks=True)
    except OSError:
        # On another file system.
        shutil.rmtree(target / "source")
        shutil.copytree(source(), target / "source", symlinks=True)
    return target


@pytest.fixture
def power(tmp_path: Path) -> Path:
    """Return a copy of power/ that a test may change."""
    target = tmp_path / "power"
    for part in ("kernel", "patches", "kvm", "driver"):
        shutil.copytree(POWER / part, target / part)
    return target


def build(power: Path, output: Path) -> str:
    ran = subprocess.run([power / "kernel" / "build", output], capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert not (output / "vmlinux").exists()
    assert not (output / "vmlinux.inputs").exists()
    return ran.stderr


def calls() -> dict[str, set[str]]:
    """Return which of our files needs which others, as the linker sees it."""
    nm = host.tool("powerpc-linux-gnu-nm", "binutils-powerpc-linux-gnu")
    defined, needed = {}, {}
    for source in (POWER / "kvm").glob("*.c"):
        path = artifacts.power("kernel", f"obj/arch/powerpc/kvm/{source.stem}.o")
        symbols = subprocess.run([nm, path], capture_output=True, text=True, check=True).stdout
        defined.update(dict.fromkeys(re.findall(r"^\w+ [A-Z] (\w+)$", symbols, re.MULTILINE), source.stem))
        needed[source.stem] = set(re.findall(r"^ +U (\w+)$", symbols, re.MULTILINE))
    return {name: {defined[one] for one in symbols & defined.keys()} for name, symbols in needed.items()}


def test_our_files_call_each_other_in_one_direction() -> None:
    found = calls()
    assert found["e500_bt_trace"] >= {"e500_bt_read", "e500_bt_site", "e500_bt_tlb"}
    TopologicalSorter(found).prepare()
    # A cycle must be found: negative control.
    found["e500_bt_tlb"].add("e500_bt_read")
    with pytest.raises(CycleError):
        TopologicalSorter(found).prepare()


def test_a_patch_that_does_not_apply_is_named(power: Path, output: Path) -> None:
    first = power / "patches" / PATCHES[0].name
    first.write_text(first.read_text().replace("vcpu pointer", "vcpu painter"))
    assert f"{first.name} does not apply" in build(power, output)


@pytest.mark.not_fast("configures the kernel: 10 s of a processor")
def test_a_symbol_that_does_not_hold_is_named(power: Path, output: Path) -> None:
    config = power / "kernel" / "e500.config"
    config.write_text(
        config.read_text() + "CONFIG_KVM_E500MC=y\nCONFIG_NO_SUCH_THING=y\n# CONFIG_KVM is not set\n"
    )
    said = build(power, output)
    assert "CONFIG_KVM_E500MC=y did not hold" in said
    assert "CONFIG_NO_SUCH_THING: this kernel has no such symbol" in said
    assert "CONFIG_KVM is set" in said


def test_a_file_of_ours_does_not_replace_one_of_the_kernels(power: Path, output: Path) -> None:
    (power / "kvm" / "emulate.c").write_text("int no;\n")
    assert "emulate.c is the kernel's own" in build(power, output)


@pytest.mark.long("unpacks the kernel's sources twice; make check builds all of them anew")
def test_a_file_is_compiled_again_when_its_patch_is_removed(power: Path, output: Path) -> None:
    """And nothing else is: kbuild compares times, and the unpacked sources have old ones."""
    config = power / "kernel" / "e500.config"
    config.write_text(config.read_text() + "CONFIG_NO_SUCH_THING=y\n")  # to stop before the compiler
    (power / "kvm" / "changing.c").write_text("int before;\n")
    build(power, output)
    dropped, kept = (f"arch/powerpc/kernel/{name}" for name in ("kvm_emul.S", "kvm.c"))
    changed, same = (f"arch/powerpc/kvm/{name}" for name in ("changing.c", "e500_bt.c"))
    times = {name: (output / "tree" / name).stat().st_mtime_ns for name in (dropped, kept, changed, same)}
    original = (output / "source" / dropped).stat().st_mtime_ns
    next((power / "patches").glob("0004-*")).unlink()
    (power / "kvm" / "changing.c").write_text("int after;\n")
    os.utime(power / "kvm" / "changing.c", (0, 0))  # as from an archive
    build(power, output)
    for name in (dropped, changed):
        assert (output / "tree" / name).stat().st_mtime_ns > times[name]
    for name in (kept, same):
        assert (output / "tree" / name).stat().st_mtime_ns == times[name]
    assert (output / "tree" / dropped).read_bytes() == (output / "source" / dropped).read_bytes()
    assert (output / "source" / dropped).stat().st_mtime_ns == original
