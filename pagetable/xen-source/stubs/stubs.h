/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Stands in for the headers of Xen 4.17 that the patches include: only what they
 * use, declared as Xen declares it, so that a wrong type does not compile. What
 * is no macro or inline function in Xen is a function here, too, of the name that
 * the model of Xen in ../../xen/tests/host gives it; a frame number in a struct
 * is passed as a plain one is.
 */
#ifndef STUBS_H
#define STUBS_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef ERESTART
#define ERESTART 85
#endif

#define BITS_PER_LONG 64
#define BITS_TO_LONGS(bits) (((bits) + BITS_PER_LONG - 1) / BITS_PER_LONG)
#define ACCESS_ONCE(x) (*(volatile typeof(x) *)&(x))
#define ASSERT(p) do { if ( !(p) ) __builtin_trap(); } while ( 0 )
#define smp_mb() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define cmpxchg(ptr, o, n) __sync_val_compare_and_swap(ptr, o, n)
#define arch_fetch_and_add(ptr, v) \
    __atomic_fetch_add(ptr, (typeof(*(ptr)))(v), __ATOMIC_SEQ_CST)

/* xen/mm-frame.h, xen/iommu.h: numbers that do not mix. */
typedef struct { unsigned long m; } mfn_t;
typedef struct { unsigned long d; } dfn_t;
static inline mfn_t _mfn(unsigned long m) { return (mfn_t){ m }; }
static inline unsigned long mfn_x(mfn_t m) { return m.m; }
static inline dfn_t _dfn(unsigned long d) { return (dfn_t){ d }; }
static inline unsigned long dfn_x(dfn_t d) { return d.d; }

/* asm/bitops.h: the number of a bit is an int. */
static inline int test_bit(int nr, const volatile unsigned long *addr)
{
    return *addr >> nr & 1;
}
static inline int test_and_set_bit(int nr, volatile unsigned long *addr)
{
    return __atomic_fetch_or(addr, 1UL << nr, __ATOMIC_SEQ_CST) >> nr & 1;
}
static inline int test_and_clear_bit(int nr, volatile unsigned long *addr)
{
    return __atomic_fetch_and(addr, ~(1UL << nr), __ATOMIC_SEQ_CST) >> nr & 1;
}
#define ffsl(x) __builtin_ffsl(x)

typedef struct { int counter; } atomic_t;
static inline int atomic_read(const atomic_t *v)
{
    return *(volatile const int *)&v->counter;
}
static inline void atomic_set(atomic_t *v, int i) { v->counter = i; }
static inline void atomic_inc(atomic_t *v)
{
    __atomic_fetch_add(&v->counter, 1, __ATOMIC_SEQ_CST);
}
static inline void atomic_dec(atomic_t *v)
{
    __atomic_fetch_sub(&v->counter, 1, __ATOMIC_SEQ_CST);
}

void cpu_relax(void);

/* xen/spinlock.h: a ticket lock. */
typedef struct { uint32_t next, serving; } spinlock_t;
static inline void spin_lock_init(spinlock_t *l) { *l = (spinlock_t){}; }
static inline void spin_lock(spinlock_t *l)
{
    uint32_t ticket = __atomic_fetch_add(&l->next, 1, __ATOMIC_SEQ_CST);

    while ( *(volatile uint32_t *)&l->serving != ticket )
        cpu_relax();
}
static inline void spin_unlock(spinlock_t *l)
{
    __atomic_fetch_add(&l->serving, 1, __ATOMIC_SEQ_CST);
}

/* asm/mm.h */
struct domain;
struct page_info {
    uint64_t list;
    unsigned long count_info;
    union { struct { unsigned long type_info; } inuse; } u;
    uint32_t owner, other;
};
#define PGC_xen_heap      (1UL << 62)
#define PGC_extra         (1UL << 57)
#define PGT_type_mask     (7UL << 61)
#define PGT_writable_page (7UL << 61)
#define PGT_locked        (1UL << 60)
#define PGT_validated     (1UL << 58)
#define PGT_count_mask    ((1UL << 55) - 1)

