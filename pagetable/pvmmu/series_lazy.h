/* SPDX-License-Identifier: GPL-2.0-only */
/* Modes in which a CPU collects operations, instead of doing them at once, in each series. */
#ifndef PVMMU_SERIES_LAZY_H
#define PVMMU_SERIES_LAZY_H

#include <linux/smp.h>

#include "series.h"

#if SERIES_IS(6, 1)

#include <asm/paravirt.h>

#define SERIES_LAZY_SYMBOL	"paravirt_get_lazy_mode"
#define SERIES_LAZY_MODE_SYMBOL	"paravirt_lazy_mode"
#define SERIES_LAZY_NONE	PARAVIRT_LAZY_NONE
#define SERIES_LAZY_CPU		PARAVIRT_LAZY_CPU
typedef enum paravirt_lazy_mode series_lazy_mode_t;
typedef enum paravirt_lazy_mode series_lazy_t(void);

typedef void series_leave_mm_t(int cpu);

static inline void series_leave_mm(series_leave_mm_t *stock)
{
	stock(smp_processor_id());
}

#elif SERIES_IS(6, 12)

#include <asm/xen/hypervisor.h>

#define SERIES_LAZY_SYMBOL	"xen_get_lazy_mode"
#define SERIES_LAZY_MODE_SYMBOL	"xen_lazy_mode"
#define SERIES_LAZY_NONE	XEN_LAZY_NONE
#define SERIES_LAZY_CPU		XEN_LAZY_CPU
typedef enum xen_lazy_mode series_lazy_mode_t;
typedef enum xen_lazy_mode series_lazy_t(void);

typedef void series_leave_mm_t(void);

static inline void series_leave_mm(series_leave_mm_t *stock)
{
	stock();
}

#endif

#endif /* PVMMU_SERIES_LAZY_H */
