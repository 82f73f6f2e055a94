// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A program for the host whose guest has two vCPUs that read memory in huge pages:
 *
 *   race COUNT	so many loads each; prints how many read a wrong word
 *
 * Each load uses a new TLB entry, so that KVM has to find the page in the host each
 * time. The loads alternate between two huge pages that KVM remembers in the same slot.
 * They are APART for the guest, and adjacent in the host: a kernel that mixes the
 * records of the two finds memory of neither.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "vm.h"

#define VCPUS		2
#define HUGE_SHIFT	24
#define HUGE_BYTES	(1u << HUGE_SHIFT)
#define HUGE_PAGES	8
/* KVM remembers four. */
#define APART		4
#define SMALL_BYTES	0x1000u

/* The third entry of TLB1, behind those of vm.c, and the size of a huge page. */
#define MAS0_TLB1	0x10020000u
#define MAS1_VALID_16M	0x80000700u
#define READ_EA		0x30000000u
/* Part of each word that is read. */
#define MARK		1u

/*
 * The guest. r4: MAS0, r5: MAS1, r6: MAS2, which is where it reads, r7: 0, r8: how far
 * the huge pages are apart, r9: EXIT_EA, r10: a random number, r11: its factor, CTR: how
 * many. r20: how many were wrong, r21: the last such word, r22: the right one.
 */
__asm__(
"	.pushsection .rodata\n"
"	.globl guest_start, guest_end\n"
"guest_start:\n"
"	mtspr	624, 4\n"
"	mtspr	625, 5\n"
"	mtspr	626, 6\n"
"	mtspr	944, 7\n"	/* MAS7 */
"	li	14, 0\n"
"1:	mullw	10, 10, 11\n"
"	addi	10, 10, 12345\n"
"	rlwinm	13, 10, 4, 8, 19\n"
"	xor	14, 14, 8\n"
"	ori	16, 14, 1\n"	/* MAS3: the supervisor reads */
"	mtspr	627, 16\n"
"	isync\n"
"	tlbwe\n"
"	isync\n"
"	lwzx	18, 6, 13\n"
"	or	17, 16, 13\n"
"	cmpw	18, 17\n"
"	beq	2f\n"
"	addi	20, 20, 1\n"
"	mr	21, 18\n"
"	mr	22, 17\n"
"2:	bdnz	1b\n"
"	stw	7, 0(9)\n"
"3:	b	3b\n"
"guest_end:\n"
"	.popsection\n");

static void *run(void *vcpu)
{
	vcpu_run(vcpu);
	return NULL;
}

static void mark(uint8_t *memory, uint32_t page)
{
	for (uint32_t at = page * HUGE_BYTES; at < (page + 1) * HUGE_BYTES; at += SMALL_BYTES)
		*(uint32_t *)(memory + at) = at | MARK;
}

/* The host allocates pages in the order of the first access: first the alternating two. */
static uint8_t *make_memory(void)
{
	uint8_t *memory = mmap(NULL, HUGE_PAGES * HUGE_BYTES, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB |
			       HUGE_SHIFT << MAP_HUGE_SHIFT, -1, 0);

	if (memory == MAP_FAILED)
		die("huge pages");
	mark(memory, 0);
	mark(memory, APART);
	for (uint32_t page = 1; page < HUGE_PAGES; page++)
		if (page != APART)
			mark(memory, page);
	return memory;
}

static void report(unsigned int number, const struct vcpu *vcpu, unsigned long count)
{
	struct kvm_regs registers = vcpu_registers(vcpu);

	printf("race: vCPU %u: %lu loads, %u wrong", number, count, (uint32_t)registers.gpr[20]);
	if (registers.gpr[20])
		printf(", the last one %08x instead of %08x", (uint32_t)registers.gpr[21],
		       (uint32_t)registers.gpr[22]);
	printf("\n");
}

int main(int argc, char **argv)
{
	unsigned long count = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;
	pthread_t thread[VCPUS];
	struct vcpu vcpu[VCPUS];
	struct vm vm;

	if (!count)
		return 2;
	vm_make(&vm);
	vm_memory(&vm, make_memory(), HUGE_PAGES * HUGE_BYTES);
	for (unsigned int i = 0; i < VCPUS; i++) {
		struct kvm_regs registers;

		vcpu_make(&vm, i, &vcpu[i]);
		registers = vcpu_registers(&vcpu[i]);
		registers.ctr = count;
		registers.gpr[4] = MAS0_TLB1;
		registers.gpr[5] = MAS1_VALID_16M;
		registers.gpr[6] = READ_EA;
		registers.gpr[7] = 0;
		registers.gpr[8] = APART * HUGE_BYTES;
		registers.gpr[9] = EXIT_EA;
		registers.gpr[10] = i;
		registers.gpr[11] = 1103515245;
		registers.gpr[20] = 0;
		vcpu_set_registers(&vcpu[i], &registers);
	}
	for (unsigned int i = 0; i < VCPUS; i++)
		if (pthread_create(&thread[i], NULL, run, &vcpu[i]))
			die("pthread_create");
	for (unsigned int i = 0; i < VCPUS; i++) {
		pthread_join(thread[i], NULL);
		report(i, &vcpu[i], count);
	}
	return 0;
}
