// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A QEMU plugin that measures spans: the instructions from a call of a kernel
 * function to its return, for each execution of the functions that a plan names.
 * It also records, in the same order, executions of other addresses of the plan.
 *
 * Invariants:
 *
 * - A span begins after a direct call of the function and ends with the return
 *   that loads the return address which this call stored, known by its stack
 *   address. So executions of a function that calls itself, or runs in two tasks
 *   at once, are never confused, and code that runs before or instead of the
 *   function (ftrace, a livepatch) is part of the span.
 * - Kernel and hypervisor instructions are counted separately. A span during which
 *   the kernel was interrupted, took a fault or switched tasks is marked: it
 *   contains instructions of other code.
 * - An entry without a direct call (a tail call, a pointer) is not a span; it has a
 *   record of its own.
 * - The file is whole if its last record is the one for the end.
 *
 * One CPU only. The plan is one item a line, all numbers hexadecimal:
 *
 *   call ENTRY ID FIRST LAST   spans: calls of ENTRY from code in FIRST..LAST
 *   point ADDRESS              noted in the innermost span, the first time
 *   event ADDRESS ID           a record each time it runs
 *   foreign ADDRESS            where other code than the span's work begins
 *
 * The file is a row of struct record; ids from 0xff00 on are the plugin's own.
 */
#include <inttypes.h>

#include "code.h"

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

enum { ID_START = 0xff00, ID_STOP, ID_MISSED, ID_END };

/* Both in the byte order of the host, x86's. */
struct record {
	uint64_t at;	 /* instructions of the machine, user code's too, when it began */
	uint32_t kernel; /* of a span: its instructions */
	uint32_t xen;
	uint32_t point; /* kernel and Xen instructions up to the point, or 0 */
	uint16_t id;
	uint16_t foreign; /* 1: it contains instructions of other code */
};

struct item {
	enum { CALL, POINT, EVENT, FOREIGN } what;
	uint64_t address;
	uint64_t first;
	uint64_t last;
	unsigned int id;
	bool *called; /* shared by the items of one function: its entry comes next */
	struct item *next;
};

struct span {
	uint64_t slot; /* where its call stored the return address */
	uint64_t kernel;
	uint64_t xen;
	struct record record;
};

/* More than the tasks that are inside traced functions at once. */
#define SPANS_MAX 256

static struct counts executed; /* by kind */
static struct item *plan;
static struct span spans[SPANS_MAX];
static unsigned int open_spans;
static FILE *output;

static uint64_t ran(enum kind kind)
{
	return counted(&executed, kind);
}

static uint64_t now(void)
{
	return ran(USER) + ran(KERNEL) + ran(XEN);
}

static void put(const struct record *record)
{
	if (fwrite(record, sizeof(*record), 1, output) != 1)
		die("cannot write the spans");
}

static void drop(unsigned int i)
{
	memmove(spans + i, spans + i + 1, (--open_spans - i) * sizeof(*spans));
}

static void on_call(unsigned int vcpu, qemu_plugin_meminfo_t info, uint64_t slot, void *data)
{
	const struct item *item = data;

	(void)vcpu;
	if (!crosses(info, true))
		return;
	/* A task that ended inside a function left its stack to another. */
	for (unsigned int i = 0; i < open_spans; i++)
		if (spans[i].slot == slot)
			drop(i--);
	if (open_spans == SPANS_MAX)
		die("too many spans at once");
	*item->called = true;
	spans[open_spans++] = (struct span){
		.slot = slot,
		.kernel = ran(KERNEL),
		.xen = ran(XEN),
		.record = { .at = now(), .id = item->id },
	};
}

static void on_return(unsigned int vcpu, qemu_plugin_meminfo_t info, uint64_t slot, void *data)
{
	(void)vcpu;
	(void)data;
	if (!crosses(info, false))
		return;
	for (unsigned int i = open_spans; i--;) {
		struct span *s = spans + i;

		if (s->slot != slot)
			continue;
		s->record.kernel = ran(KERNEL) - s->kernel;
		s->record.xen = ran(XEN) - s->xen;
		put(&s->record);
		drop(i);
		break;
	}
}

static void on_entry(unsigned int vcpu, void *item)
{
	bool *called = ((struct item *)item)->called;

	(void)vcpu;
	if (!*called)
		put(&(struct record){ .at = now(), .id = ID_MISSED });
	*called = false;
}

static void on_point(unsigned int vcpu, void *data)
{
	struct span *s = spans + open_spans - 1;

	(void)vcpu;
	(void)data;
	if (open_spans && !s->record.point)
		s->record.point = ran(KERNEL) - s->kernel + ran(XEN) - s->xen;
}

