// SPDX-License-Identifier: GPL-2.0-only
/*
 * pv_ops' thunks for pte_val(), make_pte() and their kin, replaced by thunk_code.S. Their
 * call sites have been patched to direct calls all over the kernel, and ftrace
 * cannot hook the thunks, so their first five bytes are replaced by a jump.
 *
 * Invariants:
 *
 *  - A thunk is patched only if all of its bytes are as expected: eight
 *    pushes, a call of the function it is named for, eight pops, a return. They
 *    are compared when the module is loaded, and again while every other CPU is
 *    stopped, before the first thunk is written: all are patched, or none.
 *  - No task is in the middle of the bytes that are overwritten. They span
 *    several instructions, so the jump is written while every other CPU is
 *    stopped, and only if no task can have been preempted inside the kernel since
 *    it last gave up the CPU voluntarily: every task is then at a point where it
 *    did so, and no such point is in a thunk. Restoring the stock bytes
 *    needs no such rule: a task is before the jump or after it.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/atomic.h>
#include <linux/cpu.h>
#include <linux/cpumask.h>
#include <linux/kernel.h>
#include <linux/mutex.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/stop_machine.h>

#include <asm/sync_core.h>
#include <asm/text-patching.h>

#include "stock_symbols.h"
#include "pvmmu.h"

/* Used by thunk_code.S. */
void *pvmmu_stock_val __visible;
void *pvmmu_stock_make __visible;

struct thunk {
	const char *function;
	const char *symbol;
	void (*ours)(void);
	u8 *address;
	unsigned long callee;
	u8 stock[JMP32_INSN_SIZE];
};

#define THUNK(_function, _ours) \
	{ #_function, "__raw_callee_save_" #_function, _ours }

static struct thunk thunks[] = {
	THUNK(xen_pte_val, pvmmu_val),
	THUNK(xen_pmd_val, pvmmu_val),
	THUNK(xen_pud_val, pvmmu_val),
	THUNK(xen_p4d_val, pvmmu_val),
	THUNK(xen_pgd_val, pvmmu_val),
	THUNK(xen_make_pte, pvmmu_make),
	THUNK(xen_make_pmd, pvmmu_make),
	THUNK(xen_make_pud, pvmmu_make),
	THUNK(xen_make_p4d, pvmmu_make),
	THUNK(xen_make_pgd, pvmmu_make),
};

static void *(*stock_text_poke)(void *address, const void *bytes, size_t size);
static int (*stock_stop_machine_cpuslocked)(cpu_stop_fn_t fn, void *data,
					    const struct cpumask *cpus);
static struct mutex *stock_text_mutex;

/* PV_CALLEE_SAVE_REGS_THUNK, up to its return. */
static const u8 pushes[] = {
	0x51, 0x52, 0x56, 0x57, 0x41, 0x50, 0x41, 0x51, 0x41, 0x52, 0x41, 0x53,
};

static const u8 pops[] = {
	0x41, 0x5b, 0x41, 0x5a, 0x41, 0x59, 0x41, 0x58, 0x5f, 0x5e, 0x5a, 0x59,
};

/* An endbr64, or what the kernel makes of one to which nothing branches indirectly. */
static const u8 endbrs[][4] = {
	{ 0xf3, 0x0f, 0x1e, 0xfa }, { 0x66, 0x0f, 0x1f, 0x00 },
};

/* A direct call may be to what follows it, and it stays where it is. */
static u8 *behind_endbr(u8 *code)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(endbrs); i++)
		if (!memcmp(code, endbrs[i], sizeof(endbrs[i])))
			return code + sizeof(endbrs[i]);
	return code;
}

static bool is_known(const struct thunk *thunk)
{
	const u8 *call = thunk->address + sizeof(pushes);
	const u8 *after = call + CALL_INSN_SIZE;

	return !memcmp(thunk->address, pushes, sizeof(pushes)) &&
	       *call == CALL_INSN_OPCODE &&
	       behind_endbr((u8 *)after + *(const s32 *)(call + 1)) ==
		       behind_endbr((u8 *)thunk->callee) &&
	       !memcmp(after, pops, sizeof(pops));
}

/**
 * pvmmu_thunks_resolve - find the thunks and what they call
 *
 * Return: 0, or -ENOENT after naming what is missing or not as we know it.
 */
