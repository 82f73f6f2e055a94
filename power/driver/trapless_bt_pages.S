/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * These pages are zero at first. Zero is no valid instruction, so a guest that jumps
 * into them by mistake gets an exception.
 */
#include <asm/page.h>

#include "trapless_bt.h"

	.text
	.balign	PAGE_SIZE
	.globl	trapless_bt_execute
trapless_bt_execute:
	.space	TRAPLESS_BT_PAGES * PAGE_SIZE
