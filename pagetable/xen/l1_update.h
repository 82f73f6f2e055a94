/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef TRAPLESS_XEN_L1_UPDATE_H
#define TRAPLESS_XEN_L1_UPDATE_H

void l1_update_init(void);

#endif /* TRAPLESS_XEN_L1_UPDATE_H */
