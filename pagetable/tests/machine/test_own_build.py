# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Hypervisors that somebody builds by hand: what is proven of them, what runs on them; the series for Xen.

``make -C pagetable own-xen`` compiles them (tests/own-xen/build has the table). Nobody has compared their
functions with the payload's, so the two parts that repeat decisions have to stay out. The witnesses are
QEMU's count of flushes, the contents of pages that a device writes, and the models of the hypercalls and of
page tables; Xen's own ASSERTs are on in the build with the series.

What these tests cannot see: other compilers than the host's, and patches of other distributions.
"""

import contextlib
from functools import cache
from pathlib import Path

import pytest

import builds
import hypercalls
import probe
from builds import Build
from check_layout import DEFAULT_LAYOUT
from device_domu import AHCI, FIRST_MARK, WITH_DISK, left, nothing_left
from layout_checker import proofs
from layout_checker.claim import Claim, Either
from layout_checker.fit import fit
from layout_checker.header import parse_header, read_layout
from layout_checker.hypervisor import Hypervisor
from layout_checker.known_functions import OPTIONS, Known, left_out, lists, place, read_known
from layout_checker.report import Refused, UnusableInput
from machines import KEPT_OUT, SPAWN, STOCK_FLUSHES, helper_file, insmod, refused
from trapless_lab import artifacts, host
from trapless_lab.machines import domu, runner
from trapless_lab.machines.machine import MACHINES, Machine
from trapless_lab.machines.pair import Pair
from trapless_lab.machines.script import Step
from trapless_lab.machines.transcript import Transcript
from trapless_lab.pagetable import parts as pagetable
from trapless_lab.pagetable.experiments import dma
from variants import Files, against

pytestmark = [
    pytest.mark.machine,
    pytest.mark.long("compiles nine hypervisors: some 16 minutes of a processor; a boot for each payload"),
    pytest.mark.debian12("its toolstack for 4.17"),
]

PLAIN = ("4.17", "4.20")
OPTIONAL = "4.17-options"
NO_LIVEPATCH = "4.17-no-livepatch"
DEBUG = "4.20-debug"
O1 = "4.17-debug"
# What these claims are about is in functions of their own in a build that inlines less.
NOT_INLINED = {"ALLOCATED", "FLUSHED", "GET_PAGE", "ONE_MORE_REFERENCE", "OTHERS_PAUSED", "PAUSED"}
OF_LATER_VERSIONS = {"VALID_WITHOUT_HOLES", "VALID_BY_OFFSETS", "PDX_TO_MFN"}
WITH_SERIES = tuple(f"{version}-series" for version in PLAIN)
ZOMBIE = "4.17-zombie"
"""The series without its third patch."""
REPEATERS = {"l1_update", "table_refs", "ranges"}
UNKNOWN = "functions are not as in any build that is known"

SEEDS, ROUNDS = range(7000, 7004), 20
FUZZ_CALLS = 3_000


def version_of(variant: str) -> str:
    """The source that it is compiled from."""
    return variant.partition("-")[0]


def own(variant: str) -> tuple[Path, Path]:
    """Image and symbols of a build."""
    version = version_of(variant)
    if why := artifacts.own_xen_missing(version):
        pytest.skip(f"Xen {version}: {why}")
    folder = artifacts.own_xen(variant)
    return folder / "xen.gz", folder / "xen-syms"


@cache
def findings(variant: str) -> probe.Findings:
    return probe.look(*own(variant))


def pair(version: str) -> Pair:
    """Debian's packages of this version, for the toolstack."""
    return Pair("own", xen="" if version == host.xen().version else "debian13")


# -- what is proven -------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", PLAIN)
def test_of_a_plain_build_the_layout_and_the_loops_are_proven(variant: str) -> None:
    """Each loop by itself: one that this source has otherwise may be left out."""
    found = findings(variant)
    assert found.builds and found.refused == {}
    assert found.proven_loops >= len(found.loops) - 1
    assert not any(found.options[option] for option in OPTIONS)


