# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The proof of every item that layout.h may have: claims about the flow of values, and passages.

What compilers write differently for the same source is a claim; what all wrote alike so far is a passage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import z3

from .claim import Claim, Demand, Either, Here, To, Values, flags32, log2, low, u8, u16, u32, u64
from .ways import BRANCH, CALL, COPY, EXCHANGE, RETURN, STORE, bit_of, signed, stack_end
from .witness import Witness

Proof = Claim | Either | Witness
ERESTART = 85
DOMDYING_DYING, DOMDYING_DEAD = 1, 2


def type_info(page: z3.BitVecRef, x: Values) -> z3.BitVecRef:
    """What a page is used as, and how often."""
    return u64(page + x.XEN_PAGE_INFO_TYPE_INFO)


def owner(page: z3.BitVecRef, x: Values) -> z3.BitVecRef:
    """The domain whose allocation a page belongs to."""
    return x.XEN_DIRECTMAP + (u32(page + x.XEN_PAGE_INFO_OWNER) << x.XEN_PAGE_SHIFT)


def needs_sync(domain: z3.BitVecRef, way: Here, x: Values) -> list[Demand]:
    """The way is one for PV domains whose IOMMU follows page types."""
    return [
        way.decided(u8(domain + x.XEN_DOMAIN_NEED_SYNC) != 0),
        way.decided(flags32(domain + x.XEN_DOMAIN_OPTIONS) & x.XEN_DOMAIN_OPTION_HVM == 0),
    ]


# The lock bit goes together with one reference.
UNLOCK = Claim(
    "page_unlock",
    To(EXCHANGE),
    lambda way, x: [
        way.address == way.argument(0) + x.XEN_PAGE_INFO_TYPE_INFO,
        way.value == type_info(way.argument(0), x) - 1 - x.PGT_locked,
    ],
)

COUNT = Claim(
    "put_page",
    To(EXCHANGE),
    lambda way, x: [
        way.address == way.argument(0) + x.XEN_PAGE_INFO_COUNT_INFO,
        way.value == u64(way.argument(0) + x.XEN_PAGE_INFO_COUNT_INFO) - 1,
    ],
)

HAS_IOMMU = Witness(
    "iommu_map",
    """
    test byte ptr [rdi + {XEN_DOMAIN_OPTIONS}], {XEN_DOMAIN_OPTION_IOMMU}
    je {_}
    """,
)

# The last reference to a writable page goes: its device mapping goes too, in a PV domain whose
# IOMMU follows page types.
CLEANUP = Claim(
    "cleanup_page_mappings",
    To(CALL, "iommu_legacy_unmap"),
    lambda way, x: [*needs_sync(way.passed(0), way, x), low(way.passed(2)) == 1],
    given={"XEN_DOMAIN_OPTIONS": HAS_IOMMU},
)

# The same when a type changes, with the flags for the device mapping that comes back.
RETYPE = Claim(
    "_get_page_type",
    To(CALL, "iommu_legacy_map"),
    lambda way, x: [
        *needs_sync(way.passed(0), way, x),
        way.passed(1) == way.passed(2),
        low(way.passed(3)) == 1,
        low(way.passed(4)) == x.IOMMUF_rw,
    ],
    behind=To(EXCHANGE),
    given={"XEN_DOMAIN_OPTIONS": HAS_IOMMU},
)

# One look at everything that is found from the stack pointer: Xen asks whether the running vcpu
# of an HVM domain has events pending, beside whether this CPU has softirqs pending.
PREEMPTION = Claim(
    "_get_page_type",
    To(CALL, "hvm_local_events_need_delivery"),
    lambda way, x: [
        way.computed(stack_end(x.XEN_STACK_MASK)),
        way.passed(0) == way.current(x),
        way.computed(way.cpu(x)),
        way.computed(u32(way.variable("irq_stat") + (way.cpu(x) << x.XEN_IRQ_STAT_SHIFT))),
        way.decided(
            flags32(u64(way.passed(0) + x.XEN_VCPU_DOMAIN) + x.XEN_DOMAIN_OPTIONS) & x.XEN_DOMAIN_OPTION_HVM
            != 0
        ),
    ],
    given={"XEN_DOMAIN_OPTIONS": HAS_IOMMU, "XEN_DOMAIN_OPTION_HVM": CLEANUP},
)


def not_the_callers(way: Here, x: Values) -> Demand:
    """The domain is not that of the running vcpu."""
    return way.decided(u64(way.current(x) + x.XEN_VCPU_DOMAIN) != way.argument(0))


