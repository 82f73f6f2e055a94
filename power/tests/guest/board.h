/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The machine, for a guest without an operating system: the serial port, the reset,
 * the command line and the host's hypercalls.
 */
#ifndef BOARD_H
#define BOARD_H

#include "context.h"

#define mfspr(n)	({ u32 value_; asm volatile("mfspr %0, %1" : "=r" (value_) : "i" (n)); value_; })
#define mtspr(n, v)	asm volatile("mtspr %0, %1" : : "i" (n), "r" ((u32)(v)) : "memory")

/* The data page: the last page of the address space, where this guest maps nothing. */
#define DATA_PAGE	0xfffff000

/* Call this first: printing and reset need it. */
void map_devices(void);

void print(const char *text);
void print_number(u32 value);
void print_hex(u32 value);

/* The value behind name= in the command line, or the default. */
u32 argument(const void *tree, const char *name, u32 otherwise);

/* Returns 0, or the host's error. */
u32 enable_translation(u32 data, u32 execute, u32 pages);
u32 disable_translation(void);

/* Write an entry of TLB1: a page of 1 KiB * 4^tsize, or an invalid entry. */
void map(u32 entry, u32 ea, u32 pa, u32 tsize, u32 attributes, u32 valid);

/* For @valid: in address space 1. */
#define MAP_IN_1	2

/* Synchronise the instruction cache with stored words. */
void synchronize(u32 address, u32 words);

/* Ends the guest; by the second processor, only what that does. */
__attribute__((noreturn)) void reset(void);

/*
 * Copy the image, as it is now, and start the second processor in the copy: it calls
 * second(), the program's, with variables of its own, and prints into memory.
 */
void start_second(void);
/* To be called first by second(). */
void be_second(void);
/* Wait until it has ended, and print what it has printed. */
void await_second(void);
void second(void);

#endif /* BOARD_H */
