// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * sh -c COMMAND, as much of it as a measurement of "sh -c" needs: one command of
 * words, which it runs in a child and waits for. Debian 12 has no shell for this
 * processor; a real one would also read its startup files.
 */
#include "small.h"

#define MOST_WORDS	8

/* Splits in place. Return: the number of words. */
static int split(char *text, char **words)
{
	int count = 0;

	while (*text && count < MOST_WORDS - 1) {
		while (*text == ' ')
			*text++ = 0;
		if (*text)
			words[count++] = text;
		while (*text && *text != ' ')
			text++;
	}
	words[count] = 0;
	return count;
}

void start(char **stack)
{
	char **argv = stack + 1;
	char *words[MOST_WORDS];
	static char path[64] = "/bin/";
	long child, length, prefix = length_of(path);
	int status;

	if ((long)stack[0] != 3 || !split(argv[2], words))
		EXIT(2);
	length = length_of(words[0]);
	if (prefix + length + 1 > (long)sizeof(path))
		EXIT(126);
	for (long i = 0; i <= length; i++)
		path[prefix + i] = words[0][i];
	child = call(__NR_fork, 0, 0, 0, 0);
	if (child < 0)
		EXIT(126);
	if (!child) {
		call(__NR_execve, (long)path, (long)words, (long)(argv + 4), 0);
		EXIT(127);
	}
	if (call(__NR_wait4, child, (long)&status, 0, 0) != child)
		EXIT(126);
	EXIT(status >> 8 & 0xff);
}
