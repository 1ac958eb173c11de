"""A step that takes too long is written down, once, while it still runs."""

import threading
import time
from pathlib import Path

import pytest

from engine.events.reader import read_events
from engine.events.writer import EventWriter
from engine.train.watchdog import Watchdog

DEADLINE_S = 0.05


def opens(path: Path) -> list[str]:
    return [e.name for e in read_events(path) if e.kind == "open"]


def wait_until(what, *, deadline_s: float = 10.0) -> None:
    end = time.monotonic() + deadline_s
    while not what():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def test_open_spans_are_dumped_outermost_first_once_a_step(tmp_path: Path, capfd):
    path = tmp_path / "e.jsonl"
    with EventWriter(path, 0) as events, Watchdog(events, deadline_s=DEADLINE_S) as watchdog:
        events.step = 7
        watchdog.beat()
        with events.span("step"), events.span("data"):
            wait_until(lambda: opens(path))
            time.sleep(4 * DEADLINE_S)
    assert opens(path) == ["step", "data"]
    assert {e.step for e in read_events(path) if e.kind == "open"} == {7}
    assert "test_watchdog.py" in capfd.readouterr().err, "stacks of all threads"


def test_the_next_slow_step_is_dumped_again(tmp_path: Path):
    path = tmp_path / "e.jsonl"
    with EventWriter(path, 0) as events, Watchdog(events, deadline_s=DEADLINE_S) as watchdog:
        for count in (1, 2):
            watchdog.beat()
            with events.span("step"):
                wait_until(lambda count=count: len(opens(path)) == count)
    assert opens(path) == ["step", "step"]


def test_steps_in_time_leave_nothing(tmp_path: Path):
    path = tmp_path / "e.jsonl"
    with EventWriter(path, 0) as events, Watchdog(events, deadline_s=60.0) as watchdog:
        for _ in range(20):
            watchdog.beat()
            with events.span("step"):
                pass
    assert opens(path) == []


def test_its_thread_ends_with_the_loop_even_on_an_error():
    before = threading.active_count()
    with pytest.raises(RuntimeError), Watchdog(EventWriter(None, 0), deadline_s=60.0):
        raise RuntimeError("step failed")
    assert threading.active_count() == before
