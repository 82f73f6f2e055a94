/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * dirtymemory save IMAGE ROOT		a digest of each page of process ROOT and of all below it
 * dirtymemory compare IMAGE		the same of the same pids now; exit status 1 if they differ
 * dirtymemory signal IMAGE NUMBER	send them a signal
 * dirtymemory run COMMAND...		run it, and be the parent of what it leaves behind
 *
 * The witness of checkpoints: it reads memory alone, of processes that are stopped,
 * and asks no tracker. Left out are the pages that the kernel itself provides (vDSO,
 * vvar). A page that cannot be read counts as one that is not there.
 *
 * A dead process keeps its pid until its parent has waited for it, and a restore
 * wants the pid: hence "run".
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define BATCH 256UL
#define NAMED 8

struct page {
	uint64_t pid;
	uint64_t address;
	uint64_t digest;
};

static struct page *pages;
static size_t count, room;
static pid_t processes[4096];
static size_t tree;

static uint64_t digest(const char *bytes)
{
	uint64_t sum = 0xcbf29ce484222325, word;

	for (size_t at = 0; at < PAGE; at += sizeof(word)) {
		memcpy(&word, bytes + at, sizeof(word));
		sum = (sum ^ word) * 0x100000001b3;
		sum ^= sum >> 29;
	}
	return sum;
}

static void add(pid_t pid, uint64_t address, uint64_t sum)
{
	if (count == room) {
		room = room ? 2 * room : 1 << 16;
		pages = realloc(pages, room * sizeof(*pages));
		if (!pages)
			err(1, "no memory");
	}
	pages[count++] = (struct page){ .pid = pid, .address = address, .digest = sum };
}

static void read_range(pid_t pid, int memory, uint64_t start, uint64_t end)
{
	static char bytes[BATCH * PAGE];

	while (start < end) {
		size_t length = end - start < sizeof(bytes) ? end - start : sizeof(bytes);
		ssize_t got = pread(memory, bytes, length, start);

		if (got < (ssize_t)PAGE) {
			start += PAGE;
			continue;
		}
		for (ssize_t at = 0; at + (ssize_t)PAGE <= got; at += PAGE)
			add(pid, start + at, digest(bytes + at));
		start += got / PAGE * PAGE;
	}
}

static void read_process(pid_t pid)
{
	char path[64], line[PATH_MAX + 256];
	uint64_t start, end;
	FILE *maps;
	int memory;

	snprintf(path, sizeof(path), "/proc/%d/mem", pid);
	memory = open(path, O_RDONLY);
	if (memory < 0)
		err(1, "%s", path);
	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	maps = fopen(path, "r");
	if (!maps)
		err(1, "%s", path);
	while (fgets(line, sizeof(line), maps)) {
		if (strstr(line, "[v"))
			continue;
		if (sscanf(line, "%" SCNx64 "-%" SCNx64, &start, &end) != 2)
			errx(1, "%s: %s", path, line);
		read_range(pid, memory, start, end);
	}
	fclose(maps);
	close(memory);
}

/* The process and all below it. */
static void find_tree(pid_t root)
{
	char path[96];
	DIR *tasks;
	struct dirent *task;
	FILE *children;
	pid_t child;

	if (tree == sizeof(processes) / sizeof(*processes))
		errx(1, "too many processes");
	processes[tree++] = root;
	snprintf(path, sizeof(path), "/proc/%d/task", root);
	tasks = opendir(path);
	if (!tasks)
		err(1, "%s", path);
	while ((task = readdir(tasks))) {
		if (task->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/%d/task/%.20s/children", root, task->d_name);
		children = fopen(path, "r");
		if (!children)
			err(1, "%s", path);
		while (fscanf(children, "%d", &child) == 1)
			find_tree(child);
		fclose(children);
	}
	closedir(tasks);
}

static void save(const char *image, pid_t root)
{
	FILE *file = fopen(image, "w");

	find_tree(root);
	for (size_t i = 0; i < tree; i++)
		read_process(processes[i]);
	if (!file || fwrite(pages, sizeof(*pages), count, file) != count || fclose(file))
		err(1, "%s", image);
	printf("%zu processes, %zu pages\n", tree, count);
}

/* The pages of an image, sorted by process. */
static struct page *load(const char *image, size_t *number)
{
	FILE *file = fopen(image, "r");
	struct page *saved;
	long length;

	if (!file || fseek(file, 0, SEEK_END))
		err(1, "%s", image);
	length = ftell(file);
	rewind(file);
	*number = length / sizeof(*saved);
	saved = malloc(length + 1);
	if (!saved || !*number || fread(saved, sizeof(*saved), *number, file) != *number)
		errx(1, "%s is no image", image);
	fclose(file);
	return saved;
}

/* Name the first few, so that somebody can find out what is there. */
static void name(const struct page *page, const char *how)
{
	static unsigned int named;

	if (named++ < NAMED)
		printf("process %" PRIu64 ", address %#" PRIx64 ": %s\n", page->pid, page->address, how);
}

static int compare(const char *image)
{
	size_t number, wrong = 0, absent = 0, at = 0;
	struct page *saved = load(image, &number);

	for (size_t i = 0; i < number; i++)
		if (!i || saved[i].pid != saved[i - 1].pid)
			read_process(saved[i].pid);
	for (size_t i = 0; i < number; i++) {
		/* What is new: at the end of the process before, or in this one. */
		while (at < count && ((i && pages[at].pid == saved[i - 1].pid &&
				       pages[at].pid != saved[i].pid) ||
				      (pages[at].pid == saved[i].pid &&
				       pages[at].address < saved[i].address)))
			name(&pages[at++], "not there before"), absent++;
		if (at < count && pages[at].pid == saved[i].pid &&
		    pages[at].address == saved[i].address) {
			if (pages[at++].digest != saved[i].digest)
				name(&saved[i], "differs"), wrong++;
		} else {
			name(&saved[i], "not there any more"), absent++;
		}
	}
	for (; at < count; at++)
		name(&pages[at], "not there before"), absent++;
	printf("%zu pages, %zu differ, %zu on one side only\n", number, wrong, absent);
	return wrong || absent;
}

static void send(const char *image, int number)
{
	size_t length;
	struct page *saved = load(image, &length);

	for (size_t i = 0; i < length; i++)
		if ((!i || saved[i].pid != saved[i - 1].pid) && kill(saved[i].pid, number) &&
		    errno != ESRCH)
			err(1, "process %" PRIu64, saved[i].pid);
}

static int run(char **command)
{
	pid_t first, ended;
	int status, result = 1;

	if (prctl(PR_SET_CHILD_SUBREAPER, 1))
		err(1, "PR_SET_CHILD_SUBREAPER");
	first = fork();
	if (first < 0)
		err(1, "fork");
	if (!first) {
		execvp(command[0], command);
		err(127, "%s", command[0]);
	}
	do {
		ended = wait(&status);
		if (ended == first)
			result = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	} while (ended != first);
	return result;
}

int main(int words, char **word)
{
	int result = 0;

	if (words == 4 && !strcmp(word[1], "save"))
		save(word[2], atoi(word[3]));
	else if (words == 3 && !strcmp(word[1], "compare"))
		result = compare(word[2]);
	else if (words == 4 && !strcmp(word[1], "signal"))
		send(word[2], atoi(word[3]));
	else if (words > 2 && !strcmp(word[1], "run"))
		result = run(word + 2);
	else
		errx(2, "usage: dirtymemory save IMAGE ROOT | compare IMAGE | signal IMAGE N | run COMMAND");
	return result;
}
