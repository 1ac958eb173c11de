"""Slots in shared memory: what a rank says is what its executor sees, in other processes too."""

import os

import pytest

from engine.errors import MissingError
from engine.health.heartbeat_slot import Slots, Work


@pytest.fixture
def slots():
    made = Slots.make(3)
    yield made
    made.close()


def test_what_is_told_is_seen_and_neighbours_are_not_touched(slots):
    slots.tell(1, alive=5, actions=77, step=12, since_s=3.5, doing="step/forward")
    seen = slots.see(1)
    assert (seen.alive, seen.actions, seen.step, seen.since_s) == (5, 77, 12, 3.5)
    assert (seen.doing, seen.pid) == ("step/forward", os.getpid())
    assert slots.see(0) == slots.see(2)
    assert slots.see(0).alive == 0


def test_a_long_name_is_cut(slots):
    slots.tell(0, alive=1, actions=1, step=1, since_s=1.0, doing="x" * 100)
    assert slots.see(0).doing == "x" * 32


def test_works_come_once_in_order_and_the_oldest_give_way(slots):
    for step in range(40):
        slots.tell_work(2, Work(step, 0.5, 0.25))
    assert [w.step for w in slots.see(2).works] == list(range(8, 40))
    assert [w.step for w in slots.see(2, after=37).works] == [38, 39]
    assert slots.see(2, after=39).works == ()


def test_a_dump_is_asked_for_and_answered(slots):
    number = slots.ask(0)
    assert (number, slots.asked(0), slots.see(0).dumped) == (1, 1, 0)
    slots.answer(0, number)
    assert slots.see(0).dumped == 1
    slots.clear(0)
    assert slots.asked(0) == 0


def test_another_process_writes_into_the_same_memory(slots):
    pid = os.fork()
    if pid == 0:
        theirs = Slots.open(slots.path)
        theirs.tell(0, alive=9, actions=1, step=4, since_s=0.0, doing="eval")
        os._exit(0)
    os.waitpid(pid, 0)
    assert (slots.see(0).alive, slots.see(0).doing, slots.see(0).pid) == (9, "eval", pid)


def test_a_slot_that_is_not_there_is_an_error(slots):
    with pytest.raises(MissingError, match="slot 3 of 3"):
        slots.see(3)


def test_slots_of_a_process_that_is_gone_are_an_error():
    with pytest.raises(MissingError, match="are gone"):
        Slots.open("/proc/1/fd/999999")
