# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The device trace: every event in one bucket, attributed by order."""

from hypothesis import given
from hypothesis import strategies as st

from recorded import DATA
from trapless_lab.machines.trace import EVENTS, TICK, Counts, parse, total

FLUSH = "vtd_inv_desc_iotlb_pages iotlb invalidate domain 0x0 addr 0x1000 mask 0x0\n"
LINE_OF = {
    FLUSH: Counts(pages=1),
    "vtd_inv_desc_iotlb_domain iotlb invalidate whole domain 0x0\n": Counts(domain=1),
    "vtd_inv_desc_iotlb_global iotlb invalidate global\n": Counts(everything=1),
    "vtd_dmar_fault sid 0xfa fault 5 addr 0x1000 write 1\n": Counts(faults=1),
    "amdvi_pages_inval  AMD-Vi pages at addr 0x1000 domid 0x1 are invalidated\n": Counts(pages=1),
    "amdvi_all_inval Invalidation of all AMD-Vi cache \n": Counts(everything=1),
    "amdvi_page_fault error: page fault accessing guest physical address 0x1000\n": Counts(faults=1),
}


def mark(text: str) -> list[str]:
    return [
        f"parallel_ioport_write write [SW] addr 0x00 val 0x{byte:02x}\n" for byte in text.encode("latin1")
    ]


def test_recorded_run() -> None:
    with (DATA / "xen-trace.log").open() as lines:
        buckets = parse(lines)
    assert [(bucket.opened_by, bucket.step) for bucket in buckets[:7]] == [
        ("", None),
        ("begin", 0),
        ("end", None),
        ("begin", 1),
        (TICK, 1),
        (TICK, 1),
        (TICK, 1),
    ]
    # Two processes a tick, nine page tables each.
    assert [bucket.counts for bucket in buckets[4:6]] == [Counts(pages=18), Counts(pages=18)]
    assert [bucket.opened_by for bucket in buckets if bucket.step == 2] == ["begin", "half", "rest"]


def test_recorded_events_are_all_counted() -> None:
    text = (DATA / "xen-trace.log").read_text()
    counted = total(parse(text.splitlines()))
    expected = Counts(*(text.count(f"{event} ") for event in EVENTS[:4]))
    assert counted == expected
    assert counted.flushes > 100


def test_firmware_probe_does_not_spoil_the_first_marker() -> None:
    assert [b.opened_by for b in parse([*mark("\xaa"), *mark("begin 0000\n")])] == ["", "begin"]


def test_tick_inside_a_marker_tears_neither() -> None:
    buckets = parse([FLUSH, *mark("beg\ain 0000\n"), FLUSH])
    assert [(b.opened_by, b.step, b.counts.pages) for b in buckets] == [
        ("", None, 1),
        (TICK, None, 0),
        ("begin", 0, 1),
    ]


def test_other_ports_and_unknown_lines_are_no_markers() -> None:
    lines = [
        "parallel_ioport_write write [SW] addr 0x02 val 0x07\n",
        "vtd_inv_desc_wait_sw x\n",
        "\n",
        "junk",
    ]
    assert [b.counts for b in parse(lines)] == [Counts()]


def test_unexpected_frames_are_plain_markers() -> None:
    buckets = parse(mark("begin 0000\nend 0001\nbegin 0001\nend 0000\nbegin 0000\n"))
    assert [(b.opened_by, b.step) for b in buckets] == [
        ("", None),
        ("begin", 0),
        ("end 0001", 0),
        ("begin 0001", 0),
        ("end", None),
        ("begin 0000", None),
    ]


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(sorted(LINE_OF)), max_size=5),
            st.lists(st.sampled_from(sorted(LINE_OF)), max_size=5),
            st.text(st.sampled_from("\a \xaax"), max_size=6),
        ),
        max_size=6,
    )
)
def test_events_stay_in_their_step(steps: list[tuple[list[str], list[str], str]]) -> None:
    lines: list[str] = []
    for i, (before, inside, noise) in enumerate(steps):
        lines += [*before, *mark(f"begin {i:04}\n"), *inside, *mark(f"{noise}\nend {i:04}\n")]
    buckets = parse(lines)
    for i, (_, inside, _) in enumerate(steps):
        expected = sum((LINE_OF[line] for line in inside), Counts())
        assert total(bucket for bucket in buckets if bucket.step == i) == expected
    assert total(buckets) == sum((LINE_OF[line] for b, i, _ in steps for line in b + i), Counts())


@given(st.lists(st.text(max_size=80) | st.sampled_from([FLUSH, *mark("begin 0\n\a")])))
def test_parser_accepts_any_line(lines: list[str]) -> None:
    assert total(parse(lines)).pages == sum(line.partition(" ")[0] == EVENTS[0] for line in lines)
