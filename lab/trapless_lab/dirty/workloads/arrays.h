/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Workloads over one large input, which is written once and then only read, piece by
 * piece: each piece has a result of its own, as map-reduce has it, and these are joined
 * at the end. Beside the results a tracker finds next to nothing dirty.
 */
#ifndef ARRAYS_H
#define ARRAYS_H

#include "memory.h"

#define PIECE 6000UL

/* How often each value of each colour is in a piece. */
struct colours {
	struct colours *next;
	uint32_t counts[3][256];
};

/* The same in an image of 24 bits a pixel; size: bytes. */
static uint64_t histogram(size_t size)
{
	size_t bytes = size / PIECE * PIECE;
	struct colours *all = get_node(sizeof(*all)), *pieces = NULL;
	uint8_t *image = get_data(bytes);
	uint64_t sum = 0;

	for (size_t i = 0; i < bytes; i++)
		image[i] = next_random() >> 56;
	for (size_t start = 0; start < bytes; start += PIECE) {
		struct colours *piece = get_node(sizeof(*piece));

		for (size_t i = 0; i < PIECE; i++)
			piece->counts[i % 3][image[start + i]]++;
		piece->next = pieces;
		pieces = piece;
	}
	while (pieces) {
		struct colours *piece = pieces;

		for (int i = 0; i < 3 * 256; i++)
			all->counts[i / 256][i % 256] += piece->counts[i / 256][i % 256];
		pieces = piece->next;
		let_go(piece);
	}
	for (int i = 0; i < 3 * 256; i++)
		sum = mix(sum, all->counts[i / 256][i % 256]);
	let_go(all);
	let_go(image);
	return sum;
}

struct point {
	uint8_t x, y;
};

/* The sums that a line through the points of a piece is fitted by. */
struct fit {
	struct fit *next;
	uint64_t x, y, xx, yy, xy;
};

static struct fit *fit_of(const struct point *points, size_t count)
{
	struct fit *fit = get_node(sizeof(*fit));

	for (size_t i = 0; i < count; i++) {
		fit->x += points[i].x;
		fit->y += points[i].y;
		fit->xx += points[i].x * points[i].x;
		fit->yy += points[i].y * points[i].y;
		fit->xy += points[i].x * points[i].y;
	}
	return fit;
}

#define FEW_POINTS 50UL

/* The same through all points; size: bytes of points. */
static uint64_t linear_regression(size_t size)
{
	size_t count = size / sizeof(struct point) / FEW_POINTS * FEW_POINTS;
	struct point *points = get_data(count * sizeof(*points));
	struct fit *pieces = NULL, *all = get_node(sizeof(*all));
	uint64_t sum;

	for (size_t i = 0; i < count; i++) {
		uint64_t bits = next_random();

		points[i].x = bits;
		points[i].y = points[i].x / 2 + (bits >> 60);
	}
	for (size_t start = 0; start < count; start += FEW_POINTS) {
		struct fit *piece = fit_of(points + start, FEW_POINTS);

		piece->next = pieces;
		pieces = piece;
	}
	while (pieces) {
		struct fit *piece = pieces;

		all->x += piece->x;
		all->y += piece->y;
		all->xx += piece->xx;
		all->yy += piece->yy;
		all->xy += piece->xy;
		pieces = piece->next;
		let_go(piece);
	}
	sum = mix(mix(mix(mix(mix(0, all->x), all->y), all->xx), all->yy), all->xy);
	let_go(all);
	let_go(points);
	return sum;
}

#endif /* ARRAYS_H */
