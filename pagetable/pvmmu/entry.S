/* SPDX-License-Identifier: GPL-2.0-only */
/* The entry code of the hooks; see direct_hook_entry.S. */
#include "direct_hook_entry.S"

	direct_replace	pvmmu_entry_pgd_walk, pvmmu_pgd_walk
	direct_replace	pvmmu_entry_pgd_pin, pvmmu_pgd_pin
	direct_replace	pvmmu_entry_pgd_unpin, pvmmu_pgd_unpin
	direct_replace	pvmmu_entry_exit_mmap, pvmmu_exit_mmap
	direct_replace	pvmmu_entry_map_pages, pvmmu_map_pages
	direct_replace	pvmmu_entry_copy_range, pvmmu_copy_range
	direct_replace	pvmmu_entry_clear_flush, pvmmu_clear_flush
	direct_replace	pvmmu_entry_set_access_flags, pvmmu_set_access_flags
	direct_before	pvmmu_entry_alloc_pmd, pvmmu_alloc_pmd, 2
	direct_before	pvmmu_entry_end_switch, pvmmu_end_switch, 1
	direct_before	pvmmu_entry_move_tables, pvmmu_move_tables, 6
	direct_before	pvmmu_entry_unmap_range, pvmmu_unmap_range, 5
	direct_unless	pvmmu_entry_set_pte, pvmmu_set_pte, 2
	direct_unless	pvmmu_entry_write_msr, pvmmu_write_msr, 3
	direct_unless	pvmmu_entry_load_gs_index, pvmmu_load_gs_index, 1
	direct_unless	pvmmu_entry_load_sp0, pvmmu_load_sp0, 1
