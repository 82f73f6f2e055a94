/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The part of Xen's livepatch payload format that this payload uses, from
 * Xen's docs/misc/livepatch.pandoc ("Binary interface", payload version 2).
 *
 * Include after layout.h, which has the sizes and prologues named here.
 */
#ifndef TRAPLESS_XEN_LIVEPATCH_H
#define TRAPLESS_XEN_LIVEPATCH_H

#define LIVEPATCH_PAYLOAD_VERSION	2
#define LIVEPATCH_MAX_EXPECT		31
#define LIVEPATCH_JUMP_SIZE		5	/* what Xen overwrites: jmp rel32 */
#define LIVEPATCH_PAD			39

#ifndef __ASSEMBLER__

/**
 * struct livepatch_expectation - bytes that must be at the old address
 * @enabled: compare at all
 * @len:     bytes to compare, at most LIVEPATCH_MAX_EXPECT
 * @rsv:     zero
 * @data:    the bytes
 *
 * A difference refuses the application with -EINVAL and changes nothing.
 */
struct livepatch_expectation {
	unsigned char enabled : 1;
	unsigned char len : 5;
	unsigned char rsv : 2;
	unsigned char data[LIVEPATCH_MAX_EXPECT];
};

/**
 * struct livepatch_func - one function to replace
 * @name:     its symbol, resolved by Xen as @old_addr is NULL
 * @new_addr: where Xen's jump leads
 * @old_addr: where the jump is written
 * @new_size: read by Xen only if @new_addr is NULL, but must not be 0
 * @old_size: size of the stock function, at least LIVEPATCH_JUMP_SIZE
 * @version:  LIVEPATCH_PAYLOAD_VERSION
 * @pad:      zero, Xen's own
 * @expect:   see struct livepatch_expectation
 */
struct livepatch_func {
	const char *name;
	const void *new_addr;
	const void *old_addr;
	unsigned int new_size;
	unsigned int old_size;
	unsigned char version;
	unsigned char pad[LIVEPATCH_PAD];
	struct livepatch_expectation expect;
};

_Static_assert(sizeof(struct livepatch_func) == 104, "livepatch_func");

#define LIVEPATCH_EXPECT(...)						\
	{								\
		.enabled = 1,						\
		.len = sizeof((unsigned char[]){ __VA_ARGS__ }),	\
		.data = { __VA_ARGS__ },				\
	}

#define LIVEPATCH_SECTION(section_name) \
	__attribute__((section(".livepatch." section_name), used))

/*
 * LIVEPATCH_FUNC(f): new_f() takes the place of the stock function f, of which
 * layout.h has XEN_SIZE_f and XEN_PROLOGUE_f.
 */
#define LIVEPATCH_FUNC(func)	LIVEPATCH_NAMED_FUNC(func, #func)

/* The same for a static function; Xen's symbols have the file before the name. */
#define LIVEPATCH_STATIC_FUNC(func, file)				\
	LIVEPATCH_NAMED_FUNC(func, file "#" #func)

#define LIVEPATCH_NAMED_FUNC(func, symbol)				\
	static struct livepatch_func livepatch_func_##func		\
	LIVEPATCH_SECTION("funcs") __attribute__((aligned(8))) = {	\
		.name = symbol,						\
		.new_addr = (const void *)new_##func,			\
		.new_size = LIVEPATCH_JUMP_SIZE,			\
		.old_size = XEN_SIZE_##func,				\
		.version = LIVEPATCH_PAYLOAD_VERSION,			\
		.expect = LIVEPATCH_EXPECT(XEN_PROLOGUE_##func),	\
	}

struct payload;
typedef int livepatch_precall_t(struct payload *payload);
typedef int livepatch_action_t(struct payload *payload);
typedef void livepatch_postcall_t(struct payload *payload);

/*
 * Hooks; Xen takes one of each. Xen calls them through a pointer, so they need
 * an endbr64 (-fcf-protection=branch): Debian's Xen runs with IBT.
 */
#define LIVEPATCH_HOOK(section_name, type, hook)			\
	static type *const livepatch_hook_##hook			\
	LIVEPATCH_SECTION("hooks." section_name) = hook

/* Before the action, in the caller's context; a result other than 0 refuses the action. */
#define LIVEPATCH_PREAPPLY_HOOK(hook) \
	LIVEPATCH_HOOK("preapply", livepatch_precall_t, hook)
#define LIVEPATCH_PREREVERT_HOOK(hook) \
	LIVEPATCH_HOOK("prerevert", livepatch_precall_t, hook)
/* Instead of Xen's own action, all other CPUs waiting with interrupts off. */
#define LIVEPATCH_APPLY_HOOK(hook) \
	LIVEPATCH_HOOK("apply", livepatch_action_t, hook)
#define LIVEPATCH_REVERT_HOOK(hook) \
	LIVEPATCH_HOOK("revert", livepatch_action_t, hook)
/* After the action, whether it succeeded or not, all CPUs running again. */
#define LIVEPATCH_POSTAPPLY_HOOK(hook) \
	LIVEPATCH_HOOK("postapply", livepatch_postcall_t, hook)
#define LIVEPATCH_POSTREVERT_HOOK(hook) \
	LIVEPATCH_HOOK("postrevert", livepatch_postcall_t, hook)

#endif /* __ASSEMBLER__ */

#endif /* TRAPLESS_XEN_LIVEPATCH_H */
