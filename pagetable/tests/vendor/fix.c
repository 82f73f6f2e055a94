// SPDX-License-Identifier: GPL-2.0-only
/*
 * Stands in for a security fix of a vendor's: it replaces a function that our payload
 * replaces too, by one that does the same. Stacked on ours it cannot expect the stock
 * function's first bytes.
 */
#define new_do_mmu_update original_do_mmu_update

#include "layout.h"
#include "livepatch.h"
#include "original.h"

#ifdef ABOVE
static struct livepatch_func above LIVEPATCH_SECTION("funcs") = {
	.name = "do_mmu_update",
	.new_addr = (const void *)new_do_mmu_update,
	.new_size = LIVEPATCH_JUMP_SIZE,
	.old_size = XEN_SIZE_do_mmu_update,
	.version = LIVEPATCH_PAYLOAD_VERSION,
};
#else
LIVEPATCH_FUNC(do_mmu_update);
#endif
