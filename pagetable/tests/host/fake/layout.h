/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Stands in for pagetable/xen/layout.h: the same names over a model of Xen in
 * fake_xen.c instead of the running hypervisor. The numbers are not repeated
 * here; layout_values.h is cut from the real file when the tests are built.
 */
#ifndef TRAPLESS_XEN_LAYOUT_H
#define TRAPLESS_XEN_LAYOUT_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

#include "layout_values.h"

/* The few domains there are: what is kept for each is copied often. */
#define XEN_DOMID_LAST	7

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;

struct domain;
struct payload;

struct page_info {
	u64 list;
	u64 count_info;
	u64 type_info;
	u32 owner;
	u32 partial;
};

extern struct domain *hardware_domain;
extern u64 max_pdx;

bool __mfn_valid(u64 mfn);
bool get_page(struct page_info *page, const struct domain *d);
void put_page(struct page_info *page);
int get_page_type(struct page_info *page, unsigned long type);
void put_page_type(struct page_info *page);
void page_unlock(struct page_info *page);
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

struct domain *current_domain(void);
u32 smp_processor_id(void);
bool softirq_pending(u32 cpu);
void block_speculation(void);
void cpu_relax(void);
bool domain_is_pv(const struct domain *d);
bool domain_needs_iommu_sync(const struct domain *d);
u32 domain_id(const struct domain *d);
u64 mfn_to_pdx(u64 mfn);
struct page_info *pdx_to_page(u64 pdx);
struct page_info *mfn_to_page(u64 mfn);
u64 pdx_to_mfn(u64 pdx);
struct domain *page_owner(const struct page_info *page);

#endif /* TRAPLESS_XEN_LAYOUT_H */
