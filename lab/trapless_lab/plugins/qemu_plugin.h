/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The part of QEMU's plugin interface that the lab's plugins use, and what differs between
 * its versions: 1 (QEMU 6 to 8), and 3 and later (from QEMU 9.1), by QEMU_PLUGIN_VERSION.
 *
 * Debian ships no header for it. These are the names and types that QEMU exports; QEMU
 * refuses a plugin with a version that it does not know. Plugins use none of what is
 * within the #if themselves, but the functions behind it.
 */
#ifndef QEMU_PLUGIN_H
#define QEMU_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#ifndef QEMU_PLUGIN_VERSION
#define QEMU_PLUGIN_VERSION 1
#endif
#define QEMU_PLUGIN_EXPORT __attribute__((visibility("default")))

typedef uint64_t qemu_plugin_id_t;
typedef uint32_t qemu_plugin_meminfo_t;

struct qemu_plugin_tb;
struct qemu_plugin_insn;

struct qemu_info {
	const char *target_name;
	struct {
		int min;
		int cur;
	} version;
	bool system_emulation;
	struct {
		int smp_vcpus;
		int max_vcpus;
	} system;
};

enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS };
enum qemu_plugin_mem_rw { QEMU_PLUGIN_MEM_RW = 3 };
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };

typedef void (*qemu_plugin_translated_t)(qemu_plugin_id_t id, struct qemu_plugin_tb *tb);
typedef void (*qemu_plugin_ended_t)(qemu_plugin_id_t id, void *data);
typedef void (*qemu_plugin_executed_t)(unsigned int vcpu, void *data);
typedef void (*qemu_plugin_accessed_t)(unsigned int vcpu, qemu_plugin_meminfo_t info,
				       uint64_t vaddr, void *data);

extern QEMU_PLUGIN_EXPORT int qemu_plugin_version;

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info *info,
					   int argc, char **argv);

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, qemu_plugin_translated_t cb);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb, qemu_plugin_executed_t cb,
					  enum qemu_plugin_cb_flags flags, void *data);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *insn,
					    qemu_plugin_executed_t cb,
					    enum qemu_plugin_cb_flags flags, void *data);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *insn, qemu_plugin_accessed_t cb,
				      enum qemu_plugin_cb_flags flags,
				      enum qemu_plugin_mem_rw rw, void *data);

void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, qemu_plugin_ended_t cb, void *data);

unsigned int qemu_plugin_mem_size_shift(qemu_plugin_meminfo_t info);
bool qemu_plugin_mem_is_store(qemu_plugin_meminfo_t info);

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);
void *qemu_plugin_insn_haddr(const struct qemu_plugin_insn *insn);

/*
 * insn_bytes() returns an instruction's bytes, which stay until the thread's next call.
 *
 * A struct counts has numbers to which the translated code itself adds, for machines with
 * one CPU. counts_make() returns whether there was memory for them; until then they read as 0.
 */
#if QEMU_PLUGIN_VERSION == 1

const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *insn);
void qemu_plugin_register_vcpu_insn_exec_inline(struct qemu_plugin_insn *insn,
						enum qemu_plugin_op op, void *value,
						uint64_t operand);

struct counts {
	uint64_t *of;
};

static inline bool counts_make(struct counts *counts, size_t number)
{
	counts->of = calloc(number, sizeof(*counts->of));
	return counts->of;
}

static inline uint64_t counted(const struct counts *counts, size_t which)
{
	return counts->of ? counts->of[which] : 0;
}

static inline void count_insn(struct qemu_plugin_insn *insn, const struct counts *counts,
			      size_t which)
{
	qemu_plugin_register_vcpu_insn_exec_inline(insn, QEMU_PLUGIN_INLINE_ADD_U64,
						   counts->of + which, 1);
}

static inline const uint8_t *insn_bytes(const struct qemu_plugin_insn *insn)
{
	return qemu_plugin_insn_data(insn);
}

#else

/* The longest instruction of any processor here is one of x86. */
#define INSN_BYTES 16

struct qemu_plugin_scoreboard;

struct qemu_plugin_u64 {
	struct qemu_plugin_scoreboard *score;
	size_t offset;
};

size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *insn, void *to, size_t size);
struct qemu_plugin_scoreboard *qemu_plugin_scoreboard_new(size_t size);
void *qemu_plugin_scoreboard_find(struct qemu_plugin_scoreboard *score, unsigned int vcpu);
void qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(struct qemu_plugin_insn *insn,
							 enum qemu_plugin_op op,
							 struct qemu_plugin_u64 entry,
							 uint64_t operand);

struct counts {
	struct qemu_plugin_scoreboard *of;
};

static inline bool counts_make(struct counts *counts, size_t number)
{
	counts->of = qemu_plugin_scoreboard_new(number * sizeof(uint64_t));
	return counts->of;
}

static inline uint64_t counted(const struct counts *counts, size_t which)
{
	return counts->of ? ((uint64_t *)qemu_plugin_scoreboard_find(counts->of, 0))[which] : 0;
}

static inline void count_insn(struct qemu_plugin_insn *insn, const struct counts *counts,
			      size_t which)
{
	struct qemu_plugin_u64 entry = { counts->of, which * sizeof(uint64_t) };

	qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(insn, QEMU_PLUGIN_INLINE_ADD_U64,
							    entry, 1);
}

static inline const uint8_t *insn_bytes(const struct qemu_plugin_insn *insn)
{
	static _Thread_local uint8_t bytes[INSN_BYTES];

	qemu_plugin_insn_data(insn, bytes, sizeof(bytes));
	return bytes;
}

#endif

#endif /* QEMU_PLUGIN_H */
