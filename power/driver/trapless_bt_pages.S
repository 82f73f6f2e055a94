/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Nothing of ours is in these pages: zero is no instruction, so that a guest that
 * strays into them finds out.
 */
#include <asm/page.h>

#include "trapless_bt.h"

	.text
	.balign	PAGE_SIZE
	.globl	trapless_bt_execute
trapless_bt_execute:
	.space	TRAPLESS_BT_PAGES * PAGE_SIZE
