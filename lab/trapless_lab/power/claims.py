# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The demonstration of Power: a guest that traps, and one that is translated in place."""

from ..errors import LabError
from ..experiment.claim import Claim, Facts, Heading, Line, Part
from ..experiment.experiment import Context
from . import machine as power
from .console import Console
from .experiments.exits import sources
from .machine import MODES, How, Vm

_WORDS = {
    "boot": "boot a guest",
    "syscall": "a system call",
    "fork": "fork a process",
    "exec": "fork, exec and exit",
}
_ARGUMENTS = f"run={','.join(_WORDS)} scale=quick"


def _facts(mode: str, console: Console) -> dict[str, float]:
    if missing := _WORDS.keys() - console.results.keys():
        raise LabError(f"{mode} did not print {', '.join(sorted(missing))}")
    return {f"{mode} {what}": console.results[what].instructions for what in _WORDS}


def _alone(context: Context) -> Facts:
    return _facts("bare", power.bare(_ARGUMENTS, how=How(context.progress)))


def _guest(context: Context, mode: str) -> Facts:
    vm = Vm(mode, MODES[mode], _ARGUMENTS)
    console = power.in_host(power.one_after_another([vm]), label=mode, how=How(context.progress))
    exits = sum(sources(console.statistics(mode)).values())
    return _facts(mode, console.of(mode)) | {f"{mode} exits": exits}


def _lines(facts: Facts) -> list[Line]:
    found = [
        Line(
            words,
            facts[f"base {what}"],
            facts[f"inplace {what}"],
            facts[f"bare {what}"],
        )
        for what, words in _WORDS.items()
    ]
    return [*found, Line("exits for all of these", facts["base exits"], facts["inplace exits"])]


def _gained(facts: Facts) -> str:
    left = 100 * facts["inplace boot"] / facts["base boot"]
    return f"booting a Power guest takes {left:.0f} % of what it takes under stock KVM"


def _kept(_facts: Facts) -> str:
    return "every Power guest ran the same kernel to its end"


PART = Part(
    "power",
    Heading("a Power guest of KVM", "trapped", "in place", "no KVM"),
    (
        Claim("Power, stock KVM: a guest boots and works", 40, lambda context: _guest(context, "base")),
        Claim("Power, in place: a guest boots and works", 25, lambda context: _guest(context, "inplace")),
        Claim("Power, no KVM", 8, _alone),
    ),
    _lines,
    _gained,
    _kept,
)