static void on_event(unsigned int vcpu, void *item)
{
	(void)vcpu;
	put(&(struct record){ .at = now(), .id = ((struct item *)item)->id });
}

static void on_foreign(unsigned int vcpu, void *data)
{
	(void)vcpu;
	(void)data;
	for (unsigned int i = 0; i < open_spans; i++)
		spans[i].record.foreign = 1;
}

static void on_start(unsigned int vcpu, void *data)
{
	(void)vcpu;
	(void)data;
	put(&(struct record){ .at = now(), .id = ID_START });
}

static void on_stop(unsigned int vcpu, void *data)
{
	(void)vcpu;
	(void)data;
	put(&(struct record){ .at = now(), .id = ID_STOP });
	fflush(output);
}

static void on_end(qemu_plugin_id_t id, void *data)
{
	(void)id;
	(void)data;
	put(&(struct record){ .at = now(), .id = ID_END });
	fclose(output);
}

/* Translation. */

static void watch(struct qemu_plugin_insn *insn, const struct item *item)
{
	static const qemu_plugin_executed_t on[] = {
		[CALL] = on_entry, [POINT] = on_point, [EVENT] = on_event, [FOREIGN] = on_foreign,
	};

	qemu_plugin_register_vcpu_insn_exec_cb(insn, on[item->what], QEMU_PLUGIN_CB_NO_REGS,
					       (void *)item);
}

static void watch_kernel(struct qemu_plugin_insn *insn)
{
	uint64_t site = qemu_plugin_insn_vaddr(insn), target = direct_target(insn, DIRECT_CALL);
	size_t size;

	if (is_return(opcode(insn, &size)))
		watch_crossing(insn, on_return, NULL);
	for (const struct item *item = plan; item; item = item->next)
		if (item->what == CALL && item->address == target && site >= item->first &&
		    site <= item->last) {
			watch_crossing(insn, on_call, (void *)item);
			break;
		}
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	(void)id;
	for (size_t i = 0; i < qemu_plugin_tb_n_insns(tb); i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
		uint64_t address = qemu_plugin_insn_vaddr(insn);
		enum kind kind = kind_of(address);
		uint64_t entry = 0;

		count_insn(insn, &executed, kind);
		if (kind == USER) {
			watch_markers(insn, on_start, on_stop);
			continue;
		}
		for (const struct item *item = plan; item; item = item->next)
			if (item->address == address && (item->what != CALL || entry != address)) {
				watch(insn, item);
				if (item->what == CALL)
					entry = address;
			}
		if (kind == KERNEL)
			watch_kernel(insn);
	}
}

/* Returns the flag for calls of a function, shared by all its items. */
static bool *calls_of(uint64_t entry)
{
	for (const struct item *item = plan; item; item = item->next)
		if (item->what == CALL && item->address == entry)
			return item->called;
	return must(calloc(1, sizeof(bool)));
}

static void read_plan(const char *path)
{
	FILE *file = fopen(path, "r");
	struct item **end = &plan;
	char line[128];

	if (!file)
		die("cannot read the plan");
	while (fgets(line, sizeof(line), file)) {
		struct item *item = must(calloc(1, sizeof(*item)));

		if (sscanf(line, "call %" SCNx64 " %x %" SCNx64 " %" SCNx64, &item->address,
			   &item->id, &item->first, &item->last) == 4) {
			item->what = CALL;
			item->called = calls_of(item->address);
		} else if (sscanf(line, "event %" SCNx64 " %x", &item->address, &item->id) == 2) {
			item->what = EVENT;
		} else if (sscanf(line, "point %" SCNx64, &item->address) == 1) {
			item->what = POINT;
		} else if (sscanf(line, "foreign %" SCNx64, &item->address) == 1) {
			item->what = FOREIGN;
		} else {
			die("the plan has an unknown line");
		}
		*end = item;
		end = &item->next;
	}
	fclose(file);
}

int qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info *info, int argc, char **argv)
{
	static const char to[] = "output=", from[] = "plan=";

	if (strcmp(info->target_name, "x86_64") || !info->system_emulation ||
	    info->system.max_vcpus != 1)
		die("not a machine with one x86-64 CPU");
	if (argc != 2 || strncmp(argv[0], to, strlen(to)) || strncmp(argv[1], from, strlen(from)))
		die("give output=FILE,plan=FILE");
	output = fopen(argv[0] + strlen(to), "w");
	if (!output)
		die("cannot write the output file");
	read_plan(argv[1] + strlen(from));
	make(&executed, KINDS);
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
	qemu_plugin_register_atexit_cb(id, on_end, NULL);
	return 0;
}
