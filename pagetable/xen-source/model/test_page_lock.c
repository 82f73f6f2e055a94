// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the patches do otherwise than the payload: RELEASE takes Xen's own
 * page_lock(), which also takes a page that is mapped writable.
 */
#include "call.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#define F0	DOM0_MFN(0)

void violation(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fail();
	__builtin_unreachable();
}

static void moved(u32 op)
{
	struct answer a = call_batch((int)op, &(u64){ F0 }, 1);

	assert_int_equal(a.rc, 0);
	assert_int_equal(a.done, 1);
	fake_check();
}

static void release_of_a_page_that_is_mapped_writable(void **state)
{
	fake_reset();
	fake_begin();
	moved(TPT_OP_MARK);
	assert_true(guest_map_writable(F0));
	moved(TPT_OP_RELEASE);
	assert_true(dom0.io[F0] & IO_TABLE);
	assert_true(guest_unmap_writable(F0));
	fake_check();
	fake_forget_heap();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(release_of_a_page_that_is_mapped_writable),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
