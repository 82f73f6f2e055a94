# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A *model*: what counted instructions, crossings and flushes would take on three real processors.

Invariant: every price is a figure that others have published, named here; this project has measured none of
them, and a result of this file is called a model wherever it appears.

What the prices are of:

- A crossing, there and back, in addition to its instructions: a null system call with the processor's
  mitigations, less one without. K. Garloff measured getppid() in the Open Telekom Cloud in 2018, with and
  without isolated page tables, which Xen has for PV guests of these processors, too (XPTI): 580 and 140
  cycles ("BMS E5-2667v4"), 520 and 120 ("KVM Gold6161"; imagefactory.otc.t-systems.com,
  SpecExLeak/Benchmarks). Xen sets IBRS at each entry on Skylake besides (its README for XSA-254, openwall
  oss-security 2018-02-23): M. Dillon gives 848 ns with both and 103 ns with none on a Skylake (DragonFly BSD,
  commit 8ed0657196b6).
- A flush: 350 cycles, D. Hansen's figure for one page on a Skylake (linux-kernel 2017-12-05, "INVPCID vs.
  deferred CR3 write"). That an emptied TLB is filled again is not priced.
- A CPU that is interrupted to flush: 1,000 cycles, the least that papers on TLB shootdowns give.
- An instruction: a cycle. B. Gregg shows 1.04 instructions a cycle for a load of system calls ("Linux
  performance 2018").

For processors of AMD's we found no published figure of both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..experiment.experiment import Row
from .crossings import Crossings, Figures

FLUSH_CYCLES = 350
IPI_CYCLES = 1000


@dataclass(frozen=True)
class Processor:
    """A processor's nominal clock, and what a crossing takes."""

    name: str
    ghz: float
    crossing_ns: float

    def us(self, instructions: float, crossings: Crossings) -> float:
        """Return the microseconds of an operation."""
        cycles = instructions + FLUSH_CYCLES * crossings.flushes + IPI_CYCLES * crossings.flush_ipis
        return round((cycles / self.ghz + self.crossing_ns * crossings.entries) / 1000, 1)


# The last one's clock is assumed.
PROCESSORS = (
    Processor("Xeon E5-2667 v4", 3.2, (580 - 140) / 3.2),
    Processor("Xeon Gold 6161", 2.2, (520 - 120) / 2.2),
    Processor("Skylake with IBRS", 3.0, 848 - 103),
)


def rows(
    instructions: Mapping[str, Mapping[str, float]], counted: Figures, measures: Sequence[str]
) -> list[Row]:
    """Return a row for each measure on each processor: microseconds, a *model*."""
    return [
        {
            "measure": f"{measure}: us on a {processor.name} (model)",
            **{
                column: processor.us(instructions[column][measure], figures[measure])
                for column, figures in counted.items()
            },
        }
        for processor in PROCESSORS
        for measure in measures
    ]


METHOD = "us on a processor are a model: prices that others have published (pagetable/prices.py) times counts"
"""How, for an experiment's method."""
