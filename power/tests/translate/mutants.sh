#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# Negative controls: versions of the translator with one mistake each, and each must
# fail the test that is named with it. For use by Makefile:
#
#   mutants.sh KVM OUT MAKE
set -eu

kvm=$1 out=$2 make=$3
caught=0 survived=0 stale=0
report=$out/mutants.log
: > "$report"

# mutant NAME TEST SED-SCRIPT: change a copy, run the test, say what it said
mutant() {
	dir=$out/mutant-$1
	rm -rf "$dir"
	mkdir -p "$dir"
	changed=
	ln -s "$kvm/e500_bt.h" "$dir"
	for file in e500_bt_translate.c e500_bt_site.c; do
		sed -E "$3" "$kvm/$file" > "$dir/$file"
		cmp -s "$kvm/$file" "$dir/$file" || changed=y
	done
	if [ -z "$changed" ]; then
		echo "translate: mutant $1: its change no longer applies"
		stale=$((stale + 1))
	# What does not compile tests nothing: its programs are made first.
	elif ! $make KVM="$dir" MADE="$dir" MUTANT=-Wno-unused "$2-program" > "$dir/log" 2>&1; then
		echo "translate: mutant $1 does not compile, see $dir/log"
		stale=$((stale + 1))
	elif $make KVM="$dir" MADE="$dir" "$2" > "$dir/log" 2>&1; then
		echo "translate: mutant $1 SURVIVED"
		survived=$((survived + 1))
	# Only what a test says of a word counts, and not that it could not run.
	elif ! head -n 1 "$dir/log" | grep -qE '^(witness: .*|)[0-9a-f]{8}[ :,]'; then
		echo "translate: mutant $1: the test did not run, see $dir/log"
		stale=$((stale + 1))
	else
		caught=$((caught + 1))
		echo "$1: $2: $(head -n 1 "$dir/log")" >> "$report"
	fi
}

# in FUNCTION SED-COMMANDS: only between its first and its last line
in_function() {
	printf '/^(static )?[a-z0-9_ ]+ \*?%s\\(/,/^}/{%s}' "$1" "$2"
}

# What is taken for one of these instructions.
mutant sprg4-is-a-word decode \
	's/^\t\{ SPRN_SPRG3, .*/&\n\t{ SPRN_SPRG4, SHARED_LOW(sprg4) },/'
mutant register-left-out decode '/^\t\{ SPRN_MAS6, /d'
mutant pid-is-a-word decode 's/^\t\{ SPRN_MAS6, .*/&\n\t{ 48, SHARED(pir) },/'
mutant bucsr-is-read decode 's/write && get_sprn\(inst\) == SPRN_BUCSR/get_sprn(inst) == SPRN_BUCSR/'
mutant record-bit-ignored decode 's/ \|\| \(inst & 1\)\)/)/'
mutant any-opcode decode 's/get_op\(inst\) != 31 \|\|/get_op(inst) < 31 ||/'
mutant reserved-bits-ignored decode '/OP_31_XOP_MFMSR:/,/single/s/0x001ff800/0x001ef800/'
mutant wrteei-of-a-register decode 's/0x03ff7800/0x001f7800/'
mutant wrong-extended-opcode decode 's/^(#define OP_31_XOP_MTMSR)\t.*/#undef OP_31_XOP_MTMSR\n\1 178/'

# What it does to which register.
mutant wrong-half execute 's/(SPRN_MAS7, )SHARED\(mas7_3\)/\1SHARED_LOW(mas7_3)/'
mutant wrong-word execute 's/(SPRN_ESR, )SHARED\(esr\)/\1SHARED(dsisr)/'
mutant registers-swapped execute 's/SHARED_LOW\(srr0\)/SHARED_LOW(srr1)/'
mutant bucsr-does-something execute 's/PPC_RAW_NOP\(\)/ori(3, 3, 1)/'
mutant reads-are-writes execute 's/single\(code, write \?/single(code, !write ?/'
mutant wrong-operand execute 's/stw\(get_rs\(inst\), address\)/stw(get_ra(inst), address)/'
mutant data-page-above-its-reach execute 's/address & 0xffff/address \& 0x7fff/'

# What else a fragment changes.
mutant ee-is-another-bit execute 's/^(#define EE_BIT\t+)16/\117/'
mutant clears-two-bits execute "$(in_function write_ee_now 's/EE_BIT \+ 1/EE_BIT + 2/')"
mutant whole-msr-by-wrtee execute 's/rlwimi\(code->scratch, rs, 0, EE_BIT, EE_BIT\)/ori(code->scratch, rs, 0)/'
mutant condition-register-used execute "$(in_function rlwinm 's/0x54000000/0x54000001/')"
mutant one-scratch-for-all execute 's/other == 12 \? 11 : 12/12/'
mutant nothing-saved execute "$(in_function begin '/BT_SAVE_OFFSET/d')"
mutant nothing-restored execute "$(in_function end 's/lwz\(code->scratch, data \+ BT_SAVE_OFFSET\)/0x60000000/')"
mutant saved-over-a-register execute 's/BT_SAVE_OFFSET/0x50/'
mutant two-words-to-save execute "$(in_function begin 's/data \+ BT_SAVE_OFFSET/& + 4/')"

