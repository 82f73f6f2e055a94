// SPDX-License-Identifier: GPL-2.0-only
#include "call.h"

#include <string.h>

#define LIST_OFFSET	64

struct tpt_batch *guest_batch(void)
{
	return (struct tpt_batch *)guest_memory[fake_cpu()];
}

u64 *guest_list(void)
{
	return (u64 *)(guest_memory[fake_cpu()] + LIST_OFFSET);
}

void ledger_follow_marks(void)
{
	for (unsigned int i = 0; i < NR_DOM0; i++)
		fake_owed(DOM0_MFN(i))->marked = fake_bit(DOM0_MFN(i));
	for (unsigned int i = 0; i < NR_DOMU; i++)
		fake_owed(DOMU_MFN(i))->marked = fake_bit(DOMU_MFN(i));
}

long call_evict(struct tpt_evict *report)
{
	struct tpt_evict *guest = (void *)guest_memory[fake_cpu()];
	bool was_evicting = fake.evicting;
	long rc;

	memset(guest, 0x77, sizeof(*guest));
	fake.evicting = true;
	rc = payload_callback(TPT_OP_EVICT, guest);
	fake.evicting = was_evicting;
	*report = *guest;
	ledger_follow_marks();
	return rc;
}

struct answer call_prepared(int op, const u64 *mfns, u32 count)
{
	static u8 before[GUEST_BYTES];
	struct tpt_batch *batch = guest_batch();
	struct answer a;
	u32 n;

	if (!fake_cpu())
		memcpy(before, guest_memory[0], GUEST_BYTES);
	a.rc = payload_callback(op, batch);
	a.done = batch->done;
	n = a.done <= count && mfns ? a.done : 0;
	for (u32 i = 0; i < n; i++)
		if (fake_is_ram(mfns[i]))
			fake_owed(mfns[i])->marked = op == (int)TPT_OP_MARK;
	if (a.rc == -EIO && op == (int)TPT_OP_MARK)
		for (u32 i = 0; i < fake.failed_maps; i++)
			fake_owed(fake.failed_map[i])->held = 1;
	if (!fake_cpu() && !fake.scribble) {
		((struct tpt_batch *)before)->done = batch->done;
		if (memcmp(before, guest_memory[0], GUEST_BYTES))
			violation("guest memory written beside the result");
	}
	return a;
}

struct answer call_batch(int op, const u64 *mfns, u32 count)
{
	struct tpt_batch *batch = guest_batch();

	memcpy(guest_list(), mfns, count * sizeof(*mfns));
	batch->count = count;
	batch->done = 0x77777777;
	batch->mfns = (u64)guest_list();
	return call_prepared(op, mfns, count);
}