@pytest.mark.parametrize("variant", PLAIN)
def test_what_repeats_decisions_is_left_out_unless_its_functions_are_known(variant: str) -> None:
    found = findings(variant)
    assert against(found) <= REPEATERS
    assert all(UNKNOWN in why for why in found.left_out.values())


# Debian's build of 4.20 is by another gcc than the host's, which leaves 57 of 114 as they are.
@pytest.mark.parametrize(("variant", "share"), [("4.17", 1 / 2), ("4.20", 1 / 3)])
def test_a_digest_is_of_a_function_and_not_of_a_build(variant: str, share: float) -> None:
    """Much of what another hand compiled, with other options, is to the byte what Debian ships."""
    functions = set(findings(variant).functions)
    (known,) = (known for known in read_known() if known.name.startswith(f"{variant}."))
    assert len(functions & known.lines) > share * len(functions) and len(functions) > 50


def test_options_whose_code_was_never_looked_at_are_named() -> None:
    found = findings(OPTIONAL)
    assert all(found.options[option] for option in OPTIONS)
    assert against(found) >= REPEATERS | {"marks"} and not found.builds
    assert all("this Xen was built with CONFIG_" in found.left_out[part] for part in REPEATERS)


@pytest.mark.parametrize("variant", [*WITH_SERIES, DEBUG, O1])
def test_of_a_debug_build_nothing_is_claimed(variant: str) -> None:
    """The compiler optimises less, so passages are not as they were written down."""
    found = findings(variant)
    assert not found.builds and against(found) >= REPEATERS | {"marks"}


def test_claims_hold_whatever_the_compiler_does() -> None:
    """At -O1 gcc writes other instructions for the same source. The control: passages are not found."""
    hypervisor = Hypervisor(*own(O1))
    text = read_layout(DEFAULT_LAYOUT, hypervisor.version)
    header = parse_header(fit(text, parse_header(text), hypervisor)[0])
    proven = {name: proof for name, proof in vars(proofs).items() if isinstance(proof, proofs.Proof)}
    held = set()
    for name, proof in proven.items():
        with contextlib.suppress(Refused):  # a function that this compiler has not made
            held |= {name} if proof.seen(hypervisor, header.values) else set()
    claims = {name for name, proof in proven.items() if isinstance(proof, Claim | Either) and name[0] != "_"}
    assert claims - held - OF_LATER_VERSIONS == NOT_INLINED and len(claims) > 35
    assert "PAGING_MODE" not in held


def test_without_live_patching_nothing_helps(tmp_path: Path) -> None:
    """As Qubes builds it. The payload's own build refuses it as well."""
    found = findings(NO_LIVEPATCH)
    assert found.hopeless == ["this Xen was built without CONFIG_LIVEPATCH"] and not found.builds
    with pytest.raises(builds.Refused):
        builds.build(NO_LIVEPATCH, *own(NO_LIVEPATCH), tmp_path)


def test_symbols_of_another_build_are_refused() -> None:
    """The control: the same version, compiled by the same hand."""
    with pytest.raises(UnusableInput, match="not of one build"):
        probe.look(own("4.17")[0], own(OPTIONAL)[1])


def test_one_flipped_jump_is_another_function(tmp_path: Path) -> None:
    """The control: of a build whose functions are all known, one decision is turned round."""
    hypervisor = Hypervisor(*own("4.17"))
    known = [Known("itself", frozenset(lists(hypervisor)))]
    assert left_out(hypervisor, known) == {}
    files = Files(tmp_path, *own("4.17"))
    files.flip(place(hypervisor, "mod_l1_entry").name)
    flipped = Hypervisor(*files.write())
    missing = left_out(flipped, known)
    assert missing.keys() == {"l1_update", "ranges"}
    assert all("1 of its " in why and "mod_l1_entry" in why for why in missing.values())
    assert len(set(lists(flipped)) - known[0].lines) == 1


# -- a payload for it -----------------------------------------------------------------------------


