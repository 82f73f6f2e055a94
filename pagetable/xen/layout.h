/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the payload assumes about the stock hypervisor's binary, amd64. All of it is
 * here and in families/, and nowhere else: here is what all versions of Xen have in
 * common, in a family what some versions share. family.h stands for the one of the
 * hypervisor's own version, which check_layout.py puts in its place.
 *
 * Every value stands in a #define of its own and every function or variable of
 * Xen in a declaration of its own. check_layout.py finds them by name, proves
 * each one in the installed hypervisor's disassembly before anything is
 * compiled, and refuses a name it has no proof for and a number that stands
 * anywhere else. "Seen in" names the function whose code is the proof.
 */
#ifndef TRAPLESS_XEN_LAYOUT_H
#define TRAPLESS_XEN_LAYOUT_H

/*
 * The stock functions the payload replaces. Size as in the symbol table; the
 * prologue is the whole instructions that Xen's five-byte jump overwrites. It
 * guards the application (struct livepatch_expectation) and is repeated by the
 * trampolines of original.S, so it must mean the same at another address. The
 * numbers are those of Debian's Xen 4.17.7; each rebuild moves some, and they are
 * read anew for the build at hand.
 */

/* push %r12; mov %rcx,%r12 */
#define XEN_SIZE_iommu_legacy_map	123
#define XEN_PROLOGUE_iommu_legacy_map	0x41, 0x54, 0x49, 0x89, 0xcc

/* push %r12; xor %ecx,%ecx; mov %rdx,%r12 */
#define XEN_SIZE_iommu_legacy_unmap	123
#define XEN_PROLOGUE_iommu_legacy_unmap	0x41, 0x54, 0x31, 0xc9, 0x49, 0x89, 0xd4

/* push %rbx; sub $16,%rsp */
#define XEN_SIZE_do_callback_op		348
#define XEN_PROLOGUE_do_callback_op	0x53, 0x48, 0x83, 0xec, 0x10

/* push %r15; movslq %ecx,%r15 */
#define XEN_SIZE_do_mmu_update		5002
#define XEN_PROLOGUE_do_mmu_update	0x41, 0x57, 0x4c, 0x63, 0xf9

/* push %r12; mov %rdx,%r12 */
#define XEN_SIZE_do_update_va_mapping		93
#define XEN_PROLOGUE_do_update_va_mapping	0x41, 0x54, 0x49, 0x89, 0xd4

/* mov %rdi,%rax; mov %edi,%edx */
#define XEN_SIZE_put_page_from_l1e	304
#define XEN_PROLOGUE_put_page_from_l1e	0x48, 0x89, 0xf8, 0x89, 0xfa

/* push %r15; push %r14; push %r13 */
#define XEN_SIZE_get_page_from_l1e	1379
#define XEN_PROLOGUE_get_page_from_l1e	0x41, 0x57, 0x41, 0x56, 0x41, 0x55

/* push %rbp; push %rbx; mov %rsp,%rax */
#define XEN_SIZE_domain_kill		275
#define XEN_PROLOGUE_domain_kill	0x55, 0x53, 0x48, 0x89, 0xe0

/* Static functions of arch/x86/mm.c. */

/* push %r13; mov %edi,%eax; push %r12 */
#define XEN_SIZE_get_page_from_l4e	694
#define XEN_PROLOGUE_get_page_from_l4e	0x41, 0x55, 0x89, 0xf8, 0x41, 0x54

/* push %rbx; mov %rsi,%rax; mov %rdi,%rbx */
#define XEN_SIZE_put_pt_page		157
#define XEN_PROLOGUE_put_pt_page	0x53, 0x48, 0x89, 0xf0, 0x48, 0x89, 0xfb

#ifndef __ASSEMBLER__

#include <linux/errno.h>	/* Xen's error numbers are Linux's */
#include <stdbool.h>
#include <stddef.h>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;

/*
 * The top of each CPU's Xen stack holds struct cpu_info. Its fields are found
 * from the last byte of the stack, which is the stack pointer with these bits
 * set. Seen in get_page and iommu_map.
 */
#define XEN_STACK_MASK			0x7fffUL
/* From that byte back to the running vcpu. Seen in get_page, iommu_map. */
#define XEN_STACK_CURRENT		0x37
/* From that byte back to the 32-bit CPU number. Seen in iommu_map. */
#define XEN_STACK_PROCESSOR_ID		0x3f

/* irq_stat[cpu]: log2 of the size of one entry. Seen in iommu_map. */
#define XEN_IRQ_STAT_SHIFT		7

