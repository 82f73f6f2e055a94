// SPDX-License-Identifier: GPL-2.0-only
/*
 * Stands in for a security fix of a vendor's: it replaces a function that our payload
 * replaces too, by one that does the same (stacking.S). Stacked on ours it cannot
 * expect the stock function's first bytes.
 */
#include "layout.h"
#include "livepatch.h"
#include "stacking.h"

static struct livepatch_func vendor_func
LIVEPATCH_SECTION("funcs") __attribute__((aligned(8))) = {
	.name = "do_mmu_update",
	.new_addr = (const void *)vendor_do_mmu_update,
	.new_size = LIVEPATCH_JUMP_SIZE,
	.old_size = XEN_SIZE_do_mmu_update,
	.version = LIVEPATCH_PAYLOAD_VERSION,
#ifndef ABOVE
	.expect = LIVEPATCH_EXPECT(XEN_PROLOGUE_do_mmu_update),
#endif
};
