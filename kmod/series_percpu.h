/* SPDX-License-Identifier: GPL-2.0-only */
/* A word of a per-CPU variable in assembler: its operand, where the series differ. */
#ifndef TRAPLESS_SERIES_PERCPU_H
#define TRAPLESS_SERIES_PERCPU_H

#include <asm/percpu.h>

#include "series.h"

#if SERIES_IS(6, 1)
#define SERIES_PER_CPU(variable, offset) PER_CPU_VAR(variable) + offset(%rip)
#elif SERIES_IS(6, 12)
/* Relative to the instruction already. */
#define SERIES_PER_CPU(variable, offset) PER_CPU_VAR(variable + offset)
#endif

#endif /* TRAPLESS_SERIES_PERCPU_H */
