/* SPDX-License-Identifier: GPL-2.0-only */
/* Which frames are marked or held, and whose they are; see marks.c. */
#ifndef TRAPLESS_MARKS_H
#define TRAPLESS_MARKS_H

#include "layout.h"

/* The two bits of a frame; never both are set. */
enum mark {
	MARKED,
	HELD,
	NR_MARKS
};

/* Frames per word of the map. */
#define MARKS_PER_WORD	64

/**
 * struct domain_marks - what the calls of one domain share
 * @next:    the lock's next ticket
 * @serving: the ticket of the lock's holder
 * @frames:  how many frames of the domain are marked, and held
 * @domain:  the domain, which exists for as long as it has marked frames
 * @scanned: words of the map that its teardown has been through
 *
 * A cache line each, so that contention in one domain slows no other.
 */
struct domain_marks {
	u32 next;
	u32 serving;
	u64 frames[NR_MARKS];
	struct domain *domain;
	u64 scanned;
} __attribute__((aligned(64)));

#pragma GCC visibility push(hidden)	/* PC-relative, never through a GOT */

int marks_init(void);
void marks_exit(void);
struct domain_marks *marks_of(const struct domain *d);
struct domain_marks *marks_of_id(u32 id);
void marks_lock(struct domain_marks *own);
void marks_unlock(struct domain_marks *own);
bool marks_waited_for(const struct domain_marks *own);
u64 marks_words(void);
u64 marks_word(u64 word, enum mark mark);
bool mark_possible(u64 mfn);
bool mark_is_set(u64 pdx, enum mark mark);
bool mark_test_and_set(u64 pdx, enum mark mark);
bool mark_test_and_clear(u64 pdx, enum mark mark);

#pragma GCC visibility pop

#endif /* TRAPLESS_MARKS_H */
