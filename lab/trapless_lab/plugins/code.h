/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Shared by the lab's plugins: whose code runs in a machine, its calls and
 * returns, and the markers of the guest's programs.
 *
 * Invariant: everything is derived from an address and an instruction's bytes at
 * its execution: the kernel patches its calls while it boots.
 */
#ifndef CODE_H
#define CODE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "profiled.h"
#include "qemu_plugin.h"

enum kind { USER, KERNEL, XEN, KINDS };

/* PV Linux leaves these addresses to Xen; Linux alone has its gap there. */
#define XEN_FIRST 0xffff800000000000u
#define XEN_LAST 0xffff87ffffffffffu

static inline enum kind kind_of(uint64_t address)
{
	if (!(address >> 63))
		return USER;
	return address >= XEN_FIRST && address <= XEN_LAST ? XEN : KERNEL;
}

/* Without QEMU's own exit handlers, which the calling thread must not run. */
static inline _Noreturn void die(const char *what)
{
	fprintf(stderr, "plugin: %s\n", what);
	_Exit(1);
}

static inline void *must(void *memory)
{
	if (!memory)
		die("out of memory");
	return memory;
}

static inline void make(struct counts *counts, size_t number)
{
	if (!counts_make(counts, number))
		die("out of memory");
}

static inline bool is_prefix(uint8_t byte)
{
	switch (byte) {
	case 0x26: case 0x2e: case 0x36: case 0x3e: /* segments, hints */
	case 0x66: case 0x67: case 0xf2: case 0xf3:
		return true;
	default:
		return (byte & 0xf0) == 0x40; /* REX */
	}
}

/* Returns an instruction's opcode; ``size`` is set to what is left of it from there. */
static inline const uint8_t *opcode(struct qemu_plugin_insn *insn, size_t *size)
{
	const uint8_t *code = insn_bytes(insn);

	for (*size = qemu_plugin_insn_size(insn); *size > 1 && is_prefix(*code); --*size)
		code++;
	return code;
}

static inline bool is_return(const uint8_t *code)
{
	return *code == 0xc3 || *code == 0xc2;
}

/* Returns where a direct jump or call of five bytes leads, or 0 if it does not begin with ``first``. */
static inline uint64_t direct_target(struct qemu_plugin_insn *insn, uint8_t first)
{
	const uint8_t *code = insn_bytes(insn);
	int32_t distance;

	if (qemu_plugin_insn_size(insn) != 5 || *code != first)
		return 0;
	memcpy(&distance, code + 1, sizeof(distance));
	return qemu_plugin_insn_vaddr(insn) + 5 + (uint64_t)(int64_t)distance;
}

#define DIRECT_CALL 0xe8
#define DIRECT_JUMP 0xe9

/* Started instructions whose call or return is watched. */
static struct counts crossings;

/*
 * Whether an access is that of a call or return that has just begun. QEMU 7.2 never
 * calls a callback for loads only, and calls one for stores only also for loads;
 * and accesses of a helper for an instruction without callbacks may be passed to
 * the callbacks of an earlier one.
 */
static inline bool crosses(qemu_plugin_meminfo_t info, bool store)
{
	static uint64_t seen;
	uint64_t begun;

	if (qemu_plugin_mem_is_store(info) != store)
		return false;
	begun = counted(&crossings, 0);
	if (seen == begun)
		return false;
	seen = begun;
	return true;
}

/* Register ``on_access``, which must use crosses(), for a call's store or a return's load. */
static inline void watch_crossing(struct qemu_plugin_insn *insn, qemu_plugin_accessed_t on_access,
				  void *data)
{
	if (!crossings.of)
		make(&crossings, 1);
	qemu_plugin_register_vcpu_mem_cb(insn, on_access, QEMU_PLUGIN_CB_NO_REGS,
					 QEMU_PLUGIN_MEM_RW, data);
	count_insn(insn, &crossings, 0);
}

static inline void watch_markers(struct qemu_plugin_insn *insn, qemu_plugin_executed_t on_start,
				 qemu_plugin_executed_t on_stop)
{
	static const uint8_t start[] = { PROFILED_START }, stop[] = { PROFILED_STOP };
	const uint8_t *code = insn_bytes(insn);

	if (qemu_plugin_insn_size(insn) != sizeof(start))
		return;
	if (!memcmp(code, start, sizeof(start)))
		qemu_plugin_register_vcpu_insn_exec_cb(insn, on_start, QEMU_PLUGIN_CB_NO_REGS,
						       NULL);
	else if (!memcmp(code, stop, sizeof(stop)))
		qemu_plugin_register_vcpu_insn_exec_cb(insn, on_stop, QEMU_PLUGIN_CB_NO_REGS,
						       NULL);
}

#endif /* CODE_H */
