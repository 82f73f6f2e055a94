/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the translator needs of the kernel, for programs: types, and the members of
 * structures that e500_bt.h and kvmppc_bt_settle() use. Encodings, register numbers
 * and the data page's layout come from the kernel's own headers, not from here.
 *
 * In C the kernel's reg.h declares registers of the target processor; included as an
 * assembler header it has the same numbers and compiles for any target.
 */
#ifndef KERNEL_H
#define KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <linux/types.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t s32;
typedef u64 gpa_t;
typedef u64 gfn_t;
typedef u64 kvm_pfn_t;

#define __ASSEMBLY__
#include <asm/reg.h>
#include <asm/ppc-opcode.h>
#include <asm/nohash/mmu-e500.h>
#undef __ASSEMBLY__

#define ARRAY_SIZE(a)		(sizeof(a) / sizeof((a)[0]))
#define READ_ONCE(x)		(*(const volatile typeof(x) *)&(x))
#define DECLARE_HASHTABLE(name, bits)	struct hlist_head name[1 << (bits)]

struct list_head {
	struct list_head *next, *prev;
};

struct hlist_node {
	struct hlist_node *next, **pprev;
};

struct hlist_head {
	struct hlist_node *first;
};

struct xarray {
	void *xa_head;
};

typedef struct {
	int locked;
} spinlock_t;

struct mutex {
	int owner;
};

typedef struct {
	int waiting;
} wait_queue_head_t;

#define KVM_MAX_VCPUS	2

struct kvm_memory_slot;

struct kvm {
	struct {
		struct kvmppc_bt *bt;
	} arch;
};

struct kvm_vcpu {
	struct kvm *kvm;
	int vcpu_idx;
	struct {
		void *shared;
		u32 gpr[32];
		u32 pc;
		bool bt_pids_known;
		const void *bt_short;
	} arch;
};

static inline u32 kvmppc_get_pc(struct kvm_vcpu *vcpu)
{
	return vcpu->arch.pc;
}

static inline void kvmppc_set_pc(struct kvm_vcpu *vcpu, u32 pc)
{
	vcpu->arch.pc = pc;
}

static inline void kvmppc_set_gpr(struct kvm_vcpu *vcpu, int n, u32 value)
{
	vcpu->arch.gpr[n] = value;
}

#endif
