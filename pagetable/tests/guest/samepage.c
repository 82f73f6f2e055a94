/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * samepage: pages that ksm has merged are never written through.
 *
 * COPIES ranges hold the same bytes. Once ksm has merged them, one of them is
 * written here and there, with forks in between; the others must keep theirs.
 */
#define _GNU_SOURCE
#include "oracle.h"

#define PAGES 64UL
#define COPIES 3UL
#define ROUNDS 3
#define PATIENCE_S 60
#define KSM "/sys/kernel/mm/ksm/"

static unsigned long merged(void)
{
	FILE *file = fopen(KSM "pages_sharing", "r");
	unsigned long pages;

	if (!file || fscanf(file, "%lu", &pages) != 1)
		err(1, "pages_sharing");
	fclose(file);
	return pages;
}

int main(void)
{
	char *memory = map_private(COPIES * PAGES);
	uint64_t tags[COPIES * PAGES], state = 3;

	if (madvise(memory, COPIES * PAGES * PAGE, MADV_MERGEABLE))
		err(1, "MADV_MERGEABLE");
	/* Linux 6.7 and later leaves pages out for a while that were not merged at once. */
	if (!access(KSM "smart_scan", W_OK))
		write_text(KSM "smart_scan", "0");
	write_text(KSM "sleep_millisecs", "5");
	write_text(KSM "pages_to_scan", "1000");
	write_text(KSM "run", "1");
	for (unsigned int round = 0; round < ROUNDS; round++) {
		for (unsigned long i = 0; i < COPIES * PAGES; i++) {
			tags[i] = (round + 1) * PAGES + i % PAGES;
			fill_page(memory + i * PAGE, tags[i]);
		}
		for (unsigned int s = 0; merged() < (COPIES - 1) * PAGES; s++) {
			if (s == PATIENCE_S * 10)
				errx(1, "ksm has merged %lu pages only", merged());
			usleep(100000);
		}
		for (unsigned int i = 0; i < COPIES * PAGES / 2; i++) {
			unsigned long page = next_random(&state) % (COPIES * PAGES);
			unsigned long last = page + next_random(&state) % 8;

			if (i % 16 == 0)
				fork_once();
			for (; page < last && page < COPIES * PAGES; page++) {
				tags[page] = next_random(&state);
				fill_page(memory + page * PAGE, tags[page]);
			}
		}
		for (unsigned long i = 0; i < COPIES * PAGES; i++)
			check_page(memory + i * PAGE, tags[i], "ksm", i);
	}
	write_text(KSM "run", "2");
	for (unsigned long i = 0; i < COPIES * PAGES; i++)
		check_page(memory + i * PAGE, tags[i], "unmerged", i);
	return 0;
}
