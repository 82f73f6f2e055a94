/* SPDX-License-Identifier: GPL-2.0-only */
/* In the place of what the checker writes: a test chooses what is left out. */
#include "fake_xen.h"

#define PAYLOAD_PARTS	fake_parts