int pvmmu_thunks_resolve(void)
{
	const struct stock_symbol symbols[] = {
		{ "text_poke", &stock_text_poke },
		{ "text_mutex", &stock_text_mutex },
		{ "stop_machine_cpuslocked", &stock_stop_machine_cpuslocked },
		{ "xen_pte_val", &pvmmu_stock_val },
		{ "xen_make_pte", &pvmmu_stock_make },
	};
	struct thunk *thunk;
	int rc = stock_symbols_resolve(symbols, ARRAY_SIZE(symbols));

	for (thunk = thunks; !rc && thunk < thunks + ARRAY_SIZE(thunks);
	     thunk++) {
		const struct stock_symbol two[] = {
			{ thunk->function, &thunk->callee },
			{ thunk->symbol, &thunk->address },
		};

		rc = stock_symbols_resolve(two, ARRAY_SIZE(two));
		if (!rc)
			thunk->address = behind_endbr(thunk->address);
		if (!rc && !is_known(thunk)) {
			pr_err("unknown kernel: %s is not the thunk we know\n",
			       thunk->symbol);
			rc = -ENOENT;
		}
		if (!rc)
			memcpy(thunk->stock, thunk->address,
			       sizeof(thunk->stock));
	}
	return rc;
}

struct poke {
	bool to_ours;
	atomic_t arrived;
	bool refused;
	bool done;
};

static bool are_known(void)
{
	const struct thunk *thunk;

	for (thunk = thunks; thunk < thunks + ARRAY_SIZE(thunks); thunk++)
		if (!is_known(thunk))
			return false;
	return true;
}

static void poke_all(bool to_ours)
{
	struct thunk *thunk;

	for (thunk = thunks; thunk < thunks + ARRAY_SIZE(thunks); thunk++) {
		u8 jump[JMP32_INSN_SIZE] = { JMP32_INSN_OPCODE };

		*(s32 *)(jump + 1) = (unsigned long)thunk->ours -
				     (unsigned long)thunk->address -
				     JMP32_INSN_SIZE;
		stock_text_poke(thunk->address, to_ours ? jump : thunk->stock,
				JMP32_INSN_SIZE);
	}
}

/*
 * On every CPU, with interrupts off: the first to arrive changes the code, and the
 * others serialise before they go on, for they may have fetched the old bytes.
 */
static int poke_together(void *data)
{
	struct poke *poke = data;

	if (atomic_inc_return(&poke->arrived) == 1) {
		poke->refused = poke->to_ours && !are_known();
		if (!poke->refused)
			poke_all(poke->to_ours);
		smp_store_release(&poke->done, true); /* after the code */
	} else {
		while (!smp_load_acquire(&poke->done)) /* before it */
			cpu_relax();
		sync_core();
	}
	return 0;
}

/*
 * Locks the CPUs before the text, as elsewhere: CPU hotplug patches code too.
 *
 * Return: false if a thunk is not the one we know any more; none is changed then.
 */
static bool poke(bool to_ours)
{
	struct poke poke = { .to_ours = to_ours };

	cpus_read_lock();
	mutex_lock(stock_text_mutex);
	stock_stop_machine_cpuslocked(poke_together, &poke, cpu_online_mask);
	mutex_unlock(stock_text_mutex);
	cpus_read_unlock();
	return !poke.refused;
}

/**
 * pvmmu_thunks_enable - make the thunks jump to ours
 * @part: the switch
 *
 * Return: 0, -EOPNOTSUPP if this kernel preempts its own code, or -EBUSY if
 * someone else has changed a thunk.
 */
int pvmmu_thunks_enable(struct pvmmu_switch *part)
{
	/* The model can change at run time: wait for tasks that were preempted. */
	if (!preempt_model_preemptible()) {
		synchronize_rcu_tasks();
		if (!preempt_model_preemptible()) {
			if (poke(true))
				return 0;
			pr_err("%s: someone else has changed a thunk\n",
			       part->name);
			return -EBUSY;
		}
	}
	pr_err("%s: not while the kernel preempts itself (preempt=full)\n",
	       part->name);
	return -EOPNOTSUPP;
}

/**
 * pvmmu_thunks_disable - restore the thunks' own code
 * @part: the switch
 */
void pvmmu_thunks_disable(struct pvmmu_switch *part)
{
	poke(false);
}
