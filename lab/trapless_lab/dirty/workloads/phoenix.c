// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The eight kernels of Phoenix' list (map-reduce over an array, rows or a text), written
 * for this repository, to be tracked; see memory.h for what they print.
 *
 * phoenix KERNEL SIZE
 */
#include "arrays.h"
#include "matrices.h"
#include "text.h"

static const struct {
	const char *name;
	uint64_t (*run)(size_t size);
} kernels[] = {
	{ "histogram", histogram },
	{ "kmeans", kmeans },
	{ "linear-regression", linear_regression },
	{ "matrix-multiply", matrix_multiply },
	{ "pca", pca },
	{ "reverse-index", reverse_index },
	{ "string-match", string_match },
	{ "word-count", word_count },
};

int main(int argc, char **argv)
{
	if (argc != 3)
		errx(2, "usage: phoenix KERNEL SIZE");
	workload_begin();
	for (size_t i = 0; i < sizeof(kernels) / sizeof(*kernels); i++) {
		uint64_t start, sum;

		if (strcmp(argv[1], kernels[i].name))
			continue;
		start = workload_ns();
		sum = kernels[i].run(workload_number(argv[2]));
		workload_end(argv[1], sum, workload_ns() - start);
		return 0;
	}
	errx(2, "no kernel is called \"%s\"", argv[1]);
}
