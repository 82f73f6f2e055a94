# SPDX-License-Identifier: Apache-2.0 OR MIT
"""binutils' disassembler as the witness for instructions.

    witness.py instructions INSTRUCTIONS
    witness.py loads LOADS
    witness.py decode TRANSLATED INSTRUCTIONS
    witness.py decode-loads TRANSLATED
    witness.py branch BRANCHES

instructions: writes all words that the disassembler, set to e500, gives one of the
names below: the word, the operation, the register, and the SPR or E. It reads every
word that could be one, and some of every other extended opcode. `execute` reads the
instructions from this file, so they come from the witness, not from the translator.

loads: writes some loads, for `execute`: the word, the operation, the register, the
base, and an index register or a displacement.

decode: TRANSLATED is the output of `enumerate`, all that the translator translates. It
must be exactly the instructions that the witness finds.

decode-loads: the same for what `enumerate loads` printed.

branch: BRANCHES is the output of `branch`. Exactly the targets in reach must have a
branch, and the witness must read its target as that one.

Nothing here is computed from the translator's sources; register numbers are those of
the e500 core's manual.
"""

import argparse
import random
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

OBJDUMP = ["powerpc-linux-gnu-objdump", "-D", "-z", "-b", "binary", "-m", "powerpc:e500", "-M", "e500", "-EB"]
LINE = re.compile(r"^ *[0-9a-f]+:\t([0-9a-f ]{11}) \t(\S+) *(\S*)")

SPRS = {
    26: "srr0", 27: "srr1", 61: "dear", 62: "esr",
    272: "sprg0", 273: "sprg1", 274: "sprg2", 275: "sprg3",
    624: "mas0", 625: "mas1", 626: "mas2", 627: "mas3", 628: "mas4", 630: "mas6", 944: "mas7",
}  # fmt: skip
MOVED = {"mf": SPRS | {1012: "mmucsr0"}, "mt": SPRS | {48: "pid", 1013: "bucsr"}}
NUMBERS = {name: number for names in MOVED.values() for number, name in names.items()}

MFSPR, MTSPR, MFMSR, MTMSR, WRTEE, WRTEEI = 339, 467, 83, 146, 131, 163
REACH = range(-(1 << 25), 1 << 25, 4)

# Loads without update, by opcodes.
LOADS = {"lwz": 32, "lbz": 34, "lhz": 40, "lha": 42}
INDEXED_LOADS = {"lwzx": 23, "lbzx": 87, "lhzx": 279, "lhax": 343}
LOAD_OPERANDS = re.compile(r"r(\d+),(?:(-?\d+)\((?:r(\d+)|0)\)|(?:r(\d+)|0),r(\d+))")
LOAD_STRIDE = 40961  # as in enumerate.c
# Addresses without a register, as in machine.h.
LOADED_LOW = 0x5000

Case = tuple[str, int, int]


def fail(text: str) -> None:
    """Print the error and exit."""
    sys.exit(f"witness: {text}")


def disassemble(words: list[int], address: int = 0) -> Iterator[tuple[int, str, str]]:
    """Each word, its mnemonic and its operands."""
    if not words:
        return iter(())
    with tempfile.NamedTemporaryFile() as file:
        file.write(struct.pack(f">{len(words)}I", *words))
        file.flush()
        where = [f"--adjust-vma={address:#x}", file.name]
        text = subprocess.run([*OBJDUMP, *where], check=True, capture_output=True, text=True).stdout
    found = [match.groups() for match in map(LINE.match, text.splitlines()) if match]
    if [int(word.replace(" ", ""), 16) for word, _, _ in found] != words:
        fail("objdump did not print what it was given")
    return ((word, mnemonic, operands) for word, (_, mnemonic, operands) in zip(words, found, strict=True))