/* struct domain: its id, 16 bits. Seen in getdomaininfo. */
#define XEN_DOMAIN_ID			0x0
/* The highest id that a domain can have. Seen in iommu_domain_init. */
#define XEN_DOMID_LAST			0x7fef
/* Option: not a PV domain. Seen in cleanup_page_mappings. */
#define XEN_DOMAIN_OPTION_HVM		0x1
/* Option: the domain has IOMMU tables. Seen in iommu_map. */
#define XEN_DOMAIN_OPTION_IOMMU		0x20

/* First struct page_info, that of PDX 0. Seen in cleanup_page_mappings. */
#define XEN_FRAME_TABLE			0xffff82e000000000UL
/* Size of struct page_info. Seen in cleanup_page_mappings. */
#define XEN_PAGE_INFO_SIZE		32
/*
 * pdx_group_valid[]: a bit for each group of so many PDX, as a logarithm, 64 to a
 * word. Seen in __mfn_valid.
 */
#define XEN_PDX_GROUP_SHIFT		16
/* struct page_info: general references. Seen in put_page. */
#define XEN_PAGE_INFO_COUNT_INFO	0x8
/* struct page_info: type and its references. Seen in _get_page_type. */
#define XEN_PAGE_INFO_TYPE_INFO		0x10
/* struct page_info: the owner's frame, 0 if none. cleanup_page_mappings. */
#define XEN_PAGE_INFO_OWNER		0x18

/* type_info: which type the references are of. Seen in _get_page_type. */
#define PGT_type_mask			0xe000000000000000UL
#define PGT_l1_page_table		0x2000000000000000UL
#define PGT_l2_page_table		0x4000000000000000UL
#define PGT_l3_page_table		0x6000000000000000UL
#define PGT_l4_page_table		0x8000000000000000UL
#define PGT_seg_desc_page		0xa000000000000000UL
#define PGT_writable_page		0xe000000000000000UL
/* type_info: safe to use as its type; set last. Seen in _get_page_type. */
#define PGT_validated			0x0400000000000000UL
/* type_info: page_lock()'s. Seen in page_unlock. */
#define PGT_locked			0x1000000000000000UL
/* type_info: number of references. Seen in _get_page_type. */
#define PGT_count_mask			0x007fffffffffffffUL

/* Size of a frame, as a logarithm. Seen in get_page. */
#define XEN_PAGE_SHIFT			12
/* The direct map's first byte: page_info.owner is a frame there. See get_page. */
#define XEN_DIRECTMAP			0xffff830000000000UL

/* What Xen adds to a PV guest's L1 entry: with no user bit. mod_l1_entry. */
#define XEN_L1_KERNEL_BITS		0x0010000000000004UL
/* The same with the user bit. See mod_l1_entry. */
#define XEN_L1_USER_BITS		0x104UL
/* The bits of an L1 entry whose change moves references. See mod_l1_entry. */
#define XEN_L1_REVALIDATED		0x000ffffffffff09bUL

/* Flag: a reference is held already. Seen in get_page_and_type_from_mfn. */
#define PTF_partial_set			0x1

/*
 * iommu_map's flags for a page that devices may read and write, as
 * _get_page_type passes it. Bits 0 to 5 are a page order: 3 is not "rw".
 */
#define IOMMUF_rw			0xc0

#pragma GCC visibility push(hidden)	/* PC-relative, never through a GOT */

struct domain;
struct vcpu;
struct payload;

struct page_info {
	u64 list;
	u64 count_info;
	u64 type_info;
	u32 owner;
	u32 partial;
};

_Static_assert(sizeof(struct page_info) == XEN_PAGE_INFO_SIZE, "page_info");
_Static_assert(offsetof(struct page_info, count_info) ==
	       XEN_PAGE_INFO_COUNT_INFO, "page_info.count_info");
_Static_assert(offsetof(struct page_info, type_info) ==
	       XEN_PAGE_INFO_TYPE_INFO, "page_info.type_info");
_Static_assert(offsetof(struct page_info, owner) == XEN_PAGE_INFO_OWNER,
	       "page_info.owner");

#include "family.h"

extern struct domain *hardware_domain;
extern u64 max_page;			/* frames */
extern u64 max_pdx;
extern u64 pdx_group_valid[];
extern u8 irq_stat[];			/* an array; XEN_IRQ_STAT_SHIFT */

