// SPDX-License-Identifier: GPL-2.0-only
/* The kernel's queue of hypercalls: see multicall.h. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kernel.h>
#include <linux/types.h>

#include <xen/interface/xen.h>

#include "multicall.h"
#include "stock_symbols.h"

/* As in the stock kernel's arch/x86/xen/multicalls.h. */
struct multicall_space {
	struct multicall_entry *mc;
	void *args;
};

static struct multicall_space (*stock_entry)(size_t args);
static struct multicall_space (*stock_extend_args)(unsigned long op, size_t size);
static void (*stock_callback)(void (*function)(void *data), void *data);
static void (*stock_flush)(void);

/**
 * pvmmu_multicall_resolve - find the functions of the queue
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
int pvmmu_multicall_resolve(void)
{
	const struct stock_symbol symbols[] = {
		{ "__xen_mc_entry", &stock_entry },
		{ "xen_mc_extend_args", &stock_extend_args },
		{ "xen_mc_callback", &stock_callback },
		{ "xen_mc_flush", &stock_flush },
	};

	return stock_symbols_resolve(symbols, ARRAY_SIZE(symbols));
}

/**
 * multicall_call - queue a hypercall whose arguments are numbers
 * @op:     __HYPERVISOR_ number
 * @first:  its arguments
 * @second: 0 if it has fewer
 * @third:  0 if it has fewer
 */
void multicall_call(unsigned long op, unsigned long first, unsigned long second,
		    unsigned long third)
{
	struct multicall_entry *call = stock_entry(0).mc;

	call->op = op;
	call->args[0] = first;
	call->args[1] = second;
	call->args[2] = third;
}

/**
 * multicall_mmuext - queue an operation of mmuext_op, in the same call as the last if
 * that was one, too
 * @command: MMUEXT_ number
 * @mfn:     the frame it is about
 */
void multicall_mmuext(unsigned int command, unsigned long mfn)
{
	struct multicall_space space;
	struct mmuext_op *op;

	space = stock_extend_args(__HYPERVISOR_mmuext_op, sizeof(*op));
	if (space.mc) {
		space.mc->args[1]++;
	} else {
		space = stock_entry(sizeof(*op));
		space.mc->op = __HYPERVISOR_mmuext_op;
		space.mc->args[0] = (unsigned long)space.args;
		space.mc->args[1] = 1;
		space.mc->args[2] = 0;
		space.mc->args[3] = DOMID_SELF;
	}
	op = space.args;
	op->cmd = command;
	op->arg1.mfn = mfn;
}

/**
 * multicall_callback - call a function once all that is queued is done
 * @function: it
 * @data:     its argument
 */
void multicall_callback(void (*function)(void *data), void *data)
{
	stock_callback(function, data);
}

/**
 * multicall_flush - issue what is queued
 */
void multicall_flush(void)
{
	stock_flush();
}
