// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A model of EPML (docs/epml.md) in a stock QEMU: this plugin is the processor's
 * part and the server of the ivshmem device that shows the guest its registers
 * and rings (trapless_epml.h) and carries its interrupts.
 *
 * Invariants:
 *
 * - A store by an armed processor to a page whose L is 0 is in that processor's
 *   ring before any processor can find L set; or L stays 0 and an overrun is
 *   reported. So a page is reported at most once for each time it is armed, and
 *   never lost silently.
 * - Each processor remembers pages whose L it found set until it flushes its
 *   TLB, as hardware would: a guest that clears L without a shootdown loses
 *   stores here, too.
 * - Nothing that the guest writes into the shared memory leads outside of it.
 *
 * QEMU calls a plugin after the store itself, which another processor may see
 * earlier; section 8 of docs/epml.md says why no user can see the difference.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "trapless_epml.h"
#include "code.h"

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

/* Bits of faults: mistakes that the tests must catch, and permitted variants of a processor. */
enum fault {
	FAULT_DROP_ON_FULL = 1 << 0,  /* like the authors' version: L is set, without a report */
	FAULT_STAY_ARMED = 1 << 1,    /* disarming does nothing */
	FAULT_FIRST_PAGE = 1 << 2,    /* of a store that straddles two only the first is logged */
	FAULT_OTHER_VERSION = 1 << 3, /* a version that the module does not know */
	FAULT_MUTE = 1 << 4,	      /* interrupts never arrive */
};

static const struct {
	const char *name;
	enum fault fault;
} fault_names[] = {
	{ "drop-on-full", FAULT_DROP_ON_FULL },
	{ "stay-armed", FAULT_STAY_ARMED },
	{ "first-page", FAULT_FIRST_PAGE },
	{ "other-version", FAULT_OTHER_VERSION },
	{ "mute", FAULT_MUTE },
};

#define TAGS (TRAPLESS_EPML_TAG_MASK + 1)
#define PAGE ((uint64_t)TRAPLESS_EPML_PAGE)
/* Pages of the user half, with one bit for each. */
#define USER_BITS 47
#define USER_PAGES ((UINT64_C(1) << USER_BITS) / PAGE)
#define WORD_PAGES 64
#define WORDS_PER_PAGE (PAGE / sizeof(uint64_t))

/* Like a TLB's: a few hundred. */
#define REMEMBERED 512

struct processor {
	struct trapless_epml_processor *registers;
	uint64_t *ring;
	uint64_t head; /* the guest sees a copy */
	uint64_t tag;
	int interrupt;
	uint64_t remembered[REMEMBERED]; /* entries whose L was found set, or 0 */
	/* Not visible to the guest. */
	uint64_t logged;
	uint64_t overruns;
	uint64_t interrupts;
	uint64_t arms;
	uint64_t commands;
};

static struct processor *processors;
static unsigned int count;
static uint64_t entries = 32768;
static unsigned int faults;
static FILE *output;

/* L of each page of a tag, one bit a page; made when the tag is first seen, never freed. */
static uint64_t *logged_pages[TAGS];
/* Held while a processor checks L, logs, and sets it. */
static pthread_mutex_t logging = PTHREAD_MUTEX_INITIALIZER;

