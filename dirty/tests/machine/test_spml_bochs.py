# SPDX-License-Identifier: Apache-2.0 OR MIT
"""SPML on a processor with real page-modification logging: trapless-vmm on the stock kvm_intel, in Bochs.

The witnesses are memory itself (the VMM's self-test, the lab's forwarded.c), and stock KVM's own tracepoint
of exits: with PML a page that is written again is no exit, 512 of them are one. Without PML, the negative
control, each is one.
"""

import re

import pytest

import module_steps
from trapless_lab.machines import bochs, nested, runner
from trapless_lab.machines.initramfs import Tree
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.nested import Inner
from trapless_lab.machines.script import Step

LACKING = bochs.missing()
pytestmark = [
    pytest.mark.machine,
    pytest.mark.long("a machine in Bochs, which takes an hour"),
    pytest.mark.timeout(4000),
    pytest.mark.skipif(
        bool(LACKING),
        reason=f"Bochs' machine needs {' '.join(LACKING)}: scripts/setup long installs them",
    ),
]

# Reasons of exits (Intel's manual, volume 3, appendix C).
EPT_VIOLATION, PML_FULL = 48, 62
PML_ENTRIES = 512
# Of the VMM's self_test.rs: pages that are written for the first time, then those that are once more.
FIRST, AGAIN = 3 * 4096, 1024
# Page tables, code, and what KVM itself touches.
FEW = 64

PROGRAM = "dirtyforwarded"
_TRACING = "mount -t tracefs tracefs /sys/kernel/tracing"
_EXITS = "/sys/kernel/tracing/events/kvm/kvm_exit"
_COUNT = f"echo 'hist:keys=exit_reason' >{_EXITS}/trigger"
_AFRESH = f"echo 'hist:keys=exit_reason:clear' >>{_EXITS}/trigger"


def _run(script: str, files: Tree, timeout_s: float) -> str:
    """Run a script in Bochs and return what it printed."""
    steps = [Step("script", script, timeout_s)]
    transcript = runner.run(MACHINES["bochs"], steps, files=files, modules=("kvm_intel",))
    return transcript["script"].output


def _exits(printed: str, reason: int) -> int:
    """Return how many exits of this reason KVM's tracepoint has counted."""
    assert "Dropped: 0" in printed, printed
    found = re.search(rf"^{{ exit_reason: +{reason} }} hitcount: +(\d+)", printed, re.MULTILINE)
    return int(found[1]) if found else 0


def test_a_page_written_again_is_no_exit() -> None:
    # Without a kernel the VMM ends after its self-test, which compares the report with what was written.
    once = f"! trapless-vmm --kernel /none 2>&1; cat {_EXITS}/hist"
    pml = "cat /sys/module/kvm_intel/parameters/pml"
    script = "\n".join(
        (
            *("set -e", _TRACING, _COUNT, pml, once),
            *("echo 'without PML'", "rmmod kvm_intel", "insmod /modules/kvm-intel.ko pml=0", _AFRESH),
            *(pml, once),
        )
    )
    printed = _run(script, nested.vmm_files(), timeout_s=900)
    having, without = printed.split("without PML\n")
    for part, is_on in ((having, "Y"), (without, "N")):
        assert part.startswith(f"{is_on}\n"), printed
        # The self-test was passed: what fails is what comes after it.
        assert "trapless-vmm: kernel /none: No such file" in part, printed
    print(f"with PML: {_exits(having, EPT_VIOLATION)} EPT violations, {_exits(having, PML_FULL)} PML full")
    print(f"without: {_exits(without, EPT_VIOLATION)} EPT violations, {_exits(without, PML_FULL)} PML full")
    assert FIRST <= _exits(having, EPT_VIOLATION) < FIRST + FEW
    assert _exits(having, PML_FULL) == AGAIN // PML_ENTRIES
    assert FIRST + AGAIN <= _exits(without, EPT_VIOLATION) < FIRST + AGAIN + FEW
    assert _exits(without, PML_FULL) == 0


def _inner() -> Inner:
    # The second time its memory is the first one's, which KVM has mapped.
    script = f"""insmod {module_steps.GUEST}/{module_steps.NAME}.ko
{PROGRAM} rounds
echo "phase: before"; sleep 1
{PROGRAM} rounds
echo "phase: after"; sleep 1
"""
    return Inner("pml", script, module_steps.module_files(), memory="256MiB")


def test_nothing_is_missed() -> None:
    inner = _inner()
    phases = f"""{_TRACING}; {_COUNT}
{inner.step().command} 2>&1 | while read -r line; do
	echo "$line"
	case "$line" in "phase: "*) cat {_EXITS}/hist;; esac
done
dmesg | sed -n 's/.*WARNING: CPU: [0-9]* PID: [0-9]* at /outer kernel warns: /p' | sort | uniq -c
"""
    files: Tree = nested.files(inner)
    printed = nested.output(_run(phases, files, timeout_s=3600))
    assert re.findall(r"^(?:ok|FAILED) .*$", printed, re.MULTILINE) == ["ok rounds"] * 2, printed
    _, before, after = re.split(r"^phase: \w+$", printed, flags=re.MULTILINE)
    written = int(re.findall(r"^written=(\d+) reported=\d+$", before, re.MULTILINE)[0])
    grown = {reason: _exits(after, reason) - _exits(before, reason) for reason in (EPT_VIOLATION, PML_FULL)}
    print("\n".join(re.findall(r"^ *\d+ outer kernel warns: .*$", printed, re.MULTILINE)))
    print(f"{written} pages written: {grown[EPT_VIOLATION]} EPT violations, {grown[PML_FULL]} PML full")
    assert grown[PML_FULL] > 0
    # Without PML each is one.
    assert grown[EPT_VIOLATION] < written / 4
