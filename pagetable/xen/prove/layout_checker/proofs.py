# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The proof of every item that layout.h may have."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from .witness import Witness

# One look at everything that is found from the stack pointer: Xen asks whether the running vcpu
# of an HVM domain has events pending, beside whether this CPU has softirqs pending.
PREEMPTION = Witness(
    "_get_page_type",
    """
    mov {stack}, rsp
    lea {stat}, [irq_stat]
    or {stack}, {XEN_STACK_MASK}
    ...
    mov e{cpu}, dword ptr [{stack} - {XEN_STACK_PROCESSOR_ID}]
    mov rdi, qword ptr [{stack} - {XEN_STACK_CURRENT}]
    shl r{cpu}, {XEN_IRQ_STAT_SHIFT}
    mov {_}, dword ptr [{stat} + r{cpu}]
    mov {domain}, qword ptr [rdi + {XEN_VCPU_DOMAIN}]
    test byte ptr [{domain} + {XEN_DOMAIN_OPTIONS}], {XEN_DOMAIN_OPTION_HVM}
    je {_}
    ...
    call hvm_local_events_need_delivery
    """,
)

# The last reference to a writable page goes: its device mapping goes too, in a PV domain whose
# IOMMU follows page types.
CLEANUP = Witness(
    "cleanup_page_mappings",
    """
    cmp byte ptr [{domain} + {XEN_DOMAIN_NEED_SYNC}], 0
    je {_}
    test byte ptr [{domain} + {XEN_DOMAIN_OPTIONS}], {XEN_DOMAIN_OPTION_HVM}
    jne {_}
    lfence
    ...
    mov edx, 1
    ...
    mov rdi, {domain}
    ...
    call iommu_legacy_unmap
    """,
)

