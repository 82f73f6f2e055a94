/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The policies by which the pool gives cached tables back: the decision only,
 * without kernel code, so that the lab can run the same code against recorded
 * traces. See policy.c.
 */
#ifndef TRAPLESS_POLICY_H
#define TRAPLESS_POLICY_H

enum tpt_policy_kind {
	TPT_POLICY_NONE,	/* nothing is given back */
	TPT_POLICY_NUMBER,	/* above a number of cached tables */
	TPT_POLICY_PROPORTION,	/* above a part of the tables in use */
	TPT_POLICY_BOTH,	/* above both, down to the higher of the two */
	TPT_POLICY_ADAPTIVE,	/* beyond what the workload has lately needed */
	TPT_POLICIES
};

/**
 * struct tpt_policy - which policy, and the thresholds of the fixed ones
 * @kind:    which
 * @number:  cached tables of all levels together
 * @percent: cached tables per 100 in use, all levels together
 */
struct tpt_policy {
	enum tpt_policy_kind kind;
	unsigned int number;
	unsigned int percent;
};

/**
 * struct tpt_demand - one level, as the policy sees it at a tick
 * @cached: tables ready now
 * @in_use: tables of the pool that are not
 * @lowest: smallest number of ready tables since the last tick
 * @missed: allocations since the last tick that found none
 * @need:   the policy's own: what the workload has lately used, in 1/256 tables
 */
struct tpt_demand {
	unsigned int cached;
	unsigned int in_use;
	unsigned int lowest;
	unsigned int missed;
	unsigned int need;
};

/* Ready tables that a level keeps whatever the policy says. */
#define TPT_POLICY_RESERVE	2u

void tpt_policy_start(struct tpt_demand *levels, unsigned int count);
unsigned int tpt_policy_tick(const struct tpt_policy *policy,
			     struct tpt_demand *levels, unsigned int count,
			     unsigned int *surplus);

#endif /* TRAPLESS_POLICY_H */
