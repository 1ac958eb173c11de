"""Garbage collection between steps: at the same steps everywhere, never by itself."""

import gc
import weakref
from pathlib import Path

import pytest

from engine.events.reader import read_events
from engine.events.writer import EventWriter
from engine.train.collect import Collector

pytestmark = pytest.mark.slow


def test_it_runs_at_fixed_steps_and_leaves_an_event(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    with EventWriter(path, 0) as events, Collector(events) as collector:
        for done in range(1, 501):
            events.step = done
            collector.between_steps(done)
    spans = [e for e in read_events(path) if e.name == "gc"]
    assert [e.step for e in spans] == list(range(20, 501, 20))
    assert [e.attrs["generation"] for e in spans] == [1] * 24 + [2]


def test_nothing_collects_by_itself_meanwhile():
    assert gc.isenabled()
    with Collector(EventWriter(None, 0)):
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_in_the_loop_switches_it_on_again():
    try:
        with Collector(EventWriter(None, 0)):
            raise RuntimeError("step failed")
    except RuntimeError:
        pass
    assert gc.isenabled()


def test_cycles_are_collected_when_it_is_due():
    class Node:
        pass

    with Collector(EventWriter(None, 0)) as collector:
        node = Node()
        node.me = node  # type: ignore[attr-defined]
        alive = weakref.ref(node)
        del node
        collector.between_steps(19)
        assert alive() is not None
        collector.between_steps(20)
        assert alive() is None


def test_a_collection_that_somebody_else_starts_is_recorded(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    with EventWriter(path, 0) as events, Collector(events, every=0) as collector:
        events.step = 7
        heap = [[n] for n in range(300_000)]
        gc.collect()
        collector.between_steps(20)
        assert gc.isenabled()
    spans = [e for e in read_events(path) if e.name == "gc" and e.attrs["generation"] == 2]
    assert {e.step for e in spans} == {7}
    assert spans[-1].dur_ns > 1_000_000
    assert len(heap) == 300_000
