/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Functions that consist of exactly the given instructions, so that a test knows the
 * address of each. The argument and the result are in r3.
 *
 * Each is aligned to 128 bytes, and lies in one page if it is no longer than that: with
 * interrupts off the guest has no exception of its own between its instructions.
 */
#ifndef TRAPLESS_TEST_FUNCTION_H
#define TRAPLESS_TEST_FUNCTION_H

#include <linux/stringify.h>
#include <linux/types.h>

#define FUNCTION(name, ...) \
	u32 name(u32 value); \
	asm(".pushsection .text,\"ax\"\n\t.balign 128\n" #name ":\n\t" \
	    __VA_ARGS__ "\n\tblr\n\t.popsection\n")

#define MFSPR(register, sprn)	"mfspr " #register "," __stringify(sprn) "\n\t"
#define MTSPR(sprn, register)	"mtspr " __stringify(sprn) "," #register "\n\t"

#endif
