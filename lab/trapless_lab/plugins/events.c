// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A QEMU plugin that counts how often a machine runs certain instructions, between two
 * markers that a program in the guest emits (profiled.h): those at the addresses of a
 * plan, and those that empty a TLB, wherever they are.
 *
 * Invariants:
 *
 * - An entry is counted once for each time a CPU comes into the hypervisor from a guest:
 *   at the first entry point that runs after the CPU has left. A fault or an interrupt of
 *   the hypervisor's own code does not come from a guest, and is not counted.
 * - An instruction is counted when it begins; one that faults and is repeated, twice.
 * - Code is known by its address and its bytes at its execution: Xen and Linux patch
 *   themselves while they boot, and a livepatch replaces only what follows an entry.
 *
 * Any number of CPUs: all of them count between the markers of one of them. The plan is
 * one item a line; items of one name are counted together:
 *
 *   event ADDRESS NAME    count this instruction
 *   entry ADDRESS NAME    count it as an entry
 *   leave FIRST END       a return in this code leaves the hypervisor
 *
 * For each interval the file has "begin", a line "NAME COUNT" for each count that is not
 * 0, and "end". The plugin's own names are those of instructions[] below, each after
 * "xen:" or "kernel:", by whose code ran it.
 */
#include <inttypes.h>

#include "code.h"

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

#define NAMES_MAX 64
#define NAME_SIZE 32
#define ITEMS_MAX 128
#define CPUS_MAX  64

struct count {
	char name[NAME_SIZE];
	uint64_t now;
	uint64_t at_start;
};

struct item {
	enum { EVENT, ENTRY, LEAVE } what;
	uint64_t first;
	uint64_t end; /* of LEAVE alone */
	struct count *count;
};

enum { CR3, CR4, INVLPG, INVPCID, INSTRUCTIONS };

static const char *const instructions[INSTRUCTIONS] = { "cr3", "cr4", "invlpg", "invpcid" };

static struct count counts[NAMES_MAX];
static size_t count_count;
static struct item items[ITEMS_MAX];
static size_t item_count;
static struct count *emptying[KINDS][INSTRUCTIONS];
static bool outside[CPUS_MAX]; /* since the CPU's last return out of the hypervisor */
static bool counting;
static FILE *output;

static void add(struct count *count)
{
	__atomic_fetch_add(&count->now, 1, __ATOMIC_RELAXED);
}

static void on_event(unsigned int vcpu, void *data)
{
	(void)vcpu;
	add(data);
}

static void on_entry(unsigned int vcpu, void *data)
{
	if (vcpu >= CPUS_MAX)
		die("too many CPUs");
	if (outside[vcpu])
		add(data);
	outside[vcpu] = false;
}

static void on_leave(unsigned int vcpu, void *data)
{
	(void)data;
	if (vcpu >= CPUS_MAX)
		die("too many CPUs");
	outside[vcpu] = true;
}

static void on_start(unsigned int vcpu, void *data)
{
	(void)vcpu;
	(void)data;
	for (size_t i = 0; i < count_count; i++)
		counts[i].at_start = counts[i].now;
	counting = true;
}

static void on_stop(unsigned int vcpu, void *data)
{
	(void)vcpu;
	(void)data;
	if (!counting)
		return;
	counting = false;
	fprintf(output, "begin\n");
	for (size_t i = 0; i < count_count; i++)
		if (counts[i].now != counts[i].at_start)
			fprintf(output, "%s %" PRIu64 "\n", counts[i].name,
				counts[i].now - counts[i].at_start);
	fprintf(output, "end\n");
	fflush(output);
}

/* Translation. */