# The same when a type changes, with the flags for the device mapping that comes back. The compiler sets the
# arguments in any order, and may keep a register on the stack before the call.
RETYPE = Witness(
    "_get_page_type",
    *(
        "\n".join(
            (
                "cmp byte ptr [{domain} + {XEN_DOMAIN_NEED_SYNC}], 0",
                "je {_}",
                "test byte ptr [{domain} + {XEN_DOMAIN_OPTIONS}], {XEN_DOMAIN_OPTION_HVM}",
                "jne {_}",
                "lfence",
                "...",
                *arguments,
                *kept,
                "call iommu_legacy_map",
            )
        )
        for arguments in itertools.permutations(
            ("mov r8d, {IOMMUF_rw}", "mov ecx, 1", "mov rdx, rsi"),
        )
        for kept in ((), ("mov qword ptr [rsp], {_}",))
    ),
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

HAS_IOMMU = Witness(
    "iommu_map",
    """
    test byte ptr [rdi + {XEN_DOMAIN_OPTIONS}], {XEN_DOMAIN_OPTION_IOMMU}
    je {_}
    """,
)

# struct page_info * to PDX to frame number, and the type of the page.
PAGE_TO_PDX = Witness(
    "cleanup_page_mappings",
    """
    movabs {index}, {XEN_FRAME_TABLE:negated}
    ...
    add {index}, rdi
    ...
    mov {_}, qword ptr [rdi + {XEN_PAGE_INFO_TYPE_INFO}]
    sar {index}, {XEN_PAGE_INFO_SIZE:log2}
    """,
    """
    movabs {index}, {XEN_FRAME_TABLE:negated}
    ...
    add {index}, rdi
    ...
    sar {index}, {XEN_PAGE_INFO_SIZE:log2}
    ...
    mov {_}, qword ptr [rdi + {XEN_PAGE_INFO_TYPE_INFO}]
    """,
)

WRITABLE = Witness(
    "cleanup_page_mappings",
    """
    mov {type}, qword ptr [rdi + {XEN_PAGE_INFO_TYPE_INFO}]
    ...
    movabs {writable}, {PGT_writable_page}
    mov {masked}, {type}
    and {masked}, {writable}
    cmp {masked}, {writable}
    je {_}
    """,
    """
    movabs {writable}, {PGT_writable_page}
    ...
    mov {type}, qword ptr [rdi + {XEN_PAGE_INFO_TYPE_INFO}]
    mov {cleared}, {type}
    not {cleared}
    test {cleared}, {writable}
    je {_}
    """,
)

# A page that is Xen's, or none of the domain's allocation, keeps its type.
SPECIAL = Witness(
    "cleanup_page_mappings",
    """
    movabs {special}, {PGC_special}
    and {special}, qword ptr [{_} + {XEN_PAGE_INFO_COUNT_INFO}]
    jne {_}
    """,
)

# The lock bit goes together with one reference: the addend is -(1 | PGT_locked).
UNLOCK = Witness(
    "page_unlock",
    """
    mov {old}, qword ptr [rdi + {XEN_PAGE_INFO_TYPE_INFO}]
    ...
    movabs {addend}, {PGT_locked:complement}
    ...
    lea {new}, [{old} + {addend}]
    ...
    lock cmpxchg qword ptr [rdi], {new}
    """,
    """
    mov {old}, qword ptr [rdi + {XEN_PAGE_INFO_TYPE_INFO}]
    lea {word}, [rdi + {XEN_PAGE_INFO_TYPE_INFO}]
    movabs {addend}, {PGT_locked:complement}
    ...
    lea {new}, [{old} + {addend}]
    mov {_}, {old}
    lock cmpxchg qword ptr [{word}], {new}
    """,
)

OWNER = Witness(
    "get_page",
    """
    mov e{owner}, dword ptr [rbx + {XEN_PAGE_INFO_OWNER}]
    test e{owner}, e{owner}
    je {_}
    movabs {map}, {XEN_DIRECTMAP}
    shl r{owner}, {XEN_PAGE_SHIFT}
    lea {domain}, [r{owner} + {map}]
    cmp {_}, {domain}
    """,
    """
    mov e{owner}, dword ptr [rbx + {XEN_PAGE_INFO_OWNER}]
    test e{owner}, e{owner}
    je {_}
    movabs {map}, {XEN_DIRECTMAP}
    mov {copy}d, e{owner}
    mov r{owner}, {copy}
    shl r{owner}, {XEN_PAGE_SHIFT}
    add r{owner}, {map}
    cmp {_}, r{owner}
    """,
    """
    mov e{owner}, dword ptr [rbx + {XEN_PAGE_INFO_OWNER}]
    test e{owner}, e{owner}
    je {_}
    movabs {map}, {XEN_DIRECTMAP}
    mov {copy}d, e{owner}
    mov r{owner}, {copy}
    shl r{owner}, {XEN_PAGE_SHIFT}
    lea {domain}, [r{owner} + {map}]
    cmp {_}, {domain}
    """,
)

COUNT = Witness(
    "put_page",
    """
    mov {old}, qword ptr [rdi + {XEN_PAGE_INFO_COUNT_INFO}]
    lea {count}, [rdi + {XEN_PAGE_INFO_COUNT_INFO}]
    lea {new}, [{old} - 1]
    mov rax, {old}
    lock cmpxchg qword ptr [{count}], {new}
    """,
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

SAME_TYPE = Witness(
    "_get_page_type",
    """
    movabs {mask}, {PGT_type_mask}
    ...
    mov {wanted}, rsi
    ...
    mov {old}, qword ptr [rdi + {XEN_PAGE_INFO_TYPE_INFO}]
    ...
    mov {type}, {old}
    mov {_}, {old}
    and {type}, {mask}
    ...
    cmp {wanted}, {type}
    jne {_}
    """,
    """
    mov {wanted}, rsi
    ...
    mov {old}, qword ptr [rdi + {XEN_PAGE_INFO_TYPE_INFO}]
    ...
    movabs {type}, {PGT_type_mask}
    mov {_}, {old}
    and {type}, {old}
    ...
    cmp {wanted}, {type}
    jne {_}
    """,
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
DESCRIPTORS = Witness(
    "_get_page_type",
    """
    movabs {type}, {PGT_seg_desc_page}
    cmp {_}, {type}
    jne {_}
    mov rdi, {_}
    call validate_segdesc_page
    """,
    """
    movabs {type}, {PGT_seg_desc_page}
    cmp {_}, {type}
    jne {_}
    mov rdi, {_}
    mov qword ptr [rsp], {_}
    call validate_segdesc_page
    """,
)

# A reference that is held already is not taken again.
PARTIAL = Witness(
    "get_page_and_type_from_mfn",
    """
    test {_}, {PTF_partial_set}
    jne {_}
    call __mfn_valid
    """,
    """
    test {_}, {PTF_partial_set}
    jne {_}
    mov {_}, ecx
    call __mfn_valid
    """,
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

# mod_l1_entry(): a new entry gets the bits of the guest's kernel or user, and is then compared
# with the old one; either of the two comes first.
ADJUST = Witness(
    "mod_l1_entry",
    *(
        f"""
        test {{_}}, 4
        jne {{_}}
        movabs {{bits}}, {{XEN_L1_KERNEL_BITS}}
        or {{new}}, {{bits}}
        ...
        mov {{user}}, {{new}}
        or {{user}}, {{#}}
        and {{_}}, 0x1000
        cmove {{new}}, {{user}}
        movabs {{mask}}, {{XEN_L1_REVALIDATED}}
        mov {{changed}}, {first}
        xor {{changed}}, {second}
        test {{changed}}, {{mask}}
        je {{_}}
        """
        for first, second in (("{_}", "{new}"), ("{new}", "{_}"))
    ),
    """
    and {_}, 4
    jne {_}
    movabs {bits}, {XEN_L1_KERNEL_BITS}
    or {new}, {bits}
    movabs {mask}, {XEN_L1_REVALIDATED}
    mov {changed}, {_}
    xor {changed}, {new}
    test {changed}, {mask}
    je {_}
    """,
)

# The bits of the user are for an entry that does not have those of the kernel: bit 52 of an entry,
# bit 12 of its flags.
ADJUST_USER = Witness(
    "mod_l1_entry",
    """
    mov {user}, {new}
    or {user}, {XEN_L1_USER_BITS}
    and {_}, 0x1000
    cmove {new}, {user}
    """,
    """
    bt {new}, 0x34
    jb {_}
    or {new}, {XEN_L1_USER_BITS}
    jmp {_}
    """,
)

# What the toolstack gets about a domain begins with its id.
DOMAIN_INFO = Witness(
    "getdomaininfo",
    """
    mov {d}, rdi
    ...
    movzx eax, word ptr [{d}{XEN_DOMAIN_ID:plus}]
    ...
    mov word ptr [rsi], ax
    """,
    """
    mov {d}, rdi
    ...
    rep stosq qword ptr [rdi], rax
    movzx eax, word ptr [{d}{XEN_DOMAIN_ID:plus}]
    ...
    mov word ptr [rsi], ax
    """,
)

# The ids above it are those of Xen's own domains, which have nothing to set up here.
REAL_DOMAIN = Witness(
    "iommu_domain_init",
    """
    cmp word ptr [{d}{XEN_DOMAIN_ID:plus}], {XEN_DOMID_LAST}
    ja {_}
    """,
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

VALUES: dict[str, tuple[Witness, ...]] = {
    "XEN_STACK_MASK": (PREEMPTION,),
    "XEN_STACK_CURRENT": (PREEMPTION,),
    "XEN_STACK_PROCESSOR_ID": (PREEMPTION,),
    "XEN_VCPU_DOMAIN": (PREEMPTION,),
    "XEN_VCPU_OLD_GUEST_TABLE": (OLD_TABLE,),
    "XEN_IRQ_STAT_SHIFT": (PREEMPTION,),
    "XEN_DOMAIN_ID": (DOMAIN_INFO, REAL_DOMAIN),
    "XEN_DOMID_LAST": (REAL_DOMAIN,),
    "XEN_DOMAIN_OPTIONS": (PREEMPTION, CLEANUP, RETYPE, HAS_IOMMU),
    "XEN_DOMAIN_OPTION_HVM": (PREEMPTION, CLEANUP, RETYPE),
    "XEN_DOMAIN_OPTION_IOMMU": (HAS_IOMMU,),
    "XEN_DOMAIN_NEED_SYNC": (CLEANUP, RETYPE),
    "XEN_DOMAIN_PAGING_MODE": (PAGING_MODE,),
    "XEN_DIRECTMAP": (OWNER,),
    "XEN_PAGE_SHIFT": (OWNER,),
    "XEN_L1_KERNEL_BITS": (ADJUST,),
    "XEN_L1_USER_BITS": (ADJUST_USER,),
    "XEN_L1_REVALIDATED": (ADJUST,),
    "XEN_FRAME_TABLE": (PAGE_TO_PDX,),
    "XEN_PAGE_INFO_SIZE": (PAGE_TO_PDX,),
    "XEN_PAGE_INFO_COUNT_INFO": (COUNT,),
    "XEN_PAGE_INFO_TYPE_INFO": (PAGE_TO_PDX, WRITABLE, ONE_MORE_TYPE_REFERENCE),
    "XEN_PAGE_INFO_OWNER": (OWNER,),
    "PGC_special": (SPECIAL,),
    "PGT_locked": (UNLOCK,),
    "PGT_type_mask": (SAME_TYPE,),
    "PGT_l1_page_table": (ENTRY_L2,),
    "PGT_l2_page_table": (ENTRY_L3,),
    "PGT_l3_page_table": (ENTRY_L4,),
    "PGT_l4_page_table": (CR3,),
    "PGT_seg_desc_page": (DESCRIPTORS,),
    "PGT_writable_page": (WRITABLE,),
    "PGT_validated": (VALIDATED_TESTED, VALIDATED_SET),
    "PGT_count_mask": (ONE_MORE_TYPE_REFERENCE,),
    "PTF_partial_set": (PARTIAL,),
    "IOMMUF_rw": (RETYPE, ORDER_BITS),
}

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
    witnesses: tuple[Witness, ...]
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
        (
            OWNER,
            Witness(
                "get_page",
                "mov {d}, rsi\n...\nmov {page}, rdi",
                "mov {page}, rdi\nmov {d}, rsi",
            ),
            Witness("get_page", "mov eax, 1\npop {_}\npop {_}\njmp __x86_return_thunk"),
        ),
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
        (
            Witness(
                "do_mmu_update",
                "mov rdi, {_}\ncall map_domain_page\nmov qword ptr [rsp + {#}], rax",
                """
                mov rdi, {frame}
                call map_domain_page
                mov qword ptr [rsp + {#}], {frame}
                mov {_}, qword ptr [rsp + {#}]
                mov qword ptr [rsp + {#}], rax
                """,
                """
                mov rdi, qword ptr [rsp + {#}]
                mov dword ptr [rsp + {slot}], {kept}
                call map_domain_page
                mov {kept}, dword ptr [rsp + {slot}]
                mov qword ptr [rsp + {#}], rax
                """,
            ),
        ),
    ),
    "unmap_domain_page": Declared(
        "void unmap_domain_page(const void *va)",
        (
            Witness(
                "do_mmu_update",
                "mov rdi, rax\ncall unmap_domain_page",
                "test rdi, rdi\nje {_}\n...\ncall unmap_domain_page",
            ),
        ),
    ),
    "map_guest_l1e": Declared(
        "u64 *map_guest_l1e(unsigned long va, u64 *mfn)",
        (
            Witness(
                "__do_update_va_mapping",
                """
                mov rdi, qword ptr [rsp]
                lea rsi, [rsp + {#}]
                call map_guest_l1e
                mov {_}, rax
                test rax, rax
                je {_}
                mov rdi, qword ptr [rsp + {#}]
                """,
                """
                mov rdi, qword ptr [rsp]
                lea rsi, [rsp + {slot}]
                call map_guest_l1e
                mov {_}, rax
                test rax, rax
                je {_}
                movabs {_}, {#}
                mov rdi, qword ptr [rsp + {slot}]
                """,
            ),
            Witness("map_guest_l1e", "mov qword ptr [rsi], rdi\ncall map_domain_page\nadd rax, {_}"),
        ),
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
            Witness(
                "domain_pause_except_self",
                """
                mov {d}, rdi
                mov {stack}, rsp
                or {stack}, {XEN_STACK_MASK}
                mov {current}, qword ptr [{stack} - {XEN_STACK_CURRENT}]
                cmp qword ptr [{current} + {XEN_VCPU_DOMAIN}], rdi
                je {_}
                mov esi, 1
                call _domain_pause
                """,
            ),
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
FAMILY_SYMBOLS = frozenset({"pfn_pdx_bottom_mask", "pfn_top_mask", "pfn_pdx_hole_shift"})
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
