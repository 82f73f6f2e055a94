/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A VM of a program's own on /dev/kvm, for tests that no VMM can do: its guest is a few
 * instructions, which the program contains and copies into the VM's memory.
 *
 * The effective and guest-physical addresses:
 *
 *	CODE_EA		CODE_GPA	64 KB of memory, in small pages
 *	EXIT_EA		EXIT_GPA	no memory: a store there ends vm_run()
 */
#ifndef VM_H
#define VM_H

#include <stddef.h>
#include <stdint.h>
#include <linux/kvm.h>

#define CODE_EA		0xf0000000u
#define CODE_GPA	0x10000000u
#define CODE_BYTES	0x10000u
#define EXIT_EA		0xe0000000u
#define EXIT_GPA	0x20000000u

/* A data page can be in the last 4 KB of addresses. */
#define DATA_EA		0xfffff000u

#define checked(value)	({ __typeof__(value) v_ = (value); if (v_ < 0) die(#value); v_; })

struct vm {
	int fd;
	size_t run_bytes;
	uint8_t *code;
};

struct vcpu {
	int fd;
	struct kvm_run *run;
};

_Noreturn void die(const char *what);

/* Defined by the program: the guest's instructions, and the one under test. */
extern const char guest_start[], guest_site[], guest_end[];

void vm_make(struct vm *vm);
/* Memory from guest-physical address 0 on. */
void vm_memory(const struct vm *vm, void *memory, size_t bytes);
/* Start at the guest's first instruction, in supervisor mode. */
void vcpu_make(const struct vm *vm, unsigned int number, struct vcpu *vcpu);
struct kvm_regs vcpu_registers(const struct vcpu *vcpu);
void vcpu_set_registers(const struct vcpu *vcpu, struct kvm_regs *registers);
/* Run until the guest stores to EXIT_EA; any other exit is an error. */
void vcpu_run(const struct vcpu *vcpu);

#endif /* VM_H */
