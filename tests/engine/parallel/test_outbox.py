"""What is sent is let go when the schedule proves its receipt, for every kind of schedule."""

import itertools
from collections import defaultdict

import pytest

from engine.comm.collectives import Work
from engine.parallel.outbox import Outbox
from engine.schedule.action import Kind
from engine.schedule.build import build
from engine.schedule.comm import add_comm
from engine.schedule.schedule import Schedule

SHAPES = [
    ("gpipe", 4, 1, 16), ("1f1b", 4, 1, 16), ("interleaved", 2, 3, 8), ("interleaved", 4, 2, 16),
    ("zero-bubble", 4, 1, 16), ("zb-v", 4, 2, 16),
]  # fmt: skip


class Sent(Work):
    """A send that knows whether its receiver has used it."""

    def __init__(self) -> None:
        super().__init__("test", [])
        self.is_used = False
        self.waits = 0

    def wait(self) -> None:
        """Waiting for a message that nobody has used yet would couple the stages."""
        assert self.is_used, "waited for a message that is not used yet"
        self.waits += 1


class Run:
    """Walks all stages' programs in any order that the messages allow, with real outboxes."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.outboxes = [Outbox(schedule) for _ in schedule.stages]
        self.at = [0] * schedule.pp
        self.sent: dict[tuple[str, int, int], Sent] = {}
        self.peak = [0] * schedule.pp

    def step(self, stage: int) -> bool:
        """Do one action of a stage; False if it has to wait."""
        action = self.schedule.stages[stage][self.at[stage]]
        kind, chunk, m = action.kind, action.chunk, action.microbatch or 0
        if kind in (Kind.SEND_F, Kind.SEND_B):
            to = chunk + (1 if kind is Kind.SEND_F else -1)
            work = self.sent[kind.value[-1], to, m] = Sent()
            self.outboxes[stage].add(work, kind, to, m)
            self.peak[stage] = max(self.peak[stage], len(self.outboxes[stage]))
        receive = self._needs(stage, kind, chunk, m)
        if receive is not None:
            direction = receive.value[-1]
            if (direction, chunk, m) not in self.sent:
                return False
            self.sent[direction, chunk, m].is_used = True
            source = chunk + (-1 if receive is Kind.RECV_F else 1)
            self.outboxes[stage].heard(receive, source, m)
        self.at[stage] += 1
        return True

    def _needs(self, stage: int, kind: Kind, chunk: int, m: int) -> Kind | None:
        """The message a computation waits for, if it comes from another stage."""
        if kind is Kind.FORWARD and chunk > 0:
            receive, source = Kind.RECV_F, chunk - 1
        elif kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT) and chunk < self.schedule.chunks - 1:
            receive, source = Kind.RECV_B, chunk + 1
        else:
            return None
        return None if self.schedule.stage_of(source) == stage else receive

    def all(self, *, eager: int) -> None:
        """Until the end; the `eager` stage runs as far as it can before the others move."""
        lengths = [len(program) for program in self.schedule.stages]
        while self.at != lengths:
            before = list(self.at)
            for stage in [eager, *range(self.schedule.pp)]:
                while self.at[stage] < lengths[stage] and self.step(stage):
                    pass
            assert self.at != before, "deadlock"
        for outbox in self.outboxes:
            outbox.finish()


def program(shape: tuple[str, int, int, int], *, overlap: bool = True) -> Schedule:
    return add_comm(build(*shape), overlap_pp=overlap)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("overlap", [True, False])
def test_no_wait_ever_blocks_and_every_send_is_waited_for_once(shape, overlap):
    schedule = program(shape, overlap=overlap)
    for eager in range(schedule.pp):
        run = Run(schedule)
        run.all(eager=eager)
        assert all(sent.waits == 1 for sent in run.sent.values())
        assert [len(outbox) for outbox in run.outboxes] == [0] * schedule.pp


@pytest.mark.parametrize(("kind", "pp", "vpp"), [("1f1b", 4, 1), ("interleaved", 4, 2)])
def test_what_is_held_does_not_grow_with_the_micro_batches(kind, pp, vpp):
    peaks = defaultdict(list)
    for microbatches, eager in itertools.product((16, 64), range(pp)):
        run = Run(program((kind, pp, vpp, microbatches)))
        run.all(eager=eager)
        peaks[microbatches].append(max(run.peak))
    assert max(peaks[64]) == max(peaks[16])
    assert max(peaks[64]) <= 4 * pp * vpp
