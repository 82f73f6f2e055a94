// SPDX-License-Identifier: Apache-2.0 OR MIT
/* A VM of a program's own on /dev/kvm. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "vm.h"

/* The sizes of an e500v2: TLB0 and TLB1. */
#define TLB0_ENTRIES	512
#define TLB0_WAYS	4
#define TLB1_ENTRIES	16
#define TLB_ENTRIES	(TLB0_ENTRIES + TLB1_ENTRIES)

#define MAS1_VALID	0x80000000u
#define MAS1_4K		(1u << 8)
#define MAS1_64K	(3u << 8)
#define MAS2_DEVICE	0x0a
/* The supervisor may execute, write and read. */
#define MAS3_ALL	0x15

_Noreturn void die(const char *what)
{
	printf("vm: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void add_memory(const struct vm *vm, unsigned int slot, uint64_t gpa, void *memory,
		       size_t bytes)
{
	struct kvm_userspace_memory_region region = {
		.slot = slot, .guest_phys_addr = gpa, .memory_size = bytes,
		.userspace_addr = (uintptr_t)memory,
	};

	checked(ioctl(vm->fd, KVM_SET_USER_MEMORY_REGION, &region));
}

static void *mapped(size_t bytes, int flags, int fd)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);

	if (memory == MAP_FAILED)
		die("mmap");
	return memory;
}

void vm_make(struct vm *vm)
{
	int kvm = checked(open("/dev/kvm", O_RDWR));
	size_t bytes = guest_end - guest_start;

	vm->fd = checked(ioctl(kvm, KVM_CREATE_VM, 0));
	vm->run_bytes = checked(ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0));
	vm->code = mapped(CODE_BYTES, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	memcpy(vm->code, guest_start, bytes);
	__builtin___clear_cache((char *)vm->code, (char *)vm->code + bytes);
	add_memory(vm, 1, CODE_GPA, vm->code, CODE_BYTES);
}

void vm_memory(const struct vm *vm, void *memory, size_t bytes)
{
	add_memory(vm, 0, 0, memory, bytes);
}

/* A TLB shared with KVM: without one KVM assumes the sizes of another processor. */
static void give_tlb(int vcpu)
{
	const size_t bytes = TLB_ENTRIES * sizeof(struct kvm_book3e_206_tlb_entry);
	struct kvm_book3e_206_tlb_entry *tlb = mapped(bytes, MAP_SHARED | MAP_ANONYMOUS, -1);
	static uint32_t all[(TLB_ENTRIES + 31) / 32];
	struct kvm_book3e_206_tlb_params params = {
		.tlb_sizes = { TLB0_ENTRIES, TLB1_ENTRIES }, .tlb_ways = { TLB0_WAYS, TLB1_ENTRIES },
	};
	struct kvm_config_tlb config = {
		.params = (uintptr_t)&params, .array = (uintptr_t)tlb,
		.mmu_type = KVM_MMU_FSL_BOOKE_NOHV, .array_len = bytes,
	};
	struct kvm_enable_cap enable = { .cap = KVM_CAP_SW_TLB, .args = { (uintptr_t)&config } };
	struct kvm_dirty_tlb dirty = { .bitmap = (uintptr_t)all, .num_dirty = TLB_ENTRIES };

	tlb[TLB0_ENTRIES] = (struct kvm_book3e_206_tlb_entry){
		.mas1 = MAS1_VALID | MAS1_64K, .mas2 = CODE_EA, .mas7_3 = CODE_GPA | MAS3_ALL,
	};
	tlb[TLB0_ENTRIES + 1] = (struct kvm_book3e_206_tlb_entry){
		.mas1 = MAS1_VALID | MAS1_4K, .mas2 = EXIT_EA | MAS2_DEVICE,
		.mas7_3 = EXIT_GPA | MAS3_ALL,
	};
	memset(all, 0xff, sizeof(all));
	checked(ioctl(vcpu, KVM_ENABLE_CAP, &enable));
	checked(ioctl(vcpu, KVM_DIRTY_TLB, &dirty));
}

void vcpu_make(const struct vm *vm, unsigned int number, struct vcpu *vcpu)
{
	struct kvm_regs registers;

	vcpu->fd = checked(ioctl(vm->fd, KVM_CREATE_VCPU, number));
	vcpu->run = mapped(vm->run_bytes, MAP_SHARED, vcpu->fd);
	give_tlb(vcpu->fd);
	registers = vcpu_registers(vcpu);
	registers.pc = CODE_EA;
	registers.msr = 0;
	vcpu_set_registers(vcpu, &registers);
}

struct kvm_regs vcpu_registers(const struct vcpu *vcpu)
{
	struct kvm_regs registers;

	checked(ioctl(vcpu->fd, KVM_GET_REGS, &registers));
	return registers;
}

void vcpu_set_registers(const struct vcpu *vcpu, struct kvm_regs *registers)
{
	checked(ioctl(vcpu->fd, KVM_SET_REGS, registers));
}

void vcpu_run(const struct vcpu *vcpu)
{
	struct kvm_regs registers;

	while (ioctl(vcpu->fd, KVM_RUN, 0) < 0)
		if (errno != EINTR && errno != EAGAIN)
			die("KVM_RUN");
	if (vcpu->run->exit_reason == KVM_EXIT_MMIO && vcpu->run->mmio.is_write &&
	    vcpu->run->mmio.phys_addr == EXIT_GPA)
		return;
	registers = vcpu_registers(vcpu);
	printf("vm: an exit for reason %u at %#llx\n", vcpu->run->exit_reason,
	       (unsigned long long)registers.pc);
	exit(1);
}
