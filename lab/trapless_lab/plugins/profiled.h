/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The two markers between which the profiler counts: no-operations with an
 * operand that no compiler makes. Without the profiler they cost one
 * instruction each.
 *
 * A start marker discards what was counted since the last one, and a stop marker
 * without a start is ignored: of nested pairs the inner ones count, so that a
 * program can exclude its own set-up.
 */
#ifndef PROFILED_H
#define PROFILED_H

/* nopl 0x74706c01(%rax,%rax,1) and 0x74706c02, as the bytes that the plugin looks for. */
#define PROFILED_START 0x0f, 0x1f, 0x84, 0x00, 0x01, 0x6c, 0x70, 0x74
#define PROFILED_STOP 0x0f, 0x1f, 0x84, 0x00, 0x02, 0x6c, 0x70, 0x74

#define PROFILED_TEXT_(...) #__VA_ARGS__
#define PROFILED_TEXT(...) PROFILED_TEXT_(__VA_ARGS__)

static inline void profiled_start(void)
{
	asm volatile(".byte " PROFILED_TEXT(PROFILED_START) ::: "memory");
}

static inline void profiled_stop(void)
{
	asm volatile(".byte " PROFILED_TEXT(PROFILED_STOP) ::: "memory");
}

#endif /* PROFILED_H */
