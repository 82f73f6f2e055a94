# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What SPML costs in a guest of trapless-vmm, in instructions: OoH's microbenchmark and its formulas.

Invariant: every figure is of nested emulation. The inner guest's clock counts what the one emulated
processor executes, so it includes the instructions of both guests: of the inner kernel and its programs, of
the outer kernel's KVM, and of the VMM. No figure is a time, or from hardware. Missed pages are found by
comparing memory. On the outer processor, AMD's, KVM logs by write protection: each logged page is an exit,
which a processor with PML does not have (dirty/tests/machine/test_spml_bochs.py counts those).
"""

import re

from ... import host
from ...errors import LabError
from ...experiment.experiment import (
    BeforeAfter,
    Check,
    Context,
    Result,
    Row,
    Target,
    experiment,
    machine_facts,
)
from ...experiment.workload import NS_PER_INSTRUCTION
from ...machines import nested
from ...machines.nested import Inner
from ...machines.script import StepResult
from . import guest as dirty_guest
from .guest import DENSITIES, MODULE, PARTS_MIB, REPEAT, SMALLEST

SPML = "spml"
OUTER = nested.machine().with_icount()
PAGES_OF_A_GIB = (1 << 30) // 4096
MAPPING_MS_A_GIB = 20
PAPER_ACCURACY = 96.34

PAPER = [
    {"technique": "SPML", "size": "1 GB", "reverse mapping": "15.739 s", "hypercall": "4.49 us"},
    {"technique": "SPML", "E(C_tker) measured": "5,503.79 ms", "E(C_tker) estimated": "5,672.9 ms"}
    | {"E(C_tked_tker) measured": "135,255.35 ms", "E(C_tked_tker) estimated": "136,919.85 ms"}
    | {"accuracy of the formulas": "96.34 %"},
]

_BENCHES = {f"{density:g} dirty": density for density in DENSITIES}
_INSMOD = f"insmod /lib/trapless/{MODULE}.ko"
# Section -> the shell's lines. With the schedule calls, off by default, a turn has two calls.
_SECTIONS = {
    **{
        section: dirty_guest.bench_command(SPML, SMALLEST, density, REPEAT)
        for section, density in _BENCHES.items()
    },
    "parts": f"dirtyparts {SPML} {PARTS_MIB}",
    "mapping": "dirtyforwarded walk",
    "turns": "dirtyforwarded switch",
    "turns with calls": f"rmmod {MODULE} && {_INSMOD} spml_schedule=1 && dirtyforwarded switch",
}


def _script() -> str:
    # Without set -e only a failure of the last part would be noticed.
    sections = "".join(f"{nested.section(name)}\n{{ {lines}; }}\n" for name, lines in _SECTIONS.items())
    return f"set -e\n{_INSMOD}\n{sections}"


def sections(result: StepResult) -> dict[str, StepResult]:
    """Return the output of each part of the inner guest's script, as that of a step."""
    parts = nested.sections(result)
    if set(parts) != set(_SECTIONS):
        raise LabError(f"the inner guest ran {sorted(parts)}, not {sorted(_SECTIONS)}")
    return parts


def _numbers(result: StepResult, pattern: str) -> list[int]:
    found = re.search(rf"^{pattern}\b", result.output, re.MULTILINE)
    if found is None:
        raise LabError(f'section "{result.step.name}" printed no "{pattern}":\n{result.output}')
    return [int(value) for value in found.groups()]


def mapping(result: StepResult) -> dict[str, float]:
    """Return the cost of the reverse mapping with all pages written."""
    pages, ns = _numbers(result, r"pages=(\d+) walk_ns=(\d+)")
    instructions = ns / NS_PER_INSTRUCTION / pages
    return {
        "pages": pages,
        "instructions_a_page": round(instructions, 1),
        "instructions_a_gib": round(instructions * PAGES_OF_A_GIB),
        "ms_a_gib_at_2_ns": round(instructions * PAGES_OF_A_GIB * NS_PER_INSTRUCTION / 1e6, 1),
    }


