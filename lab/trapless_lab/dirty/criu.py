# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Chains of checkpoints by stock criu: what a guest needs for them, and what came of one (guest/criu-chain).

Invariant: whether a restore is right is decided by guest/memory.c, which reads memory and asks no tracker.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .. import artifacts, host
from ..machines import initramfs
from ..machines.initramfs import File, Tree, program
from ..machines.script import Step

CHAIN = artifacts.PACKAGE / "dirty" / "guest" / "criu-chain"
"""The script that makes a chain."""

ROUNDS = CHAIN.with_name("criu-rounds")
"""The script that measures one."""

# What criu 3.17 looks at first: without nf_tables it ends ("Unable to initialize Netlink socket").
MODULES = (
    *("nf_tables", "tun", "veth"),
    *("unix_diag", "inet_diag", "tcp_diag", "udp_diag", "netlink_diag", "af_packet_diag"),
)

_LINE = re.compile(r"^(one|two|three): (\D+): (\d+)", re.MULTILINE)
_COMPARED = re.compile(r"^(\d+) pages, (\d+) differ, (\d+) on one side only\r?$", re.MULTILINE)


def compared(text: str) -> tuple[int, int] | None:
    """Return how many pages the witness compared, and how many of them are wrong; ``None``: it did not come
    to that.
    """
    found = _COMPARED.search(text)
    return (int(found[1]), int(found[2]) + int(found[3])) if found else None


@dataclass(frozen=True)
class Outcome:
    """What a chain of two pre-dumps, a dump and a restore came to."""

    status: int
    text: str

    @property
    def pages(self) -> int:
        """The number of pages that were compared; 0 where it did not come to that."""
        return (compared(self.text) or (0, 0))[0]

    @property
    def wrong(self) -> int:
        """The number of pages that the restore made otherwise than they were."""
        return (compared(self.text) or (0, 0))[1]

    @property
    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """What criu counted in each step."""
        counts: dict[str, dict[str, int]] = {}
        for step, what, number in _LINE.findall(self.text):
            counts.setdefault(step, {})[what] = int(number)
        return counts

    @property
    def is_right(self) -> bool:
        """Whether pages were compared and none is wrong, and the second and the third dump are increments."""
        compared = self.status == 0 and self.pages > 0 and self.wrong == 0
        return compared and all(self.skipped(step) for step in ("two", "three"))

    def written(self, step: str) -> int:
        """Return how many pages a step wrote into its images."""
        return self.counts[step]["Memory pages written"]

    def skipped(self, step: str) -> int:
        """Return how many pages a step left to the images before it."""
        return self.counts[step]["Memory pages skipped from parent"]


def files(*, mutant: bool = False) -> Tree:
    """Return criu, trapless and the script as files of a guest; ``mutant``: a trapless that can err."""
    own, shim = "trapless", "libdirty_softdirty.so"
    built = [
        artifacts.mutant("dirty", "rust", f"release/{name}") if mutant else artifacts.program(name)
        for name in (own, shim)
    ]
    return {
        **program(built[0]),
        **program(host.tool("criu", "criu")),
        f"/lib/{shim.replace('_', '-')}": File(built[1], 0o755),
        "/bin/criu-chain": File(CHAIN, 0o755),
    }


INNER_MEMORY = "768MiB"
"""Of an inner guest, which has programs, images and all in it."""

LOAD_MODULES = "for module in $(cat /modules/order); do insmod /modules/$module; done"
"""For the shell of a guest that has ``module_files`` and does not load them by itself."""


def module_files() -> Tree:
    """Return the stock modules that criu looks for as files of an inner guest."""
    kernel = host.kernel()
    return initramfs.modules([path for name in MODULES for path in host.module_files(kernel, name)])


PREPARE = Step("prepare criu", "mkdir -p /run && mount -t tmpfs tmpfs /run && ip link set lo up")
"""A guest of the lab has neither a /run nor a network."""


def command(backend: str, socket: str) -> str:
    """Return the shell's words that run criu under trapless, with a holder at a socket of its own."""
    return f"trapless criu --hold {socket} --backend {backend} --program /bin/criu"


def chain(
    name: str, tree: str, criu: str, *, pause: float = 1, before: str = "", timeout_s: float = 900
) -> Step:
    """Return a step that makes a chain of a tree of processes; its exit status is for the test to judge."""
    run = f"dirtymemory run criu-chain /tmp/{name.replace(' ', '-')} {pause:g} '{tree}' {criu}"
    return Step(name, f"{before}{' ' if before else ''}{run}", timeout_s, expect=None)
