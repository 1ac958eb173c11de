"""A step that was summed up adds up to what it would have said span by span."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.diagnose.load import load_spans
from engine.events import writer as module
from engine.events.reader import read_events
from engine.events.schema import check
from engine.events.sums import Sums
from engine.events.writer import EventWriter

SHORT_NS = 20_000


class Clock:
    """Stands in for the time module of the writer; goes on only when told."""

    def __init__(self) -> None:
        self.now = 1_000

    def perf_counter_ns(self) -> int:
        return self.now

    def time_ns(self) -> int:
        return 10**18 + self.now


LEAVES = st.sampled_from(
    [("forward", {"chunk": 0, "microbatch": 0}), ("forward", {"chunk": 1, "microbatch": 3}),
     ("backward", {"chunk": 1, "microbatch": 2}), ("wait", {"on": "pp_f"}),
     ("wait", {"on": "dp_gather"}), ("tp_comm", {"op": "x", "bytes": 10}), ("optimizer", {}),
     ("data", {}), ("checkpoint", {}), ("unshard", {"chunk": 1}), ("gc", {"generation": 2})]
)  # fmt: skip
SPANS = st.recursive(
    st.tuples(LEAVES, st.integers(0, 60_000), st.booleans(), st.just([])),
    lambda inner: st.tuples(
        st.one_of(LEAVES, st.just(("eval", {}))), st.integers(0, 60_000), st.booleans(),
        st.lists(inner, max_size=4),
    ),
    max_leaves=12,
)  # fmt: skip


def play(events: EventWriter, clock: Clock, span) -> None:
    (name, attrs), before, may_be_forgotten, inner = span
    clock.now += before
    if name == "gc":
        clock.now += 5_000
        events.add("span", "gc", "host", clock.now - 5_000, 5_000, attrs)
        return
    events.enter(name, "compute", **attrs)
    for one in inner:
        play(events, clock, one)
    clock.now += before // 2 + 1
    events.leave(longer_than_ns=SHORT_NS if may_be_forgotten and name != "eval" else 0)


def written(path, steps, monkeypatch, *, every):
    clock = Clock()
    with monkeypatch.context() as patch:
        patch.setattr(module, "time", clock)
        with EventWriter(path, 0, every=every) as events:
            events.clock(world=1, degrees={"tp": 1, "pp": 1, "dp": 1},
                         index={"tp": 0, "pp": 0, "dp": 0})  # fmt: skip
            events._whole = range(1)  # none is kept because it is among the first
            for step, spans in enumerate(steps, 1):
                events.step = step
                with events.span("step"):
                    for late in (0, 3):  # transfers that run beside the thread, and overlap
                        events.add("span", "send_f", "pp_f", clock.now + late, 9,
                                   {"chunk": 0, "microbatch": 0})  # fmt: skip
                    for one in spans:
                        play(events, clock, one)
                    clock.now += 10
    return load_spans(path.parent)


@pytest.mark.slow
@settings(max_examples=150, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(steps=st.lists(st.lists(SPANS, max_size=5), min_size=1, max_size=3))
def test_parts_of_a_step_and_means_of_actions_are_the_same(tmp_path_factory, monkeypatch, steps):
    folder = tmp_path_factory.mktemp("sums")
    whole = written(folder / "a" / "rank-00000.jsonl", steps, monkeypatch, every=1)
    summed = written(folder / "b" / "rank-00000.jsonl", steps, monkeypatch, every=100)
    assert summed.summed == set(range(1, len(steps) + 1))
    assert not whole.summed
    np.testing.assert_array_equal(summed.step_s, whole.step_s)
    for part, seconds in whole.seconds.items():
        np.testing.assert_array_equal(summed.seconds[part], seconds, err_msg=part)
    assert summed.actions == whole.actions
    assert summed.microbatches == whole.microbatches


def test_what_is_written_is_of_the_schema_and_grows_with_kinds_not_with_spans(
    tmp_path, monkeypatch
):
    one = (("forward", {"chunk": 0, "microbatch": 1}), 10, False, [])
    wait = (("wait", {"on": "pp_f"}), 10, False, [])
    path = tmp_path / "rank-00000.jsonl"
    written(path, [[one, wait] * 50], monkeypatch, every=100)
    events = list(read_events(path))
    assert [e.name for e in events] == ["clock", "forward", "wait", "step", "end"]
    assert all(check(e) is None for e in events)
    assert events[1].attrs == {"chunk": 0, "microbatch": 1, "times": 50}
    assert events[3].attrs == {"summed": True}


@pytest.mark.parametrize("own_ns", [-5, 0])
def test_a_length_is_never_below_nothing(own_ns):
    sums = Sums()
    sums.add("wait", own_ns, {"on": "pp"})
    assert sums.spans(7) == [("wait", 7, 0, {"on": "pp", "times": 1})]
