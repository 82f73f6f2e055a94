/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Stock functions that a module repeats, or stands before: only those that were
 * compared with ours. Linux changes them in stable releases, and a module is built
 * for each of those by DKMS: that it compiles says nothing of what they decide now.
 *
 * Invariants:
 *
 *  - Known is what the list says, a digest for each compiled form that was compared.
 *    In case of doubt, such as an instruction that cannot be decoded, a function is
 *    unknown.
 *  - What is unknown is not used: its part is left out, and is named.
 *  - A digest does not depend on what the kernel changes in its own text, nor on
 *    where things are. See digest_instruction().
 *
 * Not covered: a function whose head leads elsewhere, as a live patch of the kernel does
 * it. That cannot be told from tracing; what we hook refuses us then (-EBUSY).
 *
 * Include it after pr_fmt() and use it in one file of a module.
 */
#ifndef TRAPLESS_KNOWN_FUNCTIONS_H
#define TRAPLESS_KNOWN_FUNCTIONS_H

#include <crypto/sha2.h>

#include <linux/bsearch.h>
#include <linux/ftrace.h>
#include <linux/jump_label.h>
#include <linux/kallsyms.h>
#include <linux/slab.h>
#include <linux/sort.h>
#include <linux/static_call_types.h>
#include <linux/string.h>
#include <linux/sysfs.h>

#include <asm/insn.h>

#include "stock_symbols.h"

/**
 * struct known_function - a stock function in one form that was compared with ours
 * @part:   what is left out if the function has none of its known forms
 * @symbol: the function
 * @digest: see digest_function()
 */
struct known_function {
	const char *part;
	const char *symbol;
	u64 digest;
};

/**
 * struct left_out - a stock function of which no known form is the one in memory
 * @part:   what is left out
 * @symbol: the function
 * @found:  the digest of what is there; 0 if it cannot be read
 */
struct left_out {
	const char *part;
	const char *symbol;
	u64 found;
};

struct text_reader {
	int (*decode)(struct insn *insn, const void *at, int size,
		      enum insn_mode mode);
	const char *(*lookup)(unsigned long address, unsigned long *size,
			      unsigned long *offset, char **module, char *name);
	int (*lookup_size)(unsigned long address, unsigned long *size,
			   unsigned long *offset);
	unsigned long (*hook_place)(unsigned long address);
	const struct jump_entry *jumps, *jumps_end;
	const struct static_call_site *calls, *calls_end;
	unsigned long text, end;	/* of the kernel's image */
	unsigned long *switched;	/* places of jumps and calls, in order */
	size_t switched_count;
	struct sha256_state sha;
	unsigned long start, size;	/* of the function */
	char name[KSYM_NAME_LEN];
};

static inline int compare_places(const void *one, const void *other)
{
	const unsigned long *a = one, *b = other;

	return *a < *b ? -1 : *a > *b;
}

/* The kernel's own tables of what it can rewrite are not sorted by place. */
static inline int find_switched(struct text_reader *reader)
{
	size_t most = (reader->jumps_end - reader->jumps) +
		      (reader->calls_end - reader->calls);
	const struct static_call_site *call;
	const struct jump_entry *jump;
	unsigned long *place;

	reader->switched = kvmalloc_array(most, sizeof(*reader->switched),
					  GFP_KERNEL);
	if (!reader->switched)
		return -ENOMEM;
	place = reader->switched;
	for (jump = reader->jumps; jump < reader->jumps_end; jump++)
		*place++ = jump_entry_code(jump);
	for (call = reader->calls; call < reader->calls_end; call++)
		*place++ = (unsigned long)&call->addr + call->addr;
	reader->switched_count = place - reader->switched;
	sort(reader->switched, reader->switched_count, sizeof(*place),
	     compare_places, NULL);
	return 0;
}

static inline int text_reader_init(struct text_reader *reader)
{
	const struct stock_symbol symbols[] = {
		{ "insn_decode", &reader->decode },
		{ "kallsyms_lookup", &reader->lookup },
		{ "kallsyms_lookup_size_offset", &reader->lookup_size },
		{ "ftrace_location", &reader->hook_place },
		{ "__start___jump_table", &reader->jumps },
		{ "__stop___jump_table", &reader->jumps_end },
		{ "__start_static_call_sites", &reader->calls },
		{ "__stop_static_call_sites", &reader->calls_end },
		{ "_text", &reader->text },
		{ "_end", &reader->end },
	};
	int rc = stock_symbols_resolve(symbols, ARRAY_SIZE(symbols));

	return rc ?: find_switched(reader);
}

static inline void digest_bytes(struct text_reader *reader, const void *bytes,
				size_t size)
{
	sha256_update(&reader->sha, bytes, size);
}

static inline void digest_text(struct text_reader *reader, const char *text)
{
	digest_bytes(reader, text, strlen(text) + 1);
}

