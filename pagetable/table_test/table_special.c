// SPDX-License-Identifier: GPL-2.0-only
/*
 * Frames outside the pool: Xen's, another domain's, devices', invalid ones, and
 * those of the running kernel.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>
#include <linux/sched/mm.h>

#include <asm/desc.h>
#include <asm/xen/hypervisor.h>

#include "table_test.h"

static unsigned long given;
module_param(given, ulong, 0444);
MODULE_PARM_DESC(given, "a frame of another domain (default: one past all memory)");

static u64 frames[TT_SPECIALS];

static bool is_ours(unsigned long mfn)
{
	unsigned long pfn = mfn_to_pfn_no_overrides(mfn);

	return pfn != ~0UL && pfn_to_mfn(pfn) == mfn;
}

/* The next frame from @mfn on that is not ours, going down or up. */
static u64 foreign(u64 mfn, int step)
{
	while (mfn > 0x200 && mfn < 0x10000000 && is_ours(mfn))
		mfn += step;
	return mfn;
}

static u64 frame_of(const void *address)
{
	return arbitrary_virt_to_machine((void *)address).maddr >> PAGE_SHIFT;
}

/* Looked up again for each run, and whenever the pool has other frames. */
void tt_special_init(void)
{
	pgd_t *pgd = current->mm->pgd;
	u64 l3 = native_pgd_val(pgd[pgd_index(PAGE_OFFSET)]);

	frames[TT_FOREIGN_HIGH] = foreign(0x7f000, -1);
	frames[TT_FOREIGN_LOW] = foreign(0x10000, 1);
	frames[TT_LOCAL_APIC] = 0xfee00;
	frames[TT_IO_APIC] = 0xfec00;
	frames[TT_HPET] = 0xfed00;
	frames[TT_PCI_CONFIG] = 0xb0000;
	frames[TT_IOMMU] = 0xfed90;
	frames[TT_PCI_HOLE] = 0xe0000;
	frames[TT_LOW_MEMORY] = 1;
	frames[TT_VGA] = 0xb8;
	frames[TT_NO_RAM] = 0x0fffffff;
	frames[TT_BEYOND] = 0x00400000;
	frames[TT_GIVEN] = given ?: 0x00400001;
	frames[TT_SHARED_INFO] = xen_start_info->shared_info >> PAGE_SHIFT;
	frames[TT_GDT] = frame_of(get_cpu_gdt_rw(0));
	frames[TT_LIVE_ROOT] = frame_of(pgd);
	frames[TT_LIVE_L3] = (l3 & TT_FRAME_MASK) >> PAGE_SHIFT;
}

u64 tt_special_frame(enum tt_special special)
{
	return frames[special];
}

int tt_special_find(u64 mfn)
{
	int special;

	for (special = 0; special < TT_SPECIALS; special++)
		if (frames[special] == mfn)
			return special;
	return -1;
}

bool tt_special_given(void)
{
	return given;
}
