// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Searches a tree of files in memory for a name: "find / -name temp".
 *
 * Invariant: the walk must see every file that was created, and find the one.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tree.h"
#include "workload.h"

#define FILES_A_DIRECTORY	25

static unsigned int seen, found;

void walk(char *path, void (*visit)(const char *path, const char *name, bool directory))
{
	int directory = checked(open(path, O_RDONLY | O_DIRECTORY));
	size_t length = strlen(path);
	/* what getdents64 and lstat64 give, as the kernel aligns it */
	uint64_t entries[256], status[32];
	long got;

	while ((got = checked(syscall(SYS_getdents64, directory, entries, sizeof(entries))))) {
		for (long at = 0; at < got;) {
			struct dirent64 *entry = (struct dirent64 *)((char *)entries + at);
			const char *name = entry->d_name;

			at += entry->d_reclen;
			if (!strcmp(name, ".") || !strcmp(name, ".."))
				continue;
			if (length + 1 + strlen(name) >= PATH_MAX) {
				errno = ENAMETOOLONG;
				die(name);
			}
			path[length] = '/';
			strcpy(path + length + 1, name);
			/* as find does for each */
			checked(syscall(SYS_lstat64, path, status));
			visit(path, path + length + 1, entry->d_type == DT_DIR);
			if (entry->d_type == DT_DIR)
				walk(path, visit);
		}
	}
	path[length] = 0;
	close(directory);
}

static void look(const char *path, const char *name, bool directory)
{
	(void)path;
	seen += !directory;
	found += !strcmp(name, "temp");
}

static void make(const char *path)
{
	checked(close(checked(open(path, O_WRONLY | O_CREAT, 0600))));
}

/* Directories in directories, so that paths are of several lengths. */
static void plant(unsigned int count)
{
	char name[32];

	checked(mkdir("/tmp/tree", 0700));
	for (unsigned int i = 0; i < count; i++) {
		if (i % FILES_A_DIRECTORY == 0) {
			if (i / FILES_A_DIRECTORY % 4 == 0)
				checked(chdir("/tmp/tree"));
			snprintf(name, sizeof(name), "directory%u", i / FILES_A_DIRECTORY);
			checked(mkdir(name, 0700));
			checked(chdir(name));
		}
		snprintf(name, sizeof(name), "file%u", i);
		make(i == count / 2 ? "temp" : name);
	}
	checked(chdir("/"));
}

static void run_find(const char *name, unsigned int count)
{
	char path[PATH_MAX] = "/tmp/tree";
	uint64_t from, spent;

	plant(count);
	from = ticks();
	walk(path, look);
	spent = ticks() - from;
	if (seen != count || found != 1) {
		errno = ENOENT;
		die("the walk missed files");
	}
	report(name, spent, count);
}

const struct workload tree_workloads[] = {
	{ "find", run_find, 200, 4000 },
	{ }
};