OF_THIS_CPU: dict[str, Claim | Witness] = {"XEN_STACK_MASK": PREEMPTION, "XEN_STACK_CURRENT": PREEMPTION}

# A domain that is not the caller's is paused as a whole, and its vcpus have stopped before 0 is given back:
# _domain_pause() does it, or what it consists of.
PAUSED = Either(
    Claim(
        "domain_pause_except_self",
        To(RETURN),
        lambda way, x: [
            not_the_callers(way, x),
            way.called("_domain_pause").arguments[0] == way.argument(0),
            low(way.called("_domain_pause").arguments[1], 8) == 1,
            low(way.result) == 0,
        ],
        given=OF_THIS_CPU,
    ),
    Claim(
        "domain_pause_except_self",
        To(RETURN),
        lambda way, x: [
            not_the_callers(way, x),
            way.counted(way.argument(0)),
            way.decided(way.called("vcpu_sleep_sync").arguments[0] != 0),
            way.called("arch_domain_pause").arguments[0] == way.argument(0),
            low(way.result) == 0,
        ],
        given=OF_THIS_CPU,
    ),
)


def tried(way: Here, gave: bool) -> list[Demand]:
    """The domain's lock was tried, and taken or not: a bool, which was an int before 4.20."""
    lock = way.called("_spin_trylock")
    narrow, wide = ((low(lock.result, bits) != 0) == gave for bits in (8, 32))
    return [way.inside(lock.arguments[0], way.argument(0)), way.decided(narrow, wide)]


# Of the caller's own, the other vcpus are paused one after another, under a lock that is only tried.
OTHERS_PAUSED = Claim(
    "domain_pause_except_self",
    To(CALL, "vcpu_sleep_sync"),
    lambda way, x: [
        way.decided(u64(way.current(x) + x.XEN_VCPU_DOMAIN) == way.argument(0)),
        *tried(way, True),
        way.decided(way.passed(0) != way.current(x)),
        way.counted(way.passed(0)),
    ],
    given=OF_THIS_CPU,
)
PAUSE_AGAIN = Claim(
    "domain_pause_except_self",
    To(RETURN),
    lambda way, _: [*tried(way, False), low(way.result) == low(z3.BitVecVal(-ERESTART, 64))],
)

# iommu_map's flags: the order of the mapping, six bits, is or'ed to them.
ORDER_BITS = Claim(
    "iommu_map",
    To(CALL),
    lambda way, _: [
        way.passed(0) == way.argument(0),
        way.result_of(lambda order: low(way.passed(3)) == low(way.argument(4) | (order & 0x3F))),
    ],
)


def pdx_of(page: z3.BitVecRef, x: Values) -> z3.BitVecRef:
    """The index of a page in the frame table."""
    return (page - x.XEN_FRAME_TABLE) >> log2(x.XEN_PAGE_INFO_SIZE)


# struct page_info * to PDX, from which Xen makes the frame number.
PAGE_TO_PDX = Claim(
    "cleanup_page_mappings",
    To(CALL, "iommu_legacy_unmap"),
    lambda way, x: [
        way.computed(way.argument(0) - x.XEN_FRAME_TABLE),
        way.computed(pdx_of(way.argument(0), x)),
    ],
)

WRITABLE = Claim(
    "cleanup_page_mappings",
    To(CALL, "iommu_legacy_unmap"),
    lambda way, x: [
        way.decided(type_info(way.argument(0), x) & x.PGT_writable_page == x.PGT_writable_page),
    ],
    given={"XEN_PAGE_INFO_TYPE_INFO": UNLOCK},
)

# A page that is Xen's, or none of the domain's allocation, keeps its type.
SPECIAL = Claim(
    "cleanup_page_mappings",
    To(BRANCH),
    lambda way, x: [
        way.decided(u64(way.argument(0) + x.XEN_PAGE_INFO_COUNT_INFO) & x.PGC_special == 0),
    ],
    given={"XEN_PAGE_INFO_COUNT_INFO": COUNT},
)

OWNER = Claim(
    "cleanup_page_mappings",
    To(CALL, "iommu_legacy_unmap"),
    lambda way, x: [
        way.computed(u32(way.argument(0) + x.XEN_PAGE_INFO_OWNER)),
        way.computed(u32(way.argument(0) + x.XEN_PAGE_INFO_OWNER) << x.XEN_PAGE_SHIFT),
        way.passed(0) == owner(way.argument(0), x),
    ],
)

# A reference is given to whom the page belongs.
GET_PAGE = Claim(
    "get_page",
    To(RETURN),
    lambda way, x: [
        way.decided(owner(way.argument(0), x) == way.argument(1)),
        low(way.result, 8) == 1,
    ],
    given={"XEN_PAGE_INFO_OWNER": OWNER, "XEN_PAGE_SHIFT": OWNER, "XEN_DIRECTMAP": OWNER},
)