extern unsigned long max_pdx;
bool __mfn_valid(unsigned long mfn);
#define mfn_valid(mfn) __mfn_valid(mfn_x(mfn))
unsigned long mfn_to_pdx(mfn_t mfn);
struct page_info *mfn_to_page(mfn_t mfn);
struct page_info *pdx_to_page(unsigned long pdx);
struct domain *page_owner(const struct page_info *page);
#define page_get_owner(pg) page_owner(pg)
bool get_page(struct page_info *page, const struct domain *d);
void put_page(struct page_info *page);
int get_page_type(struct page_info *page, unsigned long type);
void put_page_type(struct page_info *page);
void page_unlock(struct page_info *page);
static inline void put_page_and_type(struct page_info *page)
{
    put_page_type(page);
    put_page(page);
}
static inline bool is_special_page(const struct page_info *page)
{
    return page->count_info & (PGC_xen_heap | PGC_extra);
}
/* As arch/x86/mm.c specifies it. */
static inline int page_lock(struct page_info *page)
{
    unsigned long x, nx;

    do {
        while ( (x = ACCESS_ONCE(page->u.inuse.type_info)) & PGT_locked )
            cpu_relax();
        nx = x + (1 | PGT_locked);
        if ( !(x & PGT_validated) || !(x & PGT_count_mask) ||
             !(nx & PGT_count_mask) )
            return 0;
    } while ( cmpxchg(&page->u.inuse.type_info, x, nx) != x );

    return 1;
}

/* xen/iommu.h */
#define IOMMUF_preempt  (1u << 8)
#define IOMMUF_readable (1u << 6)
#define IOMMUF_writable (1u << 7)
long iommu_map(struct domain *d, dfn_t dfn, mfn_t mfn, unsigned long page_count,
               unsigned int flags, unsigned int *flush_flags)
    __attribute__((warn_unused_result));
long iommu_unmap(struct domain *d, dfn_t dfn, unsigned long page_count,
                 unsigned int flags, unsigned int *flush_flags)
    __attribute__((warn_unused_result));
int iommu_iotlb_flush_all(struct domain *d, unsigned int flush_flags)
    __attribute__((warn_unused_result));
bool domain_needs_iommu_sync(const struct domain *d);
#define need_iommu_pt_sync(d) domain_needs_iommu_sync(d)

void *vzalloc(size_t size);
void vfree(void *va);
void *_xmalloc(unsigned long size, unsigned long align);
void xfree(void *p);
#define xmalloc_array(type, num) \
    ((type *)_xmalloc(sizeof(type) * (num), __alignof__(type)))

void block_speculation(void);
bool softirq_pending(unsigned int cpu);
unsigned int smp_processor_id(void);
#define hypercall_preempt_check() softirq_pending(smp_processor_id())

/* public/xen.h, xen/guest_access.h */
#define XEN_GUEST_HANDLE(name) __guest_handle_ ## name
#define XEN_GUEST_HANDLE_PARAM(name) XEN_GUEST_HANDLE(name)
#define __DEFINE_XEN_GUEST_HANDLE(name, type) \
    typedef struct { type *p; } __guest_handle_ ## name
#define DEFINE_XEN_GUEST_HANDLE(name) __DEFINE_XEN_GUEST_HANDLE(name, name)
DEFINE_XEN_GUEST_HANDLE(uint64_t);
DEFINE_XEN_GUEST_HANDLE(void);
#define guest_handle_cast(hnd, type) ({ \
    type *_x = (hnd).p;                 \
    (XEN_GUEST_HANDLE_PARAM(type)) { _x }; })
#define guest_handle_from_ptr(ptr, type) \
    ((XEN_GUEST_HANDLE_PARAM(type)) { (type *)ptr })
unsigned int copy_from_guest_pv(void *to, const void *from, unsigned int len);
unsigned int copy_to_guest_pv(void *to, const void *from, unsigned int len);
#define copy_from_guest(ptr, hnd, nr) ({         \
    const typeof(*(ptr)) *_s = (hnd).p;          \
    copy_from_guest_pv(ptr, _s, sizeof(*_s) * (nr)); })
#define copy_to_guest(hnd, ptr, nr) ({           \
    const typeof(*(ptr)) *_s = (ptr);            \
    void *_d = (hnd).p;                          \
    copy_to_guest_pv(_d, _s, sizeof(*_s) * (nr)); })
#define copy_field_to_guest(hnd, ptr, field) ({  \
    const typeof(&(ptr)->field) _s = &(ptr)->field; \
    void *_d = &(hnd).p->field;                  \
    copy_to_guest_pv(_d, _s, sizeof(*_s)); })

#endif /* STUBS_H */