def call(plain: StepResult, calling: StepResult) -> dict[str, float]:
    """Return the cost of one call: if the module makes them, a turn of two processes has two."""
    turn = r"untracked_ns=(\d+) tracked_ns=(\d+)"
    (_, without), (_, having) = _numbers(plain, turn), _numbers(calling, turn)
    return {
        "instructions": round((having - without) / 2 / NS_PER_INSTRUCTION),
        "turn_insns": round(without / NS_PER_INSTRUCTION),
        "turn_with_calls_insns": round(having / NS_PER_INSTRUCTION),
    }


def inner() -> Inner:
    """Return the inner guest that runs all."""
    return Inner(SPML, _script(), dirty_guest.files())


def checks(rows: list[Row], parts: Row) -> list[Check]:
    """Check the rows."""
    return [
        dirty_guest.misses_nothing(SPML, rows),
        Check("the parts miss nothing", parts["missed"] == 0, f"{parts['missed']} pages missed"),
        Check(
            "the log has it",
            parts["logged"] >= parts["reported"] > 0,
            f"{parts['logged']} entries of the log, {parts['reported']} pages reported",
        ),
    ]


@experiment(
    name="dirty-guest-spml",
    accelerator="dirty",
    title="Dirty pages in a guest, by the hypervisor's log",
    reproduces="OoH: the microbenchmark and the formulas of SPML (nested emulation, instructions)",
    minutes=2,
)
def dirty_guest_spml(context: Context) -> Result:
    """Measure SPML under nested emulation and try its formulas: instructions of both guests, no times."""
    machine = inner()
    transcript = context.run(
        "nested", OUTER, [machine.step(3000)], nested.files(machine), modules=nested.OUTER_MODULES
    )
    output = sections(transcript[machine.name])
    rows = [
        dirty_guest.bench_row(output[section], SPML, SMALLEST, density)
        for section, density in _BENCHES.items()
    ]
    parts = dirty_guest.parts_row(output["parts"], SPML)
    mapped = mapping(output["mapping"])
    one_call = call(output["turns"], output["turns with calls"])
    accuracy = {of: parts[f"{of} accuracy %"] for of in ("tker", "tked_tker")}
    return Result(
        unit="instructions",
        method=f"QEMU -icount with AMD's virtualisation, {NS_PER_INSTRUCTION} ns an instruction; "
        "trapless-vmm on the stock kvm_amd of an emulated stock host: NESTED EMULATION, instructions of both "
        "guests together, no times. trapless dirty bench, medians; one word of each page is written; "
        "tracked_insns_per_page: beyond the same writes untracked, an exit for each page by write "
        "protection; missed and spurious by comparing memory. Formulas: guest/parts.c, "
        f"{PARTS_MIB} MiB, all pages dirty; a fault is an exit, its mean over one ring of KVM's, and as many "
        "as the log has entries; drain is the call and the copy of the ring",
        rows=rows,
        paper=PAPER,
        checks=checks(rows, parts),
        machine=machine_facts([OUTER], host.versions()),
        keys={"formulas": [parts], "reverse_mapping": mapped, "call": one_call},
        summary=[
            BeforeAfter(
                "reverse mapping, 1 GiB",
                "15.739 s (the authors', hardware)",
                f"{mapped['instructions_a_gib']:,} instructions",
                "nested emulation: no time",
            )
        ],
        targets=[
            Target(
                "ms of reverse mapping a GiB, on the lab's clock",
                mapped["ms_a_gib_at_2_ns"],
                MAPPING_MS_A_GIB,
            ),
            *(
                Target(f"spml: E(C_{of}) is off by, %", round(100 - found, 2), round(100 - PAPER_ACCURACY, 2))
                for of, found in accuracy.items()
            ),
        ],
    )
