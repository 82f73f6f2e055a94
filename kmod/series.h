/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The series of Linux whose memory management the modules were compared with. Debian's
 * fixes stay within a series; another series is refused here, before anything is built.
 *
 * What differs between the series has a name in a header series_*.h of the module that
 * needs it, so the other files have one text for all. A new series begins here.
 */
#ifndef TRAPLESS_SERIES_H
#define TRAPLESS_SERIES_H

#include <linux/version.h>

#define SERIES_IS(major, minor) \
	(LINUX_VERSION_MAJOR == (major) && LINUX_VERSION_PATCHLEVEL == (minor))

#if !SERIES_IS(6, 1) && !SERIES_IS(6, 12)
#error "unknown kernel: the modules were compared with Linux 6.1 and 6.12"
#endif

#endif /* TRAPLESS_SERIES_H */