/* Returns the address of L of a tag's pages; the host allocates memory on use. */
static uint64_t *pages_of(uint64_t tag)
{
	uint64_t *pages = __atomic_load_n(&logged_pages[tag], __ATOMIC_ACQUIRE), *none = NULL;

	if (pages)
		return pages;
	pages = mmap(NULL, USER_PAGES / 8, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (pages == MAP_FAILED)
		die("no address space for another tag");
	if (!__atomic_compare_exchange_n(&logged_pages[tag], &none, pages, false, __ATOMIC_ACQ_REL,
					 __ATOMIC_ACQUIRE)) {
		munmap(pages, USER_PAGES / 8);
		pages = none;
	}
	return pages;
}

static uint64_t read_register(const __u64 *from)
{
	return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}

static void write_register(__u64 *to, uint64_t value)
{
	__atomic_store_n(to, value, __ATOMIC_RELEASE);
}

static void overrun(struct processor *p)
{
	__u64 none = 0;

	p->overruns++;
	if (!__atomic_compare_exchange_n(&p->registers->overrun, &none, p->tag, false,
					 __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) &&
	    none != p->tag)
		write_register(&p->registers->overrun, TRAPLESS_EPML_OVERRUN_MANY);
}

/* Puts an entry into the ring, if there is room; returns false if not. */
static bool append(struct processor *p, uint64_t entry)
{
	uint64_t waiting = p->head - read_register(&p->registers->tail);
	uint64_t one = 1;

	if (waiting >= entries)
		return false;
	p->ring[p->head++ & (entries - 1)] = entry;
	write_register(&p->registers->head, p->head);
	p->logged++;
	if (waiting + 1 == read_register(&p->registers->threshold) && !(faults & FAULT_MUTE)) {
		if (write(p->interrupt, &one, sizeof(one)) != sizeof(one))
			die("cannot interrupt");
		p->interrupts++;
	}
	return true;
}

static void stored(struct processor *p, uint64_t address)
{
	uint64_t page = address / PAGE, entry = page * PAGE | p->tag;
	uint64_t *remembered = &p->remembered[(page ^ p->tag * 31) % REMEMBERED];
	uint64_t *word, bit = UINT64_C(1) << page % WORD_PAGES;

	if (*remembered == entry)
		return;
	word = &pages_of(p->tag)[page / WORD_PAGES];
	if (!(__atomic_load_n(word, __ATOMIC_ACQUIRE) & bit)) {
		bool set = true;

		pthread_mutex_lock(&logging);
		if (!(__atomic_load_n(word, __ATOMIC_ACQUIRE) & bit)) {
			set = append(p, entry) || (faults & FAULT_DROP_ON_FULL);
			if (set)
				__atomic_fetch_or(word, bit, __ATOMIC_RELEASE);
			else
				overrun(p);
		}
		pthread_mutex_unlock(&logging);
		if (!set)
			return;
	}
	*remembered = entry;
}

static void clear_pages(uint64_t *pages, uint64_t first, uint64_t mask)
{
	unsigned int shift = first % WORD_PAGES;

	__atomic_fetch_and(&pages[first / WORD_PAGES], ~(mask << shift), __ATOMIC_ACQ_REL);
	if (shift && first / WORD_PAGES + 1 < USER_PAGES / WORD_PAGES)
		__atomic_fetch_and(&pages[first / WORD_PAGES + 1], ~(mask >> (WORD_PAGES - shift)),
				   __ATOMIC_ACQ_REL);
}

/* The host frees the range between, most of which was never used. */
static void clear_range(uint64_t *pages, uint64_t first, uint64_t last)
{
	const uint64_t whole = WORDS_PER_PAGE * WORD_PAGES;
	uint64_t from = (first + whole - 1) / whole * whole, to = last / whole * whole;

	if (from < to) {
		if (madvise(pages + from / WORD_PAGES, (to - from) / 8, MADV_DONTNEED))
			die("cannot clear L");
	} else {
		from = to = last;
	}
	for (uint64_t page = first; page < last; page++) {
		if (page == from)
			page = to;
		if (page < last)
			clear_pages(pages, page, 1);
	}
}

static uint64_t obey(struct processor *p, uint64_t command, uint64_t first, uint64_t second)
{
	uint64_t tag = first & TRAPLESS_EPML_TAG_MASK, page = first / PAGE;

	p->commands++;
	switch (command) {
	case TRAPLESS_EPML_HELLO:
		p->tag = 0;
		return trapless_epml_answer(first, p - processors);
	case TRAPLESS_EPML_ARM:
		if (tag)
			p->arms++;
		if (tag || !(faults & FAULT_STAY_ARMED))
			p->tag = tag;
		return 0;
	case TRAPLESS_EPML_REARM:
		if (page < USER_PAGES)
			clear_pages(pages_of(tag), page, second);
		return 0;
	case TRAPLESS_EPML_REARM_RANGE:
		if (page < USER_PAGES)
			clear_range(pages_of(tag), page,
				    page + (second < USER_PAGES - page ? second : USER_PAGES - page));
		return 0;
	}
	return 0;
}

static void on_access(unsigned int vcpu, qemu_plugin_meminfo_t info, uint64_t address, void *data)
{
	struct processor *p = processors + vcpu;
	uint64_t last, command;

	(void)data;
	/* QEMU 7.2 calls this for loads, too. */
	if (!qemu_plugin_mem_is_store(info))
		return;
	if (address >> USER_BITS) {
		if (address % PAGE != offsetof(struct trapless_epml_processor, command))
			return;
		command = read_register(&p->registers->command);
		if (!command)
			return;
		write_register(&p->registers->result,
			       obey(p, command, read_register(&p->registers->arguments[0]),
				    read_register(&p->registers->arguments[1])));
		write_register(&p->registers->command, 0);
		return;
	}
	if (!p->tag)
		return;
	stored(p, address);
	last = address + (1u << qemu_plugin_mem_size_shift(info)) - 1;
	if (last / PAGE != address / PAGE && !(last >> USER_BITS) && !(faults & FAULT_FIRST_PAGE))
		stored(p, last);
}

static void on_flush(unsigned int vcpu, void *data)
{
	(void)data;
	memset(processors[vcpu].remembered, 0, sizeof(processors[vcpu].remembered));
}

/* Returns whether an instruction flushes the TLB, a page of it or all. */
static bool flushes(struct qemu_plugin_insn *insn)
{
	size_t size;
	const uint8_t *code = opcode(insn, &size);

	if (size < 3 || code[0] != 0x0f)
		return false;
	switch (code[1]) {
	case 0x22: /* mov to a control register */
		return true;
	case 0x01: /* invlpg: /7 with memory */
		return code[2] >> 6 != 3 && (code[2] >> 3 & 7) == 7;
	case 0x38: /* invpcid */
		return code[2] == 0x82;
	}
	return false;
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	(void)id;
	for (size_t i = 0; i < qemu_plugin_tb_n_insns(tb); i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);

		qemu_plugin_register_vcpu_mem_cb(insn, on_access, QEMU_PLUGIN_CB_NO_REGS,
						 QEMU_PLUGIN_MEM_RW, NULL);
		if (kind_of(qemu_plugin_insn_vaddr(insn)) != USER && flushes(insn))
			qemu_plugin_register_vcpu_insn_exec_cb(insn, on_flush,
							       QEMU_PLUGIN_CB_NO_REGS, NULL);
	}
}

