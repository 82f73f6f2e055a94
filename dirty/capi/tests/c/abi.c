// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * What programs have been compiled with, and go on relying on: functions with
 * their types and versions, members with their places, numbers. What was released
 * stays here as it is; what is new is added, and ../abi says what is missing.
 *
 * Compiles only with a header that says the same, links only with a library that
 * has every function, and exits with 0 only if each is there under its version.
 */
#include <dirty.h>
#include <dlfcn.h>
#include <stdio.h>

#define ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))

#define CAPABILITIES const char *, struct dirty_capabilities *
#define VISIT void (*)(void *, const char *, const char *)
#define FUNCTIONS(F)                                                               \
	F("LIBDIRTY_0.2", dirty_backend, const char *(*)(int64_t))                 \
	F("LIBDIRTY_0.2", dirty_capabilities, int (*)(CAPABILITIES))               \
	F("LIBDIRTY_0.2", dirty_close, int (*)(int64_t))                           \
	F("LIBDIRTY_0.2", dirty_collect, int64_t (*)(int64_t))                     \
	F("LIBDIRTY_0.2", dirty_collect_range,                                     \
	  int64_t (*)(int64_t, uintptr_t, size_t))                                 \
	F("LIBDIRTY_0.2", dirty_discard, int64_t (*)(int64_t))                     \
	F("LIBDIRTY_0.2", dirty_last_error, const char *(*)(void))                 \
	F("LIBDIRTY_0.2", dirty_open, int64_t (*)(pid_t, const char *, uint32_t))  \
	F("LIBDIRTY_0.2", dirty_open_fd, int64_t (*)(pid_t, int))                  \
	F("LIBDIRTY_0.2", dirty_peek, int64_t (*)(int64_t))                        \
	F("LIBDIRTY_0.2", dirty_peek_range,                                        \
	  int64_t (*)(int64_t, uintptr_t, size_t))                                 \
	F("LIBDIRTY_0.2", dirty_read,                                              \
	  int64_t (*)(int64_t, struct dirty_extent *, size_t))                     \
	F("LIBDIRTY_0.2", dirty_reason_is_mapped, int (*)(uint32_t))               \
	F("LIBDIRTY_0.2", dirty_reason_is_zero, int (*)(uint32_t))                 \
	F("LIBDIRTY_0.2", dirty_reason_text, const char *(*)(uint32_t))            \
	F("LIBDIRTY_0.2", dirty_survey, int (*)(VISIT, void *))                    \
	F("LIBDIRTY_0.2", dirty_unwatch, int (*)(int64_t, uintptr_t, size_t))      \
	F("LIBDIRTY_0.2", dirty_watch, int (*)(int64_t, uintptr_t, size_t))        \
	F("LIBDIRTY_0.2", dirty_watch_all, int (*)(int64_t))

#define MEMBER(structure, member, offset, type)                                    \
	_Static_assert(offsetof(struct structure, member) == (offset) &&           \
		       _Generic(&((struct structure *)0)->member, type * : 1, default : 0), \
		       #structure "." #member)
#define SIZE(structure, size)                                                      \
	_Static_assert(sizeof(struct structure) == (size), #structure)

MEMBER(dirty_extent, start, 0, uintptr_t);
MEMBER(dirty_extent, end, 8, uintptr_t);
MEMBER(dirty_extent, reason, 16, uint32_t);
MEMBER(dirty_extent, reserved, 20, uint32_t);
SIZE(dirty_extent, 24);

/* May grow at its end; then its size here does. */
MEMBER(dirty_capabilities, size, 0, uint32_t);
MEMBER(dirty_capabilities, granule_pages, 4, uint32_t);
MEMBER(dirty_capabilities, exact, 8, uint32_t);
MEMBER(dirty_capabilities, kernel_writes, 12, uint32_t);
MEMBER(dirty_capabilities, foreign_writes, 16, uint32_t);
MEMBER(dirty_capabilities, mem_writes, 20, uint32_t);
MEMBER(dirty_capabilities, reprotected_writes, 24, uint32_t);
MEMBER(dirty_capabilities, remapped_writes, 28, uint32_t);
MEMBER(dirty_capabilities, shared_aliases, 32, uint32_t);
MEMBER(dirty_capabilities, pinned_writes, 36, uint32_t);
MEMBER(dirty_capabilities, whole_own_process, 40, uint32_t);
MEMBER(dirty_capabilities, other_process, 44, uint32_t);
MEMBER(dirty_capabilities, cost, 48, uint32_t);
MEMBER(dirty_capabilities, reclaimed_writes, 52, uint32_t);
MEMBER(dirty_capabilities, inexact, 56, const char *);
MEMBER(dirty_capabilities, privilege, 64, const char *);
SIZE(dirty_capabilities, 72);

#define NUMBER(name, value) _Static_assert((name) == (value), #name)

NUMBER(DIRTY_REASON_WRITTEN, 0);
NUMBER(DIRTY_REASON_NEW_MAPPING, 1);
NUMBER(DIRTY_REASON_UNMAPPED, 2);
NUMBER(DIRTY_REASON_UNSUPPORTED, 3);
NUMBER(DIRTY_REASON_OVERFLOW, 4);
NUMBER(DIRTY_REASON_PROTECTION_CHANGED, 5);
NUMBER(DIRTY_REASON_NOT_STOPPED, 6);
NUMBER(DIRTY_REASON_EXEC, 7);
NUMBER(DIRTY_REASON_EXITED, 8);
NUMBER(DIRTY_REASON_DISCARDED, 9);

NUMBER(DIRTY_SEES_NO, 0);
NUMBER(DIRTY_SEES_YES, 1);
NUMBER(DIRTY_SEES_FAILS, 2);

NUMBER(DIRTY_COST_KERNEL_FAULT, 0);
NUMBER(DIRTY_COST_SIGNAL_PER_PAGE, 1);
NUMBER(DIRTY_COST_THREAD_SWITCH_PER_PAGE, 2);
NUMBER(DIRTY_COST_HARDWARE, 3);
NUMBER(DIRTY_COST_HYPERVISOR_EXIT, 4);

struct exported {
	const char *version;
	const char *name;
	void *linked;
};

int main(void)
{
/* No type but the recorded one is taken. */
#define EXPORTED(version, name, type)                                              \
	{ version, #name, _Generic(&(name), type : (void *)(name)) },
	static const struct exported all[] = { FUNCTIONS(EXPORTED) };
	int missing = 0;

	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		void *there = dlvsym(RTLD_DEFAULT, all[i].name, all[i].version);

		if (there && there == all[i].linked)
			continue;
		printf("no %s of version %s\n", all[i].name, all[i].version);
		missing = 1;
	}
	return missing;
}
