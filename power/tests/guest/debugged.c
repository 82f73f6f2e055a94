// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A program for the host that debugs a translated guest, and prints what it finds in the
 * guest's memory where a privileged instruction was replaced:
 *
 *   debugged	before, while and after the guest is debugged
 */
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

#include "vm.h"

#define HYPERCALL_MAGIC		0x4b564d21u
#define HYPERCALL_ENABLE	((42u << 16) | 0x100)
#define EXECUTE_EA		(CODE_EA + 0x1000)
#define MFMSR_R7		0x7ce000a6u
#define TIMES			64

/* The guest. r0, r3 to r5, r11: its hypercall; r8: TIMES, r9: EXIT_EA. */
__asm__(
"	.pushsection .rodata\n"
"	.globl guest_start, guest_site, guest_end\n"
"guest_start:\n"
"	sc\n"
"1:	mtctr	8\n"
"guest_site:\n"
"	mfmsr	7\n"
"	bdnz	guest_site\n"
"	stw	3, 0(9)\n"
"	b	1b\n"
"guest_end:\n"
"	.popsection\n");

static void say(const struct vm *vm, const char *when)
{
	uint32_t word;

	memcpy(&word, vm->code + (guest_site - guest_start), sizeof(word));
	printf("debugged: %s: %s\n", when, word == MFMSR_R7 ? "as written" : "replaced");
}

static void run(const struct vm *vm, const struct vcpu *vcpu, const char *when)
{
	vcpu_run(vcpu);
	say(vm, when);
}

static void debug(const struct vm *vm, const struct vcpu *vcpu, unsigned int control,
		  const char *when)
{
	struct kvm_guest_debug how = { .control = control };

	checked(ioctl(vcpu->fd, KVM_SET_GUEST_DEBUG, &how));
	say(vm, when);
}

int main(void)
{
	struct kvm_regs registers;
	struct vcpu vcpu;
	struct vm vm;

	vm_make(&vm);
	vcpu_make(&vm, 0, &vcpu);
	registers = vcpu_registers(&vcpu);
	registers.gpr[0] = HYPERCALL_MAGIC;
	registers.gpr[3] = DATA_EA;
	registers.gpr[4] = EXECUTE_EA;
	registers.gpr[5] = 1;
	registers.gpr[8] = TIMES;
	registers.gpr[9] = EXIT_EA;
	registers.gpr[11] = HYPERCALL_ENABLE;
	vcpu_set_registers(&vcpu, &registers);
	run(&vm, &vcpu, "before");
	debug(&vm, &vcpu, KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_SW_BP, "begun");
	run(&vm, &vcpu, "while");
	debug(&vm, &vcpu, 0, "ended");
	run(&vm, &vcpu, "after");
	return 0;
}