# When it leaves to the host.
mutant interrupt-forgotten execute "$(in_function exit_if_pending '/twnei0/d')"
mutant interrupt-forgotten-by-wrteei execute "$(in_function write_ee_now '/twnei0/d')"
mutant interrupt-without-ee execute "$(in_function exit_if_pending '/and\(/d')"
mutant wrong-shift execute 's/^(#define EE_SHIFT\t+)15/\114/'
mutant interrupt-before-its-time execute "$(in_function write_msr '/commit_msr/{h;d};/exit_if_pending/{G}')"
mutant traps-if-less execute "$(in_function twnei0 's/24 << 21/16 << 21/')"
mutant traps-always execute "$(in_function twnei0 's/24 << 21/31 << 21/')"
mutant other-bits-let-through execute "$(in_function write_msr '/twnei0/d')"
mutant one-bit-let-through execute "$(in_function write_msr 's/EE_BIT - 1/EE_BIT - 2/')"

# What an interrupted one is settled to, by the indices and by the host.
mutant commit-too-late execute 's/code->commit = code->n;/code->commit = code->n + 1;/'
mutant commit-too-early execute 's/code->commit = code->n;/code->commit = code->n - 1;/'
mutant restore-too-early execute 's/code->restore = code->n;/code->restore = code->n - 1;/'
mutant restore-too-late execute "$(in_function kvmppc_bt_settle 's/\*index <= (.*restore\))/*index < \1/')"
mutant restore-before-save execute "$(in_function kvmppc_bt_settle 's/\*index > 0 \&\& //')"
mutant commit-counts-as-done execute "$(in_function kvmppc_bt_settle 's/\*index > \(/*index >= (/')"
mutant always-after execute "$(in_function kvmppc_bt_settle 's/\*index > \(\*site\)->commit \? 4 : 0/4/')"
mutant slot-of-the-neighbour execute "$(in_function kvmppc_bt_settle 's,offset / BT_SLOT_BYTES,& + 1,')"

# Which loads are taken for one.
mutant load-that-updates decode-loads "$(in_function load_opcode 's/case OP_LHA:/&\n\tcase OP_LWZU:/')"
mutant load-with-record-bit decode-loads "$(in_function load_opcode 's/inst \& 1/inst \& 2/')"
mutant load-of-a-double decode-loads "$(in_function load_opcode 's/OP_31_XOP_LHAX/OP_31_XOP_LHAUX/')"

# What they read, and what they change.
mutant load-is-another execute "$(in_function load_opcode 's/return OP_LHA;/return OP_LHZ;/')"
mutant load-over-its-register execute "$(in_function unwritten 's/from == get_rt\(inst\)/false/')"
mutant load-base-is-a-register execute "$(in_function effective_address 's/ra \? add/1 ? add/')"
mutant load-compares-half execute "$(in_function kvmppc_bt_translate_load '/xoris\(/s/, ea\)/, ea \& 0xffff)/')"
mutant load-compares-less execute "$(in_function kvmppc_bt_translate_load '/xori\(/s/, ea\)/, ea \& ~4)/')"
mutant load-is-always-cached execute "$(in_function kvmppc_bt_translate_load 's/rlwinm\(.*\)\)/ori(choice, 0, 4))/')"
mutant load-is-never-cached execute "$(in_function kvmppc_bt_translate_load 's/32 - 3, 29, 29/32 - 4, 30, 30/')"
mutant load-of-another-slot execute "$(in_function kvmppc_bt_cached_ea 's/slot \*/(slot + 1) */')"
mutant load-keeps-a-scratch execute "$(in_function kvmppc_bt_translate_load '/lwz\(choice/d')"
mutant load-saves-over-the-other execute "$(in_function kvmppc_bt_translate_load 's/BT_SAVE2_OFFSET/BT_SAVE_OFFSET/')"
mutant load-done-too-early execute "$(in_function kvmppc_bt_translate_load 's/commit = code->n/commit = code->n - 1/')"
mutant load-done-too-late execute "$(in_function kvmppc_bt_translate_load 's/commit = code->n/commit = code->n + 1/')"
mutant second-restored-too-short execute "$(in_function kvmppc_bt_settle 's/\*index <= (\(\*site\)->restore2)/*index < \1/')"
mutant second-restored-before-save execute "$(in_function kvmppc_bt_settle 's/\*index > 1/*index > 0/')"

# Where a branch leads.
mutant branch-one-too-far branches 's/distance > 0x1fffffc/distance > 0x2000000/'
mutant branch-one-too-far-back branches 's/distance < -0x2000000/distance < -0x2000004/'
mutant branch-not-far-enough branches 's/distance > 0x1fffffc/distance > 0x1fffff8/'
mutant branch-to-a-byte branches 's/ \|\| \(distance & 3\)//'
mutant branch-and-link branches 's/0x48000000 \|/0x48000001 |/'
mutant branch-without-wrapping branches 's/s32 distance = to - from/long long distance = (long long)to - from/'

[ $survived -eq 0 ] && [ $stale -eq 0 ] || exit 1
echo "translate: mutants: all $caught caught, see $report"
