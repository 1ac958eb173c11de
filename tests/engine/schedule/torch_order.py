"""What torch's own pipeline schedules really execute, recorded from their step function.

The order that torch 2.13 prints for 1F1B has an off-by-one on the last stage, so the printed order
is not used for GPipe and 1F1B: their real `_step_microbatches` is run on a stage that takes notes.
"""

from typing import Any

from torch.distributed.pipelining import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.schedules import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    FULL_BACKWARD,
)

from engine.schedule.action import Action, Kind

_LISTED = {
    "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
    "zb-v": ScheduleZBVZeroBubble,
}


class _Stage:
    """A stage without a model or messages: it notes what it is told to compute."""

    has_backward = False
    submod = None  # not a module, so not a compiled one either
    is_first = is_last = False
    device = "cpu"

    def __init__(self, index: int, stages: int, group_size: int) -> None:
        self.stage_index, self.num_stages, self.group_size = index, stages, group_size
        self.group_rank = index % group_size
        self.notes: list[Action] = []

    def forward_one_chunk(self, microbatch: int, *_: Any, **__: Any) -> None:
        self.notes.append(Action(Kind.FORWARD, self.stage_index, microbatch))

    def backward_one_chunk(self, microbatch: int, **_: Any) -> None:
        self.notes.append(Action(Kind.BACKWARD, self.stage_index, microbatch))

    def _no_messages(self, microbatch: int) -> list[Any]:
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = _no_messages

    def perform_reduce_grad(self, scale: int) -> None:
        pass


def executed(kind: str, pp: int, vpp: int, microbatches: int) -> list[list[Action]]:
    """The compute actions of every stage, in the order torch runs them."""
    if kind in _LISTED:
        return _listed(kind, pp, vpp, microbatches)
    maker = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[kind]
    orders = []
    for index in range(pp):
        stage = _Stage(index, pp, pp)
        schedule = maker(stage, microbatches)
        schedule._initialize_stage = lambda *_: None  # nothing to warm up: there are no messages
        inputs = [()] * microbatches
        schedule._step_microbatches(inputs, [{}] * microbatches, return_outputs=False)
        orders.append(stage.notes)
    return orders


def _listed(kind: str, pp: int, vpp: int, microbatches: int) -> list[list[Action]]:
    """Schedules of several chunks a stage carry out the list they hold."""
    kinds = {
        FORWARD: Kind.FORWARD,
        FULL_BACKWARD: Kind.BACKWARD,
        BACKWARD_INPUT: Kind.BACKWARD_INPUT,
        BACKWARD_WEIGHT: Kind.BACKWARD_WEIGHT,
    }
    chunks = [0, 2 * pp - 1] if kind == "zb-v" else range(0, pp * vpp, pp)
    stages = [_Stage(chunk, pp * vpp, pp) for chunk in chunks]
    for stage in stages:
        stage.group_rank = 0
    order = _LISTED[kind](stages, microbatches).pipeline_order
    found = []
    for rank in range(pp):
        actions = [action for action in order[rank] if action]  # None is a bubble
        found.append(
            [Action(kinds[a.computation_type], a.stage_index, a.microbatch_index) for a in actions]
        )
    return found
