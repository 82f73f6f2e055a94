# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The day that Xen must be fixed: the payload goes, whatever a domU and its own pool do to keep it.

The domU may have a device, so it may mark pages; it marks all that it has without pause, and forks. Witnesses
are Xen's list of payloads and its free memory, and the domU's own kernel. The negative control is a payload
that goes on to admit marks. Live patches as a vendor would build them are loaded over, under and on top of
the payload.
"""

import re

import pytest

import hypercalls
from machines import ALIVE_FORKERS, GUEST, forkers, helper_file, insmod, installed, payload_file
from trapless_lab import artifacts
from trapless_lab.machines import domu, runner
from trapless_lab.machines.domu import DomU
from trapless_lab.machines.initramfs import File
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable import parts as pagetable
from trapless_lab.pagetable.parts import NAME

pytestmark = pytest.mark.machine

HOSTILE = DomU(
    programs=("spawn",),
    memory_mib=192,
    passthrough=True,
    files={**helper_file("hypercall_test"), **pagetable.files([pagetable.POOL_PART])},
)
FORKERS = 2
ROUNDS = 4  # of loading and evicting
_PATIENCE_S = 900  # with a guest that takes all of the processor
ADMITS = "evict-admits"
STOCK_FIX, FIX_ABOVE = "fix", "above"
# The pool looks every ten seconds; the machine is slow.
NOTICED = (
    "n=0; until [ $(cat {0}/enabled) = {1} ] || [ $((n += 1)) -gt 120 ]; do sleep 1; done; cat {0}/enabled"
)
SYSFS = f"/sys/kernel/{NAME}"
PAYLOAD = f"/usr/lib/trapless/this-build/{NAME}.livepatch"

FLOODED = pytest.mark.long(
    "a guest that floods Xen: two minutes; make check evicts without one, and over the model of Xen"
)
_LIST = "xen-livepatch list; ls -1d /sys/module/trapless_* 2>/dev/null; true"


def _trapless(name: str, arguments: str, expect: int | None = 0) -> Step:
    return Step(name, f"trapless pagetable {arguments} 2>&1; rc=$?; {_LIST}; exit $rc", _PATIENCE_S, expect)


def _vendor(name: str) -> dict[str, File]:
    path = artifacts.build_dir() / "pagetable/tests/vendor" / f"{name}.livepatch"
    return {f"{GUEST}/{name}.livepatch": File(path)}


def _free(when: str) -> Step:
    return Step(f"free {when}", "xl info | grep free_memory")


@pytest.fixture(scope="module")
def hostile() -> Transcript:
    """A domU that marks and forks without pause, and payloads that come and go."""
    guest = HOSTILE
    storm = "cd /sys/module/hypercall_test/parameters; "
    # The storm must have marked something of each payload, or there would be nothing to take back.
    again = (
        f"for i in $(seq {ROUNDS}); do trapless pagetable load --only payload >/dev/null || exit 1; "
        "until trapless pagetable status --json | grep -q '\"semi_writable\": [1-9]'; do sleep 0.2; done; "
        f"trapless pagetable unload --only payload --evict >/dev/null || exit 1; done; {_LIST}"
    )
    return runner.run(
        MACHINES["xen-strict"],
        [
            domu.toolstack(),
            _trapless("load", "load"),
            insmod("hypercall_test"),
            Step("evict by hand", hypercalls.run_case("evict")),
            Step("remove the test", "rmmod hypercall_test"),
            guest.create(),
            guest.inside(insmod()),
            guest.inside(insmod("hypercall_test")),
            guest.step("no evict", hypercalls.run_case("no_evict"), expect=None),
            guest.step("fork", forkers("fork-exec", FORKERS), _PATIENCE_S),
            guest.step("storm", hypercalls.run_case("storm"), _PATIENCE_S),
            _trapless("unload", "unload", expect=None),
            _trapless("evict", "unload --evict", expect=None),
            guest.step("refused", f"{storm}cat storm_refused; {ALIVE_FORKERS}", _PATIENCE_S),
            guest.step("off", NOTICED.format(SYSFS, 0), _PATIENCE_S),
            _free("once"),
            Step("again", again, _PATIENCE_S, expect=None),
            _free(f"{ROUNDS} times"),
            # The control: with its storm the domU keeps it.
            _trapless("load the control", f"load --only payload --payload {GUEST}/{ADMITS}.livepatch"),
            guest.step("on", NOTICED.format(SYSFS, 1), _PATIENCE_S),
            _trapless("evict the control", "unload --only payload --evict", expect=None),
            _trapless("load again", "load --only payload"),
            guest.step("calm", f"{hypercalls.run_case('calm')}; {ALIVE_FORKERS}", _PATIENCE_S, expect=None),
            domu.console(),
            guest.destroy(),
            _trapless("the control goes", "unload --only payload --evict", expect=None),
        ],
        files={
            **domu.tree(guest),
            **installed(),
            **helper_file("hypercall_test"),
            **payload_file(ADMITS),
        },
        modules=domu.MODULES,
    )


@pytest.fixture(scope="module")
def vendors() -> Transcript:
    """Live patches of a vendor's, for stock Xen and for our payload."""
    load = f"xen-livepatch load {GUEST}/{STOCK_FIX}.livepatch; {_LIST}"
    clean = "xen-livepatch unload ours; xen-livepatch revert fix; xen-livepatch unload fix"
    return runner.run(
        MACHINES["xen-strict"],
        [
            Step("fix", load, expect=None),
            _trapless("load over it", "load --only payload", expect=None),
            Step(
                "ours over it",
                f"xen-livepatch upload ours {PAYLOAD}; xen-livepatch apply ours",
                expect=None,
            ),
            Step("clean", clean, expect=None),
            _trapless("load", "load"),
            Step("upload the fix", f"xen-livepatch upload fix {GUEST}/{STOCK_FIX}.livepatch"),
            Step("fix over ours", f"xen-livepatch apply fix; {_LIST}", expect=None),
            Step("fix replaces ours", f"xen-livepatch replace fix; {_LIST}", expect=None),
            Step("fix without dependencies", f"xen-livepatch apply fix --nodeps; {_LIST}", expect=None),
            Step("unload the fix", "xen-livepatch unload fix", expect=None),
            Step("fix on ours", f"xen-livepatch load {GUEST}/{FIX_ABOVE}.livepatch; {_LIST}", expect=None),
            _trapless("unload below", "unload --only payload --evict", expect=None),
            Step(
                "take it off", f"xen-livepatch revert above; xen-livepatch unload above; {_LIST}", expect=None
            ),
            # The pool stays, and does not keep the payload.
            _trapless("unload ours", "unload --only payload --evict", expect=None),
            Step("pool", "spawn fork-exit -n 20 && trapless pagetable status && rmmod trapless_pagetable"),
            Step("the fix", load, expect=None),
            _trapless("pvmmu beside it", "load --only pvmmu"),
        ],
        files={**installed(), **_vendor(STOCK_FIX), **_vendor(FIX_ABOVE)},
    )


