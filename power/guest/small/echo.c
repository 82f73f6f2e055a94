// SPDX-License-Identifier: Apache-2.0 OR MIT
/* echo: its arguments on a line, and no options. */
#include "small.h"

void start(char **stack)
{
	long count = (long)stack[0];
	char **argv = stack + 1;
	char line[512];
	long length = 0;

	for (long i = 1; i < count; i++) {
		long more = length_of(argv[i]);

		if (length + more + 1 > (long)sizeof(line))
			EXIT(1);
		for (long j = 0; j < more; j++)
			line[length++] = argv[i][j];
		line[length++] = i + 1 < count ? ' ' : '\n';
	}
	EXIT(WRITE(1, line, length) != length);
}