def special(mnemonic: str, operands: str) -> Case | None:
    """An instruction that moves a special purpose register: operation, register, SPR."""
    match = re.fullmatch(r"(mf|mt)(?:(sprg?)|([a-z]+[0-9]?))", mnemonic)
    if not match:
        return None
    direction, numbered, name = match.groups()
    parts = operands.split(",")
    register = next((int(part[1:]) for part in parts if re.fullmatch("r[0-9]+", part)), None)
    number = next((int(part) for part in parts if part.isdecimal()), None)
    if register is None or len(parts) != (2 if numbered else 1):
        return None
    if numbered == "sprg":
        name = f"sprg{number}"
    spr = number if numbered == "spr" else NUMBERS.get(name or "")
    if spr is None or spr not in MOVED[direction]:
        return None
    return (f"{direction}spr", register, spr)


def read(mnemonic: str, operands: str) -> Case | None:
    """An instruction to be translated, as the witness reads it: operation, register, SPR or E."""
    match mnemonic:
        case "mfmsr" | "mtmsr" | "wrtee":
            # The form with a second operand is for other processors: on the e500 that bit is reserved.
            return None if "," in operands else (mnemonic, int(operands.removeprefix("r")), 0)
        case "wrteei":
            return (mnemonic, 0, int(operands))
    return special(mnemonic, operands)


def candidates() -> Iterator[int]:
    """Words that could be one of these: all values of all fields, also of reserved ones."""
    rng = random.Random(1)
    for extended in (MFSPR, MTSPR):
        for rest in range(1 << 15):
            yield from (31 << 26 | rest << 11 | extended << 1 | record for record in (0, 1))
    for extended in (MFMSR, MTMSR, WRTEE, WRTEEI):
        for register in range(32):
            for reserved in range(1 << 10):
                yield 31 << 26 | register << 21 | reserved << 11 | extended << 1
            yield 31 << 26 | register << 21 | extended << 1 | 1
    for extended in range(1 << 10):
        for _ in range(64):
            yield 31 << 26 | rng.getrandbits(15) << 11 | extended << 1 | rng.getrandbits(1)


def instructions(path: Path) -> None:
    """Write the instructions to which the witness gives these names."""
    lines = []
    found: dict[str, set[int]] = {f"{direction}spr": set() for direction in MOVED}
    for word, mnemonic, operands in disassemble(sorted(set(candidates()))):
        case = read(mnemonic, operands)
        if case is not None:
            lines.append(f"{word:08x} {case[0]} {case[1]} {case[2]}\n")
            if case[0] in found:
                found[case[0]].add(case[2])
    if found != {f"{direction}spr": {*names} for direction, names in MOVED.items()}:
        fail("objdump does not know all registers")
    path.write_text("".join(lines))


def decode(translated: Path, known: Path) -> None:
    """The translator and the witness must know the same instructions."""
    ours, theirs = (
        {int(line.split()[0], 16) for line in path.read_text().splitlines()} for path in (translated, known)
    )
    for word, mnemonic, operands in disassemble(sorted(ours ^ theirs)):
        who = "not translated" if word in theirs else "translated"
        fail(f"{word:08x}: {who}, and objdump says {mnemonic} {operands}")
    print(f"{len(ours)} instructions, the same that objdump knows")


def load(mnemonic: str, operands: str) -> tuple[str, int, int, str] | None:
    """A load: operation, register, base, and index register or displacement."""
    if mnemonic not in LOADS | INDEXED_LOADS or not (match := LOAD_OPERANDS.fullmatch(operands)):
        return None
    register, displacement, base, indexed_base, index = match.groups()
    if (index is None) != (mnemonic in LOADS):
        fail(f"objdump says {mnemonic} {operands}")
    operation = mnemonic.removesuffix("x")
    return (operation, int(register), int(base or indexed_base or 0), f"r{index}" if index else displacement)