# It is counted, unless the count has reached what is kept in reserve, or is that of a free page.
ONE_MORE_REFERENCE = Claim(
    "get_page",
    To(EXCHANGE),
    lambda way, x: [
        way.address == way.argument(0) + x.XEN_PAGE_INFO_COUNT_INFO,
        way.value == u64(way.argument(0) + x.XEN_PAGE_INFO_COUNT_INFO) + 1,
        way.decided(
            z3.UGT((u64(way.argument(0) + x.XEN_PAGE_INFO_COUNT_INFO) + 2) & x.PGC_count_mask, 2),
        ),
    ],
    given={"XEN_PAGE_INFO_COUNT_INFO": COUNT},
)

ONE_MORE_TYPE_REFERENCE = Claim(
    "_get_page_type",
    To(EXCHANGE),
    lambda way, x: [
        way.address == way.argument(0) + x.XEN_PAGE_INFO_TYPE_INFO,
        way.value == type_info(way.argument(0), x) + 1,
        way.decided((type_info(way.argument(0), x) + 1) & x.PGT_count_mask != 0),
    ],
)

SAME_TYPE = Claim(
    "_get_page_type",
    To(EXCHANGE),
    lambda way, x: [way.decided(type_info(way.argument(0), x) & x.PGT_type_mask == way.argument(1))],
    given={"XEN_PAGE_INFO_TYPE_INFO": UNLOCK},
)

# What was exchanged for the old word says whether the page is to be validated first.
VALIDATED_TESTED = Claim(
    "_get_page_type",
    To(BRANCH),
    lambda way, x: [
        way.exchanged.address == way.argument(0) + x.XEN_PAGE_INFO_TYPE_INFO,
        way.decided(way.exchanged.value & x.PGT_validated != 0),
    ],
)

VALIDATED_SET = Claim(
    "_get_page_type",
    To(STORE),
    lambda way, x: [
        way.size == 8,
        way.address == way.argument(0) + x.XEN_PAGE_INFO_TYPE_INFO,
        way.value == type_info(way.argument(0), x) | x.PGT_validated,
    ],
)


def takes(function: str, table: Callable[[Values], z3.BitVecRef]) -> Claim:
    """That an entry takes a reference to a table of the level below: of its frame, as this type."""
    return Claim(
        function,
        To(CALL, "get_page_and_type_from_mfn"),
        lambda way, x: [
            way.passed(1) == table(x),
            way.passed(0) == z3.LShR(way.argument(0) << 12, 24),
        ],
    )


ENTRY_L2 = takes("get_page_from_l2e", lambda x: x.PGT_l1_page_table)
ENTRY_L3 = takes("get_page_from_l3e", lambda x: x.PGT_l2_page_table)
ENTRY_L4 = takes("get_page_from_l4e", lambda x: x.PGT_l3_page_table)
CR3 = Claim(
    "new_guest_cr3",
    To(CALL, "get_page_and_type_from_mfn"),
    lambda way, x: [way.passed(1) == x.PGT_l4_page_table, way.passed(0) == way.argument(0)],
)
DESCRIPTORS = Claim(
    "_get_page_type",
    To(CALL, "validate_segdesc_page"),
    lambda way, x: [
        way.decided(way.argument(1) & x.PGT_type_mask == x.PGT_seg_desc_page),
        way.passed(0) == way.argument(0),
    ],
    given={"PGT_type_mask": SAME_TYPE},
)

# A reference that is held already is not taken again.
PARTIAL = Claim(
    "get_page_and_type_from_mfn",
    To(CALL, "__mfn_valid"),
    lambda way, x: [
        way.decided(way.argument(3) & x.PTF_partial_set == 0),
        way.passed(0) == way.argument(0),
    ],
)


def group_bit(way: Here, pdx: z3.BitVecRef, x: Values) -> z3.BitVecRef:
    """Whether a frame's group is valid: 1 or 0."""
    return bit_of(way.variable("pdx_group_valid"), signed(z3.LShR(pdx, x.XEN_PDX_GROUP_SHIFT)))


def variable32(way: Here, name: str) -> z3.BitVecRef:
    """The 32 bits of a variable as a number of bits to shift by."""
    return u32(way.variable(name)) & 63


def by_masks(way: Here, mfn: z3.BitVecRef) -> z3.BitVecRef:
    """The PDX of a frame in 4.17."""
    top = mfn & u64(way.variable("pfn_top_mask"))
    bottom = mfn & u64(way.variable("pfn_pdx_bottom_mask"))
    return bottom | z3.LShR(top, variable32(way, "pfn_pdx_hole_shift"))


