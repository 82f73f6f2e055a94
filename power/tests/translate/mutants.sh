#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# Negative controls: versions of the translator with one mistake each (../mutants), of
# which each must fail the test that its patch names. For use by Makefile:
#
#   mutants.sh OUT MAKE
set -eu

here=$(dirname "$0")
out=$1 make=$2
caught=0 survived=0 stale=0
report=$out/mutants.log
mkdir -p "$out"
: > "$report"

# try NAME TEST: build it with the mistake, run the test, print the result
try() {
	dir=$out/../mutants/$1
	kvm=$dir/source/power/kvm
	if ! "$here/../../../scripts/mutant" power "$dir/source" "$1"; then
		stale=$((stale + 1))
	# Build the programs first: a mutant that does not compile tests nothing.
	elif ! $make KVM="$kvm" MADE="$dir" MUTANT=-Wno-unused "$2-program" > "$dir/log" 2>&1; then
		echo "translate: mutant $1 does not compile, see $dir/log"
		stale=$((stale + 1))
	elif $make KVM="$kvm" MADE="$dir" "$2" > "$dir/log" 2>&1; then
		echo "translate: mutant $1 SURVIVED"
		survived=$((survived + 1))
	# Only a test's verdict on a word counts, not a failure to run.
	elif ! head -n 1 "$dir/log" | grep -qE '^(witness: .*|)[0-9a-f]{8}[ :,]'; then
		echo "translate: mutant $1: the test did not run, see $dir/log"
		stale=$((stale + 1))
	else
		caught=$((caught + 1))
		echo "$1: $2: $(head -n 1 "$dir/log")" >> "$report"
	fi
}

for patch in "$here"/../mutants/*.patch; do
	name=$(basename "$patch" .patch)
	test=$(sed -n 's/^Caught by: translate //p' "$patch")
	[ -z "$test" ] || try "$name" "$test"
done

[ $survived -eq 0 ] && [ $stale -eq 0 ] && [ $caught -gt 0 ] || exit 1
echo "translate: mutants: all $caught caught, see $report"
