#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# Negative controls: versions of the payload with one promise broken each, and
# every one must fail the directed tests or the fuzz test. For use by Makefile:
#
#   mutants.sh XEN OUT HERE RUNS COMPILER FUZZ_FLAGS
set -eu

xen=$1 out=$2 here=$3 runs=$4 cc=$5 fuzz_flags=$6
caught=0 survived=0 stale=0
report=$out/mutants.log
: > "$report"

# mutant NAME FLAG SED-SCRIPT: build it, run both tests, say who caught it
mutant() {
	dir=$out/mutant-$1
	rm -rf "$dir"
	mkdir -p "$dir"
	ln -s "$out"/src/*.h "$xen/switches.c" "$dir"
	changed=
	for file in marks semi_writable teardown payload; do
		sed -E "$3" "$xen/$file.c" > "$dir/$file.c"
		cmp -s "$xen/$file.c" "$dir/$file.c" || changed=y
	done
	if [ -z "$2$changed" ]; then
		echo "host: mutant $1: its change no longer applies"
		stale=$((stale + 1))
		return
	fi
	$cc $fuzz_flags $2 -Wno-unused -I"$dir" -I"$here" \
		-c -o "$dir/payload.o" "$here/payload_under_test.c"
	$cc -o "$dir/directed" "$dir/payload.o" "$out/fake_xen.o" \
		"$out/call.o" "$out/test_semi_writable.o" -lcmocka
	$cc -fsanitize=fuzzer -o "$dir/fuzz" "$dir/payload.o" \
		"$out/fake_xen.o" "$out/call.o" "$out/fuzz_semi_writable.o"

	by=
	if ! timeout 60 "$dir/directed" > "$dir/directed.log" 2>&1; then
		by="directed ($(sed -nE 's/^\[  (FAILED|ERROR ) *\] ([a-z_0-9]+)$/\2/p' \
			"$dir/directed.log" | sort -u | tr '\n' ' '))"
	fi
	if ! timeout 120 "$dir/fuzz" -seed=1 -max_len=512 -runs="$runs" \
	     -artifact_prefix="$dir/" > "$dir/fuzz.log" 2>&1; then
		by="$by fuzz ($(grep -aoE -m1 'VIOLATION: .*|ERROR: AddressSanitizer: [a-zA-Z-]+|runtime error: .*' \
			"$dir/fuzz.log"))"
	fi
	if [ -n "$by" ]; then
		caught=$((caught + 1))
		echo "$1: $by" >> "$report"
	else
		survived=$((survived + 1))
		echo "host: mutant $1 SURVIVED"
	fi
}

# in FUNCTION SED-COMMANDS: only between its first and its last line
in_function() {
	printf '/^(static )?[a-z ]+ \*?%s\\(/,/^}/{%s}' "$1" "$2"
}

mutant no-flush -DTPT_NEGATIVE_CONTROL_NO_FLUSH ''
mutant type-dropped-before-flush '' \
	"$(in_function semi_writable_mark \
	   's/^(\t*)(flush_rc = flush_iotlb)/\1for (i = 0; i < n; i++) put_page_type(mfn_to_page(mfns[i]));\n\1\2/;s/^\t\tput_page_type\(mfn_to_page\(mfns\[i\]\)\);/\t\t;/')"
mutant busy-keeps-reference '' \
	"$(in_function mark_frame '/!get_page_type/,/EBUSY/{/put_page\(page\);/d}')"
mutant undo-without-map '' \
	"$(in_function undo_marks 's/if \(iommu_map\(.*\)\) \{/if (0) {/')"
mutant live-table-mapped '' \
	"$(in_function release_frame 's/page_unlock\(page\);/rc = iommu_map(d, mfn, mfn, 1, IOMMUF_rw, flush_flags);\n&/')"
mutant any-owner-skips '' \
	's/page_owner\(mfn_to_page\(mfn\)\) == d;/1;/'
mutant alias-has-mark '' 's/m && __mfn_valid\(mfn\) &&/m \&\&/'
mutant mark-keeps-no-reference '' \
	"$(in_function mark_frame 's/^\t\treturn 0;/\t\treturn put_page(page), 0;/')"
mutant release-keeps-reference '' \
	"$(in_function release_frame '/mark.s own reference/d')"
mutant release-without-flush '' \
	"$(in_function semi_writable_release 's/flush_rc = flush_iotlb.*/flush_rc = 0;/')"
mutant failed-map-forgets-mark '' \
	"$(in_function release_frame 's/mark_test_and_set\(pdx, MARKED\);/;/')"
mutant held-frame-let-go '' \
	"$(in_function undo_marks 's/^\t\t\tcontinue;/\t\t\tput_page_type(page), put_page(page);\n&/')"
mutant no-lock '' \
	's/while \(__atomic_load_n\(&own->serving.*ticket\)/while (0)/'
mutant one-lock-for-all '' \
	's/domains\[domain_id\(d\)\]/domains[0]/'
mutant lock-kept '' 's/ \|\| marks_waited_for\(own\)//'
mutant serves-who-has-no-devices '' \
	's/if \(!domain_needs_iommu_sync\(d\)\)/if (0)/'
mutant host-open-to-guests '' 's/d == hardware_domain \? op_/1 ? op_/'
mutant held-frame-marked '' 's/mark_is_set\(pdx, HELD\) \|\|/0 ||/'
mutant held-frame-forgotten '' \
	"$(in_function undo_marks 's/mark_test_and_set\(.*, HELD\);/;/')"
mutant held-frames-reverted '' 's/semi_writable_stats.held -$/0 -/'
mutant zombie -DTPT_NEGATIVE_CONTROL_ZOMBIE ''
mutant wrong-done -DTPT_NEGATIVE_CONTROL_WRONG_DONE ''
mutant teardown-forgets-one '' \
	"$(in_function drop_word 's/for \(; set;/for (set \&= set - 1; set;/')"
mutant teardown-forgets-held '' "$(in_function drop_word '/drop_hold/d')"
mutant teardown-of-all '' "$(in_function drop_word 's/!= d\)/== 0)/')"
mutant teardown-maps '' \
	"$(in_function drop_mark 's/^\tput_page/\tu32 f = 0; iommu_map(page_owner(pdx_to_page(pdx)), 0, 0, 1, IOMMUF_rw, \&f);\n&/')"
mutant teardown-keeps-bit '' \
	"$(in_function drop_mark 's/mark_test_and_clear/mark_is_set/')"
mutant teardown-before-death '' \
	"$(in_function new_domain_kill 's/int rc = original.*/int rc = marks_of(d) ? drop_all(d, marks_of(d)) : 0;\n\tif (!rc) rc = original_domain_kill(d);/')"
mutant teardown-hides-restart '' \
	"$(in_function new_domain_kill 's/^\tif \(rc\)$/\tif (rc \&\& rc != -ERESTART)/')"
mutant teardown-never-leaves '' \
	"$(in_function drop_all 's/softirq_pending\(.*\)\)/0)/')"
mutant teardown-goes-on-from-the-last '' \
	"$(in_function drop_all '/own->scanned = 0/d')"
mutant teardown-leaves-type '' "$(in_function drop_hold '/put_page_type/d')"
mutant plain-reference-to-live-table '' \
	's/old \+ \(1 \| PGT_locked\)/old + 1/;s/page_unlock\(page\);/put_page_type(page);/'
mutant grant-maps-marked-frame '' \
	's/^\tif \(semi_writable_test\(d, mfn\)\)$/\tif (0)/'
mutant special-frame-marked '' \
	's/\(page->count_info & PGC_special\) \|\|/0 ||/'
mutant no-preemption '' 's/softirq_pending\(smp_processor_id\(\)\)/0/'
mutant one-frame-too-few '' \
	"$(in_function marks_init 's/max_pdx \+ MARKS_PER_WORD - 1/max_pdx/')"

[ $survived -eq 0 ] && [ $stale -eq 0 ] || exit 1
echo "host: mutants: all $caught caught, see $report"
