# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The step log: framing that is robust against all output of a step."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorded import NONCE, STEPS, step_log
from trapless_lab.machines.script import Step, StepLog, StepResult, render


def test_recorded_run() -> None:
    log = step_log()
    assert log.finished
    assert [result.rc for result in log.results] == [0, 0, 0, 3]
    assert log.results[0].raw == b"a\0b\xff no newline"
    assert log.results[2].output == "two\nlines\n"
    assert log.results[3].raw == b""


def test_expected_exit_code() -> None:
    results = step_log().results
    assert all(result.as_expected for result in results)
    assert not StepResult(Step("x", "exit 3"), b"", 3, 0.0).as_expected
    assert StepResult(Step("x", "exit 3", expect=None), b"", 3, 0.0).as_expected


def test_render_numbers_the_steps_in_order() -> None:
    files = render(STEPS, NONCE)
    assert sorted(files) == ["/nonce", "/steps/0000", "/steps/0001", "/steps/0002", "/steps/0003"]
    assert files["/steps/0003"].read() == b"exit 3\n"


@pytest.mark.parametrize("count", [0, 10_000])
def test_render_refuses_what_the_frames_cannot_number(count: int) -> None:
    with pytest.raises(ValueError, match="1 to 9999"):
        render([Step("x", "true")] * count, NONCE)


def test_nonce_must_not_be_a_pattern() -> None:
    with pytest.raises(ValueError, match="hexadecimal"):
        StepLog(STEPS, ".*")


def begin(index: int) -> bytes:
    return b"\n@%b 1.00 begin %04d\n" % (NONCE.encode(), index)


def end(index: int, rc: int = 0) -> bytes:
    return b"\n@%b 2.50 end %04d %d\n" % (NONCE.encode(), index, rc)


def two_steps() -> StepLog:
    return StepLog(STEPS[:2], NONCE)


def test_running_step_is_visible() -> None:
    log = two_steps()
    log.feed(begin(0) + b"so far")
    assert log.running == STEPS[0]
    assert log.partial == "so far"
    log.feed(end(0, 7))
    assert log.running is None
    assert log.results == [StepResult(STEPS[0], b"so far", 7, 1.5)]


@pytest.mark.parametrize(
    "forged",
    [
        b"\n@0123456789abcdef 1.00 end 0000 0\n",
        b"@%b 1.00 end 0000 0\n" % NONCE.encode(),
        begin(0),
        begin(1),
        end(1),
        b"\n@%b 1.00 end 0000\n" % NONCE.encode(),
        b"\n@%b" % NONCE.encode(),
    ],
)
def test_unexpected_frames_are_output(forged: bytes) -> None:
    log = two_steps()
    log.feed(begin(0) + forged + end(0))
    assert [result.raw for result in log.results] == [forged]


def test_a_machine_that_boots_again_begins_anew() -> None:
    log = two_steps()
    log.feed(begin(0) + b"half a boot" + end(0) + begin(1) + b"cut")
    log.restart()
    assert (log.results, log.running, log.partial) == ([], None, "")
    log.feed(begin(0) + b"whole" + end(0) + begin(1) + end(1))
    assert [result.raw for result in log.results] == [b"whole", b""]


# Pieces of frames, so that the fuzzer finds the edges of the framing.
hostile = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from(
            [b"\n", b"@", NONCE.encode(), b"\n@" + NONCE.encode(), b" 1.00 end ", b"0000 0\n", b"\r\n"]
        ),
    ),
    max_size=8,
).map(b"".join)


@given(outputs=st.tuples(hostile, hostile), data=st.data())
def test_round_trip_in_any_pieces(outputs: tuple[bytes, bytes], data: st.DataObject) -> None:
    ends = [rb"\n@%b \d{1,12}\.\d\d end %04d \d{1,3}\n" % (NONCE.encode(), i) for i in range(2)]
    if any(re.search(ends[i], output + b"\n") for i, output in enumerate(outputs)):
        return  # the step knows the nonce and closes itself
    whole = b"".join(begin(i) + output + end(i, i) for i, output in enumerate(outputs))
    log = two_steps()
    at = 0
    while at < len(whole):
        size = data.draw(st.integers(1, 64))
        log.feed(whole[at : at + size])
        at += size
    assert [(result.raw, result.rc) for result in log.results] == [(outputs[0], 0), (outputs[1], 1)]


@given(noise=st.lists(hostile, max_size=5))
def test_noise_never_becomes_a_result(noise: list[bytes]) -> None:
    log = two_steps()
    for piece in noise:
        log.feed(piece)
    assert log.results == []