/* Returns which of instructions[] this is, or INSTRUCTIONS. */
static unsigned int emptying_a_tlb(struct qemu_plugin_insn *insn)
{
	size_t size;
	const uint8_t *code = opcode(insn, &size);
	unsigned int field;

	if (size < 3 || code[0] != 0x0f)
		return INSTRUCTIONS;
	field = code[2] >> 3 & 7;
	if (code[1] == 0x22)
		return field == 3 ? CR3 : field == 4 ? CR4 : INSTRUCTIONS;
	/* With a register for its operand this opcode is swapgs and others. */
	if (code[1] == 0x01 && field == 7 && code[2] >> 6 != 3)
		return INVLPG;
	return code[1] == 0x38 && code[2] == 0x82 ? INVPCID : INSTRUCTIONS;
}

static bool is_return_outside(struct qemu_plugin_insn *insn)
{
	size_t size;
	const uint8_t *code = opcode(insn, &size);

	return (size == 1 && code[0] == 0xcf) || (size == 2 && code[0] == 0x0f && code[1] == 0x07);
}

static void watch(struct qemu_plugin_insn *insn, qemu_plugin_executed_t on, struct count *count)
{
	qemu_plugin_register_vcpu_insn_exec_cb(insn, on, QEMU_PLUGIN_CB_NO_REGS, count);
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	(void)id;
	for (size_t i = 0; i < qemu_plugin_tb_n_insns(tb); i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
		uint64_t address = qemu_plugin_insn_vaddr(insn);
		enum kind kind = kind_of(address);
		unsigned int which;

		if (kind == USER) {
			watch_markers(insn, on_start, on_stop);
			continue;
		}
		which = emptying_a_tlb(insn);
		if (which != INSTRUCTIONS)
			watch(insn, on_event, emptying[kind][which]);
		for (const struct item *item = items; item < items + item_count; item++)
			if (item->what == LEAVE) {
				if (address >= item->first && address < item->end &&
				    is_return_outside(insn))
					watch(insn, on_leave, NULL);
			} else if (item->first == address) {
				watch(insn, item->what == ENTRY ? on_entry : on_event, item->count);
			}
	}
}

static struct count *count_of(const char *name)
{
	for (size_t i = 0; i < count_count; i++)
		if (!strcmp(counts[i].name, name))
			return counts + i;
	if (count_count == NAMES_MAX)
		die("too many names");
	strcpy(counts[count_count].name, name);
	return counts + count_count++;
}

static void read_plan(const char *path)
{
	FILE *file = fopen(path, "r");
	char line[128], name[NAME_SIZE];

	if (!file)
		die("cannot read the plan");
	while (fgets(line, sizeof(line), file)) {
		struct item item = { 0 };

		if (item_count == ITEMS_MAX)
			die("the plan is too long");
		if (sscanf(line, "event %" SCNx64 " %31s", &item.first, name) == 2)
			item.what = EVENT;
		else if (sscanf(line, "entry %" SCNx64 " %31s", &item.first, name) == 2)
			item.what = ENTRY;
		else if (sscanf(line, "leave %" SCNx64 " %" SCNx64, &item.first, &item.end) == 2)
			item.what = LEAVE;
		else
			die("the plan has an unknown line");
		if (item.what != LEAVE)
			item.count = count_of(name);
		items[item_count++] = item;
	}
	fclose(file);
}

static void name_instructions(enum kind kind, const char *prefix)
{
	char name[NAME_SIZE];

	for (unsigned int i = 0; i < INSTRUCTIONS; i++) {
		snprintf(name, sizeof(name), "%s:%s", prefix, instructions[i]);
		emptying[kind][i] = count_of(name);
	}
}

int qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info *info, int argc, char **argv)
{
	static const char to[] = "output=", from[] = "plan=";

	if (strcmp(info->target_name, "x86_64") || !info->system_emulation)
		die("not an x86-64 machine");
	if (argc != 2 || strncmp(argv[0], to, strlen(to)) || strncmp(argv[1], from, strlen(from)))
		die("give output=FILE,plan=FILE");
	output = fopen(argv[0] + strlen(to), "w");
	if (!output)
		die("cannot write the output file");
	read_plan(argv[1] + strlen(from));
	name_instructions(XEN, "xen");
	name_instructions(KERNEL, "kernel");
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
	return 0;
}
