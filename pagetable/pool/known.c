// SPDX-License-Identifier: GPL-2.0-only
/*
 * The stock functions that tables.c repeats, in the forms that were compared with it. In a
 * kernel in which one has another form, the levels that it concerns stay stock: tables of
 * theirs are neither served nor taken back.
 *
 * A form gets here after its source was read beside ours and the pool's tests have run on
 * it. /sys/kernel/trapless_pagetable/left_out shows the digest that is missing. Xen PV
 * and bare hardware have forms of their own: the kernel writes the calls of its
 * paravirt operations into the functions. Linux 6.12 is built by gcc 14 for Debian 13,
 * and by gcc 12 for Debian 12's backports.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kernel.h>
#include <linux/sysfs.h>

#include "known_functions.h"
#include "trapless.h"

static const struct known_function known[] = {
	{ "pte", "pte_alloc_one", 0x1512796ae758987d },
	{ "pte", "pte_alloc_one", 0x79bcc5730df7bf27 },	/* 6.12 */
	{ "pmd", "__pmd_alloc", 0x2a78e172e9b03890 },
	{ "pmd", "__pmd_alloc", 0xf07ace2f27ee7876 },	/* bare */
	{ "pmd", "__pmd_alloc", 0xd6f6cfcc07507ec8 },	/* 6.12 */
	{ "pmd", "__pmd_alloc", 0x37d9c9158fffd014 },	/* 6.12, gcc 12 */
	{ "pmd", "__pmd_alloc", 0x0b6ae01cc2bb3f68 },	/* 6.12, bare */
	{ "pmd", "__pmd_alloc", 0x7a8698d8bd93852a },	/* 6.12, gcc 12, bare */
	{ "pud", "__pud_alloc", 0xe43607f12d9ba56a },
	{ "pud", "__pud_alloc", 0x3665e165b73be4e7 },	/* bare */
	{ "pud", "__pud_alloc", 0xa43917281de8adea },	/* 6.12 */
	{ "pud", "__pud_alloc", 0xf0d274b40167c084 },	/* 6.12, gcc 12 */
	{ "pud", "__pud_alloc", 0xe28252e7cd0b0879 },	/* 6.12, bare */
	{ "pud", "__pud_alloc", 0x9875a80af9c80383 },	/* 6.12, gcc 12, bare */
	{ "pgd", "pgd_alloc", 0xf10e62d51912c2d8 },
	{ "pgd", "pgd_alloc", 0xea277962a82fbdc3 },	/* bare */
	{ "pgd", "pgd_alloc", 0x6b6b58f1f0355752 },	/* 6.12 */
	{ "pgd", "pgd_alloc", 0x1db7442d392c508a },	/* 6.12, gcc 12 */
	{ "pgd", "pgd_alloc", 0x3b53485c27d2cb80 },	/* 6.12, bare */
	{ "pgd", "pgd_alloc", 0xf8cd6720bc385737 },	/* 6.12, gcc 12, bare */
	{ "pgd", "pgd_free", 0x94733ee908e0b59a },
	{ "pgd", "pgd_free", 0x898e73a002ee9c0b },	/* bare */
	{ "pgd", "pgd_free", 0xcc82aa81c22f424a },	/* 6.12 */
	{ "pgd", "pgd_free", 0x17dd0b9e8c6e2f03 },	/* 6.12, bare */
	{ "pgd", "xen_pgd_alloc", 0x913fffd0233e581a },
	{ "pgd", "xen_pgd_alloc", 0x3195af9740638d07 },	/* bare */
	{ "pgd", "xen_pgd_alloc", 0x6d22b16e75da4251 },	/* 6.12 */
	{ "pgd", "xen_pgd_alloc", 0x247bcbb7ed12c598 },	/* 6.12, bare */
	{ "all", "free_page_and_swap_cache", 0xe38c5cfe5d188b48 },
	{ "all", "free_page_and_swap_cache", 0x36f86c55deed47c1 },	/* 6.12 */
	{ "bare", "___pte_free_tlb", 0x53d816207e180e43 },
	{ "bare", "___pte_free_tlb", 0x51789dcffa61e3b5 },	/* bare */
	{ "bare", "___pte_free_tlb", 0x604fc0df36735acb },	/* 6.12 */
	{ "bare", "___pte_free_tlb", 0x47326e0d1baaef14 },	/* 6.12, bare */
	{ "bare", "___pud_free_tlb", 0xc7781afecb89f59f },
	{ "bare", "___pud_free_tlb", 0xacf5c5ba2b01bb47 },	/* bare */
	{ "bare", "___pud_free_tlb", 0xae4050ca966fcf8c },	/* 6.12 */
	{ "bare", "___pud_free_tlb", 0x26ab067427db342a },	/* 6.12, bare */
};

static struct left_out left_out[ARRAY_SIZE(known)];
static unsigned int left_out_count;

/**
 * tpt_is_left_out - is a part left out of this kernel?
 * @part: a level's name, as in known[]
 */
bool tpt_is_left_out(const char *part)
{
	return left_out_has(left_out, left_out_count, part);
}

ssize_t tpt_left_out_show(char *buf)
{
	return left_out_emit(buf, left_out, left_out_count);
}

/**
 * tpt_known_check - leave out the levels whose stock functions are not known
 * @bare: as the parameter
 *
 * Return: 0, or -ENOENT after naming what is missing, or what no level can do
 * without.
 */
int tpt_known_check(bool bare)
{
	int rc = known_functions_check(known, ARRAY_SIZE(known), left_out,
				       &left_out_count);

	if (!rc && (tpt_is_left_out("all") || (bare && tpt_is_left_out("bare"))))
		rc = -ENOENT;
	return rc;
}
