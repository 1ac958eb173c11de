"""Hold what was sent until it is certain to have arrived, and not longer.

A send must be waited for before its tensor may go, but waiting at once would couple the stages, and
waiting at the end of the step would keep every activation of the step. The schedule tells more:
when a message of a stage arrives, that stage has done all computations that its program lists
before the one that made the message, so it has received what those needed. The wait for such a send
returns at once, and what is held follows the warm-up's depth instead of the micro-batches' number.
"""

from engine.comm.collectives import Work
from engine.schedule.action import COMPUTE, Action, Kind
from engine.schedule.schedule import Schedule

_USE = {
    Kind.SEND_F: (Kind.FORWARD,),
    Kind.RECV_F: (Kind.FORWARD,),
    Kind.SEND_B: (Kind.BACKWARD, Kind.BACKWARD_INPUT),
    Kind.RECV_B: (Kind.BACKWARD, Kind.BACKWARD_INPUT),
}
"""Computations that make or use a message."""


class Outbox:
    """Sends under way from one stage to all others."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._places = [
            {action: place for place, action in enumerate(program) if action.kind in COMPUTE}
            for program in schedule.stages
        ]
        self._held: dict[int, list[tuple[int, Work]]] = {}

    def __len__(self) -> int:
        """Sends that are held."""
        return sum(len(sends) for sends in self._held.values())

    def add(self, work: Work, kind: Kind, chunk: int, microbatch: int) -> None:
        """A message that `chunk` will use was sent (kind SEND_F or SEND_B)."""
        stage = self._schedule.stage_of(chunk)
        place = self._place(kind, chunk, microbatch)
        self._held.setdefault(stage, []).append((place, work))

    def heard(self, kind: Kind, chunk: int, microbatch: int) -> None:
        """A message that `chunk` made has arrived (kind RECV_F or RECV_B)."""
        stage = self._schedule.stage_of(chunk)
        made_at = self._place(kind, chunk, microbatch)
        held = self._held.get(stage, [])
        for place, work in held:
            if place < made_at:
                work.wait()
        self._held[stage] = [item for item in held if item[0] >= made_at]

    def finish(self) -> None:
        """Wait for all that is left: the end of a step."""
        for sends in self._held.values():
            for _, work in sends:
                work.wait()
        self._held.clear()

    def _place(self, kind: Kind, chunk: int, microbatch: int) -> int:
        """Where in its stage's program the computation stands that makes or uses a message."""
        places = self._places[self._schedule.stage_of(chunk)]
        found = (places.get(Action(use, chunk, microbatch)) for use in _USE[kind])
        return next(place for place in found if place is not None)
