// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * What a host does, line by line of a file:
 *
 *   run LABEL PROGRAM ARGUMENT...    run it and wait for its end
 *   start LABEL PROGRAM ARGUMENT...  run it in the background
 *   wait                             for all started programs to end
 *   sleep MILLISECONDS
 *   kill                             all started programs, which must all be running
 *   write PATH TEXT                  to a file of the kernel
 *   show LABEL PATH                  print a file
 *
 * In arguments @TICKS@ is replaced by the clock when the program starts. Words are
 * separated by single spaces; "..." quotes spaces.
 *
 * Invariant: a program's output is kept in memory and printed on the console when it has
 * ended, each line as "LABEL| line": while a guest runs, no console interrupts it. With
 * "live" on the kernel's command line it goes directly to the console, to see where
 * something hangs. The first line that fails is the last.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "workload.h"

#define MOST_WORDS	64
#define MOST_STARTED	8

struct program {
	char label[64];
	pid_t pid;
};

static struct program started[MOST_STARTED];
static unsigned int started_count;

/* In place. */
static int split(char *line, char **words)
{
	int count = 0;

	line[strcspn(line, "\n")] = 0;
	while (*line && count < MOST_WORDS - 1) {
		bool quoted = *line == '"';

		line += quoted;
		words[count++] = line;
		line += strcspn(line, quoted ? "\"" : " ");
		if (*line)
			*line++ = 0;
		if (quoted && *line == ' ')
			line++;
	}
	words[count] = NULL;
	return count;
}

static void output_path(char *path, size_t size, const char *label)
{
	snprintf(path, size, "/tmp/output-%.63s", label);
}

static char *with_ticks(const char *word)
{
	const char *at = strstr(word, "@TICKS@");
	char *filled;

	if (!at)
		return strdup(word);
	checked(asprintf(&filled, "%.*s%llu%s", (int)(at - word), word,
			 (unsigned long long)ticks(), at + strlen("@TICKS@")));
	return filled;
}

static pid_t launch(const char *label, char **argv)
{
	pid_t pid = checked(fork());
	char path[128];
	int file;

	if (pid)
		return pid;
	if (!option("live")) {
		output_path(path, sizeof(path), label);
		file = checked(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600));
		checked(dup2(file, STDOUT_FILENO));
		checked(dup2(file, STDERR_FILENO));
	}
	file = checked(open("/dev/null", O_RDONLY));
	checked(dup2(file, STDIN_FILENO));
	for (char **word = argv; *word; word++)
		*word = with_ticks(*word);
	execv(argv[0], argv);
	die(argv[0]);
}

/* A file's lines behind @label; false if it cannot be read. */
static bool show(const char *label, const char *path)
{
	FILE *file = fopen(path, "r");
	char line[1024];

	if (!file)
		return false;
	while (fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\r\n")] = 0;
		printf("%s| %s\n", label, line);
	}
	fclose(file);
	return true;
}

static bool finish(const char *label, pid_t pid)
{
	char path[128];
	int status;

	checked(waitpid(pid, &status, 0));
	output_path(path, sizeof(path), label);
	if (!option("live"))
		show(label, path);
	unlink(path);
	printf("ended %s %d\n", label, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
	return !status;
}

static bool finish_all(void)
{
	bool good = true;

	for (unsigned int i = 0; i < started_count; i++)
		good &= finish(started[i].label, started[i].pid);
	started_count = 0;
	return good;
}

static bool kill_all(void)
{
	bool good = true;

	for (unsigned int i = 0; i < started_count; i++) {
		char path[128];
		int status;

		checked(kill(started[i].pid, SIGKILL));
		checked(waitpid(started[i].pid, &status, 0));
		good &= WIFSIGNALED(status);
		output_path(path, sizeof(path), started[i].label);
		unlink(path);
		printf("killed %s\n", started[i].label);
	}
	started_count = 0;
	return good;
}

static bool write_text(const char *path, const char *text)
{
	int file = open(path, O_WRONLY);
	bool good = file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text);

	if (file >= 0)
		close(file);
	return good;
}

static bool do_line(char **words, int count)
{
	if (!strcmp(words[0], "run") && count > 2)
		return finish(words[1], launch(words[1], words + 2));
	if (!strcmp(words[0], "start") && count > 2) {
		struct program *program = &started[started_count];

		if (started_count == MOST_STARTED) {
			errno = EAGAIN;
			return false;
		}
		snprintf(program->label, sizeof(program->label), "%s", words[1]);
		program->pid = launch(words[1], words + 2);
		started_count++;
		return true;
	}
	if (!strcmp(words[0], "wait") && count == 1)
		return finish_all();
	if (!strcmp(words[0], "sleep") && count == 2)
		return !usleep(1000 * atoi(words[1]));
	if (!strcmp(words[0], "kill") && count == 1)
		return kill_all();
	if (!strcmp(words[0], "write") && count == 3)
		return write_text(words[1], words[2]);
	if (!strcmp(words[0], "show") && count == 3)
		return show(words[1], words[2]);
	errno = EINVAL;
	return false;
}

bool run_script(const char *path)
{
	FILE *script = fopen(path, "r");
	char *words[MOST_WORDS];
	char line[4096], kept[4096];
	int count;

	if (!script)
		die(path);
	while (fgets(line, sizeof(line), script)) {
		strcpy(kept, line);
		count = split(line, words);
		errno = 0;
		if (count && !do_line(words, count)) {
			printf("failed: %s: %s", errno ? strerror(errno) : "exit code", kept);
			return false;
		}
	}
	fclose(script);
	return true;
}
