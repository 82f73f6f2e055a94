/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Workloads over rows of numbers, each row an object of its own.
 *
 * matrix-multiply writes its result once. pca keeps a small object for each pair of
 * rows until its end: the dirty pages are new pages, all the time. kmeans makes a few
 * new rows a round.
 */
#ifndef MATRICES_H
#define MATRICES_H

#include "memory.h"

static int **make_rows(size_t rows, size_t columns, unsigned int limit)
{
	int **made = get_node(rows * sizeof(*made));

	for (size_t i = 0; i < rows; i++) {
		made[i] = get_data(columns * sizeof(**made));
		for (size_t j = 0; j < columns; j++)
			made[i][j] = limit ? (int)(next_random() % limit) : 0;
	}
	return made;
}

static void drop_rows(int **made, size_t rows)
{
	for (size_t i = 0; i < rows; i++)
		let_go(made[i]);
	let_go(made);
}

/* size: rows and columns. */
static uint64_t matrix_multiply(size_t size)
{
	int **left = make_rows(size, size, 200), **right = make_rows(size, size, 200);
	int **product = make_rows(size, size, 0);
	uint64_t sum = 0;

	for (size_t i = 0; i < size; i++)
		for (size_t j = 0; j < size; j++) {
			int cell = 0;

			for (size_t k = 0; k < size; k++)
				cell += left[i][k] * right[k][j];
			product[i][j] = cell;
		}
	for (size_t i = 0; i < size; i++)
		for (size_t j = 0; j < size; j++)
			sum = mix(sum, product[i][j]);
	drop_rows(left, size);
	drop_rows(right, size);
	drop_rows(product, size);
	return sum;
}

/* What a mapper of pca emits. */
struct covariance {
	struct covariance *next;
	uint64_t rows;
	int64_t value;
};

static int64_t covariance_of(const int *a, const int *b, int64_t mean_a, int64_t mean_b, size_t count)
{
	int64_t sum = 0;

	for (size_t i = 0; i < count; i++)
		sum += (a[i] - mean_a) * (b[i] - mean_b);
	return sum / (int64_t)(count - 1);
}

/* Mean of each row, then the covariance of each pair; size: rows, of 48 columns each. */
static uint64_t pca(size_t size)
{
	const size_t columns = 48;
	int **rows = make_rows(size, columns, 100);
	int64_t *means = get_data(size * sizeof(*means));
	struct covariance **found = get_node(size * sizeof(*found)), *next;
	uint64_t sum = 0;

	for (size_t i = 0; i < size; i++) {
		means[i] = 0;
		for (size_t j = 0; j < columns; j++)
			means[i] += rows[i][j];
		means[i] /= (int64_t)columns;
	}
	for (size_t i = 0; i < size; i++)
		for (size_t j = i; j < size; j++) {
			struct covariance *made = get_node(sizeof(*made));

			made->rows = i * size + j;
			made->value = covariance_of(rows[i], rows[j], means[i], means[j], columns);
			made->next = found[j];
			found[j] = made;
		}
	for (size_t i = 0; i < size; i++)
		for (; found[i]; found[i] = next) {
			sum = mix(mix(sum, found[i]->rows), found[i]->value);
			next = found[i]->next;
			let_go(found[i]);
		}
	let_go(found);
	let_go(means);
	drop_rows(rows, size);
	return sum;
}

#define CLUSTERS 16

static uint64_t distance(const int *a, const int *b, size_t count)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < count; i++)
		sum += (int64_t)(a[i] - b[i]) * (a[i] - b[i]);
	return sum;
}

/* The middle of a cluster's points, a new row; where it was if it has none. */
static int *middle(int *const *points, const int *of, size_t size, size_t columns, int cluster, const int *was)
{
	int64_t *sums = get_data(columns * sizeof(*sums)), count = 0;
	int *made = get_data(columns * sizeof(*made));

	memset(sums, 0, columns * sizeof(*sums));
	for (size_t i = 0; i < size; i++) {
		if (of[i] != cluster)
			continue;
		count++;
		for (size_t j = 0; j < columns; j++)
			sums[j] += points[i][j];
	}
	for (size_t j = 0; j < columns; j++)
		made[j] = count ? sums[j] / count : was[j];
	let_go(sums);
	return made;
}

/* Six rounds; size: points, of 24 coordinates each. */
static uint64_t kmeans(size_t size)
{
	const size_t columns = 24;
	int **points = make_rows(size, columns, 1000), **means = make_rows(CLUSTERS, columns, 1000);
	int *of = get_data(size * sizeof(*of));
	uint64_t sum = 0;

	for (int round = 0; round < 6; round++) {
		for (size_t i = 0; i < size; i++) {
			uint64_t best = UINT64_MAX;

			for (int cluster = 0; cluster < CLUSTERS; cluster++) {
				uint64_t far = distance(points[i], means[cluster], columns);

				if (far < best) {
					best = far;
					of[i] = cluster;
				}
			}
		}
		for (int cluster = 0; cluster < CLUSTERS; cluster++) {
			int *was = means[cluster];

			means[cluster] = middle(points, of, size, columns, cluster, was);
			let_go(was);
		}
	}
	for (size_t i = 0; i < size; i++)
		sum = mix(sum, of[i]);
	let_go(of);
	drop_rows(points, size);
	drop_rows(means, CLUSTERS);
	return sum;
}

#endif /* MATRICES_H */
