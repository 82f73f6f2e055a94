/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The execute pages that the guest gives to its host, part of the kernel's text.
 */
#ifndef __TRAPLESS_BT_H
#define __TRAPLESS_BT_H

#define TRAPLESS_BT_PAGES	16

#ifndef __ASSEMBLY__
extern char trapless_bt_execute[];
#endif

#endif /* __TRAPLESS_BT_H */