@pytest.fixture(scope="module", params=PLAIN)
def payload(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A plain build with its payload."""
    version: str = request.param
    return builds.build(version, *own(version), tmp_path_factory.mktemp(version), pair(version).xen_root)


def test_the_payload_has_the_parts_that_were_promised(payload: Build) -> None:
    lines = (payload.payload.parent / "left-out").read_text().splitlines()
    assert {line.partition(":")[0] for line in lines} == against(findings(payload.name))


def test_processes_cause_no_flush(payload: Build, tmp_path: Path) -> None:
    """And the payload for the host's Xen is refused, and without one there are flushes."""
    of_host = Build("the host's", host.xen().image, artifacts.payload("pagetable", pagetable.NAME), "")
    assert builds.flushes(payload, [of_host], tmp_path / "log").wrong == []


def test_the_adversarial_guest_gets_the_same_answers(payload: Build, tmp_path: Path) -> None:
    assert builds.same_as_stock(payload, SEEDS, ROUNDS, tmp_path / "log").wrong == []


# -- the series for Xen ---------------------------------------------------------------------------


def booted(name: str, variant: str) -> Machine:
    """One of the lab's machines with a build of the table."""
    image, _ = own(variant)
    return MACHINES[name].with_xen(pair(version_of(variant)).xen_root).with_image(image)


def boot(variant: str, pool: list[Step]) -> Transcript:
    """The hypercalls and the pool, on a strict dom0 without any payload."""
    return runner.run(
        booted("xen-strict", variant).with_icount().with_disk(),
        [
            Step("without the pool", SPAWN),
            insmod(hypercalls.TEST),
            *(Step(case, hypercalls.run_case(case), expect=None) for case in hypercalls.PROMISES),
            *pool,
            Step("again without", SPAWN),
        ],
        files={
            **pagetable.files([pagetable.POOL_PART]),
            **helper_file(hypercalls.TEST),
            **helper_file(hypercalls.MODULE),
            **dma.files(),
        },
        modules=dma.MODULES,
        make_disk=dma.disk,
    )


@pytest.fixture(scope="module", params=PLAIN)
def version(request: pytest.FixtureRequest) -> str:
    """Of the Xen that the series is in, and of its control."""
    return str(request.param)


@pytest.fixture(scope="module")
def series(version: str) -> Transcript:
    return boot(
        f"{version}-series",
        [
            *(hypercalls.cycle(length) for length in (1, 512)),
            Step("remove the test", f"rmmod {hypercalls.TEST}"),
            *hypercalls.random_calls("fuzz", FUZZ_CALLS, "built_in=1"),
            *dma.steps(),
            *pagetable.POOL_PART.load,
            Step("warm", SPAWN),
            Step("flushes", SPAWN),
            *pagetable.POOL_PART.unload,
        ],
    )


@pytest.fixture(scope="module")
def without_series(version: str) -> Transcript:
    """The control: CONFIG_PV_SEMI_WRITABLE is not there."""
    return boot(version, [insmod(name="pool", expect=None)])


def test_its_assertions_are_on(series: Transcript, without_series: Transcript) -> None:
    assert " debug=y " in series.console and " debug=n " in without_series.console


@pytest.mark.parametrize("case", hypercalls.PROMISES)
def test_the_series_keeps_the_payloads_promises(series: Transcript, case: str) -> None:
    assert series[case].rc == 0, series[case].output


@pytest.mark.parametrize("case", sorted(set(hypercalls.PROMISES) - set(hypercalls.PASS_ON_STOCK)))
def test_negative_control_without_the_series(without_series: Transcript, case: str) -> None:
    assert without_series[case].rc != 0


@pytest.mark.parametrize("length", [1, 512])
def test_the_series_flushes_once_a_call(series: Transcript, length: int) -> None:
    name = f"cycle_{length}"
    assert hypercalls.one_flush_a_call(series[name], series.counts(name), length), series[name].output


def test_the_series_answers_random_calls_as_the_model_does(series: Transcript) -> None:
    result = series["fuzz"]
    assert result.rc == 0, result.output
    assert hypercalls.counters(result)["moved"] > FUZZ_CALLS
    assert hypercalls.seen_by_qemu(result, series.counts("fuzz"))


def test_no_device_reaches_a_semi_writable_page_of_the_series(series: Transcript) -> None:
    assert dma.outcomes(series) == KEPT_OUT
    assert series.counts("semi_writable").faults > 0
    assert series.counts("normal").faults == series.counts("released").faults == 0


def test_with_the_series_processes_cause_no_flush(series: Transcript) -> None:
    assert series.counts("without the pool").pages >= STOCK_FLUSHES <= series.counts("again without").pages
    assert series.counts("flushes").pages == 0
    assert series.kernel_warnings() == []


def test_negative_control_flushes_without_the_series(without_series: Transcript) -> None:
    """The pool finds nothing to call, and says so."""
    assert refused(without_series["pool"].output, "no hypervisor half")
    for step in ("without the pool", "again without"):
        assert without_series.counts(step).pages >= STOCK_FLUSHES


@pytest.mark.parametrize("variant", WITH_SERIES)
def test_the_series_on_two_cpus(variant: str) -> None:
    """Calls that overlap; then memory, while both fork and are served by the pool."""
    transcript = runner.run(
        booted("xen-strict-smp", variant),
        [
            insmod(hypercalls.TEST),
            Step("race", hypercalls.run_case("race"), timeout_s=300),
            Step("remove the test", f"rmmod {hypercalls.TEST}"),
            *pagetable.POOL_PART.load,
            Step("memory", "cow --seed 3 --pages 128 --rounds 40 && cowthreads 20", timeout_s=600),
            pagetable.pool_step(),
            *pagetable.POOL_PART.unload,
        ],
        files={**pagetable.files([pagetable.POOL_PART]), **helper_file(hypercalls.TEST)},
    )
    assert transcript.counts("race").domain > 1000
    assert sum(level["hits"] for level in pagetable.pool_sizes(transcript["pool"]).values()) > 100
    assert transcript.kernel_warnings() == []


def ended_with_marks(variant: str) -> Transcript:
    """A domU with a disk controller is destroyed with frames marked, by a test and by its pool."""
    guest = WITH_DISK
    # Xen gives a domain's memory back bit by bit.
    wait = "n=0; while xl list | grep -q '(null)' && [ $n -lt 40 ]; do sleep 0.5; n=$((n + 1)); done"
    return runner.run(
        booted("xen-strict", variant).with_disk(),
        [
            domu.toolstack(),
            *FIRST_MARK,
            domu.assignable(AHCI),
            left("before"),
            guest.create(),
            guest.inside(insmod(hypercalls.TEST)),
            guest.step("mark", hypercalls.run_case("mark")),
            *map(guest.inside, pagetable.POOL_PART.load),
            guest.step("processes", "spawn fork-exit -n 40 >/dev/null"),
            guest.inside(pagetable.pool_step()),
            guest.destroy(),
            Step("wait", wait),
            left("destroyed"),
            domu.console(),
        ],
        files={**domu.tree(guest, of=pair(version_of(variant))), **helper_file(hypercalls.TEST)},
        modules=domu.PCI_MODULES,
        make_disk=dma.disk,
    )


@pytest.mark.parametrize("variant", WITH_SERIES)
def test_nothing_is_left_of_a_domain_that_ends_with_marks(variant: str) -> None:
    transcript = ended_with_marks(variant)
    assert sum(level["hits"] for level in pagetable.pool_sizes(transcript["pool"]).values()) > 100
    nothing_left(transcript, "before", "destroyed")
    assert transcript.kernel_warnings() == domu.kernel_warnings(transcript) == []


def test_negative_control_marks_that_nobody_drops() -> None:
    """Without the patch for the end of a domain it stays in Xen's list, without a name, and its memory."""
    transcript = ended_with_marks(ZOMBIE)
    assert "(null)" in transcript["left destroyed"].output
    with pytest.raises(AssertionError):
        nothing_left(transcript, "before", "destroyed")
