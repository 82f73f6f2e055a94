// SPDX-License-Identifier: GPL-2.0-only
/*
 * The processors' EPML registers and rings, as the model presents them: the memory of
 * an ivshmem device, with a part (trapless_epml.h) and an interrupt for each processor
 * (docs/epml.md).
 *
 * Invariants:
 *
 * - The device is used only if its memory identifies it as the model, and every
 *   processor that comes online answers as the one with its number. Other ivshmem
 *   devices are left as they were.
 * - Nothing from the device is trusted: positions are masked, a ring in an impossible
 *   state counts as lost, and one call takes at most as many entries as the ring holds.
 * - A processor gives only its own commands, with interrupts off.
 *
 * The memory stays mapped until the module is unloaded, even if the device is removed
 * before: the scheduler's callbacks read it.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bitmap.h>
#include <linux/cpuhotplug.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/log2.h>
#include <linux/overflow.h>
#include <linux/pci.h>
#include <linux/percpu.h>
#include <linux/random.h>

#include "epml_device.h"
#include "tracking.h"
#include "trapless_epml.h"

#define BAR	2

/**
 * struct ring - one processor's
 * @lock:       for taking entries
 * @registers:  in the device's memory
 * @entries:    there, too
 * @tail:       entries taken; the register is a copy. Under @lock
 * @armed:      the processor's tag; changed by itself, with interrupts off
 * @ready:      the processor has answered; changed in the same way
 * @interrupts: counted by its handler
 */
struct ring {
	raw_spinlock_t lock;
	struct trapless_epml_processor *registers;
	const u64 *entries;
	u64 tail;
	unsigned int armed;
	bool ready;
	u64 interrupts;
};

static DEFINE_PER_CPU(struct ring, rings);

/**
 * struct device - the only device, if there is one
 * @pci:     NULL: there is none
 * @memory:  BAR 2
 * @entries: of each ring
 * @state:   of CPU hotplug; its callback makes processors answer
 * @present: it can be used
 * @reader:  called with what is logged
 */
static struct {
	struct pci_dev *pci;
	void *memory;
	u64 entries;
	int state;
	bool present;
	const struct epml_reader *reader;
} device;

/* On the ring's processor, interrupts off. The model obeys before the next instruction. */
static u64 command(struct ring *ring, enum trapless_epml_command what, u64 first, u64 second)
{
	struct trapless_epml_processor *registers = ring->registers;

	WRITE_ONCE(registers->arguments[0], first);
	WRITE_ONCE(registers->arguments[1], second);
	WRITE_ONCE(registers->command, what);
	return READ_ONCE(registers->result);
}

bool epml_device_present(void)
{
	return READ_ONCE(device.present);
}

bool epml_device_arm(unsigned int tag)
{
	struct ring *ring = this_cpu_ptr(&rings);

	if (ring->armed == tag || !ring->ready)
		return false;
	command(ring, TRAPLESS_EPML_ARM, tag, 0);
	ring->armed = tag;
	return true;
}

unsigned int epml_device_armed(void)
{
	return __this_cpu_read(rings.armed);
}

void epml_device_rearm(unsigned int tag, unsigned long base, const unsigned long *pages)
{
	unsigned long flags;
	struct ring *ring;
	unsigned int i;

	local_irq_save(flags);
	ring = this_cpu_ptr(&rings);
	for (i = 0; ring->ready && i < BITS_TO_LONGS(TPD_BLOCK_PAGES); i++)
		if (pages[i])
			command(ring, TRAPLESS_EPML_REARM,
				(base + i * BITS_PER_LONG * PAGE_SIZE) | tag, pages[i]);
	local_irq_restore(flags);
}

void epml_device_rearm_range(unsigned int tag, unsigned long start, unsigned long end)
{
	unsigned long flags;
	struct ring *ring;

	local_irq_save(flags);
	ring = this_cpu_ptr(&rings);
	if (ring->ready)
		command(ring, TRAPLESS_EPML_REARM_RANGE, start | tag, (end - start) / PAGE_SIZE);
	local_irq_restore(flags);
}