static void on_end(qemu_plugin_id_t id, void *data)
{
	struct processor sum = { 0 };

	(void)id;
	(void)data;
	for (unsigned int i = 0; i < count; i++) {
		sum.logged += processors[i].logged;
		sum.overruns += processors[i].overruns;
		sum.interrupts += processors[i].interrupts;
		sum.arms += processors[i].arms;
		sum.commands += processors[i].commands;
	}
	fprintf(output, "logged=%" PRIu64 "\noverruns=%" PRIu64 "\ninterrupts=%" PRIu64
		"\narms=%" PRIu64 "\ncommands=%" PRIu64 "\n",
		sum.logged, sum.overruns, sum.interrupts, sum.arms, sum.commands);
	fclose(output);
}

/* The protocol of ivshmem's server: numbers of 64 bits, some with a descriptor. */
static void send_number(int to, int64_t number, int descriptor)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec part = { &number, sizeof(number) };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };

	if (descriptor >= 0) {
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.header), &descriptor, sizeof(int));
	}
	if (sendmsg(to, &message, 0) != sizeof(number))
		die("cannot talk to ivshmem");
}

static void serve(int to)
{
	uint64_t stride = PAGE + (entries * sizeof(uint64_t) + PAGE - 1) / PAGE * PAGE;
	uint64_t size = PAGE;
	struct trapless_epml_identity *identity;
	int memory = memfd_create("epml", MFD_CLOEXEC);
	char *shared;

	while (size < PAGE + count * stride)
		size *= 2;
	if (memory < 0 || ftruncate(memory, size))
		die("cannot make the shared memory");
	shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	if (shared == MAP_FAILED)
		die("cannot map the shared memory");
	identity = (void *)shared;
	*identity = (struct trapless_epml_identity){
		.magic = TRAPLESS_EPML_MAGIC,
		.version = TRAPLESS_EPML_VERSION + !!(faults & FAULT_OTHER_VERSION),
		.processors = count,
		.entries = entries,
		.stride = stride,
	};
	send_number(to, 0, -1); /* the protocol's version */
	send_number(to, 0, -1); /* the guest's number */
	send_number(to, -1, memory);
	for (unsigned int i = 0; i < count; i++) {
		struct processor *p = processors + i;

		p->registers = (void *)(shared + PAGE + i * stride);
		p->ring = (uint64_t *)(p->registers + 1);
		p->interrupt = eventfd(0, EFD_CLOEXEC);
		if (p->interrupt < 0)
			die("cannot make an interrupt");
		send_number(to, 0, p->interrupt);
	}
}

static enum fault fault_called(const char *name)
{
	for (unsigned int i = 0; i < sizeof(fault_names) / sizeof(*fault_names); i++)
		if (!strcmp(name, fault_names[i].name))
			return fault_names[i].fault;
	die("no such fault");
}

int qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info *info, int argc, char **argv)
{
	int server = -1;

	if (strcmp(info->target_name, "x86_64") || !info->system_emulation)
		die("not an x86-64 machine");
	for (int i = 0; i < argc; i++) {
		char *value = strchr(argv[i], '=');

		if (!value)
			die("an option without a value");
		*value++ = 0;
		if (!strcmp(argv[i], "output"))
			output = fopen(value, "w");
		else if (!strcmp(argv[i], "server"))
			server = atoi(value);
		else if (!strcmp(argv[i], "entries"))
			entries = strtoull(value, NULL, 10);
		else if (!strcmp(argv[i], "fault"))
			faults |= fault_called(value);
		else
			die("an unknown option");
	}
	if (!output || server < 0)
		die("give output=FILE,server=DESCRIPTOR");
	if (entries < TRAPLESS_EPML_ENTRIES_MIN || entries > TRAPLESS_EPML_ENTRIES_MAX ||
	    entries & (entries - 1))
		die("a ring has a power of two of entries");
	count = info->system.max_vcpus;
	processors = must(calloc(count, sizeof(*processors)));
	serve(server);
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
	qemu_plugin_register_atexit_cb(id, on_end, NULL);
	return 0;
}
