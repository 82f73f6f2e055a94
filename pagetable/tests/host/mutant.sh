#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# A version of the payload with one promise broken (../mutants/NAME.patch), which the
# directed tests or the fuzz test must fail. For use by Makefile:
#
#   mutant.sh OUT HERE RUNS COMPILER FUZZ_FLAGS NAME
#
# OUT/mutant-NAME/by says what caught it; there is none if nothing did.
set -eu

out=$1 here=$2 runs=$3 cc=$4 fuzz_flags=$5 name=$6
root=$here/../../..
dir=$out/mutant-$name
copy=build/pagetable/mutants/$name/source
"$root/scripts/mutant" pagetable "$copy" "$name"
rm -rf "$dir"
mkdir -p "$dir"
ln -s "$(realpath "$root/$copy")"/pagetable/xen/*.[ch] "$dir"
# Over a model of Xen.
ln -sf "$out/src/layout.h" "$out/src/layout_values.h" "$out/src/parts.h" "$dir"
$cc $fuzz_flags -Wno-unused -I"$dir" -I"$here" -c -o "$dir/payload.o" "$here/payload_under_test.c"
$cc -o "$dir/directed" "$dir/payload.o" "$out/fake_xen.o" \
	"$out/call.o" "$out/test_semi_writable.o" -lcmocka

# The fuzz test where the directed ones find nothing, and once as its own control.
# They take a second or two: with some promise broken, work that is done in parts
# never ends.
by= status=0
timeout 60 "$dir/directed" > "$dir/directed.log" 2>&1 || status=$?
if [ $status = 124 ]; then
	by="does not end"
elif [ $status != 0 ]; then
	by=$(sed -nE 's/^\[  (FAILED|ERROR ) *\] ([a-z_0-9]+)$/\2/p' \
		"$dir/directed.log" | sort -u | tr '\n' ' ')
fi
if [ -z "$by" ] || [ "$name" = payload-wrong-done ]; then
	$cc -fsanitize=fuzzer -o "$dir/fuzz" "$dir/payload.o" \
		"$out/fake_xen.o" "$out/call.o" "$out/fuzz_semi_writable.o"
	timeout 600 "$dir/fuzz" -seed=1 -max_len=512 -runs="$runs" \
		-artifact_prefix="$dir/" > "$dir/fuzz.log" 2>&1 || true
	by=$(grep -aoE -m1 'VIOLATION: .*|ERROR: AddressSanitizer: [a-zA-Z-]+|runtime error: .*' \
		"$dir/fuzz.log" || true)
fi
[ -n "$by" ] || { echo "host: mutant $name SURVIVED"; exit 1; }
echo "$name: $by" > "$dir/by"
