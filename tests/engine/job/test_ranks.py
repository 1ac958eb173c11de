"""What an executor makes of slots, reports and the kernel's word on its ranks."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.health.heartbeat_slot import Slots, Work
from engine.job.nursery import Report
from engine.job.ranks import Ranks, trouble_in
from engine.processes import state_of


@pytest.fixture
def slots():
    made = Slots.make(2)
    yield made
    made.close()


def started(ranks: Ranks, rank: int, pid: int) -> None:
    ranks.report(Report(event="started", rank=rank, pid=pid))


def test_beats_carry_what_slots_say_and_each_step_once(slots):
    ranks = Ranks(slots)
    ranks.expect((4, 5))
    started(ranks, 5, os.getpid())
    slots.tell(1, alive=1, actions=9, step=3, since_s=time.monotonic() - 2, doing="step/wait")
    slots.tell_work(1, Work(2, 0.5, 0.25))
    beat = ranks.beats()[1]
    assert (beat.rank, beat.step, beat.doing, beat.actions) == (5, 3, "step/wait", 9)
    assert 1.5 < beat.age_s < 60
    assert beat.works == ((2, 0.5, 0.25),)
    assert ranks.beats()[1].works == ()


def test_an_end_counts_only_for_the_process_of_this_start(slots):
    ranks = Ranks(slots)
    ranks.expect((0, 1))
    started(ranks, 0, 111)
    ranks.report(Report(event="exit", rank=0, pid=99, code=-9))
    ranks.report(Report(event="exit", rank=7, pid=1, code=-9))
    assert ranks.running
    ranks.report(Report(event="exit", rank=0, pid=111, code=3))
    ranks.all_gone()
    assert [beat.code for beat in ranks.beats()] == [3, -9]
    assert not ranks.running
    assert ranks.pid(0) == 0


def test_ranks_without_a_dump_are_known(slots):
    ranks = Ranks(slots)
    ranks.expect((0, 1))
    ranks.ask_dump()
    slots.answer(0, 1)
    assert ranks.without_dump() == [1]
    assert "rank 1: no dump" in ranks.described([1])


@pytest.mark.multi
def test_a_stopped_process_is_seen(slots):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        ranks = Ranks(slots)
        ranks.expect((0,))
        started(ranks, 0, process.pid)
        process.send_signal(signal.SIGSTOP)
        end = time.monotonic() + 10
        while state_of(process.pid) != "T":
            assert time.monotonic() < end
            time.sleep(0.01)
        assert ranks.beats()[0].health == "stopped"
    finally:
        process.kill()
        process.wait()
    assert state_of(process.pid) == ""


def test_the_last_line_of_trouble_is_found_and_made_printable(tmp_path: Path):
    log = tmp_path / "log"
    log.write_bytes(b"fine\nKeyError: 'x\x07'\nNo space left on device\x1b[0m\nfine again\n")
    assert trouble_in(log) == "No space left on device?[0m"
    log.write_bytes(b"\xff\xfe all is well\n")
    assert trouble_in(log) == ""
    assert trouble_in(tmp_path / "none") == ""
