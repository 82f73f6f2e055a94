# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Steps that test the pool under memory pressure: without any memory, and with varying memory.

Invariant: a step's verdict relies on the kernel and the hypervisor, not on the module's own counters, unless
these are under test.
"""

import re

from control_files import CACHED, SETTLE
from machines import GUEST
from trapless_lab.machines.script import Step, StepResult
from trapless_lab.pagetable.parts import NAME, SYSFS

FAULT = "/sys/module/fault_injection/parameters"
SMALL = "prefill=2,2,2,1,1"

SUM = f"c=0; for f in {' '.join(CACHED)}; do read -r v <{SYSFS}/$f; c=$((c + v)); done; echo cached $c"
SHRUNK = f"read -r s <{SYSFS}/shrunk; echo shrunk $s"
# First free the kernel's caches and the free pages in per-CPU lists.
MEMORY = (
    "sleep 2; echo 3 >/proc/sys/vm/drop_caches; echo 1 >/proc/sys/vm/compact_memory; "
    "grep -E '^(MemFree|PageTables|Slab):' /proc/meminfo"
)

# Some processes at once, so that the pool must have a table for each.
# By PID: a process that has not run yet is not called sleep, so killall would miss it.
CROWD = (
    'crowd=; for i in $(seq 40); do sleep 1000 & crowd="$crowd $!"; done; sleep 1; kill $crowd; wait; sleep 1'
)


def step(name: str, command: str, expect: int | None = 0) -> Step:
    """Return a step with time for a machine that is kept busy by others."""
    return Step(name, command, timeout_s=500, expect=expect)


def numbers(result: StepResult) -> dict[str, int]:
    """Return what a step printed as "name value" or, of /proc/meminfo, "name: value kB"."""
    found = re.findall(r"^([\w/]+):? +(\d+)(?: kB)?$", result.output, re.MULTILINE)
    return {name: int(value) for name, value in found}


def failing_loads(name: str, how: str, persist: bool) -> Step:
    """Return a step that loads the module again and again, each time without one more allocation.

    ``how`` is "fresh", each place of the module once or twice, or "fail", each allocation one after another.
    It ends when a load got all the memory that it asked for. A load may succeed without some; one that fails
    must leave nothing marked, which the hypervisor's count shows after each.
    """
    command = f"""
echo {persist:d} >{FAULT}/persist; echo {int(how == "fresh")} >{FAULT}/fresh; echo >{FAULT}/unfailed
n=0 refused=0 survived=0
while n=$((n + 1)); [ $n -lt 2000 ]; do
	echo $n >{FAULT}/fail; echo insmod >{FAULT}/task
	insmod {GUEST}/{NAME}.ko {SMALL} >/tmp/insmod 2>&1; rc=$?
	read -r failed <{FAULT}/failed; echo >{FAULT}/task
	if [ $rc = 0 ]; then
		read -r marked <{FAULT}/marked
		[ $failed = 0 ] && break
		survived=$((survived + 1)); rmmod {NAME} || exit 1
	else
		refused=$((refused + 1))
		[ $failed = 0 ] && {{ cat /tmp/insmod; dmesg | tail -5; exit 1; }}
	fi
	read -r left <{FAULT}/marked
	[ $left = 0 ] || {{ echo "load $n: $left frames stay marked"; exit 1; }}
	[ ! -e {SYSFS} ] || {{ echo "load $n: control files stay"; exit 1; }}
	! grep -q ^{NAME} /proc/modules || {{ echo "load $n: module stays"; exit 1; }}
done
read -r sites <{FAULT}/sites
echo "loads $n"; echo "refused $refused"; echo "survived $survived"; echo "sites $sites"
echo "marked $marked"; cat {FAULT}/unfailed
rmmod {NAME}; echo 0 >{FAULT}/fresh"""
    return step(name, command)


def without_growth(name: str) -> Step:
    """Return a step in which the pool has to grow while its workers get no memory, and then they get some."""
    owned = f"o=0; for f in {SYSFS}/*/cached {SYSFS}/*/in_use; do read -r v <$f; o=$((o + v)); done"
    command = f"""
echo 1 >{FAULT}/persist; echo 1 >{FAULT}/fail; echo kworker >{FAULT}/task
{owned}; echo "before $o"
{CROWD}
{owned}; read -r failed <{FAULT}/failed; echo >{FAULT}/task
echo "starved $o"; echo "failed $failed"
sleep 2; {CROWD}; sleep 2; {CROWD}
{owned}; echo "fed $o" """
    return step(name, command)


def without_enabling(name: str) -> Step:
    """Return a step that enables the pool again and again, each time with another allocation failing."""
    command = f"""
echo 0 >{FAULT}/persist; n=0 refused=0
while n=$((n + 1)); [ $n -lt 2000 ]; do
	echo 0 >{SYSFS}/enabled || exit 1
	echo $n >{FAULT}/fail; echo dd >{FAULT}/task
	echo 1 | dd of={SYSFS}/enabled 2>/dev/null; rc=$?
	read -r failed <{FAULT}/failed; echo >{FAULT}/task; read -r on <{SYSFS}/enabled
	[ $rc != 0 ] && refused=$((refused + 1))
	[ "$rc$on" = 01 ] || [ "$rc$on" = 10 ] || {{ echo "allocation $n: write $rc, enabled $on"; exit 1; }}
	[ $failed = 0 ] && break
done
echo "allocations $n"; echo "refused $refused"
echo 0 >{SYSFS}/enabled; read -r marked <{FAULT}/marked; echo "marked $marked"
echo 1 >{SYSFS}/enabled"""
    return step(name, command)


def out_of_memory(name: str) -> Step:
    """Return a step that fills memory until the OOM killer runs."""
    command = f"""
{CROWD}; {SETTLE}; {SUM}; {SHRUNK}
mount -o remount,size=95% /tmp
free=$(sed -n 's/^MemAvailable: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo)
dd if=/dev/zero of=/tmp/fill bs=1M count=$((free / 1024 - 60)) 2>/dev/null
tail /dev/zero; rc=$?
rm /tmp/fill
echo "killed $rc"
{SUM} | sed s/cached/left/; {SHRUNK} | sed s/shrunk/given_back/
dmesg | grep -c 'invoked oom-killer' | sed 's/^/oom_reports /'"""
    return step(name, command)


def ballooned(name: str, kib: int) -> Step:
    """Return a step that gives memory to Xen and takes it back, and forks meanwhile."""
    target = "/sys/devices/system/xen_memory/xen_memory0/target_kb"
    total = "sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo"
    command = f"""
read -r old <{target}; echo "total $({total})"
echo $((old - {kib})) >{target}; spawn fork-exec -n 20; sleep 5; spawn fork-exec -n 20
echo "small $({total})"; {SUM}
echo $old >{target}; spawn fork-exec -n 20; sleep 10; spawn fork-exec -n 20; echo "again $({total})"
{SUM} | sed s/cached/cached_after/"""
    return step(name, command)
