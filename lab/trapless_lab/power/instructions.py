# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Names of an e500v2's privileged instructions.

Invariant: unprivileged instructions have no name here. The names of operations come from the disassembler; it
confuses some registers of the e500 with another processor's, so registers are named here, by the numbers in
the e500 core's manual.
"""

from capstone import CS_ARCH_PPC, CS_MODE_32, CS_MODE_BIG_ENDIAN, Cs

_X_FORM, _MFSPR, _MTSPR = 31, 339, 467
_PRIVILEGED_SPR = 16  # this bit of an SPR's number

_SPRS = {
    **{22: "DEC", 26: "SRR0", 27: "SRR1", 48: "PID", 54: "DECAR", 58: "CSRR0", 59: "CSRR1", 61: "DEAR"},
    **{62: "ESR", 63: "IVPR", 284: "TBL", 285: "TBU", 286: "PIR", 287: "PVR", 304: "DBSR", 308: "DBCR0"},
    **{309: "DBCR1", 310: "DBCR2", 336: "TSR", 340: "TCR", 570: "MCSRR0", 571: "MCSRR1", 572: "MCSR"},
    **{624 + number: f"MAS{number}" for number in (0, 1, 2, 3, 4, 6)},
    **{633: "PID1", 634: "PID2", 688: "TLB0CFG", 689: "TLB1CFG", 944: "MAS7", 1008: "HID0", 1009: "HID1"},
    **{1010: "L1CSR0", 1011: "L1CSR1", 1012: "MMUCSR0", 1013: "BUCSR", 1015: "MMUCFG", 1023: "SVR"},
    **{272 + number: f"SPRG{number}" for number in range(8)},
    **{400 + number: f"IVOR{number}" for number in range(16)},
    **{528 + number: f"IVOR{32 + number}" for number in range(4)},
}

_OPERATIONS = {
    *("mfmsr", "mtmsr", "wrtee", "wrteei", "rfi", "rfci", "rfmci"),
    *("tlbre", "tlbwe", "tlbsx", "tlbivax", "tlbsync", "dcbi"),
}


def moves_register(name: str) -> bool:
    """Whether an instruction of that name moves an SPR."""
    return name.startswith(("mfspr ", "mtspr "))


def name(word: int) -> str | None:
    """Return a privileged instruction's name, with that of the SPR if it moves one; None for any other."""
    if word >> 26 == _X_FORM and (operation := word >> 1 & 0x3FF) in (_MFSPR, _MTSPR):
        spr = word >> 16 & 0x1F | (word >> 11 & 0x1F) << 5
        move = "mfspr" if operation == _MFSPR else "mtspr"
        return f"{move} {_SPRS.get(spr, spr)}" if spr & _PRIVILEGED_SPR else None
    disassembler = Cs(CS_ARCH_PPC, CS_MODE_32 | CS_MODE_BIG_ENDIAN)
    found = next(disassembler.disasm_lite(word.to_bytes(4, "big"), 0), None)
    return found[2] if found and found[2] in _OPERATIONS else None
