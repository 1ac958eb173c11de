"""Event files as arrays: own time of nested spans, tails, and files that no run wrote."""

import json
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.diagnose import load
from engine.diagnose.eventlines import Line, decode_lines, whole
from engine.diagnose.load import _ordered, _reduce, load_spans
from engine.diagnose.parts import PARTS
from engine.errors import TraceError

MS = 1_000_000
CLOCK = {"kind": "instant", "name": "clock", "t_ns": 1000, "attrs": {
    "wall_ns": 10**18, "tp": 1, "pp": 1, "dp": 2}}  # fmt: skip


def span(name, start, length, step=0, stream="compute", **attrs):
    return {"kind": "span", "name": name, "t_ns": start * MS, "dur_ns": length * MS, "step": step,
            "stream": stream, "attrs": attrs}  # fmt: skip


def step_of(step, start):
    """A step of 100 ms: forward 30 of which 10 in a tensor collective, wait 20, backward 40."""
    return [
        span("tp_comm", start + 10, 10, step, "tp", op="all_reduce", bytes=1),
        span("forward", start, 30, step, chunk=0, microbatch=1),
        span("wait", start + 30, 20, step, on="dp_reduce"),
        span("backward", start + 50, 40, step, chunk=0, microbatch=1),
        span("step", start, 100, step, "host"),
    ]


def write(folder, rank, rows, end=b"\n"):
    folder.mkdir(exist_ok=True)
    path = folder / f"rank-{rank:05d}.jsonl"
    path.write_bytes(b"\n".join(json.dumps(r).encode() for r in rows) + end)
    return path


def line(name, start, length, step=0, stream="compute", **attrs):
    return Line("span", name, start, -1, step, stream, length, attrs)


def test_every_second_of_a_step_is_in_one_part(tmp_path):
    for rank in (0, 1):
        write(tmp_path, rank, [CLOCK, *step_of(0, 0), *step_of(1, 100)])
    spans = load_spans(tmp_path)
    ms = {part: round(1e3 * float(spans.seconds[part][1, 1])) for part in PARTS}
    assert {p: v for p, v in ms.items() if v} == {
        "forward": 20, "backward": 40, "wait_dp": 20, "wait_tp": 10, "other": 10,
    }  # fmt: skip
    total = sum(spans.seconds.values(), np.zeros((2, 2), np.float32))
    assert total == pytest.approx(spans.step_s)
    assert spans.step_s == pytest.approx(0.1)
    assert spans.ranks.tolist() == [0, 1]
    assert spans.steps.tolist() == [0, 1]
    assert spans.microbatches == 2
    assert spans.actions["forward", 0] == pytest.approx({0: 0.02, 1: 0.02})
    assert spans.actions["backward", 0] == pytest.approx({0: 0.04, 1: 0.04})


def test_a_step_that_was_not_completed_has_no_length(tmp_path):
    write(tmp_path, 0, [CLOCK, *step_of(0, 0), *step_of(1, 100)[:-1]])
    write(tmp_path, 1, [CLOCK, *step_of(0, 0)])
    spans = load_spans(tmp_path)
    assert np.isnan(spans.step_s).tolist() == [[False, True], [False, True]]
    assert spans.seconds["forward"] == pytest.approx(np.array([[0.02, 0.02], [0.02, 0]]))


def test_only_the_newest_steps_are_kept(tmp_path):
    rows = [CLOCK] + [row for s in range(6) for row in step_of(s, 100 * s)]
    write(tmp_path, 0, rows)
    write(tmp_path, 1, rows[:-5])
    spans = load_spans(tmp_path, last=2)
    assert spans.steps.tolist() == [4, 5]
    assert np.isnan(spans.step_s[1]).tolist() == [False, True]


@settings(max_examples=30)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(0, 20))
def test_the_own_times_of_nested_spans_sum_to_the_outermost(lengths, gap):
    start, inner = 0, []
    for length in lengths:
        inner += [line("gc", start + gap, length), line("forward", start, length + 2 * gap)]
        start += length + 2 * gap
    cells, steps, _, _ = _reduce([*inner, line("step", 0, start)], -1)
    assert cells["gc", 0] == sum(lengths)
    assert cells["forward", 0] == 2 * gap * len(lengths)
    assert cells["other", 0] == 0
    assert steps == {0: start}


def test_spans_written_out_of_order_are_put_in_the_order_of_their_ends():
    rows = [line("step", 0, 100), line("forward", 0, 30), line("tp_comm", 10, 10, stream="tp")]
    assert [s.name for s in _ordered(rows)] == ["tp_comm", "forward", "step"]