/* Entries that arrive meanwhile are left: their stores ended after the call began. */
static void drain(struct ring *ring)
{
	unsigned long flags;
	u64 head, lost;

	raw_spin_lock_irqsave(&ring->lock, flags);
	/* An entry is visible before the head that counts it. */
	head = smp_load_acquire(&ring->registers->head);
	if (head - ring->tail > device.entries) {
		device.reader->lose(TRAPLESS_EPML_OVERRUN_MANY);
		ring->tail = head;
	}
	while (ring->tail != head) {
		u64 at = ring->tail & (device.entries - 1);
		u64 count = min(head - ring->tail, device.entries - at);

		device.reader->take(ring->entries + at, count);
		ring->tail += count;
	}
	/* The entries are read before the processor may reuse their places. */
	smp_store_release(&ring->registers->tail, ring->tail);
	lost = READ_ONCE(ring->registers->overrun);
	if (lost)
		lost = xchg(&ring->registers->overrun, 0);
	if (lost)
		device.reader->lose(lost);
	raw_spin_unlock_irqrestore(&ring->lock, flags);
}

void epml_device_drain(void)
{
	unsigned int cpu;

	for_each_possible_cpu(cpu)
		drain(per_cpu_ptr(&rings, cpu));
}

u64 epml_device_interrupts(void)
{
	unsigned int cpu;
	u64 sum = 0;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(per_cpu_ptr(&rings, cpu)->interrupts);
	return sum;
}

static irqreturn_t on_interrupt(int irq, void *data)
{
	struct ring *ring = data;

	WRITE_ONCE(ring->interrupts, ring->interrupts + 1);
	drain(ring);
	return IRQ_HANDLED;
}

/* On each processor, before it runs user code. */
static int come_online(unsigned int cpu)
{
	struct ring *ring = this_cpu_ptr(&rings);
	u64 question = get_random_u64();
	u64 answer;
	int err;

	err = irq_set_affinity(pci_irq_vector(device.pci, cpu), cpumask_of(cpu));
	if (err) {
		pci_err(device.pci, "no interrupt of its own for processor %u: %d\n", cpu, err);
		return err;
	}
	local_irq_disable();
	answer = command(ring, TRAPLESS_EPML_HELLO, question, 0);
	if (!READ_ONCE(ring->registers->command) &&
	    answer == trapless_epml_answer(question, cpu)) {
		ring->armed = 0;
		ring->ready = true;
	} else {
		WRITE_ONCE(ring->registers->command, 0);
		err = -ENODEV;
	}
	local_irq_enable();
	if (err)
		pci_err(device.pci, "processor %u has no EPML, or that of another one\n", cpu);
	return err;
}

/* After the last user code on it. What it logged can still be taken. */
static int go_offline(unsigned int cpu)
{
	local_irq_disable();
	epml_device_arm(0);
	__this_cpu_write(rings.ready, false);
	local_irq_enable();
	return 0;
}

/* Whether it is the model, and all that it describes lies inside its memory. */
static int identify(struct pci_dev *pci, u64 size)
{
	const struct trapless_epml_identity identity =
		*(struct trapless_epml_identity *)device.memory;
	u64 ring = array_size(identity.entries, sizeof(u64));
	unsigned int cpu;

	if (identity.magic != TRAPLESS_EPML_MAGIC)
		return -ENODEV;
	if (identity.version != TRAPLESS_EPML_VERSION) {
		pci_err(pci, "EPML of version %u, not %u\n", identity.version,
			TRAPLESS_EPML_VERSION);
		return -ENODEV;
	}
	if (identity.processors < nr_cpu_ids) {
		pci_err(pci, "EPML for %u processors, not %u\n", identity.processors,
			nr_cpu_ids);
		return -ENODEV;
	}
	if (identity.entries < TRAPLESS_EPML_ENTRIES_MIN ||
	    identity.entries > TRAPLESS_EPML_ENTRIES_MAX || !is_power_of_2(identity.entries) ||
	    !PAGE_ALIGNED(identity.stride) || identity.stride < PAGE_SIZE + ring ||
	    PAGE_SIZE + (u64)identity.stride * nr_cpu_ids > size) {
		pci_err(pci, "EPML's rings are not inside of its memory\n");
		return -ENODEV;
	}
	device.entries = identity.entries;
	for_each_possible_cpu(cpu) {
		struct ring *r = per_cpu_ptr(&rings, cpu);

		raw_spin_lock_init(&r->lock);
		r->registers = device.memory + PAGE_SIZE + (u64)identity.stride * cpu;
		r->entries = (const u64 *)(r->registers + 1);
		/* Skip what an earlier user left there. */
		r->tail = READ_ONCE(r->registers->head);
		WRITE_ONCE(r->registers->tail, r->tail);
		WRITE_ONCE(r->registers->overrun, 0);
		WRITE_ONCE(r->registers->threshold, identity.entries / 4 * 3);
	}
	return 0;
}

