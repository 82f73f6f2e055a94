// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Loads and unloads kernel modules, whose code is the work:
 *
 *   modules=NAME[:PARAMETER=VALUE...],...   of /modules/NAME.ko, in this order
 *
 * A VALUE of @SYMBOL stands for the address of the kernel's symbol. 1 is written to a
 * module's parameter "again", if there is one; then each readable parameter is printed,
 * as "module NAME PARAMETER VALUE", and the module is unloaded. A module named with '!'
 * in front must find an error in its code, and refuse to be loaded.
 *
 * Invariant: only one module is loaded at a time, so the next one can get its memory.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "workload.h"

/* False if it found something wrong. */
static bool load(const char *name, const char *parameter)
{
	bool good = true;
	const char *symbol = parameter ? strstr(parameter, "=@") : NULL;
	char path[PATH_MAX], filled[256] = "";
	int file;

	if (symbol)
		snprintf(filled, sizeof(filled), "%.*s=%u", (int)(symbol - parameter), parameter,
			 (unsigned int)kernel_symbol(symbol + 2));
	else if (parameter)
		snprintf(filled, sizeof(filled), "%s", parameter);
	snprintf(path, sizeof(path), "/modules/%s.ko", name);
	file = checked(open(path, O_RDONLY));
	if (syscall(SYS_finit_module, file, filled, 0)) {
		if (errno != EINVAL)
			die(path);
		good = false;
	}
	close(file);
	return good;
}

static void run_again(const char *directory)
{
	char path[PATH_MAX + 16];
	int file;

	snprintf(path, sizeof(path), "%s/again", directory);
	file = open(path, O_WRONLY);
	if (file < 0)
		return;
	checked(write(file, "1", 1));
	close(file);
}

static void print_module(const char *name, const char *directory)
{
	DIR *parameters = opendir(directory);
	struct dirent *entry;

	while (parameters && (entry = readdir(parameters))) {
		char path[2 * PATH_MAX], value[256] = "";
		FILE *file;

		snprintf(path, sizeof(path), "%s/%s", directory, entry->d_name);
		file = entry->d_name[0] == '.' || access(path, R_OK) ? NULL : fopen(path, "r");
		if (file && fgets(value, sizeof(value), file))
			printf("module %s %s %s", name, entry->d_name, value);
		if (file)
			fclose(file);
	}
	if (parameters)
		closedir(parameters);
}

static void run_modules(const char *name, unsigned int count)
{
	const char *wanted = option("modules=");
	char *rest = strdup(wanted ? wanted : ""), *module;
	uint64_t started = ticks();

	while ((module = strsep(&rest, ","))) {
		char *parameter = module, directory[PATH_MAX];
		bool wrong = *module == '!';

		strsep(&parameter, ":");
		if (load(module + wrong, parameter) == wrong)
			die(module);
		if (wrong) {
			printf("refused %s\n", module + wrong);
			continue;
		}
		snprintf(directory, sizeof(directory), "/sys/module/%s/parameters", module);
		run_again(directory);
		print_module(module, directory);
		checked((int)syscall(SYS_delete_module, module, O_NONBLOCK));
	}
	report(name, ticks() - started, count);
}

const struct workload module_workloads[] = {
	{ "modules", run_modules, 1, 1 },
	{ }
};