static inline bool is_image(const struct text_reader *reader,
			    unsigned long address)
{
	return address >= reader->text && address < reader->end;
}

/* The name of what begins at an address; what has none is only an address. */
static inline const char *name_of(struct text_reader *reader,
				  unsigned long address)
{
	unsigned long size, offset;
	char *module;
	const char *name = reader->lookup(address, &size, &offset, &module,
					  reader->name);

	return name && !offset ? name : "";
}

/* Can the kernel rewrite the instruction here at any time? */
static inline bool is_switched(const struct text_reader *reader,
			       unsigned long address)
{
	return bsearch(&address, reader->switched, reader->switched_count,
		       sizeof(address), compare_places);
}

/* An instruction that does nothing, or nothing but keep speculation in bounds. */
static inline bool is_filler(const struct insn *insn, const u8 *at)
{
	const u8 *opcode = insn->opcode.bytes;

	if (insn->opcode.nbytes == 1)
		return opcode[0] == 0xcc ||
		       (opcode[0] == 0x90 && !insn->rex_prefix.nbytes &&
			at[0] != 0xf3);
	if (opcode[0] != 0x0f)
		return false;
	/* nopl and endbr64; lfence */
	return opcode[1] == 0x1f || opcode[1] == 0x1e ||
	       (opcode[1] == 0xae && insn->modrm.bytes[0] == 0xe8);
}

/* The register of an indirect branch, as it is called in a retpoline's name. */
static inline const char *branch_register(const struct insn *insn)
{
	static const char *const names[] = {
		"rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
		"r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
	};

	return names[X86_MODRM_RM(insn->modrm.value) |
		     X86_REX_B(insn->rex_prefix.value) << 3];
}

/* Direct branches, in whatever length they are written. Return: whether it is one. */
static inline bool digest_branch(struct text_reader *reader,
				 const struct insn *insn, unsigned long at)
{
	static const char retpoline[] = "__x86_indirect_thunk_";
	u8 kind = insn->opcode.bytes[0];
	unsigned long target;
	const char *name;

	if (kind == 0x0f && (insn->opcode.bytes[1] & 0xf0) == 0x80)
		kind = 0x70 | (insn->opcode.bytes[1] & 0xf);
	else if (kind == 0xeb)
		kind = 0xe9;
	else if (kind == 0x0f || ((kind & 0xf0) != 0x70 && kind != 0xe8 &&
				  kind != 0xe9))
		return false;
	target = at + insn->length + (long)insn->immediate.value;
	if (target - reader->start < reader->size) {
		target -= reader->start;
		digest_bytes(reader, &kind, 1);
		digest_bytes(reader, &target, sizeof(target));
		return true;
	}
	name = name_of(reader, target);
	if (str_has_prefix(name, retpoline)) {
		digest_text(reader, kind == 0xe8 ? "call" : "jmp");
		digest_text(reader, name + strlen(retpoline));
	} else if (strstr(name, "return_thunk")) {
		digest_text(reader, "ret");
	} else {
		digest_bytes(reader, &kind, 1);
		digest_text(reader, str_has_prefix(name, "clear_page_") ?
			    "clear_page" : name);
	}
	return true;
}

static inline bool is_relative(const struct insn *insn)
{
	return insn->modrm.nbytes && X86_MODRM_MOD(insn->modrm.value) == 0 &&
	       X86_MODRM_RM(insn->modrm.value) == 5;
}

/* The bytes of an instruction, but those of an address by the name of what is there. */
static inline void digest_plain(struct text_reader *reader,
				const struct insn *insn, unsigned long at)
{
	u8 bytes[MAX_INSN_SIZE];
	unsigned long address = 0;
	unsigned int i;

	memcpy(bytes, (void *)at, insn->length);
	/* On one CPU the kernel has turned lock prefixes into DS prefixes. */
	if (bytes[0] == 0xf0)
		bytes[0] = 0x3e;
	if (insn->displacement.nbytes == 4) {
		u8 *field = bytes + insn_offset_displacement((struct insn *)insn);
		bool is_percpu = false;

		for (i = 0; i < insn->prefixes.nbytes; i++)
			is_percpu |= insn->prefixes.bytes[i] == 0x65;
		address = (long)insn->displacement.value;
		if (is_relative(insn))
			address += at + insn->length;
		if (is_percpu || is_image(reader, address) || is_relative(insn))
			memset(field, 0, 4);
		if (is_image(reader, address))
			digest_text(reader, name_of(reader, address));
	}
	if (insn->immediate.nbytes == 4) {
		address = (long)insn->immediate.value;
		if (is_image(reader, address)) {
			memset(bytes + insn_offset_immediate((struct insn *)insn),
			       0, 4);
			digest_text(reader, name_of(reader, address));
		}
	}
	digest_bytes(reader, bytes, insn->length);
}

