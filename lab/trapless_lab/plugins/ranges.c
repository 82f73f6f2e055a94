// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A QEMU plugin that counts the instructions which a kernel executes in ranges of
 * its code, and those from given calls to their returns, while a second copy of the
 * same kernel runs at the same addresses as its guest.
 *
 * Invariants:
 *
 * - The first kernel is distinguished from any other by the offset between its virtual
 *   and physical addresses, which differs from that of a guest.
 * - Each instruction is counted exactly once when it begins: in its range, in the rest
 *   of the first kernel, or elsewhere.
 * - A span ends at the return address of its own call. A call within a span is part of
 *   it, and does not begin another span.
 * - The file is whole if its last line says "end".
 *
 * One CPU of 32 bits only. The plan is one item a line, all numbers hexadecimal:
 *
 *   base ADDRESS       where kernels begin; first
 *   range FIRST END    END is not part of it; the order is that of the output
 *   span CALL          instructions from this call, itself included, to its return
 */
#include <inttypes.h>

#include "code.h"

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

#define INSN_SIZE	4
#define RANGES_MAX	64
#define SPANS_MAX	256
#define DEPTH_MAX	16

struct range {
	uint64_t first;
	uint64_t end;
};

struct call {
	uint64_t at;
	uint64_t back;
	uint64_t times;
	uint64_t count;
};

static uint64_t base;
static struct range ranges[RANGES_MAX];
static unsigned int range_count;
static struct call calls[SPANS_MAX];
static unsigned int call_count;

/* By range, and behind these the other places. */
static struct counts executed;
enum { REST = RANGES_MAX, GUEST, PROGRAMS, PLACES };

static struct call *open_calls[DEPTH_MAX];
static unsigned int depth;
static uint64_t began;

static FILE *output;

static uint64_t now(void)
{
	uint64_t sum = 0;

	for (unsigned int i = 0; i < PLACES; i++)
		sum += counted(&executed, i);
	return sum;
}

static void on_call(unsigned int vcpu, void *call)
{
	(void)vcpu;
	if (depth == DEPTH_MAX)
		die("too many calls within each other");
	if (!depth)
		began = now();
	open_calls[depth++] = call;
}

/* A return address may also be reached in other ways. */
static void on_back(unsigned int vcpu, void *data)
{
	struct call *call = data;

	(void)vcpu;
	if (!depth || open_calls[depth - 1] != call || --depth)
		return;
	call->times++;
	call->count += now() - began;
}

static bool is_first(uint64_t address, uint64_t place)
{
	static uint64_t distance;
	static bool known;

	if (!known)
		distance = address - place;
	known = true;
	return address - place == distance;
}

static unsigned int place_of(struct qemu_plugin_insn *insn, uint64_t address)
{
	if (address < base)
		return PROGRAMS;
	if (!is_first(address, (uintptr_t)qemu_plugin_insn_haddr(insn)))
		return GUEST;
	for (unsigned int i = 0; i < range_count; i++)
		if (address >= ranges[i].first && address < ranges[i].end)
			return i;
	return REST;
}

/* A call may return to the next call: it ends before that begins. */
static void watch(struct qemu_plugin_insn *insn, uint64_t address)
{
	for (unsigned int i = 0; i < call_count; i++)
		if (calls[i].back == address)
			qemu_plugin_register_vcpu_insn_exec_cb(insn, on_back, QEMU_PLUGIN_CB_NO_REGS,
							       &calls[i]);
	for (unsigned int i = 0; i < call_count; i++)
		if (calls[i].at == address)
			qemu_plugin_register_vcpu_insn_exec_cb(insn, on_call, QEMU_PLUGIN_CB_NO_REGS,
							       &calls[i]);
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	(void)id;
	for (size_t i = 0; i < qemu_plugin_tb_n_insns(tb); i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
		uint64_t address = qemu_plugin_insn_vaddr(insn);
		unsigned int place = place_of(insn, address);

		if (place != PROGRAMS && place != GUEST)
			watch(insn, address);
		count_insn(insn, &executed, place);
	}
}

static void on_end(qemu_plugin_id_t id, void *data)
{
	(void)id;
	(void)data;
	for (unsigned int i = 0; i < range_count; i++)
		fprintf(output, "range %" PRIx64 " %" PRIu64 "\n", ranges[i].first,
			counted(&executed, i));
	fprintf(output, "rest %" PRIu64 "\nguest %" PRIu64 "\nprograms %" PRIu64 "\n",
		counted(&executed, REST), counted(&executed, GUEST), counted(&executed, PROGRAMS));
	for (unsigned int i = 0; i < call_count; i++)
		fprintf(output, "span %" PRIx64 " %" PRIu64 " %" PRIu64 "\n", calls[i].at,
			calls[i].times, calls[i].count);
	fprintf(output, "end\n");
	if (fclose(output))
		die("cannot write the counts");
}

static void read_plan(const char *path)
{
	FILE *file = fopen(path, "r");
	uint64_t first, end;
	char line[128];

	if (!file)
		die("cannot read the plan");
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "base %" SCNx64, &first) == 1) {
			base = first;
		} else if (sscanf(line, "range %" SCNx64 " %" SCNx64, &first, &end) == 2) {
			if (range_count == RANGES_MAX)
				die("the plan has too many ranges");
			ranges[range_count++] = (struct range){ .first = first, .end = end };
		} else if (sscanf(line, "span %" SCNx64, &first) == 1) {
			if (call_count == SPANS_MAX)
				die("the plan has too many spans");
			calls[call_count++] = (struct call){ .at = first, .back = first + INSN_SIZE };
		} else {
			die("the plan has an unknown line");
		}
	}
	fclose(file);
	if (!base)
		die("the plan does not say where kernels begin");
}

int qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info *info, int argc, char **argv)
{
	static const char to[] = "output=", from[] = "plan=";

	if (strcmp(info->target_name, "ppc") || !info->system_emulation ||
	    info->system.max_vcpus != 1)
		die("not a machine with one 32-bit PowerPC CPU");
	if (argc != 2 || strncmp(argv[0], to, strlen(to)) || strncmp(argv[1], from, strlen(from)))
		die("give output=FILE,plan=FILE");
	output = fopen(argv[0] + strlen(to), "w");
	if (!output)
		die("cannot write the output file");
	read_plan(argv[1] + strlen(from));
	make(&executed, PLACES);
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
	qemu_plugin_register_atexit_cb(id, on_end, NULL);
	return 0;
}