def entry(way: Here, table: str, number: z3.BitVecRef, x: Values, by: str = "pfn") -> z3.BitVecRef:
    """What one of the tables has for a frame, from 4.21 on, or for a PDX."""
    index = z3.LShR(number, variable32(way, f"{by}_index_shift")) & x.XEN_PDX_TABLE_MASK
    return u64(way.variable(table) + 8 * index)


def in_region(way: Here, mfn: z3.BitVecRef, x: Values) -> z3.BoolRef:
    """Whether a frame is in the region that the tables have for it."""
    base = entry(way, "pfn_bases", mfn, x)
    return z3.And(z3.UGE(mfn, base), z3.ULT(mfn, base + u64(way.variable("pdx_region_size"))))


def below_max_page(way: Here) -> z3.BoolRef:
    """Whether a frame number is below the bound on them."""
    return z3.ULT(way.argument(0), u64(way.variable("max_page")))


# A frame is valid if its number is below the bound, it lies in no hole, and the bit of its group is set. How
# the frame table leaves out holes is what families of versions differ in.
VALID_BY_MASKS = Claim(
    "__mfn_valid",
    To(RETURN),
    lambda way, x: [
        way.exactly(
            z3.And(below_max_page(way), way.argument(0) & u64(way.variable("pfn_hole_mask")) == 0),
        ),
        low(way.result, 8) == group_bit(way, by_masks(way, way.argument(0)), x),
    ],
)
VALID_WITHOUT_HOLES = Claim(
    "__mfn_valid",
    To(RETURN),
    lambda way, x: [
        way.exactly(below_max_page(way)),
        low(way.result, 8) == group_bit(way, way.argument(0), x),
    ],
)
VALID_BY_OFFSETS = Claim(
    "__mfn_valid",
    To(RETURN),
    lambda way, x: [
        way.exactly(z3.And(below_max_page(way), in_region(way, way.argument(0), x))),
        low(way.result, 8)
        == group_bit(way, way.argument(0) - entry(way, "pfn_pdx_lookup", way.argument(0), x), x),
    ],
)
VALID = Either(VALID_BY_MASKS, VALID_WITHOUT_HOLES, VALID_BY_OFFSETS)

# Back from PDX to frame number: what is handed to the IOMMU is the frame of the page.
PDX_TO_MFN = Claim(
    "cleanup_page_mappings",
    To(CALL, "iommu_legacy_unmap"),
    lambda way, x: [
        way.passed(1)
        == pdx_of(way.argument(0), x) + entry(way, "pdx_pfn_lookup", pdx_of(way.argument(0), x), x, "pdx"),
    ],
)

# A list of updates goes on only while no teardown of a table waits to be continued.
OLD_TABLE = Witness(
    "do_mmu_update",
    """
    cmp qword ptr [{vcpu} + {XEN_VCPU_OLD_GUEST_TABLE}], 0
    jne {_}
    """,
)

# Bit 11 of the paging mode refuses all updates: Xen counts the references itself.
PAGING_MODE = Witness(
    "do_mmu_update",
    """
    mov e{mode}x, dword ptr [{domain} + {XEN_DOMAIN_PAGING_MODE}]
    test {mode}h, 8
    jne {_}
    """,
)

# mod_l1_entry(): a new entry gets the bits of the guest's kernel or user, and is then compared with the old
# one. Bit 2 of an entry is the user's.
ADJUST = Claim(
    "mod_l1_entry",
    To(CALL, "get_page_from_l1e"),
    lambda way, x: [
        way.decided(way.argument(1) & 4 == 0),
        way.passed(0) == way.argument(1) | x.XEN_L1_KERNEL_BITS,
        way.decided((way.passed(0) ^ u64(way.argument(0))) & x.XEN_L1_REVALIDATED != 0),
    ],
)

# The bits of the user are for an entry that does not have those of the kernel: bit 52.
ADJUST_USER = Claim(
    "mod_l1_entry",
    To(CALL, "get_page_from_l1e"),
    lambda way, x: [
        way.decided(way.argument(1) & 4 != 0),
        z3.Implies(
            (way.argument(1) >> 52) & 1 == 0,
            way.passed(0) == way.argument(1) | x.XEN_L1_USER_BITS,
        ),
        way.decided((way.passed(0) ^ u64(way.argument(0))) & x.XEN_L1_REVALIDATED != 0),
    ],
)

