# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The proof of every item that layout.h may have: claims about the flow of values, and passages.

What compilers write differently for the same source is a claim; what all wrote alike so far is a passage.
"""

from __future__ import annotations

from dataclasses import dataclass

import z3

from .claim import Claim, Demand, Here, To, Values, flags32, log2, low, u8, u16, u32, u64
from .ways import BRANCH, CALL, EXCHANGE, RETURN, STORE, stack_end
from .witness import Witness

Proof = Claim | Witness


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

# A domain that is not the caller's is paused as a whole.
PAUSED = Claim(
    "domain_pause_except_self",
    To(CALL, "_domain_pause"),
    lambda way, x: [
        way.passed(0) == way.argument(0),
        way.decided(u64(way.current(x) + x.XEN_VCPU_DOMAIN) != way.argument(0)),
    ],
    given={"XEN_STACK_MASK": PREEMPTION, "XEN_STACK_CURRENT": PREEMPTION},
)

# iommu_map's flags: the low six bits are replaced by the order of the mapping.
ORDER_BITS = Witness(
    "iommu_map",
    """
    mov e{flags}, dword ptr [rsp + {#}]
    ...
    and ecx, 0x3f
    ...
    or ecx, e{flags}
    call qword ptr [{_}]
    """,
)

# struct page_info * to PDX, from which Xen makes the frame number.
PAGE_TO_PDX = Claim(
    "cleanup_page_mappings",
    To(CALL, "iommu_legacy_unmap"),
    lambda way, x: [
        way.computed(way.argument(0) - x.XEN_FRAME_TABLE),
        way.computed((way.argument(0) - x.XEN_FRAME_TABLE) >> log2(x.XEN_PAGE_INFO_SIZE)),
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

ONE_MORE_TYPE_REFERENCE = Witness(
    "_get_page_type",
    """
    movabs {mask}, {PGT_count_mask}
    ...
    mov {old}, qword ptr [rdi + {XEN_PAGE_INFO_TYPE_INFO}]
    lea {new}, [{old} + 1]
    test {new}, {mask}
    je {_}
    """,
)

SAME_TYPE = Claim(
    "_get_page_type",
    To(EXCHANGE),
    lambda way, x: [way.decided(type_info(way.argument(0), x) & x.PGT_type_mask == way.argument(1))],
    given={"XEN_PAGE_INFO_TYPE_INFO": UNLOCK},
)

VALIDATED_TESTED = Witness(
    "_get_page_type",
    """
    lock cmpxchg qword ptr [{page} + {XEN_PAGE_INFO_TYPE_INFO}], {new}
    ...
    bt {new}, {PGT_validated:bit}
    jae {_}
    """,
)

VALIDATED_SET = Witness(
    "_get_page_type",
    """
    movabs {info}, {PGT_validated}
    or {info}, qword ptr [{page} + {XEN_PAGE_INFO_TYPE_INFO}]
    ...
    mov qword ptr [{page} + {XEN_PAGE_INFO_TYPE_INFO}], {info}
    """,
)

# Each level's entry takes a reference to a table of the level below.
ENTRY_L2 = Witness("get_page_from_l2e", "movabs rsi, {PGT_l1_page_table}\ncall get_page_and_type_from_mfn")
ENTRY_L3 = Witness(
    "get_page_from_l3e",
    "movabs rsi, {PGT_l2_page_table}\n...\ncall get_page_and_type_from_mfn",
)
ENTRY_L4 = Witness(
    "get_page_from_l4e",
    "movabs rsi, {PGT_l3_page_table}\n...\ncall get_page_and_type_from_mfn",
)
CR3 = Witness("new_guest_cr3", "movabs rsi, {PGT_l4_page_table}\ncall get_page_and_type_from_mfn")
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

# Frame number to PDX, and the bound on frame numbers.
MFN_TO_PDX = Witness(
    "__mfn_valid",
    """
    mov {top}, qword ptr [pfn_top_mask]
    mov ecx, dword ptr [pfn_pdx_hole_shift]
    and {top}, rdi
    and rdi, qword ptr [pfn_pdx_bottom_mask]
    shr {top}, cl
    or {top}, rdi
    """,
)

# The same where the frame table has an entry for each frame: the index of its group is no other.
MFN_IS_PDX = Witness(
    "__mfn_valid",
    """
    lfence
    shr rdi, 0x10
    bt dword ptr [pdx_group_valid], edi
    setb al
    """,
)

# A frame is valid only if it lies in no hole.
HOLE = Witness(
    "__mfn_valid",
    """
    and {_}, qword ptr [pfn_hole_mask]
    jne {_}
    """,
)

# And only if the bit of its group is set.
GROUP = Witness(
    "__mfn_valid",
    """
    shr r{pdx}, {XEN_PDX_GROUP_SHIFT}
    bt dword ptr [pdx_group_valid], e{pdx}
    setb al
    """,
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
    "XEN_PAGE_INFO_TYPE_INFO": (ONE_MORE_TYPE_REFERENCE,),
    "PGT_l1_page_table": (ENTRY_L2,),
    "PGT_l2_page_table": (ENTRY_L3,),
    "PGT_l3_page_table": (ENTRY_L4,),
    "PGT_l4_page_table": (CR3,),
    "PGT_validated": (VALIDATED_TESTED, VALIDATED_SET),
    "PGT_count_mask": (ONE_MORE_TYPE_REFERENCE,),
    "IOMMUF_rw": (ORDER_BITS,),
    "XEN_PDX_GROUP_SHIFT": (GROUP,),
}

CLAIMS = (
    GET_PAGE,
    PREEMPTION,
    PAUSED,
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
        (Witness("__mfn_valid", "cmp rdi, qword ptr [max_page]\njb {_}"),),
        size=8,
    ),
    "max_pdx": Declared(
        "extern u64 max_pdx",
        (Witness("init_frametable", "mov {_}, qword ptr [max_pdx]"),),
        size=8,
    ),
    "pdx_group_valid": Declared("extern u64 pdx_group_valid[]", (GROUP,), size=65536 // 8),
    "pfn_hole_mask": Declared("extern u64 pfn_hole_mask", (HOLE,), size=8),
    "irq_stat": Declared("extern u8 irq_stat[]", (PREEMPTION,), size=256 << 7),
    "pfn_pdx_bottom_mask": Declared("extern u64 pfn_pdx_bottom_mask", (MFN_TO_PDX,), size=8),
    "pfn_top_mask": Declared("extern u64 pfn_top_mask", (MFN_TO_PDX,), size=8),
    "pfn_pdx_hole_shift": Declared("extern u32 pfn_pdx_hole_shift", (MFN_TO_PDX,), size=4),
    "__mfn_valid": Declared(
        "bool __mfn_valid(u64 mfn)",
        (
            Witness("__mfn_valid", "cmp rdi, qword ptr [max_page]\njb {_}"),
            Witness("__mfn_valid", "setb al\njmp __x86_return_thunk"),
        ),
    ),
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
    "paging_invlpg": Declared(
        "void paging_invlpg(struct vcpu *v, unsigned long va)",
        (
            Witness(
                "__do_update_va_mapping",
                "mov rsi, qword ptr [rsp]\nmov rdi, {vcpu}\ncall paging_invlpg",
            ),
        ),
    ),
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
            Witness("iommu_map", "movsxd rax, {_}"),
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
        (
            Witness(
                "iommu_map",
                """
                mov rdi, {domain}
                mov esi, dword ptr [{flags}]
                call iommu_iotlb_flush_all
                test eax, eax
                """,
            ),
        ),
    ),
    "vzalloc": Declared(
        "void *vzalloc(size_t size)",
        (
            Witness(
                "vzalloc",
                """
                mov {size}, rdi
                ...
                call vmalloc_type
                mov {area}, rax
                ...
                call clear_page_sse2
                ...
                mov rax, {area}
                """,
            ),
        ),
    ),
    "vfree": Declared("void vfree(void *va)", (Witness("vfree", "test rdi, rdi\nje {_}\n...\ncall {_}"),)),
    "_xmalloc": Declared(
        "void *_xmalloc(unsigned long size, unsigned long align)",
        (
            Witness("_xmalloc", "test rdi, rdi\nje {_}\njmp _xmalloc.part.0"),
            Witness("_xmalloc.part.0", "mov e{least}, 0x10\n...\ncmp rsi, r{least}\ncmovae r{least}, rsi"),
        ),
    ),
    "xfree": Declared("void xfree(void *p)", (Witness("xfree", "test rdi, rdi\nje {_}\n...\ncmp rdi, {_}"),)),
    "copy_from_guest_pv": Declared(
        "unsigned int copy_from_guest_pv(void *to, const void *from, unsigned int len)",
        (
            Witness("copy_from_guest_pv", "mov ebx, edx\n...\nadd rax, rsi"),
            Witness("copy_from_guest_pv", "mov edx, ebx\npop rbx\njmp copy_from_guest_ll"),
            Witness("copy_from_guest_pv", "call memset\nmov eax, ebx"),
        ),
    ),
    "copy_to_guest_pv": Declared(
        "unsigned int copy_to_guest_pv(void *to, const void *from, unsigned int len)",
        (Witness("copy_to_guest_pv", "add rax, rdi\n...\njae {_}\njmp copy_to_guest_ll"),),
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
    # Of the caller's own domain the other CPUs, one after another under a lock that it only tries;
    # of another one all.
    "domain_pause_except_self": Declared(
        "int domain_pause_except_self(struct domain *d)",
        (
            PAUSED,
            Witness(
                "domain_pause_except_self",
                """
                call _spin_trylock
                test {tried}, {tried}
                je {_}
                ...
                cmp {current}, {v}
                je {_}
                lock inc dword ptr [{v} + {#}]
                mov rdi, {v}
                call vcpu_sleep_sync
                """,
                """
                call _spin_trylock
                test {tried}, {tried}
                je {_}
                ...
                cmp {v}, {current}
                je {_}
                lock inc dword ptr [{v} + {#}]
                mov rdi, {v}
                call vcpu_sleep_sync
                """,
            ),
            Witness("domain_pause_except_self", "call _domain_pause\n...\nxor eax, eax"),
            Witness("domain_pause_except_self", "mov eax, 0xffffffab"),
        ),
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
FAMILY_SYMBOLS = frozenset({"pfn_hole_mask", "pfn_pdx_bottom_mask", "pfn_top_mask", "pfn_pdx_hole_shift"})
PDX = {FAMILY_SYMBOLS: MFN_TO_PDX, frozenset[str](): MFN_IS_PDX}

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
# HVM page tables, reserved regions, memory that appears. Another caller would need a new look.
IOMMU_CALLERS = {
    "_get_page_type",
    "cleanup_page_mappings",
    "clear_identity_p2m_entry",
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
    Witness(
        "domain_kill",
        """
        mov eax, dword ptr [rdi + {#}]
        mov {d}, rdi
        test eax, eax
        je {_}
        cmp eax, 1
        je {_}
        xor eax, eax
        pop {_}
        pop {_}
        jmp __x86_return_thunk
        """,
    ),
    Witness(
        "domain_kill",
        """
        mov rdi, {d}
        call domain_relinquish_resources
        test eax, eax
        jne {_}
        ...
        call cpupool_move_domain
        ...
        call unmap_vcpu_info
        ...
        mov dword ptr [{d} + {#}], 2
        """,
        """
        mov rdi, {d}
        call domain_relinquish_resources
        test eax, eax
        jne {_}
        ...
        call cpupool_move_domain
        ...
        call unmap_guest_area
        ...
        call unmap_guest_area
        ...
        mov dword ptr [{d} + {#}], 2
        """,
    ),
    Witness(
        "do_domctl",
        """
        call domain_kill
        movsxd {_}, eax
        cmp eax, -0x55
        jne {_}
        ...
        call hypercall_create_continuation
        """,
        """
        call domain_kill
        xor {other}, {other}
        movsxd {_}, eax
        cmp eax, -0x55
        jne {_}
        ...
        call hypercall_create_continuation
        """,
        along="call domain_kill",
    ),
)
DEATH_CALLERS = {"do_domctl"}