def test_a_child_that_ends_with_its_parent_still_comes_first():
    rows = [line("step", 0, 30), line("forward", 10, 20), line("data", 40, 1), line("gc", 35, 1)]
    assert [s.name for s in _ordered(rows)] == ["forward", "step", "gc", "data"]


@pytest.mark.parametrize("aside", ["eval", "sdc"])
def test_forwards_of_a_validation_or_comparison_are_no_training(aside: str):
    rows = [line("forward", 10, 5), line(aside, 10, 20), line("forward", 30, 5)]
    assert [s.name for s in _ordered(rows)] == [aside, aside, "forward"]


def test_transfers_beside_the_computation_are_left_out_and_blocking_ones_count():
    beside = [line("forward", 0, 10), line("send_f", 5, 10, stream="pp_f")]
    assert [s.name for s in _ordered(beside)] == ["forward"]
    blocking = [line("forward", 0, 10), line("send_f", 10, 10, stream="pp_f")]
    assert [s.name for s in _ordered(blocking)] == ["forward", "send_f"]


def test_a_tail_says_how_the_file_ends(tmp_path):
    still = span("wait", 150, 30, 1, on="dp_reduce") | {"kind": "open"}
    old = span("data", 10, 5, 1) | {"kind": "open"}
    failed = {
        "kind": "instant",
        "name": "error",
        "t_ns": 1,
        "attrs": {"type": "OSError", "what": "x"},
    }
    lost = {"kind": "value", "name": "dropped", "t_ns": 1, "attrs": {"value": 7}}
    far = span("forward", 9_000, 1, 2)
    write(tmp_path, 0, [CLOCK, *step_of(0, 0), old, failed, lost, still])
    write(tmp_path, 1, [CLOCK, *step_of(0, 0), {"kind": "instant", "name": "end", "t_ns": 5}])
    tails = load_spans(tmp_path).tails
    assert [o.name for o in tails[0].open] == ["data", "wait"]
    assert (tails[0].error, tails[0].error_line) == ("OSError: x", 8)
    assert (tails[0].dropped, tails[0].last_step, tails[0].ended) == (7, 1, False)
    assert (tails[1].last_name, tails[1].last_step, tails[1].ended) == ("step", 0, True)
    assert tails[0].last_wall_ns == 10**18 + 180 * MS - 1000
    write(tmp_path, 0, [CLOCK, still, far])
    assert load_spans(tmp_path).tails[0].open == ()  # closed long before the last line


def test_a_torn_last_line_is_left_out_and_a_bad_one_within_is_counted(tmp_path):
    path = write(tmp_path, 0, [CLOCK, *step_of(0, 0)], end=b'\n{"kind": "span", "na')
    lines, bad, *_ = decode_lines(path)
    assert (len(lines), bad) == (6, 0)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\n{}\n[1]\n", 1))
    assert decode_lines(path)[:2] == (lines, 2)
    spans = load_spans(path.parent)
    assert spans.unreadable == ((str(path), "2 lines are no events; the others were read"),)


@pytest.mark.parametrize(("change", "what"), [({"v": 99}, "version 99"), ({"rank": 2}, "rank 2")])
def test_events_of_another_version_or_rank_are_refused(tmp_path, change, what):
    path = write(tmp_path, 0, [CLOCK | change, *step_of(0, 0)])
    with pytest.raises(TraceError, match=what):
        load_spans(path.parent)