# What the toolstack gets about a domain begins with its id.
DOMAIN_INFO = Claim(
    "getdomaininfo",
    To(STORE),
    lambda way, x: [
        way.size == 2,
        way.address == way.argument(1),
        way.value == u16(way.argument(0) + x.XEN_DOMAIN_ID),
    ],
)

# The ids above it are those of Xen's own domains, which have nothing to set up here.
REAL_DOMAIN = Claim(
    "iommu_domain_init",
    To(BRANCH),
    lambda way, x: [way.decided(z3.ULE(u16(way.argument(0) + x.XEN_DOMAIN_ID), x.XEN_DOMID_LAST))],
    given={"XEN_DOMAIN_ID": DOMAIN_INFO},
)

# Scrubbing a frame maps and unmaps it.
CLEARED = Claim(
    "clear_domain_page",
    To(CALL, "unmap_domain_page"),
    lambda way, _: [
        way.called("map_domain_page").arguments[0] == way.argument(0),
        way.passed(0) == way.called("map_domain_page").result,
    ],
)

# The entry for an address: in the table whose frame is given back, 8 bytes each.
GUEST_L1E = Claim(
    "map_guest_l1e",
    To(RETURN),
    lambda way, _: [
        way.result == way.called("map_domain_page").result + ((way.argument(0) >> 12) & 0x1FF) * 8,
        way.stored(8, way.argument(1), way.called("map_domain_page").arguments[0]),
    ],
)


# Of the guest's addresses only those that are no hypervisor's are read or written.
def accessible(address: z3.BitVecRef) -> z3.BoolRef:
    """Whether a PV guest may pass the address."""
    return z3.UGT(address + 0xFFFF800000000000, 0xFFFF07FFFFFFFFFF)


def copies(function: str, to: To, guest: int) -> Claim:
    """That a function copies if the guest may pass the address, which is its argument `guest`."""
    return Claim(
        function,
        to,
        lambda way, _: [
            way.exactly(accessible(way.argument(guest))),
            *(
                # On the spot the address is changed first, unless it is one that the guest may pass.
                z3.Implies(accessible(way.argument(guest)), way.passed(n) == way.argument(n))
                for n in (0, 1)
            ),
            low(way.passed(2)) == low(way.argument(2)),
        ],
    )


COPIED_FROM = Either(
    copies("copy_from_guest_pv", To(CALL, "copy_from_guest_ll"), guest=1),
    copies("copy_from_guest_pv", To(COPY), guest=1),
)
COPIED_TO = Either(
    copies("copy_to_guest_pv", To(CALL, "copy_to_guest_ll"), guest=0),
    copies("copy_to_guest_pv", To(COPY), guest=0),
)
NOT_COPIED_FROM = Claim(
    "copy_from_guest_pv",
    To(RETURN),
    lambda way, _: [
        way.exactly(z3.Not(accessible(way.argument(1)))),
        way.called("memset").arguments[0] == way.argument(0),
        low(way.called("memset").arguments[1]) == 0,
        way.called("memset").arguments[2] == low(way.argument(2)),
        low(way.result) == low(way.argument(2)),
    ],
)
NOT_COPIED_TO = Claim(
    "copy_to_guest_pv",
    To(RETURN),
    lambda way, _: [
        way.exactly(z3.Not(accessible(way.argument(0)))),
        way.calls_nothing,
        low(way.result) == low(way.argument(2)),
    ],
)

FLUSHED = Claim(
    "__do_update_va_mapping",
    To(CALL, "paging_invlpg"),
    lambda way, x: [way.passed(0) == way.current(x), way.passed(1) == way.argument(0)],
    given=OF_THIS_CPU,
)


# What is mapped is cleared, and given back.
def mapped_clear(by: str) -> Claim:
    """That vzalloc() clears by this function."""
    return Claim(
        "vzalloc",
        To(RETURN),
        lambda way, _: [
            way.called("vmalloc_type").arguments[0] == way.argument(0),
            way.called(by).arguments[0] == way.called("vmalloc_type").result,
            way.result == way.called("vmalloc_type").result,
        ],
    )


MAPPED_CLEAR = Either(mapped_clear("clear_page_sse2"), mapped_clear("clear_page_cold"))


# An alignment is at least that of all that is allocated, and there has to be room for it.
ALLOCATED = Claim(
    "_xmalloc.part.0",
    To(CALL, "xmem_pool_alloc"),
    lambda way, _: [
        way.passed(0) == way.argument(0) + z3.If(z3.UGE(way.argument(1), 16), way.argument(1), 16) - 16,
    ],
)

