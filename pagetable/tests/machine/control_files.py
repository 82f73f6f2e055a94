# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The module's control files as docs/pagetable-abi.md specifies them: what each accepts, and test inputs.

Invariant: ``accepted`` follows the document, not the module; where the document leaves the outcome open, both
are right.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trapless_lab.machines.script import Step, StepResult
from trapless_lab.pagetable.parts import LEVELS, SYSFS

POLICIES = ("none", "number", "proportion", "both", "adaptive")
CACHED = tuple(f"{level}/cached" for level in LEVELS)
WRITABLE = ("enabled", "policy", "limit_number", "limit_percent", "shrink", *CACHED)
# Read back after every write, in this order.
STATE = ("enabled", "policy", "limit_number", "limit_percent", "shrunk")

# Tables are freed a grace period after their process. The shell itself waits a second, for input that never
# comes; "sleep" would be a process with tables, too.
SETTLE = "[ -p /tmp/never ] || mkfifo /tmp/never; read -t 1 never <>/tmp/never"

_UINT_MAX = 2**32 - 1
_EDGES = (0, 1, 2, 63, 64, 65, 99, 100, 101, 180, 2**31 - 1, 2**31, _UINT_MAX, 2**32, 2**63, 2**64, 10**30)


@dataclass(frozen=True)
class Outcome:
    """What one write did, and what the files then held."""

    file: str
    data: bytes
    failed: bool
    state: tuple[str, ...]
    cached: int
    cached_before: int


def _number(text: bytes) -> int | None:
    return int(text) if re.fullmatch(rb"[0-9]+", text) and int(text) <= _UINT_MAX else None


def accepted(file: str, data: bytes) -> bool | None:
    """Return whether the document lets the file take these bytes; None if it leaves that open."""
    text = data.removesuffix(b"\n")
    # A NUL ends the text in sysfs, and numbers may carry a sign or blanks: the kernel's habits.
    loose = data.split(b"\0")[0].strip()
    if file == "policy":
        strict = text.decode(errors="replace") in POLICIES
        return strict or (None if b"\0" in data and loose.decode(errors="replace") in POLICIES else False)
    if file == "enabled":
        if text in (b"0", b"1", b"y", b"n", b"on", b"off"):
            return True
        # The kernel parses only the beginning.
        return None if re.match(rb"[yYnNtTfF01]|[oO][nNfF]", data) else False
    if file == "shrink" and loose.removeprefix(b"+").endswith(b"%"):
        strict_percent = _number(text.removesuffix(b"%"))
        if strict_percent is not None:
            return strict_percent <= 100 and (len(text) <= 8 or None)
        loose_percent = _number(loose.removeprefix(b"+").removesuffix(b"%"))
        return None if loose_percent is not None and loose_percent <= 100 else False
    if _number(text) is not None:
        # The document does not say how many leading zeros fit.
        return True if len(text) <= 10 else None
    return None if _number(loose.removeprefix(b"+")) is not None else False


def inputs(seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """Yield files and what to write into them: every edge once, then mixtures of everything."""
    rng = random.Random(seed)
    for file in WRITABLE:
        for data in (b"\n", b" ", b"-1", b"-1%", b"%", b"5%%", b"1 2", b"0x10", b"1e3", b"5\n\n", b"\xff"):
            yield file, data
    for file in ("limit_number", "limit_percent", "shrink", "pte/cached"):
        for edge in _EDGES:
            yield file, b"%d" % edge
    for file in POLICIES:
        yield "policy", file.encode()
        yield "policy", file[:-1].encode()
        yield "policy", f"{file}\n".encode()
    for _ in range(count):
        file = rng.choice(WRITABLE)
        kind = rng.randrange(4)
        if kind == 0:
            data = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 24)))
        elif kind == 1:
            data = b"%d" % rng.choice((rng.randrange(200), rng.randrange(2**40)))
            data += rng.choice((b"", b"\n", b"%", b"%\n", b" ", b"\0", b"\r\n"))
        elif kind == 2:
            data = rng.choice(POLICIES).encode() + rng.choice((b"", b"\n", b"x", b"\0x"))
        else:
            data = rng.choice((b"9", b"a", b" ", b"%", b"\n", b"0")) * rng.choice((1, 15, 16, 17, 300))
        yield file, data


def _octal(data: bytes) -> str:
    return "".join(f"\\{byte:03o}" for byte in data)


def step(name: str, tries: Sequence[tuple[str, bytes]]) -> Step:
    """Return a step that makes the writes, in one shell that starts no process meanwhile."""
    read = "; ".join(f"read -r {file} <{file}" for file in STATE)
    values = " ".join(f"${file}" for file in STATE)
    add = "; ".join(f"read -r v <{file}; c=$((c + v))" for file in CACHED)
    lines = [
        f"cd {SYSFS} || exit 1",
        f"look() {{ {read}; c=0; {add}; }}",
        f'w() {{ b=$c; printf "$2" >$1 2>/dev/null; rc=$?; look; echo "$1|$rc|{values}|$c|$b"; }}',
        SETTLE,
        "look",
        *(f"w {file} '{_octal(data)}'" for file, data in tries),
    ]
    return Step(name, "\n".join(lines), timeout_s=500)


def outcomes(result: StepResult, tries: Sequence[tuple[str, bytes]]) -> list[Outcome]:
    """Return what came of each write."""
    lines = [line.split("|") for line in result.output.splitlines() if line.count("|") == 4]
    assert len(lines) == len(tries), result.output[-2000:]
    return [
        Outcome(file, data, rc != "0", tuple(state.split()), int(cached), int(before))
        for (file, data), (name, rc, state, cached, before) in zip(tries, lines, strict=True)
        if name == file
    ]