BAD = [
    b"\xff\xfe", b"[1]", b"{}", b'{"kind": "span"}', b'{"a":' * 9999, b"\x00" * 99,
    b'{"kind": "span", "name": "x", "t_ns": ' + b"9" * 400 + b"}",
    b'{"kind": "span", "name": "x", "t_ns": 1, "step": ' + b"9" * 30 + b"}",
    b'{"kind": "span", "name": "x", "t_ns": 1, "dur_ns": -1}',
    b'{"kind": "span", "name": "x", "t_ns": 1, "attrs": {"a": []}}',
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_line_is_skipped_but_as_the_first_of_the_file(tmp_path, bad):
    path = write(tmp_path, 0, [CLOCK], end=b"\n" + bad + b"\n" + json.dumps(CLOCK).encode() + b"\n")
    assert [one.name for one in decode_lines(path)[0]] == ["clock", "clock"]
    path.write_bytes(bad + b"\n")
    with pytest.raises(TraceError, match=r"00000.jsonl:1: not an event"):
        decode_lines(path)


@pytest.mark.parametrize("value", ["x", "", None, True, 2.5, 10**400, -(10**30)])
def test_attributes_that_are_no_numbers_do_not_end_the_reading(tmp_path, value):
    clock = CLOCK | {"attrs": CLOCK["attrs"] | {"wall_ns": value}}
    lost = {"kind": "value", "name": "dropped", "t_ns": 1, "attrs": {"value": value}}
    write(tmp_path, 0, [clock, span("forward", 0, 30, chunk=value, microbatch=value), lost])
    assert load_spans(tmp_path).microbatches == (3 if value == 2.5 else 2 if value is True else 1)


@settings(max_examples=50)
@given(
    st.one_of(st.none(), st.text(), st.integers(), st.floats(allow_nan=False, allow_infinity=False))
)
def test_a_whole_number_is_what_fits_and_else_nothing(value):
    number = whole(value)
    assert isinstance(number, int)
    fits = isinstance(value, (int, float)) and abs(value) <= 2**62
    assert number == (int(value) if fits else 0)


@pytest.mark.parametrize(
    ("attrs", "why"),
    [
        ({"tp": 1, "pp": 1}, "tp, pp and dp"), ({"tp": "x", "pp": 1, "dp": 1}, "tp, pp and dp"),
        ({"tp": -1, "pp": 1, "dp": 1}, "tp, pp and dp"), ({}, "tp, pp and dp"),
        ({"tp": 2**11, "pp": 2**10, "dp": 1}, "beyond"), ({"tp": 1, "pp": 1, "dp": 1}, "outside"),
    ],
)  # fmt: skip
def test_a_file_whose_first_line_does_not_fit_is_named(tmp_path, attrs, why):
    write(tmp_path, 0, [CLOCK, *step_of(0, 0)])
    bad = write(tmp_path, 1, [CLOCK | {"attrs": attrs}])
    spans = load_spans(tmp_path)
    assert spans.ranks.tolist() == [0]
    ((file, fault),) = spans.unreadable
    assert file == str(bad)
    assert why in fault


def test_no_readable_file_is_an_error_that_names_the_first(tmp_path):
    write(tmp_path, 0, [])
    with pytest.raises(TraceError, match=r"none of 1 event files can be read, .*00000.jsonl"):
        load_spans(tmp_path)
    with pytest.raises(TraceError, match="no event files"):
        load_spans(tmp_path / "nowhere")


@pytest.mark.multi
def test_over_several_processes_the_arrays_are_the_same(tmp_path, monkeypatch):
    for rank in (0, 1):
        write(tmp_path, rank, [CLOCK, *step_of(0, 0), *step_of(1, 100)])
    write(tmp_path, 2, [{}])
    alone = load_spans(tmp_path)
    monkeypatch.setattr(load, "_ALONE", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    several = load_spans(tmp_path)
    assert np.array_equal(several.step_s, alone.step_s)
    assert (several.tails, several.unreadable) == (alone.tails, alone.unreadable)
    assert len(several.unreadable) == 1


def test_steps_far_apart_need_no_room_in_between(tmp_path):
    write(tmp_path, 0, [CLOCK, *step_of(0, 0), *step_of(2**62, 100)])
    assert load_spans(tmp_path, last=2**63).steps.tolist() == [0, 2**62]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to(path)])
def test_an_event_file_that_is_no_file_costs_that_rank(tmp_path, make):
    write(tmp_path, 0, [CLOCK, *step_of(0, 0)])
    make(tmp_path / "rank-00001.jsonl")
    spans = load_spans(tmp_path)
    assert spans.ranks.tolist() == [0]
    ((file, why),) = spans.unreadable
    assert file.endswith("rank-00001.jsonl")
    assert "cannot be read" in why


def test_a_limit_on_all_files_is_shared_and_said(tmp_path, monkeypatch):
    monkeypatch.setattr("engine.diagnose.load.LEAST_BYTES", 1000)
    steps = [line for number in range(1, 200) for line in step_of(number, number * 1000)]
    for rank in range(2):
        path = write(tmp_path, rank, [{**CLOCK, "rank": rank}, *steps])
    spans = load_spans(path.parent, most_bytes=path.stat().st_size)
    assert spans.cut == 2
    assert spans.steps[-1] == 199
    assert 90 < len(spans.steps) < 110
    every = load_spans(path.parent)
    for part, seconds in every.seconds.items():
        assert (spans.seconds[part] == seconds[:, -len(spans.steps) :]).all()


@pytest.mark.parametrize("times", [0, -3, "many", None, 1e300])
def test_a_count_of_spans_that_is_none_divides_nothing(tmp_path, times):
    rows = [CLOCK, span("forward", 0, 30, 1, chunk=0, microbatch=0, times=times),
            span("step", 0, 40, 1, "host")]  # fmt: skip
    for rank in range(2):
        path = write(tmp_path, rank, rows)
    assert load_spans(path.parent).actions["forward", 0][0] == pytest.approx(0.03)
