// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A program for the host that writes valid and invalid texts to bt_layout:
 *
 *   layout texts        invalid in one way each; the kernel logs why
 *   layout fuzz COUNT   random texts, compared with this file's own parser
 *   layout control COUNT  the same, with a parser that accepts a page twice
 *   layout busy         to the file of a VM that is being translated
 *
 * Invariant: a refused text leaves the layout unchanged, and an accepted one is read
 * back as it was written, sorted by page. The parser here uses none of the kernel's
 * functions.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define KVM_DIRECTORY	"/sys/kernel/debug/kvm"
#define MOST_BYTES	(2 << 20)
#define MOST_PAGES	64
#define ROOM		(MOST_PAGES * 32)
/* The pages of a 36-bit address space. */
#define PAGES		(1u << 24)
/* A guest has sites long before this time has passed. */
#define TRIES		3000
#define TRY_US		10000

#define checked(value)	({ __typeof__(value) v_ = (value); if (v_ < 0) die(#value); v_; })

struct page {
	uint32_t gfn;
	uint32_t kb;
};

static _Noreturn void die(const char *what)
{
	printf("layout: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* Returns 0, or why it was refused. */
static int put(const char *path, const char *text, size_t length)
{
	int file = checked(open(path, O_WRONLY));
	ssize_t taken = write(file, text, length);
	int why = taken < 0 ? errno : 0;

	if (!why && taken != (ssize_t)length)
		die("a part was taken");
	close(file);
	return why;
}

static void get(const char *path, char *text, size_t room)
{
	int file = checked(open(path, O_RDONLY));
	size_t length = 0;
	ssize_t more;

	while ((more = checked(read(file, text + length, room - 1 - length))) > 0)
		length += more;
	text[length] = 0;
	close(file);
}

/* Return the file of a new VM with one vCPU, which does not run. */
static const char *own_layout(void)
{
	static char path[128];
	int kvm = checked(open("/dev/kvm", O_RDWR));
	int vm = checked(ioctl(kvm, KVM_CREATE_VM, 0));

	checked(ioctl(vm, KVM_CREATE_VCPU, 0));
	snprintf(path, sizeof(path), KVM_DIRECTORY "/%d-%d/bt_layout", getpid(), vm);
	return path;
}

static int digit(char c, bool hexadecimal)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (hexadecimal && (c | 0x20) >= 'a' && (c | 0x20) <= 'f')
		return (c | 0x20) - 'a' + 10;
	return -1;
}

/* Returns the first byte behind a number, or NULL if there is none below 2^32. */
static const char *number(const char *at, const char *end, bool hexadecimal, uint32_t *value)
{
	uint64_t sum = 0;
	const char *first;

	if (hexadecimal && end - at >= 2 && at[0] == '0' && (at[1] | 0x20) == 'x')
		at += 2;
	for (first = at; at < end && digit(*at, hexadecimal) >= 0; at++) {
		sum = sum * (hexadecimal ? 16 : 10) + digit(*at, hexadecimal);
		if (sum >> 32)
			return NULL;
	}
	*value = sum;
	return at == first ? NULL : at;
}

static bool good_size(uint32_t kb)
{
	for (uint32_t size = 4; size <= 256 << 10; size *= 4)
		if (kb == size)
			return true;
	return false;
}

static bool good_line(const char *at, const char *end, struct page *page)
{
	at = number(at, end, true, &page->gfn);
	if (!at || page->gfn >= PAGES || at == end || *at++ != ' ')
		return false;
	at = number(at, end, false, &page->kb);
	if (!at || !good_size(page->kb))
		return false;
	return at == end || (end - at == 7 && !memcmp(at, " traced", 7));
}

/* Parse a text. Return its number of pages, sorted; -1 if it is invalid. */
static int model(const char *text, size_t length, struct page *pages, bool twice)
{
	const char *end = text + length;
	int count = 0;

	while (text < end) {
		const char *newline = memchr(text, '\n', end - text);
		struct page page;
		int at;

		if (!good_line(text, newline ? newline : end, &page))
			return -1;
		for (at = count; at && pages[at - 1].gfn >= page.gfn; at--) {
			if (pages[at - 1].gfn == page.gfn && !twice)
				return -1;
			pages[at] = pages[at - 1];
		}
		pages[at] = page;
		count++;
		text = newline ? newline + 1 : end;
	}
	return count;
}

static void print(char *text, const struct page *pages, int count)
{
	size_t length = 0;

	text[0] = 0;
	for (int i = 0; i < count; i++)
		length += sprintf(text + length, "%x %u\n", pages[i].gfn, pages[i].kb);
}

static unsigned int below(unsigned int n)
{
	return random() % n;
}

/* Make a valid text, except that pages may repeat: there are few. */
static size_t generate(char *text)
{
	int lines = below(8);
	size_t length = 0;

	for (int i = 0; i < lines; i++)
		length += sprintf(text + length, "%x %u%s\n", below(64) << below(18),
				  4u << 2 * below(9), below(2) ? " traced" : "");
	return length;
}

static size_t spoil(char *text, size_t length)
{
	static const char bytes[] = "\n \t\r0124678afgxXt+-,\200";
	char *at = text + below(length + 1);
	size_t behind = text + length - at;

	switch (below(4)) {
	case 0:	/* cut */
		return at - text;
	case 1:	/* leave one out */
		memmove(at, at + 1, behind ? behind - 1 : 0);
		return length - !!behind;
	case 2:	/* insert one */
		memmove(at + 1, at, behind);
		length++;
		break;
	default:
		length += !behind;
	}
	/* The last one is 0. */
	*at = bytes[below(sizeof(bytes))];
	return length;
}

static void silence(void)
{
	if (put("/proc/sys/kernel/printk", "1", 1))
		die("printk");
}

static void fuzz(int count, bool twice)
{
	static char text[ROOM], expected[ROOM], found[ROOM];
	static struct page pages[MOST_PAGES];
	const char *path = own_layout();
	int taken = 0, differ = 0;

	silence();
	srandom(1);
	for (int i = 0; i < count; i++) {
		size_t length = generate(text);
		int lines, why;

		for (int times = below(3); times; times--)
			length = spoil(text, length);
		lines = model(text, length, pages, twice);
		if (lines >= 0)
			print(expected, pages, lines);
		why = put(path, text, length);
		get(path, found, sizeof(found));
		if (why != (lines < 0 ? EINVAL : 0) || strcmp(found, expected)) {
			if (!differ++)
				printf("layout: the first that differs: %.*s\n", (int)length, text);
			strcpy(expected, found);
		}
		taken += !why;
	}
	printf("layout: %d texts, %d taken, %d differ\n", count, taken, differ);
}

static void say(const char *path, const char *what, const char *text, size_t length)
{
	char before[ROOM], after[ROOM];
	int why;

	get(path, before, sizeof(before));
	why = put(path, text, length);
	get(path, after, sizeof(after));
	printf("text: %s: %d %s\n", what, why, strcmp(before, after) ? "changed" : "as it was");
}

static void texts(void)
{
	static const struct {
		const char *what;
		const char *text;
	} wrong[] = {
		{ "nothing in a line", "c28 16\n\nc29 16\n" },
		{ "no page", "page 16\n" },
		{ "a sign", "+c28 16\n" },
		{ "no such page", "c28 16\n1000000 4\n" },
		{ "a page of 2^64", "10000000000000028 16\n" },
		{ "no size", "c28\n" },
		{ "a hexadecimal size", "c28 1a\n" },
		{ "no size of an entry", "c28 4\nc29 4\nc2a 8\n" },
		{ "a size of 0", "c28 0\n" },
		{ "too large a size", "c28 1048576\n" },
		{ "one word more", "c28 16 traced again\n" },
		{ "another word", "c28 16 readable\n" },
		{ "a space more", "c28 16  traced\n" },
		{ "a space at its end", "c28 16 " },
		{ "a page twice", "c28 16\nc29 16\nc28 64\n" },
		{ NULL, NULL },
	};
	const char *path = own_layout();
	char *large = malloc(MOST_BYTES + 1);
	int file;

	say(path, "a good one", "c29 16 traced\n0xC28 4096", 24);
	for (size_t i = 0; wrong[i].what; i++)
		say(path, wrong[i].what, wrong[i].text, strlen(wrong[i].text));
	say(path, "a 0", "c28 16\0\n", 8);
	memset(large, '\n', MOST_BYTES + 1);
	say(path, "too many bytes", large, MOST_BYTES + 1);
	say(path, "as many as there may be", large, MOST_BYTES);
	file = checked(open(path, O_WRONLY));
	checked(write(file, "c30 4\n", 6));
	printf("text: one write more: %d\n", write(file, "c31 4\n", 6) < 0 ? errno : 0);
	close(file);
	say(path, "nothing at all", "", 0);
}

/* The value of a VM's counter; 0 if it has none yet. */
static unsigned int counter(const char *vm, const char *name)
{
	char path[512], text[32];

	snprintf(path, sizeof(path), KVM_DIRECTORY "/%s/%s", vm, name);
	if (access(path, R_OK))
		return 0;
	get(path, text, sizeof(text));
	return strtoul(text, NULL, 10);
}

static bool find_translated(char *path, size_t room)
{
	DIR *directory = opendir(KVM_DIRECTORY);
	struct dirent *entry;
	bool found = false;

	if (!directory)
		die(KVM_DIRECTORY);
	while (!found && (entry = readdir(directory))) {
		found = strchr(entry->d_name, '-') && counter(entry->d_name, "bt_sites");
		snprintf(path, room, KVM_DIRECTORY "/%s/bt_layout", entry->d_name);
	}
	closedir(directory);
	return found;
}

static void busy(void)
{
	char path[512];

	for (int tries = 0; tries < TRIES; tries++, usleep(TRY_US)) {
		if (find_translated(path, sizeof(path))) {
			printf("text: while it runs: %d\n", put(path, "c28 4\n", 6));
			return;
		}
	}
	printf("layout: no VM is translated\n");
	exit(1);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	int count = argc > 2 ? atoi(argv[2]) : 0;

	if (!strcmp(what, "texts"))
		texts();
	else if (!strcmp(what, "fuzz") || !strcmp(what, "control"))
		fuzz(count, !strcmp(what, "control"));
	else if (!strcmp(what, "busy"))
		busy();
	else
		return 2;
	return 0;
}