# iommu_map gives what is left undone, or an error: 64 bits, with a sign.
MAPPING_FAILS = Claim(
    "iommu_map",
    To(RETURN),
    lambda way, _: [
        way.called("iommu_unmap").arguments[0] == way.argument(0),
        way.result_of(lambda error: way.result == signed(error)),
    ],
)
MAPPING_FLUSHED = Claim(
    "iommu_map",
    To(CALL, "iommu_iotlb_flush_all"),
    lambda way, _: [
        way.passed(0) == way.argument(0),
        low(way.passed(1)) == u32(way.argument(5)),
    ],
)

LOCK = Witness(
    "page_lock_unsafe",
    """
    movabs {locked}, {PGT_locked}
    movabs {_}, {#}
    movabs {validated}, {PGT_validated}
    movabs {count}, {PGT_count_mask}
    ...
    """,
)

# The passages. Of the claims each stands for all items that it reads.
VALUES: dict[str, tuple[Proof, ...]] = {
    "XEN_VCPU_OLD_GUEST_TABLE": (OLD_TABLE,),
    "XEN_DOMAIN_OPTIONS": (HAS_IOMMU,),
    "XEN_DOMAIN_OPTION_IOMMU": (HAS_IOMMU,),
    "XEN_DOMAIN_PAGING_MODE": (PAGING_MODE,),
    "IOMMUF_rw": (ORDER_BITS,),
}

CLAIMS = (
    GET_PAGE,
    PREEMPTION,
    PAUSED,
    OTHERS_PAUSED,
    VALID,
    FLUSHED,
    ONE_MORE_TYPE_REFERENCE,
    VALIDATED_TESTED,
    VALIDATED_SET,
    ENTRY_L2,
    ENTRY_L3,
    ENTRY_L4,
    CR3,
    CLEANUP,
    RETYPE,
    PAGE_TO_PDX,
    WRITABLE,
    SPECIAL,
    OWNER,
    UNLOCK,
    COUNT,
    ONE_MORE_REFERENCE,
    SAME_TYPE,
    DESCRIPTORS,
    PARTIAL,
    ADJUST,
    ADJUST_USER,
    DOMAIN_INFO,
    REAL_DOMAIN,
)
VALUES["XEN_PDX_TABLE_MASK"] = (VALID_BY_OFFSETS, PDX_TO_MFN)
for _claim in CLAIMS:
    for _item in sorted(_claim.items):
        VALUES[_item] = (*VALUES.get(_item, ()), _claim)

# Field of struct page_info to the value that says where it is.
PAGE_INFO_FIELDS = {
    "count_info": "XEN_PAGE_INFO_COUNT_INFO",
    "type_info": "XEN_PAGE_INFO_TYPE_INFO",
    "owner": "XEN_PAGE_INFO_OWNER",
    "": "XEN_PAGE_INFO_SIZE",
}


@dataclass(frozen=True)
class Declared:
    """A symbol of Xen: how it must be declared, and code that shows how it is used.

    The declaration is compared word for word, since types leave few traces in a binary: whoever
    changes one changes it in two places, having looked.
    """

    declaration: str
    witnesses: tuple[Proof, ...]
    size: int | None = None  # of a variable