def _applied(result: str) -> set[str]:
    return set(re.findall(r"^(\w+) +\| APPLIED", result, re.MULTILINE))


@FLOODED
def test_a_domu_keeps_the_payload_and_loses_it(hostile: Transcript) -> None:
    kept = hostile["unload"]
    assert kept.rc == 1 and _applied(kept.output) == {NAME}
    assert "pages are semi-writable" in kept.output and "--evict" in kept.output
    gone = hostile["evict"]
    assert gone.rc == 0 and "Nothing to list" in gone.output, gone.output


@FLOODED
def test_a_domu_may_not_evict(hostile: Transcript) -> None:
    assert hostile["no evict"].rc == 0, hostile["no evict"].output


@FLOODED
def test_the_domu_goes_on(hostile: Transcript) -> None:
    """Its pages are ordinary, its processes fork, and its pool knows it, both ways."""
    refused, alive = hostile["refused"].output.split("\n")[:2]
    assert int(refused) > 0
    assert alive == f"alive {FORKERS}"
    assert hostile["off"].output.split()[-1] == "0"
    assert hostile["on"].output.split()[-1] == "1"
    calm = hostile["calm"]
    assert calm.rc == 0 and f"alive {FORKERS}" in calm.output, calm.output
    assert domu.kernel_warnings(hostile) == hostile.kernel_warnings() == []


@FLOODED
def test_nothing_is_left_of_many_payloads(hostile: Transcript) -> None:
    again = hostile["again"]
    assert again.rc == 0 and "Nothing to list" in again.output, again.output
    once, often = (
        int(re.findall(r"\d+", hostile[f"free {when}"].output)[0]) for when in ("once", f"{ROUNDS} times")
    )
    # In MiB; the map of marks alone has more than two.
    assert abs(once - often) <= 1


def test_over_a_vendors_patch_ours_is_refused(vendors: Transcript) -> None:
    assert _applied(vendors["fix"].output) == {"fix"}
    over = vendors["load over it"]
    assert over.rc == 1 and "the live patch fix is applied" in over.output
    assert vendors["ours over it"].rc != 0
    assert "ours: check against fix build-id failed" in vendors.console
    assert _applied(vendors["load"].output) == {NAME}


def test_a_vendors_patch_over_ours_is_refused_by_xen(vendors: Transcript) -> None:
    """Also if it is to replace ours, which Xen refuses of a payload with our hooks."""
    for step in ("fix over ours", "fix replaces ours", "fix without dependencies"):
        assert _applied(vendors[step].output) == {NAME}, step
    assert "fix: REPLACE action is not supported" in vendors.console


def test_a_patch_on_top_of_ours_goes_first(vendors: Transcript) -> None:
    assert _applied(vendors["fix on ours"].output) == {NAME, "above"}
    below = vendors["unload below"]
    assert below.rc == 1 and "above is applied on top of it" in below.output
    assert _applied(vendors["take it off"].output) == {NAME}
    assert "Nothing to list" in vendors["unload ours"].output
    assert vendors["unload ours"].rc == 0
    assert _applied(vendors["the fix"].output) == {"fix"}
    assert vendors.kernel_warnings() == []


@FLOODED
def test_negative_control_marks_are_admitted(hostile: Transcript) -> None:
    kept = hostile["evict the control"]
    assert kept.rc == 1 and _applied(kept.output) == {NAME}, kept.output
    assert "still semi-writable" in kept.output
    assert "pages are admitted again" in hostile["load again"].output
    assert "Nothing to list" in hostile["the control goes"].output
