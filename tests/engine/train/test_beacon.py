"""What a rank does is in its slot while it does it, and a dump is written when asked for."""

import time
from pathlib import Path

from engine.events.reader import read_events
from engine.events.writer import EventWriter
from engine.health.heartbeat_slot import Slots
from engine.train.beacon import Beacon


def wait_until(what, *, deadline_s: float = 10.0) -> None:
    end = time.monotonic() + deadline_s
    while not what():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def test_the_slot_follows_the_rank(tmp_path: Path):
    slots = Slots.make(2)
    path = tmp_path / "e.jsonl"
    with EventWriter(path, 0) as events, Beacon(events, slots.path, 1):
        events.step = 6
        with events.span("step"), events.span("wait", on="tp"):
            wait_until(lambda: slots.see(1).doing == "step/wait")
            seen = slots.see(1)
            assert seen.step == 6
            assert 0 < time.monotonic() - seen.since_s < 10, "by the monotonic clock of the node"
            number = slots.ask(1)
            wait_until(lambda: slots.see(1).dumped == number)
        wait_until(lambda: slots.see(1).works)
    assert [e.name for e in read_events(path) if e.kind == "open"] == ["step", "wait"]
    assert slots.see(1).works[0].step == 6
    assert slots.see(0).alive == 0
    slots.close()


def test_without_slots_nothing_runs():
    with Beacon(EventWriter(None, 0), "", 0) as beacon:
        assert not beacon._thread.is_alive()
