// SPDX-License-Identifier: GPL-2.0-only
/*
 * The stock functions whose decisions the mechanisms repeat or rely on, in the forms that
 * were compared with ours. In a kernel in which one has another form, the mechanisms that
 * it concerns are left out: whoever tracks is told, and can take another back end.
 *
 * Which function is here for what:
 *
 *  all    __get_user_pages and SERIES_GUP_FAST: whoever writes through the kernel's own
 *         mapping gets the page from one of them, with these arguments; and
 *         folio_migrate_mapping, whose count of the references that mappings and
 *         caches hold is repeated (kernel_writes.c). __mmu_notifier_register: each
 *         subscription goes through it (secondary.c).
 *  dbit   fork, mprotect and clear_refs keep the dirty bits of entries, or move them
 *         to where they are looked for; writeback, which does not, can be told from
 *         fork (memory.c).
 *  epml   kthread_use_mm and kthread_unuse_mm call the function that is probed when the
 *         task has its new mm (switch.c).
 *
 * A form gets here after its source was read beside ours and the oracle has run on it.
 * /sys/class/misc/trapless_dirty/left_out shows the digest that is missing. None is of a
 * Xen PV guest, in which no mechanism works. Linux 6.12 is built by gcc 14 for Debian 13,
 * and by gcc 12 for Debian 12's backports.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kernel.h>

#include "known_functions.h"
#include "series_memory.h"
#include "tracking.h"

#if SERIES_IS(6, 1)
static const struct known_function known[] = {
	{ "all", "__get_user_pages", 0x03fb8a7ca5b72040 },
	{ "all", SERIES_GUP_FAST, 0x248ea7a146e0dbb9 },
	{ "all", SERIES_GUP_FAST, 0x002e8e6465800cac },	/* five levels */
	{ "all", "folio_migrate_mapping", 0xb07bebdb13cff633 },
	{ "all", "__mmu_notifier_register", 0x19c9e1a17c27eccd },
	{ "dbit", "copy_page_range", 0x2ec1dc9f7d6724f9 },
	{ "dbit", "change_protection", 0x6dd6c547b83c6fee },
	{ "dbit", "clear_refs_write", 0xd7492ad43fc223b7 },
	{ "dbit", "clear_refs_pte_range", 0x1d934eb64995fd23 },
	{ "dbit", "page_vma_mkclean_one.constprop.0", 0x2fd5c5736041393a },
	{ "epml", "kthread_use_mm", 0x888eca371c596cf3 },
	{ "epml", "kthread_unuse_mm", 0x01c62d54dc5a5f29 },
	{ "epml", "membarrier_update_current_mm", 0xdc987f8eb623e207 },
};
#elif SERIES_IS(6, 12)
static const struct known_function known[] = {
	{ "all", "__get_user_pages", 0x28ef77998b9af0aa },
	{ "all", "__get_user_pages", 0x83d9bc5d58ba4cb3 },	/* gcc 12 */
	{ "all", SERIES_GUP_FAST, 0x98856fb8e8a5f265 },
	{ "all", SERIES_GUP_FAST, 0xf491e1cd519e0a05 },	/* 6.12.118 */
	{ "all", SERIES_GUP_FAST, 0x7ab21694d96f5fe7 },	/* 6.12.118, -cpu max */
	{ "all", SERIES_GUP_FAST, 0x1072b3157273d76f },	/* gcc 12 */
	{ "all", SERIES_GUP_FAST, 0x4edddf168aae19c5 },	/* gcc 12, five levels */
	{ "all", SERIES_GUP_FAST, 0x623133e75f05e027 },	/* five levels */
	{ "all", "folio_migrate_mapping", 0x5729702a8016c5c7 },
	{ "all", "__mmu_notifier_register", 0x19160d15ecfb39d0 },
	{ "all", "__mmu_notifier_register", 0x964eb8685b10dc7b },	/* gcc 12 */
	{ "dbit", "copy_page_range", 0x5f364e72cbe24f71 },
	{ "dbit", "copy_page_range", 0x5b6d62affc62bdb6 },	/* gcc 12 */
	{ "dbit", "change_protection", 0x4e5549bc2efbe63d },
	{ "dbit", "change_protection", 0x49d25ce36793d2b2 },	/* gcc 12 */
	{ "dbit", "clear_refs_write", 0xd09441092272832e },
	{ "dbit", "clear_refs_write", 0xc42c6b49310b0b8f },	/* gcc 12 */
	{ "dbit", "clear_refs_pte_range", 0x8a00df33947d1046 },
	{ "dbit", "clear_refs_pte_range", 0x3d36b4684e57e664 },	/* gcc 12 */
	{ "dbit", "page_vma_mkclean_one.constprop.0", 0xa9f93da8ddcc9332 },
	{ "dbit", "page_vma_mkclean_one.constprop.0", 0x9f524e8537bba2d4 },	/* gcc 12 */
	{ "dbit", "down_write_killable", 0xc5b0e8f4223d051e },
	{ "epml", "kthread_use_mm", 0xa806938e45636c37 },
	{ "epml", "kthread_unuse_mm", 0x742ad5387e9ca2cc },
	{ "epml", "membarrier_update_current_mm", 0x6f4c0067347c8fe2 },
};
#endif

static struct left_out left_out[ARRAY_SIZE(known)];
static unsigned int left_out_count;

/**
 * tpd_known_check - leave out the mechanisms whose stock functions are not known
 *
 * Return: 0, or -ENOENT or -ENOMEM with nothing compared.
 */
int tpd_known_check(void)
{
	return known_functions_check(known, ARRAY_SIZE(known), left_out, &left_out_count);
}

/**
 * tpd_is_left_out - is a mechanism left out of this kernel?
 * @mechanism: its name
 */
bool tpd_is_left_out(const char *mechanism)
{
	return left_out_has(left_out, left_out_count, "all") ||
	       left_out_has(left_out, left_out_count, mechanism);
}

/* For sysfs. */
int tpd_left_out_show(char *buf)
{
	return left_out_emit(buf, left_out, left_out_count);
}
