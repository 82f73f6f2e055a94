# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The groups of functions that are counted together: the parts of the PV tax.

Invariant: every instruction is in exactly one group, so that groups add up to the total. The group is that of
the innermost function of the stack that any group names, which includes its callees; without one, it is the
rest of the space.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

Space = Literal["xen", "kernel", "user"]
SPACES: tuple[Space, ...] = ("xen", "kernel", "user")

# Prefixes of names: a payload or a module, and a payload's prefix of a replaced function.
_OWNER = r"(?:\w+:)?(?:new_|original_)?"
# Suffixes of parts that the compiler splits off a function.
_SPLIT = r"(?:\.(?:isra|constprop|part|cold)(?:\.\d+)?)*"


@dataclass(frozen=True)
class Group:
    """Functions by name; ``functions`` are patterns for whole names.

    With ``alone`` the group has only their own instructions, not those of their callees: they are at the
    bottom of every stack.
    """

    name: str
    space: Space
    functions: tuple[str, ...]
    alone: bool = False
    pattern: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pattern", re.compile(f"{_OWNER}(?:{'|'.join(self.functions)}){_SPLIT}"))


GROUPS = (
    Group("pin: validation", "xen", ("_get_page_type", "zero_run_promote_l[1-4]")),
    Group(
        "unpin: devalidation",
        "xen",
        ("devalidate_page", "_put_page_type", "zero_run_demote_l[1-4]"),
    ),
    Group("do_mmu_update", "xen", ("do_mmu_update",)),
    Group(
        "entry and exit",
        "xen",
        (
            *("(?:lstar|cstar|sysenter|int80|int82)_.*", r"\[stub\]", "pv_hypercall", "entry_.*"),
            *("restore_all_.*", "iret_exit_to_guest", "test_.*_events", "process_.*", "switch_to_kernel"),
            *(
                "create_bounce_frame",
                "handle_exception.*",
                # Xen 4.18 gave them new names.
                "page_fault|entry_PF",
                "general_protection|entry_GP",
                "common_interrupt",
            ),
            *("ret_from_intr", "continue_pv_domain", "exception_with_ints_disabled"),
            *("do_iret", "do_page_fault", "pv_inject_event", "toggle_guest_(?:mode|pt)"),
        ),
        alone=True,
    ),
    Group("IOMMU", "xen", ("iommu_.*", "semi_writable_.*")),
    Group("remaps", "xen", ("(?:__)?do_update_va_mapping(?:_otherdomain)?",)),
    Group(
        "emulation of trapped writes",
        "xen",
        ("pv_ro_page_fault", "ptwr_.*", "mmio_ro_.*"),
    ),
    Group("privileged instructions", "xen", ("pv_emulate_privileged_op", "do_general_protection")),
    Group("exits of a PVH guest", "xen", ("(?:svm|vmx)_(?:asm|vmexit|vmenter)_.*", "hvm_.*")),
    Group("mmuext_op", "xen", ("do_mmuext_op",)),
    Group("multicall", "xen", ("do_multicall", "(?:arch|pv)_do_multicall_call")),
    Group(
        "scheduling, timers, events",
        "xen",
        (
            *("schedule", "context_switch", "do_softirq", "do_IRQ", "smp_.*_interrupt", "timer_.*"),
            *("do_sched_op", "do_vcpu_op", "do_event_channel_op", "do_set_timer_op", "evtchn_.*"),
            *("do_stack_switch", "do_set_segment_base", "do_fpu_taskswitch", "do_device_not_available"),
        ),
    ),
    Group(
        "pgd walk",
        "kernel",
        (
            *("__xen_pgd_(?:walk|pin|unpin)", "xen_(?:pin|unpin)_page", "xen_pte_(?:lock|unlock)"),
            "pvmmu_pgd_walk",
        ),
    ),
    Group(
        "entry conversion (val, make)",
        "kernel",
        (
            "(?:__raw_callee_save_)?xen_(?:make_)?(?:pte|pmd|pud|p4d|pgd)(?:_val)?",
            *("pte_pfn_to_mfn", "mfn_to_pfn", "get_phys_to_machine", "pvmmu_(?:val|make)"),
        ),
    ),
    Group(
        "set_pte",
        "kernel",
        (
            "(?:__)?xen_set_(?:pte|pmd|pud|p4d)(?:_.*)?",
            *(
                "xen_extend_mmu_update",
                "xen_ptep_modify_prot_.*",
                "arbitrary_virt_to_machine",
                "pvmmu_(?:entry_)?set_pte",
            ),
        ),
    ),
    Group(
        "remaps and multicalls",
        "kernel",
        ("xen_mc_.*", "__xen_mc_entry", "xen_extend_mmuext_op", "xen_(?:alloc|release)_p.*", "xen_do_pin"),
    ),
    Group(
        "entry and exit of the kernel",
        "kernel",
        (
            *("(?:xen_)?entry_.*", "(?:xen_)?asm_.*", "xen_(?:iret|sysret64|hypercall.*)"),
            *("error_(?:entry|return)", "do_syscall_64", "ret_from_fork.*", "__switch_to_asm", "paranoid_.*"),
            *("syscall_return_via_sysret", "sync_regs", "fixup_bad_iret", "native_irq_return_iret"),
            *("common_interrupt_return", "xenpv_restore_regs_and_return_to_usermode", "xen_error_entry"),
            *(
                "syscall_(?:enter_from|exit_to)_user_mode.*",
                "exit_to_user_mode_prepare",
                "early_xen_iret_patch",
            ),
        ),
        alone=True,
    ),
    Group(
        "interrupts",
        "kernel",
        ("sysvec_.*", "xen_(?:pv_|hvm_)?evtchn_do_upcall", "common_interrupt", "__do_softirq"),
    ),
    Group("page faults", "kernel", ("exc_page_fault", "do_user_addr_fault")),
    Group("fork", "kernel", ("kernel_clone", "copy_process")),
    Group("exec", "kernel", ("do_execve.*", "bprm_execve")),
    Group("exit and wait", "kernel", ("do_exit", "do_group_exit", "do_wait", "kernel_wait4")),
)

REST: dict[Space, str] = {"xen": "other Xen", "kernel": "other kernel", "user": "user"}

# Retpolines and similar code belong to their callers.
_THUNK = re.compile(r"(?:__)?x86_(?:indirect|return)_.*|srso_.*|retbleed_.*|clear_bhb_loop|__fentry__")


@cache
def _named(space: Space, function: str) -> Group | None:
    found = (group for group in GROUPS if group.space == space and group.pattern.fullmatch(function))
    return next(found, None)


def group_of(space: Space, functions: Sequence[str]) -> str:
    """Return the group of the instructions of a stack, its outermost function first."""
    if space == "user":
        return REST["user"]
    innermost = True
    for function in reversed(functions):
        if _THUNK.fullmatch(function):
            continue
        group = _named(space, function)
        if group and (innermost or not group.alone):
            return group.name
        innermost = False
    return REST[space]


def names(space: Space) -> Iterable[str]:
    """Return the groups of a space in the order of the table, the rest last."""
    return (*(group.name for group in GROUPS if group.space == space), REST[space])
