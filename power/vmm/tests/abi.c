// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The values in the kernel's headers of the interface in src/kvm.rs: compiled for
 * powerpc to assembly with lines "->name value", which its tests compare. Never
 * linked.
 */
#include <stddef.h>
#include <linux/kvm.h>

#define LINE(name, value) __asm__ volatile("\n->" name " %0" : : "i" (value))
#define VALUE(name) LINE(#name, (unsigned int)(name))
#define SIZE(type) LINE("sizeof_" #type, sizeof(struct type))
#define FIELD(type, field) LINE(#type "." #field, offsetof(struct type, field))

void abi(void);

void abi(void)
{
	VALUE(KVM_API_VERSION);
	VALUE(KVM_CAP_SW_TLB);
	VALUE(KVM_CAP_DEVICE_CTRL);
	VALUE(KVM_CAP_IRQ_MPIC);
	VALUE(KVM_CAP_PPC_GET_PVINFO);
	VALUE(KVM_EXIT_UNKNOWN);
	VALUE(KVM_EXIT_MMIO);
	VALUE(KVM_DEV_TYPE_FSL_MPIC_20);
	VALUE(KVM_DEV_MPIC_GRP_MISC);
	VALUE(KVM_DEV_MPIC_BASE_ADDR);
	VALUE(KVM_DEV_MPIC_GRP_IRQ_ACTIVE);
	VALUE(KVM_MMU_FSL_BOOKE_NOHV);
	VALUE(KVM_PPC_PVINFO_FLAGS_EV_IDLE);

	VALUE(KVM_GET_API_VERSION);
	VALUE(KVM_CREATE_VM);
	VALUE(KVM_CHECK_EXTENSION);
	VALUE(KVM_GET_VCPU_MMAP_SIZE);
	VALUE(KVM_CREATE_VCPU);
	VALUE(KVM_SET_USER_MEMORY_REGION);
	VALUE(KVM_RUN);
	VALUE(KVM_GET_REGS);
	VALUE(KVM_SET_REGS);
	VALUE(KVM_PPC_GET_PVINFO);
	VALUE(KVM_ENABLE_CAP);
	VALUE(KVM_DIRTY_TLB);
	VALUE(KVM_CREATE_DEVICE);
	VALUE(KVM_SET_DEVICE_ATTR);

	SIZE(kvm_regs);
	FIELD(kvm_regs, pc);
	FIELD(kvm_regs, cr);
	FIELD(kvm_regs, ctr);
	FIELD(kvm_regs, lr);
	FIELD(kvm_regs, xer);
	FIELD(kvm_regs, msr);
	FIELD(kvm_regs, srr0);
	FIELD(kvm_regs, pid);
	FIELD(kvm_regs, sprg0);
	FIELD(kvm_regs, gpr);

	SIZE(kvm_userspace_memory_region);
	FIELD(kvm_userspace_memory_region, slot);
	FIELD(kvm_userspace_memory_region, flags);
	FIELD(kvm_userspace_memory_region, guest_phys_addr);
	FIELD(kvm_userspace_memory_region, memory_size);
	FIELD(kvm_userspace_memory_region, userspace_addr);

	SIZE(kvm_enable_cap);
	FIELD(kvm_enable_cap, cap);
	FIELD(kvm_enable_cap, flags);
	FIELD(kvm_enable_cap, args);

	SIZE(kvm_ppc_pvinfo);
	FIELD(kvm_ppc_pvinfo, flags);
	FIELD(kvm_ppc_pvinfo, hcall);

	SIZE(kvm_create_device);
	FIELD(kvm_create_device, type);
	FIELD(kvm_create_device, fd);
	FIELD(kvm_create_device, flags);

	SIZE(kvm_device_attr);
	FIELD(kvm_device_attr, flags);
	FIELD(kvm_device_attr, group);
	FIELD(kvm_device_attr, attr);
	FIELD(kvm_device_attr, addr);

	SIZE(kvm_book3e_206_tlb_entry);
	FIELD(kvm_book3e_206_tlb_entry, mas8);
	FIELD(kvm_book3e_206_tlb_entry, mas1);
	FIELD(kvm_book3e_206_tlb_entry, mas2);
	FIELD(kvm_book3e_206_tlb_entry, mas7_3);

	SIZE(kvm_book3e_206_tlb_params);
	FIELD(kvm_book3e_206_tlb_params, tlb_sizes);
	FIELD(kvm_book3e_206_tlb_params, tlb_ways);
	FIELD(kvm_book3e_206_tlb_params, reserved);

	SIZE(kvm_config_tlb);
	FIELD(kvm_config_tlb, params);
	FIELD(kvm_config_tlb, array);
	FIELD(kvm_config_tlb, mmu_type);
	FIELD(kvm_config_tlb, array_len);

	SIZE(kvm_dirty_tlb);
	FIELD(kvm_dirty_tlb, bitmap);
	FIELD(kvm_dirty_tlb, num_dirty);

	FIELD(kvm_run, exit_reason);
	FIELD(kvm_run, hw.hardware_exit_reason);
	FIELD(kvm_run, mmio.phys_addr);
	FIELD(kvm_run, mmio.data);
	FIELD(kvm_run, mmio.len);
	FIELD(kvm_run, mmio.is_write);
}