/*
 * What the kernel changes in its text, at boot or later, is made the same again:
 *
 *  - ftrace's call at the head is not read at all;
 *  - static keys and static calls count as such, whatever they are set to;
 *  - retpolines count as the branch that they stand for, and so do the thunks of
 *    returns;
 *  - what only fills the place of something longer does not count.
 *
 * Other alternatives, and the calls of Xen PV's operations, count as what they are on
 * this machine.
 */
static inline void digest_instruction(struct text_reader *reader,
				      const struct insn *insn, unsigned long at)
{
	const u8 *opcode = insn->opcode.bytes;
	bool is_indirect = opcode[0] == 0xff &&
			   X86_MODRM_MOD(insn->modrm.value) == 3;

	if (is_switched(reader, at)) {
		digest_text(reader, "switched");
	} else if (is_filler(insn, (u8 *)at)) {
		return;
	} else if (opcode[0] == 0xc3) {
		digest_text(reader, "ret");
	} else if (is_indirect && X86_MODRM_REG(insn->modrm.value) == 2) {
		digest_text(reader, "call");
		digest_text(reader, branch_register(insn));
	} else if (is_indirect && X86_MODRM_REG(insn->modrm.value) == 4) {
		digest_text(reader, "jmp");
		digest_text(reader, branch_register(insn));
	} else if (!digest_branch(reader, insn, at)) {
		digest_plain(reader, insn, at);
	}
}

/* Return: the digest of a function as it is in memory; 0 if it cannot be read. */
static inline u64 digest_function(struct text_reader *reader,
				  const char *symbol)
{
	const struct stock_symbol function = { symbol, &reader->start };
	u8 digest[SHA256_DIGEST_SIZE];
	unsigned long at, hook, offset;
	struct insn insn;
	__be64 first;

	if (stock_symbols_resolve(&function, 1) ||
	    !reader->lookup_size(reader->start, &reader->size, &offset) ||
	    offset)
		return 0;
	sha256_init(&reader->sha);
	at = reader->start;
	hook = reader->hook_place(at);
	if (hook)
		at = hook + MCOUNT_INSN_SIZE;
	for (; at < reader->start + reader->size; at += insn.length) {
		if (reader->decode(&insn, (void *)at,
				   reader->start + reader->size - at,
				   INSN_MODE_64))
			return 0;
		digest_instruction(reader, &insn, at);
	}
	sha256_final(&reader->sha, digest);
	memcpy(&first, digest, sizeof(first));
	return be64_to_cpu(first);
}

/**
 * known_functions_check - compare stock functions with those that are known
 * @list:    the forms that are known; those of one function stand together
 * @count:   how many
 * @unknown: gets the functions of which no form is the one in memory, each of which is
 *           said in the kernel's log; has room for @count
 * @left:    gets how many these are
 *
 * Return: 0, or with nothing compared -ENOENT after naming what is missing, or
 * -ENOMEM.
 */
static inline int known_functions_check(const struct known_function *list,
					unsigned int count,
					struct left_out *unknown,
					unsigned int *left)
{
	struct text_reader *reader = kzalloc(sizeof(*reader), GFP_KERNEL);
	unsigned int i;
	u64 found = 0;
	bool is_known = false;
	int rc = reader ? text_reader_init(reader) : -ENOMEM;

	for (i = 0; !rc && i < count; i++) {
		bool is_first = !i || strcmp(list[i].symbol, list[i - 1].symbol) ||
				strcmp(list[i].part, list[i - 1].part);
		bool is_last = i + 1 == count ||
			       strcmp(list[i].symbol, list[i + 1].symbol) ||
			       strcmp(list[i].part, list[i + 1].part);

		if (is_first) {
			found = digest_function(reader, list[i].symbol);
			is_known = false;
		}
		is_known |= found && found == list[i].digest;
		if (!is_last || is_known)
			continue;
		pr_warn("%s is left out: %s (%016llx) is not as in any kernel that is known\n",
			list[i].part, list[i].symbol, found);
		unknown[*left].part = list[i].part;
		unknown[*left].symbol = list[i].symbol;
		unknown[*left].found = found;
		(*left)++;
	}
	if (reader)
		kvfree(reader->switched);
	kfree(reader);
	return rc;
}

/* Is a part among those that are left out? */
static inline bool left_out_has(const struct left_out *list, unsigned int count,
				const char *part)
{
	unsigned int i;

	for (i = 0; i < count; i++)
		if (!strcmp(list[i].part, part))
			return true;
	return false;
}

/* For sysfs: a line a function that is not known. */
static inline int left_out_emit(char *buf, const struct left_out *list,
				unsigned int count)
{
	unsigned int i;
	int at = 0;

	for (i = 0; i < count; i++)
		at += sysfs_emit_at(buf, at,
				    "%s: %s (%016llx) is not as in any kernel that is known\n",
				    list[i].part, list[i].symbol, list[i].found);
	return at;
}

#endif /* TRAPLESS_KNOWN_FUNCTIONS_H */
