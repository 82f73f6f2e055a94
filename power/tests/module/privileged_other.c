// SPDX-License-Identifier: GPL-2.0-only
/* The module of privileged.c with other instructions in the same places. */
#define TRAPLESS_OTHER
#include "privileged.c"