/* A bool result defines %al only: it must not be declared as anything wider. */
bool __mfn_valid(u64 mfn);
bool get_page(struct page_info *page, const struct domain *d);
void put_page(struct page_info *page);
int get_page_type(struct page_info *page, unsigned long type);
void put_page_type(struct page_info *page);
int page_lock_unsafe(struct page_info *page);
void page_unlock(struct page_info *page);
void *map_domain_page(u64 mfn);
void unmap_domain_page(const void *va);
u64 *map_guest_l1e(unsigned long va, u64 *mfn);
void paging_invlpg(struct vcpu *v, unsigned long va);
long iommu_map(struct domain *d, u64 dfn, u64 mfn, unsigned long page_count,
	       u32 flags, u32 *flush_flags);
long iommu_unmap(struct domain *d, u64 dfn, unsigned long page_count,
		 u32 flags, u32 *flush_flags);
int iommu_iotlb_flush_all(struct domain *d, u32 flush_flags);
void *vzalloc(size_t size);
void vfree(void *va);
void *_xmalloc(unsigned long size, unsigned long align);
void xfree(void *p);
unsigned int copy_from_guest_pv(void *to, const void *from, unsigned int len);
unsigned int copy_to_guest_pv(void *to, const void *from, unsigned int len);
void printk(const char *format, ...) __attribute__((format(printf, 1, 2)));
int revert_payload(struct payload *payload);
int domain_pause_except_self(struct domain *d);
void domain_unpause_except_self(struct domain *d);

#pragma GCC visibility pop

static inline const char *stack_last_byte(void)
{
	unsigned long sp;

	asm volatile("mov %%rsp, %0" : "=r" (sp));
	return (const char *)(sp | XEN_STACK_MASK);
}

static inline struct vcpu *current_vcpu(void)
{
	return *(struct vcpu *const *)(stack_last_byte() - XEN_STACK_CURRENT);
}

static inline struct domain *vcpu_domain(const struct vcpu *v)
{
	return *(struct domain *const *)((const char *)v + XEN_VCPU_DOMAIN);
}

static inline struct domain *current_domain(void)
{
	return vcpu_domain(current_vcpu());
}

/* Has the vcpu a table whose teardown is to be continued first? */
static inline bool vcpu_old_guest_table(const struct vcpu *v)
{
	return *(void *const *)((const char *)v + XEN_VCPU_OLD_GUEST_TABLE);
}

static inline u32 smp_processor_id(void)
{
	return *(const u32 *)(stack_last_byte() - XEN_STACK_PROCESSOR_ID);
}

/* Does this CPU have work that waits for the hypercall to end? */
static inline bool softirq_pending(u32 cpu)
{
	return *(const volatile u32 *)(irq_stat +
				       ((u64)cpu << XEN_IRQ_STAT_SHIFT));
}

static inline void cpu_relax(void)
{
	asm volatile("pause" ::: "memory");
}

/* What follows is not executed speculatively past the checks before it. */
static inline void block_speculation(void)
{
	asm volatile("lfence" ::: "memory");
}

static inline bool domain_is_pv(const struct domain *d)
{
	const u32 *options = (const u32 *)((const char *)d +
					   XEN_DOMAIN_OPTIONS);

	return !(*options & XEN_DOMAIN_OPTION_HVM);
}

static inline u32 domain_id(const struct domain *d)
{
	return *(const u16 *)((const char *)d + XEN_DOMAIN_ID);
}

static inline u32 domain_paging_mode(const struct domain *d)
{
	return *(const u32 *)((const char *)d + XEN_DOMAIN_PAGING_MODE);
}

/* Does Xen map and unmap this domain's pages as their types change? */
static inline bool domain_needs_iommu_sync(const struct domain *d)
{
	return *((const volatile u8 *)d + XEN_DOMAIN_NEED_SYNC);
}

static inline struct page_info *pdx_to_page(u64 pdx)
{
	return (struct page_info *)XEN_FRAME_TABLE + pdx;
}

static inline struct page_info *mfn_to_page(u64 mfn)
{
	return pdx_to_page(mfn_to_pdx(mfn));
}

/* The domain whose allocation the page belongs to, NULL if none. */
static inline struct domain *page_owner(const struct page_info *page)
{
	u64 frame = page->owner;

	return frame ? (struct domain *)(XEN_DIRECTMAP +
						(frame << XEN_PAGE_SHIFT)) : NULL;
}

/* page_owner(page) == d, by the number that the page has: @d is in the direct map. */
static inline bool page_is_of(const struct page_info *page, const struct domain *d)
{
	return page->owner == ((u64)d - XEN_DIRECTMAP) >> XEN_PAGE_SHIFT;
}

#endif /* __ASSEMBLER__ */

#endif /* TRAPLESS_XEN_LAYOUT_H */
