/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A walk over a tree of files. */
#ifndef TREE_H
#define TREE_H

#include <stdbool.h>

/*
 * Call @visit with the path, the name in it and whether it is a directory, of all
 * below @path; links are not followed. @path must have room for PATH_MAX.
 *
 * libc's nftw does the same, but copies with FPU registers, which the kernel has to
 * emulate here.
 */
void walk(char *path, void (*visit)(const char *path, const char *name, bool directory));

#endif
