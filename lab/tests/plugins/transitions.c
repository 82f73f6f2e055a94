// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A QEMU plugin for a test: how often a CPU went from a guest's code to Xen's, between
 * two markers, one number a line.
 *
 * Invariant: it knows no entry point, no return and no symbol, only whose addresses
 * were executed one after another: a witness for plugins/events.c. One CPU only.
 */
#include <inttypes.h>

#include "code.h"

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

static FILE *output;
static bool in_xen;
static uint64_t transitions;

static void on_guest(unsigned int vcpu, void *data)
{
	(void)vcpu;
	(void)data;
	in_xen = false;
}

static void on_xen(unsigned int vcpu, void *data)
{
	(void)vcpu;
	(void)data;
	transitions += !in_xen;
	in_xen = true;
}

static void on_start(unsigned int vcpu, void *data)
{
	(void)vcpu;
	(void)data;
	transitions = 0;
}

static void on_stop(unsigned int vcpu, void *data)
{
	(void)vcpu;
	(void)data;
	fprintf(output, "%" PRIu64 "\n", transitions);
	fflush(output);
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	enum kind kind = kind_of(qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(tb, 0)));

	(void)id;
	qemu_plugin_register_vcpu_tb_exec_cb(tb, kind == XEN ? on_xen : on_guest,
					     QEMU_PLUGIN_CB_NO_REGS, NULL);
	for (size_t i = 0; kind == USER && i < qemu_plugin_tb_n_insns(tb); i++)
		watch_markers(qemu_plugin_tb_get_insn(tb, i), on_start, on_stop);
}

int qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info *info, int argc, char **argv)
{
	static const char to[] = "output=";

	if (strcmp(info->target_name, "x86_64") || info->system.max_vcpus != 1)
		die("not a machine with one x86-64 CPU");
	if (argc != 1 || strncmp(argv[0], to, strlen(to)))
		die("give output=FILE");
	output = fopen(argv[0] + strlen(to), "w");
	if (!output)
		die("cannot write the output file");
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
	return 0;
}