static void release_interrupts(struct pci_dev *pci, unsigned int count)
{
	while (count--)
		free_irq(pci_irq_vector(pci, count), per_cpu_ptr(&rings, count));
	pci_free_irq_vectors(pci);
}

static int request_interrupts(struct pci_dev *pci)
{
	int err = pci_alloc_irq_vectors(pci, nr_cpu_ids, nr_cpu_ids, PCI_IRQ_MSIX);
	unsigned int i;

	if (err < 0) {
		pci_err(pci, "EPML without %u interrupts: %d\n", nr_cpu_ids, err);
		return err;
	}
	for (i = 0; i < nr_cpu_ids; i++) {
		err = request_irq(pci_irq_vector(pci, i), on_interrupt, 0, "trapless_epml",
				  per_cpu_ptr(&rings, i));
		if (err) {
			release_interrupts(pci, i);
			return err;
		}
	}
	return 0;
}

static int device_probe(struct pci_dev *pci, const struct pci_device_id *id)
{
	u64 size = pci_resource_len(pci, BAR);
	int err;

	if (device.memory)
		return -EBUSY;
	if (!(pci_resource_flags(pci, BAR) & IORESOURCE_MEM) || size < PAGE_SIZE)
		return -ENODEV;
	err = pci_enable_device_mem(pci);
	if (err)
		return err;
	err = pci_request_region(pci, BAR, KBUILD_MODNAME);
	if (err)
		goto disable;
	err = -ENOMEM;
	device.memory = memremap(pci_resource_start(pci, BAR), size, MEMREMAP_WB);
	if (!device.memory)
		goto release;
	err = identify(pci, size);
	if (err)
		goto unmap;
	pci_set_master(pci);
	err = request_interrupts(pci);
	if (err)
		goto unmap;
	device.pci = pci;
	err = cpuhp_setup_state(CPUHP_AP_ONLINE_DYN, "trapless/epml:online", come_online,
				go_offline);
	if (err < 0)
		goto interrupts;
	device.state = err;
	WRITE_ONCE(device.present, true);
	pci_info(pci, "EPML (a model): %llu entries for each of %u processors\n", device.entries,
		 nr_cpu_ids);
	return 0;

interrupts:
	device.pci = NULL;
	release_interrupts(pci, nr_cpu_ids);
unmap:
	memunmap(device.memory);
	device.memory = NULL;
release:
	pci_release_region(pci, BAR);
disable:
	pci_disable_device(pci);
	return err;
}

static void device_remove(struct pci_dev *pci)
{
	/* From now on all pages are reported as written. */
	WRITE_ONCE(device.present, false);
	cpuhp_remove_state(device.state);
	release_interrupts(pci, nr_cpu_ids);
	pci_release_region(pci, BAR);
	pci_disable_device(pci);
}

static const struct pci_device_id ids[] = {
	{ PCI_DEVICE(PCI_VENDOR_ID_REDHAT_QUMRANET, 0x1110) },
	{}
};

static struct pci_driver driver = {
	.name = "trapless_epml",
	.id_table = ids,
	.probe = device_probe,
	.remove = device_remove,
	/* It must not be unbound by mistake while processes are tracked. */
	.driver.suppress_bind_attrs = true,
};

/**
 * epml_device_init - find the model
 * @reader: is called with what is logged, until epml_device_exit()
 *
 * Return: 0, -ENODEV if there is none here, or another error.
 */
int epml_device_init(const struct epml_reader *reader)
{
	int err;

	device.reader = reader;
	err = pci_register_driver(&driver);
	if (err)
		return err;
	if (device.present)
		return 0;
	pci_unregister_driver(&driver);
	return -ENODEV;
}

/* No caller uses it any more. */
void epml_device_exit(void)
{
	pci_unregister_driver(&driver);
	memunmap(device.memory);
	device.memory = NULL;
}