def loads(path: Path) -> None:
    """Write loads for each register and base."""
    rng = random.Random(2)
    words = []
    for fields in range(1 << 10):
        opcode, indexed = rng.choice([*LOADS.values()]), rng.choice([*INDEXED_LOADS.values()])
        no_base = fields & 31 == 0
        displacement = LOADED_LOW + 4 * rng.getrandbits(10) if no_base else rng.getrandbits(16)
        words.append(opcode << 26 | fields << 16 | displacement)
        # The index is often another of its registers, or one that a fragment uses.
        for index in (rng.choice([fields & 31, fields >> 5, 0]), rng.choice([*range(8, 13)])):
            words.append(31 << 26 | fields << 16 | index << 11 | indexed << 1)
    lines = []
    for word, mnemonic, operands in disassemble(words):
        case = load(mnemonic, operands)
        if case is None:
            fail(f"{word:08x}: objdump says {mnemonic} {operands}")
        else:
            lines.append(f"{word:08x} {' '.join(map(str, case))}\n")
    path.write_text("".join(lines))


def decode_loads(translated: Path) -> None:
    """Exactly the words that the translator treats as loads are loads for the witness."""
    ours = {int(line.split()[0], 16) for line in translated.read_text().splitlines()}
    rng = random.Random(3)
    codes = INDEXED_LOADS.values()
    extended = {31 << 26 | rest << 11 | code << 1 for code in codes for rest in range(1 << 15)}
    others = {31 << 26 | rng.getrandbits(26) for _ in range(1 << 16)}
    all_of_it = {*range(0, 1 << 32, LOAD_STRIDE)}
    tried = extended | {word | 1 for word in extended} | others | all_of_it | ours
    theirs = set()
    for word, mnemonic, operands in disassemble(sorted(tried)):
        known = load(mnemonic, operands) is not None
        if known != (word in ours):
            fail(f"{word:08x}: {'not ' if known else ''}translated, and objdump says {mnemonic} {operands}")
        if known:
            theirs.add(mnemonic)
    if theirs != {*LOADS, *INDEXED_LOADS}:
        fail("objdump does not know all loads")
    print(f"{len(ours)} loads, the same that objdump knows")


def lead_there(block: dict[int, tuple[int, int]]) -> None:
    """Branches by their addresses, one after another in memory, lead where they should."""
    first = min(block)
    words = [block.get(at, (0, 0))[0] for at in range(first, max(block) + 4, 4)]
    for i, (word, mnemonic, operands) in enumerate(disassemble(words, first)):
        at = first + 4 * i
        if at in block and (mnemonic != "b" or int(operands, 16) % (1 << 32) != block[at][1]):
            fail(f"branch at {at:08x} to {block[at][1]:08x}, {word:08x}: objdump says {mnemonic} {operands}")


def branch(branches: Path) -> None:
    """Each branch has the right target, and there is one exactly if the target is in reach."""
    blocks: list[dict[int, tuple[int, int]]] = []
    refused = made = before = 0
    for line in branches.read_text().splitlines():
        source, target, instruction = line.split()
        at, to = int(source, 16), int(target, 16)
        distance = (to - at + (1 << 31)) % (1 << 32) - (1 << 31)
        if (distance in REACH) != (instruction != "none"):
            fail(f"branch from {source} to {target}: {instruction}")
        if not blocks or not before < at < before + 4096:
            blocks.append({})
        before = at
        if instruction == "none":
            refused += 1
        else:
            made += 1
            blocks[-1][at] = (int(instruction, 16), to)
    for block in filter(None, blocks):
        lead_there(block)
    if not made or not refused:
        fail("there are no branches at the limits")
    print(f"branches: {made} lead where they should, {refused} out of reach are refused")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="binutils as the witness for instructions")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, files in (
        ("instructions", ["instructions"]),
        ("loads", ["loads"]),
        ("decode-loads", ["translated"]),
        ("decode", ["translated", "instructions"]),
        ("branch", ["branches"]),
    ):
        command = commands.add_parser(name)
        for file in files:
            command.add_argument(file, type=Path)
    arguments = parser.parse_args()
    match arguments.command:
        case "instructions":
            instructions(arguments.instructions)
        case "loads":
            loads(arguments.loads)
        case "decode-loads":
            decode_loads(arguments.translated)
        case "decode":
            decode(arguments.translated, arguments.instructions)
        case "branch":
            branch(arguments.branches)


if __name__ == "__main__":
    main()
