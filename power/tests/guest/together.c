// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A program for the host whose guest has two vCPUs that execute the same translated code
 * at the same time:
 *
 *	together ROUNDS OFTEN	rounds of the first vCPU, and of the second for each of those;
 *				prints whether what each computed is right, the words that
 *				both changed, and how it ended
 *
 * Invariant: each vCPU computes from values of its own, in steps that lose nothing, so each
 * error is seen in the end. What is right is computed here, without a privileged instruction.
 * The two counters are sums of what both add.
 *
 * The first vCPU has more sites than a page has room for, so it evicts fragments while the
 * other executes them, over and over: some of the sites are the same. In each round a vCPU
 * also writes a site's word again, as it was, writes and executes an instruction of its own,
 * and uses words next to translated code: its own, and a counter by lwarx and stwcx.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "vm.h"

#define VCPUS			2
#define HYPERCALL_MAGIC		0x4b564d21u
#define HYPERCALL_ENABLE	((42u << 16) | 0x100)
#define EXECUTE_OFFSET		0xc000u
#define EXECUTE_PAGES		1
/* A counter in a page without code. */
#define FAR_OFFSET		0xe000u
#define FACTOR			1103515245u
#define LIMIT_S			60
#define MSR_EE			0x8000u
/* How often each computes in a round. */
#define FIRST			32
#define SHARED			8
/* Of the first vCPU, in which the second gets to its sites. */
#define PAUSE			10000
/* Of the second vCPU, of the sites that both have. */
#define REPEATS			40
/* addi 20, 20, NUMBER */
#define ADD_TO_R20		0x3a940000u

/* At the end of the guest's code: a counter, and for each vCPU a word and instructions. */
#define OWN_BYTES		8
#define OWN_OFFSET		(offset(guest_end) - VCPUS * OWN_BYTES)
#define WORD_OFFSET		(OWN_OFFSET - VCPUS * 4)
#define COUNTER_OFFSET		(WORD_OFFSET - 4)

/*
 * The guest. r0, r3 to r5, r11: its hypercall, if r31 is not 0; r2: repeats; r6: a pause;
 * r8: rounds; r9, r10, r12 to r14: values that nothing changes; r20: what it has computed;
 * r21: a factor; r22: EXIT_EA; r23: a counter between code; r24: another; r25: its own word
 * between code; r26: its own instruction; r27: a site, and r28 what is there; r29: the next
 * instruction to write.
 */
__asm__(
"	.pushsection .rodata\n"
"	.globl guest_start, guest_site, guest_end\n"
"	.macro	synchronize at\n"
"	dcbst	0, \\at\n"
"	sync\n"
"	icbi	0, \\at\n"
"	sync\n"
"	isync\n"
"	.endm\n"
"	.macro	compute\n"
"	mr	15, 6\n"
"9:	addic.	15, 15, -1\n"
"	bne	9b\n"
"	mtspr	273, 20\n"		/* SPRG1 */
"	wrteei	1\n"
"	mfmsr	7\n"
"	wrteei	0\n"
"	mfspr	20, 273\n"
"	mullw	20, 20, 21\n"
"	add	20, 20, 7\n"
"	wrtee	7\n"
"	mfmsr	7\n"
"	add	20, 20, 9\n"
"	xor	20, 20, 10\n"
"	mtmsr	11\n"
"	add	20, 20, 12\n"
"	xor	20, 20, 13\n"
"	add	20, 20, 14\n"
"	add	20, 20, 7\n"
"	.endm\n"
"	.macro	count at\n"
"1:	lwarx	17, 0, \\at\n"
"	addi	17, 17, 1\n"
"	stwcx.	17, 0, \\at\n"
"	bne-	1b\n"
"	.endm\n"
"guest_start:\n"
"	cmpwi	31, 0\n"
"	beq	1f\n"
"	sc\n"
"	mr	30, 3\n"
"1:	mtctr	8\n"
"	li	11, 0\n"
"2:\n"
"	cmpwi	31, 0\n"
"	beq	3f\n"
"	.rept	32\n"
"	compute\n"
"	.endr\n"
"3:	mr	19, 2\n"
"6:\n"
"	.rept	8\n"
"	compute\n"
"	.endr\n"
"	addic.	19, 19, -1\n"
"	bne	6b\n"
"guest_site:\n"
"	wrteei	0\n"
"	stw	20, 0(25)\n"
"	lwz	20, 0(25)\n"
"	stw	28, 0(27)\n"
"	synchronize 27\n"
"	stw	29, 0(26)\n"
"	synchronize 26\n"
"	addi	29, 29, 1\n"
"	mtlr	26\n"
"	blrl\n"
"	count	23\n"
"	count	24\n"
"	bdz	4f\n"
"	b	2b\n"
"4:	stw	11, 0(22)\n"
"5:	b	5b\n"
"	.long	0\n"
"	.long	0, 0\n"
"	nop\n"
"	blr\n"
"	nop\n"
"	blr\n"
"guest_end:\n"
"	.popsection\n");

/* The values that nothing changes: r9 and so on. */
static uint32_t fixed(unsigned int number, unsigned int reg)
{
	return FACTOR * (reg + 100 * number);
}