SYMBOLS: dict[str, Declared] = {
    "hardware_domain": Declared(
        "extern struct domain *hardware_domain",
        (Witness("iommu_map", "cmp {_}, qword ptr [hardware_domain]\nje {_}"),),
        size=8,
    ),
    "max_page": Declared(
        "extern u64 max_page",
        (VALID,),
        size=8,
    ),
    "max_pdx": Declared(
        "extern u64 max_pdx",
        (Witness("init_frametable", "mov {_}, qword ptr [max_pdx]"),),
        size=8,
    ),
    "pdx_group_valid": Declared("extern u64 pdx_group_valid[]", (VALID,), size=65536 // 8),
    "pfn_hole_mask": Declared("extern u64 pfn_hole_mask", (VALID_BY_MASKS,), size=8),
    "irq_stat": Declared("extern u8 irq_stat[]", (PREEMPTION,), size=256 << 7),
    "pfn_pdx_bottom_mask": Declared("extern u64 pfn_pdx_bottom_mask", (VALID_BY_MASKS,), size=8),
    "pfn_top_mask": Declared("extern u64 pfn_top_mask", (VALID_BY_MASKS,), size=8),
    "pfn_pdx_hole_shift": Declared("extern u32 pfn_pdx_hole_shift", (VALID_BY_MASKS,), size=4),
    "__mfn_valid": Declared("bool __mfn_valid(u64 mfn)", (VALID,)),
    "pfn_bases": Declared("extern u64 pfn_bases[]", (VALID_BY_OFFSETS,), size=64 * 8),
    "pdx_region_size": Declared("extern u64 pdx_region_size", (VALID_BY_OFFSETS,), size=8),
    "pfn_index_shift": Declared("extern u32 pfn_index_shift", (VALID_BY_OFFSETS,), size=4),
    "pfn_pdx_lookup": Declared("extern u64 pfn_pdx_lookup[]", (VALID_BY_OFFSETS,), size=64 * 8),
    "pdx_index_shift": Declared("extern u32 pdx_index_shift", (PDX_TO_MFN,), size=4),
    "pdx_pfn_lookup": Declared("extern u64 pdx_pfn_lookup[]", (PDX_TO_MFN,), size=64 * 8),
    "get_page": Declared(
        "bool get_page(struct page_info *page, const struct domain *d)",
        (GET_PAGE,),
    ),
    "put_page": Declared("void put_page(struct page_info *page)", (COUNT,)),
    "get_page_type": Declared(
        "int get_page_type(struct page_info *page, unsigned long type)",
        (
            SAME_TYPE,
            Witness(
                "get_page_type",
                "xor edx, edx\ncall _get_page_type\ntest eax, eax\nsete al\nmovzx eax, al",
            ),
        ),
    ),
    "put_page_type": Declared(
        "void put_page_type(struct page_info *page)",
        (Witness("put_page_type", "xor edx, edx\nxor esi, esi\njmp _put_page_type"),),
    ),
    "page_lock_unsafe": Declared(
        "int page_lock_unsafe(struct page_info *page)",
        (LOCK, Witness("page_lock_unsafe", "mov eax, 1\njmp __x86_return_thunk\nxor eax, eax")),
    ),
    "map_domain_page": Declared(
        "void *map_domain_page(u64 mfn)",
        (CLEARED, GUEST_L1E),
    ),
    "unmap_domain_page": Declared(
        "void unmap_domain_page(const void *va)",
        (CLEARED,),
    ),
    "map_guest_l1e": Declared(
        "u64 *map_guest_l1e(unsigned long va, u64 *mfn)",
        (GUEST_L1E,),
    ),
    "paging_invlpg": Declared("void paging_invlpg(struct vcpu *v, unsigned long va)", (FLUSHED,)),
    "page_unlock": Declared("void page_unlock(struct page_info *page)", (UNLOCK,)),
    "iommu_map": Declared(
        "long iommu_map(struct domain *d, u64 dfn, u64 mfn, unsigned long page_count, "
        "u32 flags, u32 *flush_flags)",
        (
            RETYPE,
            Witness(
                "iommu_legacy_map",
                "lea r9, [rsp + {#}]\nmov dword ptr [rsp + {#}], 0\ncall iommu_map",
            ),
            ORDER_BITS,
            MAPPING_FAILS,
        ),
    ),
    "iommu_unmap": Declared(
        "long iommu_unmap(struct domain *d, u64 dfn, unsigned long page_count, u32 flags, u32 *flush_flags)",
        (
            Witness(
                "iommu_legacy_unmap",
                """
                xor ecx, ecx
                ...
                lea r8, [rsp + {#}]
                mov dword ptr [rsp + {#}], 0
                call iommu_unmap
                """,
            ),
            Witness("iommu_unmap", "movsxd rax, {_}"),
        ),
    ),
    "iommu_iotlb_flush_all": Declared(
        "int iommu_iotlb_flush_all(struct domain *d, u32 flush_flags)",
        (MAPPING_FLUSHED,),
    ),
    "vzalloc": Declared("void *vzalloc(size_t size)", (MAPPED_CLEAR,)),
    "vfree": Declared("void vfree(void *va)", (Witness("vfree", "test rdi, rdi\nje {_}\n...\ncall {_}"),)),
    "_xmalloc": Declared(
        "void *_xmalloc(unsigned long size, unsigned long align)",
        (
            Witness("_xmalloc", "test rdi, rdi\nje {_}\njmp _xmalloc.part.0"),
            ALLOCATED,
        ),
    ),
    "xfree": Declared("void xfree(void *p)", (Witness("xfree", "test rdi, rdi\nje {_}\n...\ncmp rdi, {_}"),)),
    "copy_from_guest_pv": Declared(
        "unsigned int copy_from_guest_pv(void *to, const void *from, unsigned int len)",
        (COPIED_FROM, NOT_COPIED_FROM),
    ),
    "copy_to_guest_pv": Declared(
        "unsigned int copy_to_guest_pv(void *to, const void *from, unsigned int len)",
        (COPIED_TO, NOT_COPIED_TO),
    ),
    "printk": Declared(
        "void printk(const char *format, ...)",
        (Witness("printk", "mov dword ptr [rsp], 8\n...\ncall {_}"),),
    ),
    "revert_payload": Declared(
        "int revert_payload(struct payload *payload)",
        (
            Witness(
                "revert_payload",
                """
                mov {payload}, rdi
                ...
                call arch_livepatch_quiesce
                mov {result}, eax
                """,
            ),
            Witness("revert_payload", "call arch_livepatch_revive\n...\nmov eax, {_}"),
        ),
    ),
    "domain_pause_except_self": Declared(
        "int domain_pause_except_self(struct domain *d)",
        (PAUSED, OTHERS_PAUSED, PAUSE_AGAIN),
    ),
    "domain_unpause_except_self": Declared(
        "void domain_unpause_except_self(struct domain *d)",
        (
            Witness(
                "domain_unpause_except_self",
                """
                mov {d}, rdi
                mov {stack}, rsp
                or {stack}, {XEN_STACK_MASK}
                mov {current}, qword ptr [{stack} - {XEN_STACK_CURRENT}]
                cmp qword ptr [{current} + {XEN_VCPU_DOMAIN}], rdi
                je {_}
                """,
            ),
            Witness(
                "domain_unpause_except_self",
                """
                cmp {current}, {v}
                je {_}
                lock dec dword ptr [{v} + {#}]
                jne {_}
                """,
            ),
        ),
    ),
}

# The symbols that only some families of versions declare, and what must be seen with each set of them.
PDX: dict[frozenset[str], Claim] = {
    frozenset({"pfn_hole_mask", "pfn_pdx_bottom_mask", "pfn_top_mask", "pfn_pdx_hole_shift"}): VALID_BY_MASKS,
    frozenset(
        {
            *("pfn_bases", "pdx_region_size", "pfn_index_shift", "pfn_pdx_lookup"),
            *("pdx_index_shift", "pdx_pfn_lookup"),
        }
    ): VALID_BY_OFFSETS,
    frozenset(): VALID_WITHOUT_HOLES,
}
FAMILY_SYMBOLS = frozenset[str]().union(*PDX)
# The values that only some families have.
FAMILY_VALUES = frozenset({"XEN_PDX_TABLE_MASK"})

# livepatch.h: 13 words of 8 bytes an entry, the old address in the third.
FUNC_ENTRY = Witness(
    "revert_payload",
    """
    lea {three}, [{index} + {index}*2]
    lea {thirteen}, [{index} + {three}*4]
    ...
    lea {func}, [{_} + {thirteen}*8]
    ...
    cmp qword ptr [{func} + 0x10], 0
    """,
    """
    imul {func}, {index}, 0x68
    add {func}, qword ptr [{_}]
    ...
    cmp qword ptr [{func} + 0x10], 0
    """,
)

# Who asks for device mappings: typing (the pages payload.c skips), grants of other domains' pages,
# HVM page tables, reserved regions, memory that appears. Another caller would need a new look. A compiler may
# have put what maps grants into the hypercall itself, whose other operations are then not told from it.
IOMMU_CALLERS = {
    "_get_page_type",
    "cleanup_page_mappings",
    "clear_identity_p2m_entry",
    "do_grant_table_op",
    "ept_set_entry",
    "gnttab_map_grant_ref",
    "memory_add",
    "p2m_pt_set_entry",
    "set_identity_p2m_entry",
    "unmap_common.constprop.0",
}


# domain_kill gives 0 for a domain that was dead before, and else only behind the end of all that
# the domain had; the toolstack's call is made again for as long as it gives -ERESTART.
DEATH = (
    Claim(
        "domain_kill",
        To(RETURN),
        lambda way, _: [
            way.calls_nothing,
            low(way.result) == 0,
            way.decided_by(way.argument(0), lambda dying: dying != 0, lambda dying: dying != DOMDYING_DYING),
        ],
    ),
    Claim(
        "domain_kill",
        To(STORE),
        lambda way, _: [
            way.size == 4,
            way.value == DOMDYING_DEAD,
            way.inside(way.address, way.argument(0)),
            way.called("domain_relinquish_resources").arguments[0] == way.argument(0),
            way.decided(low(way.called("domain_relinquish_resources").result) == 0),
            way.called("cpupool_move_domain").arguments[0] == way.argument(0),
        ],
    ),
    Claim(
        "do_domctl",
        To(CALL, "hypercall_create_continuation"),
        lambda way, _: [
            way.decided(low(way.called("domain_kill").result) == low(z3.BitVecVal(-ERESTART, 64))),
        ],
        behind=To(CALL, "domain_kill"),
    ),
)
DEATH_CALLERS = {"do_domctl"}
