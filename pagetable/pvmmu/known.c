// SPDX-License-Identifier: GPL-2.0-only
/*
 * The stock functions that the parts of this module repeat or stand before, in the
 * forms that were compared with ours. A part is left out of a kernel in which one
 * of its functions has another form: Debian's fixes change them too.
 *
 * A form gets here after its source was read beside ours and the part's tests have
 * run on it. /sys/kernel/trapless_pvmmu/left_out shows the digest that is missing.
 * Linux 6.12 is built by gcc 14 for Debian 13, and by gcc 12 for Debian 12's backports.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kernel.h>
#include <linux/sysfs.h>

#include "known_functions.h"
#include "pvmmu.h"
#include "series.h"

#if SERIES_IS(6, 1)
static const struct known_function known[] = {
	{ "walk", "__xen_pgd_walk", 0xf4c1243e794b6280 },
	{ "pin", "__xen_pgd_pin", 0x74a6c3814a3233aa },
	{ "pin", "__xen_pgd_unpin", 0x651cb4a3d3b4f45c },
	{ "pin", "xen_pin_page", 0x5dc8d6c388ff3c1d },
	{ "pin", "xen_unpin_page", 0x3e2a88edbd9a3659 },
	{ "pin", "__xen_mc_entry", 0xb75d96aa17faccb1 },
	{ "pin", "xen_mc_extend_args", 0xa0dc530d41c03629 },
	{ "pin", "xen_mc_callback", 0x4faf5f52c3ad5264 },
	{ "pin", "xen_mc_flush", 0x9574e839553fdb41 },
	{ "kernel_half", "xen_alloc_pmd", 0x4d2cf6db7e63f797 },
	{ "kernel_half", "xen_set_p4d", 0xcaf8486b971c0f31 },
	{ "kernel_half", "xen_activate_mm", 0x937fcc7205ccfcb6 },
	{ "kernel_half", "xen_dup_mmap", 0x937fcc7205ccfcb6 },
	{ "kernel_half", "__pmd_alloc", 0x2a78e172e9b03890 },
	{ "exit_mmap", "xen_exit_mmap", 0x8ff5116502ed27b3 },
	{ "exit_mmap", "drop_mm_ref_this_cpu", 0xe709788a7a5ab123 },
	{ "exit_mmap", "leave_mm", 0x533e1b6e397f4d4f },
	{ "exit_mmap", "xen_write_cr3", 0x6b014e6f0b620ef1 },
	{ "exit_mmap", "__xen_write_cr3", 0x79077e5b6851211a },
	{ "exit_mmap", "switch_mm_irqs_off", 0x41bcbe901cb00497 },
	{ "context_switch", "__switch_to", 0xa17d0177eabbe691 },
	{ "context_switch", "xen_end_context_switch", 0xdc9384cba9e2ccbd },
	{ "context_switch", "xen_write_msr", 0x8b92ce8bb0ba8724 },
	{ "context_switch", "xen_do_write_msr", 0x918ca2064fc1d427 },
	{ "context_switch", "xen_load_gs_index", 0xfe626ec6bad69f02 },
	{ "context_switch", "xen_load_sp0", 0xc83390c19cccb9f1 },
	{ "context_switch", "xen_load_tls", 0x068c7e5bc0e7a3a8 },
	{ "set_pte", "xen_set_pte", 0xd300640eb6eb6896 },
	{ "fault_around", "filemap_map_pages", 0x0059ab4298734c8a },
	{ "fault_around", "do_set_pte", 0x6e8aa91fc3f7263c },
	{ "fault_around", "do_set_pmd", 0x567c04c1b81d9d43 },
	{ "fault_around", "next_uptodate_page", 0x59068f90fe0aea6b },
	{ "fault_around", "page_add_file_rmap", 0x9bc4ad827f769727 },
	{ "fault_around", "pmd_install", 0x3271865e9fb8a761 },
	{ "fork", "copy_page_range", 0xe2b2829c31970386 },
	{ "fork_copy", "copy_page_range", 0xe2b2829c31970386 },
	{ "fork_entries", "copy_page_range", 0xe2b2829c31970386 },
	{ "fork_entries", "vm_normal_page", 0xa6a3a89ba69977c7 },
	{ "fork_text", "copy_page_range", 0xe2b2829c31970386 },
	{ "fork_text", "dup_mmap", 0x979234927eb5f777 },
	{ "clear_flush", "ptep_clear_flush", 0x426bf036de0bd87d },
	{ "reuse_around", "ptep_set_access_flags", 0x5e5553fcd2f6c10c },
	{ "reuse_around", "do_wp_page", 0xcaff7a157baed6db },
	{ "reuse_around", "page_move_anon_rmap", 0x6136b00bff8bf677 },
	{ "mremap", "move_page_tables", 0x654a881c03f52d16 },
	{ "zap", "unmap_page_range", 0x3a4765c27585c8bf },
	{ "zap", "page_remove_rmap", 0x2be8680db2f6fe98 },
	{ "zap", "__tlb_remove_page_size", 0xb5b76df8e0a35ff7 },
};
#elif SERIES_IS(6, 12)
static const struct known_function known[] = {
	{ "walk", "__xen_pgd_walk", 0xf9a3f84029563f94 },
	{ "walk", "__xen_pgd_walk", 0xf4c1243e794b6280 },	/* gcc 12 */
	{ "pin", "__xen_pgd_pin", 0x9224ba65120fb7d6 },
	{ "pin", "__xen_pgd_pin", 0x032de6b3ec13b675 },	/* gcc 12 */
	{ "pin", "__xen_pgd_unpin", 0xd7dbb610eee5bd9e },
	{ "pin", "xen_pin_page", 0x184f9d2fb8d9cc6f },
	{ "pin", "xen_pin_page", 0x0e478b102062d3d5 },	/* gcc 12 */
	{ "pin", "xen_unpin_page", 0x26f141eda6ded5d2 },
	{ "pin", "xen_unpin_page", 0x37e978e6328bab46 },	/* gcc 12 */
	{ "pin", "__xen_mc_entry", 0x69539b99025d3eb0 },
	{ "pin", "__xen_mc_entry", 0xb5366ab58fc5be7d },	/* gcc 12 */
	{ "pin", "xen_mc_extend_args", 0x77023e03f74fb69f },
	{ "pin", "xen_mc_extend_args", 0xb99edeb70445478e },	/* gcc 12 */
	{ "pin", "xen_mc_callback", 0x0dc615b7bdcb6727 },
	{ "pin", "xen_mc_flush", 0x24e08e46ac250be5 },
	{ "pin", "xen_mc_flush", 0x3754e7c80fd1d0af },	/* gcc 12 */
	{ "kernel_half", "xen_alloc_pmd", 0xfa9c917d030e8562 },
	{ "kernel_half", "xen_alloc_pmd", 0x6aebfbc8fa3da324 },	/* gcc 12 */
	{ "kernel_half", "xen_set_p4d", 0x7b3559627836050a },
	{ "kernel_half", "xen_enter_mmap", 0x85cbe3b2e655bd6a },
	{ "kernel_half", "__pmd_alloc", 0xd6f6cfcc07507ec8 },
	{ "kernel_half", "__pmd_alloc", 0x37d9c9158fffd014 },	/* gcc 12 */
	{ "exit_mmap", "xen_exit_mmap", 0xf255c671b9a2e24a },
	{ "exit_mmap", "xen_exit_mmap", 0x374291bde64d02fe },	/* gcc 12 */
	{ "exit_mmap", "drop_mm_ref_this_cpu", 0xa70dc6a4bdbb3a1b },
	{ "exit_mmap", "leave_mm", 0xb26f39cb64be6a07 },
	{ "exit_mmap", "xen_write_cr3", 0x8efc53dc6083e9c2 },
	{ "exit_mmap", "__xen_write_cr3", 0x6ba1c4ae7ef0b3fc },
	{ "exit_mmap", "__xen_write_cr3", 0x6d02dd4277fd21a1 },	/* gcc 12 */
	{ "exit_mmap", "switch_mm_irqs_off", 0x9dd81dd135c87144 },
	{ "exit_mmap", "switch_mm_irqs_off", 0xf84e0fe217ac9f39 },	/* gcc 12 */
	{ "context_switch", "__switch_to", 0x9e7948fbc0e466ed },
	{ "context_switch", "__switch_to", 0xb96b0bfde9e8f79a },	/* gcc 12 */
	{ "context_switch", "xen_end_context_switch", 0x577d35a6f0bb9e34 },
	{ "context_switch", "xen_write_msr", 0x64e3e7d80f49e911 },
	{ "context_switch", "xen_do_write_msr", 0x824ca0172a0f0acf },
	{ "context_switch", "xen_do_write_msr", 0x918ca2064fc1d427 },	/* gcc 12 */
	{ "context_switch", "xen_load_gs_index", 0xf82b49cf4264139e },
	{ "context_switch", "xen_load_sp0", 0xb8b7c3a20bf013ff },
	{ "context_switch", "xen_load_tls", 0x02d7b83a060c1e0c },
	{ "context_switch", "xen_load_tls", 0x6b2bcb6036fd5f91 },	/* gcc 12 */
	{ "set_pte", "xen_set_pte", 0x041dd3b6c7f8090f },
	{ "fault_around", "filemap_map_pages", 0x1ca7f15d5636abdf },
	{ "fault_around", "filemap_map_pages", 0xeaaac599a8de46d0 },	/* gcc 12 */
	{ "fault_around", "set_pte_range", 0xa0b32ff5f3136553 },
	{ "fault_around", "set_pte_range", 0xc95240d8d2defbc0 },	/* gcc 12 */
	{ "fault_around", "do_set_pmd", 0xe885d2c42ae14943 },
	{ "fault_around", "do_set_pmd", 0x760a7ea3f8ac10ec },	/* gcc 12 */
	{ "fault_around", "next_uptodate_folio", 0xd7cbf858f3e16160 },
	{ "fault_around", "next_uptodate_folio", 0x05f2bf5707a12dfd },	/* gcc 12 */
	{ "fault_around", "folio_add_file_rmap_ptes", 0x35659efbf19fdf9c },
	{ "fault_around", "folio_add_file_rmap_ptes", 0x6886daa3b7005719 },	/* gcc 12 */
	{ "fault_around", "pmd_install", 0x6a5eb3e8a52ca261 },
	{ "fork", "copy_page_range", 0xf1a36ea6134d7a08 },
	{ "fork", "copy_page_range", 0xdc9c049381ae11e8 },	/* gcc 12 */
	{ "fork_copy", "copy_page_range", 0xf1a36ea6134d7a08 },
	{ "fork_copy", "copy_page_range", 0xdc9c049381ae11e8 },	/* gcc 12 */
	{ "fork_entries", "copy_page_range", 0xf1a36ea6134d7a08 },
	{ "fork_entries", "copy_page_range", 0xdc9c049381ae11e8 },	/* gcc 12 */
	{ "fork_text", "copy_page_range", 0xf1a36ea6134d7a08 },
	{ "fork_text", "copy_page_range", 0xdc9c049381ae11e8 },	/* gcc 12 */
	{ "fork_text", "copy_process", 0x906c03a321ee597c },
	{ "fork_text", "copy_process", 0x19346724b2cfddb3 },	/* gcc 12 */
	{ "clear_flush", "ptep_clear_flush", 0x5f65d82a38a2f6d5 },
	{ "clear_flush", "ptep_clear_flush", 0x6ac5f8357f24fbd2 },	/* gcc 12 */
	{ "reuse_around", "ptep_set_access_flags", 0x141d3d85d4fcd7bd },
	{ "reuse_around", "do_wp_page", 0xdea4fa2b92c71e1d },
	{ "reuse_around", "do_wp_page", 0xd0769d520d092117 },	/* 6.12.118 */
	{ "reuse_around", "do_wp_page", 0xfc48919e9695226c },	/* gcc 12 */
	{ "reuse_around", "folio_move_anon_rmap", 0x0da80fb97f4ff5c7 },
	{ "mremap", "move_page_tables", 0x2c90a88af61e4ea0 },
	{ "mremap", "move_page_tables", 0x3d49c63c798e81f5 },	/* 6.12.118 */
	{ "mremap", "move_page_tables", 0x9c5544d66ce0fc0d },	/* gcc 12 */
	{ "zap", "unmap_page_range", 0x29aa74e4b4272b13 },
	{ "zap", "unmap_page_range", 0x0211cfd348b954de },	/* 6.12.118 */
	{ "zap", "unmap_page_range", 0x23efd49215393aa4 },	/* gcc 12 */
	{ "zap", "folio_remove_rmap_ptes", 0x4e7fb222c17b66e8 },
	{ "zap", "__tlb_remove_page_size", 0xaee444b0ea28128a },
	{ "zap", "__tlb_remove_page_size", 0x95f97fb5debfee48 },	/* gcc 12 */
};
#endif

static void leave_out(const struct left_out *entry)
{
	unsigned int i;

	for (i = 0; i < pvmmu_switch_count; i++) {
		struct pvmmu_switch *part = &pvmmu_switches[i];

		if (strcmp(part->name, entry->part) || part->unknown)
			continue;
		part->unknown = entry->symbol;
		part->found = entry->found;
	}
}

/**
 * pvmmu_known_check - leave out the parts whose stock functions are not known
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
int pvmmu_known_check(void)
{
	static struct left_out left_out[ARRAY_SIZE(known)];
	unsigned int i, count = 0;
	int rc = known_functions_check(known, ARRAY_SIZE(known), left_out, &count);

	for (i = 0; i < count; i++)
		leave_out(&left_out[i]);
	return rc;
}