/* What "compute" does, without a privileged instruction. */
static uint32_t computed(uint32_t r20, unsigned int number)
{
	r20 = r20 * FACTOR + MSR_EE + fixed(number, 9);
	r20 = (r20 ^ fixed(number, 10)) + fixed(number, 12);
	return (r20 ^ fixed(number, 13)) + fixed(number, 14) + MSR_EE;
}

static uint32_t expected(unsigned int number, unsigned long rounds)
{
	unsigned int times = number ? REPEATS * SHARED : FIRST + SHARED;
	uint32_t r20 = number;

	for (unsigned long i = 0; i < rounds; i++) {
		for (unsigned int j = 0; j < times; j++)
			r20 = computed(r20, number);
		r20 += (int16_t)(1000 * number + i);
	}
	return r20;
}

static uint32_t offset(const char *symbol)
{
	return symbol - guest_start;
}

static uint32_t word(const struct vm *vm, uint32_t at)
{
	uint32_t value;

	memcpy(&value, vm->code + at, sizeof(value));
	return value;
}

/* What KVM has counted. */
static void tell(const struct vm *vm, const char *counter)
{
	char path[128];
	unsigned long long value = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/sys/kernel/debug/kvm/%d-%d/%s", getpid(), vm->fd, counter);
	file = fopen(path, "r");
	if (file && fscanf(file, "%llu", &value) != 1)
		value = 0;
	if (file)
		fclose(file);
	printf("counted: %s %llu\n", counter, value);
}

static void *run(void *vcpu)
{
	vcpu_run(vcpu);
	return NULL;
}

static void make(const struct vm *vm, unsigned int number, unsigned long rounds, struct vcpu *vcpu)
{
	struct kvm_regs registers;

	vcpu_make(vm, number, vcpu);
	registers = vcpu_registers(vcpu);
	registers.gpr[0] = HYPERCALL_MAGIC;
	registers.gpr[3] = DATA_EA;
	registers.gpr[4] = CODE_EA + EXECUTE_OFFSET;
	registers.gpr[5] = EXECUTE_PAGES;
	registers.gpr[2] = number ? REPEATS : 1;
	registers.gpr[6] = number ? 1 : PAUSE;
	registers.gpr[8] = rounds;
	for (unsigned int i = 9; i <= 14; i++)
		registers.gpr[i] = fixed(number, i);
	registers.gpr[11] = HYPERCALL_ENABLE;
	registers.gpr[20] = number;
	registers.gpr[21] = FACTOR;
	registers.gpr[22] = EXIT_EA;
	registers.gpr[23] = CODE_EA + COUNTER_OFFSET;
	registers.gpr[24] = CODE_EA + FAR_OFFSET;
	registers.gpr[25] = CODE_EA + WORD_OFFSET + 4 * number;
	registers.gpr[26] = CODE_EA + OWN_OFFSET + OWN_BYTES * number;
	registers.gpr[27] = CODE_EA + offset(guest_site);
	registers.gpr[28] = word(vm, offset(guest_site));
	registers.gpr[29] = ADD_TO_R20 + 1000 * number;
	registers.gpr[31] = number == 0;
	vcpu_set_registers(vcpu, &registers);
}

static void run_all(const unsigned long *rounds)
{
	pthread_t thread[VCPUS];
	struct vcpu vcpu[VCPUS];
	struct vm vm;

	vm_make(&vm);
	for (unsigned int i = 0; i < VCPUS; i++)
		make(&vm, i, rounds[i], &vcpu[i]);
	for (unsigned int i = 0; i < VCPUS; i++)
		if (pthread_create(&thread[i], NULL, run, &vcpu[i]))
			die("pthread_create");
	for (unsigned int i = 0; i < VCPUS; i++) {
		struct kvm_regs registers;

		pthread_join(thread[i], NULL);
		registers = vcpu_registers(&vcpu[i]);
		if (i == 0)
			printf("answer: %u\n", (uint32_t)registers.gpr[30]);
		printf("together: vCPU %u: %s\n", i,
		       (uint32_t)registers.gpr[20] == expected(i, rounds[i]) ? "right" : "WRONG");
	}
	printf("together: counters: %u %u\n", word(&vm, COUNTER_OFFSET),
	       word(&vm, FAR_OFFSET));
	tell(&vm, "bt_evicted");
	tell(&vm, "bt_settled");
	tell(&vm, "bt_stops");
	tell(&vm, "bt_reservations");
}

/* In a child: where code is changed under a vCPU, the guest may do anything, or never end. */
int main(int argc, char **argv)
{
	unsigned long rounds[VCPUS] = { argc > 2 ? strtoul(argv[1], NULL, 10) : 0 };
	pid_t child;
	int status;

	rounds[1] = rounds[0] ? rounds[0] * strtoul(argv[2], NULL, 10) : 0;
	if (!rounds[1] || offset(guest_end) > EXECUTE_OFFSET)
		return 2;
	child = checked(fork());
	if (!child) {
		alarm(LIMIT_S);
		run_all(rounds);
		return 0;
	}
	checked(waitpid(child, &status, 0));
	printf("together: status %#x\n", status);
	return 0;
}
